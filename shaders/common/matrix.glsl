// What matmul_matrix.comp multiplies: the tiles of a workgroup in shared memory, as halves whose products lose nothing that
// float32 would keep.
//
// A number is two halves, one its leading 11 bits and one the rest, of what it is times a power of two: one for each row of
// inputs, and one for each 32 weights. That brings the largest to 2^14, so that no half overflows, and what is lost by halves
// that are too small is below 2^-28 of it. Weights that are scale * code (codes.glsl lists what a block type gives) are taken by their
// codes, which are halves as they are; their scales, of SPAN weights each, are applied to the sums.
//
// Before including, the kernel includes weights.glsl and defines LANE and LANES and the tile's size in weight rows and tokens,
// TILE_ROWS and TILE_TOKENS, with at least as many lanes as weight rows.
#ifndef MATRIX_GLSL
#define MATRIX_GLSL

// Halves lie in pairs. Rows of 16 pairs would all begin in the same banks.
#define PAIRS 20u
#define HALVES 40u

shared f16vec2 weight_hi[TILE_ROWS * PAIRS];
shared f16vec2 x_hi[TILE_TOKENS * PAIRS], x_lo[TILE_TOKENS * PAIRS];
shared uint x_exponent[TILE_TOKENS]; // of the largest of a row, as floats have it

// The exponent of the largest of numbers, of which most has the bits without the sign, and the powers of two that bring it to
// 2^14 and back. Where it is so small that there is none, or not finite, the nearest that there is.
#define HALF_TOP 14u
uint exponent_of(uint most) { return clamp(most >> 23u, HALF_TOP + 1u, 254u); }
float to_halves(uint exponent) { return uintBitsToFloat((254u + HALF_TOP - exponent) << 23u); }
float from_halves(uint exponent) { return uintBitsToFloat((exponent - HALF_TOP) << 23u); }
uint magnitude(float v) { return floatBitsToUint(v) & 0x7fffffffu; }

// The leading 11 bits of numbers, which make a half. What is rounded by a conversion to halves and back, compilers may take to
// be what went in.
vec2 leading(vec2 v) { return uintBitsToFloat((floatBitsToUint(v) + 0x1000u) & 0xffffe000u); }

#if defined(CODE_GROUPS)
#define SPAN (4u * CODE_SPAN)
#define SPANS (8u / CODE_SPAN)
#define BLOCK_GROUPS (CODE_CHUNKS * CODE_GROUPS)
#ifdef CODE_FLIPS
#define CODE_FLIP(q) ((q) ^ (0x01010101u << (CODE_BITS - 1u)))
#else
#define CODE_FLIP(q) (q)
#endif
#ifdef CODE_BITS
#define CODE_VALUE(q, b) float(bitfieldExtract(int(q), int(8u * (b)), int(CODE_BITS)))
#else
#define CODE_VALUE(q, b) float(((q) >> (8u * (b))) & 0xffu)
#endif
#ifdef CODE_MIN
shared float weight_min[TILE_ROWS];
#endif
#else
#define SPAN 32u
#define SPANS 1u
#ifndef WHOLE_HALVES // weights that are halves but for a power of two have no rest
#define WEIGHTS_LO
shared f16vec2 weight_lo[TILE_ROWS * PAIRS];
#endif
#endif
shared float weight_scale[SPANS * TILE_ROWS];

#if defined(CODE_GROUPS)
// Group i of a chunk of codes of weight row r of the tile.
void stage_codes(uint r, uint i, uint words[CODE_WORDS], float scales[CODE_SCALES]) {
    [[unroll]] for (uint j = 0u; j < 8u; j++) {
        uint q = CODE_FLIP(CODES(words, i, j));
        weight_hi[r * PAIRS + 2u * j] = f16vec2(vec2(CODE_VALUE(q, 0u), CODE_VALUE(q, 1u)));
        weight_hi[r * PAIRS + 2u * j + 1u] = f16vec2(vec2(CODE_VALUE(q, 2u), CODE_VALUE(q, 3u)));
    }
    [[unroll]] for (uint s = 0u; s < SPANS; s++) weight_scale[s * TILE_ROWS + r] = scales[CODE_SCALE(i, s)];
#ifdef CODE_MIN
    weight_min[r] = scales[CODE_GROUPS + i];
#endif
}
#else
// Group g of the row at byte `row`, which is weight row r of the tile.
void stage_weights(uint r, ADDRESS row, uint g) {
    float w[32];
    load32(row, g, w);
    uint most = 0u;
    [[unroll]] for (uint j = 0u; j < 32u; j++) most = max(most, magnitude(w[j]));
    uint exponent = exponent_of(most);
    float up = to_halves(exponent);
    [[unroll]] for (uint j = 0u; j < 16u; j++) {
        vec2 v = vec2(w[2u * j], w[2u * j + 1u]) * up;
        vec2 hi = leading(v);
        weight_hi[r * PAIRS + j] = f16vec2(hi);
#ifdef WEIGHTS_LO
        weight_lo[r * PAIRS + j] = f16vec2(v - hi);
#endif
    }
    weight_scale[r] = from_halves(exponent);
}
#endif

#endif
