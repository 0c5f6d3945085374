// RMSNorm (model-qwen35.md 5, rms). Kernels of the fused scheme form it of their input as they read it, and must get the
// bits that rmsnorm.comp stores: both take the factor of a row from here, with the same lanes.
// The kernel includes reduce.glsl and declares its input x[] before including.
#ifndef NORM_GLSL
#define NORM_GLSL

// What the row of width floats from x[from] on is multiplied by.
float inverse_rms(uint from, uint width, float eps) {
    precise float sum = 0.0;
    for (uint i = LANE; i < width; i += LANES) sum += x[from + i] * x[from + i];
    return inversesqrt(wg_sum(sum) / float(width) + eps);
}

#endif
