#version 450
// The K largest of the logits of a row with their ids, in descending order. A workgroup per chunk of the
// vocabulary and row; with MERGE a workgroup per row over the winners of the chunks.
#extension GL_GOOGLE_include_directive : require

layout(push_constant) uniform Push {
    uint off0, off1, off2;
    uint n;          // logits of a row, or chunks
    uint chunk;      // logits a workgroup looks at, or all the chunks
    uint src_stride; // words from row to row
    uint dst_stride;
    uint k;          // winners a chunk
} p;

#include "reduce_any.glsl"
#include "step.glsl"
#include "rank.glsl"
layout(constant_id = 2) const uint MERGE = 0u;
// Logits, or with MERGE the pairs (id, logit) of the chunks' winners, p.k a chunk. Read as words: their order is
// decided on integers, where no NaN, flushed subnormal or fast-math comparison can upset it.
layout(set = 0, binding = 1) readonly buffer SourceBuffer { uint src[]; };
layout(set = 0, binding = 2) writeonly buffer WinnerBuffer { uint dst[]; }; // pairs (id, logit)

const uint NONE = 0xffffffffu;

// Winner j of chunk i, or logit i: its rank and id.
uvec2 candidate(uint base, uint i, uint j) {
    if (MERGE == 0u) return uvec2(rank(src[base + i]), i);
    uint at = base + 2u * (i * p.k + j);
    return uvec2(rank(src[at + 1u]), src[at]);
}

void main() {
    uint row = gl_WorkGroupID.y;
    if (row >= step_outs()) return;
    uint base = p.off1 + row * p.src_stride;
    uint from = gl_WorkGroupID.x * p.chunk, to = min(from + p.chunk, p.n);
    // Each lane holds the best of its own candidates that has not won yet, and looks for the next one only
    // after its best has won. Rank 0 is better than any.
    uvec2 best = uvec2(0u, NONE);
    bool stale = true;
    for (uint s = 0u; s < p.k; s++) {
        if (stale) {
            uvec2 last = best;
            best = uvec2(NONE);
            for (uint i = from + LANE; i < to; i += LANES) {
                // A chunk's winners are in order: the first that has not won is its best, which keeps this
                // short whatever k is.
                for (uint j = 0u; j < (MERGE == 0u ? 1u : p.k); j++) {
                    uvec2 c = candidate(base, i, j);
                    if (c.x > last.x || (c.x == last.x && c.y > last.y)) {
                        // Ids ascend, so that of equal ranks the first stays.
                        if (c.x < best.x) best = c;
                        break;
                    }
                }
            }
        }
        uint r = wg_min(best.x);
        uint id = wg_min(best.x == r ? best.y : NONE);
        stale = best.y == id;
        if (LANE == s % LANES) {
            uint o = p.off2 + row * p.dst_stride + 2u * (gl_WorkGroupID.x * p.k + s);
            dst[o] = id;
            // Fewer candidates than winners: the rest is (none, -infinity).
            dst[o + 1u] = r == NONE ? 0xff800000u : (r & 0x80000000u) != 0u ? r : ~r & 0x7fffffffu;
        }
    }
}
