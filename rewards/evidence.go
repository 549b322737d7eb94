package rewards

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/mcpgym/mcpgym/envs"
)

// Fact is something that a tool result shows. It says what in one of three ways.
//
// Has: somewhere in the result stands an object with all these fields. An object also has the plain fields of the objects
// around it, so {"station": "A", "days": [{"high": 3}]} shows {"station": "A", "high": 3}.
//
// Cell: the result is a table, {"columns": [...], "rows": [[...]], "row_count": n}, that has the value in a cell, or as its
// number of rows, and the call's argument sql names each table of From and does not spell the value itself: what a query
// was given is no evidence. (An agent that knows the value already can still compute it from something else.) A Cell of
// kind "none" is shown by a table without rows.
//
// File: the path stands in the result, as a text of its own. With Says, the result shows the file itself instead: an object
// with that path and a content in which Says stands as a whole phrase. What this or an earlier call of a tool that may write has
// spelt is no evidence: an agent could write it, read it, and put all back.
type Fact struct {
	Tool string   `json:"tool,omitempty"` // any tool, if empty
	Has  Fields   `json:"has,omitempty"`
	Cell *Value   `json:"cell,omitempty"`
	From []string `json:"from,omitempty"` // tables, in lower case
	File string   `json:"file,omitempty"`
	Says string   `json:"says,omitempty"`
}

// Fields are members that an object must have. Their values are as envs.DecodeJSON gives them.
type Fields map[string]any

// UnmarshalJSONFrom reads an object, or null.
func (f *Fields) UnmarshalJSONFrom(d *jsontext.Decoder) error {
	tok, err := d.ReadToken()
	if err != nil || tok.Kind() == jsontext.KindNull {
		return err
	}
	if tok.Kind() != jsontext.KindBeginObject {
		return errors.New("the fields of a fact are no object")
	}
	for *f = (Fields{}); err == nil && d.PeekKind() != jsontext.KindEndObject; {
		if tok, err = d.ReadToken(); err != nil {
			break
		}
		name := tok.String()
		switch d.PeekKind() {
		case jsontext.KindString:
			tok, err = d.ReadToken()
			(*f)[name] = tok.String()
		case jsontext.KindNumber:
			tok, err = d.ReadToken()
			(*f)[name] = json.Number(tok.String())
		default:
			var raw jsontext.Value
			if raw, err = d.ReadValue(); err == nil {
				(*f)[name], err = envs.DecodeJSON(raw)
			}
		}
	}
	if err == nil {
		_, err = d.ReadToken()
	}
	return err
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
		f, r, at, err := find(group, results)
		if err != nil {
			return nil, err
		}
		if all[i] = (Shown{Fact: f.String(), Step: -1}); r != nil {
			all[i] = Shown{Fact: f.String(), Step: r.step, Call: r.call, Tool: r.tool, Path: r.body.path(at)}
		}
	}
	return all, nil
}

// find looks for the facts of a group, one after the other, in all results. Where a result r shows one, at is its place in r;
// where none does, r is nil and f the first of them.
func find(group []Fact, results []result) (f Fact, r *result, at int32, err error) {
	for _, f = range group {
		fields := make([]field, 0, len(f.Has))
		for name, value := range f.Has {
			fields = append(fields, field{name, value})
		}
		for i := range results {
			at, ok, err := f.in(&results[i], fields)
			if ok || err != nil {
				return f, &results[i], at, err
			}
		}
	}
	if len(group) > 0 {
		f = group[0]
	}
	return f, nil, 0, nil
}

// field is a member that an object must have.
type field struct {
	name  string
	value any
}

// result is what a call that went well has shown.
type result struct {
	step, call int // where it stands in the record
	tool, text string
	args       json.RawMessage
	written    []string // arguments of the calls so far, its own too, of tools that may write

	read, isJSON    bool // read: body is known
	body            document
	scanned         bool
	words, literals []string // of the argument sql
}

// shown lists the results of all calls that went well.
func shown(t *envs.Trajectory) []result {
	all := make([]result, 0, countResults(t))
	var written []string
	for n, s := range t.Steps {
		for i, r := range s.Observation.Results {
			if i >= len(s.Action.Calls) {
				continue
			}
			args := s.Action.Calls[i].Arguments
			if mayWrite(t, r.Name) {
				written = append(written, string(args))
			}
			if r.Status == envs.StatusOK {
				all = append(all, result{step: n, call: i, tool: r.Name, text: r.Text, args: args, written: written})
			}
		}
	}
	return all
}

// mayShow is false where the result cannot have the fields: text without escapes spells all that it shows.
func (r *result) mayShow(fields []field) bool {
	if strings.Contains(r.text, `\`) {
		return true
	}
	for _, f := range fields {
		if text, ok := f.value.(string); ok && !strings.Contains(r.text, text) || !strings.Contains(r.text, f.name) {
			return false
		}
	}
	return true
}

// readBody reads the result when it is first needed, and says whether it is JSON.
func (r *result) readBody() bool {
	if !r.read {
		r.read = true
		r.body, r.isJSON = readJSON(r.text)
	}
	return r.isJSON
}

// scanArgs scans the argument sql when it is first needed.
func (r *result) scanArgs() {
	if r.scanned {
		return
	}
	r.scanned = true
	var args struct{ SQL string }
	if bytes.Contains(r.args, []byte("sql")) && json.Unmarshal(r.args, &args) == nil && args.SQL != "" {
		r.words, r.literals = scanSQL(args.SQL)
	}
}

// missing names the first group of facts that no result shows, or is empty.
func missing(evidence [][]Fact, t *envs.Trajectory) (string, error) {
	results := shown(t)
	for _, group := range evidence {
		f, r, _, err := find(group, results)
		if err != nil {
			return "", err
		}
		if r == nil {
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
	case f.Says != "":
		return fmt.Sprintf("%q in %s", f.Says, f.File)
	case f.File != "":
		return "the path " + f.File
	case f.Has == nil: // a group without facts
		return "anything: the task asks for evidence that nothing can give"
	}
	text, err := json.Marshal(f.Has)
	if err != nil {
		return err.Error()
	}
	return string(text)
}

// in says whether a result shows the fact, and where. fields are those of Has.
func (f Fact) in(r *result, fields []field) (at int32, ok bool, err error) {
	if f.Tool != "" && f.Tool != r.tool {
		return 0, false, nil
	}
	if f.File != "" {
		at, ok = f.showsFile(r)
		return at, ok, nil
	}
	if f.Cell == nil {
		if !r.mayShow(fields) || !r.readBody() {
			return 0, false, nil
		}
		at, ok = r.body.shows(0, fields, make([]bool, len(fields), 8*len(fields)))
		return at, ok, nil
	}
	if !r.readBody() {
		return 0, false, nil
	}
	r.scanArgs()
	for _, table := range f.From {
		if !slices.Contains(r.words, table) {
			return 0, false, nil
		}
	}
	body := &r.body
	rows := body.member(0, "rows")
	if rows < 0 || body.kind(rows) != '[' {
		return 0, false, nil
	}
	if f.Cell.Kind == "none" {
		return rows, body.items[rows].next == rows+1, nil
	}
	for _, l := range r.literals {
		if spelt, err := f.Cell.Match(l); spelt || err != nil {
			return 0, false, err
		}
	}
	if count := body.member(0, "row_count"); count >= 0 {
		if ok, err := f.Cell.matchCell(body, count); ok || err != nil {
			return count, ok, err
		}
	}
	for row := rows + 1; row < body.items[rows].next; row = body.items[row].next {
		if body.kind(row) != '[' {
			continue
		}
		for cell := row + 1; cell < body.items[row].next; cell = body.items[cell].next {
			if ok, err := f.Cell.matchCell(body, cell); ok || err != nil {
				return cell, ok, err
			}
		}
	}
	return 0, false, nil
}

func (v Value) matchCell(d *document, at int32) (bool, error) {
	switch {
	case d.kind(at) == '"':
		return v.Match(d.str(at))
	case d.isNumber(at):
		return v.Match(d.raw(at))
	}
	return false, nil
}

// shows says whether a value is, or holds, an object with the wanted fields, and where the first one stands; have are those
// that objects around it have. What lies behind have in its array is free to be written to.
func (d *document) shows(at int32, want []field, have []bool) (found int32, ok bool) {
	end := d.items[at].next
	switch d.kind(at) {
	case '[':
		for e := at + 1; e < end; e = d.items[e].next {
			if found, ok := d.shows(e, want, have); ok {
				return found, true
			}
		}
	case '{':
		own := append(have, have...)[len(have):]
		for m := at + 1; m < end; m = d.items[m].next {
			for i, w := range want {
				if d.key(m) == w.name {
					own[i] = d.is(m, w.value)
				}
			}
		}
		if !slices.Contains(own, false) {
			return at, true
		}
		first := "" // of several keys the first by name, since the order of members means nothing
		for m := at + 1; m < end; m = d.items[m].next {
			if ok && d.key(m) > first {
				continue
			}
			if in, is := d.shows(m, want, own); is {
				first, found, ok = d.key(m), in, true
			}
		}
	}
	return found, ok
}

// is says whether a value is the wanted one; what is equal as it is written needs no canonical form.
func (d *document) is(at int32, want any) bool {
	switch want := want.(type) {
	case string:
		return d.kind(at) == '"' && d.str(at) == want
	case json.Number:
		return d.isNumber(at) && sameNumber(d.raw(at), string(want))
	}
	got, err := envs.DecodeJSON([]byte(d.raw(at)))
	return err == nil && bytes.Equal(envs.Canonical(got), envs.Canonical(want))
}

// sameNumber compares two JSON numbers by their value.
func sameNumber(a, b string) bool {
	if a == b {
		return true
	}
	for _, s := range []string{a, b} {
		if strings.IndexByte(s, 'e') >= 0 || strings.IndexByte(s, 'E') >= 0 || strings.HasPrefix(s, "-0") {
			return bytes.Equal(envs.Canonical(json.Number(a)), envs.Canonical(json.Number(b)))
		}
	}
	return plainDigits(a) == plainDigits(b)
}
