// What the files of the supplement share.
#ifndef CALDERA_VK_SUPPLEMENT_INTERNAL_H
#define CALDERA_VK_SUPPLEMENT_INTERNAL_H

#include "supplement.h"

_Static_assert(sizeof(void *) == 8, "non-dispatchable handles must be pointers: 64-bit machines only");

#define SUP_INSTANCE_FUNCTIONS(X)                 \
	X(EnumeratePhysicalDevices)                   \
	X(EnumerateDeviceExtensionProperties)         \
	X(GetPhysicalDeviceProperties)                \
	X(GetPhysicalDeviceProperties2)               \
	X(GetPhysicalDeviceFeatures2)                 \
	X(GetPhysicalDeviceExternalBufferProperties)  \
	X(GetPhysicalDeviceMemoryProperties)          \
	X(GetPhysicalDeviceMemoryProperties2)         \
	X(GetPhysicalDeviceQueueFamilyProperties)     \
	X(CreateDevice)                               \
	X(GetDeviceProcAddr)                          \
	X(CreateDebugUtilsMessengerEXT)               \
	X(DestroyDebugUtilsMessengerEXT)              \
	X(GetPhysicalDeviceCooperativeMatrixPropertiesKHR)

#define SUP_DEVICE_FUNCTIONS(X)                                                                                   \
	X(DestroyDevice) X(GetDeviceQueue) X(AllocateMemory) X(FreeMemory) X(MapMemory)                               \
	X(FlushMappedMemoryRanges) X(InvalidateMappedMemoryRanges) X(CreateBuffer) X(DestroyBuffer)                   \
	X(CreateBufferView) X(DestroyBufferView)                                                                      \
	X(GetBufferMemoryRequirements) X(BindBufferMemory) X(CreateDescriptorSetLayout) X(DestroyDescriptorSetLayout) \
	X(CreatePipelineLayout) X(DestroyPipelineLayout) X(CreatePipelineCache) X(DestroyPipelineCache)               \
	X(GetPipelineCacheData) X(CreateShaderModule) X(DestroyShaderModule) X(CreateComputePipelines)                \
	X(DestroyPipeline) X(CreateDescriptorPool) X(DestroyDescriptorPool) X(AllocateDescriptorSets)                 \
	X(UpdateDescriptorSets) X(CreateCommandPool) X(DestroyCommandPool) X(AllocateCommandBuffers)                  \
	X(FreeCommandBuffers) X(BeginCommandBuffer) X(EndCommandBuffer) X(CmdBindPipeline) X(CmdBindDescriptorSets)   \
	X(CmdPushConstants) X(CmdDispatch) X(CmdDispatchIndirect) X(CmdCopyBuffer) X(CmdFillBuffer)                   \
	X(CmdPipelineBarrier) X(CmdResetQueryPool) X(CmdWriteTimestamp) X(QueueSubmit) X(CreateSemaphore)             \
	X(DestroySemaphore) X(CreateFence) X(DestroyFence) X(GetFenceStatus) X(ResetFences) X(WaitForFences)          \
	X(CreateQueryPool) X(DestroyQueryPool) X(GetQueryPoolResults)

struct sup_log;
struct sup_instance {
	VkInstance handle;
	uint32_t version; // of the loader
	struct sup_log *log;
	VkDebugUtilsMessengerEXT messenger;
#define X(n) PFN_vk##n n;
	SUP_INSTANCE_FUNCTIONS(X)
#undef X
};

// Function pointers of a device belong to that device.
struct sup_device {
	VkDevice handle;
	VkQueue queue;
#define X(n) PFN_vk##n n;
	SUP_DEVICE_FUNCTIONS(X)
#undef X
	// Optional: NULL when the feature is not enabled.
	PFN_vkGetSemaphoreCounterValue GetSemaphoreCounterValue;
	PFN_vkWaitSemaphores WaitSemaphores;
	PFN_vkGetMemoryHostPointerPropertiesEXT GetMemoryHostPointerPropertiesEXT;
	PFN_vkGetBufferDeviceAddress GetBufferDeviceAddress;
};

enum {
	SUP_E_STORAGE8,
	SUP_E_FLOAT16_INT8,
	SUP_E_TIMELINE,
	SUP_E_ADDRESS,
	SUP_E_MEMORY_MODEL,
	SUP_E_DRIVER,
	SUP_E_SUBGROUP_SIZE,
	SUP_E_INTDOT,
	SUP_E_MAINTENANCE4,
	SUP_E_COOPMAT,
	SUP_E_HOSTIMPORT,
	SUP_E_BUDGET,
	SUP_E_PORTABILITY,
	SUP_EXTENSIONS,
};

// Which extensions a device has, in core or by name. name is set when the
// extension must be named to be used.
typedef struct {
	uint8_t has[SUP_EXTENSIONS];
	const char *name[SUP_EXTENSIONS];
} sup_exts;

typedef struct {
	VkPhysicalDeviceFeatures2 base;
	VkPhysicalDevice16BitStorageFeatures storage16;
	VkPhysicalDevice8BitStorageFeatures storage8;
	VkPhysicalDeviceShaderFloat16Int8Features float16_int8;
	VkPhysicalDeviceTimelineSemaphoreFeatures timeline;
	VkPhysicalDeviceBufferDeviceAddressFeatures address;
	VkPhysicalDeviceVulkanMemoryModelFeatures memory_model;
	VkPhysicalDeviceSubgroupSizeControlFeatures subgroup_size;
	VkPhysicalDeviceShaderIntegerDotProductFeatures intdot;
	VkPhysicalDeviceCooperativeMatrixFeaturesKHR coopmat;
} sup_features;

void sup_device_extensions(sup_instance *in, VkPhysicalDevice pd, uint32_t api, sup_exts *e);
void sup_feature_chain(sup_features *c, const sup_exts *e);

#define HANDLE(T, x) ((T)(uintptr_t)(x))
#define NUMBER(x) ((uint64_t)(uintptr_t)(x))

#endif
