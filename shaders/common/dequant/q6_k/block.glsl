// 210 bytes for 256 weights: 128 bytes of low nibbles, 64 bytes of high bit pairs, 16 signed scales, half d;
// (d*scale)*(q-32), a scale for each 16 weights.
void load32(ADDRESS row, uint g, out float v[32]) {
    ADDRESS b = row + (g >> 3u) * 210u;
    uint s = g & 7u, n = s >> 2u, j = s & 3u;
    float d = half_value(half_at(b + 208u));
    uint sc = half_at(b + 192u + 2u * s), ql[8], qh[8];
    float d0 = d * sbyte(sc, 0u), d1 = d * sbyte(sc, 1u);
    words_at(b + 64u * n + 32u * (j & 1u), ql);
    words_at(b + 128u + 32u * n, qh);
    uint lsh = 4u * (j >> 1u), hsh = 2u * j;
    [[unroll]] for (uint w = 0u; w < 8u; w++) {
        uint l = ql[w] >> lsh, h = qh[w] >> hsh;
        [[unroll]] for (uint i = 0u; i < 4u; i++)
            v[4u * w + i] = (w < 4u ? d0 : d1) * (float(((l >> (8u * i)) & 15u) | (((h >> (8u * i)) & 3u) << 4u)) - 32.0);
    }
}

// As codes (codes.glsl): 64 weights whose low bits share words. Flipping the highest of its six bits makes q - 32 of q.
#define CODE_TOUCH 210u
#define CODE_HEAD 5u
#define CODE_CHUNKS 4u
#define CODE_GROUPS 2u
#define CODE_WORDS PER_LANE(16u)
#define CODE_SCALES 4u
#define CODE_SPAN 4u
#define CODE_BITS 6u
#define CODE_FLIPS
#define CODES(q, i, j) q[PER_LANE(8u) * (i) + j]
#define CODE_SCALE(i, h) (2u * (i) + h)
void load_head(ADDRESS row, uint block, out uint head[5]) {
    ADDRESS b = row + block * 210u + 192u;
    uint sc[4];
    words_at(b, sc);
    [[unroll]] for (uint j = 0u; j < 4u; j++) head[j] = sc[j];
    head[4] = half_at(b + 16u);
}
void chunk_scales(uint head[5], uint c, out float s[4]) {
    uint n = c >> 1u, i = c & 1u;
    float d = half_value(head[4]);
    uint s0 = (n == 0u ? head[0] : head[2]) >> (16u * i), s1 = (n == 0u ? head[1] : head[3]) >> (16u * i);
    s[0] = d * sbyte(s0, 0u);
    s[1] = d * sbyte(s0, 1u);
    s[2] = d * sbyte(s1, 0u);
    s[3] = d * sbyte(s1, 1u);
}
void load_codes(ADDRESS row, uint block, uint head[5], uint c, out uint q[PER_LANE(16u)]) {
    ADDRESS b = row + block * 210u;
    uint n = c >> 1u, i = c & 1u, l[PER_LANE(8u)], h[PER_LANE(8u)];
    lane_words_at(b + 64u * n + 32u * i, l);
    lane_words_at(b + 128u + 32u * n, h);
    [[unroll]] for (uint j = 0u; j < PER_LANE(8u); j++) {
        uint x = h[j] >> (2u * i);
        q[j] = (l[j] & 0x0f0f0f0fu) | ((x & 0x03030303u) << 4u);
        q[PER_LANE(8u) + j] = ((l[j] >> 4u) & 0x0f0f0f0fu) | (x & 0x30303030u);
    }
}
uint chunk_group(uint c, uint i) { return 4u * (c >> 1u) + (c & 1u) + 2u * i; }

// A group has two scales, the second of which is that of the upper lanes' codes: lane l has those of bytes l and 8 + l of the sixteen.
#ifdef PACKED
#define PACKED_CENTRE 32u
#define PACKED_BYTES 210u
#define PACKED_WIDE
void packed_scales(ADDRESS b, out float s[2]) {
    float d = half_value(half_at(b + 208u));
    s[0] = d * sbyte(lane_byte(b + 192u), 0u);
    s[1] = d * sbyte(lane_byte(b + 200u), 0u);
}
float packed_scale(float s[2], uint g) {
    float of = g < 4u ? s[0] : s[1], first = subgroupBroadcast(of, 2u * (g & 3u)), second = subgroupBroadcast(of, 2u * (g & 3u) + 1u);
    return gl_SubgroupInvocationID < 4u ? first : second;
}
#define PACKED_SCALE packed_scale
#define PACKED_LESS(s, first, second) 0.0
void packed_codes(ADDRESS b, uint c, out uint q[2]) {
    uint n = c >> 1u, i = c & 1u;
    uint l = lane_word(b + 64u * n + 32u * i), h = lane_word(b + 128u + 32u * n) >> (2u * i);
    q[0] = (l & 0x0f0f0f0fu) | ((h & 0x03030303u) << 4u);
    q[1] = ((l >> 4u) & 0x0f0f0f0fu) | (h & 0x30303030u);
}
#endif
