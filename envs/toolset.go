package envs

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/agnivade/levenshtein"
	"github.com/santhosh-tekuri/jsonschema/v6"
	"github.com/santhosh-tekuri/jsonschema/v6/kind"
	"golang.org/x/text/language"
	"golang.org/x/text/message"

	"github.com/mcpgym/mcpgym/sandboxes"
)

// toolset is the tools of a session with their schemas compiled.
type toolset struct {
	list   []sandboxes.Tool
	byName map[string]*compiledTool
}

type compiledTool struct {
	sandboxes.Tool
	input, output *jsonschema.Schema
	params        map[string]bool     // the properties that the input schema names
	patterns      []jsonschema.Regexp // and the forms of names that it gives
}

// compileTools checks what a server offers. An error is the server's fault.
func compileTools(list []sandboxes.Tool) (*toolset, error) {
	ts := &toolset{list: list, byName: make(map[string]*compiledTool, len(list))}
	for _, t := range list {
		if t.Name == "" {
			return nil, errors.New("a tool without a name")
		}
		if ts.byName[t.Name] != nil {
			return nil, fmt.Errorf("two tools named %s", t.Name)
		}
		c := &compiledTool{Tool: t, params: map[string]bool{}}
		var err error
		if c.input, err = CompileSchema(t.InputSchema); err != nil {
			return nil, fmt.Errorf("input schema of %s: %w", t.Name, err)
		}
		if t.OutputSchema != nil {
			if c.output, err = CompileSchema(t.OutputSchema); err != nil {
				return nil, fmt.Errorf("output schema of %s: %w", t.Name, err)
			}
		}
		c.learn(c.input, map[*jsonschema.Schema]bool{})
		ts.byName[t.Name] = c
	}
	return ts, nil
}

// learn collects the parameters that a schema names, itself or by the schemas that it is made of.
func (t *compiledTool) learn(s *jsonschema.Schema, seen map[*jsonschema.Schema]bool) {
	if s == nil || seen[s] {
		return
	}
	seen[s] = true
	for name := range s.Properties {
		t.params[name] = true
	}
	t.patterns = slices.AppendSeq(t.patterns, maps.Keys(s.PatternProperties))
	parts := slices.Concat([]*jsonschema.Schema{s.Ref, s.If, s.Then, s.Else}, s.AllOf, s.AnyOf, s.OneOf)
	for _, part := range slices.AppendSeq(parts, maps.Values(s.DependentSchemas)) {
		t.learn(part, seen)
	}
}

func (t *compiledTool) knows(param string) bool {
	return t.params[param] || slices.ContainsFunc(t.patterns, func(p jsonschema.Regexp) bool { return p.MatchString(param) })
}

// noLoader refuses references to other documents: a schema of a server must not make the gym read files or addresses.
type noLoader struct{}

func (noLoader) Load(url string) (any, error) {
	return nil, fmt.Errorf("reference to another document %s is not followed", url)
}

// CompileSchema compiles a tool's schema. References to other documents are refused.
func CompileSchema(raw json.RawMessage) (*jsonschema.Schema, error) {
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(raw))
	if err != nil {
		return nil, err
	}
	c := jsonschema.NewCompiler()
	c.UseLoader(noLoader{})
	if err := c.AddResource("mem:schema", doc); err != nil {
		return nil, err
	}
	return c.Compile("mem:schema")
}

// unknownTool is what an agent sees when it calls a tool that is not offered: the real names, nearest first.
func (ts *toolset) unknownTool(name string) string {
	names := make([]string, 0, len(ts.list))
	for _, t := range ts.list {
		names = append(names, t.Name)
	}
	near := map[string]int{}
	for _, n := range names {
		near[n] = levenshtein.ComputeDistance(head(name, 100), n)
	}
	slices.SortStableFunc(names, func(a, b string) int { return cmp.Compare(near[a], near[b]) })
	return fmt.Sprintf("there is no tool %q; the tools are: %s", head(name, 100), strings.Join(names, ", "))
}

// argsCheck is what is known of a call's arguments before it is sent.
type argsCheck struct {
	status  Status   // StatusOK, StatusMalformed or StatusInvalid
	text    string   // for the agent, where not OK: what is wrong, and where
	unknown []string // parameters that the schema does not name, sorted, also where it allows extras
	missing []string // required parameters that are not there, sorted
}

// check validates decoded arguments against the tool's schema, alike for every driver.
func (t *compiledTool) check(v any) argsCheck {
	m, ok := v.(map[string]any)
	if !ok {
		return argsCheck{status: StatusMalformed, text: fmt.Sprintf("the arguments of %s must be one JSON object", t.Name)}
	}
	c := argsCheck{status: StatusOK}
	for k := range m {
		if !t.knows(k) {
			c.unknown = append(c.unknown, k)
		}
	}
	slices.Sort(c.unknown)
	if err := t.input.Validate(v); err != nil {
		c.status = StatusInvalid
		var lines []string
		if ve, ok := errors.AsType[*jsonschema.ValidationError](err); ok {
			lines, c.missing = explain(ve)
		} else {
			lines = []string{err.Error()}
		}
		c.text = fmt.Sprintf("invalid arguments of %s: %s", t.Name, strings.Join(lines, "; "))
		if len(c.unknown) > 0 {
			known := make([]string, 0, len(t.params))
			for p := range t.params {
				known = append(known, p)
			}
			slices.Sort(known)
			c.text += fmt.Sprintf("; it takes: %s", strings.Join(known, ", "))
		}
	}
	return c
}

var english = message.NewPrinter(language.English)

// explain flattens a validation error into sorted lines that say where and what, and the required names that are missing.
func explain(e *jsonschema.ValidationError) (lines, missing []string) {
	switch k := e.ErrorKind.(type) {
	case *kind.Required:
		missing = append(missing, k.Missing...)
	case *kind.AdditionalProperties:
		slices.Sort(k.Properties) // they come in the order of a map
	}
	if len(e.Causes) == 0 {
		where := "at the top: "
		if len(e.InstanceLocation) > 0 {
			where = "at /" + strings.Join(e.InstanceLocation, "/") + ": "
		}
		lines = append(lines, where+e.ErrorKind.LocalizedString(english))
	}
	for _, c := range e.Causes {
		l, m := explain(c)
		lines, missing = append(lines, l...), append(missing, m...)
	}
	slices.Sort(lines)
	slices.Sort(missing)
	return slices.Compact(lines), slices.Compact(missing)
}

// checkResult turns what the server answered into what the agent sees, and notes what the server did wrong.
func (t *compiledTool) checkResult(r sandboxes.Result, limit int) CallResult {
	out := CallResult{Text: r.Text, IsError: r.IsError, Status: StatusOK, Volatile: r.Volatile, Defect: r.Defect}
	switch {
	case r.Defect != "" && r.IsError:
		out.Status = StatusDefect
	case r.IsError:
		out.Status = StatusToolError
	case out.Defect == "":
		out.Defect = t.defect(r)
	}
	out.cut(limit)
	return out
}

// cut shortens the text of a result that is larger than the limit, and marks it.
func (r *CallResult) cut(limit int) {
	if len(r.Text) <= limit {
		return
	}
	r.Bytes = len(r.Text)
	mark := fmt.Sprintf("\n[cut: the result has %d bytes, only its head is shown]", r.Bytes)
	r.Text = head(r.Text, limit-len(mark)) + mark
}

// defect compares a result that is no error with the tool's output schema and with its own text.
func (t *compiledTool) defect(r sandboxes.Result) string {
	if t.output == nil && r.Structured == nil {
		return ""
	}
	if r.Structured == nil {
		return "the tool declares an output schema and returned no structured content"
	}
	v, err := DecodeJSON(r.Structured)
	if err != nil {
		return "structured content: " + err.Error()
	}
	if t.output != nil {
		if err := t.output.Validate(v); err != nil {
			if ve, ok := errors.AsType[*jsonschema.ValidationError](err); ok {
				lines, _ := explain(ve)
				return "structured content violates the output schema: " + strings.Join(lines, "; ")
			}
			return "structured content violates the output schema: " + err.Error()
		}
	}
	text, err := DecodeJSON([]byte(r.Text))
	if err != nil {
		return "" // prose beside the structure: nothing to compare
	}
	if m, ok := v.(map[string]any); ok && len(m) == 1 {
		if _, same := text.(map[string]any); !same {
			for _, only := range m { // servers often write a single value out bare
				v = only
			}
		}
	}
	if !bytes.Equal(Canonical(v), Canonical(text)) {
		return "text and structured content differ"
	}
	return ""
}

// head cuts a text to at most n bytes, at a character.
func head(s string, n int) string {
	if len(s) <= n {
		return s
	}
	n = max(n, 0)
	for n > 0 && s[n]&0xC0 == 0x80 {
		n--
	}
	return s[:n]
}
