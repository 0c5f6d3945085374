//go:build !cgo

package gguf

const cgo = false
