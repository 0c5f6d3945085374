//go:build !unix

package main

import "os/exec"

// ownGroup leaves a command as it is: the end of its context kills it, but not what it has started.
func ownGroup(*exec.Cmd) {}

// killGroup kills a command that was started.
func killGroup(cmd *exec.Cmd) error { return cmd.Process.Kill() }
