void load32(uint row, uint g, out float v[32]) {
    uint w[16];
    lane_words(row + g * 64u, w);
    [[unroll]] for (uint j = 0u; j < 16u; j++) {
        v[2u * j] = uintBitsToFloat(w[j] << 16u);
        v[2u * j + 1u] = uintBitsToFloat(w[j] & 0xffff0000u);
    }
}
