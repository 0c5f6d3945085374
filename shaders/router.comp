#version 450
// Softmax over the experts of a token and the K most probable ones with their weights. A workgroup per token.
#extension GL_GOOGLE_include_directive : require

layout(push_constant) uniform Push {
    uint off0, off1, off2, off3;
    uint experts;
    uint stride;  // floats from token to token
    uint k;       // experts chosen
    float scale;  // of the weights
} p;

#include "reduce_any.glsl"
#include "step.glsl"
#include "rank.glsl"
// Logits are read as words: their order is decided on integers, where no NaN, flushed subnormal or fast-math
// comparison can upset it.
layout(set = 0, binding = 1) readonly buffer LogitBuffer { uint logits[]; };
layout(set = 0, binding = 2) writeonly buffer IdBuffer { uint ids[]; };
layout(set = 0, binding = 3) buffer WeightsBuffer { float weights[]; };

const uint NONE = 0xffffffffu;

// The logit of a rank, infinities made finite so that differences of two are numbers.
float logit(uint r) {
    float v = uintBitsToFloat((r & 0x80000000u) != 0u ? r : ~r & 0x7fffffffu);
    return clamp(v, -3.40282346e38, 3.40282346e38);
}

void main() {
    uint row = gl_WorkGroupID.x;
    if (row >= step_rows()) return;
    uint base = p.off1 + row * p.stride;
    float top = 0.0, total = 0.0, chosen = 0.0;
    // Each lane holds the best of its own experts that is not chosen yet, and looks for the next one only
    // after its best was chosen. Rank 0 is better than any.
    uint best = 0u, at = NONE;
    bool stale = true;
    for (uint s = 0u; s < p.k; s++) {
        if (stale) {
            uint last = best, last_at = at;
            best = NONE;
            at = NONE;
            for (uint i = LANE; i < p.experts; i += LANES) {
                uint r = rank(logits[base + i]);
                bool after = r > last || (r == last && i > last_at);
                if (after && r < best) {
                    best = r;
                    at = i;
                }
            }
        }
        uint r = wg_min(best);
        uint e = wg_min(best == r ? at : NONE);
        stale = at == e;
        if (s == 0u) {
            top = logit(r);
            for (uint i = LANE; i < p.experts; i += LANES) total += exp(max(logit(rank(logits[base + i])) - top, -200.0));
            total = wg_sum(total);
        }
        float w = exp(max(logit(r) - top, -200.0)) / total;
        chosen += w;
        if (LANE == s % LANES) {
            ids[p.off2 + row * p.k + s] = e;
            weights[p.off3 + row * p.k + s] = w;
        }
    }
    // Every lane scales the weights it wrote itself.
    float f = p.scale / max(chosen, 6.103515625e-5);
    for (uint s = LANE; s < p.k; s += LANES) weights[p.off3 + row * p.k + s] *= f;
}
