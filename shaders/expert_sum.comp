#version 450
// Y += sum over a token's slots of weight * part, the second half of expert_down.comp where the products of the
// experts are formed apart. An invocation per output.
#extension GL_GOOGLE_include_directive : require

layout(push_constant) uniform Push {
    uint off0, off1, off2, off3, off4;
    uint n;        // outputs
    uint y_stride; // floats from token to token
    uint slots;    // experts a token
    uint experts;  // ids from here on name none and add nothing
} p;

layout(local_size_x_id = 0, local_size_y = 1, local_size_z = 1) in;
#include "step.glsl"
layout(set = 0, binding = 1) readonly buffer PartBuffer { float parts[]; };
layout(set = 0, binding = 2) readonly buffer IdBuffer { uint ids[]; };
layout(set = 0, binding = 3) readonly buffer FactorBuffer { float factor[]; };
layout(set = 0, binding = 4) buffer YBuffer { float y[]; };

#include "slots.glsl"

void main() {
    uint token = gl_WorkGroupID.y;
    if (token >= step_rows()) return;
    for (uint row = gl_GlobalInvocationID.x; row < p.n; row += gl_NumWorkGroups.x * gl_WorkGroupSize.x) {
        float acc = 0.0;
        for (uint s = 0u; s < p.slots; s++) {
            uint pair = token * p.slots + s;
            if (ids[p.off2 + pair] >= p.experts) continue;
            acc = add_slot(acc, factor[p.off3 + pair], parts[p.off1 + pair * p.n + row]);
        }
        y[p.off4 + token * p.y_stride + row] += acc;
    }
}
