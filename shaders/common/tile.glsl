// A tile of a matrix product: ROWS weight rows by TOKENS tokens, with what is loaded used for the whole tile.
// On software devices a load costs more than the arithmetic, so an invocation takes four rows; where lanes
// share a row it takes one, lane l the groups of 32 weights l, l + LANES, ...
//
// Before including, the kernel includes weights.glsl and defines TOKENS and X(i), element i of the input, X_TEXELS, its texel buffer,
// where it was compiled with TEXELS, and X_LANES where with SHARE_X. Where it takes the RMSNorm of its input, it defines NORMED(i), weight i of the
// norm, and has inv_rms[t], what norm.glsl gives for token t. A tile's loop over rows is
//
//     for (uint first = TILE_FROM; first < TILE_END(rows); first = TILE_NEXT(first)) { uint row = first + TILE_LANE; ... }
//
// with all lanes in it as long as one has a row, and the tile's rows are TILE_ROW(row, r, rows). Loops are unrolled by force: an array that is indexed by a variable
// lives in memory on every device.
#ifndef TILE_GLSL
#define TILE_GLSL

// A lane's results are then added up: of v over the lanes that share a row it is TILE_SUM(v), which all of them call and
// one, where TILE_STORES, stores.
#if defined(LANES_PER_ROW)
#define TILE_SUM(v) wg_sum(v)
#define TILE_STORES (LANE == 0u)
#elif defined(SPREAD)
#define TILE_SUM(v) subgroupAdd(v)
#define TILE_STORES (gl_SubgroupInvocationID == 0u)
#else
#define TILE_SUM(v) (v)
#define TILE_STORES true
#endif

#if defined(LANES_PER_ROW)
#define ROWS 1u
#define TILE_FROM gl_WorkGroupID.x
#define TILE_NEXT(row) ((row) + gl_NumWorkGroups.x)
#define TILE_LANE 0u
#define GROUP_FROM LANE
#define GROUP_HOP LANES
#elif defined(PACKED) || defined(SPREAD) && defined(ONE_GROUP)
// One after the other, and spreadRows (matmul.go) in a workgroup.
// Blocks of a turn of the loop, which divide those of a row: turns cost llvmpipe some 30 instructions each.
layout(constant_id = 3) const uint AT_ONCE = 1u;
#define ROWS 1u
#define TILE_FROM (gl_WorkGroupID.x * 8u)
#define TILE_NEXT(row) ((row) + 1u + (((row) & 7u) == 7u ? (gl_NumWorkGroups.x - 1u) * 8u : 0u))
#define TILE_LANE 0u
#elif defined(SPREAD)
// A tile's rows are far apart and the next tile has the next of each: eight runs of memory, which processors fetch ahead.
#define ROWS 8u // spreadRows in matmul.go
#define TILE_FROM gl_WorkGroupID.x
#define TILE_NEXT(row) ((row) + gl_NumWorkGroups.x)
#define TILE_LANE 0u
#define TILE_END(rows) (((rows) + ROWS - 1u) / ROWS)
#define TILE_ROW(row, r, rows) ((row) + (r) * TILE_END(rows))
#else
#define ROWS 4u // tileRows in matmul.go
#define TILE_FROM (gl_WorkGroupID.x * gl_WorkGroupSize.x * ROWS)
#define TILE_NEXT(row) ((row) + gl_NumWorkGroups.x * gl_WorkGroupSize.x * ROWS)
#define TILE_LANE (gl_LocalInvocationID.x * ROWS)
#define GROUP_FROM 0u
#define GROUP_HOP 1u
#endif
#ifndef TILE_END
#define TILE_END(rows) (rows)
#define TILE_ROW(row, r, rows) ((row) + (r))
#endif

// The 32 inputs of a group are the same for all lanes of the row scheme. llvmpipe takes a dozen instructions and two
// branches for a load of one value by all, or a loop over the lanes (Mesa 22). With SHARE_X a workgroup is one subgroup
// of X_LANES lanes, each loads its share of the inputs and gives it to the others, which is one instruction.
#ifdef SHARE_X
#define X_EACH (32u / X_LANES)
#define TILE_LOAD_X(xs, at) \
    float own_x[TOKENS * X_EACH]; \
    [[unroll]] for (uint t = 0u; t < TOKENS; t++) { \
        [[unroll]] for (uint n = 0u; n < X_EACH; n++) own_x[t * X_EACH + n] = X(xs[t] + at + n * X_LANES + gl_SubgroupInvocationID); \
    }
#define TILE_X(xs, at, t, j) subgroupBroadcast(own_x[(t) * X_EACH + (j) / X_LANES], (j) % X_LANES)
#elif defined(TEXELS)
// A texel is the same for all lanes and has four of them.
#define TILE_LOAD_X(xs, at)
#define TILE_X4(xs, at, t, j) uintBitsToFloat(FOUR(X_TEXELS, (xs[t] + at + 4u * (j)) >> 2u))
#else
#define TILE_LOAD_X(xs, at)
#ifdef NORMED
#define TILE_X(xs, at, t, j) (X(xs[t] + at + (j)) * inv_rms[t] * NORMED(at + (j)))
#else
#define TILE_X(xs, at, t, j) X(xs[t] + at + (j))
#endif
#endif

#if defined(PACKED)
#include "packed.glsl"
#elif defined(SPREAD)
#include "spread.glsl"
#elif defined(TEXELS) && defined(CODE_GROUPS)
#include "codes.glsl"
#else

#ifdef TEXELS
#define TILE_START_X vec4 x4;
#define TILE_TAKE_X(xs, at, t, j) \
    if ((j & 3u) == 0u) x4 = TILE_X4(xs, at, t, j >> 2u); \
    float v = x4[j & 3u];
#else
#define TILE_START_X
#define TILE_TAKE_X(xs, at, t, j) float v = TILE_X(xs, at, t, j);
#endif

// Adds to acc[t * ROWS + r] the product of the row at byte base[r] and the token at element xs[t], both of
// 32 * groups elements. A sum per group keeps the rounding of long rows small. It is a macro because an array
// whose size is a specialization constant does not survive being a function's argument.
#define TILE_PRODUCT(base, xs, groups, acc) TILE_PRODUCT_OF(TOKENS, base, xs, groups, acc)
#define TILE_PRODUCT_OF(tokens, base, xs, groups, acc) \
    for (uint g = GROUP_FROM; g < groups; g += GROUP_HOP) { \
        float w[ROWS][32]; \
        [[unroll]] for (uint r = 0u; r < ROWS; r++) load32(base[r], g, w[r]); \
        TILE_LOAD_X(xs, g * 32u) \
        [[unroll]] for (uint t = 0u; t < tokens; t++) { \
            float s[ROWS]; \
            [[unroll]] for (uint r = 0u; r < ROWS; r++) s[r] = 0.0; \
            TILE_START_X \
            [[unroll]] for (uint j = 0u; j < 32u; j++) { \
                TILE_TAKE_X(xs, g * 32u, t, j) \
                [[unroll]] for (uint r = 0u; r < ROWS; r++) s[r] += w[r][j] * v; \
            } \
            [[unroll]] for (uint r = 0u; r < ROWS; r++) acc[t * ROWS + r] += s[r]; \
        } \
    }
#endif

#endif
