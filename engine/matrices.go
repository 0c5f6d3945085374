package engine

import (
	"errors"
	"fmt"

	"github.com/calderaml/caldera/scheduler"
	"github.com/calderaml/caldera/shaders"
)

// matrices is the shape of cooperative matrices that products of many rows take on a device that offers kernels k, or on the reference
// backend, for which k is nil. It is zero unless they are asked for, as tokens may then depend on how many rows a step has.
func (c *Config) matrices(k *shaders.Profile) (shaders.MatrixShape, error) {
	switch {
	case !c.Matrices:
		return shaders.MatrixShape{}, nil
	case k == nil:
		return shaders.MatrixShape{}, errors.New("the reference backend has no cooperative matrices; leave out --matrices")
	case k.CanMatrices == shaders.MatrixShape{}:
		return shaders.MatrixShape{}, fmt.Errorf("%w; leave out --matrices", shaders.ErrNoMatrices)
	}
	return k.CanMatrices, nil
}

// matrices is the configuration's matrices on a site that offers kernels k.
func (s *site) matrices(c *Config, k *shaders.Profile) (shaders.MatrixShape, error) {
	shape, err := c.matrices(k)
	return shape, s.refusal(err, func(k *shaders.Profile) bool { return k.CanMatrices != shaders.MatrixShape{} })
}

// checkMatrices refuses cooperative matrices where the model will run, if they are asked for and there are none.
func (p *planner) checkMatrices() error {
	if !p.vulkan() {
		_, err := p.cfg.matrices(nil)
		return err
	}
	for _, s := range p.sites {
		k := scheduler.Kernels(s.profile)
		if _, err := s.matrices(&p.cfg, &k); err != nil {
			return err
		}
	}
	return nil
}

// Matrices is the shape of the cooperative matrices that products of many rows take, zero where they take none.
func (e *Engine) Matrices() shaders.MatrixShape {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.die == nil {
		return shaders.MatrixShape{}
	}
	return e.die.Kernels.Matrices
}
