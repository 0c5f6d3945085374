package vk

import (
	"errors"
	"fmt"

	vulkan "github.com/goki/vulkan"
)

// Sentinels for use with errors.Is. An *Error matches the sentinel of its
// Result.
var (
	ErrDeviceLost        = errors.New("vk: device lost")
	ErrOutOfDeviceMemory = errors.New("vk: out of device memory")
	ErrOutOfHostMemory   = errors.New("vk: out of host memory")
	ErrNoLoader          = errors.New("vk: no Vulkan loader")
	ErrNoDevice          = errors.New("vk: no Vulkan device")
	ErrUnsupported       = errors.New("vk: unsupported")
	ErrTimeout           = errors.New("vk: timeout")
	// ErrHang reports work that did not end within the device's time limit. Such
	// a device counts as lost: the error matches ErrDeviceLost too.
	ErrHang = errors.New("vk: device hangs")
	// ErrBusy reports that a command buffer is still executing.
	ErrBusy = errors.New("vk: still executing")
	// ErrClosed reports the use of a closed device or a freed object.
	ErrClosed = errors.New("vk: closed")
	// ErrInvalid reports arguments that Vulkan forbids: a range outside a
	// buffer, too many groups, a missing push constant.
	ErrInvalid = errors.New("vk: invalid argument")
)

// A Result is a VkResult.
type Result int32

// The results this package tells apart.
const (
	Success                    = Result(vulkan.Success)
	NotReady                   = Result(vulkan.NotReady)
	Timeout                    = Result(vulkan.Timeout)
	Incomplete                 = Result(vulkan.Incomplete)
	ErrorOutOfHostMemory       = Result(vulkan.ErrorOutOfHostMemory)
	ErrorOutOfDeviceMemory     = Result(vulkan.ErrorOutOfDeviceMemory)
	ErrorInitializationFailed  = Result(vulkan.ErrorInitializationFailed)
	ErrorDeviceLost            = Result(vulkan.ErrorDeviceLost)
	ErrorMemoryMapFailed       = Result(vulkan.ErrorMemoryMapFailed)
	ErrorLayerNotPresent       = Result(vulkan.ErrorLayerNotPresent)
	ErrorExtensionNotPresent   = Result(vulkan.ErrorExtensionNotPresent)
	ErrorFeatureNotPresent     = Result(vulkan.ErrorFeatureNotPresent)
	ErrorIncompatibleDriver    = Result(vulkan.ErrorIncompatibleDriver)
	ErrorTooManyObjects        = Result(vulkan.ErrorTooManyObjects)
	ErrorFormatNotSupported    = Result(vulkan.ErrorFormatNotSupported)
	ErrorFragmentedPool        = Result(vulkan.ErrorFragmentedPool)
	ErrorUnknown               = Result(vulkan.ErrorUnknown)
	ErrorOutOfPoolMemory       = Result(vulkan.ErrorOutOfPoolMemory)
	ErrorInvalidExternalHandle = Result(vulkan.ErrorInvalidExternalHandle)
	ErrorFragmentation         = Result(vulkan.ErrorFragmentation)
	ErrorValidationFailed      = Result(vulkan.ErrorValidationFailed)
	ErrorInvalidShader         = Result(vulkan.ErrorInvalidShaderNv)
)

var resultNames = map[Result]string{
	Success:                    "VK_SUCCESS",
	NotReady:                   "VK_NOT_READY",
	Timeout:                    "VK_TIMEOUT",
	Incomplete:                 "VK_INCOMPLETE",
	ErrorOutOfHostMemory:       "VK_ERROR_OUT_OF_HOST_MEMORY",
	ErrorOutOfDeviceMemory:     "VK_ERROR_OUT_OF_DEVICE_MEMORY",
	ErrorInitializationFailed:  "VK_ERROR_INITIALIZATION_FAILED",
	ErrorDeviceLost:            "VK_ERROR_DEVICE_LOST",
	ErrorMemoryMapFailed:       "VK_ERROR_MEMORY_MAP_FAILED",
	ErrorLayerNotPresent:       "VK_ERROR_LAYER_NOT_PRESENT",
	ErrorExtensionNotPresent:   "VK_ERROR_EXTENSION_NOT_PRESENT",
	ErrorFeatureNotPresent:     "VK_ERROR_FEATURE_NOT_PRESENT",
	ErrorIncompatibleDriver:    "VK_ERROR_INCOMPATIBLE_DRIVER",
	ErrorTooManyObjects:        "VK_ERROR_TOO_MANY_OBJECTS",
	ErrorFormatNotSupported:    "VK_ERROR_FORMAT_NOT_SUPPORTED",
	ErrorFragmentedPool:        "VK_ERROR_FRAGMENTED_POOL",
	ErrorUnknown:               "VK_ERROR_UNKNOWN",
	ErrorOutOfPoolMemory:       "VK_ERROR_OUT_OF_POOL_MEMORY",
	ErrorInvalidExternalHandle: "VK_ERROR_INVALID_EXTERNAL_HANDLE",
	ErrorFragmentation:         "VK_ERROR_FRAGMENTATION",
	ErrorValidationFailed:      "VK_ERROR_VALIDATION_FAILED",
	ErrorInvalidShader:         "VK_ERROR_INVALID_SHADER",
}

// String returns the VK_... name of r.
func (r Result) String() string {
	if s, ok := resultNames[r]; ok {
		return s
	}
	return fmt.Sprintf("VkResult(%d)", int32(r))
}

// An Error is a failed Vulkan call.
type Error struct {
	Op     string // the Vulkan call, such as "vkAllocateMemory"
	Result Result // what it returned
	Detail string // what was being done; may be empty
}

func (e *Error) Error() string {
	s := "vk: " + e.Op + ": " + e.Result.String()
	if e.Detail != "" {
		s += " (" + e.Detail + ")"
	}
	return s
}

// Is reports whether e is the kind of failure that target stands for.
func (e *Error) Is(target error) bool {
	switch e.Result {
	case ErrorDeviceLost:
		return target == ErrDeviceLost
	case ErrorOutOfDeviceMemory, ErrorOutOfPoolMemory, ErrorFragmentedPool, ErrorFragmentation, ErrorTooManyObjects:
		return target == ErrOutOfDeviceMemory
	case ErrorOutOfHostMemory:
		return target == ErrOutOfHostMemory
	case ErrorIncompatibleDriver:
		return target == ErrNoDevice
	case ErrorFeatureNotPresent, ErrorExtensionNotPresent, ErrorLayerNotPresent, ErrorFormatNotSupported, ErrorInvalidExternalHandle:
		return target == ErrUnsupported
	case Timeout, NotReady:
		return target == ErrTimeout
	}
	return false
}

// invalid returns an error that wraps ErrInvalid.
func invalid(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrInvalid, fmt.Sprintf(format, args...))
}

// unsupported returns an error that wraps ErrUnsupported.
func unsupported(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrUnsupported, fmt.Sprintf(format, args...))
}
