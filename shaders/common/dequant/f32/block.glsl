void load32(ADDRESS row, uint g, out float v[32]) {
    ADDRESS i = (row >> 2u) + g * 32u;
    [[unroll]] for (uint j = 0u; j < 32u; j++) v[j] = uintBitsToFloat(WORD(i + j));
}
