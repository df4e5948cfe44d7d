package config

import (
	"fmt"
	"os"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/unavez/unavez/httpkey"
)

func TestEveryKeyOfTheConfigurationIsOnItsPage(t *testing.T) {
	t.Parallel()
	var page []byte
	for _, name := range []string{"http-api.md", "inbox.md"} {
		text, err := os.ReadFile("../../../docs/" + name)
		if err != nil {
			t.Fatal(err)
		}
		page = append(page, text...)
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
				t.Errorf("neither docs/http-api.md nor docs/inbox.md explains %s", path)
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
	limits := DefaultLimits()
	for key, value := range map[string]string{
		"limits.connections": fmt.Sprint(limits.Connections), "limits.read_timeout": "30s", "limits.idle_timeout": "2m", "limits.drain": "20s",
		"listen": "`" + DefaultListen + "`", "wait": "30s",
	} {
		if !strings.Contains(string(page), "`"+key+"` | "+value+" |") {
			t.Errorf("docs/http-api.md does not give %s the default %s", key, value)
		}
	}
	if limits.ReadTimeout != 30*time.Second || limits.IdleTimeout != 2*time.Minute || limits.Drain != 20*time.Second || httpkey.DefaultWait != 30*time.Second {
		t.Error("the defaults named here are not those of the code")
	}
	if keys < 50 {
		t.Errorf("only %d keys found", keys)
	}
}
