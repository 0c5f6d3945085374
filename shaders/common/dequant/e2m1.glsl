// Twice the value of the E2M1 code in the low 4 bits of n: 0 1 2 3 4 6 8 12, then their negatives.
float e2m1(uint n) {
    int m = int((0xc8643210u >> ((n & 7u) << 2u)) & 15u), minus = -m;
    return float((n & 8u) != 0u ? minus : m);
}
