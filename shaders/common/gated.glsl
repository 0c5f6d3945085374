// The gated norm of the delta rule's output (model-qwen35.md 5.2 step 6), for kernels that must get the same bits of it.
#ifndef GATED_GLSL
#define GATED_GLSL

// exp is only taken of what is not positive: no infinity arises, whatever x is.
float silu(float x) {
    float e = exp(-abs(x));
    return x * (x >= 0.0 ? 1.0 : e) / (1.0 + e);
}

// What a head of dim values, whose squares add up to sum, is multiplied by.
float gated_scale(float sum, uint dim, float eps) { return 1.0 / sqrt(sum / float(dim) + eps); }

// Value o of a head with its weight and gate.
float gated(float o, float scale, float weight, float z) { return o * scale * weight * silu(z); }

#endif
