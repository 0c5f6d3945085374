package vk

import (
	"errors"
	"strings"
	"testing"
)

// The messenger hears what it should: here a missing barrier, which only
// synchronisation validation finds.
func TestValidationHears(t *testing.T) {
	needInstance(t)
	in, err := Open(Config{Validation: true})
	if errors.Is(err, ErrUnsupported) {
		t.Skip(err)
	}
	check(t, err)
	defer in.Close()
	info := must(in.Select(""))
	d := must(in.NewDevice(info, must(ProfileFor(info, ""))))
	a, b := must(d.NewBuffer(256, DeviceLocal)), must(d.NewBuffer(256, DeviceLocal))
	p := must(newAffine(d, 1))
	set := must(d.NewSet(p, []Binding{{Buffer: a}, {Buffer: b}}))
	cmds := []Command{FillBuffer(a, 0, 256, 1), Dispatch(p, set, groups(64), words(64, 0, 1)).After()}
	run(t, d, cmds...)
	if n := in.ValidationCount(); n != 0 {
		t.Fatalf("%d messages about valid work: %v", n, in.ValidationMessages())
	}
	cmds[1].BarrierBefore = false
	run(t, d, cmds...)
	m := in.ValidationMessages()
	if in.ValidationCount() == 0 || !strings.Contains(strings.Join(m, "\n"), "SYNC-HAZARD") {
		t.Errorf("a missing barrier went unnoticed: %v", m)
	}
	in.Close()
	if in.ValidationCount() < len(m) {
		t.Error("the messages are gone after Close")
	}
}

func TestFilterMessages(t *testing.T) {
	kept, n := filterMessages([]string{"warning x: rayQuery cannot be checked", "error y: z"}, 7)
	if len(kept) != 1 || kept[0] != "error y: z" || n != 6 {
		t.Error(kept, n)
	}
}
