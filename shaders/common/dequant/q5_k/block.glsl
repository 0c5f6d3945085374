#define PACKED_CENTRE 16u
#include "k_scales.glsl"
// 176 bytes for 256 weights: as Q4_K with a fifth bit per weight in 32 bytes at 16, nibbles at 48.
void load32(ADDRESS row, uint g, out float v[32]) {
    ADDRESS b = row + (g >> 3u) * 176u;
    uint s = g & 7u;
    vec2 dm = unpackHalf2x16(WORD(b >> 2u));
    uvec2 sm = k_scale_min(b + 4u, s);
    float d = dm.x * float(sm.x), m = dm.y * float(sm.y);
    ADDRESS h0 = (b + 16u) >> 2u, q0 = (b + 48u + 32u * (s >> 1u)) >> 2u;
    uint sh = 4u * (s & 1u);
    [[unroll]] for (uint j = 0u; j < 8u; j++) {
        uint q = WORD(q0 + j) >> sh, h = WORD(h0 + j) >> s;
        [[unroll]] for (uint i = 0u; i < 4u; i++)
            v[4u * j + i] = d * float(((q >> (8u * i)) & 15u) | (((h >> (8u * i)) & 1u) << 4u)) - m;
    }
}

// As codes (codes.glsl): 64 weights whose nibbles share words.
#define CODE_TOUCH 176u
#define CODE_HEAD 4u
#define CODE_CHUNKS 4u
#define CODE_GROUPS 2u
#define CODE_WORDS PER_LANE(16u)
#define CODE_SCALES 4u
#define CODE_SPAN 8u
#define CODE_MIN
#define CODES(q, i, j) q[PER_LANE(8u) * (i) + j]
#define CODE_SCALE(i, h) (i)
void load_head(ADDRESS row, uint block, out uint head[4]) { k_head(row + block * 176u, head); }
void load_codes(ADDRESS row, uint block, uint head[4], uint c, out uint q[PER_LANE(16u)]) {
    ADDRESS b = row + block * 176u + 16u;
    uint l[PER_LANE(8u)], h[PER_LANE(8u)];
    lane_words(b + 32u + 32u * c, l);
    lane_words(b, h);
    [[unroll]] for (uint j = 0u; j < PER_LANE(8u); j++) {
        uint x = h[j] >> (2u * c);
        q[j] = (l[j] & 0x0f0f0f0fu) | ((x & 0x01010101u) << 4u);
        q[PER_LANE(8u) + j] = ((l[j] >> 4u) & 0x0f0f0f0fu) | ((x & 0x02020202u) << 3u);
    }
}
uint chunk_group(uint c, uint i) { return 2u * c + i; }

#ifdef PACKED
#define PACKED_BYTES 176u
void packed_codes(ADDRESS b, uint c, out uint q[2]) {
    uint l = lane_word(b + 48u + 32u * c), h = lane_word(b + 16u) >> (2u * c);
    q[0] = (l & 0x0f0f0f0fu) | ((h & 0x01010101u) << 4u);
    q[1] = ((l >> 4u) & 0x0f0f0f0fu) | ((h & 0x02020202u) << 3u);
}
#endif
