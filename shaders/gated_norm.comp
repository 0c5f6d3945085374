#version 450
// y = rms(o; weight) silu(z) per head and row (model-qwen35.md 5.2 step 6): one workgroup per head and row.
#extension GL_GOOGLE_include_directive : require

layout(push_constant) uniform Push {
    uint off0, off1, off2, off3, off4;
    uint o_stride, z_stride, y_stride; // floats from row to row
    uint dim;
    float eps;
} p;

#include "reduce_any.glsl"
#include "step.glsl"
layout(set = 0, binding = 1) readonly buffer OBuffer { float o[]; };
layout(set = 0, binding = 2) readonly buffer ZBuffer { float z[]; };
layout(set = 0, binding = 3) readonly buffer WeightBuffer { float weight[]; };
layout(set = 0, binding = 4) writeonly buffer YBuffer { float y[]; };

#include "gated.glsl"

void main() {
    uint row = gl_WorkGroupID.y, first = gl_WorkGroupID.x * p.dim;
    if (row >= step_rows()) return;
    uint o_at = p.off1 + row * p.o_stride + first, z_at = p.off2 + row * p.z_stride + first;
    uint y_at = p.off4 + row * p.y_stride + first;
    precise float sum = 0.0;
    for (uint i = LANE; i < p.dim; i += LANES) sum += o[o_at + i] * o[o_at + i];
    float scale = gated_scale(wg_sum(sum), p.dim, p.eps);
    for (uint i = LANE; i < p.dim; i += LANES) y[y_at + i] = gated(o[o_at + i], scale, weight[p.off3 + i], z[z_at + i]);
}
