// out[4i..4i+3] = the words of texel i of in, for i < n; texels past the end are zeros.
// glslc -O --target-env=vulkan1.1 texels.comp -o texels.spv
#version 450
layout(local_size_x_id = 0) in;
layout(push_constant) uniform Push { uint n; };
layout(binding = 0) uniform usamplerBuffer src;
layout(std430, binding = 1) writeonly buffer Out { uvec4 dst[]; };

void main() {
	uint i = gl_GlobalInvocationID.x;
	if (i < n) dst[i] = texelFetch(src, int(i));
}
