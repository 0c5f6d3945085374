#version 450
// Y += sum over a token's slots of weight * (W H[slot]) with the matrix of the expert in the slot. Or the products
// W H[slot] alone, which expert_sum.comp then adds up, as Parts: for tiles of TOKENS pairs of a token and a slot
// that have the same expert (expert_group.comp), or pair by pair.
// A few outputs per invocation, or a workgroup shares one (LANES_PER_ROW).
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
#ifdef SHARE_X
#extension GL_KHR_shader_subgroup_ballot : require
#extension GL_KHR_shader_subgroup_arithmetic : require
#endif
#include "extra.glsl"

layout(push_constant) uniform Push {
    uint off0, off1, off2, off3, off4, off5;
    EXTRA_OFFSETS
    uint n;            // weight rows
    uint k;            // weights a row, a multiple of 32
    uint row_bytes;    // bytes a row
    uint expert_bytes; // bytes from expert to expert
    uint h_stride;     // floats from token to token
    uint y_stride;     // floats from token to token, or from pair to pair of Parts
    uint slots;        // experts a token
    uint first;        // first expert bound here
    uint bound;        // experts bound here
    uint tiles;        // where the tiles of TOKENS pairs begin
} p;

#ifdef LANES_PER_ROW
#include "reduce.glsl"
layout(constant_id = 2) const uint TOKENS = 1u;
layout(constant_id = 3) const uint MODE = 0u;
#else
layout(local_size_x_id = 0, local_size_y = 1, local_size_z = 1) in;
#define X_LANES gl_WorkGroupSize.x // with SHARE_X
layout(constant_id = 1) const uint TOKENS = 1u;
layout(constant_id = 2) const uint MODE = 0u;
#endif
// MODE 0 takes the tokens one by one and adds up, MODE 1 takes pairs and MODE 2 tiles.
#include "step.glsl"
#define WEIGHT_BINDING 1
#include "weights.glsl"
layout(set = 0, binding = 2) readonly buffer HBuffer { float h[]; };
layout(set = 0, binding = 3) readonly buffer IdBuffer { uint ids[]; }; // of MODE 2: tiles
layout(set = 0, binding = 4) readonly buffer FactorBuffer { float factor[]; };
layout(set = 0, binding = 5) buffer YBuffer { float y[]; };

#include "slots.glsl"
#define X(i) h[i]
#include "tile.glsl"

void main() {
    uint n = step_rows() * p.slots, e = 0u;
    uint pairs[TOKENS];
    if (MODE == 2u) {
        if (gl_WorkGroupID.y >= ids[p.off3 + TOKENS / 2u]) return;
        uint tile = p.off3 + p.tiles + gl_WorkGroupID.y * (TOKENS + 1u);
        e = ids[tile];
        [[unroll]] for (uint t = 0u; t < TOKENS; t++) pairs[t] = ids[tile + 1u + t];
    } else {
        uint first = MODE == 0u ? gl_WorkGroupID.y * p.slots : gl_WorkGroupID.y;
        if (first >= n) return;
        [[unroll]] for (uint t = 0u; t < TOKENS; t++) pairs[t] = first;
    }
    uint turns = MODE == 0u ? p.slots : 1u;
    for (uint tile_row = TILE_FROM; tile_row < p.n; tile_row += TILE_HOP) {
        uint row = tile_row + TILE_LANE;
        float acc[ROWS];
        [[unroll]] for (uint r = 0u; r < ROWS; r++) acc[r] = 0.0;
        for (uint turn = 0u; turn < turns; turn++) {
            // Experts outside this binding are another dispatch's, or no expert's; the subtraction wraps.
            uint at = (MODE == 2u ? e : ids[p.off3 + pairs[0] + turn]) - p.first;
            if (at >= p.bound) continue;
            // Pairs and rows past the end repeat another and are not stored.
            uint base[ROWS], xs[TOKENS];
            [[unroll]] for (uint r = 0u; r < ROWS; r++) base[r] = p.off1 * 4u + at * p.expert_bytes + min(row + r, p.n - 1u) * p.row_bytes;
            [[unroll]] for (uint t = 0u; t < TOKENS; t++) {
                uint own = pairs[t], instead = min(pairs[0], n - 1u);
                uint pair = (own < n ? own : instead) + turn;
                xs[t] = p.off2 + pair / p.slots * p.h_stride + pair % p.slots * p.k;
            }
            float sum[TOKENS * ROWS];
            [[unroll]] for (uint i = 0u; i < TOKENS * ROWS; i++) sum[i] = 0.0;
            TILE_PRODUCT(base, xs, p.k / 32u, sum)
            float f = MODE == 0u ? factor[p.off4 + pairs[0] + turn] : 0.0;
            [[unroll]] for (uint t = 0u; t < TOKENS; t++) {
                [[unroll]] for (uint r = 0u; r < ROWS; r++) {
                    float v = sum[t * ROWS + r];
#ifdef LANES_PER_ROW
                    v = wg_sum(v);
#endif
                    v = scaled(v, at);
                    if (MODE == 0u) {
                        acc[r] = add_slot(acc[r], f, v);
                        continue;
                    }
#ifdef LANES_PER_ROW
                    if (LANE != 0u) continue;
#endif
                    if (pairs[t] < n && row + r < p.n) y[p.off5 + pairs[t] * p.y_stride + row + r] = v;
                }
            }
        }
        if (MODE != 0u) continue;
#ifdef LANES_PER_ROW
        if (LANE != 0u) continue;
#endif
        [[unroll]] for (uint r = 0u; r < ROWS; r++) {
            if (row + r < p.n) y[p.off5 + gl_WorkGroupID.y * p.y_stride + row + r] += acc[r];
        }
    }
}
