#version 450
// The gated delta rule's inputs from one layer's projections (model-qwen35.md 5.2, steps 2-4): causal
// depthwise convolution over the last 4 raw inputs, SiLU, L2 norm of each q and k head, and the gates.
// A workgroup takes the dim channels of one q, k or v head of one sequence and goes over the rows of its
// run; the last workgroup of a sequence computes the gates. Lane l holds channels l, l+LANES, ... of the
// head with their last 3 inputs in registers, so the carried tail is read and then written by the same
// invocation.
#extension GL_GOOGLE_include_directive : require

layout(push_constant) uniform Push {
    uint off0, off1, off2, off3, off4, off5, off6;
    uint stride;    // floats from row to row of the projections
    uint u_col, beta_col, alpha_col;
    uint out_stride;
    uint k_heads, v_heads;
    uint dim;       // channels of a head
    uint slot_first, slots; // the slots bound here
    uint row_first, row_count; // the part of each run taken here
    float eps;
} p;

#include "reduce_any.glsl"
layout(constant_id = 2) const uint PER = 1u; // channels a lane holds: dim / LANES, rounded up
#include "step.glsl"
layout(set = 0, binding = 1) readonly buffer ProjectionBuffer { float proj[]; };
layout(set = 0, binding = 2) readonly buffer ConvBuffer { float conv[]; };
layout(set = 0, binding = 3) readonly buffer ABuffer { float a[]; };
layout(set = 0, binding = 4) readonly buffer DtBuffer { float dt[]; };
layout(set = 0, binding = 5) buffer TailBuffer { float tail[]; };
layout(set = 0, binding = 6) writeonly buffer OutBuffer { float y[]; };

// exp is only taken of what is not positive: no infinity arises, whatever x is.
float sigmoid(float x) {
    float e = exp(-abs(x));
    return (x >= 0.0 ? 1.0 : e) / (1.0 + e);
}

// log(1 + e) for e in [0, 1], by log(1 + e) = 2 atanh(e / (2 + e)). log(1.0 + e) would lose e's low bits, all
// of them below 6e-8. The first term left out is below 2e-9 of the sum.
float log1p_unit(float e) {
    float s = e / (2.0 + e), s2 = s * s;
    float t = 1.0 / 15.0;
    t = t * s2 + 1.0 / 13.0;
    t = t * s2 + 1.0 / 11.0;
    t = t * s2 + 1.0 / 9.0;
    t = t * s2 + 1.0 / 7.0;
    t = t * s2 + 1.0 / 5.0;
    t = t * s2 + 1.0 / 3.0;
    t = t * s2 + 1.0;
    return 2.0 * s * t;
}

float softplus(float x) { return max(x, 0.0) + log1p_unit(exp(-abs(x))); }

// The decay factor and the write strength of every value head and row.
void gates(uint start, uint rows, uint channels) {
    for (uint i = LANE; i < rows * p.v_heads; i += LANES) {
        uint row = start + i / p.v_heads, h = i % p.v_heads;
        uint from = p.off1 + row * p.stride + h, to = p.off6 + row * p.out_stride + channels + h;
        float g = a[p.off3 + h] * softplus(proj[from + p.alpha_col] + dt[p.off4 + h]);
        y[to] = exp(g);
        y[to + p.v_heads] = sigmoid(proj[from + p.beta_col]);
    }
}

void head(uint group, uint start, uint rows, uint channels, uint slot, bool fresh) {
    uint first = group * p.dim;
    uint tail_at = p.off5 + slot * 3u * channels + first;
    vec4 w[PER];  // tap 0 belongs to the oldest input
    vec3 in3[PER]; // the last 3 inputs, oldest first
    float v[PER];
    for (uint n = 0u; n < PER; n++) {
        uint c = LANE + n * LANES;
        if (c < p.dim) {
            uint i = p.off2 + 4u * (first + c);
            w[n] = vec4(conv[i], conv[i + 1u], conv[i + 2u], conv[i + 3u]);
            in3[n] = vec3(0.0);
            if (!fresh) in3[n] = vec3(tail[tail_at + c], tail[tail_at + channels + c], tail[tail_at + 2u * channels + c]);
        }
    }
    bool normed = group < 2u * p.k_heads;
    for (uint row = start; row < start + rows; row++) {
        uint from = p.off1 + row * p.stride + p.u_col + first, to = p.off6 + row * p.out_stride + first;
        float sum = 0.0, scale = 1.0;
        for (uint n = 0u; n < PER; n++) {
            uint c = LANE + n * LANES;
            if (c < p.dim) {
                float u = proj[from + c];
                float s = w[n].x * in3[n].x + w[n].y * in3[n].y + w[n].z * in3[n].z + w[n].w * u;
                in3[n] = vec3(in3[n].yz, u);
                v[n] = s * sigmoid(s);
                sum += v[n] * v[n];
            }
        }
        if (normed) scale = 1.0 / max(sqrt(wg_sum(sum)), p.eps);
        for (uint n = 0u; n < PER; n++) {
            uint c = LANE + n * LANES;
            if (c < p.dim) y[to + c] = v[n] * scale;
        }
    }
    for (uint n = 0u; n < PER; n++) {
        uint c = LANE + n * LANES;
        if (c < p.dim) {
            tail[tail_at + c] = in3[n].x;
            tail[tail_at + channels + c] = in3[n].y;
            tail[tail_at + 2u * channels + c] = in3[n].z;
        }
    }
}

void main() {
    uint seq = gl_WorkGroupID.y;
    if (seq >= step_seqs()) return;
    uint slot = run_slot(seq) - p.slot_first; // wraps around for slots before the window
    if (slot >= p.slots) return;
    uint heads = 2u * p.k_heads + p.v_heads, channels = heads * p.dim;
    // Of a long run several dispatches take a part each, the tail carried between them as between steps.
    if (p.row_first >= run_len(seq)) return;
    bool fresh = run_fresh(seq) && p.row_first == 0u;
    uint start = run_start(seq) + p.row_first, rows = min(run_len(seq) - p.row_first, p.row_count);
    if (gl_WorkGroupID.x == heads) gates(start, rows, channels);
    else head(gl_WorkGroupID.x, start, rows, channels, slot, fresh);
}
