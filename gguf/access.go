package gguf

import (
	"fmt"
	"os"
)

// The accessors return [ErrMissing] in the chain for an absent key, and
// otherwise an error that names the file, the key, what its value is and what
// was wanted.

func get[T any](f *File, key string, convert func(Value) (T, error)) (T, error) {
	var zero T
	if len(f.parts) == 0 {
		return zero, fmt.Errorf("gguf: %s: %q: %w", f.name, key, os.ErrClosed)
	}
	v, ok := f.Value(key)
	if !ok {
		return zero, fmt.Errorf("gguf: %s: %q: %w", f.name, key, ErrMissing)
	}
	x, err := convert(v)
	if err != nil {
		return zero, fmt.Errorf("gguf: %s: %q %w", f.name, key, err)
	}
	return x, nil
}

// Has reports whether the key is there.
func (f *File) Has(key string) bool {
	_, ok := f.Value(key)
	return ok
}

// String returns the string of a key.
func (f *File) String(key string) (string, error) { return get(f, key, scalarString) }

// Bool returns the boolean of a key.
func (f *File) Bool(key string) (bool, error) { return get(f, key, scalarBool) }

// Uint32 returns the number of an integer key of any width, if it fits.
func (f *File) Uint32(key string) (uint32, error) { return get(f, key, scalarInteger[uint32]) }

// Uint64 returns the number of an integer key of any width, if it fits.
func (f *File) Uint64(key string) (uint64, error) { return get(f, key, scalarInteger[uint64]) }

// Int32 returns the number of an integer key of any width, if it fits.
func (f *File) Int32(key string) (int32, error) { return get(f, key, scalarInteger[int32]) }

// Int64 returns the number of an integer key of any width, if it fits.
func (f *File) Int64(key string) (int64, error) { return get(f, key, scalarInteger[int64]) }

// Int returns the number of an integer key of any width, if it fits.
func (f *File) Int(key string) (int, error) { return get(f, key, scalarInteger[int]) }

// Float32 returns the number of a float key, or of an integer key whose number
// a float32 holds exactly. A float64 is rounded to the nearest float32.
func (f *File) Float32(key string) (float32, error) { return get(f, key, scalarFloat[float32]) }

// Float64 returns the number of a float key, or of an integer key whose number
// a float64 holds exactly.
func (f *File) Float64(key string) (float64, error) { return get(f, key, scalarFloat[float64]) }

// Strings returns the strings of an array key.
func (f *File) Strings(key string) ([]string, error) { return get(f, key, stringSlice) }

// Uint32s returns the numbers of an integer array of any width, or of a scalar.
func (f *File) Uint32s(key string) ([]uint32, error) { return get(f, key, integers[uint32]) }

// Uint64s returns the numbers of an integer array of any width, or of a scalar.
func (f *File) Uint64s(key string) ([]uint64, error) { return get(f, key, integers[uint64]) }

// Int32s returns the numbers of an integer array of any width, or of a scalar.
func (f *File) Int32s(key string) ([]int32, error) { return get(f, key, integers[int32]) }

// Ints returns the numbers of an integer array of any width, or of a scalar.
func (f *File) Ints(key string) ([]int, error) { return get(f, key, integers[int]) }

// Float32s returns the numbers of an array, or of a scalar, as [File.Float32]
// does each.
func (f *File) Float32s(key string) ([]float32, error) { return get(f, key, floats[float32]) }

// Bools returns the booleans of an array, or of a scalar.
func (f *File) Bools(key string) ([]bool, error) { return get(f, key, bools) }
