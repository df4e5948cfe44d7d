package unavez

import (
	"fmt"
	"os"
	"regexp"
	"testing"
	"testing/synctest"
	"time"

	"github.com/unavez/unavez/store"
)

func keyOf(n int) store.Key {
	return store.Identity{Effect: "x", Parts: []string{fmt.Sprint(n)}}.Key()
}

func TestCacheStaysWithinItsBytesAndKeepsTheLastUsed(t *testing.T) {
	t.Parallel()
	const limit = 64 << 10
	c := newCache(limit)
	put := func(n int) {
		c.put(keyOf(n), &Outcome{Result: Result{Body: make([]byte, 600), Header: []Field{{Name: "A", Value: "b"}}}, Left: time.Hour}, time.Now(), 0)
	}
	put(0)
	for n := 1; n < 1000; n++ {
		put(n)
		if _, ok := c.get(keyOf(0), time.Now()); !ok {
			t.Fatalf("the entry in use is gone after %d", n)
		}
		if c.size > limit || c.order.Len() != len(c.byKey) {
			t.Fatalf("%d bytes, %d entries, %d keys", c.size, c.order.Len(), len(c.byKey))
		}
	}
	if _, ok := c.get(keyOf(1), time.Now()); ok {
		t.Error("the oldest entry is still there")
	}
	c.put(keyOf(-1), &Outcome{Result: Result{Body: make([]byte, limit/16)}, Left: time.Hour}, time.Now(), 0)
	if _, ok := c.get(keyOf(-1), time.Now()); ok {
		t.Error("one entry may take the whole cache")
	}
}

func TestCacheForgetsWithTheRetention(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := newCache(1 << 20)
		c.put(keyOf(1), &Outcome{Left: time.Minute}, time.Now().Add(-30*time.Second), 0) // read half a minute ago
		if _, ok := c.get(keyOf(1), time.Now()); !ok {
			t.Error("gone before its time")
		}
		c.put(keyOf(2), &Outcome{Left: time.Minute}, time.Now(), 1) // read in another incarnation
		if _, ok := c.get(keyOf(2), time.Now()); ok {
			t.Error("an outcome of another incarnation is there")
		}
		time.Sleep(31 * time.Second)
		if _, ok := c.get(keyOf(1), time.Now()); ok || c.size != 0 {
			t.Errorf("there after its time, %d bytes", c.size)
		}
	})
}

func TestRefusalsAreForgottenWhenThereAreTooMany(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newRefusals()
		for n := range maxRefusals {
			r.believe(keyOf(n), "a", time.Minute)
		}
		if r.believe(keyOf(-1), "a", time.Minute) {
			t.Error("believed without being remembered")
		}
		time.Sleep(time.Minute)
		if !r.believe(keyOf(-1), "a", time.Minute) || len(r.since) != 1 {
			t.Errorf("%d remembered", len(r.since))
		}
	})
}

func TestRefusalsOfAnotherHolderAreBelievedAnewAndOnlySoOften(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newRefusals()
		if !r.believe(keyOf(2), "", time.Minute) {
			t.Error("the first refusal of a holder without a name is not believed")
		}
		believed := func(token string, want bool) {
			t.Helper()
			if r.believe(keyOf(1), token, time.Minute) != want {
				t.Errorf("%s: want believed %v", token, want)
			}
		}
		for _, token := range []string{"a", "b", "c"} {
			believed(token, true)
			time.Sleep(time.Minute)
			if token != "c" {
				believed(token, false)
			}
		}
		for _, token := range []string{"c", "d", "e", "f"} {
			believed(token, false)
		}
		r.confirmed(keyOf(1)) // the database says that it is in flight
		believed("f", true)
		time.Sleep(time.Minute)
		believed("f", false)
		r.granted(keyOf(1))
		believed("f", true)
	})
}

func TestDefaultsPageSaysWhatTheCodeSays(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("docs/defaults.md")
	if err != nil {
		t.Fatal(err)
	}
	said := map[string]string{}
	for _, row := range regexp.MustCompile("(?m)^\\| [^|]+ \\| ([^|]+) \\| `(\\w+)` \\|$").FindAllSubmatch(page, -1) {
		said[string(row[2])] = string(row[1])
	}
	is := map[string]any{
		"DefaultRetention": DefaultRetention, "DefaultTombstone": DefaultTombstone, "DefaultLease": DefaultLease, "DefaultLimit": DefaultLimit,
		"DefaultRequestLimit": DefaultRequestLimit, "DefaultResponseLimit": DefaultResponseLimit, "DefaultCacheSize": DefaultCacheSize,
		"DefaultWaiters": DefaultWaiters, "DefaultUpkeep": DefaultUpkeep, "DefaultHandlerLimit": DefaultHandlerLimit,
		"MinRetention": MinRetention, "MaxRetention": MaxRetention, "MaxLimit": MaxLimit, "MaxLease": MaxLease, "MaxWait": MaxWait,
	}
	source, err := os.ReadFile("defaults.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range regexp.MustCompile(`(?m)^\t(\w+) += `).FindAllSubmatch(source, -1) {
		if _, ok := is[string(name[1])]; !ok {
			t.Errorf("%s is not compared here", name[1])
		}
	}
	for name, value := range is {
		if said[name] != fmt.Sprint(value) {
			t.Errorf("%s is %v, the page says %q", name, value, said[name])
		}
	}
	if len(said) != len(is) {
		t.Errorf("the page has %d rows, the code %d settings", len(said), len(is))
	}
}
