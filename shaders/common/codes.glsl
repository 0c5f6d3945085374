// TILE_PRODUCT over codes: for block types whose weights are scale * code, or scale * code - minimum, with codes of a
// byte at most. The products of codes and inputs are summed first and scaled after, and a code becomes a float where
// it lies in its word: a mask and a conversion, and for signed ones a shift. The inputs carry what it is too large by, a power of two,
// which changes no rounding.
//
// Nothing here is chosen by a condition: a branch inside keeps Mesa from unrolling the loops around it.
//
// The block type's file defines
//     CODE_CHUNKS, CODE_GROUPS  chunks of a block, and groups of 32 weights of a chunk: what is loaded at once
//     CODE_TOUCH                bytes of a block, for types with large blocks that gain by fetching them early (spread.glsl)
//     CODE_WORDS, CODE_SCALES   words that hold a chunk's codes, floats that hold its scales and minima
//     CODE_BITS                 of signed codes; without it they are unsigned and of 7 bits at most
//     CODE_FLIPS                if signed codes are stored with their highest bit flipped: too large by half their range
//     CODE_SPAN                 words of codes that have one scale: 8, or 4 where a group has two
//     CODE_MIN                  if there are minima, of codes that are unsigned: that of group i is element CODE_GROUPS + i of the floats
//     CODE_HEAD                 words that all chunks of a block need
//     void load_head(row, block, out uint head[CODE_HEAD])
//     void load_codes(row, block, head, c, out uint q[CODE_WORDS])
//     void chunk_scales(head, c, out float s[CODE_SCALES])
//     uint chunk_group(c, i)        which group of the block group i of chunk c is
//     CODES(q, i, j)                the word of the codes 4j..4j+3 of group i; with CODE_BITS each in its byte's low bits
//     CODE_SCALE(i, h)              which float is the scale of span h (0, 1) of group i
#ifndef CODES_GLSL
#define CODES_GLSL

#ifdef CODE_BITS
// Signed codes go to the top of the word, and are too large by the same power of two everywhere.
#define CODE_TOP (32u - CODE_BITS)
#define CODE_UNIT (1.0 / float(1u << CODE_TOP))
#define CODE_VALUE(q, b) float(int(((q) << (CODE_TOP - 8u * (b))) & (0xffffffffu << CODE_TOP)))
#ifdef CODE_FLIPS
#define CODE_FLIP(q) ((q) ^ (0x01010101u << (CODE_BITS - 1u)))
#else
#define CODE_FLIP(q) (q)
#endif
#define CODE_SCALE_X
#else
#define CODE_UNIT 1.0
#define CODE_FLIP(q) (q)
#define CODE_VALUE(q, b) float(int((q) & (0xffu << (8u * (b)))))
#define CODE_SCALE_X x4[t] *= vec4(1.0, 1.0 / 256.0, 1.0 / 65536.0, 1.0 / 16777216.0);
#endif

// A minimum is subtracted once for a group's sum of inputs.
#ifdef CODE_MIN
#define CODE_START_SUM \
    float x_sum[TOKENS]; \
    [[unroll]] for (uint t = 0u; t < TOKENS; t++) x_sum[t] = 0.0;
#define CODE_ADD_X x_sum[t] += (x4[t].x + x4[t].y) + (x4[t].z + x4[t].w);
#define CODE_TAKE_MIN(i, acc) \
    [[unroll]] for (uint t = 0u; t < TOKENS; t++) { \
        [[unroll]] for (uint r = 0u; r < ROWS; r++) acc[t * ROWS + r] -= scales[r][CODE_GROUPS + i] * x_sum[t]; \
    }
#else
#define CODE_START_SUM
#define CODE_ADD_X
#define CODE_TAKE_MIN(i, acc)
#endif

// See tile.glsl.
#define TILE_PRODUCT(base, xs, groups, acc) \
    for (uint block = 0u; block < groups / (CODE_CHUNKS * CODE_GROUPS); block++) { \
        uint head[ROWS][CODE_HEAD]; \
        [[unroll]] for (uint r = 0u; r < ROWS; r++) load_head(base[r], block, head[r]); \
        for (uint c = 0u; c < CODE_CHUNKS; c++) { \
            uint words[ROWS][CODE_WORDS]; \
            float scales[ROWS][CODE_SCALES]; \
            [[unroll]] for (uint r = 0u; r < ROWS; r++) { \
                load_codes(base[r], block, head[r], c, words[r]); \
                chunk_scales(head[r], c, scales[r]); \
            } \
            [[unroll]] for (uint i = 0u; i < CODE_GROUPS; i++) { \
                uint at = (block * (CODE_CHUNKS * CODE_GROUPS) + chunk_group(c, i)) * 32u; \
                CODE_START_SUM \
                [[unroll]] for (uint span = 0u; span < 8u / CODE_SPAN; span++) { \
                    float s[TOKENS * ROWS]; \
                    [[unroll]] for (uint n = 0u; n < TOKENS * ROWS; n++) s[n] = 0.0; \
                    [[unroll]] for (uint n = 0u; n < CODE_SPAN; n++) { \
                        uint j = span * CODE_SPAN + n; \
                        vec4 x4[TOKENS]; \
                        [[unroll]] for (uint t = 0u; t < TOKENS; t++) { \
                            x4[t] = TILE_X4(xs, at, t, j); \
                            CODE_ADD_X \
                            CODE_SCALE_X \
                        } \
                        uint q[ROWS]; \
                        [[unroll]] for (uint r = 0u; r < ROWS; r++) q[r] = CODE_FLIP(CODES(words[r], i, j)); \
                        [[unroll]] for (uint b = 0u; b < 4u; b++) { \
                            float w[ROWS]; \
                            [[unroll]] for (uint r = 0u; r < ROWS; r++) w[r] = CODE_VALUE(q[r], b); \
                            [[unroll]] for (uint t = 0u; t < TOKENS; t++) { \
                                float v = x4[t][b]; \
                                [[unroll]] for (uint r = 0u; r < ROWS; r++) s[t * ROWS + r] += w[r] * v; \
                            } \
                        } \
                    } \
                    [[unroll]] for (uint t = 0u; t < TOKENS; t++) { \
                        [[unroll]] for (uint r = 0u; r < ROWS; r++) \
                            acc[t * ROWS + r] += (scales[r][CODE_SCALE(i, span)] * CODE_UNIT) * s[t * ROWS + r]; \
                    } \
                } \
                CODE_TAKE_MIN(i, acc) \
            } \
        } \
    }

#endif
