// 18 bytes for 32 weights: half d, 16 bytes; byte j holds elements j (low nibble) and j+16; (n-8)*d.
void load32(uint row, uint g, out float v[32]) {
    uint q[4];
    float d;
    half_words_at(row + g * 18u, d, q);
    [[unroll]] for (uint j = 0u; j < 4u; j++) {
        [[unroll]] for (uint i = 0u; i < 4u; i++) {
            uint n = q[j] >> (8u * i);
            v[4u * j + i] = (float(n & 15u) - 8.0) * d;
            v[4u * j + i + 16u] = (float((n >> 4u) & 15u) - 8.0) * d;
        }
    }
}
