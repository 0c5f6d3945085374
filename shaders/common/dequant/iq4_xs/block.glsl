#include "iq4_values.glsl"
// 136 bytes for 256 weights: half d, the high pairs of 8 scales, their low nibbles in a word, 16 bytes of
// nibbles in the order of Q4_0 for each 32 weights; (d*(sc-32))*value[n].
void load32(uint row, uint g, out float v[32]) {
    uint b = (row + (g >> 3u) * 136u) >> 2u, s = g & 7u;
    uint dh = WORD(b), sc = ((WORD(b + 1u) >> (4u * s)) & 15u) | (((dh >> (16u + 2u * s)) & 3u) << 4u);
    float d = half_value(dh) * (float(sc) - 32.0);
    [[unroll]] for (uint j = 0u; j < 4u; j++) {
        uint q = WORD(b + 2u + 4u * s + j);
        [[unroll]] for (uint i = 0u; i < 4u; i++) {
            v[4u * j + i] = d * iq4_value(q >> (8u * i));
            v[4u * j + i + 16u] = d * iq4_value(q >> (8u * i + 4u));
        }
    }
}
