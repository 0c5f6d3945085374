void load32(ADDRESS row, uint g, out float v[32]) {
#ifdef SPREAD
    ADDRESS i = (row >> 2u) + g * 32u;
    [[unroll]] for (uint j = 0u; j < 32u; j++) v[j] = uintBitsToFloat(WORD(i + j));
#else
    uint w[16];
    [[unroll]] for (uint half_ = 0u; half_ < 2u; half_++) {
        lane_words(row + g * 128u + half_ * 64u, w);
        [[unroll]] for (uint j = 0u; j < 16u; j++) v[16u * half_ + j] = uintBitsToFloat(w[j]);
    }
#endif
}
