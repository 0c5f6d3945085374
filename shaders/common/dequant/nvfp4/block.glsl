#include "e2m1.glsl"
// Half the value of the scale in the low byte, an E4M3 number without sign (weights.md 4). Its eighth bit does
// not count, except that 0x7f, no number, is 0.
float ue4m3(uint x) {
    uint n = x & 0x7fu;
    float normal = uintBitsToFloat((n << 20u) + (119u << 23u)), small = float(n) * 0.0009765625;
    normal = (x & 0xffu) == 0x7fu ? 0.0 : normal;
    return n < 8u ? small : normal;
}
// 36 bytes for 64 weights: a scale for each 16, 8 bytes of nibbles for each 16, of which byte j holds elements
// j (low nibble) and j+8; value[n]*scale.
void load32(uint row, uint g, out float v[32]) {
    uint b = (row + (g >> 1u) * 36u) >> 2u, s = g & 1u, sc = WORD(b) >> (16u * s);
    float d0 = ue4m3(sc), d1 = ue4m3(sc >> 8u);
    [[unroll]] for (uint j = 0u; j < 4u; j++) {
        uint q = WORD(b + 1u + 4u * s + j), e = 16u * (j >> 1u) + 4u * (j & 1u);
        [[unroll]] for (uint i = 0u; i < 4u; i++) {
            v[e + i] = (j < 2u ? d0 : d1) * e2m1(q >> (8u * i));
            v[e + i + 8u] = (j < 2u ? d0 : d1) * e2m1(q >> (8u * i + 4u));
        }
    }
}
