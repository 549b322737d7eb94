package envs

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mcpgym/mcpgym/sandboxes/casetest"
)

func TestDecodeJSON(t *testing.T) {
	for _, c := range []struct {
		name, text string
		want       any
	}{
		{"null", ` null `, nil},
		{"true", `true`, true},
		{"false", `false`, false},
		{"text with escapes", `"a\u00e9\n\ud83d\ude00"`, "aé\n😀"},
		{"a large integer stays exact", `9007199254740993`, json.Number("9007199254740993")},
		{"a fraction keeps its digits", `0.10`, json.Number("0.10")},
		{"an exponent", `-1.5E+3`, json.Number("-1.5E+3")},
		{"the largest exponent", `1e1000`, json.Number("1e1000")},
		{"empty list", `[]`, []any{}},
		{"empty object", `{}`, map[string]any{}},
		{"nested", `{"a":[1,{"b":null}],"":false}`, map[string]any{"a": []any{json.Number("1"), map[string]any{"b": nil}}, "": false}},
		{"one key in two objects", `[{"a":1},{"A":2}]`, []any{map[string]any{"a": json.Number("1")}, map[string]any{"A": json.Number("2")}}},
		{"a letter that only looks the same", `{"i":1,"İ":2,"ı":3}`, map[string]any{"i": json.Number("1"), "İ": json.Number("2"), "ı": json.Number("3")}},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := DecodeJSON([]byte(c.text))
			require.NoError(t, err)
			require.Equal(t, c.want, got)
		})
	}
}

func TestDecodeJSONRefuses(t *testing.T) {
	for _, c := range []struct{ name, text, want string }{ // want is part of the error
		{"nothing", ``, "unexpected EOF"},
		{"white space", " \n", "unexpected EOF"},
		{"cut list", `[1,`, "EOF"},
		{"cut object", `{"a":`, "EOF"},
		{"cut text", `"a`, "EOF"},
		{"a second value", `{} {}`, "text after the JSON value"},
		{"text after it", `{}x`, "text after the JSON value"},
		{"a comma after the last", `[1,]`, "invalid character"},
		{"a key twice", `{"a":1,"a":1}`, "duplicate"},
		{"a key twice, once escaped", `{"a":1,"\u0061":1}`, "duplicate"},
		{"a key twice, deep down", `[{"b":{"a":1,"a":1}}]`, "duplicate"},
		{"keys that differ in case", `{"city":1,"City":2}`, `keys "city" and "City" differ only in case`},
		{"keys that differ in case, beyond ASCII", `{"Ä":1,"ä":2}`, "differ only in case"},
		{"keys that fold to one", `{"k":1,"\u212a":2}`, "differ only in case"},
		{"NaN", `NaN`, "invalid"},
		{"infinity", `-Infinity`, "invalid"},
		{"leading zero", `01`, "text after"},
		{"hexadecimal", `0x10`, "text after"},
		{"single quotes", `{'a':1}`, "invalid"},
		{"a comment", `{} // {}`, "text after"},
		{"not UTF-8", "\"\xff\"", "UTF-8"},
		{"not UTF-8 in a key", "{\"\xc3\":1}", "UTF-8"},
		{"half a surrogate pair", `"\ud800"`, "invalid"},
		{"a byte order mark", "\ufeff{}", "invalid"},
		{"too large", `1e1001`, "out of range"},
		{"too small", `1E-1001`, "out of range"},
		{"too large when written with one digit", `10e1000`, "out of range"},
		{"far too large", `[1e999999999]`, "out of range"},
		{"an exponent beyond integers", `1e99999999999999999999`, "out of range"},
		{"too many digits", strings.Repeat("9", 1001), "out of range"},
		{"too many digits when written without an exponent", strings.Repeat("9", 993) + "e-1000", "out of range"},
		{"too deep", strings.Repeat("[", 1001) + strings.Repeat("]", 1001), "nested deeper than 1000"},
		{"too deep by far, and cut", strings.Repeat(`{"a":`, 1e6), "nested deeper than 1000"},
	} {
		t.Run(c.name, func(t *testing.T) {
			v, err := DecodeJSON([]byte(c.text))
			require.ErrorContains(t, err, c.want)
			require.Nil(t, v)
		})
	}
}

func TestDecodeJSONAtTheDepthLimit(t *testing.T) {
	text := strings.Repeat("[", 1000) + strings.Repeat("]", 1000)
	v, err := DecodeJSON([]byte(text))
	require.NoError(t, err)
	require.Equal(t, text, string(Canonical(v)))
}

// An agent decides what is read: an object of many keys must not take time by their square.
func TestDecodeJSONOfManyKeys(t *testing.T) {
	keys := make([]string, 50_000)
	for i := range keys {
		keys[i] = fmt.Sprintf(`"k%d":1e1000`, i)
	}
	text := []byte("{" + strings.Join(keys, ",") + "}")
	fastest := func(f func() error) time.Duration {
		best := time.Hour
		for range 3 {
			start := time.Now()
			require.NoError(t, f())
			best = min(best, time.Since(start))
		}
		return best
	}
	ours := fastest(func() error {
		v, err := DecodeJSON(text)
		Canonical(v)
		return err
	})
	theirs := fastest(func() error { return json.Unmarshal(text, &map[string]json.Number{}) })
	require.Less(t, ours, 100*theirs) // 3 times as long is usual
}

func TestCanonical(t *testing.T) {
	for _, c := range []struct{ text, want string }{
		{`null`, `null`},
		{` [ true , false ] `, `[true,false]`},
		{`{"b":1,"a":{"d":2,"c":3}}`, `{"a":{"c":3,"d":2},"b":1}`},
		{`{"é":1,"z":2,"Z":3}`, ``}, // differ only in case
		{`"\u00e9\u2028<>&\/"`, "\"é\u2028<>&/\""},
		{`"\u0001\""`, `"\u0001\""`},
		{`25`, `25`},
		{`25.0`, `25`},
		{`2.5e1`, `25`},
		{`2500E-2`, `25`},
		{`0.25e2`, `25`},
		{`-0`, `0`},
		{`-0.0e5`, `0`},
		{`0e1000`, `0`},
		{`-1.50`, `-1.5`},
		{`100`, `100`},
		{`1e2`, `100`},
		{`0.001`, `0.001`},
		{`1e-3`, `0.001`},
		{`10e-4`, `0.001`},
		{`12345e-3`, `12.345`},
		{`1e-100`, `1e-100`},
		{`0.1e-99`, `1e-100`},
		{`1e100`, `1e100`},
		{`10e99`, `1e100`},
		{`1` + strings.Repeat("0", 100), `1e100`},
		{`9007199254740993`, `9007199254740993`},
		{`9007199254740993.0`, `9007199254740993`},
		{`0.1000000000000000055511151231257827`, `0.1000000000000000055511151231257827`},
	} {
		v, err := DecodeJSON([]byte(c.text))
		if c.want == "" {
			require.Error(t, err, c.text)
			continue
		}
		require.NoError(t, err, c.text)
		require.Equal(t, c.want, string(Canonical(v)), c.text)
	}
	require.Panics(t, func() { Canonical(1.5) }, "a float is no value of DecodeJSON")
}

func TestEqualJSON(t *testing.T) {
	for _, c := range []struct {
		a, b        string
		want, fails bool
	}{
		{`{"a":1,"b":[2]}`, ` {"b":[2.0],"a":1} `, true, false},
		{`[1,2]`, `[2,1]`, false, false},
		{`9007199254740993`, `9007199254740992`, false, false},
		{`1`, `"1"`, false, false},
		{`0`, `false`, false, false},
		{`null`, `{}`, false, false},
		{`{`, `{}`, false, true},
		{`{}`, `{`, false, true},
	} {
		got, err := equalJSON([]byte(c.a), []byte(c.b))
		require.Equal(t, c.fails, err != nil, "%s and %s: %v", c.a, c.b, err)
		require.Equal(t, c.want, got, "%s and %s", c.a, c.b)
	}
}

func TestCasesStateHash(t *testing.T) {
	casetest.Run(t, "state-hash", func(t *testing.T, c casetest.Case) {
		var in struct{ A, B string }
		c.In(t, &in)
		equal, err := equalJSON([]byte(in.A), []byte(in.B))
		if err != nil {
			c.Check(t, map[string]any{"error": true})
			return
		}
		c.Check(t, map[string]any{"equal": equal})
	})
}

// What is read can be written, and reads the same again.
func FuzzDecodeJSON(f *testing.F) {
	for _, seed := range []string{`null`, `{"a":[1,2.50,-0e3],"b":"\u00e9"}`, `1e-1000`, `10e1000`, `{"K":1,"k":2}`, `[[[{}]]]`, `123456789.000e+2`, `"\ud83d\ude00"`, "\"\xff\""} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		v, err := DecodeJSON(data)
		if err != nil {
			return
		}
		if !json.Valid(data) {
			t.Fatalf("%q is not JSON and was read as %v", data, v)
		}
		once := Canonical(v)
		again, err := DecodeJSON(once)
		if err != nil {
			t.Fatalf("%q is written as %q, which cannot be read: %v", data, once, err)
		}
		if twice := Canonical(again); !bytes.Equal(once, twice) {
			t.Fatalf("%q is written as %q, and that as %q", data, once, twice)
		}
	})
}

// equalJSON says whether two JSON texts have the same value. A text that cannot be read is an error.
func equalJSON(a, b []byte) (bool, error) {
	va, err := DecodeJSON(a)
	if err != nil {
		return false, err
	}
	vb, err := DecodeJSON(b)
	if err != nil {
		return false, err
	}
	return bytes.Equal(Canonical(va), Canonical(vb)), nil
}
