package draw

import (
	"encoding/json"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/unavez/unavez/statechart"
)

// load reads a chart of names.
func load(t *testing.T, text string) *statechart.Definition {
	t.Helper()
	d, err := statechart.Load([]byte(text), &statechart.Options{NamesOnly: true})
	if err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	return d
}

// placed lays a chart out as SVG does.
func placed(d *statechart.Definition) *box {
	var root *box
	boxes := map[*statechart.Node]*box{}
	o := &Options{Active: []string{d.Root().ID}, MarkFunc: func(*statechart.Transition) (Mark, bool) {
		return Mark{Shape: Half, Word: "until-cycle"}, true
	}}
	for _, n := range d.Nodes() {
		boxes[n] = newBox(n, boxes, d, o)
		if root == nil {
			root = boxes[n]
		}
	}
	for _, n := range d.Nodes() {
		fill(boxes[n], n, boxes, o)
	}
	layOut(root)
	return root
}

// randomChart makes the text of a chart with nested and parallel states and
// transitions from anywhere to anywhere.
func randomChart(r *rand.Rand) string {
	var ids []string
	var grow func(id string, depth int) map[string]any
	grow = func(id string, depth int) map[string]any {
		ids = append(ids, id)
		node := map[string]any{}
		if depth < 3 && (depth == 0 || r.IntN(3) == 0) {
			states := map[string]any{}
			kids := 2 + r.IntN(4)
			for i := range kids {
				key := fmt.Sprintf("s%d", i)
				states[key] = grow(id+"."+key, depth+1)
			}
			node["states"] = states
			if r.IntN(3) == 0 {
				node["type"] = "parallel"
			} else {
				node["initial"] = "s0"
			}
		}
		node["id"] = id
		return node
	}
	root := grow("m", 0)
	var wire func(node map[string]any)
	wire = func(node map[string]any) {
		on := map[string]any{}
		for range r.IntN(4) {
			on[fmt.Sprintf("EVENT_%d", r.IntN(30))] = map[string]any{
				"target": "#" + ids[1+r.IntN(len(ids)-1)], "guard": strings.Repeat("g", 1+r.IntN(60)), "actions": []string{"a", "überweisen 支払う"},
			}
		}
		node["on"] = on
		if states, ok := node["states"].(map[string]any); ok {
			for _, s := range states {
				wire(s.(map[string]any))
			}
		}
	}
	wire(root)
	text, err := json.Marshal(root)
	if err != nil {
		panic(err) // maps of strings always marshal
	}
	return string(text)
}

type area struct{ x1, y1, x2, y2 float64 }

func (a area) meets(b area) bool {
	return a.x1 < b.x2 && b.x1 < a.x2 && a.y1 < b.y2 && b.y1 < a.y2
}

func (a area) holds(b area) bool {
	return a.x1 <= b.x1 && a.y1 <= b.y1 && a.x2 >= b.x2 && a.y2 >= b.y2
}

// No text lies on another, none leaves its box, no line crosses a word, no box
// leaves its parent or meets another, however the chart is built.
func TestNothingOverlapsInAnyChart(t *testing.T) {
	t.Parallel()
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	lines, texts := 0, 0
	for i := range uint64(150) {
		text := randomChart(rand.New(rand.NewPCG(seed, i)))
		root := placed(load(t, text))
		var words []area
		var owners []string
		root.walk(func(b *box) {
			frame := area{b.x, b.y, b.x + b.w, b.y + b.h}
			for j, c := range b.children {
				inner := area{c.x, c.y, c.x + c.w, c.y + c.h}
				if !frame.holds(inner) {
					t.Errorf("%s leaves %s", c.name, b.name)
				}
				for _, other := range b.children[:j] {
					if inner.meets(area{other.x, other.y, other.x + other.w, other.y + other.h}) {
						t.Errorf("%s lies on %s", c.name, other.name)
					}
				}
			}
			for _, l := range labels(b) {
				w := area{l.x, l.y - 10, l.x + l.w, l.y + 3}
				if !frame.holds(w) {
					t.Errorf("%q leaves %s", l.text, b.name)
				}
				words = append(words, w)
				owners = append(owners, l.text)
			}
		})
		for j, w := range words {
			for k := range j {
				if w.meets(words[k]) {
					t.Errorf("%q lies on %q", owners[j], owners[k])
				}
			}
		}
		texts += len(words)
		for _, w := range wires(root) {
			for _, s := range w.pieces {
				lines++
				line := area{min(s.x1, s.x2) - 0.5, min(s.y1, s.y2) - 0.5, max(s.x1, s.x2) + 0.5, max(s.y1, s.y2) + 0.5}
				for j, word := range words {
					if line.meets(word) {
						t.Errorf("the line from %s to %s crosses %q", w.from.name, w.to.name, owners[j])
					}
				}
			}
			last := w.pieces[len(w.pieces)-1]
			if last.y2 != w.to.y || last.x2 < w.to.x || last.x2 > w.to.x+w.to.w {
				t.Errorf("the line from %s does not end at %s", w.from.name, w.to.name)
			}
		}
		if t.Failed() {
			t.Fatalf("seed %d, chart %d: %s", seed, i, text)
		}
	}
	if lines < 1000 || texts < 1000 {
		t.Errorf("only %d lines and %d texts were looked at", lines, texts)
	}
}

// Lines of different targets never run along each other: one could not tell
// where each leads.
func TestLinesOfTwoTargetsNeverCoincide(t *testing.T) {
	t.Parallel()
	seed := rand.Uint64()
	for i := range uint64(100) {
		text := randomChart(rand.New(rand.NewPCG(seed, i)))
		var all []segment
		for _, w := range wires(placed(load(t, text))) {
			all = append(all, w.pieces...)
		}
		for j, a := range all {
			for _, b := range all[:j] {
				if a.net == b.net {
					continue
				}
				level := a.y1 == a.y2 && b.y1 == b.y2 && a.y1 == b.y1 && min(a.x1, a.x2) < max(b.x1, b.x2) && min(b.x1, b.x2) < max(a.x1, a.x2)
				upright := a.x1 == a.x2 && b.x1 == b.x2 && a.x1 == b.x1 && min(a.y1, a.y2) < max(b.y1, b.y2) && min(b.y1, b.y2) < max(a.y1, a.y2)
				if level || upright {
					t.Errorf("the lines to %s and %s coincide: %v %v", a.net.name, b.net.name, a, b)
				}
			}
		}
		if t.Failed() {
			t.Fatalf("seed %d, chart %d: %s", seed, i, text)
		}
	}
}

// The picture is well-formed XML and needs nothing from outside, whatever the
// names are; and it is the same every time.
func TestThePictureStandsAlone(t *testing.T) {
	t.Parallel()
	const text = `{"id":"<m>&\"'","initial":"a]]>","states":{
		"a]]>":{"tags":["\u0001x"],"on":{"<script>":{"target":"b","guard":"a&b"}}},
		"b":{"type":"final"}}}`
	d := load(t, text)
	picture := SVG(d, &Options{ID: "a b\"<", Active: []string{"gone"}, Caption: "]]>&"})
	decoder := xml.NewDecoder(strings.NewReader(string(picture)))
	ids := map[string]bool{}
	for {
		token, err := decoder.Token()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatalf("%v\n%s", err, picture)
		}
		start, ok := token.(xml.StartElement)
		if !ok {
			continue
		}
		switch start.Name.Local {
		case "script", "style", "image", "use", "foreignObject", "a":
			t.Errorf("an element %s", start.Name.Local)
		}
		for _, a := range start.Attr {
			if a.Name.Local == "style" || a.Name.Local == "href" || strings.HasPrefix(a.Name.Local, "on") || strings.Contains(a.Value, "url(") {
				t.Errorf("%s has %s=%q", start.Name.Local, a.Name.Local, a.Value)
			}
			if a.Name.Local == "id" {
				ids[a.Value] = true
			}
		}
	}
	if !ids["ab-title"] || !ids["ab-desc"] {
		t.Errorf("ids %v", ids)
	}
	for range 5 {
		if again := SVG(load(t, text), &Options{ID: "a b\"<", Active: []string{"gone"}, Caption: "]]>&"}); string(again) != string(picture) {
			t.Fatal("the same chart gives another picture")
		}
	}
}

// What is lit, and what every transition does, is said in words too.
func TestThePictureSpeaks(t *testing.T) {
	t.Parallel()
	d := load(t, `{"id":"order","initial":"pending","states":{"pending":{"on":{"PAY":"paid"}},"paid":{"type":"final"}}}`)
	picture := string(SVG(d, &Options{
		Active: []string{"order.pending"},
		MarkFunc: func(*statechart.Transition) (Mark, bool) {
			return Mark{Shape: Square, Word: "terminal", Help: "it ends"}, true
		},
	}))
	for _, want := range []string{
		`role="img"`, "Statechart order", "Active: order.pending.", "order.pending: state, initial; PAY → paid: terminal.",
		"order.paid: final state", ">active<", ">terminal<", "terminal: it ends", "active: where the process stands",
		"Lines that lead to one state have one colour",
	} {
		if !strings.Contains(picture, want) {
			t.Errorf("no %q in\n%s", want, picture)
		}
	}
}

// A text is cut only where its box has no room: one that is wide for its regions
// shows all of it.
func TestATextIsNotCutWhereItsBoxHasRoom(t *testing.T) {
	t.Parallel()
	const action = "tell-the-customer-that-all-of-the-amount-due-was-paid"
	const regions = `"type":"parallel","states":{"a":{"tags":"a-tag-that-makes-this-region-wide"},"b":{"tags":"a-tag-that-makes-this-region-wide"}}`
	for chart, whole := range map[string]bool{
		`{"id":"m","entry":"` + action + `",` + regions + `}`: true,
		`{"id":"m","entry":"` + action + `"}`:                 false,
	} {
		if picture := string(SVG(load(t, chart), nil)); strings.Contains(picture, ">entry / "+action+"<") != whole {
			t.Errorf("%s: the whole text is shown: %t, want %t", chart, !whole, whole)
		}
	}
}
