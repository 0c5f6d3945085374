// The 6-bit scale and minimum of sub-block s (0..7) from the 12 packed bytes at byte address b, which is a
// multiple of 4: Q4_K and Q5_K (weights.md 2.2).
uvec2 k_scale_min(uint b, uint s) {
    uint lo = WORD(b >> 2u), mid = WORD((b >> 2u) + 1u), hi = WORD((b >> 2u) + 2u);
    uint sh = 8u * (s & 3u);
    uint a = (lo >> sh) & 0xffu, m = (mid >> sh) & 0xffu, h = (hi >> sh) & 0xffu;
    uvec2 first = uvec2(a & 63u, m & 63u), second = uvec2((h & 15u) | ((a >> 6u) << 4u), (h >> 4u) | ((m >> 6u) << 4u));
    return mix(second, first, bvec2(s < 4u)); // selects
}
