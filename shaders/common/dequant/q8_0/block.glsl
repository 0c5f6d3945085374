// 34 bytes for 32 weights: half d, 32 signed bytes; q*d (weights.md 2.2).
void load32(uint row, uint g, out float v[32]) {
    uint q[8];
    float d;
    half_words_at(row + g * 34u, d, q);
    [[unroll]] for (uint j = 0u; j < 8u; j++) {
        [[unroll]] for (uint i = 0u; i < 4u; i++) v[4u * j + i] = sbyte(q[j], i) * d;
    }
}

// As codes (codes.glsl).
#include "one_group.glsl"
#define CODE_BITS 8u
void load_chunk(uint row, uint block, uint head[1], uint c, out uint q[8], out float s[1]) {
    half_words_at(row + block * 34u, s[0], q);
}
