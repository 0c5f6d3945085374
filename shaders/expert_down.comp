#version 450
// Y += sum over a token's slots of weight * (W H[slot]) with the matrix of the expert in the slot.
// ROW: one output per invocation. LANES: a workgroup shares an output.
#extension GL_GOOGLE_include_directive : require

layout(push_constant) uniform Push {
    uint off0, off1, off2, off3, off4, off5;
    uint n;            // weight rows
    uint k;            // weights a row, a multiple of 32
    uint row_bytes;    // bytes a row
    uint expert_bytes; // bytes from expert to expert
    uint h_stride, y_stride; // floats from token to token
    uint slots;        // experts a token
    uint first;        // first expert bound here
    uint bound;        // experts bound here
} p;

#ifdef LANES_PER_ROW
#include "reduce.glsl"
#else
layout(local_size_x_id = 0, local_size_y = 1, local_size_z = 1) in;
#endif
#include "step.glsl"
#define WEIGHT_BINDING 1
#include "weights.glsl"
layout(set = 0, binding = 2) readonly buffer HBuffer { float h[]; };
layout(set = 0, binding = 3) readonly buffer IdBuffer { uint ids[]; };
layout(set = 0, binding = 4) readonly buffer FactorBuffer { float factor[]; };
layout(set = 0, binding = 5) buffer YBuffer { float y[]; };

void main() {
    uint token = gl_WorkGroupID.y;
    if (token >= step_rows()) return;
#ifdef LANES_PER_ROW
    uint from = gl_WorkGroupID.x, hop = gl_NumWorkGroups.x, group0 = LANE, group_hop = LANES;
#else
    uint from = gl_GlobalInvocationID.x, hop = gl_NumWorkGroups.x * gl_WorkGroupSize.x, group0 = 0u, group_hop = 1u;
#endif
    for (uint row = from; row < p.n; row += hop) {
        float acc = 0.0;
        for (uint slot = 0u; slot < p.slots; slot++) {
            // Experts outside this binding are another dispatch's, or no expert's; the subtraction wraps.
            uint e = ids[p.off3 + token * p.slots + slot] - p.first;
            if (e >= p.bound) continue;
            uint base = p.off1 * 4u + e * p.expert_bytes + row * p.row_bytes;
            uint hi = p.off2 + token * p.h_stride + slot * p.k;
            float sum = 0.0;
            for (uint g = group0; g < p.k / 32u; g += group_hop) {
                float w[32];
                load32(base, g, w);
                float s = 0.0;
                for (uint j = 0u; j < 32u; j++) s += w[j] * h[hi + g * 32u + j];
                sum += s;
            }
            acc += factor[p.off4 + token * p.slots + slot] * sum;
        }
#ifdef LANES_PER_ROW
        acc = wg_sum(acc);
        if (LANE == 0u) y[p.off5 + token * p.y_stride + row] += acc;
#else
        y[p.off5 + token * p.y_stride + row] += acc;
#endif
    }
}
