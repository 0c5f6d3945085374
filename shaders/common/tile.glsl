// A tile of a matrix product: ROWS weight rows by TOKENS tokens, with what is loaded used for the whole tile.
// On software devices a load costs more than the arithmetic, so an invocation takes four rows; where lanes
// share a row it takes one, lane l the groups of 32 weights l, l + LANES, ...
//
// Before including, the kernel includes weights.glsl and defines TOKENS and X(i), element i of the input.
// Loops are unrolled by force: an array that is indexed by a variable lives in memory on every device.
#ifndef TILE_GLSL
#define TILE_GLSL

#ifdef LANES_PER_ROW
#define ROWS 1u
#define TILE_FROM gl_WorkGroupID.x
#define TILE_HOP gl_NumWorkGroups.x
#define GROUP_FROM LANE
#define GROUP_HOP LANES
#else
#define ROWS 4u // tileRows in matmul.go
#define TILE_FROM (gl_GlobalInvocationID.x * ROWS)
#define TILE_HOP (gl_NumWorkGroups.x * gl_WorkGroupSize.x * ROWS)
#define GROUP_FROM 0u
#define GROUP_HOP 1u
#endif

// Adds to acc[t * ROWS + r] the product of the row at byte base[r] and the token at element xs[t], both of
// 32 * groups elements. A sum per group keeps the rounding of long rows small. It is a macro because an array
// whose size is a specialization constant does not survive being a function's argument.
#define TILE_PRODUCT(base, xs, groups, acc) \
    for (uint g = GROUP_FROM; g < groups; g += GROUP_HOP) { \
        float w[ROWS][32]; \
        [[unroll]] for (uint r = 0u; r < ROWS; r++) load32(base[r], g, w[r]); \
        [[unroll]] for (uint t = 0u; t < TOKENS; t++) { \
            float s[ROWS]; \
            [[unroll]] for (uint r = 0u; r < ROWS; r++) s[r] = 0.0; \
            [[unroll]] for (uint j = 0u; j < 32u; j++) { \
                float v = X(xs[t] + g * 32u + j); \
                [[unroll]] for (uint r = 0u; r < ROWS; r++) s[r] += w[r][j] * v; \
            } \
            [[unroll]] for (uint r = 0u; r < ROWS; r++) acc[t * ROWS + r] += s[r]; \
        } \
    }

#endif
