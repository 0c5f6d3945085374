// 110 bytes for 256 weights: 32 bytes with the third bit of each, 64 bytes of low bit pairs, 12 bytes of 6-bit
// scales for 16 weights each, half d; (d*(sc-32))*(q-4).
void load32(uint row, uint g, out float v[32]) {
    uint b = row + (g >> 3u) * 110u, s = g & 7u, h[8], q[8];
    float d = half_value(half_at(b + 108u));
    // Scales 2s and 2s + 1: low nibbles in 8 bytes, those of the second half above them, high pairs in 4.
    uint lo = half_at(b + 96u + 2u * (s & 3u)) >> (4u * (s >> 2u));
    uint hi = half_at(b + 104u + 2u * (s & 1u)) >> (2u * (s >> 1u));
    uint sc = (lo & 0x0f0fu) | ((hi & 0x0303u) << 4u);
    float d0 = d * (ubyte(sc, 0u) - 32.0), d1 = d * (ubyte(sc, 1u) - 32.0);
    words_at(b, h);
    words_at(b + 32u + 32u * (s >> 2u), q);
    uint sh = 2u * (s & 3u);
    [[unroll]] for (uint j = 0u; j < 8u; j++) {
        uint n = ((q[j] >> sh) & 0x03030303u) | (((h[j] >> s) & 0x01010101u) << 2u);
        [[unroll]] for (uint i = 0u; i < 4u; i++) v[4u * j + i] = (j < 4u ? d0 : d1) * (ubyte(n, i) - 4.0);
    }
}
