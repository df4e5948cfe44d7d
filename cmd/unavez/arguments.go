package main

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"
)

// takes says which arguments a command takes, by the names that its usage
// shows: FILE, or [FILE] for one that may be left out.
func takes(names ...string) cobra.PositionalArgs {
	return func(c *cobra.Command, args []string) error {
		command := "" // every error begins with the program's name anyway
		if _, path, ok := strings.Cut(c.CommandPath(), " "); ok {
			command = path + ": "
		}
		for i, name := range names {
			if i >= len(args) && !strings.HasPrefix(name, "[") {
				return errUsage{fmt.Errorf("%s%s is missing (%s)", command, name, c.UseLine())}
			}
		}
		switch {
		case len(args) <= len(names):
			return nil
		case c.HasSubCommands():
			return errUsage{fmt.Errorf("%sthere is no command %q", command, args[len(names)])}
		}
		return errUsage{fmt.Errorf("%s%q is one argument too many (%s)", command, args[len(names)], c.UseLine())}
	}
}
