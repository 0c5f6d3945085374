#version 450
// Y = W X for a block of tokens, or Y += W X, with an optional factor per token, by cooperative matrices: for steps of many rows.
// A workgroup is SPLIT x SPLIT subgroups, each with TILES x TILES matrices of M weight rows by N tokens. Whole tiles are computed: rows
// of weights past the end repeat the last one, tokens past the end are zeros, and neither is stored.
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
#extension GL_KHR_cooperative_matrix : require
#extension GL_KHR_memory_scope_semantics : require
#extension GL_KHR_shader_subgroup_basic : require
#extension GL_KHR_shader_subgroup_arithmetic : require
#extension GL_EXT_shader_explicit_arithmetic_types_float16 : require
#include "extra.glsl"

layout(push_constant) uniform Push {
    uint off0, off1, off2, off3, off4;
    EXTRA_OFFSETS
    uint count;     // which of the step's counts limits the tokens
    uint n;         // weight rows here
    uint k;         // weights a row, a multiple of 32
    uint row_bytes; // bytes a row
    uint x_stride, y_stride; // floats from token to token
    uint factor_stride;
    uint mode;      // bit 0 accumulate, bit 1 factor, bit 2 the factor is a gate's product
} p;

layout(local_size_x_id = 0, local_size_y = 1, local_size_z = 1) in; // SPLIT * SPLIT subgroups
layout(constant_id = 1) const uint M = 16u;
layout(constant_id = 2) const uint N = 16u;
layout(constant_id = 3) const uint K = 16u; // 8 or 16: a span has a whole number of them

#define TILES 2u // matrixTiles and matrixSplit in matmul_matrix.go
#define SPLIT 2u
#define TILE_ROWS (SPLIT * TILES * M)
#define TILE_TOKENS (SPLIT * TILES * N)
#define LANE gl_LocalInvocationID.x
#define LANES gl_WorkGroupSize.x

#include "step.glsl"
#define WEIGHT_BINDING 1
#include "weights.glsl"
FLOATS(2, x)
layout(set = 0, binding = 3) buffer YBuffer { float y[]; };
layout(set = 0, binding = 4) readonly buffer FactorBuffer { float factor[]; };
#include "slots.glsl"
#include "matrix.glsl"

shared float results[SPLIT * SPLIT * M * N]; // a matrix of each subgroup

#define MATRIX_A coopmat<float16_t, gl_ScopeSubgroup, M, K, gl_MatrixUseA>
#define MATRIX_B coopmat<float16_t, gl_ScopeSubgroup, K, N, gl_MatrixUseB>
#define MATRIX_C coopmat<float, gl_ScopeSubgroup, M, N, gl_MatrixUseAccumulator>

// Weights of a row and inputs of a token are neighbours in memory. With a stride of nothing a vector is
// a matrix whose columns, or rows, are all alike.
#define LOAD_A(to, from, row, at) coopMatLoad(to, from, (row) * PAIRS + (at) / 2u, PAIRS, gl_CooperativeMatrixLayoutRowMajor)
#define LOAD_B(to, from, token, at) coopMatLoad(to, from, (token) * PAIRS + (at) / 2u, PAIRS, gl_CooperativeMatrixLayoutColumnMajor)
#define LOAD_COLUMN(to, from, at) coopMatLoad(to, from, at, 0u, gl_CooperativeMatrixLayoutColumnMajor)

// Stores the product of a row, without the matrix's own factor.
void store(uint token, uint row, float v) {
    float f = 1.0, before = 0.0;
    if ((p.mode & 2u) != 0u) f = factor[p.off4 + token * p.factor_stride];
    if ((p.mode & 4u) != 0u) f = gate_factor(f);
    uint i = p.off3 + token * p.y_stride + row;
    if ((p.mode & 1u) != 0u) before = y[i];
    y[i] = add_slot(before, f, v);
}

// The exponents of the tile's inputs, a subgroup a token.
void find_exponents(uint first, uint tokens) {
    for (uint t = gl_SubgroupID; t < TILE_TOKENS; t += gl_NumSubgroups) {
        uint most = 0u, from = p.off2 + (first + t) * p.x_stride, k = first + t < tokens ? p.k : 0u;
        for (uint i = gl_SubgroupInvocationID; i < k; i += gl_SubgroupSize) most = max(most, magnitude(x[from + i]));
        most = subgroupMax(most);
        if (subgroupElect()) x_exponent[t] = exponent_of(most);
    }
}

// Inputs [at, at + 32) of the tile's tokens; neighbouring lanes take neighbouring pairs.
void stage_x(uint first, uint tokens, uint at) {
    for (uint i = LANE; i < TILE_TOKENS * 16u; i += LANES) {
        uint t = i / 16u, j = i % 16u;
        vec2 v = vec2(0.0);
        if (first + t < tokens) {
            uint from = p.off2 + (first + t) * p.x_stride + at + 2u * j;
            v = vec2(x[from], x[from + 1u]) * to_halves(x_exponent[t]);
        }
        vec2 hi = leading(v);
        x_hi[t * PAIRS + j] = f16vec2(hi);
        x_lo[t * PAIRS + j] = f16vec2(v - hi);
    }
}

void main() {
    uint tokens = step_count(p.count), first = gl_WorkGroupID.y * TILE_TOKENS, first_row = gl_WorkGroupID.x * TILE_ROWS;
    if (first >= tokens) return;
    find_exponents(first, tokens);
    barrier();

    MATRIX_C acc[TILES * TILES];
    [[unroll]] for (uint n = 0u; n < TILES * TILES; n++) acc[n] = MATRIX_C(0.0);
    // Where the subgroup's matrices are in the tile.
    uint own_row = (gl_SubgroupID % SPLIT) * TILES * M, own_token = (gl_SubgroupID / SPLIT) * TILES * N;
    ADDRESS row = p.off1 * 4u + min(first_row + LANE, p.n - 1u) * p.row_bytes;

#ifdef CODE_GROUPS
    for (uint block = 0u; block < p.k / (32u * BLOCK_GROUPS); block++) {
    for (uint c = 0u; c < CODE_CHUNKS; c++) {
    uint words[CODE_WORDS];
    float scales[CODE_SCALES];
    if (LANE < TILE_ROWS) {
        uint head[CODE_HEAD];
        load_head(row, block, head);
        load_codes(row, block, head, c, words);
        chunk_scales(head, c, scales);
    }
    [[unroll]] for (uint i = 0u; i < CODE_GROUPS; i++) {
        uint g = block * BLOCK_GROUPS + chunk_group(c, i);
        if (LANE < TILE_ROWS) stage_codes(LANE, i, words, scales);
#else
    for (uint g = 0u; g < p.k / 32u; g++) {
        if (LANE < TILE_ROWS) stage_weights(LANE, row, g);
#endif
        stage_x(first, tokens, g * 32u);
        barrier();
#ifdef CODE_MIN
        // Sums of inputs are products with ones.
        MATRIX_C x_sum[TILES];
        MATRIX_A ones = MATRIX_A(1.0);
        [[unroll]] for (uint t = 0u; t < TILES; t++) x_sum[t] = MATRIX_C(0.0);
#endif
        [[unroll]] for (uint span = 0u; span < SPANS; span++) {
            MATRIX_C sum[TILES * TILES];
            [[unroll]] for (uint n = 0u; n < TILES * TILES; n++) sum[n] = MATRIX_C(0.0);
            for (uint at = span * SPAN; at < (span + 1u) * SPAN; at += K) {
                MATRIX_A a[TILES];
                [[unroll]] for (uint r = 0u; r < TILES; r++) LOAD_A(a[r], weight_hi, own_row + r * M, at);
#ifdef WEIGHTS_LO
                MATRIX_A a_lo[TILES];
                [[unroll]] for (uint r = 0u; r < TILES; r++) LOAD_A(a_lo[r], weight_lo, own_row + r * M, at);
#endif
                [[unroll]] for (uint t = 0u; t < TILES; t++) {
                    MATRIX_B b, b_lo;
                    LOAD_B(b, x_hi, own_token + t * N, at);
                    LOAD_B(b_lo, x_lo, own_token + t * N, at);
                    [[unroll]] for (uint r = 0u; r < TILES; r++) {
                        sum[t * TILES + r] = coopMatMulAdd(a[r], b_lo, sum[t * TILES + r]);
#ifdef WEIGHTS_LO
                        sum[t * TILES + r] = coopMatMulAdd(a_lo[r], b, sum[t * TILES + r]);
#endif
                        sum[t * TILES + r] = coopMatMulAdd(a[r], b, sum[t * TILES + r]);
                    }
#ifdef CODE_MIN
                    x_sum[t] = coopMatMulAdd(ones, b_lo, x_sum[t]);
                    x_sum[t] = coopMatMulAdd(ones, b, x_sum[t]);
#endif
                }
            }
            [[unroll]] for (uint r = 0u; r < TILES; r++) {
                MATRIX_C scale;
                LOAD_COLUMN(scale, weight_scale, span * TILE_ROWS + own_row + r * M);
                [[unroll]] for (uint t = 0u; t < TILES; t++) acc[t * TILES + r] += scale * sum[t * TILES + r];
            }
        }
#ifdef CODE_MIN
        [[unroll]] for (uint r = 0u; r < TILES; r++) {
            MATRIX_C least;
            LOAD_COLUMN(least, weight_min, own_row + r * M);
            [[unroll]] for (uint t = 0u; t < TILES; t++) acc[t * TILES + r] -= least * x_sum[t];
        }
#endif
        barrier();
    }
#ifdef CODE_GROUPS
    }
    }
#endif

    uint own = gl_SubgroupID * M * N;
    [[unroll]] for (uint t = 0u; t < TILES; t++) {
        [[unroll]] for (uint r = 0u; r < TILES; r++) {
            coopMatStore(acc[t * TILES + r], results, own, M, gl_CooperativeMatrixLayoutColumnMajor);
            barrier();
            for (uint i = gl_SubgroupInvocationID; i < M * N; i += gl_SubgroupSize) {
                uint token = own_token + t * N + i / M, of = first_row + own_row + r * M + i % M;
                if (first + token < tokens && of < p.n)
                    store(first + token, of, scaled(results[own + i] * from_halves(x_exponent[token]), 0u));
            }
            barrier();
        }
    }
}
