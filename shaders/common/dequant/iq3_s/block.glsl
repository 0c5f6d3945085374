#include "grid3.glsl"
// 110 bytes for 256 weights: half d; 8 low bytes of grid indices for each 32 weights; the ninth bits; a sign
// bit for each; a nibble of scale for each 32; d*(1+2s) times the grid, whose levels are 1, 3, .. 15.
void load32(uint row, uint g, out float v[32]) {
    uint b = row + (g >> 3u) * 110u, s = g & 7u, q[2];
    float d = half_value(half_at(b));
    words_at(b + 2u + 8u * s, q);
    uint high = byte_at(b + 66u + s), signs = word_at(b + 74u + 4u * s);
    uint sc = (byte_at(b + 106u + (s >> 1u)) >> (4u * (s & 1u))) & 15u;
    float db = d * float(1u + 2u * sc);
    [[unroll]] for (uint y = 0u; y < 8u; y++) {
        uint l = levels3(codebook(((q[y >> 2u] >> (8u * (y & 3u))) & 255u) | (((high >> y) & 1u) << 8u)));
        uint w = 0x01010101u + (l << 1u);
        [[unroll]] for (uint x = 0u; x < 4u; x++) v[4u * y + x] = negated(db * ubyte(w, x), signs, 4u * y + x);
    }
}
