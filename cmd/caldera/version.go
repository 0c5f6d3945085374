package main

import (
	"fmt"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"
)

// version is the release, set when one is built: go build -ldflags "-X main.version=v1.2.3".
var version = "dev"

// versionResult is what version --json prints.
type versionResult struct {
	Schema  string `json:"schema"` // "caldera.version/1"
	Version string `json:"version"`
	Commit  string `json:"commit"` // empty when the build had no repository
	Dirty   bool   `json:"dirty"`  // the repository had changes
	Go      string `json:"go"`
	OS      string `json:"os"`
	Arch    string `json:"arch"`
}

func newVersion() versionResult {
	v := versionResult{Schema: "caldera.version/1", Version: version, Go: runtime.Version(), OS: runtime.GOOS, Arch: runtime.GOARCH}
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, s := range info.Settings {
			switch s.Key {
			case "vcs.revision":
				v.Commit = s.Value
			case "vcs.modified":
				v.Dirty = s.Value == "true"
			}
		}
	}
	return v
}

func (a *app) versionCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "version",
		Short: "Print the version",
		Args:  noArgs,
		RunE: func(*cobra.Command, []string) error {
			v := newVersion()
			if a.json {
				return a.printJSON(v)
			}
			commit := v.Commit
			if commit == "" {
				commit = "unknown commit"
			}
			if v.Dirty {
				commit += " with changes"
			}
			_, err := fmt.Fprintf(a.out, "caldera %s (%s, %s, %s/%s)\n", v.Version, commit, v.Go, v.OS, v.Arch)
			return err
		},
	}
	a.addJSON(cmd, "caldera.version/1")
	return cmd
}
