// TILE_PRODUCT where the lanes of a subgroup of eight hold a byte each of eight neighbouring codes, of ROWS weight rows
// (codes.glsl says what a block type gives). All lanes read the same words through an address, which Mesa's llvmpipe
// makes scalar loads and scalar arithmetic of: a tenth of what loads by lanes of words of their own take there. A lane's
// sums are of its columns alone; TILE_SUM adds them up.
#ifndef SPREAD_GLSL
#define SPREAD_GLSL

#ifndef CODE_GROUPS
// Weights that are floats: a lane has one of each eight.
#define TILE_PRODUCT(base, xs, groups, acc) if (groups > 0u) { \
        uint g = 0u; \
        do { \
            float sums[TOKENS * ROWS]; \
            [[unroll]] for (uint n = 0u; n < TOKENS * ROWS; n++) sums[n] = 0.0; \
            [[unroll]] for (uint j = 0u; j < 4u; j++) { \
                ADDRESS to = ADDRESS(g) * 128u + 32u * j; \
                float w[ROWS]; \
                [[unroll]] for (uint r = 0u; r < ROWS; r++) w[r] = lane_float(base[r] + to); \
                [[unroll]] for (uint t = 0u; t < TOKENS; t++) { \
                    float v = lane_float(X_ADDRESS + 4u * ADDRESS(xs[t]) + to); \
                    [[unroll]] for (uint r = 0u; r < ROWS; r++) sums[t * ROWS + r] += w[r] * v; \
                } \
            } \
            [[unroll]] for (uint n = 0u; n < TOKENS * ROWS; n++) acc[n] += sums[n]; \
            g++; \
        } while (g < groups); \
    }
#elif defined(ONE_GROUP)
// Blocks of one scale: their codes are in the order of memory, and a row is read on from its beginning.
#ifdef CODE_FLIPS
#define LANE_CODE(q) float(int((q) & 0xffu) - (1 << (CODE_BITS - 1u)))
#else
#define LANE_CODE(q) float(int((q) << (32u - CODE_BITS)) >> (32u - CODE_BITS))
#endif
#define TILE_PRODUCT(base, xs, groups, acc) if (groups > 0u) { \
        uint block = 0u; \
        do { \
            [[unroll]] for (uint n = 0u; n < AT_ONCE; n++) { \
                uint words[CODE_WORDS], head[CODE_HEAD]; \
                load_head(base[0], block + n, head); \
                load_codes(base[0], block + n, head, 0u, words); \
                float scale[1]; \
                chunk_scales(head, 0u, scale); \
                float w[CODE_WORDS]; \
                [[unroll]] for (uint j = 0u; j < CODE_WORDS; j++) w[j] = LANE_CODE(CODES(words, 0u, j)); \
                [[unroll]] for (uint t = 0u; t < TOKENS; t++) { \
                    ADDRESS x = X_ADDRESS + 4u * ADDRESS(xs[t] + (block + n) * 32u); \
                    float s = 0.0; \
                    [[unroll]] for (uint j = 0u; j < CODE_WORDS; j++) s += w[j] * lane_float(x + 32u * j); \
                    acc[t] += scale[0] * s; \
                } \
            } \
            block += AT_ONCE; \
        } while (block < groups); \
    }
#else
// The lane's code is the lowest byte of its word. Signed ones go to the top of the word, too large by a power of two, which
// changes no rounding; those stored as too large by half their range are taken so, and their inputs' sum is.
#if defined(CODE_BITS) && !defined(CODE_FLIPS)
#define LANE_UNIT (1.0 / float(1u << (32u - CODE_BITS)))
#define LANE_CODE(q) float(int((q) << (32u - CODE_BITS)))
#else
#define LANE_UNIT 1.0
#define LANE_CODE(q) float(int((q) & 0xffu))
#endif
#ifdef CODE_FLIPS
#define LANE_START(sum) (-float(1u << (CODE_BITS - 1u)) * (sum))
#else
#define LANE_START(sum) 0.0
#endif

// The loops end at their bottom, so that no lane reads beyond the last block. What blocks' scales are computed from is
// uniform too, and computing it once for each row would take longer than what they scale: lane r does it for row r.
#define TILE_PRODUCT(base, xs, groups, acc) if (groups > 0u) { \
        uint block = 0u, touched = 0u; \
        do { \
            SPREAD_TOUCH(base, block) \
            uint head[CODE_HEAD]; \
            [[unroll]] for (uint r = 0u; r < ROWS; r++) { \
                uint row_head[CODE_HEAD]; \
                load_head(base[r], block, row_head); \
                [[unroll]] for (uint n = 0u; n < CODE_HEAD; n++) head[n] = gl_SubgroupInvocationID == r ? row_head[n] : head[n]; \
            } \
            uint c = 0u; \
            do { \
                float scales[CODE_SCALES]; \
                chunk_scales(head, c, scales); \
                [[unroll]] for (uint n = 0u; n < CODE_GROUPS * (8u / CODE_SPAN); n++) scales[n] *= LANE_UNIT; \
                float lane_x[TOKENS * CODE_GROUPS * 4u], x_sum[TOKENS * CODE_GROUPS * (8u / CODE_SPAN)]; \
                [[unroll]] for (uint n = 0u; n < TOKENS * CODE_GROUPS * (8u / CODE_SPAN); n++) x_sum[n] = 0.0; \
                [[unroll]] for (uint t = 0u; t < TOKENS; t++) { \
                    [[unroll]] for (uint i = 0u; i < CODE_GROUPS; i++) { \
                        uint at = (block * (CODE_CHUNKS * CODE_GROUPS) + chunk_group(c, i)) * 32u; \
                        [[unroll]] for (uint j = 0u; j < 4u; j++) { \
                            float v = lane_float(X_ADDRESS + 4u * (xs[t] + at + 8u * j)); \
                            lane_x[(t * CODE_GROUPS + i) * 4u + j] = v; \
                            x_sum[SPAN_OF(t, i, 2u * j / CODE_SPAN)] += v; \
                        } \
                    } \
                } \
                [[unroll]] for (uint r = 0u; r < ROWS; r++) { \
                    uint words[CODE_WORDS], row_head[CODE_HEAD]; \
                    [[unroll]] for (uint n = 0u; n < CODE_HEAD; n++) row_head[n] = 0u; \
                    load_codes(base[r], block, row_head, c, words); \
                    float v[TOKENS]; \
                    [[unroll]] for (uint t = 0u; t < TOKENS; t++) v[t] = 0.0; \
                    [[unroll]] for (uint i = 0u; i < CODE_GROUPS; i++) { \
                        [[unroll]] for (uint span = 0u; span < 8u / CODE_SPAN; span++) { \
                            float s[TOKENS]; \
                            [[unroll]] for (uint t = 0u; t < TOKENS; t++) s[t] = LANE_START(x_sum[SPAN_OF(t, i, span)]); \
                            [[unroll]] for (uint n = 0u; n < PER_LANE(CODE_SPAN); n++) { \
                                uint j = span * PER_LANE(CODE_SPAN) + n; \
                                float w = LANE_CODE(CODES(words, i, j)); \
                                [[unroll]] for (uint t = 0u; t < TOKENS; t++) s[t] += w * lane_x[(t * CODE_GROUPS + i) * 4u + j]; \
                            } \
                            float scale = subgroupBroadcast(scales[CODE_SCALE(i, span)], r); \
                            [[unroll]] for (uint t = 0u; t < TOKENS; t++) v[t] += scale * s[t]; \
                        } \
                        LANE_MIN(i, r) \
                    } \
                    [[unroll]] for (uint t = 0u; t < TOKENS; t++) acc[t * ROWS + r] += v[t]; \
                } \
                c++; \
            } while (c < CODE_CHUNKS); \
            block++; \
        } while (block < groups / (CODE_CHUNKS * CODE_GROUPS)); \
        acc[0] = p.k == 0u ? float(touched) : acc[0]; \
    }
// Rows are read side by side, which processors do not always see coming. Touching all of a block's cache lines at once lets
// them be fetched together instead of one after the other, with hundreds of instructions in between. What was read must
// seem to matter.
#ifdef CODE_TOUCH
#define SPREAD_TOUCH(base, block) \
            [[unroll]] for (uint r = 0u; r < ROWS; r++) { \
                [[unroll]] for (uint line = 0u; line < CODE_TOUCH; line += 64u) \
                    touched |= Words((base[r] + block * CODE_TOUCH + line) & ~ADDRESS(3)).v[0]; \
            }
#else
#define SPREAD_TOUCH(base, block)
#endif
#define SPAN_OF(t, i, span) (((t) * CODE_GROUPS + (i)) * (8u / CODE_SPAN) + (span))

#ifdef CODE_MIN
#define LANE_MIN(i, r) { \
        float minimum = subgroupBroadcast(scales[CODE_GROUPS + i], r); \
        [[unroll]] for (uint t = 0u; t < TOKENS; t++) v[t] -= minimum * x_sum[SPAN_OF(t, i, 0u)]; \
    }
#else
#define LANE_MIN(i, r)
#endif

#endif

#endif
