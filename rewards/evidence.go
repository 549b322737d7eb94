package rewards

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/mcpgym/mcpgym/envs"
)

// Fact is something that a tool result shows. It says what in one of two ways.
//
// Has: somewhere in the result stands an object with all these fields. An object also has the plain fields of the objects
// around it, so {"station": "A", "days": [{"high": 3}]} shows {"station": "A", "high": 3}.
//
// Cell: the result is a table, {"columns": [...], "rows": [[...]], "row_count": n}, that has the value in a cell, or as its
// number of rows, and the call's argument sql names each table of From and does not spell the value itself: what a query
// was given is no evidence. (An agent that knows the value already can still compute it from something else.) A Cell of
// kind "none" is shown by a table without rows.
type Fact struct {
	Tool string         `json:"tool,omitempty"` // any tool, if empty
	Has  map[string]any `json:"has,omitempty"`
	Cell *Value         `json:"cell,omitempty"`
	From []string       `json:"from,omitempty"` // tables, in lower case
}

// Shown says where a record shows what an answer must follow from.
type Shown struct {
	Fact string           `json:"fact"` // where no result shows any of its group: the first of them
	Step int              `json:"step"` // -1 where no result shows it
	Call int              `json:"call"` // of the step
	Tool string           `json:"tool"`
	Path jsontext.Pointer `json:"path"` // in the result; empty for the result as a whole
}

// Evidence lists for each group of a task's evidence the first of its facts that is shown, and the first result that shows
// it. A task that asks for no answer has no evidence.
func Evidence(t *envs.Trajectory) ([]Shown, error) {
	if len(t.Task.Want) == 0 {
		return nil, nil
	}
	want, err := DecodeWant(t.Task.Want)
	if err != nil {
		return nil, err
	}
	results := shown(t)
	all := make([]Shown, len(want.Evidence))
	for i, group := range want.Evidence {
		var f Fact
		if all[i], f, err = find(group, results); err != nil {
			return nil, err
		}
		all[i].Fact = f.String()
	}
	return all, nil
}

// find looks for the facts of a group, one after the other, in all results. Where none is shown it gives the first of them.
func find(group []Fact, results []result) (Shown, Fact, error) {
	for _, f := range group {
		for _, r := range results {
			if at, ok, err := f.in(r); ok || err != nil {
				return Shown{Step: r.step, Call: r.call, Tool: r.tool, Path: at}, f, err
			}
		}
	}
	if len(group) == 0 {
		return Shown{Step: -1}, Fact{}, nil
	}
	return Shown{Step: -1}, group[0], nil
}

// result is what a call has shown.
type result struct {
	step, call      int // where it stands in the record
	tool            string
	body            any
	words, literals []string // of the argument sql
}

// shown lists the results of all calls that went well.
func shown(t *envs.Trajectory) []result {
	var all []result
	for n, s := range t.Steps {
		for i, r := range s.Observation.Results {
			if r.Status != envs.StatusOK {
				continue
			}
			v, err := envs.DecodeJSON([]byte(r.Text))
			if err != nil {
				continue
			}
			out := result{step: n, call: i, tool: r.Name, body: v}
			var args struct{ SQL string }
			if raw := s.Action.Calls[i].Arguments; bytes.Contains(raw, []byte("sql")) && json.Unmarshal(raw, &args) == nil && args.SQL != "" {
				out.words, out.literals = scanSQL(args.SQL)
			}
			all = append(all, out)
		}
	}
	return all
}

// missing names the first group of facts that no result shows, or is empty.
func missing(evidence [][]Fact, t *envs.Trajectory) (string, error) {
	results := shown(t)
	for _, group := range evidence {
		s, f, err := find(group, results)
		if err != nil {
			return "", err
		}
		if s.Step < 0 {
			return f.String(), nil
		}
	}
	return "", nil
}

// String says what is to be seen.
func (f Fact) String() string {
	switch {
	case f.Cell != nil && f.Cell.Kind == "none":
		return "no row from " + strings.Join(f.From, " and ")
	case f.Cell != nil:
		return fmt.Sprintf("%q from %s", f.Cell.Value, strings.Join(f.From, " and "))
	case f.Has == nil: // a group without facts
		return "anything: the task asks for evidence that nothing can give"
	}
	text, err := json.Marshal(f.Has)
	if err != nil {
		return err.Error()
	}
	return string(text)
}

// in says whether a result shows the fact, and where: a JSON Pointer.
func (f Fact) in(r result) (at jsontext.Pointer, ok bool, err error) {
	if f.Tool != "" && f.Tool != r.tool {
		return "", false, nil
	}
	if f.Cell == nil {
		at, ok = shows(r.body, f.Has, map[string]bool{})
		return at, ok, nil
	}
	for _, table := range f.From {
		if !slices.Contains(r.words, table) {
			return "", false, nil
		}
	}
	body, _ := r.body.(map[string]any)
	rows, isTable := body["rows"].([]any)
	if !isTable {
		return "", false, nil
	}
	if f.Cell.Kind == "none" {
		return "/rows", len(rows) == 0, nil
	}
	for _, l := range r.literals {
		if spelt, err := f.Cell.Match(l); spelt || err != nil {
			return "", false, err
		}
	}
	if ok, err := f.Cell.matchCell(body["row_count"]); ok || err != nil {
		return "/row_count", ok, err
	}
	for i, row := range rows {
		list, _ := row.([]any)
		for k, c := range list {
			if ok, err := f.Cell.matchCell(c); ok || err != nil {
				return jsontext.Pointer(fmt.Sprintf("/rows/%d/%d", i, k)), ok, err
			}
		}
	}
	return "", false, nil
}

func (v Value) matchCell(c any) (bool, error) {
	switch c := c.(type) {
	case string:
		return v.Match(c)
	case json.Number:
		return v.Match(c.String())
	}
	return false, nil
}

// shows says whether v is, or holds, an object with the wanted fields, and where the first one stands; have are those that
// objects around v have.
func shows(v any, want map[string]any, have map[string]bool) (at jsontext.Pointer, ok bool) {
	switch v := v.(type) {
	case []any:
		for i, e := range v {
			if at, ok := shows(e, want, have); ok {
				return jsontext.Pointer("/"+strconv.Itoa(i)) + at, true
			}
		}
	case map[string]any:
		own := map[string]bool{}
		for k, w := range want {
			if got, ok := v[k]; ok {
				own[k] = same(got, w)
			} else {
				own[k] = have[k]
			}
		}
		all := true
		for k := range want {
			all = all && own[k]
		}
		if all {
			return "", true
		}
		first := "" // of several keys the first by name, since maps have no order
		for k, e := range v {
			if ok && k > first {
				continue
			}
			if in, found := shows(e, want, own); found {
				first, at, ok = k, jsontext.Pointer("").AppendToken(k)+in, true
			}
		}
	}
	return at, ok
}

// same compares two JSON values; what is equal as it is written needs no canonical form.
func same(a, b any) bool {
	switch a := a.(type) {
	case string:
		b, ok := b.(string)
		return ok && a == b
	case json.Number:
		b, ok := b.(json.Number)
		if !ok || a == b {
			return ok
		}
	}
	return bytes.Equal(envs.Canonical(a), envs.Canonical(b))
}
