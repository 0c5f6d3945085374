// 54 bytes for 256 weights, five base-3 digits a byte as the fraction byte/256: 32 bytes for elements 0..159,
// digit p of byte i being element 32p + i; 16 bytes likewise for the next 80; 4 bytes with four digits each for
// the last 16; half d. (digit-1)*d.
// Digits of a word's four bytes, given the power of 3 that brings them to the front.
uint digits3(uint w, uint power) {
    uint even = (((w & 0x00ff00ffu) * power) & 0x00ff00ffu) * 3u;
    uint odd = ((((w >> 8u) & 0x00ff00ffu) * power) & 0x00ff00ffu) * 3u;
    return ((even >> 8u) & 0x00030003u) | (odd & 0x03000300u);
}
uint power3(uint p) { // p at most 4
    uint small = (0x1b090301u >> (8u * (p & 3u))) & 0xffu;
    return p < 4u ? small : 81u;
}
void load32(uint row, uint g, out float v[32]) {
    uint b = row + (g >> 3u) * 54u, s = g & 7u, lo[4], hi[4];
    float d = half_value(half_at(b + 52u));
    // Groups 0..4 take digit s of 32 bytes; 5 and 6 two digits of 16 bytes; 7 the last digit of these and the
    // four of the last 4 bytes.
    words_at(b + (s < 5u ? 0u : 32u), lo);
    words_at(b + (s < 5u ? 16u : 32u), hi);
    uint last = word_at(b + 48u), pair = 2u * (s - 5u), next = pair + 1u;
    uint p0 = power3(s < 5u ? s : pair), p1 = power3(s < 5u ? s : next);
    [[unroll]] for (uint j = 0u; j < 8u; j++) {
        bool tail = j > 3u && s == 7u;
        uint second = hi[j & 3u], p2 = power3(j & 3u);
        second = tail ? last : second;
        p2 = tail ? p2 : p1;
        uint n = j < 4u ? digits3(lo[j & 3u], p0) : digits3(second, p2);
        [[unroll]] for (uint i = 0u; i < 4u; i++) v[4u * j + i] = (ubyte(n, i) - 1.0) * d;
    }
}
