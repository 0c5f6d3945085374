// 20 bytes for 32 weights: halves d and m, 16 bytes of nibbles in the order of Q4_0; n*d + m.
void load32(uint row, uint g, out float v[32]) {
    uint b = (row + g * 20u) >> 2u;
    vec2 dm = unpackHalf2x16(WORD(b));
    [[unroll]] for (uint j = 0u; j < 4u; j++) {
        uint q = WORD(b + 1u + j);
        [[unroll]] for (uint i = 0u; i < 4u; i++) {
            v[4u * j + i] = float((q >> (8u * i)) & 15u) * dm.x + dm.y;
            v[4u * j + i + 16u] = float((q >> (8u * i + 4u)) & 15u) * dm.x + dm.y;
        }
    }
}
