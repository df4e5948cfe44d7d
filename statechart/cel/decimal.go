package cel

import (
	"encoding/json"
	"fmt"
	"math"
	"math/big"
	"reflect"
	"strconv"
	"strings"

	"cel.dev/cel-go/common/types"
	"cel.dev/cel-go/common/types/ref"
	"cel.dev/cel-go/common/types/traits"
)

// maxDigits bounds digits and exponent of a decimal that is computed with. A
// number beyond is passed on, but not computed with.
const maxDigits = 1000

// decimal is a number of JSON that is not an int of 64 bits.
type decimal struct{ text json.Number }

var (
	_ ref.Val           = decimal{}
	_ traits.Adder      = decimal{}
	_ traits.Subtractor = decimal{}
	_ traits.Multiplier = decimal{}
	_ traits.Negater    = decimal{}
	_ traits.Comparer   = decimal{}
)

func decimalType() *types.Type {
	return types.NewObjectType("decimal", traits.AdderType, traits.SubtractorType, traits.MultiplierType, traits.NegatorType, traits.ComparerType)
}

// exact is unscaled × 10^exponent.
type exact struct {
	unscaled *big.Int
	exponent int
}

func ten(n int) *big.Int { return new(big.Int).Exp(big.NewInt(10), big.NewInt(int64(n)), nil) }

func parse(text string) (exact, bool) {
	mantissa, power := text, ""
	if i := strings.IndexAny(text, "eE"); i >= 0 {
		mantissa, power = text[:i], text[i+1:]
	}
	whole, fraction, point := strings.Cut(mantissa, ".")
	digits := strings.TrimPrefix(whole, "-") + fraction
	if digits == "" || strings.Trim(digits, "0123456789") != "" || len(digits) > maxDigits || point && fraction == "" || strings.Trim(whole, "-") == "" {
		return exact{}, false
	}
	e := exact{exponent: -len(fraction)}
	if power != "" || strings.ContainsAny(text, "eE") {
		n, err := strconv.Atoi(power)
		if err != nil || n > maxDigits || n < -maxDigits {
			return exact{}, false
		}
		e.exponent += n
	}
	var ok bool
	e.unscaled, ok = new(big.Int).SetString(whole+fraction, 10)
	return e, ok
}

// at gives the unscaled value for a lower exponent.
func (e exact) at(exponent int) *big.Int {
	return new(big.Int).Mul(e.unscaled, ten(e.exponent-exponent))
}

// String has no exponent and no superfluous zeros.
func (e exact) String() string {
	if e.exponent >= 0 {
		return e.at(0).String()
	}
	digits := new(big.Int).Abs(e.unscaled).String()
	if pad := 1 - e.exponent - len(digits); pad > 0 {
		digits = strings.Repeat("0", pad) + digits
	}
	point := len(digits) + e.exponent
	text := digits[:point]
	if fraction := strings.TrimRight(digits[point:], "0"); fraction != "" {
		text += "." + fraction
	}
	if e.unscaled.Sign() < 0 {
		text = "-" + text
	}
	return text
}

func (d decimal) exact() (exact, bool) { return parse(string(d.text)) }

// whole tells whether the decimal is an int of 64 bits.
func (d decimal) whole() (int64, bool) {
	e, ok := d.exact()
	if !ok || e.exponent > 20 {
		return 0, ok && e.unscaled.Sign() == 0
	}
	if e.exponent < 0 {
		quotient, rest := new(big.Int).QuoRem(e.unscaled, ten(-e.exponent), new(big.Int))
		return quotient.Int64(), rest.Sign() == 0 && quotient.IsInt64()
	}
	n := e.at(0)
	return n.Int64(), n.IsInt64()
}

// both gives two operands as exact numbers.
func (d decimal) both(other ref.Val) (a, b exact, err ref.Val) {
	var ok bool
	if a, ok = d.exact(); !ok {
		return a, b, tooLong()
	}
	switch o := other.(type) {
	case decimal:
		if b, ok = o.exact(); !ok {
			return a, b, tooLong()
		}
	case types.Int:
		b = exact{unscaled: big.NewInt(int64(o))}
	default:
		return a, b, types.MaybeNoSuchOverloadErr(other)
	}
	return a, b, nil
}

func tooLong() ref.Val {
	return types.NewErr("a number with more than %d digits cannot be computed with", maxDigits)
}

// result is an int if the number is one of 64 bits.
func result(e exact) ref.Val {
	text := e.String()
	if len(text) > maxDigits+2 {
		return tooLong()
	}
	return toNumber(text)
}

// Add implements traits.Adder.
func (d decimal) Add(other ref.Val) ref.Val {
	a, b, err := d.both(other)
	if err != nil {
		return err
	}
	low := min(a.exponent, b.exponent)
	return result(exact{new(big.Int).Add(a.at(low), b.at(low)), low})
}

// Subtract implements traits.Subtractor.
func (d decimal) Subtract(other ref.Val) ref.Val {
	a, b, err := d.both(other)
	if err != nil {
		return err
	}
	low := min(a.exponent, b.exponent)
	return result(exact{new(big.Int).Sub(a.at(low), b.at(low)), low})
}

// Multiply implements traits.Multiplier.
func (d decimal) Multiply(other ref.Val) ref.Val {
	a, b, err := d.both(other)
	if err != nil {
		return err
	}
	return result(exact{new(big.Int).Mul(a.unscaled, b.unscaled), a.exponent + b.exponent})
}

// Negate implements traits.Negater.
func (d decimal) Negate() ref.Val {
	e, ok := d.exact()
	if !ok {
		return tooLong()
	}
	return result(exact{new(big.Int).Neg(e.unscaled), e.exponent})
}

// Compare implements traits.Comparer.
func (d decimal) Compare(other ref.Val) ref.Val {
	a, b, err := d.both(other)
	if err != nil {
		return err
	}
	low := min(a.exponent, b.exponent)
	return types.Int(a.at(low).Cmp(b.at(low)))
}

// Equal compares by value. No int equals a decimal: one that could is an int.
func (d decimal) Equal(other ref.Val) ref.Val {
	o, ok := other.(decimal)
	if !ok {
		return types.Bool(d.asInt().Type() == types.IntType && d.asInt().Equal(other) == types.True)
	}
	if d.text == o.text {
		return types.True
	}
	a, b, err := d.both(o)
	if err != nil {
		return err
	}
	low := min(a.exponent, b.exponent)
	return types.Bool(a.at(low).Cmp(b.at(low)) == 0)
}

// asInt is an int if decimal(…) was asked for one.
func (d decimal) asInt() ref.Val {
	if n, ok := d.whole(); ok {
		return types.Int(n)
	}
	return d
}

// ConvertToNative implements ref.Val.
func (d decimal) ConvertToNative(t reflect.Type) (any, error) {
	if t == reflect.TypeFor[json.Number]() {
		return d.text, nil
	}
	return nil, fmt.Errorf("a decimal has no form of type %s", t)
}

// ConvertToType implements ref.Val.
func (d decimal) ConvertToType(t ref.Type) ref.Val {
	e, ok := d.exact()
	if !ok {
		return tooLong()
	}
	switch t {
	case types.StringType:
		return types.String(e.String())
	case types.DoubleType:
		f, err := strconv.ParseFloat(string(d.text), 64)
		if err != nil || math.IsInf(f, 0) {
			return types.NewErr("%s has no double", d.text)
		}
		return types.Double(f)
	case types.IntType:
		if n, ok := d.whole(); ok {
			return types.Int(n)
		}
		return types.NewErr("%s is not an int of 64 bits", d.text)
	case types.TypeType:
		return decimalType()
	}
	return types.NewErr("type conversion error from decimal to %s", t.TypeName())
}

// Type implements ref.Val.
func (d decimal) Type() ref.Type { return decimalType() }

// Value implements ref.Val.
func (d decimal) Value() any { return d.text }

// toDecimal is the function decimal.
func toDecimal(v ref.Val) ref.Val {
	switch v := v.(type) {
	case decimal:
		return v
	case types.Int:
		return decimal{json.Number(strconv.FormatInt(int64(v), 10))}
	case types.String:
		if e, ok := parse(string(v)); ok {
			return decimal{json.Number(e.String())}
		}
		return types.NewErr("%q is not a decimal number of at most %d digits", string(v), maxDigits)
	}
	return types.MaybeNoSuchOverloadErr(v)
}
