// Weight memory and its addressing. The matrix is bound as 32-bit words; a row starts at any even byte, of
// MXFP4 at any byte.
// Before including, the kernel declares its push constants `p` and defines WEIGHT_BINDING.
// The block type's own file, common/dequant/TYPE/block.glsl, is found by the include path of the module and
// gives load32: the 32 weights of group `g` of the row at byte address `row`.
#ifndef WEIGHTS_GLSL
#define WEIGHTS_GLSL

#include "inputs.glsl"
#ifdef SPREAD
#include "address.glsl"
layout(buffer_reference, std430, buffer_reference_align = 1) readonly buffer Bytes { uint8_t v[]; };
#define WORD(i) Words((i) << 2u).v[0]
#else
#define ADDRESS uint
WORDS(WEIGHT_BINDING, weight_words)
#endif

#if defined(SPREAD)
#elif defined(WEIGHT2_BINDING)
// More matrices of the same type: the up projection beside the gate, the second of two that are projected together, and
// those of the shared expert.
WORDS(WEIGHT2_BINDING, weight2_words)
// Which of them load32 reads, from 0; a compile-time constant wherever it is called.
uint weight_which = 0u;
#ifdef WEIGHT4_BINDING
WORDS(WEIGHT3_BINDING, weight3_words)
WORDS(WEIGHT4_BINDING, weight4_words)
#define WEIGHTS(i) \
    (weight_which == 0u ? WEIGHT(weight_words, i) : weight_which == 1u ? WEIGHT(weight2_words, i) \
        : weight_which == 2u ? WEIGHT(weight3_words, i) : WEIGHT(weight4_words, i))
#else
#define WEIGHTS(i) (weight_which == 1u ? WEIGHT(weight2_words, i) : WEIGHT(weight_words, i))
#endif
#else
#define WEIGHTS(i) WEIGHT(weight_words, i)
#endif

// A product of weights with the factor that the matrix, or expert e of a stack, carries.
#ifdef SCALE_BINDING
layout(set = 0, binding = SCALE_BINDING) readonly buffer ScaleBuffer { float scales[]; };
float scaled(float v, uint e) { return v * scales[p.off_scale + e]; }
#else
float scaled(float v, uint e) { return v; }
#endif
#ifdef SCALE2_BINDING
layout(set = 0, binding = SCALE2_BINDING) readonly buffer Scale2Buffer { float scales2[]; };
float scaled2(float v, uint e) { return v * scales2[p.off_scale2 + e]; }
#else
float scaled2(float v, uint e) { return v; }
#endif

// Words by their index, or with TEXELS what holds four of them.
#ifdef TEXELS
#define WEIGHT FOUR
uvec4 four_words(uint i) { return WEIGHTS(i); }
uint word_of(uvec4 v, uint i) {
    uvec2 pair = mix(v.xy, v.zw, bvec2((i & 2u) != 0u));
    return mix(pair.x, pair.y, (i & 1u) != 0u);
}
#define WORD(i) word_of(four_words((i) >> 2u), i)
#elif !defined(SPREAD)
#define WEIGHT(name, i) name[i]
#define WORD(i) WEIGHTS(i)
#endif

#ifdef CODEBOOK_BINDING
WORDS(CODEBOOK_BINDING, codebook_words)
// The levels of point i of the codebook, lane 0 in the lowest bits (gguf/quant, Codebook).
#ifdef TEXELS
uint codebook_word(uint i) { return word_of(FOUR(codebook_words, i >> 2u), i); }
#else
uint codebook_word(uint i) { return codebook_words[i]; }
#endif
uint codebook(uint i) { return (codebook_word(p.off_codebook + (i >> 1u)) >> (16u * (i & 1u))) & 0xffffu; }
#endif

// The value of an IEEE half in the low 16 bits of a word.
float half_value(uint h) { return unpackHalf2x16(h).x; }
// The half and the N words at even byte address b.
#ifdef SPREAD
// Bytes put together are one load, and reading is cheaper than choosing from what was read: see lane_byte.
uint half_at(ADDRESS b) { return uint(Bytes(b).v[0]) | (uint(Bytes(b).v[1]) << 8u); }
uint half_of(ADDRESS b, uint word) { return half_at(b); }
#define WORDS_AT(N) { [[unroll]] for (uint j = 0u; j < N; j++) v[j] = half_at(b + 4u * j) | (half_at(b + 4u * j + 2u) << 16u); }
#else
#ifdef TEXELS
// The N + 1 words from the one that holds byte b on, which any byte after b up to N words away is in.
#define RUN_AT(b, N) \
    uint run[4u * (((N) + 7u) / 4u)]; \
    [[unroll]] for (uint j = 0u; j < ((N) + 7u) / 4u; j++) { \
        uvec4 four = four_words(((b) >> 4u) + j); \
        run[4u * j] = four.x; \
        run[4u * j + 1u] = four.y; \
        run[4u * j + 2u] = four.z; \
        run[4u * j + 3u] = four.w; \
    } \
    [[unroll]] for (uint j = 0u; j < (N) + 3u; j++) { \
        uint own = run[j], next = run[j + 1u]; \
        run[j] = ((b) & 4u) != 0u ? next : own; \
    } \
    [[unroll]] for (uint j = 0u; j <= (N); j++) { \
        uint own = run[j], next = run[j + 2u]; \
        run[j] = ((b) & 8u) != 0u ? next : own; \
    }
#endif
// Without a branch, as some compilers take minutes over dozens of them (a conditional between two names or constants is
// none), and without touching a word that holds none of the bytes asked for. On some software devices a load costs more
// than decoding what it brings, so blocks are read in whole words, each of them once.
uint half_at(ADDRESS b) { return (WORD(b >> 2u) >> ((uint(b) & 2u) * 8u)) & 0xffffu; }
uint half_of(ADDRESS b, uint word) { return (word >> ((uint(b) & 2u) * 8u)) & 0xffffu; } // of the word it lies in
#ifdef TEXELS
#define WORDS_AT(N) { \
        RUN_AT(b, N) \
        bool odd = (b & 2u) != 0u; \
        [[unroll]] for (uint j = 0u; j < N; j++) { \
            uint own = run[j], crossed = (own >> 16u) | (run[j + 1u] << 16u); \
            v[j] = odd ? crossed : own; \
        } \
    }
#else
#define WORDS_AT(N) { \
        ADDRESS i = b >> 2u; \
        uint odd = uint(b >> 1u) & 1u, word = WORD(i); \
        [[unroll]] for (uint j = 0u; j < N; j++) { \
            uint next = WORD(i + j + (j + 1u < N ? 1u : odd)); \
            uint crossed = (word >> 16u) | (next << 16u); \
            v[j] = odd != 0u ? crossed : word; \
            word = next; \
        } \
    }
#endif
#endif
void words_at(ADDRESS b, out uint v[8]) WORDS_AT(8u)
void words_at(ADDRESS b, out uint v[4]) WORDS_AT(4u)
void words_at(ADDRESS b, out uint v[2]) WORDS_AT(2u)
uint word_at(ADDRESS b) { uint v[1]; WORDS_AT(1u) return v[0]; }
// The half at even byte address b and the N words after it, which together take N + 1 words wherever b is.
#define HALF_WORDS_AT(N) { \
        uint word = WORD(b >> 2u); \
        h = half_value(word >> (8u * (uint(b) & 2u))); \
        words_after(b, word, v); \
    }
// The words alone, where the one that the half lies in is known.
#ifdef TEXELS
#define WORDS_AFTER(N) { \
        RUN_AT(b, N) \
        bool odd = (b & 2u) != 0u; \
        [[unroll]] for (uint j = 0u; j < N; j++) { \
            uint next = run[j + 1u], crossed = (run[j] >> 16u) | (next << 16u); \
            v[j] = odd ? next : crossed; \
        } \
    }
#else
#define WORDS_AFTER(N) { \
        ADDRESS i = b >> 2u; \
        bool odd = (uint(b) & 2u) != 0u; \
        [[unroll]] for (uint j = 0u; j < N; j++) { \
            uint next = WORD(i + 1u + j); \
            uint crossed = (word >> 16u) | (next << 16u); \
            v[j] = odd ? next : crossed; \
            word = next; \
        } \
    }
#endif
void words_after(ADDRESS b, uint word, out uint v[8]) WORDS_AFTER(8u)
void words_after(ADDRESS b, uint word, out uint v[5]) WORDS_AFTER(5u)
void words_after(ADDRESS b, uint word, out uint v[4]) WORDS_AFTER(4u)
void half_words_at(ADDRESS b, out float h, out uint v[8]) HALF_WORDS_AT(8u)
void half_words_at(ADDRESS b, out float h, out uint v[5]) HALF_WORDS_AT(5u)
void half_words_at(ADDRESS b, out float h, out uint v[4]) HALF_WORDS_AT(4u)
// The byte at any byte address b and the four words after it, which together take five words wherever b is.
void byte_words_at(ADDRESS b, out uint e, out uint v[4]) {
    ADDRESS i = b >> 2u;
    uint sh = 8u * (uint(b) & 3u), word = WORD(i);
    e = (word >> sh) & 0xffu;
    [[unroll]] for (uint j = 0u; j < 4u; j++) {
        uint next = WORD(i + 1u + j);
        v[j] = ((word >> sh) >> 8u) | (next << (24u - sh));
        word = next;
    }
}
uint byte_at(ADDRESS b) { return (WORD(b >> 2u) >> ((uint(b) & 3u) * 8u)) & 0xffu; }
// Byte i (0..3) of a word, unsigned and signed.
float ubyte(uint w, uint i) { return float((w >> (8u * i)) & 0xffu); }
float sbyte(uint w, uint i) { return float(bitfieldExtract(int(w), int(8u * i), 8)); }

// Words of codes (codes.glsl) from a byte address, which for lane_words is a multiple of 4. Of N words an invocation gets
// PER_LANE(N): all of them, or with SPREAD its byte of the eight of each pair, as a word.
#ifdef SPREAD
#define PER_LANE(N) ((N) / 2u)
uint lane_byte(ADDRESS b) {
    Bytes p = Bytes(b);
    uint8_t v = p.v[0];
    [[unroll]] for (uint i = 1u; i < 8u; i++) {
        uint8_t other = p.v[i];
        v = gl_SubgroupInvocationID == i ? other : v;
    }
    return uint(v);
}
void lane_words_at(ADDRESS b, out uint v[4]) {
    [[unroll]] for (uint j = 0u; j < 4u; j++) v[j] = lane_byte(b + 8u * j);
}
void lane_words_at(ADDRESS b, out uint v[2]) {
    [[unroll]] for (uint j = 0u; j < 2u; j++) v[j] = lane_byte(b + 8u * j);
}
#define lane_words lane_words_at
void lane_words_after(ADDRESS b, uint word, out uint v[4]) { lane_words_at(b + 2u, v); }
void lane_words_after(ADDRESS b, uint word, out uint v[2]) { lane_words_at(b + 2u, v); }
#else
#define PER_LANE(N) (N)
#ifdef TEXELS
#define LANE_WORDS(N) { \
        RUN_AT(b, N) \
        [[unroll]] for (uint j = 0u; j < N; j++) v[j] = run[j]; \
    }
#else
#define LANE_WORDS(N) [[unroll]] for (uint j = 0u; j < N; j++) v[j] = WORD((b >> 2u) + j);
#endif
void lane_words(ADDRESS b, out uint v[8]) { LANE_WORDS(8u) }
void lane_words(ADDRESS b, out uint v[16]) { LANE_WORDS(16u) }
void lane_words(ADDRESS b, out uint v[4]) { LANE_WORDS(4u) }
#define lane_words_at words_at
#define lane_words_after words_after
#endif

#include "block.glsl"

#endif
