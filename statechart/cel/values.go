package cel

import (
	"encoding/json"
	"fmt"
	"strconv"

	"cel.dev/cel-go/common/types"
	"cel.dev/cel-go/common/types/ref"
	"cel.dev/cel-go/common/types/traits"
)

func toValue(v any) ref.Val {
	switch v := v.(type) {
	case nil:
		return types.NullValue
	case bool:
		return types.Bool(v)
	case string:
		return types.String(v)
	case json.Number:
		return toNumber(string(v))
	case map[string]any:
		return types.NewStringInterfaceMap(adapter{}, v)
	case []any:
		return types.NewList(adapter{}, v)
	}
	return types.DefaultTypeAdapter.NativeToValue(v)
}

// toNumber gives an int if the number is one of 64 bits, else a decimal.
func toNumber(text string) ref.Val {
	if n, err := strconv.ParseInt(text, 10, 64); err == nil {
		return types.Int(n)
	}
	d := decimal{text: json.Number(text)}
	if n, ok := d.whole(); ok {
		return types.Int(n)
	}
	return d
}

// maxDepth bounds a result's nesting.
const maxDepth = 200

// plain turns a result into JSON. What came from the scope is given back as it
// was.
func plain(v ref.Val, depth int) (any, error) {
	if depth > maxDepth {
		return nil, fmt.Errorf("the result is nested deeper than %d levels", maxDepth)
	}
	switch v := v.(type) {
	case types.Null:
		return nil, nil
	case types.Bool:
		return bool(v), nil
	case types.String:
		return string(v), nil
	case types.Int:
		return json.Number(strconv.FormatInt(int64(v), 10)), nil
	case types.Uint:
		return json.Number(strconv.FormatUint(uint64(v), 10)), nil
	case types.Double:
		return float64(v), nil // the engine refuses what has no form in JSON
	case decimal:
		return v.text, nil
	case traits.Mapper:
		if own, ok := v.Value().(map[string]any); ok {
			return own, nil
		}
		m := map[string]any{}
		for it := v.Iterator(); it.HasNext() == types.True; {
			key := it.Next()
			name, ok := key.(types.String)
			if !ok {
				return nil, fmt.Errorf("the result has a key of type %s, and JSON has strings only", key.Type())
			}
			value, err := plain(v.Get(key), depth+1)
			if err != nil {
				return nil, err
			}
			m[string(name)] = value
		}
		return m, nil
	case traits.Lister:
		if own, ok := v.Value().([]any); ok {
			return own, nil
		}
		list := []any{}
		for it := v.Iterator(); it.HasNext() == types.True; {
			element, err := plain(it.Next(), depth+1)
			if err != nil {
				return nil, err
			}
			list = append(list, element)
		}
		return list, nil
	}
	return nil, fmt.Errorf("the result has the type %s, which is not JSON", v.Type())
}
