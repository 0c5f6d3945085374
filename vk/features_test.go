package vk

import "testing"

// Names and the features of names are each other's inverse.
func TestFeaturesOf(t *testing.T) {
	for bits := range uint32(1 << len(featureNames)) {
		if bits%977 != 0 && bits&(bits-1) != 0 {
			continue
		}
		f := featuresOf(bits)
		if got, unknown := FeaturesOf(f.Names()); got != f || unknown != "" {
			t.Errorf("%v gives %v, %q", f.Names(), got.Names(), unknown)
		}
	}
	if _, unknown := FeaturesOf([]string{"fp16", "warp"}); unknown != "warp" {
		t.Errorf("%q is unknown", unknown)
	}
}
