// The loader, the instance, its messages, and what is known of devices.
#include "supplement_internal.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void *sup_load(const char *name, char *why, size_t len) {
	void *lib = dlopen(name, RTLD_NOW | RTLD_LOCAL);
	void *f = lib ? dlsym(lib, "vkGetInstanceProcAddr") : NULL;
	if (!f) {
		const char *e = dlerror();
		snprintf(why, len, "%s", e ? e : "no vkGetInstanceProcAddr");
	}
	return f;
}

// Messages are kept in C because layers call back on any thread, also on
// threads of the driver. The first LOG_KEEP are kept whole, the rest counted.
enum { LOG_KEEP = 256, LOG_LEN = 1024 };
struct sup_log {
	pthread_mutex_t mu;
	uint64_t count;
	char *text[LOG_KEEP];
};

static VkBool32 VKAPI_CALL on_message(VkDebugUtilsMessageSeverityFlagBitsEXT severity, VkDebugUtilsMessageTypeFlagsEXT types,
                                      const VkDebugUtilsMessengerCallbackDataEXT *data, void *user) {
	struct sup_log *log = user;
	(void)types;
	pthread_mutex_lock(&log->mu);
	if (log->count < LOG_KEEP) {
		char *s = malloc(LOG_LEN);
		if (s) {
			snprintf(s, LOG_LEN, "%s %s: %s", severity & VK_DEBUG_UTILS_MESSAGE_SEVERITY_ERROR_BIT_EXT ? "error" : "warning",
			         data->pMessageIdName ? data->pMessageIdName : "-", data->pMessage ? data->pMessage : "");
			log->text[log->count] = s;
		}
	}
	log->count++;
	pthread_mutex_unlock(&log->mu);
	return VK_FALSE;
}

uint64_t sup_message_count(sup_instance *in) {
	pthread_mutex_lock(&in->log->mu);
	uint64_t n = in->log->count;
	pthread_mutex_unlock(&in->log->mu);
	return n;
}

int sup_message(sup_instance *in, uint64_t i, char *dst, size_t len) {
	pthread_mutex_lock(&in->log->mu);
	const char *s = i < LOG_KEEP && i < in->log->count ? in->log->text[i] : NULL;
	if (s) snprintf(dst, len, "%s", s);
	pthread_mutex_unlock(&in->log->mu);
	return s != NULL;
}

static VkDebugUtilsMessengerCreateInfoEXT messenger_info(struct sup_log *log) {
	VkDebugUtilsMessengerCreateInfoEXT i = {VK_STRUCTURE_TYPE_DEBUG_UTILS_MESSENGER_CREATE_INFO_EXT};
	i.messageSeverity = VK_DEBUG_UTILS_MESSAGE_SEVERITY_WARNING_BIT_EXT | VK_DEBUG_UTILS_MESSAGE_SEVERITY_ERROR_BIT_EXT;
	// General messages are the loader's complaints about other drivers' files.
	i.messageType = VK_DEBUG_UTILS_MESSAGE_TYPE_VALIDATION_BIT_EXT;
	i.pfnUserCallback = on_message;
	i.pUserData = log;
	return i;
}

// has_extension asks the loader (layer NULL) or a layer for an extension.
static int has_extension(PFN_vkEnumerateInstanceExtensionProperties f, const char *layer, const char *name) {
	uint32_t n = 0;
	if (f(layer, &n, NULL) < 0 || n == 0) return 0;
	VkExtensionProperties *p = calloc(n, sizeof *p);
	int found = 0;
	if (p && f(layer, &n, p) >= 0)
		for (uint32_t i = 0; i < n && !found; i++) found = !strcmp(p[i].extensionName, name);
	free(p);
	return found;
}

static int has_layer(PFN_vkEnumerateInstanceLayerProperties f, const char *name) {
	uint32_t n = 0;
	if (!f || f(&n, NULL) < 0 || n == 0) return 0;
	VkLayerProperties *p = calloc(n, sizeof *p);
	int found = 0;
	if (p && f(&n, p) >= 0)
		for (uint32_t i = 0; i < n && !found; i++) found = !strcmp(p[i].layerName, name);
	free(p);
	return found;
}

#define VALIDATION_LAYER "VK_LAYER_KHRONOS_validation"
#ifndef VK_KHR_portability_enumeration
#define VK_KHR_PORTABILITY_ENUMERATION_EXTENSION_NAME "VK_KHR_portability_enumeration"
#define VK_INSTANCE_CREATE_ENUMERATE_PORTABILITY_BIT_KHR 1
#endif

VkResult sup_instance_create(void *gipa_, const char *app, int validation, int gpu_assisted, sup_instance **out, const char **what) {
	PFN_vkGetInstanceProcAddr gipa = (PFN_vkGetInstanceProcAddr)gipa_;
#define GLOBAL(n) PFN_vk##n n = (PFN_vk##n)gipa(NULL, "vk" #n)
	GLOBAL(EnumerateInstanceVersion);
	GLOBAL(EnumerateInstanceExtensionProperties);
	GLOBAL(EnumerateInstanceLayerProperties);
	GLOBAL(CreateInstance);
#undef GLOBAL
	*what = "vkGetInstanceProcAddr";
	if (!CreateInstance || !EnumerateInstanceExtensionProperties) return VK_ERROR_INITIALIZATION_FAILED;
	uint32_t version = VK_API_VERSION_1_0;
	if (EnumerateInstanceVersion) EnumerateInstanceVersion(&version);
	*what = "vkEnumerateInstanceVersion";
	if (version < VK_API_VERSION_1_1) return VK_ERROR_FEATURE_NOT_PRESENT; // a 1.0 loader has no properties2
	*what = "vkCreateInstance";

	sup_instance *in = calloc(1, sizeof *in);
	struct sup_log *log = calloc(1, sizeof *log);
	if (!in || !log) {
		free(in);
		free(log);
		return VK_ERROR_OUT_OF_HOST_MEMORY;
	}
	pthread_mutex_init(&log->mu, NULL);
	in->log = log;
	in->version = version;

	VkApplicationInfo ai = {VK_STRUCTURE_TYPE_APPLICATION_INFO};
	ai.pApplicationName = app;
	ai.pEngineName = "caldera";
	ai.apiVersion = VK_API_VERSION_1_3; // a 1.1 loader accepts newer requests
	VkInstanceCreateInfo ci = {VK_STRUCTURE_TYPE_INSTANCE_CREATE_INFO};
	ci.pApplicationInfo = &ai;
	const char *layers[1], *exts[4];
	uint32_t next = 0;
	if (has_extension(EnumerateInstanceExtensionProperties, NULL, VK_KHR_PORTABILITY_ENUMERATION_EXTENSION_NAME)) {
		exts[next++] = VK_KHR_PORTABILITY_ENUMERATION_EXTENSION_NAME;
		ci.flags |= VK_INSTANCE_CREATE_ENUMERATE_PORTABILITY_BIT_KHR;
	}
	VkDebugUtilsMessengerCreateInfoEXT mi = messenger_info(log);
	VkValidationFeatureEnableEXT enable[3];
	VkValidationFeaturesEXT vf = {VK_STRUCTURE_TYPE_VALIDATION_FEATURES_EXT};
	int messenger = 0;
	if (validation) {
		if (!has_layer(EnumerateInstanceLayerProperties, VALIDATION_LAYER)) {
			sup_instance_free(in);
			return VK_ERROR_LAYER_NOT_PRESENT;
		}
		layers[0] = VALIDATION_LAYER;
		ci.enabledLayerCount = 1;
		ci.ppEnabledLayerNames = layers;
		messenger = has_extension(EnumerateInstanceExtensionProperties, NULL, VK_EXT_DEBUG_UTILS_EXTENSION_NAME) ||
		            has_extension(EnumerateInstanceExtensionProperties, VALIDATION_LAYER, VK_EXT_DEBUG_UTILS_EXTENSION_NAME);
		if (messenger) {
			exts[next++] = VK_EXT_DEBUG_UTILS_EXTENSION_NAME;
			ci.pNext = &mi; // hears what happens while the instance is made and destroyed
		}
		if (has_extension(EnumerateInstanceExtensionProperties, VALIDATION_LAYER, VK_EXT_VALIDATION_FEATURES_EXTENSION_NAME)) {
			exts[next++] = VK_EXT_VALIDATION_FEATURES_EXTENSION_NAME;
			enable[vf.enabledValidationFeatureCount++] = VK_VALIDATION_FEATURE_ENABLE_SYNCHRONIZATION_VALIDATION_EXT;
			if (gpu_assisted) {
				enable[vf.enabledValidationFeatureCount++] = VK_VALIDATION_FEATURE_ENABLE_GPU_ASSISTED_EXT;
				enable[vf.enabledValidationFeatureCount++] = VK_VALIDATION_FEATURE_ENABLE_GPU_ASSISTED_RESERVE_BINDING_SLOT_EXT;
			}
			vf.pEnabledValidationFeatures = enable;
			vf.pNext = ci.pNext;
			ci.pNext = &vf;
		}
	}
	ci.enabledExtensionCount = next;
	ci.ppEnabledExtensionNames = exts;
	VkResult r = CreateInstance(&ci, NULL, &in->handle);
	if (r != VK_SUCCESS) {
		sup_instance_free(in);
		return r;
	}
#define X(n) in->n = (PFN_vk##n)gipa(in->handle, "vk" #n);
	SUP_INSTANCE_FUNCTIONS(X)
#undef X
	if (messenger && in->CreateDebugUtilsMessengerEXT) in->CreateDebugUtilsMessengerEXT(in->handle, &mi, NULL, &in->messenger);
	*out = in;
	return VK_SUCCESS;
}

VkInstance sup_instance_handle(sup_instance *in) { return in->handle; }
uint32_t sup_instance_version(sup_instance *in) { return in->version; }

void sup_instance_close(sup_instance *in) {
	if (in->messenger) in->DestroyDebugUtilsMessengerEXT(in->handle, in->messenger, NULL);
	in->messenger = VK_NULL_HANDLE;
}

void sup_instance_free(sup_instance *in) {
	for (int i = 0; i < LOG_KEEP; i++) free(in->log->text[i]);
	pthread_mutex_destroy(&in->log->mu);
	free(in->log);
	free(in);
}

VkResult sup_physical_devices(sup_instance *in, VkPhysicalDevice *out, uint32_t *n) { return in->EnumeratePhysicalDevices(in->handle, n, out); }

// Device extensions of interest, and the core version that made each superfluous.
static const struct {
	const char *name;
	uint32_t core;
} extensions[SUP_EXTENSIONS] = {
    [SUP_E_STORAGE8] = {VK_KHR_8BIT_STORAGE_EXTENSION_NAME, VK_API_VERSION_1_2},
    [SUP_E_FLOAT16_INT8] = {VK_KHR_SHADER_FLOAT16_INT8_EXTENSION_NAME, VK_API_VERSION_1_2},
    [SUP_E_TIMELINE] = {VK_KHR_TIMELINE_SEMAPHORE_EXTENSION_NAME, VK_API_VERSION_1_2},
    [SUP_E_ADDRESS] = {VK_KHR_BUFFER_DEVICE_ADDRESS_EXTENSION_NAME, VK_API_VERSION_1_2},
    [SUP_E_MEMORY_MODEL] = {VK_KHR_VULKAN_MEMORY_MODEL_EXTENSION_NAME, VK_API_VERSION_1_2},
    [SUP_E_DRIVER] = {VK_KHR_DRIVER_PROPERTIES_EXTENSION_NAME, VK_API_VERSION_1_2},
    [SUP_E_SUBGROUP_SIZE] = {VK_EXT_SUBGROUP_SIZE_CONTROL_EXTENSION_NAME, VK_API_VERSION_1_3},
    [SUP_E_INTDOT] = {VK_KHR_SHADER_INTEGER_DOT_PRODUCT_EXTENSION_NAME, VK_API_VERSION_1_3},
    [SUP_E_MAINTENANCE4] = {VK_KHR_MAINTENANCE_4_EXTENSION_NAME, VK_API_VERSION_1_3},
    [SUP_E_COOPMAT] = {VK_KHR_COOPERATIVE_MATRIX_EXTENSION_NAME, UINT32_MAX},
    [SUP_E_HOSTIMPORT] = {VK_EXT_EXTERNAL_MEMORY_HOST_EXTENSION_NAME, UINT32_MAX},
    [SUP_E_BUDGET] = {VK_EXT_MEMORY_BUDGET_EXTENSION_NAME, UINT32_MAX},
    [SUP_E_PORTABILITY] = {"VK_KHR_portability_subset", UINT32_MAX},
};

void sup_device_extensions(sup_instance *in, VkPhysicalDevice pd, uint32_t api, sup_exts *e) {
	memset(e, 0, sizeof *e);
	uint32_t n = 0;
	if (in->EnumerateDeviceExtensionProperties(pd, NULL, &n, NULL) < 0) n = 0;
	VkExtensionProperties *p = n ? calloc(n, sizeof *p) : NULL;
	if (p && in->EnumerateDeviceExtensionProperties(pd, NULL, &n, p) < 0) n = 0;
	for (int i = 0; i < SUP_EXTENSIONS; i++) {
		if (api >= extensions[i].core) {
			e->has[i] = 1;
			continue;
		}
		for (uint32_t j = 0; p && j < n; j++)
			if (!strcmp(p[j].extensionName, extensions[i].name)) e->has[i] = 1, e->name[i] = extensions[i].name;
	}
	free(p);
}

// sup_feature_chain links the feature structs that a device knows; structs of
// single features are used because they exist at every API version.
void sup_feature_chain(sup_features *c, const sup_exts *e) {
	memset(c, 0, sizeof *c);
	void **tail = &c->base.pNext;
	c->base.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_FEATURES_2;
#define LINK(member, type, cond)        \
	c->member.sType = type;             \
	if (cond) {                         \
		*tail = &c->member;             \
		tail = (void **)&c->member.pNext; \
	}
	LINK(storage16, VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_16BIT_STORAGE_FEATURES, 1)
	LINK(storage8, VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_8BIT_STORAGE_FEATURES, e->has[SUP_E_STORAGE8])
	LINK(float16_int8, VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SHADER_FLOAT16_INT8_FEATURES, e->has[SUP_E_FLOAT16_INT8])
	LINK(timeline, VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_TIMELINE_SEMAPHORE_FEATURES, e->has[SUP_E_TIMELINE])
	LINK(address, VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_BUFFER_DEVICE_ADDRESS_FEATURES, e->has[SUP_E_ADDRESS])
	LINK(memory_model, VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_MEMORY_MODEL_FEATURES, e->has[SUP_E_MEMORY_MODEL])
	LINK(subgroup_size, VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SUBGROUP_SIZE_CONTROL_FEATURES, e->has[SUP_E_SUBGROUP_SIZE])
	LINK(intdot, VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SHADER_INTEGER_DOT_PRODUCT_FEATURES, e->has[SUP_E_INTDOT])
	LINK(coopmat, (VkStructureType)1000506000, e->has[SUP_E_COOPMAT])
#undef LINK
}

// imports_host reports whether a driver with the extension imports host memory for buffers such as ours.
static int imports_host(sup_instance *in, VkPhysicalDevice pd, VkDriverId driver) {
	// SwiftShader imports host pages, and its answer to this question leaves the handle type out.
	if (driver == VK_DRIVER_ID_GOOGLE_SWIFTSHADER) return 1;
	if (!in->GetPhysicalDeviceExternalBufferProperties) return 0;
	VkPhysicalDeviceExternalBufferInfo q = {VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_EXTERNAL_BUFFER_INFO};
	q.usage = VK_BUFFER_USAGE_STORAGE_BUFFER_BIT | VK_BUFFER_USAGE_TRANSFER_SRC_BIT | VK_BUFFER_USAGE_TRANSFER_DST_BIT |
	          VK_BUFFER_USAGE_INDIRECT_BUFFER_BIT;
	q.handleType = VK_EXTERNAL_MEMORY_HANDLE_TYPE_HOST_ALLOCATION_BIT_EXT;
	VkExternalBufferProperties r = {VK_STRUCTURE_TYPE_EXTERNAL_BUFFER_PROPERTIES};
	in->GetPhysicalDeviceExternalBufferProperties(pd, &q, &r);
	return !!(r.externalMemoryProperties.externalMemoryFeatures & VK_EXTERNAL_MEMORY_FEATURE_IMPORTABLE_BIT);
}

void sup_describe(sup_instance *in, VkPhysicalDevice pd, sup_info *o) {
	memset(o, 0, sizeof *o);
	VkPhysicalDeviceProperties2 p = {VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_PROPERTIES_2};
	in->GetPhysicalDeviceProperties(pd, &p.properties);
	// Without 1.1 the device has no properties2; it is refused, with its name.
	uint32_t api = p.properties.apiVersion;
	int v11 = api >= VK_API_VERSION_1_1;
	if (api >= VK_MAKE_API_VERSION(0, 1, 4, 0)) api = VK_MAKE_API_VERSION(0, 1, 3, 0xfff); // the version asked for
	sup_exts e;
	sup_device_extensions(in, pd, api, &e);

	VkPhysicalDeviceIDProperties id = {VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_ID_PROPERTIES};
	VkPhysicalDeviceSubgroupProperties sg = {VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SUBGROUP_PROPERTIES};
	VkPhysicalDeviceMaintenance3Properties m3 = {VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_MAINTENANCE_3_PROPERTIES};
	VkPhysicalDeviceDriverProperties dr = {VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_DRIVER_PROPERTIES};
	VkPhysicalDeviceSubgroupSizeControlProperties ss = {VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SUBGROUP_SIZE_CONTROL_PROPERTIES};
	VkPhysicalDeviceShaderIntegerDotProductProperties dp = {VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SHADER_INTEGER_DOT_PRODUCT_PROPERTIES};
	VkPhysicalDeviceMaintenance4Properties m4 = {VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_MAINTENANCE_4_PROPERTIES};
	VkPhysicalDeviceExternalMemoryHostPropertiesEXT eh = {VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_EXTERNAL_MEMORY_HOST_PROPERTIES_EXT};
	void **tail = &p.pNext;
#define LINK(s, cond)              \
	if (cond) {                    \
		*tail = &s;                \
		tail = (void **)&s.pNext;  \
	}
	LINK(id, 1)
	LINK(sg, 1)
	LINK(m3, 1)
	LINK(dr, e.has[SUP_E_DRIVER])
	LINK(ss, e.has[SUP_E_SUBGROUP_SIZE])
	LINK(dp, e.has[SUP_E_INTDOT])
	LINK(m4, e.has[SUP_E_MAINTENANCE4])
	LINK(eh, e.has[SUP_E_HOSTIMPORT])
#undef LINK
	if (v11 && in->GetPhysicalDeviceProperties2) in->GetPhysicalDeviceProperties2(pd, &p);

	const VkPhysicalDeviceProperties *b = &p.properties;
	snprintf(o->name, sizeof o->name, "%s", b->deviceName);
	snprintf(o->driver_name, sizeof o->driver_name, "%s", dr.driverName);
	snprintf(o->driver_info, sizeof o->driver_info, "%s", dr.driverInfo);
	o->type = b->deviceType;
	o->vendor_id = b->vendorID;
	o->device_id = b->deviceID;
	o->api = b->apiVersion;
	o->driver_id = dr.driverID;
	o->driver_version = b->driverVersion;
	memcpy(o->uuid, id.deviceUUID, 16);
	memcpy(o->driver_uuid, id.driverUUID, 16);
	memcpy(o->cache_uuid, b->pipelineCacheUUID, 16);

	const VkPhysicalDeviceLimits *l = &b->limits;
	o->max_range = l->maxStorageBufferRange;
	o->max_allocation = m3.maxMemoryAllocationSize ? m3.maxMemoryAllocationSize : (uint64_t)1 << 30;
	o->max_buffer = m4.maxBufferSize ? m4.maxBufferSize : o->max_allocation;
	o->offset_align = l->minStorageBufferOffsetAlignment;
	o->atom = l->nonCoherentAtomSize;
	o->map_align = l->minMemoryMapAlignment;
	o->host_align = eh.minImportedHostPointerAlignment;
	o->max_texels = l->maxTexelBufferElements;
	o->texel_align = l->minTexelBufferOffsetAlignment;
	o->max_allocations = l->maxMemoryAllocationCount;
	o->max_push = l->maxPushConstantsSize;
	o->max_buffers = l->maxPerStageDescriptorStorageBuffers;
	if (l->maxPerStageResources < o->max_buffers) o->max_buffers = l->maxPerStageResources;
	o->max_sets = l->maxBoundDescriptorSets;
	o->max_invocations = l->maxComputeWorkGroupInvocations;
	memcpy(o->max_size, l->maxComputeWorkGroupSize, sizeof o->max_size);
	memcpy(o->max_groups, l->maxComputeWorkGroupCount, sizeof o->max_groups);
	o->max_shared = l->maxComputeSharedMemorySize;
	o->period = l->timestampPeriod;

	o->subgroup = sg.subgroupSize;
	o->subgroup_min = ss.minSubgroupSize ? ss.minSubgroupSize : sg.subgroupSize;
	o->subgroup_max = ss.maxSubgroupSize ? ss.maxSubgroupSize : sg.subgroupSize;
	o->subgroup_ops = sg.supportedOperations;
	o->subgroup_compute = !!(sg.supportedStages & VK_SHADER_STAGE_COMPUTE_BIT);
	o->subgroup_required = !!(ss.requiredSubgroupSizeStages & VK_SHADER_STAGE_COMPUTE_BIT);

	sup_features f;
	sup_feature_chain(&f, &e);
	if (v11 && in->GetPhysicalDeviceFeatures2) in->GetPhysicalDeviceFeatures2(pd, &f.base);
	const VkPhysicalDeviceFeatures *c = &f.base.features;
	uint32_t bits = 0;
#define BIT(cond, bit) \
	if (cond) bits |= bit;
	BIT(f.storage8.storageBuffer8BitAccess, SUP_STORAGE8)
	BIT(f.storage16.storageBuffer16BitAccess, SUP_STORAGE16)
	BIT(f.float16_int8.shaderFloat16, SUP_FLOAT16)
	BIT(f.float16_int8.shaderInt8, SUP_INT8)
	BIT(c->shaderInt16, SUP_INT16)
	BIT(c->shaderInt64, SUP_INT64)
	BIT(c->shaderFloat64, SUP_FLOAT64)
	BIT(f.intdot.shaderIntegerDotProduct, SUP_INTDOT)
	BIT(f.intdot.shaderIntegerDotProduct && dp.integerDotProduct4x8BitPackedSignedAccelerated, SUP_INTDOT_ACCELERATED)
	BIT(f.coopmat.cooperativeMatrix, SUP_COOPMAT)
	BIT(f.address.bufferDeviceAddress, SUP_ADDRESS)
	BIT(f.timeline.timelineSemaphore, SUP_TIMELINE)
	BIT(e.has[SUP_E_HOSTIMPORT] && imports_host(in, pd, dr.driverID), SUP_HOSTIMPORT)
	BIT(e.has[SUP_E_BUDGET], SUP_BUDGET)
	BIT(f.subgroup_size.subgroupSizeControl && o->subgroup_required, SUP_SUBGROUPSIZE)
	BIT(f.subgroup_size.computeFullSubgroups, SUP_FULLSUBGROUPS)
	BIT(f.memory_model.vulkanMemoryModel, SUP_MEMORYMODEL)
	BIT(c->robustBufferAccess, SUP_ROBUST)
#undef BIT
	o->features = bits;
	o->portability = e.has[SUP_E_PORTABILITY];

	VkPhysicalDeviceMemoryProperties m;
	in->GetPhysicalDeviceMemoryProperties(pd, &m);
	o->heaps = m.memoryHeapCount;
	for (uint32_t i = 0; i < m.memoryHeapCount; i++) o->heap_size[i] = m.memoryHeaps[i].size, o->heap_flags[i] = m.memoryHeaps[i].flags;
	o->types = m.memoryTypeCount;
	for (uint32_t i = 0; i < m.memoryTypeCount; i++) o->type_heap[i] = m.memoryTypes[i].heapIndex, o->type_flags[i] = m.memoryTypes[i].propertyFlags;

	VkQueueFamilyProperties q[SUP_MAX_QUEUES];
	uint32_t n = SUP_MAX_QUEUES;
	in->GetPhysicalDeviceQueueFamilyProperties(pd, &n, q);
	o->queues = n;
	for (uint32_t i = 0; i < n; i++) o->queue_flags[i] = q[i].queueFlags, o->queue_count[i] = q[i].queueCount, o->queue_bits[i] = q[i].timestampValidBits;

	if (bits & SUP_COOPMAT && in->GetPhysicalDeviceCooperativeMatrixPropertiesKHR) {
		VkCooperativeMatrixPropertiesKHR mp[SUP_MAX_MATRICES];
		memset(mp, 0, sizeof mp);
		for (int i = 0; i < SUP_MAX_MATRICES; i++) mp[i].sType = (VkStructureType)1000506001;
		n = SUP_MAX_MATRICES;
		if (in->GetPhysicalDeviceCooperativeMatrixPropertiesKHR(pd, &n, mp) >= 0) {
			o->matrices = n;
			for (uint32_t i = 0; i < n; i++) {
				uint32_t v[8] = {mp[i].MSize, mp[i].NSize, mp[i].KSize, mp[i].AType, mp[i].BType, mp[i].CType, mp[i].ResultType, mp[i].scope};
				memcpy(o->matrix[i], v, sizeof v);
			}
		}
	}
}

void sup_budget(sup_instance *in, VkPhysicalDevice pd, uint64_t *budget, uint64_t *usage) {
	VkPhysicalDeviceMemoryBudgetPropertiesEXT b = {VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_MEMORY_BUDGET_PROPERTIES_EXT};
	VkPhysicalDeviceMemoryProperties2 p = {VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_MEMORY_PROPERTIES_2, &b};
	in->GetPhysicalDeviceMemoryProperties2(pd, &p);
	memcpy(budget, b.heapBudget, sizeof b.heapBudget);
	memcpy(usage, b.heapUsage, sizeof b.heapUsage);
}
