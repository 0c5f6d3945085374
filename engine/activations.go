package engine

import (
	"fmt"
	"slices"

	"github.com/calderaml/caldera/gguf/quant"
	"github.com/calderaml/caldera/scheduler"
	"github.com/calderaml/caldera/shaders"
	"github.com/calderaml/caldera/vk"
)

// Activations are what the inputs of products with weights are.
const (
	ActivationsAuto = "auto" // int8 on devices that are faster by it, f32 on others and with cooperative matrices
	ActivationsF32  = "f32"
	ActivationsInt8 = "int8" // whole numbers with a unit for each 256, where the weights' block type allows it (shaders.Packs)
)

// packs reports whether inputs are packed into whole numbers on a device that offers kernels k, or on the reference backend, for
// which k is nil. It is the same for steps of one row and of many, as a sequence's tokens must not depend on what else runs.
func (c *Config) packs(k *shaders.Profile) (bool, error) {
	switch {
	case c.Activations == ActivationsF32 || c.Matrices || k == nil && c.Activations == ActivationsAuto:
		return false, nil
	case k == nil:
		return true, nil
	case c.Activations == ActivationsAuto:
		return k.Spread && k.CanPack(), nil
	case !k.CanPack():
		return false, fmt.Errorf("%w; use --activations %s", shaders.ErrNotPacked, ActivationsF32)
	}
	return true, nil
}

// packs is the configuration's packs on a site.
func (s *site) packs(c *Config) (bool, error) {
	k := scheduler.Kernels(s.profile)
	packs, err := c.packs(&k)
	return packs, s.refusal(err, (*shaders.Profile).CanPack)
}

// refusal names the device in an error about its kernels, and the profile if the device could do it without.
func (s *site) refusal(err error, can func(*shaders.Profile) bool) error {
	if err == nil {
		return nil
	}
	err = fmt.Errorf("%s, profile %s: %w", s.info.Name, s.profile.Name, err)
	if whole, perr := vk.ProfileFor(s.info, ""); perr == nil {
		if k := scheduler.Kernels(whole); can(&k) {
			err = fmt.Errorf("%w, or --profile %s, with which the device could", err, whole.Name)
		}
	}
	return err
}

// activations decides what the inputs of products are where the model will run. All devices of a model take the same: it must be
// possible on all, and is chosen where it is faster on all.
func (p *planner) activations() (err error) {
	if !p.vulkan() {
		p.model.Packs, err = p.cfg.packs(nil)
		return err
	}
	all := true
	for _, s := range p.sites {
		packs, err := s.packs(&p.cfg)
		if err != nil {
			return err
		}
		all = all && packs
	}
	p.model.Packs = all
	return nil
}

// Activations are what the inputs of products are, never auto. Weights of block types that cannot do otherwise have f32.
func (e *Engine) Activations() string {
	if e.model.Packs {
		return ActivationsInt8
	}
	return ActivationsF32
}

// PackedTypes are the block types of the model's weights whose products have inputs in whole numbers, none with f32.
func (e *Engine) PackedTypes() []quant.Type {
	if !e.model.Packs {
		return nil
	}
	_, head := e.file.Tensor("output.weight")
	var types []quant.Type
	for _, t := range e.file.Tensors() {
		if shaders.Packs(t.Type) && !slices.Contains(types, t.Type) && !slices.Contains(e.model.Unused, t.Name) &&
			!(head && t.Name == "token_embd.weight") { // rows of it are taken, without a product
			types = append(types, t.Type)
		}
	}
	slices.Sort(types)
	return types
}
