#include "grid2.glsl"
// 82 bytes for 256 weights: half d; 4 low bytes of grid indices for each 32 weights; a sign bit for each; the
// pairs of high index bits; a nibble of scale for each 16; (d*(0.5+s))*0.25 times the grid.
void load32(uint row, uint g, out float v[32]) {
    uint b = row + (g >> 3u) * 82u, s = g & 7u;
    float d = half_value(half_at(b));
    uint q = word_at(b + 2u + 4u * s), signs = word_at(b + 34u + 4u * s);
    uint high = byte_at(b + 66u + s), sc = byte_at(b + 74u + s);
    vec2 db = d * (0.5 + vec2(sc & 15u, sc >> 4u)) * 0.25;
    [[unroll]] for (uint t = 0u; t < 4u; t++) {
        uint w[2];
        grid2(codebook(((q >> (8u * t)) & 255u) | (((high >> (2u * t)) & 3u) << 8u)), w);
        [[unroll]] for (uint x = 0u; x < 8u; x++)
            v[8u * t + x] = negated((t < 2u ? db.x : db.y) * ubyte(w[x >> 2u], x & 3u), signs, 8u * t + x);
    }
}
