// Memory read through its address: what all lanes read is one load, and arithmetic with it scalar. An address is checked by
// nobody, and some devices read for lanes that have left: kernels form none outside their operands.
#ifndef ADDRESS_GLSL
#define ADDRESS_GLSL

#define ADDRESS uint64_t
layout(buffer_reference, std430, buffer_reference_align = 4) readonly buffer Words { uint v[]; };
layout(buffer_reference, std430, buffer_reference_align = 4) readonly buffer Floats { float v[]; };
ADDRESS address(uint low_high[2]) { return (ADDRESS(low_high[1]) << 32u) | ADDRESS(low_high[0]); }

// The lane's element of eight neighbours, for subgroups of eight. Written as eight reads by all lanes, of which each takes its
// own: compilers for processors see one load.
#define LANE_OF(TYPE, FROM) \
    TYPE v = FROM(0u); \
    [[unroll]] for (uint i = 1u; i < 8u; i++) { \
        TYPE other = FROM(i); \
        v = gl_SubgroupInvocationID == i ? other : v; \
    } \
    return v;
#define LANE_WORD(i) Words(b).v[i]
#define LANE_FLOAT(i) Floats(b).v[i]
uint lane_word(ADDRESS b) { LANE_OF(uint, LANE_WORD) }
float lane_float(ADDRESS b) { LANE_OF(float, LANE_FLOAT) }

#endif
