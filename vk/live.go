package vk

import "sync/atomic"

// An objectKind is a kind of Vulkan objects that devices make. Sets are not
// among them: they live in their pools.
type objectKind int

const (
	deviceObject objectKind = iota
	memoryObject
	bufferObject
	setLayoutObject
	layoutObject
	cacheObject
	moduleObject
	pipelineObject
	viewObject
	setPoolObject
	commandPoolObject
	commandBufferObject
	semaphoreObject
	fenceObject
	queriesObject
	objectKinds
)

var objectNames = [objectKinds]string{
	"VkDevice", "VkDeviceMemory", "VkBuffer", "VkDescriptorSetLayout", "VkPipelineLayout", "VkPipelineCache", "VkShaderModule",
	"VkPipeline", "VkBufferView", "VkDescriptorPool", "VkCommandPool", "VkCommandBuffer", "VkSemaphore", "VkFence", "VkQueryPool",
}

// live counts the objects of the process.
var live [objectKinds]atomic.Int64

// made counts the object that a call has made, if it has.
func made(k objectKind, h handle, r Result) (handle, Result) {
	if r == Success {
		live[k].Add(1)
	}
	return h, r
}

// unmade counts the object that a call is about to destroy. Nothing is no object.
func unmade(k objectKind, h handle) {
	if h != 0 {
		live[k].Add(-1)
	}
}

// Live counts the Vulkan objects that the process has, of all devices, by their
// type's name. Kinds of which there are none are left out.
func Live() map[string]int64 {
	m := map[string]int64{}
	for k := range live {
		if n := live[k].Load(); n != 0 {
			m[objectNames[k]] = n
		}
	}
	return m
}
