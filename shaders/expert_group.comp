#version 450
// Sorts the step's pairs of a row and a slot by the expert in the slot, and cuts the pairs of each expert into
// tiles (shaders/expert_group.go has the layout). An invocation has an expert and goes over all ids, in two
// dispatches: one counts, one knows by the counts of the experts before it where its tiles go. No shared memory,
// no atomics, and the order does not depend on the device.
#extension GL_GOOGLE_include_directive : require

layout(push_constant) uniform Push {
    uint off0, off1, off2;
    uint slots;          // experts a row
    uint experts;        // ids from here on name none and share a bucket
    uint fill;           // 0: the dispatch counts
    uint at1, at2, at4;  // where the tiles of one, two and four pairs begin
} p;

layout(local_size_x_id = 0, local_size_y = 1, local_size_z = 1) in;
#include "step.glsl"
layout(set = 0, binding = 1) readonly buffer IdBuffer { uint ids[]; };
layout(set = 0, binding = 2) buffer TileBuffer { uint tiles[]; };

const uint COUNTS = 3u; // words before the counts of the experts
const uint NONE = 0xffffffffu; // a place for a pair that holds none

uint bucket(uint pair) { return min(ids[p.off1 + pair], p.experts); }

void main() {
    uint e = gl_GlobalInvocationID.x, n = step_rows() * p.slots;
    if (e > p.experts) return;
    uint counts = p.off2 + COUNTS;
    if (p.fill == 0u) {
        uint c = 0u;
        for (uint i = 0u; i < n; i++) c += bucket(i) == e ? 1u : 0u;
        tiles[counts + e] = c;
        return;
    }
    // Tiles of four hold three or four pairs; one or two pairs that are left have a tile of their size.
    uint n1 = 0u, n2 = 0u, n4 = 0u;
    for (uint f = 0u; f < e; f++) {
        uint c = tiles[counts + f], rest = c & 3u;
        n4 += (c + 1u) / 4u;
        n2 += rest == 2u ? 1u : 0u;
        n1 += rest == 1u ? 1u : 0u;
    }
    uint c = tiles[counts + e], quads = (c + 1u) / 4u, rest = c & 3u;
    uint to4 = p.off2 + p.at4 + 5u * n4, to2 = p.off2 + p.at2 + 3u * n2, to1 = p.off2 + p.at1 + 2u * n1;
    if (rest == 3u) tiles[to4 + 5u * quads - 1u] = NONE;
    uint small = rest == 2u ? to2 : to1;
    for (uint i = 0u, j = 0u; i < n && j < c; i++) {
        if (bucket(i) != e) continue;
        bool quad = j < 4u * quads;
        uint to = quad ? to4 + 5u * (j / 4u) : small, at = j & 3u;
        if (at == 0u) tiles[to] = e;
        tiles[to + 1u + at] = i;
        j++;
    }
    if (e == p.experts) {
        tiles[p.off2] = n1 + (rest == 1u ? 1u : 0u);
        tiles[p.off2 + 1u] = n2 + (rest == 2u ? 1u : 0u);
        tiles[p.off2 + 2u] = n4 + quads;
    }
}
