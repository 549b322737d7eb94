package toolcall

import (
	"bytes"
	"cmp"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/ardanlabs/jinja"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/mcpgym/mcpgym/policies/engine"
)

// Template renders conversations as the Jinja template of a model does in transformers' apply_chat_template. It may be used
// concurrently.
type Template struct {
	compiled *jinja.Template
	vars     map[string]jinja.Value
	eos      string
}

// Config is what a template may ask for beside the conversation.
type Config struct {
	BOS, EOS string         // spellings of the tokens; empty: there is none
	Vars     map[string]any // texts, numbers and booleans, such as enable_thinking or date_string
	Now      time.Time      // for strftime_now; a template that asks for it fails where Now is zero
}

// small is the template of models that are trained here from scratch.
//
//go:embed small.jinja
var small string

// SmallTokens are the added tokens that Small expects of a tokenizer, its stop token first.
var SmallTokens = []string{"<|end|>", "<|system|>", "<|user|>", "<|assistant|>", "<|tool|>", "<think>", "</think>", "<tool_call>", "</tool_call>"}

// Small is a template of our own, as short as can be, for models that are made from nothing for one environment. Where there are tools
// it shows their names alone, and not the system's first message: both are the same in all episodes, and would be most of what there is
// to read. A turn is one token that names the role, its text, and <|end|>; calls are <tool_call>name{arguments}</tool_call>, one after the other,
// and each result is a turn.
func Small() *Template {
	t, err := NewTemplate(small, Config{EOS: SmallTokens[0]})
	if err != nil {
		panic(err) // a file of our own
	}
	return t
}

// NewTemplate compiles a template.
func NewTemplate(text string, c Config) (*Template, error) {
	compiled, err := jinja.Compile(prepare(text))
	if err != nil {
		return nil, fmt.Errorf("compile chat template: %w", err)
	}
	t := &Template{compiled, map[string]jinja.Value{}, c.EOS}
	for name, v := range c.Vars {
		t.vars[name] = jinja.FromGoValue(v)
	}
	if c.BOS != "" {
		t.vars["bos_token"] = jinja.NewString(c.BOS)
	}
	if c.EOS != "" {
		t.vars["eos_token"] = jinja.NewString(c.EOS)
	}
	t.vars["python_json"] = jinja.NewCallable("tojson", pythonJSON)
	t.vars["strftime_now"] = jinja.NewCallable("strftime_now", func(args []jinja.Value, _ map[string]jinja.Value) (jinja.Value, error) {
		if c.Now.IsZero() || len(args) != 1 || !args[0].IsString() {
			return jinja.Undefined(), errors.New("the template asks for today's date, which was not given")
		}
		return jinja.NewString(strftime(c.Now, args[0].AsString())), nil
	})
	return t, nil
}

// ReadTemplate reads the template of a model's folder, from chat_template.jinja or tokenizer_config.json, and its BOS and EOS
// where c has none. Of several templates it takes the one for tools.
func ReadTemplate(dir string, c Config) (*Template, error) {
	data, err := os.ReadFile(filepath.Join(dir, "tokenizer_config.json"))
	if err != nil {
		return nil, fmt.Errorf("read chat template: %w", err)
	}
	var f struct {
		Template json.RawMessage `json:"chat_template"`
		BOS      token           `json:"bos_token"`
		EOS      token           `json:"eos_token"`
	}
	if err := json.Unmarshal(data, &f); err != nil {
		return nil, fmt.Errorf("read chat template: tokenizer_config.json of %s: %w", dir, err)
	}
	c.BOS, c.EOS = cmp.Or(c.BOS, string(f.BOS)), cmp.Or(c.EOS, string(f.EOS))
	text, err := os.ReadFile(filepath.Join(dir, "chat_template.jinja"))
	if err == nil {
		return NewTemplate(string(text), c)
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("read chat template: %w", err)
	}
	var one string
	var list []struct{ Name, Template string }
	if json.Unmarshal(f.Template, &one) != nil && json.Unmarshal(f.Template, &list) != nil {
		return nil, fmt.Errorf("read chat template: %s: %w", dir, ErrNoTemplate)
	}
	for _, t := range list {
		if t.Name == "tool_use" || t.Name == "default" && one == "" {
			one = t.Template
		}
	}
	if one == "" {
		return nil, fmt.Errorf("read chat template: %s: %w", dir, ErrNoTemplate)
	}
	return NewTemplate(one, c)
}

// token is a token's spelling, given as a text or as an object.
type token string

func (t *token) UnmarshalJSON(data []byte) error {
	var o struct{ Content string }
	if json.Unmarshal(data, (*string)(t)) == nil { // null, too
		return nil
	}
	err := json.Unmarshal(data, &o)
	*t = token(o.Content)
	return err
}

// Render gives the text of a conversation; with generate it ends where the model's next turn begins. An error is the template's
// own, which refuses some conversations, or names JSON that cannot be read.
func (t *Template) Render(tools []engine.Tool, messages []engine.Message, generate bool) (string, error) {
	return t.render(tools, messages, generate, func(s string) string { return s })
}

// render is Render, with every text that does not come from the template passed through guard.
func (t *Template) render(tools []engine.Tool, messages []engine.Message, generate bool, guard func(string) string) (string, error) {
	data := make(map[string]jinja.Value, len(t.vars)+4)
	maps.Copy(data, t.vars)
	v := valuer{guard}
	list := make([]jinja.Value, len(messages))
	for i, m := range messages {
		var err error
		if list[i], err = v.message(m); err != nil {
			return "", fmt.Errorf("render message %d: %w", i, err)
		}
	}
	data["messages"] = jinja.NewList(list)
	data["tools"], data["documents"] = jinja.None(), jinja.None()
	if len(tools) > 0 {
		offered := make([]jinja.Value, len(tools))
		for i, tool := range tools {
			parameters := tool.Parameters
			if parameters == nil {
				parameters = json.RawMessage(`{"type":"object","properties":{}}`)
			}
			p, err := v.json(parameters)
			if err != nil {
				return "", fmt.Errorf("render tool %s: %w", tool.Name, err)
			}
			offered[i] = function("name", v.text(tool.Name), "description", v.text(tool.Description), "parameters", p)
		}
		data["tools"] = jinja.NewList(offered)
	}
	data["add_generation_prompt"] = jinja.NewBool(generate)
	text, err := t.compiled.RenderValues(data)
	if err != nil {
		return "", fmt.Errorf("render chat template: %w", err)
	}
	return text, nil
}

// valuer turns what is said into the engine's values.
type valuer struct{ guard func(string) string }

func (v valuer) text(s string) jinja.Value { return jinja.NewString(v.guard(s)) }

func (v valuer) message(m engine.Message) (jinja.Value, error) {
	out := dict("role", jinja.NewString(m.Role), "content", v.text(m.Text))
	d := out.AsDict()
	if m.Reasoning != "" {
		d.Set("reasoning_content", v.text(m.Reasoning))
	}
	if m.CallID != "" {
		d.Set("tool_call_id", v.text(m.CallID))
	}
	if m.Name != "" {
		d.Set("name", v.text(m.Name))
	}
	if len(m.Calls) == 0 {
		return out, nil
	}
	calls := make([]jinja.Value, len(m.Calls))
	for i, c := range m.Calls {
		args := c.Arguments
		if len(args) == 0 {
			args = json.RawMessage("{}")
		}
		a, err := v.json(args)
		if err != nil {
			return out, fmt.Errorf("arguments of %s: %w", c.Name, err)
		}
		calls[i] = function("name", v.text(c.Name), "arguments", a)
		if c.ID != "" {
			calls[i].AsDict().Set("id", v.text(c.ID))
		}
	}
	d.Set("tool_calls", jinja.NewList(calls))
	return out, nil
}

func function(members ...any) jinja.Value {
	return dict("type", jinja.NewString("function"), "function", dict(members...))
}

// dict makes a dictionary of names and values by turns.
func dict(members ...any) jinja.Value {
	v := jinja.NewDict()
	for i := 0; i < len(members); i += 2 {
		v.AsDict().Set(members[i].(string), members[i+1].(jinja.Value))
	}
	return v
}

// json reads JSON as Python does, keys in their order.
func (v valuer) json(data json.RawMessage) (jinja.Value, error) {
	d := jsontext.NewDecoder(bytes.NewBuffer(data))
	out, err := v.read(d)
	if err != nil {
		return out, err
	}
	if _, err := d.ReadToken(); err != io.EOF {
		return out, errors.New("text after the JSON value")
	}
	return out, nil
}

func (v valuer) read(d *jsontext.Decoder) (jinja.Value, error) {
	tok, err := d.ReadToken()
	if err != nil {
		return jinja.None(), err
	}
	switch tok.Kind() {
	case jsontext.KindString:
		return v.text(tok.String()), nil
	case jsontext.KindTrue, jsontext.KindFalse:
		return jinja.NewBool(tok.Kind() == jsontext.KindTrue), nil
	case jsontext.KindNumber:
		text := tok.String()
		if strings.ContainsAny(text, ".eE") {
			f, err := strconv.ParseFloat(text, 64)
			return jinja.NewFloat(f), err
		}
		if n, err := strconv.ParseInt(text, 10, 64); err == nil {
			return jinja.NewInt(n), nil
		}
		return jinja.NewCallable(text, nil), nil // too large for the engine; pythonJSON writes it, nothing else can use it
	case jsontext.KindBeginArray:
		list := jinja.NewList(nil)
		for d.PeekKind() != jsontext.KindEndArray {
			e, err := v.read(d)
			if err != nil {
				return e, err
			}
			list.AsList().Append(e)
		}
		_, err := d.ReadToken()
		return list, err
	case jsontext.KindBeginObject:
		object := jinja.NewDict()
		for d.PeekKind() != jsontext.KindEndObject {
			key, err := d.ReadToken()
			if err != nil {
				return object, err
			}
			name := v.guard(key.String())
			member, err := v.read(d)
			if err != nil {
				return object, err
			}
			object.AsDict().Set(name, member)
		}
		_, err := d.ReadToken()
		return object, err
	}
	return jinja.None(), nil
}

// pythonJSON is transformers' tojson: json.dumps without escapes of what is not ASCII.
func pythonJSON(args []jinja.Value, kwargs map[string]jinja.Value) (jinja.Value, error) {
	w := jsonWriter{item: ", ", key: ": "}
	for i, name := range []string{"ensure_ascii", "indent", "separators", "sort_keys"} { // may be given by place
		v, ok := kwargs[name]
		if !ok && len(args) > i+1 {
			v, ok = args[i+1], true
		}
		if !ok || v.IsNone() {
			continue
		}
		switch {
		case name == "indent" && v.IsInt():
			w.indent, w.item = strings.Repeat(" ", max(0, int(v.AsInt()))), ","
			w.lines = true
		case name == "separators" && v.IsList() && v.AsList().Len() == 2 && v.AsList().Get(0).IsString() && v.AsList().Get(1).IsString():
			w.item, w.key = v.AsList().Get(0).AsString(), v.AsList().Get(1).AsString()
		case !v.IsTruthy(): // ensure_ascii and sort_keys are off
		default:
			return jinja.Undefined(), fmt.Errorf("tojson: %s is not supported here", name)
		}
	}
	err := w.value(args[0], "\n")
	return jinja.NewString(string(w.out)), err
}

type jsonWriter struct {
	out               []byte
	item, key, indent string
	lines             bool
}

// value writes a value; line begins a line of what is around it.
func (w *jsonWriter) value(v jinja.Value, line string) error {
	switch {
	case v.IsNone():
		w.out = append(w.out, "null"...)
	case v.IsBool():
		w.out = strconv.AppendBool(w.out, v.AsBool())
	case v.IsInt():
		w.out = strconv.AppendInt(w.out, v.AsInt(), 10)
	case v.IsFloat():
		w.out = append(w.out, pythonFloat(v.AsFloat())...)
	case v.IsString():
		w.string(v.AsString())
	case v.IsList():
		return w.members('[', ']', line, v.AsList().Len(), func(i int, inner string) error {
			return w.value(v.AsList().Get(i), inner)
		})
	case v.IsDict():
		d := v.AsDict()
		return w.members('{', '}', line, d.Len(), func(i int, inner string) error {
			w.string(d.Keys[i])
			w.out = append(w.out, w.key...)
			return w.value(d.Data[d.Keys[i]], inner)
		})
	case v.IsCallable() && v.AsCallable().Fn == nil: // a large integer
		w.out = append(w.out, v.AsCallable().Name...)
	default:
		return errors.New("tojson: a value that is not defined")
	}
	return nil
}

func (w *jsonWriter) members(begin, end byte, line string, n int, write func(i int, inner string) error) error {
	w.out = append(w.out, begin)
	inner := line + w.indent
	for i := range n {
		if i > 0 {
			w.out = append(w.out, w.item...)
		}
		if w.lines {
			w.out = append(w.out, inner...)
		}
		if err := write(i, inner); err != nil {
			return err
		}
	}
	if w.lines && n > 0 {
		w.out = append(w.out, line...)
	}
	w.out = append(w.out, end)
	return nil
}

func (w *jsonWriter) string(s string) {
	const escapes = "btn?fr" // of the characters 8 to 13
	w.out = append(w.out, '"')
	for _, r := range s {
		switch {
		case r == '"' || r == '\\':
			w.out = append(w.out, '\\', byte(r))
		case r >= 8 && r <= 13 && r != 11:
			w.out = append(w.out, '\\', escapes[r-8])
		case r < ' ':
			w.out = fmt.Appendf(w.out, `\u%04x`, r)
		default:
			w.out = utf8.AppendRune(w.out, r)
		}
	}
	w.out = append(w.out, '"')
}

// pythonFloat is Python's repr.
func pythonFloat(f float64) string {
	if f != 0 && (math.Abs(f) < 1e-4 || math.Abs(f) >= 1e16) {
		return strconv.FormatFloat(f, 'e', -1, 64)
	}
	s := strconv.FormatFloat(f, 'f', -1, 64)
	if !strings.Contains(s, ".") {
		s += ".0"
	}
	return s
}

var strftimeForms = map[byte]string{'Y': "2006", 'y': "06", 'm': "01", 'd': "02", 'H': "15", 'I': "03", 'M': "04", 'S': "05", 'p': "PM",
	'B': "January", 'b': "Jan", 'A': "Monday", 'a': "Mon", 'Z': "MST", 'j': "002"}

// strftime formats a time as Python does. A letter that it does not know stays as it is.
func strftime(t time.Time, form string) string {
	var b strings.Builder
	for i := 0; i < len(form); i++ {
		if form[i] != '%' || i+1 == len(form) {
			b.WriteByte(form[i])
			continue
		}
		i++
		switch layout, ok := strftimeForms[form[i]]; {
		case ok:
			b.WriteString(t.Format(layout))
		case form[i] == '%':
			b.WriteByte('%')
		default:
			b.WriteString(form[i-1 : i+1])
		}
	}
	return b.String()
}
