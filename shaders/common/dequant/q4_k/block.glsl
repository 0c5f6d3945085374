#include "k_scales.glsl"
// 144 bytes for 256 weights: half d, half dmin, 12 bytes of scales, 128 bytes of nibbles; (d*sc)*q - dmin*m.
void load32(ADDRESS row, uint g, out float v[32]) {
    ADDRESS b = row + (g >> 3u) * 144u;
    uint s = g & 7u;
    vec2 dm = unpackHalf2x16(WORD(b >> 2u));
    uvec2 sm = k_scale_min(b + 4u, s);
    float d = dm.x * float(sm.x), m = dm.y * float(sm.y);
    ADDRESS q0 = (b + 16u + 32u * (s >> 1u)) >> 2u;
    uint sh = 4u * (s & 1u);
    [[unroll]] for (uint j = 0u; j < 8u; j++) {
        uint q = WORD(q0 + j) >> sh;
        [[unroll]] for (uint i = 0u; i < 4u; i++) v[4u * j + i] = d * float((q >> (8u * i)) & 15u) - m;
    }
}

// As codes (codes.glsl): 64 weights whose nibbles share words.
#define CODE_HEAD 4u
#define CODE_CHUNKS 4u
#define CODE_GROUPS 2u
#define CODE_WORDS PER_LANE(8u)
#define CODE_SCALES 4u
#define CODE_SPAN 8u
#define CODE_MIN
#define CODES(q, i, j) ((q[j] >> (4u * (i))) & 0x0f0f0f0fu)
#define CODE_SCALE(i, h) (i)
void load_head(ADDRESS row, uint block, out uint head[4]) { k_head(row + block * 144u, head); }
void load_codes(ADDRESS row, uint block, uint head[4], uint c, out uint q[PER_LANE(8u)]) {
    lane_words(row + block * 144u + 16u + 32u * c, q);
}
uint chunk_group(uint c, uint i) { return 2u * c + i; }

#ifdef PACKED
#define PACKED_BYTES 144u
void packed_codes(ADDRESS b, uint c, out uint q[2]) {
    uint l = lane_word(b + 16u + 32u * c);
    q[0] = l & 0x0f0f0f0fu;
    q[1] = (l >> 4u) & 0x0f0f0f0fu;
}
#endif
