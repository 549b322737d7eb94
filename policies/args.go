package policies

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"math/big"
	"regexp"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/santhosh-tekuri/jsonschema/v6"

	"github.com/mcpgym/mcpgym/envs"
	"github.com/mcpgym/mcpgym/sandboxes"
)

// tool is an offered tool, its schema taken apart as far as a policy without a model can use it.
type tool struct {
	sandboxes.Tool
	params []param // required ones first, then by name
	schema *jsonschema.Schema
}

// param is a parameter, or a part of one.
type param struct {
	name     string
	required bool
	kind     string         // a JSON type, "" if any will do
	schema   map[string]any // references and alternatives resolved
	root     map[string]any // the whole schema, for references
	pattern  *regexp.Regexp // nil if there is none, or none that can be read
}

// items is what an array parameter holds, fields what an object parameter holds.
func (p param) items() param    { return newParam(p.root, p.schema["items"]) }
func (p param) fields() []param { return properties(p.root, p.schema) }

// schemaDepth bounds how far references and nesting are followed: a schema may contain itself.
const schemaDepth = 5

// readTools takes schemas apart. A tool whose schema cannot be compiled is left out: no call of it can be known to be valid.
func readTools(list []sandboxes.Tool) []tool {
	var tools []tool
	for _, t := range list {
		doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(t.InputSchema))
		if err != nil {
			continue
		}
		compiled, err := envs.CompileSchema(t.InputSchema)
		if err != nil {
			continue
		}
		root, _ := doc.(map[string]any)
		tools = append(tools, tool{Tool: t, params: properties(root, resolve(root, root, schemaDepth)), schema: compiled})
	}
	return tools
}

// valid says whether a call with these arguments fits the schema.
func (t *tool) valid(args json.RawMessage) bool {
	v, err := envs.DecodeJSON(args)
	return err == nil && t.schema.Validate(v) == nil
}

// properties lists the parts of an object schema that is resolved already.
func properties(root, s map[string]any) []param {
	props, _ := s["properties"].(map[string]any)
	required, _ := s["required"].([]any)
	var out []param
	for _, first := range []bool{true, false} {
		for _, name := range slices.Sorted(maps.Keys(props)) {
			if slices.Contains(required, any(name)) == first {
				p := newParam(root, props[name])
				p.name, p.required = name, first
				out = append(out, p)
			}
		}
	}
	return out
}

func newParam(root map[string]any, v any) param {
	p := param{schema: resolve(root, v, schemaDepth), root: root}
	p.kind, _ = p.schema["type"].(string)
	if s, ok := p.schema["pattern"].(string); ok {
		p.pattern, _ = regexp.Compile(s)
	}
	return p
}

// resolve returns a schema with its local reference, all of allOf, and the first alternative of anyOf or oneOf that is not
// null merged in. Of several types the first that is not null counts.
func resolve(root map[string]any, v any, depth int) map[string]any {
	s, ok := v.(map[string]any)
	if !ok || depth == 0 {
		return map[string]any{}
	}
	out := maps.Clone(s)
	merge := func(part map[string]any) {
		for k, e := range part {
			if _, ok := out[k]; !ok {
				out[k] = e
			}
		}
	}
	if ref, ok := s["$ref"].(string); ok {
		var target any = root
		for _, step := range strings.Split(strings.TrimPrefix(strings.TrimPrefix(ref, "#"), "/"), "/") {
			if m, ok := target.(map[string]any); ok && step != "" {
				target = m[step]
			}
		}
		merge(resolve(root, target, depth-1))
	}
	all, _ := s["allOf"].([]any)
	for _, e := range all {
		merge(resolve(root, e, depth-1))
	}
	for _, key := range []string{"anyOf", "oneOf"} {
		alternatives, _ := s[key].([]any)
		for _, e := range alternatives {
			if r := resolve(root, e, depth-1); r["type"] != "null" {
				merge(r)
				break
			}
		}
	}
	if types, ok := out["type"].([]any); ok {
		delete(out, "type")
		for _, t := range types {
			if t != "null" {
				out["type"] = t
				break
			}
		}
	}
	return out
}

// text returns a member of the schema that is a text, or "".
func (p param) text(key string) string {
	s, _ := p.schema[key].(string)
	return s
}

// list returns a member of the schema that is a list, or a list of the member itself.
func (p param) list(key string) []any {
	switch v := p.schema[key].(type) {
	case nil:
		return nil
	case []any:
		return v
	default:
		return []any{v}
	}
}

// choices are the values that the schema admits, if it names them.
func (p param) choices() []any {
	if c, ok := p.schema["const"]; ok {
		return []any{c}
	}
	return p.list("enum")
}

func (p param) number(key string) (*big.Rat, bool) {
	n, ok := p.schema[key].(json.Number)
	if !ok {
		return nil, false
	}
	return rat(string(n))
}

// rat reads a decimal number of modest size exactly.
func rat(s string) (*big.Rat, bool) {
	if s == "" || len(s) > 40 || strings.ContainsAny(s, "/eExXpP_") {
		return nil, false
	}
	return new(big.Rat).SetString(s)
}

// coerce turns a value that was seen somewhere into one for the parameter, or says that it does not fit.
func (p param) coerce(v any) (any, bool) {
	var s string
	switch v := v.(type) {
	case string:
		s = v
	case json.Number:
		s = v.String()
	case bool:
		return v, p.kind == "boolean"
	default:
		return nil, false
	}
	if c := p.choices(); c != nil && !slices.ContainsFunc(c, func(e any) bool { return fmt.Sprint(e) == s }) {
		return nil, false
	}
	switch p.kind {
	case "string", "":
		length := json.Number(fmt.Sprint(utf8.RuneCountInString(s)))
		ok := p.within(length, "minLength", "maxLength") && (p.pattern == nil || p.pattern.MatchString(s))
		switch p.text("format") {
		case "date":
			_, err := time.Parse(time.DateOnly, s)
			ok = ok && err == nil
		case "date-time":
			_, err := time.Parse(time.RFC3339, s)
			ok = ok && err == nil
		}
		if p.kind == "" {
			return v, ok
		}
		return s, ok
	case "integer", "number":
		n := json.Number(s)
		r, ok := rat(s)
		return n, ok && (p.kind == "number" || r.IsInt()) && p.within(n, "minimum", "maximum") && json.Valid([]byte(s))
	}
	return nil, false
}

func (p param) within(n json.Number, low, high string) bool {
	r, ok := rat(string(n))
	if !ok {
		return false
	}
	if b, ok := p.number(low); ok && r.Cmp(b) < 0 {
		return false
	}
	b, ok := p.number(high)
	return !ok || r.Cmp(b) <= 0
}

// record is an object in a result. Its own plain fields come first, then those of the objects around it.
type record struct {
	list    string // the name of the list or field it stands in
	fields  []field
	own     int // how many fields are its own
	subject int // which subject of a question it is about
}

// field is a plain value in a result.
type field struct {
	name  string
	value any // string, json.Number, bool or nil
}

func (r record) get(name string) any {
	for _, f := range r.fields {
		if f.name == name {
			return f.value
		}
	}
	return nil
}

func (r record) number(name string) (*big.Rat, bool) {
	n, _ := r.get(name).(json.Number)
	return rat(string(n))
}

// has says that a field is the record's own, and not null.
func (r record) has(f field) bool {
	return f.value != nil && slices.Contains(r.fields[:r.own], f)
}

func (r record) isNumber(f field) bool {
	_, ok := f.value.(json.Number)
	return ok && r.has(f)
}

// asTime reads a value that is a time or a day.
func asTime(v any) (time.Time, bool) {
	text, _ := v.(string)
	for _, layout := range []string{time.DateOnly, "2006-01-02T15:04", "2006-01-02 15:04", "2006-01-02T15:04:05", time.RFC3339} {
		if t, err := time.Parse(layout, text); err == nil {
			return t, true
		}
	}
	return time.Time{}, false
}

// readRecords finds the objects of a result that is JSON, in order, those inside before the one around them. A result that
// is not JSON has none.
func readRecords(text string) []record {
	v, err := envs.DecodeJSON([]byte(text))
	if err != nil {
		return nil
	}
	var out []record
	var walk func(v any, list string, around []field)
	walk = func(v any, list string, around []field) {
		switch v := v.(type) {
		case []any:
			for _, e := range v {
				walk(e, list, around)
			}
		case map[string]any:
			r := record{list: list}
			keys := slices.Sorted(maps.Keys(v))
			for _, k := range keys {
				switch v[k].(type) {
				case map[string]any, []any:
				default:
					r.fields = append(r.fields, field{k, v[k]})
				}
			}
			r.own = len(r.fields)
			for _, f := range around {
				if _, ok := v[f.name]; !ok {
					r.fields = append(r.fields, f)
				}
			}
			for _, k := range keys {
				walk(v[k], k, r.fields)
			}
			out = append(out, r)
		}
	}
	walk(v, "", nil)
	return out
}

// words splits a text into lower-case words; snake_case and camelCase names fall apart into theirs.
func words(s string) []string {
	var out []string
	start, prev := -1, rune(0)
	cut := func(end int) {
		if start >= 0 {
			out = append(out, strings.ToLower(s[start:end]))
		}
		start = -1
	}
	for i, r := range s {
		letter := unicode.IsLetter(r) || unicode.IsDigit(r)
		if !letter || unicode.IsUpper(r) && unicode.IsLower(prev) || unicode.IsDigit(r) != unicode.IsDigit(prev) {
			cut(i)
		}
		if letter && start < 0 {
			start = i
		}
		prev = r
	}
	cut(len(s))
	return out
}

// mention is something in a prompt that may be an argument.
type mention struct {
	kind       string // quoted, date, id, time, number or name
	text       string // dates as YYYY-MM-DD
	start, end int    // in the prompt
}

// mentionForms are looked for in this order, each in what the ones before it have left over. A name is a run of capitalised
// words with small words in between.
var mentionForms = []struct {
	kind string
	form *regexp.Regexp
}{
	{"quoted", regexp.MustCompile("\"[^\"\n]+\"|`[^`\n]+`|\u201c[^\u201d\n]+\u201d")},
	{"date", regexp.MustCompile(`\b\d{4}-\d\d-\d\d(?:T\d\d:\d\d(?::\d\d)?(?:Z|[+-]\d\d:\d\d)?)?\b`)},
	{"date", regexp.MustCompile(`\b\d{1,2} ` + months + ` \d{4}\b|\b` + months + ` \d{1,2}, \d{4}\b`)},
	{"time", regexp.MustCompile(`\b\d{1,2}:\d\d\b`)},
	{"id", regexp.MustCompile(`[\w.-]*/[\w./-]*\w|\b[A-Za-z]+[_-]?\d[\w-]*|\b\d+[_-]?[A-Za-z][\w-]*\d\w*|\b[A-Za-z]+_\w+|\b[A-Z]{2,4} \d+\b`)},
	{"number", regexp.MustCompile(`-?\b\d+(?:\.\d+)?`)},
	{"name", regexp.MustCompile(`\p{Lu}[\pL'\x{2019}-]*\pL(?: (?:(?:de|del|la|le|upon|am|der|den|van|von) ){0,2}\p{Lu}[\pL'\x{2019}-]*\pL)*`)},
}

const months = `(?:January|February|March|April|May|June|July|August|September|October|November|December)`

// readMentions finds the mentions of a prompt, in order.
func readMentions(prompt string) []mention {
	var out []mention
	left := prompt
	for _, f := range mentionForms {
		for _, at := range f.form.FindAllStringIndex(left, -1) {
			text := strings.Trim(prompt[at[0]:at[1]], "\"`\u201c\u201d")
			for _, layout := range []string{"2 January 2006", "January 2, 2006"} {
				if t, err := time.Parse(layout, text); err == nil {
					text = t.Format(time.DateOnly)
				}
			}
			out = append(out, mention{f.kind, text, at[0], at[1]})
		}
		left = blank(left, '.', f.form)
	}
	slices.SortFunc(out, func(a, b mention) int { return a.start - b.start })
	return out
}

// blank overwrites what a form matches, so that all else stays in its place.
func blank(s string, with byte, form *regexp.Regexp) string {
	return form.ReplaceAllStringFunc(s, func(m string) string { return strings.Repeat(string(with), len(m)) })
}
