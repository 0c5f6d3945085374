#version 450
// Causal attention of each row over its own sequence's pages, with an output gate: the softmax is taken
// online, a few keys at a time. A workgroup per query head of a row; its lanes share the head's dimensions.
#extension GL_GOOGLE_include_directive : require

layout(push_constant) uniform Push {
    uint off0, off1, off2, off3, off4, off5;
    uint q_stride, p_stride, y_stride; // floats from row to row
    uint heads, kv_heads;
    float scale; // of the scores
} p;

#include "reduce.glsl"
layout(constant_id = 2) const uint F16 = 0u;   // 1: the pools hold halves, two a word
layout(constant_id = 3) const uint DIM = 2u;   // floats a head, even
layout(constant_id = 4) const uint PAIRS = 1u; // pairs of dimensions a lane has, rounded up
#include "step.glsl"
layout(set = 0, binding = 1) readonly buffer QBuffer { float q[]; };
layout(set = 0, binding = 2) readonly buffer PBuffer { float proj[]; };
layout(set = 0, binding = 3) readonly buffer KBuffer { uint k_words[]; };
layout(set = 0, binding = 4) readonly buffer VBuffer { uint v_words[]; };
layout(set = 0, binding = 5) writeonly buffer YBuffer { float y[]; };

// Keys taken at once, so that their reductions do not wait for each other. It divides PAGE_TOKENS: keys that
// are taken together lie in one page.
const uint KEYS = 4u;
const float LOWEST = -3.0e38; // below any score, yet differences from it are not NaN

// A lane has pairs LANE, LANE + LANES, ... of the head; the last may not exist.
#define PAIR(i) (LANE + (i) * LANES)
#define HAS(i) (PAIRS * LANES * 2u == DIM || PAIR(i) < DIM / 2u)

// Pair w of the head at element `at` of the pools.
vec2 key(uint at, uint w) {
    if (F16 != 0u) return unpackHalf2x16(k_words[p.off3 + at / 2u + w]);
    uint i = p.off3 + at + 2u * w;
    return vec2(uintBitsToFloat(k_words[i]), uintBitsToFloat(k_words[i + 1u]));
}
vec2 value(uint at, uint w) {
    if (F16 != 0u) return unpackHalf2x16(v_words[p.off4 + at / 2u + w]);
    uint i = p.off4 + at + 2u * w;
    return vec2(uintBitsToFloat(v_words[i]), uintBitsToFloat(v_words[i + 1u]));
}

void main() {
    uint head = gl_WorkGroupID.x, row = gl_WorkGroupID.y;
    if (row >= step_rows()) return;
    uint seq = step_seq(row), keys = step_pos(row) + 1u;
    uint kv_width = p.kv_heads * DIM, kv_head = head / (p.heads / p.kv_heads) * DIM;

    vec2 qs[PAIRS], acc[PAIRS];
    uint from = p.off1 + row * p.q_stride + head * DIM;
    for (uint i = 0u; i < PAIRS; i++) {
        acc[i] = qs[i] = vec2(0.0);
        if (HAS(i)) qs[i] = vec2(q[from + 2u * PAIR(i)], q[from + 2u * PAIR(i) + 1u]) * p.scale;
    }

    float top = LOWEST, sum = 0.0; // the highest score so far, the sum of exp(score - top)
    for (uint t = 0u; t < keys; t += KEYS) {
        uint first = kv_token(seq, t), last = keys - 1u - t, at[KEYS];
        float s[KEYS];
        for (uint j = 0u; j < KEYS; j++) {
            // Keys past the end repeat the last one and get no weight.
            at[j] = (first + min(j, last)) * kv_width + kv_head;
            s[j] = 0.0;
            for (uint i = 0u; i < PAIRS; i++)
                if (HAS(i)) s[j] += dot(qs[i], key(at[j], PAIR(i)));
        }
        for (uint j = 0u; j < KEYS; j++) s[j] = wg_sum(s[j]);
        float old = top;
        for (uint j = 0u; j < KEYS; j++) top = max(top, s[j]);
        float fade = exp(old - top);
        sum *= fade;
        for (uint j = 0u; j < KEYS; j++) {
            s[j] = j <= last ? exp(s[j] - top) : 0.0;
            sum += s[j];
        }
        for (uint i = 0u; i < PAIRS; i++) {
            if (HAS(i)) {
                vec2 a = acc[i] * fade;
                for (uint j = 0u; j < KEYS; j++) a += s[j] * value(at[j], PAIR(i));
                acc[i] = a;
            }
        }
    }

    uint gate = p.off2 + row * p.p_stride + (2u * head + 1u) * DIM, to = p.off5 + row * p.y_stride + head * DIM;
    for (uint i = 0u; i < PAIRS; i++) {
        if (HAS(i)) {
            uint e = 2u * PAIR(i);
            y[to + e] = acc[i].x / (sum * (1.0 + exp(-proj[gate + e])));
            y[to + e + 1u] = acc[i].y / (sum * (1.0 + exp(-proj[gate + e + 1u])));
        }
    }
}
