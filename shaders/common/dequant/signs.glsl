#ifndef SIGNS_GLSL
#define SIGNS_GLSL
// v with its sign changed where bit x of the word is set.
float negated(float v, uint bits, uint x) {
    return uintBitsToFloat(floatBitsToUint(v) ^ ((bits << (31u - x)) & 0x80000000u));
}
// The eight signs that the low 7 bits stand for: their parity is the eighth (SGN7, weights.md 2.2).
uint signs7(uint i) { return (i & 127u) | (uint(bitCount(i & 127u) & 1) << 7u); }
#endif
