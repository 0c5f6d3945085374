// 84 bytes for 256 weights: 16 bytes with a scale (low nibble) and a minimum for each 16 weights, 64 bytes of
// bit pairs, halves d and dmin; (d*sc)*q - dmin*m.
void load32(uint row, uint g, out float v[32]) {
    uint b = row + (g >> 3u) * 84u, s = g & 7u;
    vec2 dm = unpackHalf2x16(WORD((b + 80u) >> 2u));
    uint sm = half_at(b + 2u * s), q0 = (b + 16u + 32u * (s >> 2u)) >> 2u, sh = 2u * (s & 3u);
    vec2 d = dm.x * vec2(sm & 15u, (sm >> 8u) & 15u), m = dm.y * vec2((sm >> 4u) & 15u, sm >> 12u);
    [[unroll]] for (uint j = 0u; j < 8u; j++) {
        uint q = WORD(q0 + j) >> sh;
        [[unroll]] for (uint i = 0u; i < 4u; i++)
            v[4u * j + i] = (j < 4u ? d.x : d.y) * float((q >> (8u * i)) & 3u) - (j < 4u ? m.x : m.y);
    }
}
