#version 450
// Y += sum over a token's slots of weight * (W H[slot]) with the matrix of the expert in the slot. Or the products
// W H[slot] alone, which expert_sum.comp then adds up, as Parts: for tiles of TOKENS pairs of a token and a slot
// that have the same expert (expert_group.comp), or pair by pair.
// A few outputs per invocation, or a workgroup shares one (LANES_PER_ROW).
// FUSED: MODE 0 may also add the shared expert's product times what its gate makes of it.
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
#if defined(SHARE_X) || defined(SPREAD)
#extension GL_KHR_shader_subgroup_ballot : require
#extension GL_KHR_shader_subgroup_arithmetic : require
#endif
#ifdef SPREAD
#extension GL_EXT_buffer_reference2 : require
#extension GL_EXT_shader_explicit_arithmetic_types_int64 : require
#extension GL_EXT_shader_8bit_storage : require
#extension GL_EXT_shader_explicit_arithmetic_types_int8 : require
#endif
#include "extra.glsl"

layout(push_constant) uniform Push {
    uint off0, off1, off2, off3, off4, off5;
#ifdef FUSED
    uint off6, off7;
#endif
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
#ifdef FUSED
    uint shared_k;     // weights a row of the shared expert, 0 without
    uint shared_row_bytes;
    uint gate_stride;  // floats from token to token of its gate
#endif
#ifdef SPREAD
    uint weight_at[2], x_at[2]; // addresses in the place of off1 and off2, the low words first
#endif
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
#ifdef FUSED
#define WEIGHT2_BINDING 6
#endif
#include "weights.glsl"
#ifdef SPREAD
#define WEIGHT_FROM address(p.weight_at)
#define X_FROM 0u
#define X_ADDRESS address(p.x_at)
#else
#define WEIGHT_FROM (p.off1 * 4u)
#define X_FROM p.off2
#endif
FLOATS(2, h)
layout(set = 0, binding = 3) readonly buffer IdBuffer { uint ids[]; }; // of MODE 2: tiles
layout(set = 0, binding = 4) readonly buffer FactorBuffer { float factor[]; };
layout(set = 0, binding = 5) buffer YBuffer { float y[]; };
#ifdef FUSED
layout(set = 0, binding = 7) readonly buffer GateBuffer { float gate[]; };
#endif

#include "slots.glsl"
#define X(i) h[i]
#define X_TEXELS h // with TEXELS, X(i) is element i % 4 of texel i / 4
#include "tile.glsl"
// Words of a slot's inputs.
#ifdef PACKED
#define X_WIDTH (p.k / 256u * PACKED_WORDS)
#else
#define X_WIDTH p.k
#endif

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
    for (uint tile_row = TILE_FROM; tile_row < TILE_END(p.n); tile_row = TILE_NEXT(tile_row)) {
        uint row = tile_row + TILE_LANE;
        float acc[ROWS];
        [[unroll]] for (uint r = 0u; r < ROWS; r++) acc[r] = 0.0;
        for (uint turn = 0u; turn < turns; turn++) {
            // Experts outside this binding are another dispatch's, or no expert's; the subtraction wraps.
            uint at = (MODE == 2u ? e : ids[p.off3 + pairs[0] + turn]) - p.first;
            if (at >= p.bound) continue;
            at = min(at, p.bound - 1u);
            // Pairs and rows past the end repeat another and are not stored.
            ADDRESS base[ROWS];
            uint xs[TOKENS];
            [[unroll]] for (uint r = 0u; r < ROWS; r++) base[r] = WEIGHT_FROM + at * p.expert_bytes + min(TILE_ROW(row, r, p.n), p.n - 1u) * p.row_bytes;
            [[unroll]] for (uint t = 0u; t < TOKENS; t++) {
                uint own = pairs[t], last = max(n, 1u) - 1u, instead = min(pairs[0], last);
                uint pair = min((own < n ? own : instead) + turn, last);
                xs[t] = X_FROM + pair / p.slots * p.h_stride + pair % p.slots * X_WIDTH;
            }
            float sum[TOKENS * ROWS];
            [[unroll]] for (uint i = 0u; i < TOKENS * ROWS; i++) sum[i] = 0.0;
            TILE_PRODUCT(base, xs, p.k / 32u, sum)
            float f = MODE == 0u ? factor[p.off4 + pairs[0] + turn] : 0.0;
            [[unroll]] for (uint t = 0u; t < TOKENS; t++) {
                [[unroll]] for (uint r = 0u; r < ROWS; r++) {
                    float v = scaled(TILE_SUM(sum[t * ROWS + r]), at);
                    if (MODE == 0u) {
                        acc[r] = add_slot(acc[r], f, v);
                        continue;
                    }
                    if (TILE_STORES && pairs[t] < n && TILE_ROW(row, r, p.n) < p.n) y[p.off5 + pairs[t] * p.y_stride + TILE_ROW(row, r, p.n)] = v;
                }
            }
        }
#ifdef FUSED
        float of_shared = 0.0;
        if (MODE == 0u && p.shared_k != 0u) {
            // Its input lies behind the token's slots.
            uint base[1] = uint[](p.off6 * 4u + row * p.shared_row_bytes);
            uint xs[1] = uint[](X_FROM + gl_WorkGroupID.y * p.h_stride + p.slots * p.k);
            float sum[1] = float[](0.0);
            weight_which = 1u;
            TILE_PRODUCT_OF(1u, base, xs, p.shared_k / 32u, sum)
            weight_which = 0u;
            of_shared = TILE_SUM(sum[0]);
        }
#endif
        if (MODE != 0u || !TILE_STORES) continue;
        [[unroll]] for (uint r = 0u; r < ROWS; r++) {
            uint own = TILE_ROW(row, r, p.n);
            if (own >= p.n) continue;
            uint i = p.off5 + gl_WorkGroupID.y * p.y_stride + own;
            y[i] += acc[r];
#ifdef FUSED
            if (p.shared_k != 0u) y[i] = add_slot(y[i], gate_factor(gate[p.off7 + gl_WorkGroupID.y * p.gate_stride]), of_shared);
#endif
        }
    }
}
