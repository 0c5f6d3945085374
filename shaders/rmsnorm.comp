#version 450
// Y = X / sqrt(mean(X^2) + eps) * W for each row; with gather, output row i takes the i-th row whose logits
// are wanted. A workgroup per row.
#extension GL_GOOGLE_include_directive : require

layout(push_constant) uniform Push {
    uint off0, off1, off2, off3;
    uint count;  // which of the step's counts limits the rows
    uint gather; // 1: output row i takes input row step_out(i)
    uint width;  // floats a row
    uint x_stride, y_stride; // floats from row to row
    float eps;
} p;

#include "reduce_any.glsl"
#include "step.glsl"
layout(set = 0, binding = 1) readonly buffer XBuffer { float x[]; };
layout(set = 0, binding = 2) readonly buffer WeightBuffer { float weight[]; };
layout(set = 0, binding = 3) writeonly buffer YBuffer { float y[]; };
#include "norm.glsl"

void main() {
    uint row = gl_WorkGroupID.x;
    if (row >= step_count(p.count)) return;
    uint from = p.off1 + (p.gather != 0u ? step_out(row) : row) * p.x_stride;
    uint to = p.off3 + row * p.y_stride;
    float inv = inverse_rms(from, p.width, p.eps);
    // X and Y may be the same rows: a lane reads an element before it writes it, and nobody else's.
    for (uint i = LANE; i < p.width; i += LANES) y[to + i] = x[from + i] * inv * weight[p.off2 + i];
}
