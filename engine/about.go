package engine

import (
	"github.com/calderaml/caldera/gguf"
	"github.com/calderaml/caldera/vk"
)

// About is what people know a model by.
type About struct {
	Name     string // as the file says
	Arch     string
	FileType string // such as Q4_K_M, empty where the file does not say
	Params   int64
	Bytes    int64 // of the parameters
}

// About describes the model.
func (e *Engine) About() About {
	a := About{Arch: e.model.Arch, Name: e.model.Name}
	if id, err := e.file.Uint32("general.file_type"); err == nil {
		a.FileType = gguf.FileTypeName(id)
	}
	for _, t := range e.file.Tensors() {
		n := int64(1)
		for _, d := range t.Dims {
			n *= int64(d)
		}
		a.Params += n
		a.Bytes += t.Size
	}
	return a
}

// InjectFault makes a call of each device fail, for tests, see [vk.Device.InjectFault]. The reference backend has no device.
func (e *Engine) InjectFault(call string, n int, result vk.Result) {
	for _, d := range e.where.Dies {
		d.Device.InjectFault(call, n, result)
	}
}
