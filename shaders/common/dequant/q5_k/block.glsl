#include "k_scales.glsl"
// 176 bytes for 256 weights: as Q4_K with a fifth bit per weight in 32 bytes at 16, nibbles at 48.
void load32(uint row, uint g, out float v[32]) {
    uint b = row + (g >> 3u) * 176u, s = g & 7u;
    vec2 dm = unpackHalf2x16(WORD(b >> 2u));
    uvec2 sm = k_scale_min(b + 4u, s);
    float d = dm.x * float(sm.x), m = dm.y * float(sm.y);
    uint h0 = (b + 16u) >> 2u, q0 = (b + 48u + 32u * (s >> 1u)) >> 2u, sh = 4u * (s & 1u);
    [[unroll]] for (uint j = 0u; j < 8u; j++) {
        uint q = WORD(q0 + j) >> sh, h = WORD(h0 + j) >> s;
        [[unroll]] for (uint i = 0u; i < 4u; i++)
            v[4u * j + i] = d * float(((q >> (8u * i)) & 15u) | (((h >> (8u * i)) & 1u) << 4u)) - m;
    }
}
