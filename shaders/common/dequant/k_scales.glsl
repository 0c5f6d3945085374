// The 6-bit scale and minimum of sub-block s (0..7) from the three words that hold them: Q4_K and Q5_K
// (weights.md 2.2).
uvec2 k_scale_min_of(uvec3 words, uint s) {
    uint sh = 8u * (s & 3u);
    uint a = (words.x >> sh) & 0xffu, m = (words.y >> sh) & 0xffu, h = (words.z >> sh) & 0xffu;
    uvec2 first = uvec2(a & 63u, m & 63u), second = uvec2((h & 15u) | ((a >> 6u) << 4u), (h >> 4u) | ((m >> 6u) << 4u));
    return mix(second, first, bvec2(s < 4u)); // selects
}
// The same from the 12 packed bytes at byte address b, which is a multiple of 4.
uvec2 k_scale_min(ADDRESS b, uint s) { return k_scale_min_of(uvec3(WORD(b >> 2u), WORD((b >> 2u) + 1u), WORD((b >> 2u) + 2u)), s); }

// What packed.glsl wants of the block at address b: lane g the scale and the minimum of sub-block g.
#ifdef PACKED
void packed_scales(ADDRESS b, out float s[2]) {
    vec2 dm = unpackHalf2x16(WORD(b >> 2u));
    uvec2 sm = k_scale_min(b + 4u, gl_SubgroupInvocationID);
    s[0] = dm.x * float(int(sm.x));
    s[1] = dm.y * float(int(sm.y));
#ifdef PACKED_CENTRE
    s[1] -= float(PACKED_CENTRE) * s[0];
#endif
}
#define PACKED_SCALE(s, g) subgroupBroadcast(s[0], g)
#define PACKED_LESS(s, first, second) (s[1] * ((first) + (second)))
#endif

// What codes.glsl wants: the first four words of a block, and the scales and minima of its sub-blocks 2c and 2c + 1.
void k_head(ADDRESS b, out uint head[4]) {
#ifdef SPREAD
    [[unroll]] for (uint j = 0u; j < 4u; j++) head[j] = WORD((b >> 2u) + j);
#else
    lane_words(b, head);
#endif
}
void chunk_scales(uint head[4], uint c, out float s[4]) {
    uvec3 words = uvec3(head[1], head[2], head[3]);
    uvec2 a = k_scale_min_of(words, 2u * c), b = k_scale_min_of(words, 2u * c + 1u);
    vec2 dm = unpackHalf2x16(head[0]);
    s[0] = dm.x * float(a.x);
    s[1] = dm.x * float(b.x);
    s[2] = dm.y * float(a.y);
    s[3] = dm.y * float(b.y);
}
