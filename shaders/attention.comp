#version 450
// Causal attention of each row over its own sequence's pages, with an output gate: the softmax is taken
// online, a few keys at a time. A workgroup per query head of a row; its lanes share the head's dimensions.
#extension GL_GOOGLE_include_directive : require

layout(push_constant) uniform Push {
    uint off0, off1, off2, off3, off4, off5, off6;
    uint q_stride, p_stride, y_stride; // floats from row to row
    uint heads, kv_heads;
    uint key_first, key_count; // the positions taken here, key_first a multiple of KEYS
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
// Of a long context several dispatches take a part each. Between them Y holds the sums of the values and
// Carry the highest score and the sum of the weights of each row and head.
layout(set = 0, binding = 5) buffer YBuffer { float y[]; };
layout(set = 0, binding = 6) buffer CarryBuffer { float carry[]; };

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
    if (p.key_first >= keys) return;
    uint end = min(keys, p.key_first + p.key_count);
    uint kv_width = p.kv_heads * DIM, kv_head = head / (p.heads / p.kv_heads) * DIM;

    vec2 qs[PAIRS], acc[PAIRS];
    uint from = p.off1 + row * p.q_stride + head * DIM, to = p.off5 + row * p.y_stride + head * DIM;
    for (uint i = 0u; i < PAIRS; i++) {
        acc[i] = qs[i] = vec2(0.0);
        if (HAS(i)) {
            uint e = 2u * PAIR(i);
            qs[i] = vec2(q[from + e], q[from + e + 1u]) * p.scale;
            if (p.key_first > 0u) acc[i] = vec2(y[to + e], y[to + e + 1u]);
        }
    }

    float top = LOWEST, sum = 0.0; // the highest score so far, the sum of exp(score - top)
    uint carry_at = p.off6 + 2u * (row * p.heads + head);
    if (p.key_first > 0u) {
        top = carry[carry_at];
        sum = carry[carry_at + 1u];
    }
    for (uint t = p.key_first; t < end; t += KEYS) {
        uint first = kv_token(seq, t), last = end - 1u - t, at[KEYS];
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

    uint gate = p.off2 + row * p.p_stride + (2u * head + 1u) * DIM;
    bool done = end == keys;
    for (uint i = 0u; i < PAIRS; i++) {
        if (HAS(i)) {
            uint e = 2u * PAIR(i);
            vec2 a = acc[i];
            if (done) a /= sum * (1.0 + exp(-vec2(proj[gate + e], proj[gate + e + 1u])));
            y[to + e] = a.x;
            y[to + e + 1u] = a.y;
        }
    }
    if (!done && LANE == 0u) {
        carry[carry_at] = top;
        carry[carry_at + 1u] = sum;
    }
}
