// Package casetest loads field cases: failures that users of such gyms met, as inputs with the right outcome. Tests run
// them by kind, so that every present and future case of a kind is covered.
//
// MCPGYM_CASES=FILE runs another file of the same form. Only tests import this package.
package casetest

import (
	"bytes"
	_ "embed"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"strings"
	"testing"
)

//go:embed cases.jsonl
var builtin []byte

// Case is one line of a case file. Input is raw text or JSON, as its kind says; Want and Context are JSON.
type Case struct {
	ID, Area, Kind, Mode, Source, Symptom, Input, Want, Context string
}

// Load reads the cases: the built-in ones, or those of the file that MCPGYM_CASES names.
func Load() ([]Case, error) {
	data, name := builtin, "cases.jsonl"
	if f := os.Getenv("MCPGYM_CASES"); f != "" {
		var err error
		if data, err = os.ReadFile(f); err != nil {
			return nil, fmt.Errorf("read cases: %w", err)
		}
		name = f
	}
	var cases []Case
	for i, line := range bytes.Split(data, []byte("\n")) {
		if len(bytes.TrimSpace(line)) == 0 {
			continue
		}
		var c Case
		if err := json.Unmarshal(line, &c); err != nil {
			return nil, fmt.Errorf("read case at %s:%d: %w", name, i+1, err)
		}
		cases = append(cases, c)
	}
	return cases, nil
}

// Run runs f on every table case of a kind, as a subtest named by the case's id.
func Run(t *testing.T, kind string, f func(t *testing.T, c Case)) {
	t.Helper()
	cases, err := Load()
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for _, c := range cases {
		if c.Kind == kind && c.Mode == "table" {
			n++
			t.Run(c.ID, func(t *testing.T) { f(t, c) })
		}
	}
	if n == 0 && os.Getenv("MCPGYM_CASES") == "" {
		t.Errorf("no cases of kind %q", kind)
	}
}

// In decodes the case's JSON input, numbers kept as json.Number where v allows it.
func (c Case) In(t *testing.T, v any) {
	t.Helper()
	if err := decode(c.Input, v); err != nil {
		t.Fatalf("%s: input: %v", c.ID, err)
	}
}

func decode(text string, v any) error {
	d := json.NewDecoder(strings.NewReader(text))
	d.UseNumber()
	return d.Decode(v)
}

// Check compares what came out with what the case wants. Only the keys that want names are compared. Integers compare as
// decimal text, other numbers within 1e-6, arrays whole and in order.
func (c Case) Check(t *testing.T, got any) {
	t.Helper()
	data, err := json.Marshal(got)
	if err != nil {
		t.Fatalf("%s: encode what came out: %v", c.ID, err)
	}
	var g, w any
	for _, x := range []struct {
		text string
		into *any
	}{{string(data), &g}, {c.Want, &w}} {
		if err := decode(x.text, x.into); err != nil {
			t.Fatalf("%s: %v in %s", c.ID, err, x.text)
		}
	}
	if why := differs("", w, g); why != "" {
		t.Errorf("%s (%s)\ninput %s\ngot   %s\nwant  %s\n%s", c.ID, c.Symptom, c.Input, data, c.Want, why)
	}
}

func differs(at string, want, got any) string {
	switch w := want.(type) {
	case map[string]any:
		g, ok := got.(map[string]any)
		if !ok {
			return fmt.Sprintf("%s: got %v, want an object", at, got)
		}
		for k, v := range w {
			have, ok := g[k]
			if !ok {
				return fmt.Sprintf("%s.%s is missing", at, k)
			}
			if why := differs(at+"."+k, v, have); why != "" {
				return why
			}
		}
		return ""
	case []any:
		g, ok := got.([]any)
		if !ok || len(g) != len(w) {
			return fmt.Sprintf("%s: got %v, want %v", at, got, want)
		}
		for i := range w {
			if why := differs(fmt.Sprintf("%s[%d]", at, i), w[i], g[i]); why != "" {
				return why
			}
		}
		return ""
	case json.Number:
		g, ok := got.(json.Number)
		if ok && g == w {
			return ""
		}
		if ok && strings.ContainsAny(string(w+g), ".eE") {
			a, errA := w.Float64()
			b, errB := g.Float64()
			if errA == nil && errB == nil && math.Abs(a-b) <= 1e-6 {
				return ""
			}
		}
		return fmt.Sprintf("%s: got %v, want %v", at, got, want)
	}
	if want != got {
		return fmt.Sprintf("%s: got %v, want %v", at, got, want)
	}
	return ""
}
