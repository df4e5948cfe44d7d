package evidence

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
)

func TestARunIsWrittenWhereItIsWanted(t *testing.T) {
	r := Run{Name: "a-run", Cuts: 3}
	r.Sees("happened", 2)
	r.Sees("happened", 1)
	r.Sees("did not", 0)
	if got := r.Never(); !slices.Equal(got, []string{"did not"}) {
		t.Errorf("never: %q", got)
	}
	t.Setenv(Variable, "")
	if err := r.Write(); err != nil {
		t.Error(err)
	}
	dir := filepath.Join(t.TempDir(), "new")
	t.Setenv(Variable, dir)
	if err := r.Write(); err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile(filepath.Join(dir, "a-run.json"))
	want := "{\n  \"name\": \"a-run\",\n  \"cuts\": 3,\n  \"violations\": 0,\n  \"sometimes\": {\n    \"did not\": 0,\n    \"happened\": 3\n  }\n}\n"
	if err != nil || string(got) != want {
		t.Errorf("%s, %v; want %s", got, err, want)
	}
	for _, name := range []string{"", "a/b", "a b", ".."} {
		if err := (&Run{Name: name}).Write(); err == nil {
			t.Errorf("%q was written", name)
		}
	}
}
