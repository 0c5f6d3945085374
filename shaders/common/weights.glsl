// Weight memory and its addressing. The matrix is bound as 32-bit words; a row starts at any even byte.
// Before including, the kernel declares its push constants `p` and defines WEIGHT_BINDING.
// The block type's own file, common/dequant/TYPE/block.glsl, is found by the include path of the module and
// gives load32: the 32 weights of group `g` of the row at byte address `row`.
#ifndef WEIGHTS_GLSL
#define WEIGHTS_GLSL

layout(set = 0, binding = WEIGHT_BINDING) readonly buffer WeightBuffer { uint weight_words[]; };

#ifdef WEIGHT2_BINDING
// A second matrix of the same type: the up projection beside the gate.
layout(set = 0, binding = WEIGHT2_BINDING) readonly buffer Weight2Buffer { uint weight2_words[]; };
// Which of the two load32 reads; a compile-time constant wherever it is called.
bool weight_second = false;
#define WORD(i) (weight_second ? weight2_words[i] : weight_words[i])
#else
#define WORD(i) weight_words[i]
#endif

// N words at even byte address b. Without a branch, as some compilers take minutes over dozens of them, and
// without touching a word that holds none of the bytes asked for.
#define WORDS_AT(N) { \
        uint i = b >> 2u, odd = (b >> 1u) & 1u, word = WORD(i); \
        [[unroll]] for (uint j = 0u; j < N; j++) { \
            uint next = WORD(i + j + (j + 1u < N ? 1u : odd)); \
            uint crossed = (word >> 16u) | (next << 16u); \
            v[j] = odd != 0u ? crossed : word; \
            word = next; \
        } \
    }
void words_at(uint b, out uint v[8]) WORDS_AT(8u)
void words_at(uint b, out uint v[4]) WORDS_AT(4u)
uint half_at(uint b) { return (WORD(b >> 2u) >> ((b & 2u) * 8u)) & 0xffffu; }
uint byte_at(uint b) { return (WORD(b >> 2u) >> ((b & 3u) * 8u)) & 0xffu; }
// The value of an IEEE half given its 16 bits.
float half_value(uint h) { return unpackHalf2x16(h).x; }
// Byte i (0..3) of a word, unsigned and signed.
float ubyte(uint w, uint i) { return float((w >> (8u * i)) & 0xffu); }
float sbyte(uint w, uint i) { return float(bitfieldExtract(int(w), int(8u * i), 8)); }

#include "block.glsl"

#endif
