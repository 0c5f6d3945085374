// 24 bytes for 32 weights: halves d and m, a word with the fifth bit of each, 16 bytes of nibbles in the
// order of Q4_0; n*d + m.
void load32(uint row, uint g, out float v[32]) {
    uint b = (row + g * 24u) >> 2u;
    vec2 dm = unpackHalf2x16(WORD(b));
    uint h = WORD(b + 1u);
    [[unroll]] for (uint j = 0u; j < 4u; j++) {
        uint q = WORD(b + 2u + j);
        [[unroll]] for (uint i = 0u; i < 4u; i++) {
            uint e = 4u * j + i, n = q >> (8u * i);
            v[e] = float((n & 15u) | (((h >> e) & 1u) << 4u)) * dm.x + dm.y;
            v[e + 16u] = float(((n >> 4u) & 15u) | ((h >> (e + 12u)) & 16u)) * dm.x + dm.y;
        }
    }
}
