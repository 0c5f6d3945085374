// Package vk is a small, safe layer over Vulkan 1.1 compute: instance, device
// and its capability profile, memory arenas, buffers, pipelines, descriptor
// sets, recording, submission, timestamps and injected faults.
//
// It knows buffers, kernels and copies, never tensors. The binding
// github.com/goki/vulkan supplies the dispatchable handle types, the result
// and flag constants, the loader initialisation and the calls that take
// handles and scalars only. Every call that takes a struct, a slice or a
// 64-bit non-dispatchable handle goes through the cgo supplement
// (supplement.go, supplement.h, supplement_*.c), for two reasons:
//
//   - the binding copies slice arguments to C memory which a finalizer may free
//     while the driver still reads it;
//   - the binding represents non-dispatchable handles as Go pointers, although
//     a driver or layer may make them plain integers, which the garbage
//     collector then takes for invalid pointers.
//
// Nothing in this package leaves a Go pointer in C memory after a call.
//
// Building needs cgo and the Vulkan headers: vulkan/vulkan_core.h, version
// 1.3.204 or newer (Debian: libvulkan-dev; macOS: vulkan-headers). The headers
// inside the binding's module cannot be reached from another module. Running
// needs a Vulkan loader, which is opened by its run-time name.
//
// # Concurrency
//
// Instance and Device methods may be called from several goroutines. A
// CommandBuffer, Set or Buffer may be used by one goroutine at a time; tickets
// may be polled and waited for from several.
//
// # Environment
//
//	CALDERA_VALIDATION=1   open with the validation layer
//	CALDERA_CACHE_DIR=DIR  keep pipeline caches in DIR; "off" keeps none
package vk
