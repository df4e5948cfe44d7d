package rule

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"time"
	"unsafe"

	"cel.dev/cel-go/common/types"
	"cel.dev/cel-go/common/types/ref"
	"cel.dev/cel-go/interpreter"

	"github.com/unavez/unavez/inbox"
	"github.com/unavez/unavez/internal/exact"
	"github.com/unavez/unavez/source"
)

// Scope is what expressions see of one event. It may be used concurrently.
type Scope struct {
	source, kind, version, tenant string
	id, subject                   []string
	time                          time.Time
	attributes                    map[string]string
	data                          []byte

	once  sync.Once
	value any // data, read once
}

var _ interpreter.Activation = (*Scope)(nil)

// kept is the scope of an event that was asked for last.
type kept struct {
	event *inbox.Event
	scope *Scope
}

// Scope is that of an event. The expressions of all effects look at one event
// one after the other, and its content is read once for all of them.
func (l *Language) Scope(e *inbox.Event) *Scope {
	if k, ok := l.last.Get().(*kept); ok && k.event == e && k.scope.sees(e) {
		l.last.Put(k)
		return k.scope
	}
	s := &Scope{
		source: e.Source, kind: e.Type, version: e.Version, tenant: e.Tenant, id: e.ID, subject: e.Subject,
		time: e.Time, attributes: e.Attributes, data: e.Data,
	}
	l.last.Put(&kept{e, s})
	return s
}

// sees reports whether the scope is that of the event as it is now.
func (s *Scope) sees(e *inbox.Event) bool {
	return s.source == e.Source && s.kind == e.Type && s.tenant == e.Tenant && s.version == e.Version &&
		len(s.data) == len(e.Data) && unsafe.SliceData(s.data) == unsafe.SliceData(e.Data) &&
		len(s.id) == len(e.ID) && unsafe.SliceData(s.id) == unsafe.SliceData(e.ID)
}

// OfMessage is the scope of what a source has read and no tenant is known of yet.
func OfMessage(name string, e *source.Event) *Scope {
	return &Scope{
		source: name, kind: e.Type, version: e.Version, tenant: e.Tenant, id: e.ID, subject: e.Subject,
		time: e.Time, attributes: e.Attributes, data: e.Data,
	}
}

// ResolveName finds a variable.
func (s *Scope) ResolveName(name string) (any, bool) {
	switch name {
	case "source":
		return s.source, true
	case "type":
		return s.kind, true
	case "id":
		return texts(s.id), true
	case "subject":
		return texts(s.subject), true
	case "version":
		return s.version, true
	case "tenant":
		return s.tenant, true
	case "time":
		if s.time.IsZero() {
			return types.NewErr("time: the sender does not say"), true
		}
		return types.Timestamp{Time: s.time}, true
	case "attributes":
		if s.attributes == nil {
			return map[string]string{}, true
		}
		return s.attributes, true
	case "data":
		s.once.Do(func() { s.value = read(s.data) })
		return s.value, true
	}
	return nil, false
}

// Parent is nil: there is one level.
func (s *Scope) Parent() interpreter.Activation { return nil }

func texts(list []string) []string {
	if list == nil {
		return []string{}
	}
	return list
}

// read gives the content as a value, or an error as one.
func read(data []byte) any {
	if len(data) == 0 {
		return types.NullValue
	}
	if err := exact.Check(data); err != nil {
		// Not the cause: it may quote the content.
		return types.NewErr("data: the content is no JSON, or not one that every reader understands alike")
	}
	var value any
	d := json.NewDecoder(bytes.NewReader(data))
	d.UseNumber()
	if err := d.Decode(&value); err != nil {
		return types.NewErr("data: the content is no JSON")
	}
	return adapter{}.NativeToValue(value)
}

// adapter turns JSON into values.
type adapter struct{}

var _ types.Adapter = adapter{}

// NativeToValue implements types.Adapter.
func (a adapter) NativeToValue(v any) ref.Val {
	switch v := v.(type) {
	case nil:
		return types.NullValue
	case json.Number:
		return number(v)
	case map[string]any:
		return types.NewStringInterfaceMap(a, v)
	case []any:
		return types.NewDynamicList(a, v)
	}
	return types.DefaultTypeAdapter.NativeToValue(v)
}

// number is an int if it is one of 64 bits, else its exact text.
func number(n json.Number) ref.Val {
	text, err := decimalText(n)
	if err != nil {
		return types.WrapErr(err)
	}
	if whole, err := strconv.ParseInt(text, 10, 64); err == nil {
		return types.Int(whole)
	}
	return types.String(text)
}

func decimalText(n json.Number) (string, error) {
	text, err := exact.Decimal(string(n))
	if err != nil {
		return "", errors.New("a number with too many digits")
	}
	if text == "" {
		return "", fmt.Errorf("no number")
	}
	return text, nil
}
