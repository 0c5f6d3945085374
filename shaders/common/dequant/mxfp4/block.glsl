#include "e2m1.glsl"
// 17 bytes for 32 weights: exponent E, 16 bytes of nibbles in the order of Q4_0; value[n]*2^(E-128), of which
// the powers for E = 0 and 1 are subnormal: devices may take them for 0.
void load32(uint row, uint g, out float v[32]) {
    uint e, q[4];
    byte_words_at(row + g * 17u, e, q);
    uint normal = (e - 1u) << 23u, small = 0x200000u << (e & 1u);
    float d = uintBitsToFloat(e < 2u ? small : normal);
    [[unroll]] for (uint j = 0u; j < 4u; j++) {
        [[unroll]] for (uint i = 0u; i < 4u; i++) {
            v[4u * j + i] = d * e2m1(q[j] >> (8u * i));
            v[4u * j + i + 16u] = d * e2m1(q[j] >> (8u * i + 4u));
        }
    }
}
