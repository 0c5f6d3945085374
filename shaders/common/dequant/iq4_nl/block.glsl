#include "iq4_values.glsl"
// 18 bytes for 32 weights: half d, 16 bytes of nibbles in the order of Q4_0; d*value[n].
void load32(uint row, uint g, out float v[32]) {
    uint q[4];
    float d;
    half_words_at(row + g * 18u, d, q);
    [[unroll]] for (uint j = 0u; j < 4u; j++) {
        [[unroll]] for (uint i = 0u; i < 4u; i++) {
            v[4u * j + i] = d * iq4_value(q[j] >> (8u * i));
            v[4u * j + i + 16u] = d * iq4_value(q[j] >> (8u * i + 4u));
        }
    }
}
