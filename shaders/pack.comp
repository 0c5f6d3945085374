#version 450
// Inputs of products in whole numbers (packed.glsl): of each 256 of a token's inputs, codes of at most +-LARGEST, their
// sums and their unit. An invocation takes 256.
#extension GL_GOOGLE_include_directive : require

layout(push_constant) uniform Push {
    uint off0, off1, off2;
    uint count;    // which of the step's counts limits the tokens
    uint blocks;   // of 256 inputs a token
    uint x_stride; // floats from token to token
    uint y_stride; // words from token to token
} p;

layout(local_size_x_id = 0, local_size_y = 1, local_size_z = 1) in;
#include "step.glsl"
layout(set = 0, binding = 1) readonly buffer XBuffer { float x[]; };
layout(set = 0, binding = 2) writeonly buffer YBuffer { uint y[]; };

const float LARGEST = 511.0;
const uint WORDS = 152u; // 128 of codes, 8 sums of the first halves of groups, 8 of the second, the unit 8 times

// The largest of what numbers are without their sign, as words are ordered, and so a NaN if there is one.
uint largest(uint from) {
    uint most = 0u;
    for (uint i = 0u; i < 256u; i++) most = max(most, floatBitsToUint(x[from + i]) & 0x7fffffffu);
    return most;
}

void main() {
    uint block = gl_GlobalInvocationID.x, token = gl_WorkGroupID.y;
    if (block >= p.blocks || token >= step_count(p.count)) return;
    uint from = p.off1 + token * p.x_stride + 256u * block, to = p.off2 + token * p.y_stride + WORDS * block;
    float most = uintBitsToFloat(largest(from)), unit = most / LARGEST, per_unit = most > 1e-30 ? LARGEST / most : 0.0;
    for (uint half_group = 0u; half_group < 16u; half_group++) {
        int sum = 0;
        for (uint n = 0u; n < 4u; n++) {
            uint at = from + 16u * half_group + 4u * n;
            ivec4 q = ivec4(roundEven(clamp(vec4(x[at], x[at + 1u], x[at + 2u], x[at + 3u]) * per_unit, -LARGEST, LARGEST)));
            sum += q.x + q.y + q.z + q.w;
            uint lane = 4u * (half_group & 1u) + n, word = to + 16u * (half_group >> 1u) + lane;
            y[word] = uint(q.z + (q.x << 16));
            y[word + 8u] = uint(q.w + (q.y << 16));
        }
        y[to + 128u + 8u * (half_group & 1u) + (half_group >> 1u)] = floatBitsToUint(unit * float(sum));
    }
    // Products are 2^16 times too large. A number that is none makes all of them so.
    for (uint i = 0u; i < 8u; i++) y[to + 144u + i] = floatBitsToUint(unit / 65536.0);
}
