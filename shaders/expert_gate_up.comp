#version 450
// H[token][slot] = silu(G X) * (U X) with the matrices of the expert in the token's slot, all experts of all
// tokens at once: pair by pair of a token and a slot, or tile by tile of TOKENS pairs with the same expert
// (expert_group.comp). Without ids the matrices are those of expert 0, and TOKENS tokens a tile.
// A few outputs per invocation, or a workgroup shares one (LANES_PER_ROW).
// FUSED: X is the RMSNorm of what is bound, and pairs may be followed by the tokens with the shared expert, whose outputs
// lie behind the slots.
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
    uint off6, off7, off8;
#endif
    EXTRA_OFFSETS
    uint n;            // weight rows here
    uint k;            // weights a row, a multiple of 32
    uint row_bytes;    // bytes a row
    uint expert_bytes; // bytes from expert to expert
    uint x_stride, h_stride; // floats from token to token
    uint slots;        // experts a token
    uint slot_width;   // floats from slot to slot of a token
    uint first;        // first expert bound here
    uint bound;        // experts bound here
    uint experts;      // experts of the stack
    uint routed;       // 0: there are no ids; 1: ids of pairs; 2: tiles in their place
    uint tiles;        // where the tiles of TOKENS pairs begin
#ifdef FUSED
    uint shared_n;     // rows of the shared expert, 0 without
    float eps;         // of the norm
#endif
#ifdef SPREAD
    uint weight_at[2], weight2_at[2], x_at[2]; // addresses in the place of off1, off2 and off3, the low words first
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
// MODE 0 reads both matrices. Where they differ in block type or layout there are two passes over binding 1:
// MODE 1 leaves G X in H, MODE 2 finishes with U X.
#include "step.glsl"
#define WEIGHT_BINDING 1
#define WEIGHT2_BINDING 2
#ifdef FUSED
#define WEIGHT3_BINDING 7
#define WEIGHT4_BINDING 8
#endif
#include "weights.glsl"
#ifdef SPREAD
#define WEIGHT_FROM address(p.weight_at)
#define WEIGHT2_FROM address(p.weight2_at)
#define X_FROM 0u
#define X_ADDRESS address(p.x_at)
#define READ_WEIGHT(n)
#else
#define WEIGHT_FROM (p.off1 * 4u)
#define WEIGHT2_FROM (p.off2 * 4u)
#define X_FROM p.off3
#define READ_WEIGHT(n) weight_which = n;
#endif
FLOATS(3, x)
layout(set = 0, binding = 4) readonly buffer IdBuffer { uint ids[]; };
layout(set = 0, binding = 5) buffer HBuffer { float h[]; };
#ifdef FUSED
layout(set = 0, binding = 6) readonly buffer NormBuffer { float norm[]; };
#define NORMED(i) norm[p.off6 + (i)]
#include "norm.glsl"
#endif

float silu(float v) { return v / (1.0 + exp(-v)); }

// Stores a = G X and b = U X at h[i], or what of them the mode has.
void store(uint i, float a, float b) {
    if (MODE == 0u) h[i] = silu(a) * b;
    if (MODE == 1u) h[i] = a;
    if (MODE == 2u) h[i] = silu(h[i]) * a;
}

#define X(i) x[i]
#define X_TEXELS x // with TEXELS, X(i) is element i % 4 of texel i / 4
#include "tile.glsl"

#ifdef FUSED
// The outputs of the shared expert for one token, whose matrices are the third and fourth.
void shared_expert(uint token) {
    if (token >= step_rows()) return;
    uint xs[1] = uint[](X_FROM + token * p.x_stride), to = p.off5 + token * p.h_stride + p.slots * p.slot_width;
    float inv_rms[1] = float[](inverse_rms(xs[0], p.k, p.eps));
    for (uint row = TILE_FROM; row < p.shared_n; row = TILE_NEXT(row)) {
        uint gate[1] = uint[](p.off7 * 4u + row * p.row_bytes), up[1] = uint[](p.off8 * 4u + row * p.row_bytes);
        float a[1] = float[](0.0), b[1] = float[](0.0);
        READ_WEIGHT(2u)
        TILE_PRODUCT_OF(1u, gate, xs, p.k / 32u, a)
        READ_WEIGHT(3u)
        TILE_PRODUCT_OF(1u, up, xs, p.k / 32u, b)
        READ_WEIGHT(0u)
        float g = TILE_SUM(a[0]), u = TILE_SUM(b[0]);
        if (TILE_STORES) h[to + row] = silu(g) * u;
    }
}
#endif

void main() {
    uint n = step_rows() * p.slots, e = 0u;
    uint pairs[TOKENS];
    if (p.routed == 2u) {
        if (gl_WorkGroupID.y >= ids[p.off4 + TOKENS / 2u]) return;
        uint tile = p.off4 + p.tiles + gl_WorkGroupID.y * (TOKENS + 1u);
        e = ids[tile];
        [[unroll]] for (uint t = 0u; t < TOKENS; t++) pairs[t] = ids[tile + 1u + t];
    } else {
        uint first = gl_WorkGroupID.y * TOKENS;
#ifdef FUSED
        if (p.shared_n != 0u && first >= n) {
            shared_expert(first - n);
            return;
        }
#endif
        if (first >= n) return;
        if (p.routed == 1u) e = ids[p.off4 + first];
        [[unroll]] for (uint t = 0u; t < TOKENS; t++) pairs[t] = first + t;
    }
    // An id that names no expert gives zeros, from the dispatch over the first experts alone.
    bool none = e >= p.experts;
    if (none ? p.first != 0u : e - p.first >= p.bound) return;
    uint groups = none ? 0u : p.k / 32u, at = none ? 0u : min(e - p.first, p.bound - 1u);
    // Pairs and rows past the end repeat another and are not stored.
    uint xs[TOKENS], hs[TOKENS];
    [[unroll]] for (uint t = 0u; t < TOKENS; t++) {
        uint own = pairs[t], instead = min(pairs[0], max(n, 1u) - 1u);
        uint pair = own < n ? own : instead;
        xs[t] = X_FROM + pair / p.slots * p.x_stride;
        hs[t] = p.off5 + pair / p.slots * p.h_stride + pair % p.slots * p.slot_width;
    }
#ifdef FUSED
    float inv_rms[TOKENS];
    [[unroll]] for (uint t = 0u; t < TOKENS; t++) inv_rms[t] = inverse_rms(xs[t], p.k, p.eps);
#endif
    for (uint tile_row = TILE_FROM; tile_row < TILE_END(p.n); tile_row = TILE_NEXT(tile_row)) {
        uint row = tile_row + TILE_LANE;
        float a[TOKENS * ROWS], b[TOKENS * ROWS];
        [[unroll]] for (uint i = 0u; i < TOKENS * ROWS; i++) a[i] = b[i] = 0.0;
        ADDRESS first[ROWS], second[ROWS];
        [[unroll]] for (uint r = 0u; r < ROWS; r++) {
            uint b = at * p.expert_bytes + min(TILE_ROW(row, r, p.n), p.n - 1u) * p.row_bytes;
            first[r] = WEIGHT_FROM + b;
            second[r] = WEIGHT2_FROM + b;
        }
#ifdef PACKED
        // One loop for both: of two, Mesa 26.1 has the second compute its addresses in vectors, at a fifth of the speed.
        for (uint n = MODE == 0u ? 0u : 1u; n < 2u; n++) {
            [[unroll]] for (uint i = 0u; i < TOKENS; i++) {
                a[i] = b[i];
                b[i] = 0.0;
            }
            ADDRESS base[1] = ADDRESS[](n == 0u || MODE != 0u ? first[0] : second[0]);
            TILE_PRODUCT(base, xs, groups, b)
        }
        if (MODE != 0u) { [[unroll]] for (uint i = 0u; i < TOKENS; i++) a[i] = b[i]; }
#else
        TILE_PRODUCT(first, xs, groups, a)
        if (MODE == 0u) {
            READ_WEIGHT(1u)
            TILE_PRODUCT(second, xs, groups, b)
            READ_WEIGHT(0u)
        }
#endif
        [[unroll]] for (uint t = 0u; t < TOKENS; t++) {
            [[unroll]] for (uint r = 0u; r < ROWS; r++) {
                float g = TILE_SUM(a[t * ROWS + r]), u = b[t * ROWS + r];
                if (MODE == 0u) u = TILE_SUM(u);
                uint own = TILE_ROW(row, r, p.n);
                if (TILE_STORES && pairs[t] < n && own < p.n) store(hs[t] + own, scaled(g, at), scaled2(u, at));
            }
        }
    }
}
