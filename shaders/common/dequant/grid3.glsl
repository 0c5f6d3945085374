#include "signs.glsl"
// The four 3-bit levels of a point, one in each byte.
uint levels3(uint code) {
    uint l = (code | (code << 10u)) & 0x003f003fu;
    return (l | (l << 5u)) & 0x07070707u;
}
