// The value of the 4-bit code in the low bits of n (weights.md 2.2): -127 -104 -83 -65, -49 -35 -22 -10,
// 1 13 25 38, 53 69 89 113, four in each constant. Selected rather than indexed: an array that is indexed by a
// variable lives in memory.
float iq4_value(uint n) {
    uint lo = (n & 4u) != 0u ? 0xf6eaddcfu : 0xbfad9881u, hi = (n & 4u) != 0u ? 0x71594535u : 0x26190d01u;
    return sbyte((n & 8u) != 0u ? hi : lo, n & 3u);
}
