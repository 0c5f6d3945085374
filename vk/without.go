package vk

import (
	"errors"
	"fmt"
	"slices"
	"strings"
)

// featureGroups are the optional features as they are given up where a driver reports them and then refuses a device with them:
// those that belong together, the ones that cost least to do without first.
var featureGroups = []Features{
	{Float64: true},
	{IntDot: true, IntDotAccelerated: true},
	{CooperativeMatrix: true, MemoryModel: true, FullSubgroups: true},
	{Float16: true, Storage16: true, Int16: true},
	{BufferAddress: true, Int64: true, Int8: true, Storage8: true},
	{SubgroupSize: true, FullSubgroups: true},
	{MemoryBudget: true},
	{HostImport: true},
	{RobustBufferAccess: true},
	{Timeline: true},
}

// both are the features that f and g have, and either those that one of them has.
func (f Features) both(g Features) Features   { return featuresOf(f.bits() & g.bits()) }
func (f Features) either(g Features) Features { return featuresOf(f.bits() | g.bits()) }

// Any reports whether f has some feature.
func (f Features) Any() bool { return f.bits() != 0 }

// WithoutFeatures is the profile restricted to other features, with what follows from these.
func (p Profile) WithoutFeatures(f Features) Profile {
	p.Features = featuresOf(p.Features.bits() &^ f.bits())
	if !p.Features.CooperativeMatrix {
		p.Matrices = nil
	}
	h := p.Features
	p.FreeReads = p.FreeReads && h.BufferAddress && h.Int64 && h.Int8 && h.Storage8
	return p
}

// refused reports whether a driver refused a device for what was asked of it, and not for want of memory or because the
// device is gone.
func refused(err error) bool {
	var e *Error
	if !errors.As(err, &e) || e.Op != "vkCreateDevice" {
		return false
	}
	switch e.Result {
	case ErrorFeatureNotPresent, ErrorExtensionNotPresent, ErrorInitializationFailed, ErrorUnknown:
		return true
	}
	return false
}

// NewDeviceWithout is NewDevice, and tries again where the driver refuses features that it has reported: without one group
// of optional features after the other, then without more and more of them. It returns what the device is made
// without. If none of that helps, the error is the first.
func (in *Instance) NewDeviceWithout(info DeviceInfo, p Profile) (*Device, Features, error) {
	d, err := in.NewDevice(info, p)
	if err == nil || !refused(err) {
		return d, Features{}, err
	}
	var has []Features
	for _, g := range featureGroups {
		if g = g.both(p.Features); g.Any() {
			has = append(has, g)
		}
	}
	tries := slices.Clone(has)
	var all Features
	for i, g := range has {
		if all = all.either(g); i > 0 {
			tries = append(tries, all)
		}
	}
	for i, f := range tries {
		d, again := in.NewDevice(info, p.WithoutFeatures(f))
		if again == nil && i >= len(has) {
			return in.giveBack(info, p, has[:i-len(has)+2], d, f)
		}
		if again == nil || !refused(again) {
			return d, f, again
		}
	}
	return nil, Features{}, err
}

// giveBack gives a device that is made without several groups of features as many of them back as it can be made with.
func (in *Instance) giveBack(info DeviceInfo, p Profile, gone []Features, d *Device, without Features) (*Device, Features, error) {
	for i := range gone {
		var rest Features // groups share features
		for j, g := range gone {
			if j != i && g.both(without) == g {
				rest = rest.either(g)
			}
		}
		if rest == without {
			continue
		}
		better, err := in.NewDevice(info, p.WithoutFeatures(rest))
		if err != nil {
			continue
		}
		if err := d.Close(); err != nil {
			return nil, without, errors.Join(err, better.Close())
		}
		d, without = better, rest
	}
	return d, without, nil
}

// rejects is the failure of making a device with features that [Config.Reject] has, nil without.
func (in *Instance) rejects(info DeviceInfo, p Profile) error {
	if f := in.cfg.Reject.both(p.Features); f.Any() {
		return &Error{"vkCreateDevice", ErrorFeatureNotPresent, fmt.Sprintf("%s, as configured: %s", info.Name, strings.Join(f.Names(), " "))}
	}
	return nil
}
