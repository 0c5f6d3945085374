package main

import (
	"fmt"
	"text/tabwriter"

	"github.com/spf13/cobra"
)

// configResult is what config show --json prints.
type configResult struct {
	Schema   string        `json:"schema"` // "caldera.config/1"
	File     string        `json:"file"`   // the configuration file that was read, empty for none
	Settings []configValue `json:"settings"`
}

// configValue is one setting.
type configValue struct {
	Key    string `json:"key"` // name in a configuration file
	Value  any    `json:"value"`
	Source string `json:"source"` // "flag", "env", "file" or "default"
	Env    string `json:"env"`    // name in the environment
}

func (a *app) configCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "config", Short: "Show the configuration", Args: cobra.ArbitraryArgs, RunE: group}
	show := &cobra.Command{
		Use:   "show",
		Short: "Print every setting, its value and where it came from",
		Args:  noArgs,
		RunE: func(*cobra.Command, []string) error {
			r := configResult{Schema: "caldera.config/1", File: a.settings.file}
			for _, s := range table {
				r.Settings = append(r.Settings, configValue{s.key, a.settings.values[s.key], a.settings.source[s.key], s.env()})
			}
			if a.json {
				return a.printJSON(r)
			}
			if r.File != "" {
				fmt.Fprintf(a.out, "file: %s\n", printable(r.File))
			}
			w := tabwriter.NewWriter(a.out, 0, 8, 2, ' ', 0)
			fmt.Fprintln(w, "SETTING\tVALUE\tSOURCE\tENVIRONMENT")
			for _, s := range r.Settings {
				fmt.Fprintf(w, "%s\t%s\t%s\t%s\n", s.Key, printable(fmt.Sprint(s.Value)), s.Source, s.Env)
			}
			return w.Flush()
		},
	}
	a.addJSON(show, "caldera.config/1")
	cmd.AddCommand(show)
	return cmd
}
