package envs

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"unicode"

	"github.com/go-json-experiment/json/jsontext"
)

// DecodeJSON reads one JSON value exactly: numbers stay json.Number, and an object that repeats a key, or has two keys that
// differ only in case, is an error, since readers do not agree on which of them counts. Text that is not UTF-8 is an error,
// and so is what is nested too deeply and a number too large to compute with.
func DecodeJSON(data []byte) (any, error) {
	d := jsontext.NewDecoder(bytes.NewBuffer(data)) // a Buffer is read in place, a Reader through a copy
	v, err := decodeValue(d)
	if err != nil {
		return nil, err
	}
	if _, err := d.ReadToken(); err != io.EOF {
		return nil, errors.New("text after the JSON value")
	}
	return v, nil
}

func decodeValue(d *jsontext.Decoder) (any, error) {
	tok, err := d.ReadToken()
	if err != nil {
		if err == io.EOF {
			err = io.ErrUnexpectedEOF
		}
		return nil, err
	}
	if d.StackDepth() > maxDepth {
		return nil, fmt.Errorf("nested deeper than %d", maxDepth)
	}
	switch tok.Kind() {
	case jsontext.KindString:
		return tok.String(), nil
	case jsontext.KindNumber:
		return exactNumber(tok.String())
	case jsontext.KindTrue:
		return true, nil
	case jsontext.KindFalse:
		return false, nil
	case jsontext.KindNull:
		return nil, nil
	case jsontext.KindBeginArray:
		list := []any{}
		for d.PeekKind() != jsontext.KindEndArray {
			v, err := decodeValue(d)
			if err != nil {
				return nil, err
			}
			list = append(list, v)
		}
		_, err := d.ReadToken()
		return list, err
	}
	m := map[string]any{}
	var folded map[string]string // only once a key is not in lower case
	for d.PeekKind() != jsontext.KindEndObject {
		tok, err := d.ReadToken()
		if err != nil {
			return nil, err
		}
		key := tok.String()
		if one := strings.Map(foldRune, key); one != key || folded != nil {
			if folded == nil {
				folded = map[string]string{}
				for k := range m {
					folded[k] = k
				}
			}
			if other, ok := folded[one]; ok {
				return nil, fmt.Errorf("keys %q and %q differ only in case", other, key)
			}
			folded[one] = key
		}
		if m[key], err = decodeValue(d); err != nil {
			return nil, err
		}
	}
	_, err = d.ReadToken()
	return m, err
}

// foldRune gives one rune for all that strings.EqualFold holds equal: a small letter for ASCII, so that most keys stay as
// they are.
func foldRune(r rune) rune {
	if 'a' <= r && r <= 'z' {
		return r
	}
	least := r
	for f := unicode.SimpleFold(r); f != r; f = unicode.SimpleFold(f) {
		least = min(least, f)
	}
	if 'A' <= least && least <= 'Z' {
		least += 'a' - 'A'
	}
	return least
}

// maxDepth bounds nesting. A record that holds what was read must be readable in turn, and encoding/json stops at 10000.
const maxDepth = 1000

// maxExponent bounds the numbers that are read, and their digits. Exact arithmetic on a few bytes such as 1e999999999 would take gigabytes.
const maxExponent = 1000

func exactNumber(s string) (any, error) {
	if !inRange(s) || !inRange(canonicalNumber(s)) { // what Canonical writes must be readable, too
		return nil, fmt.Errorf("number %.40s is out of range", s)
	}
	return json.Number(s), nil
}

func inRange(s string) bool {
	if i := strings.IndexAny(s, "eE"); i >= 0 {
		if exp, err := strconv.Atoi(s[i+1:]); err != nil || exp > maxExponent || exp < -maxExponent {
			return false
		}
	}
	return len(s) <= maxExponent
}

// Canonical writes a value of DecodeJSON in one fixed form: keys sorted, no white space, numbers by value (25, 25.0 and
// 2.5e1 are one number, however many digits). Equal values give equal bytes.
func Canonical(v any) []byte { return appendCanonical(nil, v) }

func appendCanonical(b []byte, v any) []byte {
	switch v := v.(type) {
	case nil:
		return append(b, "null"...)
	case bool:
		return strconv.AppendBool(b, v)
	case string:
		b, _ = jsontext.AppendQuote(b, v) // replaces what is not UTF-8
		return b
	case json.Number:
		return append(b, canonicalNumber(string(v))...)
	case []any:
		b = append(b, '[')
		for i, e := range v {
			if i > 0 {
				b = append(b, ',')
			}
			b = appendCanonical(b, e)
		}
		return append(b, ']')
	case map[string]any:
		keys := make([]string, 0, len(v))
		for k := range v {
			keys = append(keys, k)
		}
		slices.Sort(keys)
		b = append(b, '{')
		for i, k := range keys {
			if i > 0 {
				b = append(b, ',')
			}
			b, _ = jsontext.AppendQuote(b, k)
			b = append(b, ':')
			b = appendCanonical(b, v[k])
		}
		return append(b, '}')
	}
	panic(fmt.Sprintf("canonical JSON of a %T", v)) // not a value of DecodeJSON: a programming error
}

// canonicalNumber writes a number by its value: its significant digits and where the point stands.
func canonicalNumber(s string) string {
	sign := ""
	if strings.HasPrefix(s, "-") {
		sign, s = "-", s[1:]
	}
	mantissa, exponent, _ := strings.Cut(strings.ToLower(s), "e")
	whole, fraction, _ := strings.Cut(mantissa, ".")
	digits := strings.TrimLeft(whole+fraction, "0")
	trimmed := strings.TrimRight(digits, "0")
	if trimmed == "" {
		return "0"
	}
	exp, _ := strconv.Atoi(exponent) // none is 0; bounded by exactNumber
	exp += len(digits) - len(trimmed) - len(fraction)
	switch point := len(trimmed) + exp; {
	case exp >= 0 && point <= 40:
		return sign + trimmed + strings.Repeat("0", exp)
	case exp < 0 && point > 0:
		return sign + trimmed[:point] + "." + trimmed[point:]
	case exp < 0 && point > -8:
		return sign + "0." + strings.Repeat("0", -point) + trimmed
	}
	return sign + trimmed + "e" + strconv.Itoa(exp)
}
