package vk

import (
	"errors"
	"strings"
	"testing"
)

// A device whose driver refuses what it has reported is made without that, and with all else where that helps.
func TestNewDeviceWithout(t *testing.T) {
	for _, x := range []struct {
		reject Features
		least  int // groups that have to go
	}{
		{Features{}, 0}, {Features{Timeline: true}, 1}, {Features{Int64: true}, 1}, {Features{RobustBufferAccess: true, Timeline: true}, 2},
		{featuresOf(1<<len(featureNames) - 1), 3},
	} {
		in, err := Open(Config{AppName: "caldera tests", Reject: x.reject})
		if errors.Is(err, ErrNoLoader) || errors.Is(err, ErrNoDevice) {
			t.Skip(err)
		}
		if err != nil {
			t.Fatal(err)
		}
		for _, info := range in.Devices() {
			p := must(ProfileFor(info, "auto"))
			_, err := in.NewDevice(info, p)
			asked := x.reject.both(p.Features)
			var e *Error
			if asked.Any() != (errors.As(err, &e) && e.Result == ErrorFeatureNotPresent) {
				t.Errorf("%s with %v refused: %v", info.Name, asked.Names(), err)
			}
			d, without, err := in.NewDeviceWithout(info, p)
			if err != nil {
				t.Fatalf("%s with %v refused: %v", info.Name, asked.Names(), err)
			}
			if lost := asked.Without(without); len(lost) > 0 {
				t.Errorf("%s: made with %v", info.Name, lost)
			}
			if !asked.Any() && without.Any() {
				t.Errorf("%s: made without %v for nothing", info.Name, without.Names())
			}
			if have := d.Profile().Features; have.both(without).Any() || have.either(without) != p.Features {
				t.Errorf("%s: %v and without %v of %v", info.Name, have.Names(), without.Names(), p.Features.Names())
			}
			groupsLost := 0
			for _, g := range featureGroups {
				if g.both(without).Any() {
					groupsLost++
				}
			}
			if x.least > 0 && x.least < 3 && asked.Any() && groupsLost > x.least+1 { // groups share features
				t.Errorf("%s: for %v it does without %v", info.Name, asked.Names(), without.Names())
			}
			check(t, d.Close())
		}
		in.Close()
	}
}

// Other failures are not answered by leaving features out, and if nothing helps the first failure is told.
func TestNewDeviceWithoutFails(t *testing.T) {
	for r, tries := range map[Result]bool{ErrorOutOfHostMemory: false, ErrorDeviceLost: false, ErrorInitializationFailed: true} {
		in, err := Open(Config{AppName: "caldera tests", Faults: []Fault{{"vkCreateDevice", 1, r}}})
		if errors.Is(err, ErrNoLoader) || errors.Is(err, ErrNoDevice) {
			t.Skip(err)
		}
		if err != nil {
			t.Fatal(err)
		}
		info := must(in.Select(""))
		_, _, err = in.NewDeviceWithout(info, must(ProfileFor(info, "auto")))
		if err == nil || !strings.Contains(err.Error(), r.String()) || refused(err) != tries {
			t.Errorf("%v: %v", r, err)
		}
		in.Close()
	}
}

func TestWithoutFeatures(t *testing.T) {
	p := Profile{FreeReads: true, Matrices: []Matrix{{M: 8}}, Features: Features{CooperativeMatrix: true, BufferAddress: true, Int64: true, Int8: true, Storage8: true}}
	if q := p.WithoutFeatures(Features{Timeline: true}); !q.FreeReads || q.Matrices == nil {
		t.Errorf("%+v", q)
	}
	if q := p.WithoutFeatures(Features{CooperativeMatrix: true, Int64: true}); q.FreeReads || q.Matrices != nil || q.Features.Int64 || !q.Features.Int8 {
		t.Errorf("%+v", q)
	}
}
