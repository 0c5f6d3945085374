// The cgo supplement: the loader, and every Vulkan call that takes a struct, a
// slice or a non-dispatchable handle. Handles cross as 64-bit integers. Nothing
// here keeps a pointer that it was given beyond the call, except that device
// memory imported by sup_import_memory refers to the host pages themselves.
#ifndef CALDERA_VK_SUPPLEMENT_H
#define CALDERA_VK_SUPPLEMENT_H

#include <stddef.h>
#include <stdint.h>

#ifndef VK_NO_PROTOTYPES
#define VK_NO_PROTOTYPES 1
#endif
#ifdef __has_include
#if !__has_include(<vulkan/vulkan_core.h>)
#error "the Vulkan headers are missing: install libvulkan-dev (Debian) or vulkan-headers (macOS, brew)"
#endif
#endif
#include <vulkan/vulkan_core.h>

#if VK_HEADER_VERSION < 204
#error "Vulkan headers 1.3.204 or newer are needed"
#endif

// Headers older than 1.3.255 lack cooperative matrices.
#ifndef VK_KHR_cooperative_matrix
#define VK_KHR_COOPERATIVE_MATRIX_EXTENSION_NAME "VK_KHR_cooperative_matrix"
typedef struct VkPhysicalDeviceCooperativeMatrixFeaturesKHR {
	VkStructureType sType;
	void *pNext;
	VkBool32 cooperativeMatrix;
	VkBool32 cooperativeMatrixRobustBufferAccess;
} VkPhysicalDeviceCooperativeMatrixFeaturesKHR;
typedef struct VkCooperativeMatrixPropertiesKHR {
	VkStructureType sType;
	void *pNext;
	uint32_t MSize, NSize, KSize;
	uint32_t AType, BType, CType, ResultType;
	VkBool32 saturatingAccumulation;
	uint32_t scope;
} VkCooperativeMatrixPropertiesKHR;
typedef VkResult(VKAPI_PTR *PFN_vkGetPhysicalDeviceCooperativeMatrixPropertiesKHR)(VkPhysicalDevice, uint32_t *, VkCooperativeMatrixPropertiesKHR *);
#endif

// Feature bits, in the order of the fields of the Go type Features.
enum {
	SUP_STORAGE8 = 1 << 0,
	SUP_STORAGE16 = 1 << 1,
	SUP_FLOAT16 = 1 << 2,
	SUP_INT8 = 1 << 3,
	SUP_INT16 = 1 << 4,
	SUP_INT64 = 1 << 5,
	SUP_FLOAT64 = 1 << 6,
	SUP_INTDOT = 1 << 7,
	SUP_INTDOT_ACCELERATED = 1 << 8,
	SUP_COOPMAT = 1 << 9,
	SUP_ADDRESS = 1 << 10,
	SUP_TIMELINE = 1 << 11,
	SUP_HOSTIMPORT = 1 << 12,
	SUP_BUDGET = 1 << 13,
	SUP_SUBGROUPSIZE = 1 << 14,
	SUP_FULLSUBGROUPS = 1 << 15,
	SUP_MEMORYMODEL = 1 << 16,
	SUP_ROBUST = 1 << 17,
};

enum { SUP_MAX_HEAPS = VK_MAX_MEMORY_HEAPS, SUP_MAX_TYPES = VK_MAX_MEMORY_TYPES, SUP_MAX_QUEUES = 16, SUP_MAX_MATRICES = 64 };

// What is known of a physical device.
typedef struct {
	char name[256], driver_name[256], driver_info[256];
	uint32_t type, vendor_id, device_id, api, driver_id, driver_version;
	uint8_t uuid[16], driver_uuid[16], cache_uuid[16];
	uint32_t heaps, types, queues, matrices;
	uint64_t heap_size[SUP_MAX_HEAPS];
	uint32_t heap_flags[SUP_MAX_HEAPS];
	uint32_t type_heap[SUP_MAX_TYPES], type_flags[SUP_MAX_TYPES];
	uint32_t queue_flags[SUP_MAX_QUEUES], queue_count[SUP_MAX_QUEUES], queue_bits[SUP_MAX_QUEUES];
	uint64_t max_range, max_buffer, max_allocation, offset_align, atom, map_align, host_align, max_texels, texel_align;
	uint32_t max_allocations, max_push, max_buffers, max_sets, max_invocations, max_size[3], max_groups[3], max_shared;
	float period;
	uint32_t subgroup, subgroup_min, subgroup_max, subgroup_ops, subgroup_compute, subgroup_required;
	uint32_t features, portability;
	uint32_t matrix[SUP_MAX_MATRICES][8]; // M N K A B C R scope
} sup_info;

typedef struct sup_instance sup_instance;
typedef struct sup_device sup_device;

// One recorded command; the Go type Command has the same layout.
enum { SUP_DISPATCH = 1, SUP_INDIRECT, SUP_COPY, SUP_FILL, SUP_RESET_QUERIES, SUP_HOST_BARRIER, SUP_BARRIER };
typedef struct {
	uint32_t kind;
	uint8_t barrier;
	uint8_t bad;    // why the command is invalid, Go only
	uint16_t owner; // which device it is for, Go only
	uint32_t groups[3];
	uint32_t push_bytes, want_push;
	uint32_t before, after; // query + 1, 0 = none
	uint32_t value;         // fill value, or number of queries
	uint64_t pipeline, layout, set;
	uint64_t src, dst, src_off, dst_off, size;
	uint64_t queries;
	uint8_t push[128];
} sup_command;

typedef struct {
	uint64_t buffer, offset, size;
	uint64_t view; // 0 of storage buffers
} sup_binding;

void *sup_load(const char *name, char *why, size_t len);

VkResult sup_instance_create(void *gipa, const char *app, int validation, int gpu_assisted, sup_instance **out, const char **what);
VkInstance sup_instance_handle(sup_instance *in);
uint32_t sup_instance_version(sup_instance *in);
void sup_instance_close(sup_instance *in); // the messenger, and the table; not the instance
void sup_instance_free(sup_instance *in);
uint64_t sup_message_count(sup_instance *in);
int sup_message(sup_instance *in, uint64_t i, char *dst, size_t len);
VkResult sup_physical_devices(sup_instance *in, VkPhysicalDevice *out, uint32_t *n);
void sup_describe(sup_instance *in, VkPhysicalDevice pd, sup_info *out);
void sup_budget(sup_instance *in, VkPhysicalDevice pd, uint64_t *budget, uint64_t *usage);

VkResult sup_device_create(sup_instance *in, VkPhysicalDevice pd, uint32_t family, uint32_t features, sup_device **out, const char **what);
VkDevice sup_device_handle(sup_device *d);
VkQueue sup_device_queue(sup_device *d);
void sup_device_free(sup_device *d); // the table only

VkResult sup_allocate(sup_device *d, uint64_t size, uint32_t type, uint64_t *mem);
VkResult sup_import_memory(sup_device *d, void *p, uint64_t size, uint32_t type, uint64_t *mem);
VkResult sup_import_types(sup_device *d, void *p, uint32_t *bits);
void sup_free_memory(sup_device *d, uint64_t mem);
VkResult sup_map(sup_device *d, uint64_t mem, void **p);
VkResult sup_flush(sup_device *d, uint64_t mem, uint64_t off, uint64_t size);
VkResult sup_invalidate(sup_device *d, uint64_t mem, uint64_t off, uint64_t size);
// The address of a buffer that is bound to memory; 0 where the feature is not enabled.
uint64_t sup_buffer_address(sup_device *d, uint64_t buf);
VkResult sup_create_buffer(sup_device *d, uint64_t size, uint32_t usage, int imported, uint64_t *buf);
void sup_requirements(sup_device *d, uint64_t buf, uint64_t *size, uint64_t *align, uint32_t *types);
VkResult sup_bind(sup_device *d, uint64_t buf, uint64_t mem, uint64_t off);
void sup_destroy_buffer(sup_device *d, uint64_t buf);

VkResult sup_create_set_layout(sup_device *d, uint32_t buffers, uint32_t texels, uint64_t *out);
void sup_destroy_set_layout(sup_device *d, uint64_t layout);
VkResult sup_create_layout(sup_device *d, uint64_t set_layout, uint32_t push_bytes, uint64_t *out);
void sup_destroy_layout(sup_device *d, uint64_t layout);
VkResult sup_create_cache(sup_device *d, const void *data, size_t len, uint64_t *out);
VkResult sup_cache_data(sup_device *d, uint64_t cache, void *data, size_t *len);
void sup_destroy_cache(sup_device *d, uint64_t cache);
VkResult sup_create_module(sup_device *d, const void *spirv, size_t len, uint64_t *out);
void sup_destroy_module(sup_device *d, uint64_t module);
VkResult sup_create_pipeline(sup_device *d, uint64_t cache, uint64_t module, uint64_t layout, const uint32_t *spec, uint32_t specs, uint32_t subgroup, int full, uint64_t *out);
void sup_destroy_pipeline(sup_device *d, uint64_t pipeline);

VkResult sup_create_set_pool(sup_device *d, uint32_t sets, uint32_t buffers, uint32_t texels, uint64_t *out);
void sup_destroy_set_pool(sup_device *d, uint64_t pool);
VkResult sup_allocate_set(sup_device *d, uint64_t pool, uint64_t layout, uint64_t *out);
VkResult sup_create_view(sup_device *d, const sup_binding *b, uint64_t *out);
void sup_destroy_view(sup_device *d, uint64_t view);
void sup_update_set(sup_device *d, uint64_t set, const sup_binding *b, uint32_t n);

VkResult sup_create_command_pool(sup_device *d, uint32_t family, uint64_t *out);
void sup_destroy_command_pool(sup_device *d, uint64_t pool);
VkResult sup_allocate_command_buffer(sup_device *d, uint64_t pool, VkCommandBuffer *out);
void sup_free_command_buffer(sup_device *d, uint64_t pool, VkCommandBuffer cb);
// Begins cb, records and ends it; *op names the call that failed.
VkResult sup_record(sup_device *d, VkCommandBuffer cb, const sup_command *c, size_t n, const char **op);

VkResult sup_submit(sup_device *d, const uint64_t *cbs, uint32_t n, uint64_t semaphore, uint64_t value, uint64_t fence);
VkResult sup_create_timeline(sup_device *d, uint64_t *out);
void sup_destroy_semaphore(sup_device *d, uint64_t s);
VkResult sup_timeline_value(sup_device *d, uint64_t s, uint64_t *value);
VkResult sup_wait_timeline(sup_device *d, uint64_t s, uint64_t value, uint64_t ns);
VkResult sup_create_fence(sup_device *d, uint64_t *out);
void sup_destroy_fence(sup_device *d, uint64_t f);
VkResult sup_fence_status(sup_device *d, uint64_t f);
VkResult sup_reset_fence(sup_device *d, uint64_t f);
VkResult sup_wait_fence(sup_device *d, uint64_t f, uint64_t ns);

VkResult sup_create_queries(sup_device *d, uint32_t n, uint64_t *out);
void sup_destroy_queries(sup_device *d, uint64_t q);
VkResult sup_read_queries(sup_device *d, uint64_t q, uint32_t n, uint64_t *pairs);

#endif
