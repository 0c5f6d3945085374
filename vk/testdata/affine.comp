// out[i] = in[i] put rounds times through v*factor + add, for i < n.
// glslc -O --target-env=vulkan1.1 affine.comp -o affine.spv
#version 450
layout(local_size_x_id = 0) in;
layout(constant_id = 1) const uint factor = 1;
layout(push_constant) uniform Push { uint n, add, rounds; };
layout(std430, binding = 0) readonly buffer In { uint src[]; };
layout(std430, binding = 1) writeonly buffer Out { uint dst[]; };

void main() {
	uint i = gl_GlobalInvocationID.x;
	if (i >= n) return;
	uint v = src[i];
	for (uint r = 0; r < rounds; r++) v = v * factor + add;
	dst[i] = v;
}
