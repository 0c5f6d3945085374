//go:build !unix || !cgo

package mapping

const watching = false
