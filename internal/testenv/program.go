package testenv

import (
	"context"
	"os/exec"
	"testing"
)

// Program finds the first of several programs that a probe, a list of arguments,
// succeeds with: its path. install says which package has it.
func Program(tb testing.TB, install string, probe []string, names ...string) string {
	tb.Helper()
	ctx, cancel := context.WithTimeout(tb.Context(), limit)
	defer cancel()
	for _, name := range names {
		path, err := exec.LookPath(name)
		if err == nil && exec.CommandContext(ctx, path, probe...).Run() == nil {
			return path
		}
	}
	missing(tb, "no "+names[0]+" that can be used; as root on Debian, scripts/test installs it: apt-get install "+install)
	return ""
}
