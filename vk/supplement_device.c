// The device, its function table, and every call on it.
#include "supplement_internal.h"

#include <stdlib.h>
#include <string.h>

VkResult sup_device_create(sup_instance *in, VkPhysicalDevice pd, uint32_t family, uint32_t features, sup_device **out, const char **what) {
	*what = "vkCreateDevice";
	VkPhysicalDeviceProperties p;
	in->GetPhysicalDeviceProperties(pd, &p);
	uint32_t api = p.apiVersion;
	if (api >= VK_MAKE_API_VERSION(0, 1, 4, 0)) api = VK_MAKE_API_VERSION(0, 1, 3, 0xfff);
	sup_exts e;
	sup_device_extensions(in, pd, api, &e);

	// Only structs of features that are asked for are chained, only their
	// extensions named.
	int on[SUP_EXTENSIONS] = {0};
	on[SUP_E_STORAGE8] = !!(features & SUP_STORAGE8);
	on[SUP_E_FLOAT16_INT8] = !!(features & (SUP_FLOAT16 | SUP_INT8));
	on[SUP_E_TIMELINE] = !!(features & SUP_TIMELINE);
	on[SUP_E_ADDRESS] = !!(features & SUP_ADDRESS);
	on[SUP_E_MEMORY_MODEL] = !!(features & SUP_MEMORYMODEL);
	on[SUP_E_SUBGROUP_SIZE] = !!(features & (SUP_SUBGROUPSIZE | SUP_FULLSUBGROUPS));
	on[SUP_E_INTDOT] = !!(features & SUP_INTDOT);
	on[SUP_E_COOPMAT] = !!(features & SUP_COOPMAT);
	on[SUP_E_HOSTIMPORT] = !!(features & SUP_HOSTIMPORT);
	on[SUP_E_BUDGET] = !!(features & SUP_BUDGET);
	on[SUP_E_PORTABILITY] = 1;
	const char *names[SUP_EXTENSIONS];
	uint32_t n = 0;
	for (int i = 0; i < SUP_EXTENSIONS; i++) {
		e.has[i] = e.has[i] && on[i];
		if (e.has[i] && e.name[i]) names[n++] = e.name[i];
	}
	sup_features f;
	sup_feature_chain(&f, &e);
	VkPhysicalDeviceFeatures *c = &f.base.features;
	c->robustBufferAccess = !!(features & SUP_ROBUST);
	c->shaderInt16 = !!(features & SUP_INT16);
	c->shaderInt64 = !!(features & SUP_INT64);
	c->shaderFloat64 = !!(features & SUP_FLOAT64);
	f.storage16.storageBuffer16BitAccess = !!(features & SUP_STORAGE16);
	f.storage8.storageBuffer8BitAccess = !!(features & SUP_STORAGE8);
	f.float16_int8.shaderFloat16 = !!(features & SUP_FLOAT16);
	f.float16_int8.shaderInt8 = !!(features & SUP_INT8);
	f.timeline.timelineSemaphore = 1;
	f.address.bufferDeviceAddress = 1;
	f.memory_model.vulkanMemoryModel = 1;
	f.subgroup_size.subgroupSizeControl = !!(features & SUP_SUBGROUPSIZE);
	f.subgroup_size.computeFullSubgroups = !!(features & SUP_FULLSUBGROUPS);
	f.intdot.shaderIntegerDotProduct = 1;
	f.coopmat.cooperativeMatrix = 1;

	float priority = 1;
	VkDeviceQueueCreateInfo qi = {VK_STRUCTURE_TYPE_DEVICE_QUEUE_CREATE_INFO};
	qi.queueFamilyIndex = family;
	qi.queueCount = 1;
	qi.pQueuePriorities = &priority;
	VkDeviceCreateInfo ci = {VK_STRUCTURE_TYPE_DEVICE_CREATE_INFO, &f.base};
	ci.queueCreateInfoCount = 1;
	ci.pQueueCreateInfos = &qi;
	ci.enabledExtensionCount = n;
	ci.ppEnabledExtensionNames = names;
	sup_device *d = calloc(1, sizeof *d);
	if (!d) return VK_ERROR_OUT_OF_HOST_MEMORY;
	VkResult r = in->CreateDevice(pd, &ci, NULL, &d->handle);
	if (r != VK_SUCCESS) {
		free(d);
		return r;
	}
#define LOAD(n) d->n = (PFN_vk##n)in->GetDeviceProcAddr(d->handle, "vk" #n)
	const char *missing = NULL;
#define X(n) \
	LOAD(n); \
	if (!d->n) missing = "vk" #n;
	SUP_DEVICE_FUNCTIONS(X)
#undef X
	if (features & SUP_TIMELINE) {
		// Core since 1.2; before that under the extension's name.
		LOAD(GetSemaphoreCounterValue);
		LOAD(WaitSemaphores);
		if (!d->WaitSemaphores || api < VK_API_VERSION_1_2) {
			d->GetSemaphoreCounterValue = (PFN_vkGetSemaphoreCounterValue)in->GetDeviceProcAddr(d->handle, "vkGetSemaphoreCounterValueKHR");
			d->WaitSemaphores = (PFN_vkWaitSemaphores)in->GetDeviceProcAddr(d->handle, "vkWaitSemaphoresKHR");
		}
		if (!d->GetSemaphoreCounterValue || !d->WaitSemaphores) missing = "vkWaitSemaphores";
	}
	if (features & SUP_ADDRESS) {
		LOAD(GetBufferDeviceAddress);
		if (!d->GetBufferDeviceAddress || api < VK_API_VERSION_1_2)
			d->GetBufferDeviceAddress = (PFN_vkGetBufferDeviceAddress)in->GetDeviceProcAddr(d->handle, "vkGetBufferDeviceAddressKHR");
		if (!d->GetBufferDeviceAddress) missing = "vkGetBufferDeviceAddress";
	}
	if (features & SUP_HOSTIMPORT) {
		LOAD(GetMemoryHostPointerPropertiesEXT);
		if (!d->GetMemoryHostPointerPropertiesEXT) missing = "vkGetMemoryHostPointerPropertiesEXT";
	}
#undef LOAD
	if (missing) {
		*what = missing;
		if (d->DestroyDevice) d->DestroyDevice(d->handle, NULL);
		free(d);
		return VK_ERROR_FEATURE_NOT_PRESENT;
	}
	d->GetDeviceQueue(d->handle, family, 0, &d->queue);
	*out = d;
	return VK_SUCCESS;
}

VkDevice sup_device_handle(sup_device *d) { return d->handle; }
VkQueue sup_device_queue(sup_device *d) { return d->queue; }
void sup_device_free(sup_device *d) { free(d); }

// Memory and buffers.

// Where kernels may use addresses, all memory and all buffers have them.

static const VkMemoryAllocateFlagsInfo addressed = {VK_STRUCTURE_TYPE_MEMORY_ALLOCATE_FLAGS_INFO, NULL, VK_MEMORY_ALLOCATE_DEVICE_ADDRESS_BIT, 0};

VkResult sup_allocate(sup_device *d, uint64_t size, uint32_t type, uint64_t *mem) {
	VkMemoryAllocateInfo i = {VK_STRUCTURE_TYPE_MEMORY_ALLOCATE_INFO, d->GetBufferDeviceAddress ? &addressed : NULL, size, type};
	VkDeviceMemory m = VK_NULL_HANDLE;
	VkResult r = d->AllocateMemory(d->handle, &i, NULL, &m);
	*mem = NUMBER(m);
	return r;
}

VkResult sup_import_types(sup_device *d, void *p, uint32_t *bits) {
	VkMemoryHostPointerPropertiesEXT r = {VK_STRUCTURE_TYPE_MEMORY_HOST_POINTER_PROPERTIES_EXT};
	VkResult e = d->GetMemoryHostPointerPropertiesEXT(d->handle, VK_EXTERNAL_MEMORY_HANDLE_TYPE_HOST_ALLOCATION_BIT_EXT, p, &r);
	*bits = r.memoryTypeBits;
	return e;
}

VkResult sup_import_memory(sup_device *d, void *p, uint64_t size, uint32_t type, uint64_t *mem) {
	VkImportMemoryHostPointerInfoEXT h = {VK_STRUCTURE_TYPE_IMPORT_MEMORY_HOST_POINTER_INFO_EXT, d->GetBufferDeviceAddress ? &addressed : NULL, VK_EXTERNAL_MEMORY_HANDLE_TYPE_HOST_ALLOCATION_BIT_EXT, p};
	VkMemoryAllocateInfo i = {VK_STRUCTURE_TYPE_MEMORY_ALLOCATE_INFO, &h, size, type};
	VkDeviceMemory m = VK_NULL_HANDLE;
	VkResult r = d->AllocateMemory(d->handle, &i, NULL, &m);
	*mem = NUMBER(m);
	return r;
}

void sup_free_memory(sup_device *d, uint64_t mem) { d->FreeMemory(d->handle, HANDLE(VkDeviceMemory, mem), NULL); }

VkResult sup_map(sup_device *d, uint64_t mem, void **p) { return d->MapMemory(d->handle, HANDLE(VkDeviceMemory, mem), 0, VK_WHOLE_SIZE, 0, p); }

VkResult sup_flush(sup_device *d, uint64_t mem, uint64_t off, uint64_t size) {
	VkMappedMemoryRange r = {VK_STRUCTURE_TYPE_MAPPED_MEMORY_RANGE, NULL, HANDLE(VkDeviceMemory, mem), off, size};
	return d->FlushMappedMemoryRanges(d->handle, 1, &r);
}

VkResult sup_invalidate(sup_device *d, uint64_t mem, uint64_t off, uint64_t size) {
	VkMappedMemoryRange r = {VK_STRUCTURE_TYPE_MAPPED_MEMORY_RANGE, NULL, HANDLE(VkDeviceMemory, mem), off, size};
	return d->InvalidateMappedMemoryRanges(d->handle, 1, &r);
}

VkResult sup_create_buffer(sup_device *d, uint64_t size, uint32_t usage, int imported, uint64_t *buf) {
	VkExternalMemoryBufferCreateInfo ext = {VK_STRUCTURE_TYPE_EXTERNAL_MEMORY_BUFFER_CREATE_INFO, NULL, VK_EXTERNAL_MEMORY_HANDLE_TYPE_HOST_ALLOCATION_BIT_EXT};
	VkBufferCreateInfo i = {VK_STRUCTURE_TYPE_BUFFER_CREATE_INFO};
	i.pNext = imported ? &ext : NULL;
	i.size = size;
	i.usage = usage | (d->GetBufferDeviceAddress ? VK_BUFFER_USAGE_SHADER_DEVICE_ADDRESS_BIT : 0);
	VkBuffer b = VK_NULL_HANDLE;
	VkResult r = d->CreateBuffer(d->handle, &i, NULL, &b);
	*buf = NUMBER(b);
	return r;
}

void sup_requirements(sup_device *d, uint64_t buf, uint64_t *size, uint64_t *align, uint32_t *types) {
	VkMemoryRequirements r;
	d->GetBufferMemoryRequirements(d->handle, HANDLE(VkBuffer, buf), &r);
	*size = r.size;
	*align = r.alignment;
	*types = r.memoryTypeBits;
}

VkResult sup_bind(sup_device *d, uint64_t buf, uint64_t mem, uint64_t off) {
	return d->BindBufferMemory(d->handle, HANDLE(VkBuffer, buf), HANDLE(VkDeviceMemory, mem), off);
}

uint64_t sup_buffer_address(sup_device *d, uint64_t buf) {
	VkBufferDeviceAddressInfo i = {VK_STRUCTURE_TYPE_BUFFER_DEVICE_ADDRESS_INFO, NULL, HANDLE(VkBuffer, buf)};
	return d->GetBufferDeviceAddress ? d->GetBufferDeviceAddress(d->handle, &i) : 0;
}

void sup_destroy_buffer(sup_device *d, uint64_t buf) { d->DestroyBuffer(d->handle, HANDLE(VkBuffer, buf), NULL); }

// Pipelines.

VkResult sup_create_set_layout(sup_device *d, uint32_t buffers, uint32_t texels, uint64_t *out) {
	VkDescriptorSetLayoutBinding b[SUP_MAX_TYPES];
	if (buffers > SUP_MAX_TYPES) return VK_ERROR_TOO_MANY_OBJECTS;
	for (uint32_t i = 0; i < buffers; i++) {
		VkDescriptorType t = texels >> i & 1 ? VK_DESCRIPTOR_TYPE_UNIFORM_TEXEL_BUFFER : VK_DESCRIPTOR_TYPE_STORAGE_BUFFER;
		b[i] = (VkDescriptorSetLayoutBinding){i, t, 1, VK_SHADER_STAGE_COMPUTE_BIT, NULL};
	}
	VkDescriptorSetLayoutCreateInfo ci = {VK_STRUCTURE_TYPE_DESCRIPTOR_SET_LAYOUT_CREATE_INFO, NULL, 0, buffers, b};
	VkDescriptorSetLayout l = VK_NULL_HANDLE;
	VkResult r = d->CreateDescriptorSetLayout(d->handle, &ci, NULL, &l);
	*out = NUMBER(l);
	return r;
}

void sup_destroy_set_layout(sup_device *d, uint64_t l) { d->DestroyDescriptorSetLayout(d->handle, HANDLE(VkDescriptorSetLayout, l), NULL); }

VkResult sup_create_layout(sup_device *d, uint64_t set_layout, uint32_t push_bytes, uint64_t *out) {
	VkDescriptorSetLayout sl = HANDLE(VkDescriptorSetLayout, set_layout);
	VkPushConstantRange pr = {VK_SHADER_STAGE_COMPUTE_BIT, 0, push_bytes};
	VkPipelineLayoutCreateInfo ci = {VK_STRUCTURE_TYPE_PIPELINE_LAYOUT_CREATE_INFO, NULL, 0, 1, &sl, push_bytes ? 1 : 0, &pr};
	VkPipelineLayout l = VK_NULL_HANDLE;
	VkResult r = d->CreatePipelineLayout(d->handle, &ci, NULL, &l);
	*out = NUMBER(l);
	return r;
}

void sup_destroy_layout(sup_device *d, uint64_t l) { d->DestroyPipelineLayout(d->handle, HANDLE(VkPipelineLayout, l), NULL); }

VkResult sup_create_cache(sup_device *d, const void *data, size_t len, uint64_t *out) {
	VkPipelineCacheCreateInfo ci = {VK_STRUCTURE_TYPE_PIPELINE_CACHE_CREATE_INFO, NULL, 0, len, data};
	VkPipelineCache c = VK_NULL_HANDLE;
	VkResult r = d->CreatePipelineCache(d->handle, &ci, NULL, &c);
	*out = NUMBER(c);
	return r;
}

VkResult sup_cache_data(sup_device *d, uint64_t cache, void *data, size_t *len) {
	return d->GetPipelineCacheData(d->handle, HANDLE(VkPipelineCache, cache), len, data);
}

void sup_destroy_cache(sup_device *d, uint64_t c) { d->DestroyPipelineCache(d->handle, HANDLE(VkPipelineCache, c), NULL); }

VkResult sup_create_module(sup_device *d, const void *spirv, size_t len, uint64_t *out) {
	// Words must be aligned; embedded bytes need not be.
	void *copy = NULL;
	if ((uintptr_t)spirv % 4) {
		copy = malloc(len);
		if (!copy) return VK_ERROR_OUT_OF_HOST_MEMORY;
		spirv = memcpy(copy, spirv, len);
	}
	VkShaderModuleCreateInfo ci = {VK_STRUCTURE_TYPE_SHADER_MODULE_CREATE_INFO, NULL, 0, len, spirv};
	VkShaderModule m = VK_NULL_HANDLE;
	VkResult r = d->CreateShaderModule(d->handle, &ci, NULL, &m);
	free(copy);
	*out = NUMBER(m);
	return r;
}

void sup_destroy_module(sup_device *d, uint64_t m) { d->DestroyShaderModule(d->handle, HANDLE(VkShaderModule, m), NULL); }

VkResult sup_create_pipeline(sup_device *d, uint64_t cache, uint64_t module, uint64_t layout, const uint32_t *spec, uint32_t specs, uint32_t subgroup, int full, uint64_t *out) {
	VkSpecializationMapEntry *e = specs ? calloc(specs, sizeof *e) : NULL;
	if (specs && !e) return VK_ERROR_OUT_OF_HOST_MEMORY;
	for (uint32_t i = 0; i < specs; i++) e[i] = (VkSpecializationMapEntry){i, i * 4, 4};
	VkSpecializationInfo si = {specs, e, (size_t)specs * 4, spec};
	VkPipelineShaderStageRequiredSubgroupSizeCreateInfo rs = {VK_STRUCTURE_TYPE_PIPELINE_SHADER_STAGE_REQUIRED_SUBGROUP_SIZE_CREATE_INFO, NULL, subgroup};
	VkComputePipelineCreateInfo ci = {VK_STRUCTURE_TYPE_COMPUTE_PIPELINE_CREATE_INFO};
	ci.stage.sType = VK_STRUCTURE_TYPE_PIPELINE_SHADER_STAGE_CREATE_INFO;
	ci.stage.pNext = subgroup ? &rs : NULL;
	ci.stage.flags = full ? VK_PIPELINE_SHADER_STAGE_CREATE_REQUIRE_FULL_SUBGROUPS_BIT : 0;
	ci.stage.stage = VK_SHADER_STAGE_COMPUTE_BIT;
	ci.stage.module = HANDLE(VkShaderModule, module);
	ci.stage.pName = "main";
	ci.stage.pSpecializationInfo = specs ? &si : NULL;
	ci.layout = HANDLE(VkPipelineLayout, layout);
	VkPipeline p = VK_NULL_HANDLE;
	VkResult r = d->CreateComputePipelines(d->handle, HANDLE(VkPipelineCache, cache), 1, &ci, NULL, &p);
	free(e);
	*out = NUMBER(p);
	return r;
}

void sup_destroy_pipeline(sup_device *d, uint64_t p) { d->DestroyPipeline(d->handle, HANDLE(VkPipeline, p), NULL); }

// Descriptor sets.

VkResult sup_create_set_pool(sup_device *d, uint32_t sets, uint32_t buffers, uint32_t texels, uint64_t *out) {
	VkDescriptorPoolSize ps[2] = {{VK_DESCRIPTOR_TYPE_STORAGE_BUFFER, buffers}, {VK_DESCRIPTOR_TYPE_UNIFORM_TEXEL_BUFFER, texels}};
	VkDescriptorPoolCreateInfo ci = {VK_STRUCTURE_TYPE_DESCRIPTOR_POOL_CREATE_INFO, NULL, 0, sets, texels ? 2 : 1, ps};
	VkDescriptorPool p = VK_NULL_HANDLE;
	VkResult r = d->CreateDescriptorPool(d->handle, &ci, NULL, &p);
	*out = NUMBER(p);
	return r;
}

void sup_destroy_set_pool(sup_device *d, uint64_t p) { d->DestroyDescriptorPool(d->handle, HANDLE(VkDescriptorPool, p), NULL); }

VkResult sup_allocate_set(sup_device *d, uint64_t pool, uint64_t layout, uint64_t *out) {
	VkDescriptorSetLayout l = HANDLE(VkDescriptorSetLayout, layout);
	VkDescriptorSetAllocateInfo ai = {VK_STRUCTURE_TYPE_DESCRIPTOR_SET_ALLOCATE_INFO, NULL, HANDLE(VkDescriptorPool, pool), 1, &l};
	VkDescriptorSet s = VK_NULL_HANDLE;
	VkResult r = d->AllocateDescriptorSets(d->handle, &ai, &s);
	*out = NUMBER(s);
	return r;
}

VkResult sup_create_view(sup_device *d, const sup_binding *b, uint64_t *out) {
	VkBufferViewCreateInfo ci = {VK_STRUCTURE_TYPE_BUFFER_VIEW_CREATE_INFO};
	ci.buffer = HANDLE(VkBuffer, b->buffer);
	ci.format = VK_FORMAT_R32G32B32A32_UINT;
	ci.offset = b->offset;
	ci.range = b->size;
	VkBufferView v = VK_NULL_HANDLE;
	VkResult r = d->CreateBufferView(d->handle, &ci, NULL, &v);
	*out = NUMBER(v);
	return r;
}

void sup_destroy_view(sup_device *d, uint64_t v) { d->DestroyBufferView(d->handle, HANDLE(VkBufferView, v), NULL); }

void sup_update_set(sup_device *d, uint64_t set, const sup_binding *b, uint32_t n) {
	VkDescriptorBufferInfo bi[SUP_MAX_TYPES];
	VkBufferView views[SUP_MAX_TYPES];
	VkWriteDescriptorSet w[SUP_MAX_TYPES];
	if (n == 0 || n > SUP_MAX_TYPES) return;
	for (uint32_t i = 0; i < n; i++) {
		w[i] = (VkWriteDescriptorSet){VK_STRUCTURE_TYPE_WRITE_DESCRIPTOR_SET};
		w[i].dstSet = HANDLE(VkDescriptorSet, set);
		w[i].dstBinding = i;
		w[i].descriptorCount = 1;
		if (b[i].view) {
			views[i] = HANDLE(VkBufferView, b[i].view);
			w[i].descriptorType = VK_DESCRIPTOR_TYPE_UNIFORM_TEXEL_BUFFER;
			w[i].pTexelBufferView = &views[i];
		} else {
			bi[i] = (VkDescriptorBufferInfo){HANDLE(VkBuffer, b[i].buffer), b[i].offset, b[i].size};
			w[i].descriptorType = VK_DESCRIPTOR_TYPE_STORAGE_BUFFER;
			w[i].pBufferInfo = &bi[i];
		}
	}
	d->UpdateDescriptorSets(d->handle, n, w, 0, NULL);
}

// Recording.

VkResult sup_create_command_pool(sup_device *d, uint32_t family, uint64_t *out) {
	VkCommandPoolCreateInfo ci = {VK_STRUCTURE_TYPE_COMMAND_POOL_CREATE_INFO, NULL, VK_COMMAND_POOL_CREATE_RESET_COMMAND_BUFFER_BIT, family};
	VkCommandPool p = VK_NULL_HANDLE;
	VkResult r = d->CreateCommandPool(d->handle, &ci, NULL, &p);
	*out = NUMBER(p);
	return r;
}

void sup_destroy_command_pool(sup_device *d, uint64_t p) { d->DestroyCommandPool(d->handle, HANDLE(VkCommandPool, p), NULL); }

VkResult sup_allocate_command_buffer(sup_device *d, uint64_t pool, VkCommandBuffer *out) {
	VkCommandBufferAllocateInfo ai = {VK_STRUCTURE_TYPE_COMMAND_BUFFER_ALLOCATE_INFO, NULL, HANDLE(VkCommandPool, pool), VK_COMMAND_BUFFER_LEVEL_PRIMARY, 1};
	return d->AllocateCommandBuffers(d->handle, &ai, out);
}

void sup_free_command_buffer(sup_device *d, uint64_t pool, VkCommandBuffer cb) { d->FreeCommandBuffers(d->handle, HANDLE(VkCommandPool, pool), 1, &cb); }

static const VkPipelineStageFlags work_stages = VK_PIPELINE_STAGE_COMPUTE_SHADER_BIT | VK_PIPELINE_STAGE_TRANSFER_BIT;
static const VkAccessFlags work_writes = VK_ACCESS_SHADER_WRITE_BIT | VK_ACCESS_TRANSFER_WRITE_BIT;

static void work_barrier(sup_device *d, VkCommandBuffer cb) {
	VkMemoryBarrier b = {VK_STRUCTURE_TYPE_MEMORY_BARRIER, NULL, work_writes,
	                     work_writes | VK_ACCESS_SHADER_READ_BIT | VK_ACCESS_TRANSFER_READ_BIT | VK_ACCESS_INDIRECT_COMMAND_READ_BIT};
	d->CmdPipelineBarrier(cb, work_stages, work_stages | VK_PIPELINE_STAGE_DRAW_INDIRECT_BIT, 0, 1, &b, 0, NULL, 0, NULL);
}

static void host_barrier(sup_device *d, VkCommandBuffer cb) {
	VkMemoryBarrier b = {VK_STRUCTURE_TYPE_MEMORY_BARRIER, NULL, work_writes, VK_ACCESS_HOST_READ_BIT};
	d->CmdPipelineBarrier(cb, work_stages, VK_PIPELINE_STAGE_HOST_BIT, 0, 1, &b, 0, NULL, 0, NULL);
}

VkResult sup_record(sup_device *d, VkCommandBuffer cb, const sup_command *c, size_t n, const char **op) {
	VkCommandBufferBeginInfo bi = {VK_STRUCTURE_TYPE_COMMAND_BUFFER_BEGIN_INFO};
	*op = "vkBeginCommandBuffer";
	VkResult r = d->BeginCommandBuffer(cb, &bi);
	if (r != VK_SUCCESS) return r;
	uint64_t pipeline = 0, layout = 0, set = 0;
	for (size_t i = 0; i < n; i++, c++) {
		if (c->barrier) work_barrier(d, cb);
		VkQueryPool q = HANDLE(VkQueryPool, c->queries);
		if (c->before) d->CmdWriteTimestamp(cb, VK_PIPELINE_STAGE_BOTTOM_OF_PIPE_BIT, q, c->before - 1);
		switch (c->kind) {
		case SUP_DISPATCH:
		case SUP_INDIRECT: {
			VkPipelineLayout l = HANDLE(VkPipelineLayout, c->layout);
			if (c->pipeline != pipeline) d->CmdBindPipeline(cb, VK_PIPELINE_BIND_POINT_COMPUTE, HANDLE(VkPipeline, c->pipeline));
			if (c->set && (c->set != set || c->layout != layout)) {
				VkDescriptorSet s = HANDLE(VkDescriptorSet, c->set);
				d->CmdBindDescriptorSets(cb, VK_PIPELINE_BIND_POINT_COMPUTE, l, 0, 1, &s, 0, NULL);
			}
			pipeline = c->pipeline, layout = c->layout, set = c->set;
			if (c->push_bytes) d->CmdPushConstants(cb, l, VK_SHADER_STAGE_COMPUTE_BIT, 0, c->push_bytes, c->push);
			if (c->kind == SUP_DISPATCH) d->CmdDispatch(cb, c->groups[0], c->groups[1], c->groups[2]);
			else d->CmdDispatchIndirect(cb, HANDLE(VkBuffer, c->src), c->src_off);
			break;
		}
		case SUP_COPY: {
			VkBufferCopy bc = {c->src_off, c->dst_off, c->size};
			d->CmdCopyBuffer(cb, HANDLE(VkBuffer, c->src), HANDLE(VkBuffer, c->dst), 1, &bc);
			break;
		}
		case SUP_FILL: d->CmdFillBuffer(cb, HANDLE(VkBuffer, c->dst), c->dst_off, c->size, c->value); break;
		case SUP_RESET_QUERIES: d->CmdResetQueryPool(cb, q, 0, c->value); break;
		case SUP_HOST_BARRIER: host_barrier(d, cb); break;
		case SUP_BARRIER: break;
		}
		if (c->after) d->CmdWriteTimestamp(cb, VK_PIPELINE_STAGE_BOTTOM_OF_PIPE_BIT, q, c->after - 1);
	}
	*op = "vkEndCommandBuffer";
	return d->EndCommandBuffer(cb);
}

// Submission.

VkResult sup_submit(sup_device *d, const uint64_t *cbs, uint32_t n, uint64_t semaphore, uint64_t value, uint64_t fence) {
	VkSemaphore s = HANDLE(VkSemaphore, semaphore);
	VkTimelineSemaphoreSubmitInfo t = {VK_STRUCTURE_TYPE_TIMELINE_SEMAPHORE_SUBMIT_INFO, NULL, 0, NULL, 1, &value};
	VkSubmitInfo i = {VK_STRUCTURE_TYPE_SUBMIT_INFO};
	_Static_assert(sizeof(VkCommandBuffer) == sizeof(uint64_t), "command buffer handles are pointers");
	i.commandBufferCount = n;
	i.pCommandBuffers = (const VkCommandBuffer *)cbs;
	if (semaphore) {
		i.pNext = &t;
		i.signalSemaphoreCount = 1;
		i.pSignalSemaphores = &s;
	}
	return d->QueueSubmit(d->queue, 1, &i, HANDLE(VkFence, fence));
}

VkResult sup_create_timeline(sup_device *d, uint64_t *out) {
	VkSemaphoreTypeCreateInfo t = {VK_STRUCTURE_TYPE_SEMAPHORE_TYPE_CREATE_INFO, NULL, VK_SEMAPHORE_TYPE_TIMELINE, 0};
	VkSemaphoreCreateInfo ci = {VK_STRUCTURE_TYPE_SEMAPHORE_CREATE_INFO, &t, 0};
	VkSemaphore s = VK_NULL_HANDLE;
	VkResult r = d->CreateSemaphore(d->handle, &ci, NULL, &s);
	*out = NUMBER(s);
	return r;
}

void sup_destroy_semaphore(sup_device *d, uint64_t s) { d->DestroySemaphore(d->handle, HANDLE(VkSemaphore, s), NULL); }

VkResult sup_timeline_value(sup_device *d, uint64_t s, uint64_t *value) { return d->GetSemaphoreCounterValue(d->handle, HANDLE(VkSemaphore, s), value); }

VkResult sup_wait_timeline(sup_device *d, uint64_t semaphore, uint64_t value, uint64_t ns) {
	VkSemaphore s = HANDLE(VkSemaphore, semaphore);
	VkSemaphoreWaitInfo i = {VK_STRUCTURE_TYPE_SEMAPHORE_WAIT_INFO, NULL, 0, 1, &s, &value};
	return d->WaitSemaphores(d->handle, &i, ns);
}

VkResult sup_create_fence(sup_device *d, uint64_t *out) {
	VkFenceCreateInfo ci = {VK_STRUCTURE_TYPE_FENCE_CREATE_INFO};
	VkFence f = VK_NULL_HANDLE;
	VkResult r = d->CreateFence(d->handle, &ci, NULL, &f);
	*out = NUMBER(f);
	return r;
}

void sup_destroy_fence(sup_device *d, uint64_t f) { d->DestroyFence(d->handle, HANDLE(VkFence, f), NULL); }
VkResult sup_fence_status(sup_device *d, uint64_t f) { return d->GetFenceStatus(d->handle, HANDLE(VkFence, f)); }

VkResult sup_reset_fence(sup_device *d, uint64_t fence) {
	VkFence f = HANDLE(VkFence, fence);
	return d->ResetFences(d->handle, 1, &f);
}

VkResult sup_wait_fence(sup_device *d, uint64_t fence, uint64_t ns) {
	VkFence f = HANDLE(VkFence, fence);
	return d->WaitForFences(d->handle, 1, &f, VK_TRUE, ns);
}

// Timestamps.

VkResult sup_create_queries(sup_device *d, uint32_t n, uint64_t *out) {
	VkQueryPoolCreateInfo ci = {VK_STRUCTURE_TYPE_QUERY_POOL_CREATE_INFO, NULL, 0, VK_QUERY_TYPE_TIMESTAMP, n, 0};
	VkQueryPool q = VK_NULL_HANDLE;
	VkResult r = d->CreateQueryPool(d->handle, &ci, NULL, &q);
	*out = NUMBER(q);
	return r;
}

void sup_destroy_queries(sup_device *d, uint64_t q) { d->DestroyQueryPool(d->handle, HANDLE(VkQueryPool, q), NULL); }

VkResult sup_read_queries(sup_device *d, uint64_t q, uint32_t n, uint64_t *pairs) {
	return d->GetQueryPoolResults(d->handle, HANDLE(VkQueryPool, q), 0, n, (size_t)n * 16, pairs, 16,
	                              VK_QUERY_RESULT_64_BIT | VK_QUERY_RESULT_WITH_AVAILABILITY_BIT);
}
