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

func TestARunGoesOnWhereAnotherHasStopped(t *testing.T) {
	t.Setenv(Variable, "")
	r := Run{Name: "a-run"}
	if err := r.Resume(); err != nil || r.Found != nil {
		t.Errorf("without a folder: %v, %v", r.Found, err)
	}
	t.Setenv(Variable, t.TempDir())
	if err := r.Resume(); err != nil || r.Found != nil {
		t.Errorf("without a file: %v, %v", r.Found, err)
	}
	r.Finds("a mistake", "a test")
	r.Finds("another", "")
	if err := r.Write(); err != nil {
		t.Fatal(err)
	}
	next := Run{Name: "a-run"}
	if err := next.Resume(); err != nil || len(next.Found) != 2 || next.Found["a mistake"] != "a test" {
		t.Errorf("%v, %v", next.Found, err)
	}
}
