package vk

import "slices"

// calls are the Vulkan functions that devices call and that can fail. Each
// passes Device.call, so that a test can have it fail (InjectFault). A new one
// is added here, and the fault sweep of package engine then covers it.
var calls = []string{
	"vkAllocateCommandBuffers",
	"vkAllocateDescriptorSets",
	"vkAllocateMemory",
	"vkBeginCommandBuffer",
	"vkBindBufferMemory",
	"vkCreateBuffer",
	"vkCreateBufferView",
	"vkCreateCommandPool",
	"vkCreateComputePipelines",
	"vkCreateDescriptorPool",
	"vkCreateDescriptorSetLayout",
	"vkCreateDevice",
	"vkCreateFence",
	"vkCreatePipelineCache",
	"vkCreatePipelineLayout",
	"vkCreateQueryPool",
	"vkCreateSemaphore",
	"vkCreateShaderModule",
	"vkDeviceWaitIdle",
	"vkEndCommandBuffer",
	"vkFlushMappedMemoryRanges",
	"vkGetFenceStatus",
	"vkGetMemoryHostPointerPropertiesEXT",
	"vkGetPipelineCacheData",
	"vkGetQueryPoolResults",
	"vkGetSemaphoreCounterValue",
	"vkInvalidateMappedMemoryRanges",
	"vkMapMemory",
	"vkQueueSubmit",
	"vkResetCommandBuffer",
	"vkResetFences",
	"vkWaitForFences",
	"vkWaitSemaphores",
}

// Calls returns the names of the Vulkan functions that can be made to fail, in
// order.
func Calls() []string { return slices.Clone(calls) }
