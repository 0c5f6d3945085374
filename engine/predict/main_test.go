package predict

import (
	"errors"
	"testing"

	"github.com/calderaml/caldera/engine"
	"github.com/calderaml/caldera/engine/demo"
	"github.com/calderaml/caldera/vk"
)

// blueprint opens the demo model's header.
func blueprint(t testing.TB, change func(*engine.Config)) *engine.Blueprint {
	t.Helper()
	c := engine.Config{Data: demo.Model(), Name: demo.Name}
	if change != nil {
		change(&c)
	}
	b, err := engine.OpenBlueprint(c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := b.Close(); err != nil {
			t.Error(err)
		}
	})
	return b
}

// instance opens Vulkan.
func instance(t testing.TB) *vk.Instance {
	t.Helper()
	in, err := vk.Open(vk.Config{AppName: "caldera tests"})
	if errors.Is(err, vk.ErrNoLoader) || errors.Is(err, vk.ErrNoDevice) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if n := in.ValidationCount(); n > 0 {
			t.Errorf("the validation layers say %v", in.ValidationMessages())
		}
		in.Close()
	})
	return in
}
