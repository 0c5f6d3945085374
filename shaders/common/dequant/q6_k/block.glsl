// 210 bytes for 256 weights: 128 bytes of low nibbles, 64 bytes of high bit pairs, 16 signed scales, half d;
// (d*scale)*(q-32), a scale for each 16 weights.
void load32(uint row, uint g, out float v[32]) {
    uint b = row + (g >> 3u) * 210u, s = g & 7u, n = s >> 2u, j = s & 3u;
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
