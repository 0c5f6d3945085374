#version 450
// Causal attention of each row over its own sequence's pages, with an output gate: the softmax is taken
// online, a few keys at a time. A workgroup per query head of a row; its lanes share the head's dimensions.
// With COLD a sequence's pages may lie in a second pool, in blocks of 32 elements (shaders/kvformat.go).
#extension GL_GOOGLE_include_directive : require

layout(push_constant) uniform Push {
    uint off0, off1, off2, off3, off4, off5;
#ifdef COLD
    uint off6, off7;
#endif
    uint q_stride, p_stride, y_stride; // floats from row to row
    uint heads, kv_heads;
    uint key_first, key_count; // the positions taken here, key_first a multiple of KEYS
    float scale; // of the scores
    uint carry;  // floats from the begin of Y to Carry
} p;

#include "reduce_any.glsl"
layout(constant_id = 2) const uint F16 = 0u;   // 1: the pools hold halves, two a word
layout(constant_id = 3) const uint DIM = 2u;   // floats a head, even
layout(constant_id = 4) const uint PAIRS = 1u; // pairs of dimensions a lane has, rounded up
#include "step.glsl"
layout(set = 0, binding = 1) readonly buffer QBuffer { float q[]; };
layout(set = 0, binding = 2) readonly buffer PBuffer { float proj[]; };
layout(set = 0, binding = 3) readonly buffer KBuffer { uint k_words[]; };
layout(set = 0, binding = 4) readonly buffer VBuffer { uint v_words[]; };
// Of a long context several dispatches take a part each. Between them Y holds the sums of the values and
// Carry, in the same binding, the highest score and the sum of the weights of each row and head.
layout(set = 0, binding = 5) buffer YBuffer { float y[]; };

// Keys taken at once, so that their reductions do not wait for each other. It divides PAGE_TOKENS: keys that
// are taken together lie in one page.
const uint KEYS = 4u;
const float LOWEST = -3.0e38; // below any score, yet differences from it are not NaN

// A lane has pairs LANE, LANE + LANES, ... of the head; the last may not exist.
#define PAIR(i) (LANE + (i) * LANES)
#define HAS(i) (PAIRS * LANES * 2u == DIM || PAIR(i) < DIM / 2u)

#define KV_WIDTH (p.kv_heads * DIM) // elements of a token

// Elements e and e + 1 of the pools, e even.
vec2 key(uint e) {
    if (F16 != 0u) return unpackHalf2x16(k_words[p.off3 + e / 2u]);
    uint i = p.off3 + e;
    return vec2(uintBitsToFloat(k_words[i]), uintBitsToFloat(k_words[i + 1u]));
}
vec2 value(uint e) {
    if (F16 != 0u) return unpackHalf2x16(v_words[p.off4 + e / 2u]);
    uint i = p.off4 + e;
    return vec2(uintBitsToFloat(v_words[i]), uintBitsToFloat(v_words[i + 1u]));
}

#ifdef COLD
layout(constant_id = 5) const uint Q4 = 0u; // 1: the cold pools hold Q4_0, otherwise Q8_0
layout(set = 0, binding = 6) readonly buffer ColdKBuffer { uint cold_k_words[]; };
layout(set = 0, binding = 7) readonly buffer ColdVBuffer { uint cold_v_words[]; };

// Words of a page's scales, and of the whole page.
#define SCALE_WORDS (PAGE_TOKENS / 64u * KV_WIDTH)
#define COLD_WORDS (SCALE_WORDS * (Q4 != 0u ? 9u : 17u))

// Elements e and e + 1, e even, of the page that begins at a word of WORDS.
#define COLD_PAIR(WORDS) { \
        uint block = e / 32u, codes = page + SCALE_WORDS, sh = (e & 2u) * 8u; \
        vec2 both = unpackHalf2x16(WORDS[page + block / 2u]); \
        float d = (block & 1u) != 0u ? both.y : both.x; \
        if (Q4 != 0u) { \
            uint c = WORDS[codes + block * 4u + (e / 4u & 3u)] >> (sh + (e & 16u) / 4u); \
            return (vec2(float(c & 15u), float((c >> 8u) & 15u)) - 8.0) * d; \
        } \
        int c = int(WORDS[codes + e / 4u] >> sh); \
        return vec2(float(bitfieldExtract(c, 0, 8)), float(bitfieldExtract(c, 8, 8))) * d; \
    }
vec2 cold_key(uint page, uint e) COLD_PAIR(cold_k_words)
vec2 cold_value(uint page, uint e) COLD_PAIR(cold_v_words)
#define COLD_KEY(e) cold_key(cold_k, e)
#define COLD_VALUE(e) cold_value(cold_v, e)
#endif

// The scores of the keys from index `first` of what KEY reads on, and the sums of the values VALUE that they
// weigh. Keys past the end repeat the last one and get no weight.
#define SCORES(first, KEY) \
    for (uint j = 0u; j < KEYS; j++) { \
        at[j] = ((first) + min(j, last)) * KV_WIDTH + kv_head; \
        s[j] = 0.0; \
        for (uint i = 0u; i < PAIRS; i++) \
            if (HAS(i)) s[j] += dot(qs[i], KEY(at[j] + 2u * PAIR(i))); \
    }
#define SUMS(VALUE) \
    for (uint i = 0u; i < PAIRS; i++) { \
        if (HAS(i)) { \
            vec2 a = acc[i] * fade; \
            for (uint j = 0u; j < KEYS; j++) a += s[j] * VALUE(at[j] + 2u * PAIR(i)); \
            acc[i] = a; \
        } \
    }

void main() {
    uint head = gl_WorkGroupID.x, row = gl_WorkGroupID.y;
    if (row >= step_rows()) return;
    uint seq = step_seq(row), keys = step_pos(row) + 1u;
    if (p.key_first >= keys) return;
    uint end = min(keys, p.key_first + p.key_count);
    uint kv_head = head / (p.heads / p.kv_heads) * DIM;

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
    uint carry_at = p.off5 + p.carry + 2u * (row * p.heads + head);
    if (p.key_first > 0u) {
        top = y[carry_at];
        sum = y[carry_at + 1u];
    }
    for (uint t = p.key_first; t < end; t += KEYS) {
        uint last = end - 1u - t, at[KEYS];
        float s[KEYS];
#ifdef COLD
        uint page = step_page(seq, t / PAGE_TOKENS);
        bool cold = (page & PAGE_COLD) != 0u;
        uint cold_k = p.off6 + (page & ~PAGE_COLD) * COLD_WORDS, cold_v = cold_k - p.off6 + p.off7;
        if (cold) SCORES(t % PAGE_TOKENS, COLD_KEY) else
#endif
        SCORES(kv_token(seq, t), key)
        for (uint j = 0u; j < KEYS; j++) s[j] = wg_sum(s[j]);
        float old = top;
        for (uint j = 0u; j < KEYS; j++) top = max(top, s[j]);
        float fade = exp(old - top);
        sum *= fade;
        for (uint j = 0u; j < KEYS; j++) {
            s[j] = j <= last ? exp(s[j] - top) : 0.0;
            sum += s[j];
        }
#ifdef COLD
        if (cold) SUMS(COLD_VALUE) else
#endif
        SUMS(value)
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
        y[carry_at] = top;
        y[carry_at + 1u] = sum;
    }
}
