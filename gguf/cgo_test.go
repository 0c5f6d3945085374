//go:build cgo

package gguf

// cgo tells whether the lost pages of a file read as zeros.
const cgo = true
