#include "grid2.glsl"
// 66 bytes for 256 weights: half d; for each 32 weights 4 grid indices and a word with four 7-bit sign
// patterns and a 4-bit scale; (d*(0.5+s))*0.25 times the grid.
void load32(uint row, uint g, out float v[32]) {
    uint b = row + (g >> 3u) * 66u, q[2];
    float d = half_value(half_at(b));
    words_at(b + 2u + 8u * (g & 7u), q);
    float db = d * (0.5 + float(q[1] >> 28u)) * 0.25;
    [[unroll]] for (uint t = 0u; t < 4u; t++) {
        uint signs = signs7(q[1] >> (7u * t)), w[2];
        grid2(codebook((q[0] >> (8u * t)) & 255u), w);
        [[unroll]] for (uint x = 0u; x < 8u; x++) v[8u * t + x] = negated(db * ubyte(w[x >> 2u], x & 3u), signs, x);
    }
}
