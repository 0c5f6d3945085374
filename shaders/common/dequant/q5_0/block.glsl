// 22 bytes for 32 weights: half d, a word with the fifth bit of each, 16 bytes of nibbles in the order of
// Q4_0; (n-16)*d.
void load32(uint row, uint g, out float v[32]) {
    uint q[5];
    float d;
    half_words_at(row + g * 22u, d, q);
    [[unroll]] for (uint j = 0u; j < 4u; j++) {
        [[unroll]] for (uint i = 0u; i < 4u; i++) {
            uint e = 4u * j + i, n = q[1u + j] >> (8u * i);
            v[e] = (float((n & 15u) | (((q[0] >> e) & 1u) << 4u)) - 16.0) * d;
            v[e + 16u] = (float(((n >> 4u) & 15u) | ((q[0] >> (e + 12u)) & 16u)) - 16.0) * d;
        }
    }
}
