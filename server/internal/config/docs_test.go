package config

import (
	"os"
	"reflect"
	"strings"
	"testing"
)

func TestEveryKeyOfTheConfigurationIsOnItsPage(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../../../docs/http-api.md")
	if err != nil {
		t.Fatal(err)
	}
	keys := 0
	var walk func(reflect.Type, string)
	walk = func(at reflect.Type, path string) {
		for at.Kind() == reflect.Pointer || at.Kind() == reflect.Slice {
			at = at.Elem()
		}
		if at.Kind() != reflect.Struct || !strings.HasSuffix(at.PkgPath(), "server/internal/config") {
			keys++
			name := path[strings.LastIndexByte(path, '.')+1:]
			if !strings.Contains(string(page), "`"+name+"`") && !strings.Contains(string(page), "."+name+"`") {
				t.Errorf("docs/http-api.md does not explain %s", path)
			}
			return
		}
		for i := range at.NumField() {
			if tag := at.Field(i).Tag.Get("yaml"); tag != "" {
				walk(at.Field(i).Type, path+"."+tag)
			}
		}
	}
	walk(reflect.TypeFor[Config](), "")
	if keys < 50 {
		t.Errorf("only %d keys found", keys)
	}
}
