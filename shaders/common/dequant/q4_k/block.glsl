#include "k_scales.glsl"
// 144 bytes for 256 weights: half d, half dmin, 12 bytes of scales, 128 bytes of nibbles; (d*sc)*q - dmin*m.
void load32(uint row, uint g, out float v[32]) {
    uint b = row + (g >> 3u) * 144u, s = g & 7u;
    vec2 dm = unpackHalf2x16(WORD(b >> 2u));
    uvec2 sm = k_scale_min(b + 4u, s);
    float d = dm.x * float(sm.x), m = dm.y * float(sm.y);
    uint q0 = (b + 16u + 32u * (s >> 1u)) >> 2u, sh = 4u * (s & 1u);
    [[unroll]] for (uint j = 0u; j < 8u; j++) {
        uint q = WORD(q0 + j) >> sh;
        [[unroll]] for (uint i = 0u; i < 4u; i++) v[4u * j + i] = d * float((q >> (8u * i)) & 15u) - m;
    }
}
