void load32(uint row, uint g, out float v[32]) {
    uint i = (row >> 2u) + g * 16u;
    [[unroll]] for (uint j = 0u; j < 16u; j++) {
        uint w = WORD(i + j);
        v[2u * j] = uintBitsToFloat(w << 16u);
        v[2u * j + 1u] = uintBitsToFloat(w & 0xffff0000u);
    }
}
