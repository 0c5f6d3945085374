package main

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/calderaml/caldera/vk"
)

// devicesResult is what devices --json prints. With no device the list is empty, Error says what to install and the
// exit code is 4.
type devicesResult struct {
	Schema  string       `json:"schema"` // "caldera.devices/1"
	Loader  string       `json:"loader"` // API version of the Vulkan loader, empty without one
	Devices []deviceInfo `json:"devices"`
	Error   string       `json:"error,omitempty"`
}

// deviceInfo describes a device and the capability profile that --profile leaves of it.
type deviceInfo struct {
	Index      int          `json:"index"` // as vulkaninfo counts
	Name       string       `json:"name"`
	Type       string       `json:"type"`     // "discrete", "integrated", "virtual", "cpu" or "other"
	Software   bool         `json:"software"` // computes on the CPU
	Driver     string       `json:"driver"`
	DriverInfo string       `json:"driver_info"`
	APIVersion string       `json:"api_version"`
	Vendor     string       `json:"vendor"`
	VendorID   uint32       `json:"vendor_id"`
	DeviceID   uint32       `json:"device_id"`
	UUID       string       `json:"uuid"`
	Memory     []memoryInfo `json:"memory"`
	Default    bool         `json:"default"` // what --device picks
	Usable     bool         `json:"usable"`
	Missing    []string     `json:"missing"` // what a device that is not usable lacks
	Profile    *profileInfo `json:"profile"` // null for a device that is not usable
}

// memoryInfo is a heap. Budget is what this process may use, -1 when the driver does not say.
type memoryInfo struct {
	Size        int64 `json:"size"` // bytes
	DeviceLocal bool  `json:"device_local"`
	Budget      int64 `json:"budget"`
}

// profileInfo is what kernels may use.
type profileInfo struct {
	Name         string   `json:"name"`
	Unified      bool     `json:"unified"` // the host writes device memory directly
	SubgroupSize int      `json:"subgroup_size"`
	MaxBinding   int64    `json:"max_binding"` // bytes
	Invocations  int      `json:"max_invocations"`
	SharedMemory int      `json:"shared_memory"` // bytes
	Features     []string `json:"features"`
	NotUsed      []string `json:"not_used"` // features that the device has and --profile takes away
}

func newDeviceInfo(d vk.DeviceInfo, profile string) deviceInfo {
	x := deviceInfo{
		Index: d.Index, Name: d.Name, Type: d.Type.String(), Software: d.Software(), Driver: d.DriverName, DriverInfo: d.DriverInfo,
		APIVersion: d.API.String(), Vendor: d.Vendor, VendorID: d.VendorID, DeviceID: d.DeviceID, UUID: d.UUID,
		Memory: []memoryInfo{}, Missing: append([]string{}, d.Missing()...), Usable: len(d.Missing()) == 0,
	}
	for _, h := range d.Heaps {
		x.Memory = append(x.Memory, memoryInfo{h.Size, h.DeviceLocal, h.Budget})
	}
	if p, err := vk.ProfileFor(d, profile); err == nil {
		x.Profile = &profileInfo{
			Name: p.Name, Unified: p.Unified, SubgroupSize: p.SubgroupSize, MaxBinding: p.MaxBinding, Invocations: p.MaxInvocations,
			SharedMemory: p.SharedMemory, Features: append([]string{}, p.Features.Names()...),
			NotUsed: append([]string{}, d.Features.Without(p.Features)...),
		}
	} else if x.Usable {
		x.Usable, x.Missing = false, []string{err.Error()}
	}
	return x
}

func (a *app) devicesCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "devices",
		Short: "List the Vulkan devices and what they can do",
		Long: `Devices lists what --device chooses from: by index, by part of a name, or by UUID. The one marked with * is
taken when none is named: the first of the best kind, or of software implementations the one with the widest
vectors.`,
		Args: noArgs,
		RunE: func(*cobra.Command, []string) error {
			r, err := a.listDevices()
			if a.json {
				if err != nil {
					r.Error = message(err)
				}
				return errors.Join(a.printJSON(r), err)
			}
			for _, d := range r.Devices {
				a.printDevice(d)
			}
			return err
		},
	}
	a.addJSON(cmd, "caldera.devices/1")
	addSettings(cmd.Flags(), "profile", "device")
	return cmd
}

// listDevices describes the devices. The error says that there is none, or none to use.
func (a *app) listDevices() (devicesResult, error) {
	r := devicesResult{Schema: "caldera.devices/1", Devices: []deviceInfo{}}
	in, err := vk.Open(vk.Config{AppName: "caldera"})
	if err != nil {
		return r, err
	}
	defer in.Close()
	r.Loader = in.LoaderVersion().String()
	chosen, err := in.SelectAll(a.cfg.Device)
	for _, d := range in.Devices() {
		x := newDeviceInfo(d, a.cfg.Profile)
		x.Default = slices.ContainsFunc(chosen, func(c vk.DeviceInfo) bool { return c.Index == d.Index })
		r.Devices = append(r.Devices, x)
	}
	return r, err
}

func (a *app) printDevice(d deviceInfo) {
	mark := " "
	if d.Default {
		mark = a.paint(a.outColor, green, "*")
	}
	kind := d.Type
	if d.Software {
		kind = "software implementation"
	}
	fmt.Fprintf(a.out, "%s %d: %s (%s)\n", mark, d.Index, printable(d.Name), kind)
	line := func(name, format string, args ...any) {
		fmt.Fprintf(a.out, "     %-9s %s\n", name, printable(fmt.Sprintf(format, args...)))
	}
	line("driver", "%s %s, Vulkan %s, %s", d.Driver, d.DriverInfo, d.APIVersion, d.Vendor)
	line("uuid", "%s", d.UUID)
	for _, h := range d.Memory {
		where, budget := "host", ""
		if h.DeviceLocal {
			where = "device"
		}
		if h.Budget >= 0 {
			budget = fmt.Sprintf(", %s of it for this process", size(h.Budget))
		}
		line("memory", "%s %s%s", size(h.Size), where, budget)
	}
	if p := d.Profile; p != nil {
		line("profile", "%s: subgroups of %d, bindings of %s, workgroups of %d with %s", p.Name, p.SubgroupSize, size(p.MaxBinding), p.Invocations, size(int64(p.SharedMemory)))
		line("features", "%s", strings.Join(p.Features, " "))
		if len(p.NotUsed) > 0 {
			line("not used", "%s", strings.Join(p.NotUsed, " "))
		}
	}
	if len(d.Missing) > 0 {
		line(a.paint(a.outColor, red, "missing"), "%s", strings.Join(d.Missing, ", "))
	}
}
