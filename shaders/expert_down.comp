#version 450
// Y += sum over a token's slots of weight * (W H[slot]) with the matrix of the expert in the slot.
// A few outputs per invocation, or a workgroup shares one (LANES_PER_ROW).
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
#include "extra.glsl"

layout(push_constant) uniform Push {
    uint off0, off1, off2, off3, off4, off5;
    EXTRA_OFFSETS
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

#define TOKENS 1u // a token's experts differ from the next one's
#define X(i) h[i]
#include "tile.glsl"

void main() {
    uint token = gl_WorkGroupID.y;
    if (token >= step_rows()) return;
    for (uint row = TILE_FROM; row < p.n; row += TILE_HOP) {
        float acc[ROWS];
        [[unroll]] for (uint r = 0u; r < ROWS; r++) acc[r] = 0.0;
        for (uint slot = 0u; slot < p.slots; slot++) {
            // Experts outside this binding are another dispatch's, or no expert's; the subtraction wraps.
            uint e = ids[p.off3 + token * p.slots + slot] - p.first;
            if (e >= p.bound) continue;
            // Rows past the end repeat the last one and are not stored.
            uint base[ROWS], xs[TOKENS];
            [[unroll]] for (uint r = 0u; r < ROWS; r++) base[r] = p.off1 * 4u + e * p.expert_bytes + min(row + r, p.n - 1u) * p.row_bytes;
            xs[0] = p.off2 + token * p.h_stride + slot * p.k;
            float sum[ROWS];
            [[unroll]] for (uint r = 0u; r < ROWS; r++) sum[r] = 0.0;
            TILE_PRODUCT(base, xs, p.k / 32u, sum)
            float f = factor[p.off4 + token * p.slots + slot];
            [[unroll]] for (uint r = 0u; r < ROWS; r++) acc[r] += f * scaled(sum[r], e);
        }
        [[unroll]] for (uint r = 0u; r < ROWS; r++) {
            float v = acc[r];
#ifdef LANES_PER_ROW
            v = wg_sum(v);
            if (LANE != 0u) continue;
#endif
            if (row + r < p.n) y[p.off5 + token * p.y_stride + row + r] += v;
        }
    }
}
