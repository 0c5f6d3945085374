#version 450
// What attention needs of a row's projections: RMS norm and rotation of every query and key head, and the
// row's keys and values in their places of the page pools. A workgroup per head of a row: first the query
// heads, then the key heads, then the value heads, as they lie in P apart from the gates.
#extension GL_GOOGLE_include_directive : require

layout(push_constant) uniform Push {
    uint off0, off1, off2, off3, off4, off5, off6;
    uint p_stride, q_stride; // floats from row to row
    uint heads, kv_heads;
    uint dim;  // floats a head, even
    uint rope; // of which the first so many are rotated, even
    float eps;
} p;

#include "reduce_any.glsl"
layout(constant_id = 2) const uint F16 = 0u; // 1: the pools hold halves, two a word
#include "step.glsl"
layout(set = 0, binding = 1) readonly buffer PBuffer { float proj[]; };
layout(set = 0, binding = 2) readonly buffer QNormBuffer { float q_norm[]; };
layout(set = 0, binding = 3) readonly buffer KNormBuffer { float k_norm[]; };
layout(set = 0, binding = 4) writeonly buffer QBuffer { float q[]; };
layout(set = 0, binding = 5) writeonly buffer KBuffer { uint k_words[]; };
layout(set = 0, binding = 6) writeonly buffer VBuffer { uint v_words[]; };

// Element i of the head at src, normed by its factor inv and the weights.
float normed(bool query, uint src, float inv, uint i) {
    return proj[src + i] * inv * (query ? q_norm[p.off2 + i] : k_norm[p.off3 + i]);
}

// Element i of the head, normed and rotated. Elements i and i + rope/2 are a pair (NEOX); a lane computes the
// partner again rather than wait for another lane.
float rotated(bool query, uint src, float inv, uint row, uint i) {
    if (i >= p.rope) return normed(query, src, inv, i);
    uint h = p.rope / 2u, j = i < h ? i : i - h;
    float a = normed(query, src, inv, j), b = normed(query, src, inv, j + h);
    float c = step_rope(row, 2u * j), s = step_rope(row, 2u * j + 1u);
    return i < h ? a * c - b * s : a * s + b * c;
}

void put(bool value, uint i, uint word) {
    if (value) v_words[p.off6 + i] = word;
    else k_words[p.off5 + i] = word;
}

void main() {
    uint head = gl_WorkGroupID.x, row = gl_WorkGroupID.y;
    if (row >= step_rows()) return;
    bool query = head < p.heads, value = head >= p.heads + p.kv_heads;
    // A query is followed by its gate; keys and values follow all of them without a gap.
    uint src = p.off1 + row * p.p_stride + p.dim * (query ? 2u * head : p.heads + head);

    float inv = 1.0;
    if (!value) {
        float sum = 0.0;
        for (uint i = LANE; i < p.dim; i += LANES) sum += proj[src + i] * proj[src + i];
        inv = inversesqrt(wg_sum(sum) / float(p.dim) + p.eps);
    }
    if (query) {
        uint to = p.off4 + row * p.q_stride + p.dim * head;
        for (uint i = LANE; i < p.dim; i += LANES) q[to + i] = rotated(true, src, inv, row, i);
        return;
    }
    uint kv = head - p.heads - (value ? p.kv_heads : 0u);
    uint to = (kv_token(step_seq(row), step_pos(row)) * p.kv_heads + kv) * p.dim;
    for (uint w = LANE; w < p.dim / 2u; w += LANES) {
        vec2 e;
        if (value) e = vec2(proj[src + 2u * w], proj[src + 2u * w + 1u]);
        else e = vec2(rotated(false, src, inv, row, 2u * w), rotated(false, src, inv, row, 2u * w + 1u));
        if (F16 != 0u) {
            // Overflow of the conversion gives infinity on one device and NaN on another.
            put(value, to / 2u + w, packHalf2x16(clamp(e, -65504.0, 65504.0)));
        } else {
            put(value, to + 2u * w, floatBitsToUint(e.x));
            put(value, to + 2u * w + 1u, floatBitsToUint(e.y));
        }
    }
}
