package config

import (
	"fmt"
	"os"
	"reflect"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/unavez/unavez/httpkey"
	"github.com/unavez/unavez/inbox"
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

// TestThePageOfDefaultsIsThatOfTheInbox compares docs/defaults.md with what an
// empty configuration gets.
func TestThePageOfDefaultsIsThatOfTheInbox(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../../../docs/defaults.md")
	if err != nil {
		t.Fatal(err)
	}
	text := strings.Replace(strings.Replace(receiving, "contract: stripe", "contract: stripe, reconcile: [{url: https://api.stripe.com}]", 1), "unknown: hold", "unknown: hold, order_by: [id], version: version, contiguous: true", 1)
	c, err := Parse([]byte("alerts: {url: https://hooks.example, secrets: [whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw]}\n"+text), environment())
	if err != nil {
		t.Fatal(err)
	}
	source, effect := c.Sources[0], c.Effects[0]
	said := map[string]string{}
	for _, row := range regexp.MustCompile("(?m)^\\| [^|]+ \\| ([^|]+) \\| `([a-z_]+[.\\[][^`]*)` \\|$").FindAllSubmatch(page, -1) {
		said[string(row[2])] = string(row[1])
	}
	is := map[string]any{
		"inbox.retention": DefaultInboxRetention, "inbox.tombstone": effect.Tombstone, "inbox.lease": c.Inbox.Lease, "inbox.flush": c.Inbox.Flush,
		"inbox.flush_size": c.Inbox.FlushSize, "inbox.poll": c.Inbox.Poll, "inbox.concurrency": c.Inbox.Concurrency, "inbox.window": c.Inbox.Window,
		"sources[].body_limit": int64(source.BodyLimit), "sources[].reconcile[].interval": source.Reconcile[0].Interval,
		"sources[].reconcile[].overlap": source.Reconcile[0].Overlap, "sources[].reconcile[].timeout": source.Reconcile[0].Timeout,
		"sources[].fetch.timeout": DefaultFetchTimeout, "effects[].retry.first": effect.Retry.First, "effects[].retry.longest": effect.Retry.Longest,
		"effects[].retry.attempts": effect.Retry.Attempts, "effects[].retry.age": effect.Retry.Age, "effects[].gap_wait": effect.GapWait,
		"effects[].send.timeout": effect.Send.Timeout, "alerts.timeout": c.Alerts.Timeout,
	}
	for name, value := range is {
		if said[name] != fmt.Sprint(value) {
			t.Errorf("%s is %v, the page says %q", name, value, said[name])
		}
	}
	if len(said) != len(is) {
		t.Errorf("the page has %d rows, the code %d settings: %v", len(said), len(is), said)
	}
	// The library's own are the same.
	for name, pair := range map[string][2]any{
		"lease": {inbox.DefaultLease, DefaultLaneLease}, "poll": {inbox.DefaultPoll, DefaultPoll}, "concurrency": {inbox.DefaultConcurrency, DefaultConcurrency},
		"window": {inbox.DefaultWindow, DefaultWindow}, "retention": {inbox.DefaultRetention, DefaultInboxRetention}, "tombstone": {inbox.DefaultTombstone, DefaultInboxTombstone},
	} {
		if fmt.Sprint(pair[0]) != fmt.Sprint(pair[1]) {
			t.Errorf("%s: the library has %v, the binary %v", name, pair[0], pair[1])
		}
	}
}
