void load32(uint row, uint g, out float v[32]) {
    uint i = (row >> 2u) + g * 16u;
    [[unroll]] for (uint j = 0u; j < 16u; j++) {
        vec2 h = unpackHalf2x16(WORD(i + j));
        v[2u * j] = h.x;
        v[2u * j + 1u] = h.y;
    }
}
