#version 450
// Y = W X for a block of tokens, or Y += W X, with an optional factor per token.
// A few weight rows per invocation, or a workgroup shares one (LANES_PER_ROW), TOKENS tokens at a time.
// FUSED: the rows of a second matrix may follow those of the first, and X is the RMSNorm of what is bound.
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
    uint off0, off1, off2, off3, off4;
#ifdef FUSED
    uint off5, off6;
#endif
    EXTRA_OFFSETS
    uint count;     // which of the step's counts limits the tokens
    uint n;         // weight rows here
    uint k;         // weights a row, a multiple of 32
    uint row_bytes; // bytes a row
    uint x_stride, y_stride; // floats from token to token
    uint factor_stride;
    uint mode;      // bit 0 accumulate, bit 1 factor, bit 2 the factor is a gate's product
#ifdef FUSED
    uint split;     // rows of the first matrix
    float eps;      // of the norm
#endif
#ifdef SPREAD
    uint weight_at[2], x_at[2]; // addresses in the place of off1 and off2, the low words first
#endif
} p;

#ifdef LANES_PER_ROW
#include "reduce.glsl"
layout(constant_id = 2) const uint TOKENS = 1u;
#else
layout(local_size_x_id = 0, local_size_y = 1, local_size_z = 1) in;
#define X_LANES gl_WorkGroupSize.x // with SHARE_X
layout(constant_id = 1) const uint TOKENS = 1u;
#endif
#include "step.glsl"
#define WEIGHT_BINDING 1
#ifdef FUSED
#define WEIGHT2_BINDING 6
#define WEIGHT2_FROM (p.off6 * 4u)
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
FLOATS(2, x)
layout(set = 0, binding = 3) buffer YBuffer { float y[]; };
layout(set = 0, binding = 4) readonly buffer FactorBuffer { float factor[]; };
#ifdef FUSED
layout(set = 0, binding = 5) readonly buffer NormBuffer { float norm[]; };
#define NORMED(i) norm[p.off5 + (i)]
#include "norm.glsl"
#endif
#include "slots.glsl"

// Stores the product of a row, without the matrix's own factor.
void store(uint token, uint row, float v) {
    float f = 1.0, before = 0.0;
    if ((p.mode & 2u) != 0u) f = factor[p.off4 + token * p.factor_stride];
    if ((p.mode & 4u) != 0u) f = gate_factor(f);
    uint i = p.off3 + token * p.y_stride + row;
    if ((p.mode & 1u) != 0u) before = y[i];
    y[i] = add_slot(before, f, v);
}

#define X(i) x[i]
#define X_TEXELS x // with TEXELS, X(i) is element i % 4 of texel i / 4
#include "tile.glsl"

void main() {
    uint tokens = step_count(p.count), t0 = gl_WorkGroupID.y * TOKENS;
    if (t0 >= tokens) return;
    // Tokens and rows past the end repeat the last one and are not stored.
    uint xs[TOKENS];
    [[unroll]] for (uint t = 0u; t < TOKENS; t++) xs[t] = X_FROM + min(t0 + t, max(tokens, 1u) - 1u) * p.x_stride;
#ifdef FUSED
    float inv_rms[TOKENS];
    [[unroll]] for (uint t = 0u; t < TOKENS; t++) inv_rms[t] = inverse_rms(xs[t], p.k, p.eps);
#endif
    for (uint tile_row = TILE_FROM; tile_row < TILE_END(p.n); tile_row = TILE_NEXT(tile_row)) {
        uint row = tile_row + TILE_LANE;
        float acc[TOKENS * ROWS];
        [[unroll]] for (uint i = 0u; i < TOKENS * ROWS; i++) acc[i] = 0.0;
        ADDRESS base[ROWS];
        [[unroll]] for (uint r = 0u; r < ROWS; r++) base[r] = WEIGHT_FROM + min(TILE_ROW(row, r, p.n), p.n - 1u) * p.row_bytes;
#ifdef FUSED
        // The same for all: a workgroup has one row.
        bool second = row >= p.split;
        if (second) {
            base[0] = WEIGHT2_FROM + (row - p.split) * p.row_bytes;
            weight_which = 1u;
            TILE_PRODUCT(base, xs, p.k / 32u, acc)
            weight_which = 0u;
        } else
#endif
        {
            TILE_PRODUCT(base, xs, p.k / 32u, acc)
        }
        [[unroll]] for (uint t = 0u; t < TOKENS; t++) {
            [[unroll]] for (uint r = 0u; r < ROWS; r++) {
                float v = TILE_SUM(acc[t * ROWS + r]);
#ifdef FUSED
                v = second ? scaled2(v, 0u) : scaled(v, 0u);
#else
                v = scaled(v, 0u);
#endif
                uint own = TILE_ROW(row, r, p.n);
                if (TILE_STORES && t0 + t < tokens && own < p.n) store(t0 + t, own, v);
            }
        }
    }
}
