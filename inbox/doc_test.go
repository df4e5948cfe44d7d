package inbox

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

func TestTheTestsThatTheDocumentsNameExist(t *testing.T) {
	t.Parallel()
	read := func(pattern string) string {
		t.Helper()
		files, err := filepath.Glob(pattern)
		if err != nil || len(files) == 0 {
			t.Fatalf("%s: %d files, %v", pattern, len(files), err)
		}
		var all strings.Builder
		for _, file := range files {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			all.Write(text)
		}
		return all.String()
	}
	tests := read("*_test.go") + read("../internal/fault/*_test.go")
	names := 0
	for _, line := range strings.Split(read("doc.go"), "\n") {
		for _, name := range regexp.MustCompile(`Test[A-Z]\w+`).FindAllString(line, -1) {
			if names++; !strings.Contains(tests, "func "+name+"(") {
				t.Errorf("there is no %s", name)
			}
		}
		for _, name := range regexp.MustCompile(`"[a-z][^"]{20,}"`).FindAllString(line, -1) {
			if names++; !strings.Contains(tests, "name: "+name) {
				t.Errorf("there is no promise %s", name)
			}
		}
	}
	if names < 30 {
		t.Errorf("only %d names were found", names)
	}
}
