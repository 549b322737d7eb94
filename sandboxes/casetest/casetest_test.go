package casetest

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"
)

func TestLoad(t *testing.T) {
	cases, err := Load()
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{}
	for _, c := range cases {
		if c.ID == "" || c.Kind == "" || (c.Mode != "table" && c.Mode != "scenario") || seen[c.ID] {
			t.Errorf("case %q: want an ID of its own, a kind and a mode, have %q %q", c.ID, c.Kind, c.Mode)
		}
		seen[c.ID] = true
		if c.Mode == "table" && !json.Valid([]byte(c.Want)) {
			t.Errorf("case %s: want is not JSON", c.ID)
		}
	}
	if len(cases) < 297 {
		t.Errorf("%d cases, want 297 or more", len(cases))
	}

	file := filepath.Join(t.TempDir(), "cases.jsonl")
	if err := os.WriteFile(file, []byte("{\"id\":\"X1\",\"kind\":\"k\",\"mode\":\"table\",\"want\":\"{}\"}\n\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	t.Setenv("MCPGYM_CASES", file)
	ran := 0
	Run(t, "k", func(_ *testing.T, c Case) { ran++ })
	Run(t, "another", func(t *testing.T, _ Case) { t.Error("a case of another kind") })
	if ran != 1 {
		t.Errorf("%d cases of the file ran, want 1", ran)
	}
}

func TestDiffers(t *testing.T) {
	for _, c := range []struct {
		want, got string
		same      bool
	}{
		{`{"a":1}`, `{"a":1,"b":2}`, true},
		{`{"a":1}`, `{"b":1}`, false},
		{`{"a":[1,2]}`, `{"a":[1,2,3]}`, false},
		{`{"a":[1,2]}`, `{"a":[2,1]}`, false},
		{`9007199254740993`, `9007199254740992`, false},
		{`0.3333333`, `0.33333335`, true},
		{`0.3333`, `0.3334`, false},
		{`1`, `1.0`, true},
		{`null`, `null`, true},
		{`null`, `0`, false},
		{`"a"`, `"b"`, false},
		{`true`, `false`, false},
	} {
		var w, g any
		for text, into := range map[string]*any{c.want: &w, c.got: &g} {
			if err := decode(text, into); err != nil {
				t.Fatal(err)
			}
		}
		if c.want == c.got {
			g = w
		}
		if why := differs("", w, g); (why == "") != c.same {
			t.Errorf("want %s, got %s: %q", c.want, c.got, why)
		}
	}
}
