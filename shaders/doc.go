// Package shaders holds Caldera's kernels: GLSL compute shaders, the Go description of each
// (operands, push constants, grid, cost) and its twin, a few lines of plain Go that compute the same
// thing. The twin is the kernel's specification, its test and the CPU fallback; a kernel without a twin
// does not exist.
//
// One kernel is three neighbours: NAME.comp (the shader), NAME.go (the [Op]) and NAME_test.go. GLSL that
// several kernels share lives in common/. The compiled SPIR-V is committed under spirv/ and embedded, so
// building Caldera needs no shader compiler; tools/shaders rebuilds it.
//
// # Conventions every kernel follows
//
//   - All memory is storage buffers of 32-bit words, set 0, numbered in the order of [Dispatch.Bind].
//   - Binding 0 is the step buffer ([Step]): everything that changes from step to step.
//   - The first words of the push constants are the word offsets of the operands inside their bindings,
//     one per binding, filled in by the scheduler. The kernel's own parameters follow.
//   - Specialization constant 0 is the workgroup size in x.
//   - Activations are float32 matrices, one row per token, rows contiguous at a stride in floats.
//   - Recorded commands never change: grids are sized for the plan's row capacity and kernels leave at
//     once for rows at or beyond the step's count.
package shaders
