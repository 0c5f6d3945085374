// The weighted sum over a token's experts, the shared one last. Kernels that form it in one dispatch and in several must get the same
// bits: they add in the order of the slots, and no compiler may fuse the multiplication with the addition in one
// of them alone. A function of its own keeps `precise` from reaching what v was computed from.
#ifndef SLOTS_GLSL
#define SLOTS_GLSL

float add_slot(float acc, float factor, float v) {
    precise float sum = acc + factor * v;
    return sum;
}

// What the shared expert's product is multiplied by, of its gate's (model-qwen35.md 5.3, step 6).
float gate_factor(float gate) { return 1.0 / (1.0 + exp(-gate)); }

#endif
