package rule

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/unavez/unavez/inbox"
	"github.com/unavez/unavez/source"
)

func language(t testing.TB) *Language {
	t.Helper()
	l, err := New()
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func paid() *inbox.Event {
	return &inbox.Event{
		Tenant: "acme", Source: "shop", Type: "order/paid", ID: []string{"e-1"}, Subject: []string{"7", "order", "42"}, Version: "v2",
		Time: time.Date(2026, 11, 30, 12, 0, 0, 5, time.UTC), Attributes: map[string]string{"topic": "t"},
		Data: []byte(`{"store_id":7,"id":9007199254740993,"big":123456789012345678901234567890,"total":9.90,"whole":1e3,"neg":-0.0,
			"currency":"BRL","empty":"","lines":[{"sku":"A"},{"sku":"B"}],"flag":true,"none":null,"huge":1e999999}`),
	}
}

func TestWhichEventsAreWanted(t *testing.T) {
	t.Parallel()
	l := language(t)
	for text, want := range map[string]string{
		`source == "shop" && type in ["order/created", "order/paid"]`: "true",
		`source == "bank"`: "false",
		`type.startsWith("order/") && tenant == "acme" && version == "v2" && id == ["e-1"] && subject[2] == "42"`: "true",
		`time > timestamp("2026-11-30T11:59:59Z") && attributes.topic == "t"`:                                     "true",
		`data.store_id == 7 && data.whole == 1000 && data.neg == 0`:                                               "true",
		`data.id == 9007199254740993`:                  "true",
		`data.total == "9.9"`:                          "true",
		`data.big == "123456789012345678901234567890"`: "true",
		`decimal(data.total) < decimal("9.91")`:        "true",
		`decimal(data.store_id) > decimal(data.total)`: "false",
		`data.lines.exists(line, line.sku == "B")`:     "true",
		`has(data.customer)`:                           "false",
		`data.none == null && data.flag`:               "true",
		`data.missing == 1`:                            "no such key: missing",
		`attributes.missing == "1"`:                    "no such key",
		`data.total > 9`:                               "no such overload",
		`data.store_id`:                                "gave int, want a bool",
		`data.huge == "1"`:                             "too many digits",
		`[1,2,3,4,5,6,7,8,9,10].all(a, [1,2,3,4,5,6,7,8,9,10].all(b, [1,2,3,4,5,6,7,8,9,10].all(c, [1,2,3,4,5,6,7,8,9,10].all(d, a+b+c+d < data.store_id + 100))))`: "costs more than the limit of 10000",
	} {
		w, err := l.When(text)
		if err != nil {
			t.Errorf("%s: %v", text, err)
			continue
		}
		holds, err := w.Holds(l.Scope(paid()))
		got := fmt.Sprint(holds)
		if err != nil {
			got = err.Error()
		}
		if !strings.Contains(got, want) {
			t.Errorf("%s: %s, want %s", text, got, want)
		}
	}
}

func TestExpressionsThatCannotWorkAreRefused(t *testing.T) {
	t.Parallel()
	l := language(t)
	for text, want := range map[string]string{
		`"a"`:           "gives string, want a bool",
		`sourec == "a"`: "line 1, column 1 of the expression: undeclared reference",
		`type == 1`:     "no matching overload",
		"true &&\n ":    "line 2",
		strings.Repeat("(", 200) + "true" + strings.Repeat(")", 200): "recursion",
		strings.Repeat("true||", 3000) + "true":                      "size",
	} {
		if _, err := l.When(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.40s: %v, want %s", text, err, want)
		}
	}
	for _, text := range []string{`true`, `1.5`, `time`, `[true]`, `{"a": 1}`, `b"x"`} {
		if _, err := l.Part(text); err == nil || !strings.Contains(err.Error(), "want a string or a whole number") {
			t.Errorf("%s: %v", text, err)
		}
	}
	if _, err := l.Text(`[id]`); err == nil {
		t.Error("a list is no text")
	}
}

func TestPartsOfKeys(t *testing.T) {
	t.Parallel()
	l := language(t)
	for _, c := range []struct {
		texts []string
		want  string
	}{
		{[]string{`data.store_id`, `data.id`}, "[7 9007199254740993]"},
		{[]string{`data.total`, `data.whole`, `data.big`, `decimal("1.50")`, `decimal(2)`}, "[9.9 1000 123456789012345678901234567890 1.5 2]"},
		{[]string{`"nuvemshop"`, `subject`}, "[nuvemshop 7 order 42]"},
		{[]string{`subject.size() > 9 ? subject : []`}, "[]"},
		{[]string{`data.lines.map(line, line.sku)`}, "[A B]"},
		{[]string{`data.currency + "-" + string(data.id)`}, "[BRL-9007199254740993]"},
		{[]string{`data.id`, `data.empty`}, "part 2: an empty string is no identity"},
		{[]string{`data.flag`}, "part 1: gave bool"},
		{[]string{`data.none`}, "gave null_type"},
		{[]string{`data.lines`}, "gave map"},
		{[]string{`data.customer.id`}, "no such key: customer"},
	} {
		var p Parts
		for _, text := range c.texts {
			one, err := l.Part(text)
			if err != nil {
				t.Fatalf("%s: %v", text, err)
			}
			p = append(p, one)
		}
		parts, err := p.Of(l.Scope(paid()))
		got := fmt.Sprint(parts)
		if err != nil {
			got = err.Error()
		}
		if !strings.Contains(got, c.want) {
			t.Errorf("%s: %s, want %s", c.texts, got, c.want)
		}
	}
}

func TestTexts(t *testing.T) {
	t.Parallel()
	l := language(t)
	for text, want := range map[string]string{
		`data.store_id`: "7",
		`data.total`:    "9.9",
		`time`:          "2026-11-30T12:00:00.000000005Z",
		`version`:       "v2",
		`data.lines`:    "want a string",
	} {
		e, err := l.Text(text)
		if err != nil {
			t.Fatalf("%s: %v", text, err)
		}
		got, err := e.Of(l.Scope(paid()))
		if err != nil {
			got = err.Error()
		}
		if !strings.Contains(got, want) {
			t.Errorf("%s: %s, want %s", text, got, want)
		}
	}
}

func TestContentThatIsNoJSONFailsWhereItIsReadOnly(t *testing.T) {
	t.Parallel()
	l := language(t)
	reads, err := l.When(`data.a == "secretcanary"`)
	if err != nil {
		t.Fatal(err)
	}
	does, err := l.When(`type == "x"`)
	if err != nil {
		t.Fatal(err)
	}
	for _, data := range []string{"a=secretcanary", `{"a":"secretcanary","a":"y"}`, "\xff", `{"a":`} {
		e := &inbox.Event{Type: "x", Data: []byte(data)}
		if _, err := reads.Holds(l.Scope(e)); err == nil || strings.Contains(err.Error(), "canary") {
			t.Errorf("%q: %v", data, err)
		}
		if holds, err := does.Holds(l.Scope(e)); err != nil || !holds {
			t.Errorf("%q: %v", data, err)
		}
	}
	empty, err := l.When(`data == null && id == [] && !has(attributes.x)`)
	if err != nil {
		t.Fatal(err)
	}
	if holds, err := empty.Holds(l.Scope(&inbox.Event{})); err != nil || !holds {
		t.Errorf("an event without anything: %v %v", holds, err)
	}
	at, err := l.Text(`time`)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := at.Of(l.Scope(&inbox.Event{})); err == nil || !strings.Contains(err.Error(), "the sender does not say") {
		t.Errorf("no time: %v", err)
	}
}

func TestASourceThatCannotBeWantedIsToldByItsName(t *testing.T) {
	t.Parallel()
	l := language(t)
	for text, want := range map[string][]string{
		`source == "shop" && data.x == 1`:                    {"shop"},
		`source in ["shop", "bank"] && type.startsWith("a")`: {"shop", "bank"},
		`type == "a"`: {"shop", "bank", "grid"},
		`source.startsWith("b") || (source == "grid" && data.a > 1)`: {"bank", "grid"},
		`source == "shop" ? data.a : source == "bank"`:               {"shop", "bank"},
		`false`: nil,
	} {
		w, err := l.When(text)
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, source := range []string{"shop", "bank", "grid"} {
			if w.Possible(source) {
				got = append(got, source)
			}
		}
		if !slices.Equal(got, want) {
			t.Errorf("%s: %v, want %v", text, got, want)
		}
	}
}

func TestWhatAnExpressionReads(t *testing.T) {
	t.Parallel()
	l := language(t)
	e, err := l.Text(`tenant == "" ? attributes.shop : tenant`)
	if err != nil {
		t.Fatal(err)
	}
	if !e.Reads("tenant") || !e.Reads("attributes") || e.Reads("data") || e.Reads("shop") {
		t.Error("what it reads is not told")
	}
	got, err := e.Of(OfMessage("shop", &source.Event{Tenant: "7"}))
	if err != nil || got != "7" {
		t.Errorf("%q %v", got, err)
	}
}

// The scope of an event is kept for the next expression, and must never be that
// of another event.
func TestManyAtOnceSeeTheirOwnEvent(t *testing.T) {
	t.Parallel()
	l := language(t)
	p, err := l.Part(`data.n`)
	if err != nil {
		t.Fatal(err)
	}
	var group sync.WaitGroup
	for g := range 8 {
		group.Go(func() {
			for i := range 500 {
				n := fmt.Sprint(g*1000 + i + 1)
				e := &inbox.Event{Data: []byte(`{"n":` + n + `}`)}
				for range 3 {
					if got, err := (Parts{p}).Of(l.Scope(e)); err != nil || got[0] != n {
						t.Errorf("%v %v, want %s", got, err, n)
					}
				}
				e.Data = []byte(`{"n":"masked"}`) // as one that was changed in place
				if got, err := (Parts{p}).Of(l.Scope(e)); err != nil || got[0] != "masked" {
					t.Errorf("%v %v, want masked", got, err)
				}
			}
		})
	}
	group.Wait()
}

func FuzzExpression(f *testing.F) {
	for _, text := range []string{`source == "a"`, `data.a[0].b`, `decimal(data.n) * 2`, `id.map(x, x + "y")`, `data.n`} {
		f.Add(text, []byte(`{"a":[{"b":1}],"n":1.50}`))
	}
	l := language(f)
	f.Fuzz(func(t *testing.T, text string, data []byte) {
		e := &inbox.Event{Source: "a", ID: []string{"1"}, Data: data}
		if w, err := l.When(text); err == nil {
			_, _ = w.Holds(l.Scope(e)) // must return
			w.Possible("a")
		}
		if p, err := l.Part(text); err == nil {
			parts, err := (Parts{p}).Of(l.Scope(e))
			if err == nil && slices.Contains(parts, "") {
				t.Errorf("%q of %q gave an empty part", text, data)
			}
		}
	})
}

func BenchmarkFourExpressionsOfThreeEffects(b *testing.B) {
	l := language(b)
	w, err := l.When(`source == "shop" && type in ["order/created", "order/paid"]`)
	if err != nil {
		b.Fatal(err)
	}
	p, err := l.Part(`data.id`)
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		e := paid()
		for range 3 {
			if holds, err := w.Holds(l.Scope(e)); err != nil || !holds {
				b.Fatal(err)
			}
			for range 3 {
				if _, err := (Parts{p}).Of(l.Scope(e)); err != nil {
					b.Fatal(err)
				}
			}
		}
	}
}
