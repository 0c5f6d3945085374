package vk

import (
	"fmt"
	"strconv"
	"strings"
)

// Select returns the device that name stands for: "" is the best usable one
// (discrete, integrated, virtual, other, cpu; among equals the lower index, but
// of software implementations the one with the larger subgroups, which are its
// vectors), a decimal number is an index, and anything else is a prefix of a
// UUID of at least eight hex digits or part of a device name, driver name or
// driver info, whatever the case. The error wraps ErrNoDevice and lists the
// devices when none or more than one fits.
func (in *Instance) Select(name string) (DeviceInfo, error) {
	return selectDevice(in.devices, name)
}

// SelectAll is Select for several names with commas between. A device may be there more than once.
func (in *Instance) SelectAll(names string) ([]DeviceInfo, error) {
	list := strings.Split(names, ",")
	var all []DeviceInfo
	for _, name := range list {
		if strings.TrimSpace(name) == "" && len(list) > 1 {
			return nil, fmt.Errorf("%w: one of the names in %q is empty", ErrNoDevice, names)
		}
		info, err := in.Select(name)
		if err != nil {
			return nil, err
		}
		all = append(all, info)
	}
	return all, nil
}

func selectDevice(devices []DeviceInfo, name string) (DeviceInfo, error) {
	if len(devices) == 0 {
		return DeviceInfo{}, fmt.Errorf("%w: %s", ErrNoDevice, noDeviceHint)
	}
	name = strings.TrimSpace(name)
	if name == "" {
		best := -1
		for i, d := range devices {
			if len(d.Missing()) > 0 {
				continue
			}
			if best < 0 || better(d, devices[best]) {
				best = i
			}
		}
		if best < 0 {
			d := devices[0]
			return DeviceInfo{}, fmt.Errorf("%w: no device is usable; %s lacks %s", ErrNoDevice, d, strings.Join(d.Missing(), ", "))
		}
		return devices[best], nil
	}
	if n, err := strconv.Atoi(name); err == nil && len(name) < 8 {
		for _, d := range devices {
			if d.Index == n {
				return d, nil
			}
		}
		return DeviceInfo{}, fmt.Errorf("%w: no device %d among %s", ErrNoDevice, n, list(devices))
	}
	for _, match := range []func(DeviceInfo) bool{
		uuidMatcher(name),
		func(d DeviceInfo) bool { return strings.EqualFold(d.Name, name) },
		func(d DeviceInfo) bool { return contains(d.Name, name) || contains(d.DriverName, name) },
		func(d DeviceInfo) bool { return contains(d.DriverInfo, name) },
		// The readable form that String prints, so that a line of a listing can be pasted.
		func(d DeviceInfo) bool { return contains(d.String(), name) },
	} {
		var found []DeviceInfo
		for _, d := range devices {
			if match(d) {
				found = append(found, d)
			}
		}
		if len(found) == 1 {
			return found[0], nil
		}
		if len(found) > 1 {
			return DeviceInfo{}, fmt.Errorf("%w: %q fits several devices: %s", ErrNoDevice, name, list(found))
		}
	}
	return DeviceInfo{}, fmt.Errorf("%w: no device fits %q among %s", ErrNoDevice, name, list(devices))
}

// better reports whether a device is preferred to one before it. How large subgroups are says nothing of a GPU's speed.
func better(d, before DeviceInfo) bool {
	if r, b := d.Type.rank(), before.Type.rank(); r != b {
		return r < b
	}
	return d.Software() && before.Software() && d.Subgroup.Size > before.Subgroup.Size
}

// uuidMatcher matches a UUID prefix of at least eight hex digits, dashes ignored.
func uuidMatcher(name string) func(DeviceInfo) bool {
	hex := strings.ToLower(strings.ReplaceAll(name, "-", ""))
	if len(hex) < 8 || strings.Trim(hex, "0123456789abcdef") != "" {
		return func(DeviceInfo) bool { return false }
	}
	return func(d DeviceInfo) bool { return strings.HasPrefix(d.UUID, hex) }
}

func contains(s, part string) bool {
	return strings.Contains(strings.ToLower(s), strings.ToLower(part))
}

func list(devices []DeviceInfo) string {
	var s []string
	for _, d := range devices {
		s = append(s, d.String())
	}
	return strings.Join(s, "; ")
}
