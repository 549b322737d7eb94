// Package toolcall turns what a model writes into calls, and conversations into what a model reads: chat templates, and with a
// tokenizer the tokens of a conversation.
package toolcall

import (
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/mcpgym/mcpgym/envs"
	"github.com/mcpgym/mcpgym/policies/engine"
)

const (
	thinkStart, thinkEnd = "<think>", "</think>"
	callStart, callEnd   = "<tool_call>", "</tool_call>"
)

// Reader reads the turns of a model. A turn is text around a <think> block and calls, each between <tool_call> and
// </tool_call>: as {"name": ..., "arguments": {...}} (Hermes, Qwen), as name{...} (Small), or as <function=name> with
// <parameter=key> blocks (Qwen3-Coder). It may be used concurrently.
type Reader struct {
	Thinking bool          // the prompt ends within a thinking block
	Tools    []engine.Tool // give the values of <parameter=key> their types; without a schema they are strings
}

// Turn is what a reader found. Calls have no ids. What cannot be read as a call is in Calls too, malformed.
type Turn struct {
	envs.Action
	Malformed   int         // calls between tags that cannot be read
	Unclosed    int         // calls without an end, complete or not: malformed as well, and not counted there
	InReasoning int         // calls within the thinking block, which are not run and not in Calls
	Bare        []envs.Call // of a turn without tags: calls that it wrote as plain JSON, still part of Text. See Lenient
}

// Lenient is the turn's action where Bare calls count: they are run and the text is left out. Count such turns apart.
func (t Turn) Lenient() envs.Action {
	if len(t.Bare) == 0 {
		return t.Action
	}
	return envs.Action{Reasoning: t.Reasoning, Calls: t.Bare}
}

// Read reads one turn, without its stop token. It takes time in proportion to the text, whatever that is.
func (r Reader) Read(text string) Turn {
	var t Turn
	var said, thought []string
	think := func(from string) (rest string) {
		reasoning, rest, _ := strings.Cut(from, thinkEnd) // a block that does not end was cut off: nothing in it is run
		t.InReasoning += strings.Count(reasoning, callStart)
		if reasoning = strings.TrimSpace(reasoning); reasoning != "" {
			thought = append(thought, reasoning)
		}
		return rest
	}
	if r.Thinking {
		text = think(text)
	}
	for text != "" {
		i := strings.IndexByte(text, '<')
		for i >= 0 && !strings.HasPrefix(text[i:], callStart) && !strings.HasPrefix(text[i:], thinkStart) {
			next := strings.IndexByte(text[i+1:], '<')
			if next < 0 {
				i = -1
				break
			}
			i += 1 + next
		}
		if i < 0 {
			said = append(said, text)
			break
		}
		said = append(said, text[:i])
		if text = text[i:]; strings.HasPrefix(text, thinkStart) {
			text = think(text[len(thinkStart):])
			continue
		}
		n, call := r.call(text)
		t.Calls = append(t.Calls, call.Call)
		if call.unclosed {
			t.Unclosed++
		} else if call.Malformed != "" {
			t.Malformed++
		}
		text = text[n:]
	}
	t.Text = strings.TrimSpace(strings.Join(said, ""))
	t.Reasoning = strings.Join(thought, "\n")
	if len(t.Calls) == 0 {
		t.Bare = bareCalls(t.Text)
	}
	return t
}

type readCall struct {
	envs.Call
	unclosed bool
}

// spaces is the white space of JSON, which is all that may stand between a call and its tags.
const spaces = " \t\r\n"

// call reads the call that a text begins with, and says where it ends. A tag within a string of the call's own JSON is no tag.
func (r Reader) call(text string) (int, readCall) {
	from := len(callStart)
	skip := func(i int) int { return len(text) - len(strings.TrimLeft(text[i:], spaces)) }
	begin := skip(from)
	end := begin // of what was read as the call
	var call envs.Call
	var err error
	name := compactName.FindStringSubmatch(text[begin:])
	switch {
	case strings.HasPrefix(text[begin:], functionStart):
		call, end, err = r.xmlCall(text, begin)
	case strings.HasPrefix(text[begin:], "<"):
	case name != nil:
		call.Name = name[1]
		at := begin + len(name[0]) - 1
		if n := valueLen(text[at:]); n > 0 {
			end = at + n
			call.Arguments, err = arguments(text[at:end])
		}
	default:
		if n := valueLen(text[begin:]); n > 0 { // what is no JSON ends at the first tag that may be its end
			end += n
			call, err = jsonCall(text[begin:end], "arguments")
		}
	}
	if end > begin {
		from = end // a tag in what was read is part of it
		done := skip(end)
		switch rest := text[done:]; {
		case strings.HasPrefix(rest, callEnd):
			if err != nil {
				call = envs.Call{Name: call.Name, Malformed: text[begin:end]}
			}
			return done + len(callEnd), readCall{Call: call}
		case rest == "" || strings.HasPrefix(rest, callStart):
			return done, readCall{envs.Call{Name: call.Name, Malformed: text[:end]}, true}
		}
	}
	bad := readCall{Call: envs.Call{Name: call.Name, Malformed: text}, unclosed: true}
	length := len(text)
	if n := strings.Index(text[from:], callEnd); n >= 0 {
		bad.Malformed, bad.unclosed = strings.Trim(text[len(callStart):from+n], spaces), false
		length = from + n + len(callEnd)
	}
	if m := quotedName.FindStringSubmatch(bad.Malformed[:min(len(bad.Malformed), 200)]); m != nil && bad.Name == "" {
		bad.Name = m[1]
	}
	if bad.Malformed == "" {
		bad.Malformed = callStart + callEnd
	}
	return length, bad
}

var (
	compactName = regexp.MustCompile(`^([\pL_][\pL\d_.:/-]{0,127})[ \t\r\n]*\{`)
	quotedName  = regexp.MustCompile(`["']name["']\s*:\s*["']([^"'\\]+)["']`)
	fenced      = regexp.MustCompile("(?s)```(?:json)?\\s*\\n(.*?)```")
)

// valueLen is the length of the JSON value that a text begins with, or 0. Repeated names and the like are left for later.
func valueLen(text string) int {
	d := jsontext.NewDecoder(strings.NewReader(text), jsontext.AllowDuplicateNames(true), jsontext.AllowInvalidUTF8(true))
	if _, err := d.ReadValue(); err != nil {
		return 0
	}
	return int(d.InputOffset())
}

// jsonCall reads the object of a call. Its keys are exact: "Name" is another key than "name", and any other is ignored.
func jsonCall(text, argsKey string) (envs.Call, error) {
	c, args, err := callMembers(text, argsKey)
	if err == nil {
		c.Arguments, err = arguments(args)
	}
	return c, err
}

// callMembers reads a call and its arguments as they are written, if they are there.
func callMembers(text, argsKey string) (c envs.Call, args string, err error) {
	d := jsontext.NewDecoder(strings.NewReader(text))
	if tok, err := d.ReadToken(); err != nil || tok.Kind() != jsontext.KindBeginObject {
		return c, "", fmt.Errorf("a call is a JSON object, not %.40s", text)
	}
	for d.PeekKind() != jsontext.KindEndObject {
		key, err := d.ReadToken()
		if err != nil {
			return c, "", err
		}
		name := key.String() // the next read overwrites it
		v, err := d.ReadValue()
		if err != nil {
			return c, "", err
		}
		switch name {
		case "name":
			if v.Kind() != jsontext.KindString || json.Unmarshal(v, &c.Name) != nil {
				return c, "", fmt.Errorf("the name of a call is a string, not %.40s", v)
			}
		case argsKey:
			args = string(v)
		}
	}
	if c.Name == "" {
		return c, "", errors.New("a call without a name")
	}
	return c, args, nil
}

// arguments reads the arguments of a call: none, null and "" are an empty object, and a string may hold the object.
func arguments(text string) (json.RawMessage, error) {
	if strings.HasPrefix(text, `"`) {
		var inner string
		if err := json.Unmarshal([]byte(text), &inner); err != nil {
			return nil, err
		}
		text = strings.Trim(inner, spaces)
	}
	if text == "" || text == "null" {
		return json.RawMessage("{}"), nil
	}
	v, err := envs.DecodeJSON([]byte(text))
	if err != nil {
		return nil, err
	}
	if _, ok := v.(map[string]any); !ok {
		return nil, fmt.Errorf("arguments are a JSON object, not %.40s", text)
	}
	return json.RawMessage(text), nil
}

// bareCalls reads a text that is nothing but calls, or has them in fenced blocks. Models that were not trained on the tags, or
// on others, write so.
func bareCalls(text string) []envs.Call {
	if calls := callList(text); calls != nil {
		return calls
	}
	var all []envs.Call
	for _, block := range fenced.FindAllStringSubmatch(text, -1) {
		all = append(all, callList(block[1])...)
	}
	return all
}

// callList reads JSON objects that all are calls with their arguments, else nil.
func callList(text string) []envs.Call {
	var calls []envs.Call
	for text = strings.Trim(text, spaces); strings.HasPrefix(text, "{"); text = strings.TrimLeft(text, spaces) {
		n := valueLen(text)
		if n == 0 {
			return nil
		}
		c, args, err := callMembers(text[:n], "arguments")
		if args == "" && err == nil {
			c, args, err = callMembers(text[:n], "parameters") // Llama's word
		}
		if args == "" || err != nil { // an answer may have a name, too
			return nil
		}
		if c.Arguments, err = arguments(args); err != nil {
			return nil
		}
		calls = append(calls, c)
		text = text[n:]
	}
	if text != "" {
		return nil
	}
	return calls
}

const (
	functionStart, functionEnd   = "<function=", "</function>"
	parameterStart, parameterEnd = "<parameter=", "</parameter>"
)

// xmlCall reads a call in the form of tags that begins at a place of the text, and says where it ends, or where it broke off.
func (r Reader) xmlCall(text string, at int) (c envs.Call, end int, err error) {
	end = at
	skip := func() { end = len(text) - len(strings.TrimLeft(text[end:], spaces)) }
	take := func(prefix string) bool {
		ok := strings.HasPrefix(text[end:], prefix)
		if ok {
			end += len(prefix)
		}
		return ok
	}
	until := func(mark string) (string, error) {
		n := strings.Index(text[end:], mark)
		if n < 0 {
			end = len(text)
			return "", fmt.Errorf("no %s", mark)
		}
		s := text[end : end+n]
		end += n + len(mark)
		return s, nil
	}
	take(functionStart)
	if c.Name, err = until(">"); err != nil {
		return c, end, err
	}
	if c.Name == "" {
		return c, end, errors.New("a call without a name")
	}
	types := r.types(c.Name)
	args := []byte("{")
	for skip(); !take(functionEnd); skip() {
		if !take(parameterStart) {
			return c, end, errors.New("neither a parameter nor the end of the function")
		}
		key, err := until(">")
		if err != nil {
			return c, end, err
		}
		value, err := until(parameterEnd)
		if err != nil {
			return c, end, err
		}
		if len(args) > 1 {
			args = append(args, ',')
		}
		if args, err = jsontext.AppendQuote(args, key); err != nil {
			return c, end, err
		}
		args = append(append(args, ':'), types[key].value(strings.TrimSuffix(strings.TrimPrefix(value, "\n"), "\n"))...)
	}
	c.Arguments, err = arguments(string(append(args, '}')))
	return c, end, err
}

// kinds are the JSON types that a schema admits for a value.
type kinds []string

// types reads what the schema of a tool declares for each of its parameters.
func (r Reader) types(tool string) map[string]kinds {
	i := slices.IndexFunc(r.Tools, func(t engine.Tool) bool { return t.Name == tool })
	if i < 0 {
		return nil
	}
	var schema struct{ Properties map[string]json.RawMessage }
	if json.Unmarshal(r.Tools[i].Parameters, &schema) != nil {
		return nil
	}
	types := map[string]kinds{}
	for key, p := range schema.Properties {
		types[key] = schemaKinds(p)
	}
	return types
}

func schemaKinds(schema json.RawMessage) kinds {
	var s struct {
		Type  any
		AnyOf []json.RawMessage
	}
	if json.Unmarshal(schema, &s) != nil {
		return nil
	}
	var all kinds
	switch t := s.Type.(type) {
	case string:
		all = kinds{t}
	case []any:
		for _, k := range t {
			all = append(all, fmt.Sprint(k))
		}
	}
	for _, alternative := range s.AnyOf {
		all = append(all, schemaKinds(alternative)...)
	}
	return all
}

// value writes a value as JSON of the first type that it fits; a string fits all, so that a check against the schema can say
// what is wrong with the rest.
func (k kinds) value(text string) []byte {
	word := strings.TrimSpace(text)
	v, err := envs.DecodeJSON([]byte(word))
	lower := strings.ToLower(word)
	if lower == "true" || lower == "false" { // models write Python's, too
		v, err = lower == "true", nil
	}
	if err == nil {
		for _, kind := range k {
			written, ok := word, false
			switch v.(type) {
			case nil:
				ok = kind == "null"
			case bool:
				written, ok = lower, kind == "boolean"
			case json.Number:
				written = string(envs.Canonical(v)) // 5.0 is an integer
				ok = kind == "number" || kind == "integer" && !strings.ContainsAny(written, ".e")
			case []any:
				ok = kind == "array"
			case map[string]any:
				ok = kind == "object"
			}
			if ok && !(slices.Contains(k, "string") && kind != "null") {
				return []byte(written)
			}
		}
	}
	quoted, err := jsontext.AppendQuote(nil, text)
	if err != nil { // not UTF-8
		quoted, _ = jsontext.AppendQuote(nil, strings.ToValidUTF8(text, "\uFFFD"))
	}
	return quoted
}
