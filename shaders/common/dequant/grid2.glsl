#include "signs.glsl"
// The values of a point with eight 2-bit levels, as the bytes of two words: levels 0, 1, 2 are 8, 25, 43.
void grid2(uint code, out uint w[2]) {
    [[unroll]] for (uint i = 0u; i < 2u; i++) {
        uint l = (code >> (8u * i)) & 0xffu;
        l = (l | (l << 12u)) & 0x000f000fu;
        l = (l | (l << 6u)) & 0x03030303u;
        w[i] = 0x08080808u + l * 17u + ((l >> 1u) & 0x01010101u);
    }
}
