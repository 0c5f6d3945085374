#include "signs.glsl"
// 18 bytes for 128 weights: half d, a bit for each; d where it is set and -d where not.
void load32(uint row, uint g, out float v[32]) {
    uint b = row + (g >> 2u) * 18u;
    float d = half_value(half_at(b));
    uint minus = ~word_at(b + 2u + 4u * (g & 3u));
    [[unroll]] for (uint e = 0u; e < 32u; e++) v[e] = negated(d, minus, e);
}
