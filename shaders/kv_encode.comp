#version 450
// Pages of the hot KV pool re-encoded into pages of the cold pool, for the keys or the values of a layer. A page is
// so many blocks of 32 elements, one after the other; an invocation takes two, whose scales share a word.
//
// The codes are the reference's (weights.md 3.2) bit for bit on every device. So nothing is left to a device that
// Vulkan leaves to it: how it divides, rounds to halves, and whether it keeps subnormals. Floats are taken
// apart into integers for that, and the only float operations are exact or correctly rounded everywhere.
#extension GL_GOOGLE_include_directive : require

layout(push_constant) uniform Push {
    uint off0, off1, off2;
    uint hot_pages, cold_pages; // in the pools
    uint blocks;                // a page, even
} p;

layout(local_size_x_id = 0, local_size_y = 1, local_size_z = 1) in;
layout(constant_id = 1) const uint F16 = 0u; // 1: hot pages hold halves, two a word, otherwise floats
layout(constant_id = 2) const uint Q4 = 0u;  // 1: cold pages are Q4_0, otherwise Q8_0
#include "step.glsl"
layout(set = 0, binding = 1) readonly buffer HotBuffer { uint hot[]; };
layout(set = 0, binding = 2) writeonly buffer ColdBuffer { uint cold[]; };

const uint SIGN = 0x80000000u, INFINITE = 0x7f800000u, LARGEST = 0x477fe000u; // 65504, the largest half

// The float32 bits of element i from word `from` on, limited to what halves hold.
uint element(uint from, uint i) {
    if (F16 == 0u) {
        uint b = hot[from + i], a = b & ~SIGN;
        return a > LARGEST && a < INFINITE ? (b & SIGN) | LARGEST : b;
    }
    uint h = hot[from + i / 2u] >> (16u * (i & 1u)), a = h & 0x7fffu;
    uint b = a < 0x0400u ? floatBitsToUint(float(a) * 5.9604644775390625e-8) : (a << 13u) + (a < 0x7c00u ? 0x38000000u : 0x70000000u);
    return b | (h & 0x8000u) << 16u;
}

// Positive floats as bits: a / 127, rounded to nearest. What is near the subnormals gives zero.
uint over127(uint a) {
    uint e = a >> 23u, m = (a & 0x7fffffu) | 0x800000u;
    if (e < 8u) return 0u;
    uint up = m >= 0xfe0000u ? 1u : 0u; // the quotient of (m << 7) would have 25 bits
    uint n = m << (7u - up), q = n / 127u;
    q += 2u * (n - 127u * q) > 127u ? 1u : 0u;
    return ((e - 7u + up) << 23u) + (q - 0x800000u);
}

// Rounded to a half, nearest with ties to even (as F32ToF16 of gguf/quant), for a up to 65504.
uint half_of(uint a) {
    if (a >= 0x38800000u) {
        a -= 0x38000000u;
        return (a + 0xfffu + (a >> 13u & 1u)) >> 13u;
    }
    if (a < 0x33000000u) return 0u;
    uint sh = 126u - (a >> 23u), m = (a & 0x7fffffu) | 0x800000u;
    return (m + (1u << (sh - 1u)) - 1u + (m >> sh & 1u)) >> sh;
}

// 1 / a, rounded to nearest, for a from 2^-26 to 2^26.
float inverse_of(uint a) {
    uint e = a >> 23u, m = (a & 0x7fffffu) | 0x800000u;
    // The quotient 2^47 / m has 24 bits. The device's may be off by a few; what remains of 2^47 (which is 0 in 32
    // bits) says by how many.
    uint q = uint(140737488355328.0 / float(m));
    uint rest = 0u - m * q;
    q += (2u * rest + 17u * m) / (2u * m) - 8u;
    return float(q) * uintBitsToFloat((230u - e) << 23u);
}

// Encodes the block whose elements begin at word `from` and returns its scale.
uint encode(uint from, uint to) {
    uint top = 0u, extreme = 0u; // the largest magnitude, the first element that has it
    for (uint i = 0u; i < 32u; i++) {
        uint b = element(from, i), a = b & ~SIGN;
        if (a > top) {
            top = a;
            extreme = b;
        }
    }
    bool finite = top < INFINITE;
    // Q4_0 puts the extreme on code 0, which stands for -8: the scale has the other sign.
    uint size = Q4 == 0u ? over127(top) : top < 0x02000000u ? 0u : top - 0x01800000u;
    uint scale = half_of(finite ? size : 0u);
    bool zero = scale == 0u;
    float inv = zero ? 0.0 : inverse_of(size);
    if (Q4 != 0u && (extreme & SIGN) == 0u) {
        scale |= 0x8000u;
        inv = -inv;
    }
    for (uint w = 0u; w < (Q4 != 0u ? 4u : 8u); w++) {
        uint word = 0u;
        for (uint i = 0u; i < (Q4 != 0u ? 8u : 4u); i++) {
            // Byte n of Q4_0 holds elements n and n + 16.
            uint b = element(from, Q4 != 0u ? 4u * w + (i >> 1u) + 16u * (i & 1u) : 4u * w + i);
            precise float v = uintBitsToFloat(zero ? 0u : b) * inv;
            if (Q4 != 0u) {
                precise float shifted = v + 8.5;
                word |= uint(clamp(shifted, 0.0, 15.0)) << (4u * i);
            } else {
                // To nearest, halves away from zero; v + 0.5 would round.
                float a = abs(v), t = floor(a);
                int n = int(t) + (a - t >= 0.5 ? 1 : 0);
                word |= (uint(v < 0.0 ? -n : n) & 0xffu) << (8u * i);
            }
        }
        cold[to + w] = word;
    }
    return finite ? scale : 0x7e00u;
}

void main() {
    uint move = gl_WorkGroupID.y, pair = gl_GlobalInvocationID.x;
    if (move >= step_moves() || 2u * pair >= p.blocks) return;
    uint from = move_hot(move), to = move_cold(move);
    if (from >= p.hot_pages || to >= p.cold_pages) return;
    uint block_words = F16 != 0u ? 16u : 32u, code_words = Q4 != 0u ? 4u : 8u;
    from = p.off1 + (from * p.blocks + 2u * pair) * block_words;
    uint scales = p.off2 + to * (p.blocks / 2u) * (1u + 2u * code_words), codes = scales + p.blocks / 2u + 2u * pair * code_words;
    uint low = encode(from, codes), high = encode(from + block_words, codes + code_words);
    cold[scales + pair] = low | high << 16u;
}
