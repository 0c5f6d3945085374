#version 450
// Y = W X for a block of tokens, or Y += W X, with an optional factor per token.
// ROW: one weight row per invocation, TOKENS tokens at a time. LANES: a workgroup shares a weight row.
#extension GL_GOOGLE_include_directive : require

layout(push_constant) uniform Push {
    uint off0, off1, off2, off3, off4;
    uint count;     // which of the step's counts limits the tokens
    uint n;         // weight rows here
    uint k;         // weights a row, a multiple of 32
    uint row_bytes; // bytes a row
    uint x_stride, y_stride; // floats from token to token
    uint factor_stride;
    uint mode;      // bit 0 accumulate, bit 1 factor, bit 2 sigmoid
} p;

#ifdef LANES_PER_ROW
#include "reduce.glsl"
layout(constant_id = 2) const uint TOKENS = 1u;
#else
layout(local_size_x_id = 0, local_size_y = 1, local_size_z = 1) in;
layout(constant_id = 1) const uint TOKENS = 1u;
#endif
#include "step.glsl"
#define WEIGHT_BINDING 1
#include "weights.glsl"
layout(set = 0, binding = 2) readonly buffer XBuffer { float x[]; };
layout(set = 0, binding = 3) buffer YBuffer { float y[]; };
layout(set = 0, binding = 4) readonly buffer FactorBuffer { float factor[]; };

void store(uint token, uint row, float v) {
    if ((p.mode & 2u) != 0u) v *= factor[p.off4 + token * p.factor_stride];
    if ((p.mode & 4u) != 0u) v = 1.0 / (1.0 + exp(-v));
    uint i = p.off3 + token * p.y_stride + row;
    if ((p.mode & 1u) != 0u) v += y[i];
    y[i] = v;
}

void main() {
    uint tokens = step_count(p.count), t0 = gl_WorkGroupID.y * TOKENS;
    if (t0 >= tokens) return;
#ifdef LANES_PER_ROW
    uint first = gl_WorkGroupID.x, hop = gl_NumWorkGroups.x, group0 = LANE, group_hop = LANES;
#else
    uint first = gl_GlobalInvocationID.x, hop = gl_NumWorkGroups.x * gl_WorkGroupSize.x, group0 = 0u, group_hop = 1u;
#endif
    for (uint row = first; row < p.n; row += hop) {
        float acc[TOKENS];
        for (uint t = 0u; t < TOKENS; t++) acc[t] = 0.0;
        uint base = p.off1 * 4u + row * p.row_bytes;
        for (uint g = group0; g < p.k / 32u; g += group_hop) {
            float w[32];
            load32(base, g, w);
            for (uint t = 0u; t < TOKENS; t++) {
                // Tokens past the end repeat the last one and are not stored.
                uint xi = p.off2 + min(t0 + t, tokens - 1u) * p.x_stride + g * 32u;
                float s = 0.0;
                for (uint j = 0u; j < 32u; j++) s += w[j] * x[xi + j];
                acc[t] += s;
            }
        }
        for (uint t = 0u; t < TOKENS; t++) {
#ifdef LANES_PER_ROW
            acc[t] = wg_sum(acc[t]);
            if (LANE == 0u && t0 + t < tokens) store(t0 + t, row, acc[t]);
#else
            if (t0 + t < tokens) store(t0 + t, row, acc[t]);
#endif
        }
    }
}
