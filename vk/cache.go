package vk

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
)

// pipelineCache is a VkPipelineCache that is kept in a file between runs.
type pipelineCache struct {
	handle handle
	mu     sync.Mutex // guards the file
	dirty  atomic.Bool
}

// CacheDir is the folder for what is kept of devices between runs: caldera in the user's cache directory, or
// CALDERA_CACHE_DIR. It is "" when CALDERA_CACHE_DIR is "off" or no cache directory is known.
func CacheDir() string {
	dir := os.Getenv("CALDERA_CACHE_DIR")
	if dir == "off" {
		return ""
	}
	if dir == "" {
		base, err := os.UserCacheDir()
		if err != nil {
			return ""
		}
		dir = filepath.Join(base, "caldera")
	}
	return dir
}

// PipelineCachePath returns the file that holds the compiled kernels of a
// device, <uuid>-<driver version>.bin in [CacheDir], or "" without one.
func PipelineCachePath(info DeviceInfo) string {
	dir := CacheDir()
	if dir == "" {
		return ""
	}
	return filepath.Join(dir, fmt.Sprintf("%s-%08x.bin", info.UUID, info.DriverVersion))
}

// The file is a header of our own, then the driver's bytes. Drivers check
// their data but not for damage, and some crash on it.
//
//	magic   [8]byte  "CALDERAP"
//	version, vendor, device, driver version  uint32
//	cache UUID  [16]byte
//	length  uint64
//	SHA-256 of everything else  [32]byte
const (
	cacheMagic   = "CALDERAP"
	cacheVersion = 1
	cacheHeader  = 8 + 4*4 + 16 + 8 + sha256.Size
)

// encodeCache returns the file that holds data.
func encodeCache(info DeviceInfo, data []byte) []byte {
	var b bytes.Buffer
	b.WriteString(cacheMagic)
	for _, v := range []uint32{cacheVersion, info.VendorID, info.DeviceID, info.DriverVersion} {
		binary.Write(&b, binary.LittleEndian, v)
	}
	uuid, _ := hex.DecodeString(info.CacheUUID)
	b.Write(append(uuid, make([]byte, 16)...)[:16])
	binary.Write(&b, binary.LittleEndian, uint64(len(data)))
	sum := sha256.New()
	sum.Write(b.Bytes())
	sum.Write(data)
	b.Write(sum.Sum(nil))
	b.Write(data)
	return b.Bytes()
}

// decodeCache returns the driver's bytes of a file, if it is whole and made by
// the same driver.
func decodeCache(info DeviceInfo, file []byte) ([]byte, error) {
	if len(file) < cacheHeader {
		return nil, errors.New("too short")
	}
	data := file[cacheHeader:]
	if !bytes.Equal(encodeCache(info, data)[:cacheHeader], file[:cacheHeader]) {
		return nil, errors.New("damaged, or of another driver")
	}
	return data, nil
}

// maxCache is the most bytes of a cache file that is read.
const maxCache = 256 << 20

// readCache reads a cache file, if that is what it is: a pipe would never end.
func readCache(path string) ([]byte, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() || info.Size() > maxCache {
		return nil, errors.New("no cache file")
	}
	return os.ReadFile(path)
}

// load makes the cache from the file. A file that cannot be used is deleted.
func (c *pipelineCache) load(d *Device) error {
	path := PipelineCachePath(d.info)
	var data []byte
	if path != "" {
		file, err := readCache(path)
		if err == nil {
			data, err = decodeCache(d.info, file)
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			os.Remove(path)
		}
	}
	create := func() (r Result) {
		c.handle, r = d.raw.createCache(data)
		return r
	}
	r := d.call("vkCreatePipelineCache", create)
	if r != Success && data != nil {
		os.Remove(path)
		data = nil
		r = d.call("vkCreatePipelineCache", create)
	}
	if r == ErrorDeviceLost {
		return &Error{"vkCreatePipelineCache", r, ""}
	}
	if r != Success {
		c.handle = 0 // pipelines are compiled without one
	}
	return nil
}

// save writes the file if pipelines were made since it was read. The file is
// replaced whole, so a crash leaves the old one.
func (c *pipelineCache) save(d *Device) error {
	path := PipelineCachePath(d.info)
	if path == "" || c.handle == 0 || !c.dirty.Swap(false) {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	var data []byte
	if err := d.do("vkGetPipelineCacheData", "", func() (r Result) {
		data, r = d.raw.cacheData(c.handle)
		return r
	}); err != nil {
		return err
	}
	if len(data) == 0 {
		return nil
	}
	if err := writeFile(path, encodeCache(d.info, data)); err != nil {
		return fmt.Errorf("vk: saving the pipeline cache: %w", err)
	}
	return nil
}

// writeFile replaces the file at path.
func writeFile(path string, data []byte) (err error) {
	dir := filepath.Dir(path)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	f, err := os.CreateTemp(dir, filepath.Base(path)+".*")
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			os.Remove(f.Name())
		}
	}()
	_, err = f.Write(data)
	if err == nil {
		err = f.Sync()
	}
	if closeErr := f.Close(); err == nil {
		err = closeErr
	}
	if err != nil {
		return err
	}
	return os.Rename(f.Name(), path)
}

// SavePipelineCache writes the compiled kernels to the file now; Close does it
// too.
func (d *Device) SavePipelineCache() error {
	if err := d.usable("vkGetPipelineCacheData"); err != nil {
		return err
	}
	return d.cache.save(d)
}
