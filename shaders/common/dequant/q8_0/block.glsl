// 34 bytes for 32 weights: half d, 32 signed bytes; q*d (weights.md 2.2).
void load32(ADDRESS row, uint g, out float v[32]) {
    uint q[8];
    float d;
    half_words_at(row + g * 34u, d, q);
    [[unroll]] for (uint j = 0u; j < 8u; j++) {
        [[unroll]] for (uint i = 0u; i < 4u; i++) v[4u * j + i] = sbyte(q[j], i) * d;
    }
}

// As codes (codes.glsl).
#define BLOCK_BYTES 34u
#include "one_group.glsl"
#define CODE_BITS 8u
void load_codes(ADDRESS row, uint block, uint head[2], uint c, out uint q[PER_LANE(8u)]) {
    lane_words_after(row + block * BLOCK_BYTES, head[0], q);
}
