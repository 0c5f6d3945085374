void load32(uint row, uint g, out float v[32]) {
    uint w[16];
    lane_words(row + g * 64u, w);
    [[unroll]] for (uint j = 0u; j < 16u; j++) {
        vec2 h = unpackHalf2x16(w[j]);
        v[2u * j] = h.x;
        v[2u * j + 1u] = h.y;
    }
}
