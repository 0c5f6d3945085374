#include "grid1.glsl"
// 50 bytes for 256 weights: half d; 4 low bytes of grid indices for each 32 weights; 16 bits for each 32 with
// four triples of high index bits, a 3-bit scale and the sign of the shift; d*(2s+1) times (grid + shift).
void load32(uint row, uint g, out float v[32]) {
    uint b = row + (g >> 3u) * 50u, s = g & 7u;
    float d = half_value(half_at(b));
    uint q = word_at(b + 2u + 4u * s), h = half_at(b + 34u + 2u * s);
    float dl = d * float(2u * ((h >> 12u) & 7u) + 1u), from = lowest(h >> 15u);
    [[unroll]] for (uint t = 0u; t < 4u; t++) {
        uint code = codebook(((q >> (8u * t)) & 255u) | (((h >> (3u * t)) & 7u) << 8u));
        [[unroll]] for (uint x = 0u; x < 8u; x++) v[8u * t + x] = dl * (float((code >> (2u * x)) & 3u) + from);
    }
}
