// Reductions over a workgroup of one or more subgroups, whatever the subgroup size.
// Specialization constant 0 is the workgroup size, 1 says that the workgroup is a single subgroup: then no
// shared memory and no barrier is left after specialization, which is what software devices need.
// Every invocation of the workgroup must call these, in uniform control flow.
#ifndef REDUCE_GLSL
#define REDUCE_GLSL

#extension GL_KHR_shader_subgroup_basic : require
#extension GL_KHR_shader_subgroup_arithmetic : require

layout(local_size_x_id = 0, local_size_y = 1, local_size_z = 1) in;
layout(constant_id = 1) const uint ONE_SUBGROUP = 0u;

#define LANE gl_LocalInvocationID.x
#define LANES gl_WorkGroupSize.x

shared float reduce_f[64];
shared uint reduce_u[64];

float wg_sum(float v) {
    v = subgroupAdd(v);
    if (ONE_SUBGROUP == 0u) {
        if (subgroupElect()) reduce_f[gl_SubgroupID] = v;
        barrier();
        v = 0.0;
        for (uint i = 0u; i < gl_NumSubgroups; i++) v += reduce_f[i];
        barrier();
    }
    return v;
}

float wg_max(float v) {
    v = subgroupMax(v);
    if (ONE_SUBGROUP == 0u) {
        if (subgroupElect()) reduce_f[gl_SubgroupID] = v;
        barrier();
        v = reduce_f[0];
        for (uint i = 1u; i < gl_NumSubgroups; i++) v = max(v, reduce_f[i]);
        barrier();
    }
    return v;
}

uint wg_min(uint v) {
    v = subgroupMin(v);
    if (ONE_SUBGROUP == 0u) {
        if (subgroupElect()) reduce_u[gl_SubgroupID] = v;
        barrier();
        v = reduce_u[0];
        for (uint i = 1u; i < gl_NumSubgroups; i++) v = min(v, reduce_u[i]);
        barrier();
    }
    return v;
}

#endif
