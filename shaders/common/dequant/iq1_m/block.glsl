#include "grid1.glsl"
// 56 bytes for 256 weights: 4 low bytes of grid indices for each 32 weights; a nibble for each 8 with three
// high index bits and the sign of the shift; four 16-bit words with four 3-bit scales each, for 16 weights,
// and in their top nibbles the half d; d*(2s+1) times (grid + shift).
void load32(uint row, uint g, out float v[32]) {
    uint b = row + (g >> 3u) * 56u, s = g & 7u;
    uint q = WORD((b + 4u * s) >> 2u), h = half_at(b + 32u + 2u * s);
    uint s0 = WORD((b + 48u) >> 2u), s1 = WORD((b + 52u) >> 2u);
    float d = half_value(((s0 >> 12u) & 0xfu) | ((s0 >> 24u) & 0xf0u) | ((s1 >> 4u) & 0xf00u) | ((s1 >> 16u) & 0xf000u));
    uint sc = (s < 4u ? s0 : s1) >> (8u * (s & 2u) + 6u * (s & 1u));
    float d0 = d * float(2u * (sc & 7u) + 1u), d1 = d * float(2u * ((sc >> 3u) & 7u) + 1u);
    [[unroll]] for (uint t = 0u; t < 4u; t++) {
        uint n = h >> (4u * t), code = codebook(((q >> (8u * t)) & 255u) | ((n & 7u) << 8u));
        float from = lowest((n >> 3u) & 1u);
        [[unroll]] for (uint x = 0u; x < 8u; x++)
            v[8u * t + x] = (t < 2u ? d0 : d1) * (float((code >> (2u * x)) & 3u) + from);
    }
}
