// 18 bytes for 64 weights: half d, a pair of bits for each; (n-1)*d.
void load32(uint row, uint g, out float v[32]) {
    uint b = row + (g >> 1u) * 18u, q[2];
    float d = half_value(half_at(b));
    words_at(b + 2u + 8u * (g & 1u), q);
    [[unroll]] for (uint e = 0u; e < 32u; e++) v[e] = (float((q[e >> 4u] >> (2u * (e & 15u))) & 3u) - 1.0) * d;
}
