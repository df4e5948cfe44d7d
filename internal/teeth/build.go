package teeth

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"strings"
)

// ErrCompile is the error of a changed program that does not compile: the mistake
// is none that a test could notice.
var ErrCompile = errors.New("it does not compile")

// Change is a text in a file of the repository and what stands there instead.
type Change struct {
	// File is its path from the root of the repository, with slashes.
	File string
	// Old is the text, which stands in the file once; New takes its place.
	Old, New string
}

// Apply makes the changed files, by path from the root. Changes of one file come
// one after another.
func Apply(root string, changes []Change) (map[string]string, error) {
	files := map[string]string{}
	for _, c := range changes {
		text, changed := files[c.File]
		if !changed {
			b, err := os.ReadFile(filepath.Join(root, filepath.FromSlash(c.File)))
			if err != nil {
				return nil, fmt.Errorf("teeth: %w", err)
			}
			text = string(b)
		}
		if n := strings.Count(text, c.Old); n != 1 || c.Old == c.New {
			return nil, fmt.Errorf("teeth: %s: the text to change stands there %d times, want once: %s", c.File, n, c.Old)
		}
		files[c.File] = strings.Replace(text, c.Old, c.New, 1)
	}
	return files, nil
}

// Build compiles the tests of a package, with files laid over those of the
// repository, into dir and returns the program. pkg is its folder from the root,
// with slashes; root is an absolute path.
func Build(ctx context.Context, root, pkg, dir string, files map[string]string) (program string, err error) {
	program = filepath.Join(dir, strings.ReplaceAll(pkg, "/", "-")+".test")
	args := []string{"test", "-c", "-vet=off", "-gcflags=" + path.Join(module, pkg) + "=-e", "-o", program}
	if len(files) > 0 {
		overlay := map[string]string{}
		for file, text := range files {
			laid := filepath.Join(dir, "laid", filepath.FromSlash(file))
			if err := errors.Join(os.MkdirAll(filepath.Dir(laid), 0o755), os.WriteFile(laid, []byte(text), 0o644)); err != nil {
				return "", fmt.Errorf("teeth: %w", err)
			}
			overlay[filepath.Join(root, filepath.FromSlash(file))] = laid
		}
		list, err := json.Marshal(map[string]any{"Replace": overlay})
		if err != nil {
			return "", fmt.Errorf("teeth: %w", err)
		}
		name := filepath.Join(dir, "overlay.json")
		if err := os.WriteFile(name, list, 0o644); err != nil {
			return "", fmt.Errorf("teeth: %w", err)
		}
		args = append(args, "-overlay", name)
	}
	cmd := exec.CommandContext(ctx, "go", append(args, "./"+pkg)...)
	cmd.Dir = root
	cmd.Env = append(os.Environ(), "GOFLAGS=-p=1", "GOWORK=off")
	if output, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("teeth: %s: %w: %w\n%s", pkg, ErrCompile, err, output)
	}
	return program, nil
}

// module is the path of this module.
const module = "github.com/unavez/unavez"
