package shaders

import (
	"encoding/binary"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// Every module's SPIR-V must belong to its source: someone who edits a .comp file and forgets make shaders
// sees it here.
func TestManifest(t *testing.T) {
	man, err := ReadManifest(os.DirFS("spirv"))
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{}
	for _, m := range Modules() {
		if seen[m.Name] {
			t.Errorf("two modules are named %s", m.Name)
		}
		seen[m.Name] = true
		e, ok := man[m.Name]
		if !ok {
			t.Errorf("%s is not in the manifest: run make shaders", m.Name)
			continue
		}
		h, err := SourceHash(os.DirFS("."), m)
		if err != nil {
			t.Fatal(err)
		}
		if h != e.Source {
			t.Errorf("%s: the source has changed since it was compiled: run make shaders", m.Name)
		}
		_, code, err := Lookup(m.Name)
		if err != nil {
			t.Error(err)
			continue
		}
		if Digest(code) != e.SPIRV {
			t.Errorf("%s: spirv/%s.spv is not what the manifest says: run make shaders", m.Name, m.Name)
		}
	}
	for name := range man {
		if !seen[name] {
			t.Errorf("the manifest has %s, which is no module: run make shaders", name)
		}
	}
}

// Every module keeps to the floor of supported devices: buffers, push constants and capabilities. Those that a profile
// chooses for what a device has beyond it (Profile.Broadcast, Profile.Spread, Profile.Texels, Profile.Matrices) may need that.
func TestFloor(t *testing.T) {
	const opCapability, groupNonUniformBallot, sampledBuffer = 17, 64, 46
	addressed := map[uint32]bool{5347: true, 11: true, 39: true, 4448: true} // PhysicalStorageBufferAddresses, Int64, Int8, StorageBuffer8BitAccess
	matrices := map[uint32]bool{9: true, 5345: true, 6022: true}             // Float16, VulkanMemoryModel, CooperativeMatrixKHR
	allowed := map[uint32]string{1: "Shader", 61: "GroupNonUniform", 63: "GroupNonUniformArithmetic"}
	for _, m := range Modules() {
		most := 8
		if strings.HasSuffix(m.Name, ".fused") {
			most = FusedBuffers
		}
		if m.Buffers > most || m.PushBytes() > 128 {
			t.Errorf("%s: %d buffers and %d bytes of push constants; it may have %d and 128", m.Name, m.Buffers, m.PushBytes(), most)
		}
		_, code, err := Lookup(m.Name)
		if err != nil {
			t.Error(err)
			continue
		}
		beyond := func(c uint32) bool {
			return m.SPIRV15 && c == groupNonUniformBallot || len(m.Texels) > 0 && c == sampledBuffer ||
				len(m.Addresses) > 0 && addressed[c] || m.Matrices && matrices[c]
		}
		for i := 20; i+8 <= len(code); {
			w := binary.LittleEndian.Uint32(code[i:])
			if w>>16 == 0 {
				t.Errorf("%s: broken SPIR-V at byte %d", m.Name, i)
				break
			}
			if c := binary.LittleEndian.Uint32(code[i+4:]); w&0xffff == opCapability && allowed[c] == "" && !beyond(c) {
				t.Errorf("%s needs SPIR-V capability %d, which is not in the floor", m.Name, c)
			}
			i += int(w>>16) * 4
		}
	}
}

// Every module passes the validator and translates to Metal, for MoltenVK. Those with cooperative matrices do not: Debian 12's
// validator does not know them, so the third rig's looks at them where it is, and MoltenVK lacks them.
func TestTranslates(t *testing.T) {
	if testing.Short() {
		t.Skip("short")
	}
	val, errVal := exec.LookPath("spirv-val")
	cross, errCross := exec.LookPath("spirv-cross")
	if errVal != nil || errCross != nil {
		t.Skip("spirv-val and spirv-cross are needed (Debian: spirv-tools, spirv-cross)")
	}
	rig, err := filepath.Abs("../scripts/with-rig")
	if err != nil {
		t.Fatal(err)
	}
	hasRig := exec.Command(rig, "spirv-val", "--version").Run() == nil
	for _, m := range Modules() {
		file := filepath.Join("spirv", m.Name+".spv")
		if m.Matrices {
			if hasRig {
				if out, err := exec.Command(rig, "spirv-val", "--target-env", m.Target(), file).CombinedOutput(); err != nil {
					t.Errorf("%s: spirv-val: %v\n%s", m.Name, err, out)
				}
			}
			continue
		}
		if out, err := exec.Command(val, "--target-env", m.Target(), file).CombinedOutput(); err != nil {
			t.Errorf("%s: spirv-val: %v\n%s", m.Name, err, out)
		}
		if out, err := exec.Command(cross, "--msl", "--msl-version", "20300", file).CombinedOutput(); err != nil {
			t.Errorf("%s does not translate to Metal: %v\n%s", m.Name, err, out)
		}
	}
}
