package rewards

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/mcpgym/mcpgym/envs"
)

// rebuilt makes of a document what envs.DecodeJSON makes of its text.
func rebuilt(d *document, at int32) any {
	switch d.kind(at) {
	case '{':
		m := map[string]any{}
		for c := range d.within(at) {
			m[d.key(c)] = rebuilt(d, c)
		}
		return m
	case '[':
		list := []any{}
		for c := range d.within(at) {
			list = append(list, rebuilt(d, c))
		}
		return list
	case '"':
		return d.str(at)
	case 't', 'f':
		return d.raw(at) == "true"
	case 'n':
		return nil
	}
	return json.Number(d.raw(at))
}

func FuzzReadJSON(f *testing.F) {
	for _, s := range []string{
		``, ` `, `null`, ` true `, `"a\u0041\\"`, "\"\xff\"", `-0.50`, `1e5`, `1E1001`, `01`, `5 6`, "[1 ,\t2\n]\r", `[[],{},""]`, `[`, `{"a":1,"a":2}`,
		`{"A":1,"a":2}`, `{"aB":1,"Ab":2}`, `{"aB":{"Ab":2},"b":[{"AB":3}]}`, `{"k":1,"\u212a":2}`, `{"\u0041":1,"a":2}`, `{"\u0061":1,"a":2}`,
		strings.Repeat("[", 999) + strings.Repeat("]", 999), strings.Repeat("[", 1001) + strings.Repeat("]", 1001),
		strings.Repeat("9", 1000), strings.Repeat("9", 1001), "{" + strings.Repeat(`"A":1,`, 1) + manyKeys(40) + "}", `{"Z":1,` + manyKeys(20) + `,"z":2}`,
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		want, err := envs.DecodeJSON([]byte(text))
		d, ok := readJSON(text)
		require.Equal(t, err == nil, ok, err)
		if ok {
			require.Equal(t, want, rebuilt(&d, 0))
		}
	})
}

func manyKeys(n int) string {
	keys := make([]string, n)
	for i := range keys {
		keys[i] = `"k` + strings.Repeat("k", i) + `":[]`
	}
	return strings.Join(keys, ",")
}
