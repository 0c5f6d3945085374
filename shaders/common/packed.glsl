// TILE_PRODUCT of the packed scheme: the spread scheme with inputs in whole numbers (pack.comp), of which one multiplication
// takes two, for block types whose blocks are 256 codes of six bits at most.
//
// A lane of the eight has a word of four neighbouring codes of each group of 32, as memory has them. Its second and fourth
// byte shifted away, the first and third are w0 + w2 * 2^16. The inputs are packed the other way around, x2 + x0 * 2^16, so that
// the product has w0*x0 + w2*x2 in its upper half, and in its lower w0*x2, which stays: it is below 2^-16 of the sum's range.
// Upper halves do not overflow: 4 * 15 * 511 < 2^15 for codes of four bits, 4 * 16 * 511 for those of five that are centred, and
// 2 * 32 * 511 for those of six, which are not added before the conversion.
//
// Rows are taken one after the other, so that memory is read in the order it lies in and processors fetch ahead.
//
// The block type's file defines
//     PACKED_BYTES                     of a block
//     PACKED_CENTRE                    what to subtract of codes of five and six bits
//     PACKED_WIDE                      for codes of six bits
//     packed_scales(b, out s)          what the next two need of the block at address b, divided among the lanes
//     packed_codes(b, c, out q)        the lane's words of the groups chunk_group(c, 0) and chunk_group(c, 1)
//     PACKED_SCALE(s, g)               what the lane's words of group g are multiplied by
//     PACKED_LESS(s, first, second)    what is subtracted for a group of which lane g has the sums of both halves of its inputs
#ifndef PACKED_GLSL
#define PACKED_GLSL

// Of pack.go: the words of 256 inputs, and where the sums of their groups' halves and the unit lie, in bytes.
#define PACKED_WORDS 152u
#define PACKED_FIRST 512u
#define PACKED_SECOND 544u
#define PACKED_UNIT 576u

#ifdef PACKED_CENTRE
#define PACKED_CODES(words) (((words) & 0x00ff00ffu) - PACKED_CENTRE * 0x00010001u)
#else
#define PACKED_CODES(words) ((words) & 0x00ff00ffu)
#endif
#ifdef PACKED_WIDE
#define PACKED_DOT(even, odd, x) (float(int((even) * lane_word(x))) + float(int((odd) * lane_word((x) + 32u))))
#else
#define PACKED_DOT(even, odd, x) float(int((even) * lane_word(x) + (odd) * lane_word((x) + 32u)))
#endif

#define TILE_PRODUCT(base, xs, groups, acc) if (groups > 0u) { \
        ADDRESS x_from[TOKENS]; \
        [[unroll]] for (uint t = 0u; t < TOKENS; t++) x_from[t] = X_ADDRESS + 4u * ADDRESS(xs[t]); \
        uint block = 0u; \
        do { \
            [[unroll]] for (uint n = 0u; n < AT_ONCE; n++) { \
                ADDRESS block_at = base[0] + ADDRESS(block + n) * PACKED_BYTES, x[TOKENS]; \
                float scales[2], v[TOKENS]; \
                [[unroll]] for (uint t = 0u; t < TOKENS; t++) { \
                    x[t] = x_from[t] + ADDRESS(block + n) * (4u * PACKED_WORDS); \
                    v[t] = 0.0; \
                } \
                packed_scales(block_at, scales); \
                [[unroll]] for (uint c = 0u; c < 4u; c++) { \
                    uint q[2]; \
                    packed_codes(block_at, c, q); \
                    [[unroll]] for (uint i = 0u; i < 2u; i++) { \
                        uint even = PACKED_CODES(q[i]), odd = PACKED_CODES(q[i] >> 8u), g = chunk_group(c, i); \
                        float scale = PACKED_SCALE(scales, g); \
                        [[unroll]] for (uint t = 0u; t < TOKENS; t++) v[t] += scale * PACKED_DOT(even, odd, x[t] + 64u * g); \
                    } \
                } \
                [[unroll]] for (uint t = 0u; t < TOKENS; t++) { \
                    float less = PACKED_LESS(scales, lane_float(x[t] + PACKED_FIRST), lane_float(x[t] + PACKED_SECOND)); \
                    acc[t] += Floats(x[t] + PACKED_UNIT).v[0] * v[t] - less; \
                } \
            } \
            block += AT_ONCE; \
        } while (block < groups / 8u); \
    }

#endif
