// 18 bytes for 32 weights: half d, 16 bytes; byte j holds elements j (low nibble) and j+16; (n-8)*d.
void load32(ADDRESS row, uint g, out float v[32]) {
    uint q[4];
    float d;
    half_words_at(row + g * 18u, d, q);
    [[unroll]] for (uint j = 0u; j < 4u; j++) {
        [[unroll]] for (uint i = 0u; i < 4u; i++) {
            uint n = q[j] >> (8u * i);
            v[4u * j + i] = (float(n & 15u) - 8.0) * d;
            v[4u * j + i + 16u] = (float((n >> 4u) & 15u) - 8.0) * d;
        }
    }
}

// As codes (codes.glsl). Flipping the highest of a nibble's bits makes n - 8 of n.
#define BLOCK_BYTES 18u
#include "one_group.glsl"
#define CODE_BITS 4u
#define CODE_FLIPS
void load_codes(ADDRESS row, uint block, uint head[2], uint c, out uint q[PER_LANE(8u)]) {
    uint n[PER_LANE(4u)];
    lane_words_after(row + block * BLOCK_BYTES, head[0], n);
    [[unroll]] for (uint j = 0u; j < PER_LANE(4u); j++) {
        q[j] = n[j] & 0x0f0f0f0fu;
        q[PER_LANE(4u) + j] = (n[j] >> 4u) & 0x0f0f0f0fu;
    }
}
