//go:build !linux || !cgo

package mapping

// ReachThreads does nothing here: no driver is known whose threads block SIGBUS.
func ReachThreads() int { return 0 }
