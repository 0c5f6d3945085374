#version 450
// Y[row] = the row of the embedding table that belongs to the row's token. One window of the table is bound:
// rows of tokens outside it are left to the other windows' dispatches. A lane per group of 32 weights.
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
#include "extra.glsl"

layout(push_constant) uniform Push {
    uint off0, off1, off2;
    EXTRA_OFFSETS
    uint first, n;  // the window: its first token, its tokens
    uint table;     // tokens in the whole table
    uint k;         // weights a row, a multiple of 32
    uint row_bytes; // bytes a row
    uint y_stride;  // floats from row to row
} p;

layout(local_size_x_id = 0, local_size_y = 1, local_size_z = 1) in;
#include "step.glsl"
#define WEIGHT_BINDING 1
#include "weights.glsl"
layout(set = 0, binding = 2) writeonly buffer YBuffer { float y[]; };

void main() {
    uint row = gl_WorkGroupID.y;
    if (row >= step_rows()) return;
    uint token = step_token(row);
    bool here = token - p.first < p.n; // the difference wraps for tokens before the window
    // A token beyond the table is in no window; each of them writes its zeros.
    if (!here && token < p.table) return;
    uint base = p.off1 * 4u + (token - p.first) * p.row_bytes, to = p.off2 + row * p.y_stride;
    for (uint g = gl_GlobalInvocationID.x; g < p.k / 32u; g += gl_NumWorkGroups.x * gl_WorkGroupSize.x) {
        if (here) {
            float w[32];
            load32(base, g, w);
            for (uint j = 0u; j < 32u; j++) y[to + g * 32u + j] = scaled(w[j], 0u);
        } else {
            for (uint j = 0u; j < 32u; j++) y[to + g * 32u + j] = 0.0;
        }
    }
}
