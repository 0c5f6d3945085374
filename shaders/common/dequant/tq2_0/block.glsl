// 66 bytes for 256 weights: 64 bytes of bit pairs in the order of Q2_K, half d; (n-1)*d.
void load32(uint row, uint g, out float v[32]) {
    uint b = row + (g >> 3u) * 66u, s = g & 7u, q[8], sh = 2u * (s & 3u);
    float d = half_value(half_at(b + 64u));
    words_at(b + 32u * (s >> 2u), q);
    [[unroll]] for (uint j = 0u; j < 8u; j++) {
        uint n = q[j] >> sh;
        [[unroll]] for (uint i = 0u; i < 4u; i++) v[4u * j + i] = (float((n >> (8u * i)) & 3u) - 1.0) * d;
    }
}
