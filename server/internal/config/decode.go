package config

import (
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/parser"
)

// Bounds of a configuration file. They keep hostile input cheap.
const (
	maxFile  = 1 << 20
	maxNodes = 100_000
)

// decoder walks the syntax tree and fills a struct, noting every fault and the
// line of every field on its way.
type decoder struct {
	env     Environment
	faults  Faults
	lines   map[string]int
	anchors map[string]ast.Node
	nodes   int
	// later names top-level fields that a coming version will know.
	later map[string]string
}

// parseDocument gives the one document of the file, nil for an empty one, and a
// fault for each further one.
func parseDocument(data []byte) (body ast.Node, further Faults, err error) {
	if len(data) > maxFile {
		return nil, nil, Faults{{Text: fmt.Sprintf("%d bytes, at most %d", len(data), maxFile)}}
	}
	file, err := parser.ParseBytes(data, 0, parser.AllowDuplicateMapKey())
	if err != nil {
		var syntax yaml.Error
		if errors.As(err, &syntax) && syntax.GetToken() != nil {
			return nil, nil, Faults{{Line: syntax.GetToken().Position.Line, Text: "not YAML: " + syntax.GetMessage()}}
		}
		return nil, nil, Faults{{Text: "not YAML: " + firstLine(err.Error())}}
	}
	for _, doc := range file.Docs {
		if doc.Body == nil {
			continue
		}
		if body != nil {
			further = append(further, Fault{Line: lineOf(doc.Body), Text: "a second document: one file holds one configuration"})
			continue
		}
		body = doc.Body
	}
	return body, further, nil
}

func firstLine(s string) string {
	line, _, _ := strings.Cut(s, "\n")
	return line
}

func lineOf(n ast.Node) int {
	if n == nil || n.GetToken() == nil || n.GetToken().Position == nil {
		return 0
	}
	return n.GetToken().Position.Line
}

func (d *decoder) fault(n ast.Node, path, format string, args ...any) {
	d.faults = append(d.faults, Fault{Line: lineOf(n), Field: path, Text: fmt.Sprintf(format, args...)})
}

// resolve follows anchors, aliases and tags to the node that has the value.
func (d *decoder) resolve(n ast.Node, path string) ast.Node {
	for range 16 {
		switch x := n.(type) {
		case *ast.AnchorNode:
			d.anchors[x.Name.GetToken().Value] = x.Value
			n = x.Value
		case *ast.AliasNode:
			target, ok := d.anchors[x.Value.GetToken().Value]
			if !ok {
				d.fault(n, path, "alias *%s has no anchor above it", x.Value.GetToken().Value)
				return nil
			}
			n = target
		case *ast.TagNode:
			d.fault(n, path, "tag %s: tags are not used here", x.Start.Value)
			return nil
		default:
			return n
		}
	}
	d.fault(n, path, "aliases go round in a circle")
	return nil
}

// decode fills v from n.
func (d *decoder) decode(n ast.Node, v reflect.Value, path string) {
	d.nodes++
	if d.nodes > maxNodes {
		if d.nodes == maxNodes+1 {
			d.fault(n, path, "over %d values in one file", maxNodes)
		}
		return
	}
	d.lines[path] = lineOf(n)
	if n = d.resolve(n, path); n == nil {
		return
	}
	if _, ok := n.(*ast.NullNode); ok {
		d.fault(n, path, "no value: give one or leave the field out")
		return
	}
	if v.Kind() == reflect.Pointer {
		v.Set(reflect.New(v.Type().Elem()))
		v = v.Elem()
	}
	switch {
	case v.Type() == reflect.TypeFor[Secret]():
		if s, ok := d.scalar(n, path); ok {
			v.Set(reflect.ValueOf(NewSecret(s)))
		}
	case v.Type() == reflect.TypeFor[SourceSecret]() && scalar(n):
		if s, ok := d.scalar(n, path); ok {
			v.Set(reflect.ValueOf(SourceSecret{Value: NewSecret(s)}))
		}
	case v.Type() == reflect.TypeFor[time.Time]():
		d.parsed(n, path, func(s string) error {
			at, err := time.Parse(time.RFC3339, s)
			v.Set(reflect.ValueOf(at))
			if err != nil {
				return fmt.Errorf("%q is not a time (write 2026-12-01T00:00:00Z)", s)
			}
			return nil
		})
	case v.Type() == reflect.TypeFor[time.Duration]():
		d.parsed(n, path, func(s string) error {
			duration, err := parseDuration(s)
			v.SetInt(int64(duration))
			return err
		})
	case v.Type() == reflect.TypeFor[Size]():
		d.parsed(n, path, func(s string) error {
			size, err := parseSize(s)
			v.SetInt(size)
			return err
		})
	case v.Kind() == reflect.Struct:
		d.object(n, v, path)
	case v.Kind() == reflect.Slice:
		d.list(n, v, path)
	case v.Kind() == reflect.Map:
		d.dictionary(n, v, path)
	case v.Kind() == reflect.Bool:
		d.parsed(n, path, func(s string) error {
			v.SetBool(s == "true")
			if s != "true" && s != "false" {
				return fmt.Errorf("%q is neither true nor false", s)
			}
			return nil
		})
	case v.Kind() == reflect.Int:
		d.parsed(n, path, func(s string) error {
			i, err := strconv.ParseInt(s, 10, 32)
			v.SetInt(i)
			if err != nil {
				return fmt.Errorf("%q is not a whole number", s)
			}
			return nil
		})
	default:
		if s, ok := d.scalar(n, path); ok {
			v.SetString(s)
		}
	}
}

func (d *decoder) parsed(n ast.Node, path string, parse func(string) error) {
	if s, ok := d.scalar(n, path); ok {
		if err := parse(s); err != nil {
			d.fault(n, path, "%s", err)
		}
	}
}

// scalar gives the text of a scalar with ${…} filled in.
func (d *decoder) scalar(n ast.Node, path string) (string, bool) {
	var text string
	switch x := n.(type) {
	case *ast.StringNode:
		text = x.Value
	case *ast.LiteralNode:
		text = x.Value.Value
	case *ast.IntegerNode, *ast.FloatNode, *ast.BoolNode:
		text = n.GetToken().Value // as it was written, so that 007 stays 007
	default:
		d.fault(n, path, "want one value, not %s", kindOf(n))
		return "", false
	}
	value, err := d.env.expand(text)
	if err != nil {
		for line := range strings.SplitSeq(err.Error(), "\n") {
			d.fault(n, path, "%s", line)
		}
		return "", false
	}
	return value, true
}

// scalar reports whether a node is one value.
func scalar(n ast.Node) bool { return kindOf(n) == "this" }

func kindOf(n ast.Node) string {
	switch n.(type) {
	case *ast.SequenceNode:
		return "a list"
	case *ast.MappingNode, *ast.MappingValueNode:
		return "fields"
	}
	return "this"
}

// pairs gives the members of a mapping.
func (d *decoder) pairs(n ast.Node, path string) []*ast.MappingValueNode {
	var values []*ast.MappingValueNode
	switch x := n.(type) {
	case *ast.MappingNode:
		values = x.Values
	case *ast.MappingValueNode:
		values = []*ast.MappingValueNode{x}
	default:
		d.fault(n, path, "want fields, not %s", map[bool]string{true: "a list", false: "one value"}[kindOf(n) == "a list"])
		return nil
	}
	seen := map[string]bool{}
	return slices.DeleteFunc(slices.Clone(values), func(p *ast.MappingValueNode) bool {
		name := p.Key.GetToken().Value
		if _, merge := p.Key.(*ast.MergeKeyNode); merge {
			d.fault(p.Key, path, "merge keys (<<) are not used here; repeat the fields")
			return true
		}
		if seen[name] {
			d.fault(p.Key, join(path, name), "given twice")
			return true
		}
		seen[name] = true
		return false
	})
}

func join(path, name string) string {
	if path == "" {
		return name
	}
	return path + "." + name
}

func (d *decoder) object(n ast.Node, v reflect.Value, path string) {
	fields := map[string]int{}
	names := []string{}
	for i := range v.NumField() {
		if name := v.Type().Field(i).Tag.Get("yaml"); name != "" {
			fields[name] = i
			names = append(names, name)
		}
	}
	for _, pair := range d.pairs(n, path) {
		name := pair.Key.GetToken().Value
		at := join(path, name)
		i, known := fields[name]
		if known {
			d.decode(pair.Value, v.Field(i), at)
			d.lines[at] = lineOf(pair.Key)
			continue
		}
		if hint, ok := d.later[at]; ok {
			d.fault(pair.Key, at, "%s", hint)
			continue
		}
		if near := nearest(name, names); near != "" {
			d.fault(pair.Key, at, "unknown field (did you mean %s?)", near)
		} else {
			slices.Sort(names)
			d.fault(pair.Key, at, "unknown field (known here: %s)", strings.Join(names, ", "))
		}
	}
}

func (d *decoder) list(n ast.Node, v reflect.Value, path string) {
	items := []ast.Node{n} // one value may stand for a list of one
	if list, ok := n.(*ast.SequenceNode); ok {
		items = list.Values
	} else if e := v.Type().Elem(); e.Kind() == reflect.Struct && e != reflect.TypeFor[Secret]() && e != reflect.TypeFor[SourceSecret]() {
		d.fault(n, path, "want a list (start each entry with a dash)")
		return
	}
	for i, item := range items {
		element := reflect.New(v.Type().Elem()).Elem()
		d.decode(item, element, fmt.Sprintf("%s[%d]", path, i))
		v.Set(reflect.Append(v, element))
	}
}

func (d *decoder) dictionary(n ast.Node, v reflect.Value, path string) {
	v.Set(reflect.MakeMap(v.Type()))
	for _, pair := range d.pairs(n, path) {
		name := pair.Key.GetToken().Value
		element := reflect.New(v.Type().Elem()).Elem()
		d.decode(pair.Value, element, join(path, name))
		v.SetMapIndex(reflect.ValueOf(name), element)
	}
}

// nearest gives the name that is at most two edits away.
func nearest(word string, names []string) string {
	best, distance := "", 3
	for _, name := range names {
		if n := edits(strings.ToLower(word), name); n < distance {
			best, distance = name, n
		}
	}
	return best
}

// edits is the Levenshtein distance, cut short for words that differ much.
func edits(a, b string) int {
	if len(a) > 40 || len(b) > 40 {
		return 99
	}
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := 1
			if a[i] == b[j] {
				cost = 0
			}
			next := min(diagonal+cost, row[j]+1, row[j+1]+1)
			diagonal, row[j+1] = row[j+1], next
		}
	}
	return row[len(b)]
}
