// Order of floats as unsigned numbers, for selections that must name an index whatever the values are.
#ifndef RANK_GLSL
#define RANK_GLSL

// Place of a float's bits in descending order, as an unsigned number: NaN ranks with -infinity, -0 with 0.
// The map is its own inverse.
uint rank(uint b) {
    if ((b & 0x7fffffffu) > 0x7f800000u) b = 0xff800000u;
    if (b == 0x80000000u) b = 0u;
    return (b & 0x80000000u) != 0u ? b : ~b & 0x7fffffffu;
}

#endif
