//go:build !linux

package mapping

import "errors"

func populate([]byte) error { return errors.ErrUnsupported }

// Available cannot tell here how much memory is free.
func Available() int64 { return -1 }

// Total cannot tell here how much memory there is.
func Total() int64 { return -1 }
