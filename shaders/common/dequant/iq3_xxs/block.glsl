#include "grid3.glsl"
// 98 bytes for 256 weights: half d; 8 grid indices for each 32 weights; a word with four 7-bit sign patterns
// and a 4-bit scale for each 32; (d*(0.5+s))*0.5 times the grid, whose levels are 4, 12, .. 44, 52, 62.
void load32(uint row, uint g, out float v[32]) {
    uint b = row + (g >> 3u) * 98u, s = g & 7u, q[2];
    float d = half_value(half_at(b));
    words_at(b + 2u + 8u * s, q);
    uint a = word_at(b + 66u + 4u * s);
    float db = d * (0.5 + float(a >> 28u)) * 0.5;
    [[unroll]] for (uint y = 0u; y < 8u; y++) {
        uint signs = signs7(a >> (7u * (y >> 1u)));
        uint l = levels3(codebook((q[y >> 2u] >> (8u * (y & 3u))) & 255u));
        uint w = 0x04040404u + (l << 3u) + (((l + 0x01010101u) >> 2u) & 0x02020202u);
        [[unroll]] for (uint x = 0u; x < 4u; x++) v[4u * y + x] = negated(db * ubyte(w, x), signs, 4u * (y & 1u) + x);
    }
}
