// The reductions of reduce.glsl for kernels that every device needs, whatever its driver gets wrong: where specialization
// constant 1 is 2, they go through shared memory alone, without any subgroup operation. Kernels of the lanes scheme have
// no such form; devices that cannot reduce run the row scheme in their place.
#ifndef REDUCE_ANY_GLSL
#define REDUCE_ANY_GLSL

#define wg_sum subgroups_sum
#define wg_max subgroups_max
#define wg_min subgroups_min
#include "reduce.glsl"
#undef wg_sum
#undef wg_max
#undef wg_min

#define NO_SUBGROUPS (ONE_SUBGROUP == 2u)

shared uint reduce_any[256]; // workgroups of these kernels are as large as a subgroup: 128 lanes at most

// A step of a reduction: the first n lanes take what the next n have. Written out instead of in a loop, as some drivers count
// the turns of all loops.
#define HALVE(n, OP) if (LANES > n) { \
        if (LANE < n && LANE + n < LANES) reduce_any[LANE] = OP(reduce_any[LANE], reduce_any[LANE + n]); \
        barrier(); \
    }
#define REDUCE(v, OP) \
    reduce_any[LANE] = v; \
    barrier(); \
    HALVE(128u, OP) HALVE(64u, OP) HALVE(32u, OP) HALVE(16u, OP) HALVE(8u, OP) HALVE(4u, OP) HALVE(2u, OP) HALVE(1u, OP) \
    v = reduce_any[0]; \
    barrier();

#define SUM_OF(a, b) floatBitsToUint(uintBitsToFloat(a) + uintBitsToFloat(b))
#define MAX_OF(a, b) floatBitsToUint(max(uintBitsToFloat(a), uintBitsToFloat(b)))
#define MIN_OF(a, b) min(a, b)

float wg_sum(float v) {
    if (!NO_SUBGROUPS) return subgroups_sum(v);
    uint u = floatBitsToUint(v);
    REDUCE(u, SUM_OF)
    return uintBitsToFloat(u);
}

float wg_max(float v) {
    if (!NO_SUBGROUPS) return subgroups_max(v);
    uint u = floatBitsToUint(v);
    REDUCE(u, MAX_OF)
    return uintBitsToFloat(u);
}

uint wg_min(uint v) {
    if (!NO_SUBGROUPS) return subgroups_min(v);
    REDUCE(v, MIN_OF)
    return v;
}

#endif
