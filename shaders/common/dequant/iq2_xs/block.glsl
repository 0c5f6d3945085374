#include "grid2.glsl"
// 74 bytes for 256 weights: half d; 4 times 9 bits of grid index and 7 of signs for each 32 weights; a nibble
// of scale for each 16; (d*(0.5+s))*0.25 times the grid.
void load32(uint row, uint g, out float v[32]) {
    uint b = row + (g >> 3u) * 74u, s = g & 7u, q[2];
    float d = half_value(half_at(b));
    uint sc = byte_at(b + 66u + s);
    words_at(b + 2u + 8u * s, q);
    vec2 db = d * (0.5 + vec2(sc & 15u, sc >> 4u)) * 0.25;
    [[unroll]] for (uint t = 0u; t < 4u; t++) {
        uint n = (q[t >> 1u] >> (16u * (t & 1u))) & 0xffffu, signs = signs7(n >> 9u), w[2];
        grid2(codebook(n & 511u), w);
        [[unroll]] for (uint x = 0u; x < 8u; x++)
            v[8u * t + x] = negated((t < 2u ? db.x : db.y) * ubyte(w[x >> 2u], x & 3u), signs, x);
    }
}
