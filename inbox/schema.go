package inbox

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/santhosh-tekuri/jsonschema/v6"

	"github.com/unavez/unavez/internal/exact"
)

// schemas are the JSON Schemas of a source by type, compiled. nil has none.
type schemas struct {
	patterns patterns
	compiled map[string]*jsonschema.Schema
}

// schemaHost is where the schemas of a source stand for each other's references.
const schemaHost = "unavez:///"

// newSchemas compiles them. References lead only within a schema: nothing is
// loaded from files or the network.
func newSchemas(texts map[string][]byte) (*schemas, error) {
	if len(texts) == 0 {
		return nil, nil
	}
	s := &schemas{compiled: map[string]*jsonschema.Schema{}}
	var faults []error
	for _, pattern := range slices.Sorted(maps.Keys(texts)) {
		schema, err := compileSchema(texts[pattern])
		if err = errors.Join(checkPattern(pattern), err); err != nil {
			faults = append(faults, fmt.Errorf("%q: %w", pattern, err))
			continue
		}
		s.patterns = append(s.patterns, pattern)
		s.compiled[pattern] = schema
	}
	return s, errors.Join(faults...)
}

// CheckSchema says whether a text can be a schema of [Source.Schemas].
func CheckSchema(text []byte) error {
	_, err := compileSchema(text)
	return err
}

func compileSchema(text []byte) (*jsonschema.Schema, error) {
	if err := exact.Check(text); err != nil {
		return nil, err
	}
	if err := bounded(text); err != nil {
		return nil, err
	}
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(text))
	if err != nil {
		return nil, err
	}
	c := jsonschema.NewCompiler()
	c.UseLoader(noLoader{})
	if err := c.AddResource(schemaHost+"schema", doc); err != nil {
		return nil, err
	}
	return c.Compile(schemaHost + "schema")
}

// noLoader refuses references to anywhere else.
type noLoader struct{}

func (noLoader) Load(url string) (any, error) {
	return nil, fmt.Errorf("reference to %s: schemas are not loaded from elsewhere (put it under $defs)", url)
}

// check holds data to the schema of its type. The error says which keyword of the
// schema it does not fit, and nothing of the data.
func (s *schemas) check(kind string, data []byte) error {
	if s == nil {
		return nil
	}
	pattern, ok := s.patterns.match(kind)
	if !ok {
		return nil
	}
	if exact.Check(data) != nil {
		return errors.New("not JSON that every reader understands alike")
	}
	if err := bounded(data); err != nil {
		return err
	}
	value, err := jsonschema.UnmarshalJSON(bytes.NewReader(data))
	if err != nil {
		return errors.New("not JSON")
	}
	err = s.compiled[pattern].Validate(value)
	if err == nil {
		return nil
	}
	var invalid *jsonschema.ValidationError
	if !errors.As(err, &invalid) {
		return errors.New("does not fit the schema")
	}
	return fmt.Errorf("does not fit %s", keywords(invalid))
}

// keywords are places of the schema that were not met, at most four.
func keywords(err *jsonschema.ValidationError) string {
	var places []string
	var walk func(*jsonschema.ValidationError)
	walk = func(e *jsonschema.ValidationError) {
		if len(e.Causes) == 0 {
			_, place, _ := strings.Cut(e.SchemaURL, "#")
			for _, word := range e.ErrorKind.KeywordPath() {
				place += "/" + word
			}
			if place = "#" + place; !slices.Contains(places, place) {
				places = append(places, place)
			}
		}
		for _, cause := range e.Causes {
			walk(cause)
		}
	}
	walk(err)
	if len(places) > 4 {
		places = append(places[:4], "…")
	}
	return strings.Join(places, ", ")
}

// Bounds of a number that is compared by value: a schema computes with exact
// fractions, and 1e999999999 would fill the memory.
const (
	maxDigits   = 1000
	maxExponent = 1000
)

var errNumber = fmt.Errorf("a number has more than %d digits, or an exponent beyond %d", maxDigits, maxExponent)

// bounded refuses numbers that are too large to compute with. The text is JSON.
func bounded(text []byte) error {
	for at := 0; at < len(text); at++ {
		switch c := text[at]; {
		case c == '"':
			for at++; text[at] != '"'; at++ {
				if text[at] == '\\' {
					at++
				}
			}
		case '0' <= c && c <= '9':
			from := at
			for at < len(text) && strings.IndexByte("0123456789.eE+-", text[at]) >= 0 {
				at++
			}
			if !smallNumber(string(text[from:at])) {
				return errNumber
			}
			at-- // the loop steps over what ends the number
		}
	}
	return nil
}

func smallNumber(text string) bool {
	if len(text) > maxDigits {
		return false
	}
	i := strings.IndexAny(text, "eE")
	if i < 0 {
		return true
	}
	power := strings.TrimLeft(text[i+1:], "+-0")
	n := 0
	for _, c := range []byte(power) {
		if n = n*10 + int(c-'0'); n > maxExponent {
			return false
		}
	}
	return true
}
