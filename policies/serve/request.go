package serve

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"reflect"
	"slices"
	"strings"

	jsonv2 "github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/mcpgym/mcpgym/policies/engine"
)

const (
	maxBody  = 8 << 20
	maxN     = 8
	maxStops = 16
)

// query is a request that was understood.
type query struct {
	tools    []engine.Tool // that the model is told of
	messages []engine.Message
	sampling engine.Request
	seeded   bool
	stop     []string
	n        int
	one      bool // of the calls of a turn only the first counts
	logProbs bool
	stream   bool
	usage    bool // at the end of a stream
}

// refusal is an error as a client sees it, in OpenAI's form.
type refusal struct {
	status  int
	Message string  `json:"message"`
	Type    string  `json:"type"`
	Param   *string `json:"param"`
	Code    *string `json:"code"`
}

func (r *refusal) Error() string { return r.Message }

func refuse(status int, param, code, format string, args ...any) *refusal {
	r := &refusal{status: status, Message: fmt.Sprintf(format, args...), Type: "invalid_request_error"}
	if status >= 500 {
		r.Type = "server_error"
	}
	if param != "" {
		r.Param, r.Message = &param, param+": "+r.Message
	}
	if code != "" {
		r.Code = &code
	}
	return r
}

func bad(param, format string, args ...any) *refusal {
	return refuse(http.StatusBadRequest, param, "", format, args...)
}

// The wire's form of a request. Names are exact, and none may come twice; those that are not here are ignored.
type wireRequest struct {
	Model    string        `json:"model"`
	Messages []wireMessage `json:"messages"`
	Tools    []wireTool    `json:"tools"`

	Temperature         *float64 `json:"temperature"`
	TopP                *float64 `json:"top_p"`
	TopK                *int64   `json:"top_k"`
	MinP                *float64 `json:"min_p"`
	MaxTokens           *int64   `json:"max_tokens"`
	MaxCompletionTokens *int64   `json:"max_completion_tokens"`
	Seed                *int64   `json:"seed"`
	N                   *int64   `json:"n"`
	LogProbs            bool     `json:"logprobs"`
	TopLogProbs         *int64   `json:"top_logprobs"`
	ParallelCalls       *bool    `json:"parallel_tool_calls"`
	Stream              bool     `json:"stream"`
	StreamOptions       *struct {
		IncludeUsage bool `json:"include_usage"`
	} `json:"stream_options"`

	ToolChoice jsontext.Value `json:"tool_choice"`
	Stop       jsontext.Value `json:"stop"`

	// What would change an answer, and cannot be had here.
	ResponseFormat *struct {
		Type string `json:"type"`
	} `json:"response_format"`
	FrequencyPenalty *float64           `json:"frequency_penalty"`
	PresencePenalty  *float64           `json:"presence_penalty"`
	LogitBias        map[string]float64 `json:"logit_bias"`
}

type wireMessage struct {
	Role             string         `json:"role"`
	Content          jsontext.Value `json:"content"`
	ReasoningContent string         `json:"reasoning_content"`
	ToolCalls        []wireCall     `json:"tool_calls"`
	ToolCallID       string         `json:"tool_call_id"`
}

type wireCall struct {
	Index    *int   `json:"index,omitempty"` // in a stream
	ID       string `json:"id"`
	Type     string `json:"type"`
	Function struct {
		Name      string `json:"name"`
		Arguments string `json:"arguments"`
	} `json:"function"`
}

type wireTool struct {
	Type     string `json:"type"`
	Function struct {
		Name        string         `json:"name"`
		Description string         `json:"description"`
		Parameters  jsontext.Value `json:"parameters"`
	} `json:"function"`
}

// parse reads a request. An error is a *refusal.
func (s *server) parse(w http.ResponseWriter, r *http.Request) (*query, error) {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	if large := (*http.MaxBytesError)(nil); errors.As(err, &large) {
		return nil, refuse(http.StatusRequestEntityTooLarge, "", "", "the body has more than %d bytes", maxBody)
	} else if err != nil {
		return nil, bad("", "the body cannot be read: %s", err)
	}
	var in wireRequest
	if err := jsonv2.Unmarshal(body, &in); err != nil {
		return nil, unreadable(err)
	}
	switch {
	case in.Model == "":
		return nil, bad("model", "no model is named, want %s", s.model)
	case in.Model != s.model:
		return nil, refuse(http.StatusNotFound, "model", "model_not_found", "there is no model %q here, only %s", in.Model, s.model)
	}
	q := &query{n: 1, logProbs: in.LogProbs, stream: in.Stream, one: in.ParallelCalls != nil && !*in.ParallelCalls}
	for _, step := range []func(*wireRequest) error{q.readMessages, q.readTools, q.readSampling, q.readStop, q.readForm} {
		if err := step(&in); err != nil {
			return nil, err
		}
	}
	if q.sampling.MaxTokens == 0 {
		q.sampling.MaxTokens = s.options.MaxTokens
	}
	return q, nil
}

// unreadable says what is wrong with a body, and with which parameter.
func unreadable(err error) error {
	if syntax := (*jsontext.SyntacticError)(nil); errors.As(err, &syntax) {
		param := paramName(syntax.JSONPointer)
		if errors.Is(err, jsontext.ErrDuplicateName) {
			return bad(param, "is given twice")
		}
		return bad(param, "the body is not JSON: %s", strings.TrimPrefix(syntax.Err.Error(), "jsontext: "))
	}
	if semantic := (*jsonv2.SemanticError)(nil); errors.As(err, &semantic) {
		want := "another value"
		if t := semantic.GoType; t != nil {
			for t.Kind() == reflect.Pointer {
				t = t.Elem()
			}
			switch t.Kind() {
			case reflect.String:
				want = "a string"
			case reflect.Bool:
				want = "true or false"
			case reflect.Float64:
				want = "a number"
			case reflect.Int64, reflect.Int:
				want = "an integer"
			case reflect.Slice:
				want = "a list"
			case reflect.Struct, reflect.Map:
				want = "an object"
			}
		}
		return bad(paramName(semantic.JSONPointer), "want %s", want)
	}
	return bad("", "the body is not JSON: %s", err)
}

// paramName writes a place as messages[0].content.
func paramName(at jsontext.Pointer) string {
	var b strings.Builder
	for token := range at.Tokens() {
		if strings.Trim(token, "0123456789") == "" && token != "" {
			fmt.Fprintf(&b, "[%s]", token)
			continue
		}
		if b.Len() > 0 {
			b.WriteByte('.')
		}
		b.WriteString(token)
	}
	return b.String()
}

func absent(v jsontext.Value) bool { return len(v) == 0 || v.Kind() == 'n' }

func (q *query) readMessages(in *wireRequest) error {
	if len(in.Messages) == 0 {
		return bad("messages", "want at least one")
	}
	called := map[string]string{} // names of the functions by the calls' ids
	for i, m := range in.Messages {
		at := fmt.Sprintf("messages[%d]", i)
		out := engine.Message{Role: m.Role}
		switch m.Role {
		case "system", "user", "assistant":
		case "developer":
			out.Role = "system"
		case "tool":
			name, ok := called[m.ToolCallID]
			if !ok {
				return bad(at+".tool_call_id", "%q is no call of an earlier message", m.ToolCallID)
			}
			out.CallID, out.Name = m.ToolCallID, name
		default:
			return bad(at+".role", "want system, user, assistant or tool, not %q", m.Role)
		}
		if m.Role != "assistant" && len(m.ToolCalls) > 0 {
			return bad(at+".tool_calls", "only an assistant calls tools, not the role %s", m.Role)
		}
		text, err := readText(at+".content", m.Content)
		if err != nil {
			return err
		}
		if absent(m.Content) && (m.Role != "assistant" || len(m.ToolCalls) == 0 && m.ReasoningContent == "") {
			return bad(at+".content", "is missing")
		}
		out.Text = text
		if m.Role == "assistant" {
			out.Reasoning = m.ReasoningContent
		}
		for k, c := range m.ToolCalls {
			at := fmt.Sprintf("%s.tool_calls[%d]", at, k)
			if c.Type != "" && c.Type != "function" {
				return bad(at+".type", "want function, not %q", c.Type)
			}
			if c.ID == "" {
				return bad(at+".id", "is missing")
			}
			if c.Function.Name == "" {
				return bad(at+".function.name", "is missing")
			}
			args := jsontext.Value(strings.TrimSpace(c.Function.Arguments))
			if len(args) == 0 {
				args = jsontext.Value("{}")
			}
			if !isObject(args) {
				return bad(at+".function.arguments", "want a string that holds a JSON object")
			}
			called[c.ID] = c.Function.Name
			out.Calls = append(out.Calls, engine.Call{ID: c.ID, Name: c.Function.Name, Arguments: json.RawMessage(args)})
		}
		q.messages = append(q.messages, out)
	}
	return nil
}

func isObject(v jsontext.Value) bool { return v.IsValid() && v.Kind() == '{' }

// readText reads a string or a list of texts.
func readText(at string, v jsontext.Value) (string, error) {
	var s string
	var parts []struct {
		Type string  `json:"type"`
		Text *string `json:"text"`
	}
	switch {
	case absent(v):
	case v.Kind() == '"':
		if err := jsonv2.Unmarshal(v, &s); err != nil {
			return "", bad(at, "want a string")
		}
	case v.Kind() == '[' && jsonv2.Unmarshal(v, &parts) == nil:
		for i, p := range parts {
			if p.Type != "text" {
				return "", bad(fmt.Sprintf("%s[%d].type", at, i), "want text, not %q: the model reads nothing else", p.Type)
			}
			if p.Text == nil {
				return "", bad(fmt.Sprintf("%s[%d].text", at, i), "is missing")
			}
			s += *p.Text
		}
	default:
		return "", bad(at, "want a string or a list of text parts")
	}
	return s, nil
}

func (q *query) readTools(in *wireRequest) error {
	for i, t := range in.Tools {
		at := fmt.Sprintf("tools[%d]", i)
		f := t.Function
		if t.Type != "function" {
			return bad(at+".type", "want function, not %q", t.Type)
		}
		if f.Name == "" {
			return bad(at+".function.name", "is missing")
		}
		if slices.ContainsFunc(q.tools, func(o engine.Tool) bool { return o.Name == f.Name }) {
			return bad(at+".function.name", "there is another tool %s", f.Name)
		}
		tool := engine.Tool{Name: f.Name, Description: f.Description}
		if !absent(f.Parameters) {
			if f.Parameters.Kind() != '{' {
				return bad(at+".function.parameters", "want a JSON schema, which is an object")
			}
			tool.Parameters = json.RawMessage(f.Parameters)
		}
		q.tools = append(q.tools, tool)
	}
	choice := "auto"
	if v := in.ToolChoice; !absent(v) && jsonv2.Unmarshal(v, &choice) != nil {
		if v.Kind() != '{' {
			return bad("tool_choice", "want auto or none")
		}
		choice = "a certain tool"
	}
	switch choice {
	case "auto":
	case "none": // a model that knows of no tools calls none
		q.tools = nil
	case "required", "a certain tool":
		return bad("tool_choice", "want auto or none: the model cannot be forced to call %s", strings.Replace(choice, "required", "a tool", 1))
	default:
		return bad("tool_choice", "want auto or none, not %q", choice)
	}
	return nil
}

func (q *query) readSampling(in *wireRequest) error {
	r := &q.sampling
	r.Temperature, r.TopP = 1, 1
	if v := in.Temperature; v != nil {
		if *v < 0 || *v > 2 {
			return bad("temperature", "want 0 to 2, not %g", *v)
		}
		if r.Temperature = *v; *v < 1e-4 { // logits over that are not finite any more
			r.Temperature = 0
		}
	}
	if v := in.TopP; v != nil {
		if *v <= 0 || *v > 1 {
			return bad("top_p", "want more than 0 and at most 1, not %g", *v)
		}
		r.TopP = *v
	}
	if v := in.MinP; v != nil {
		if *v < 0 || *v > 1 {
			return bad("min_p", "want 0 to 1, not %g", *v)
		}
		r.MinP = *v
	}
	if v := in.TopK; v != nil {
		if *v < -1 || *v > 1<<31-1 {
			return bad("top_k", "want 1 or more, or 0 or -1 for all tokens, not %d", *v)
		}
		r.TopK = int(max(0, *v))
	}
	for _, limit := range []struct {
		param string
		value *int64
	}{{"max_tokens", in.MaxTokens}, {"max_completion_tokens", in.MaxCompletionTokens}} { // the second is the newer name, and counts
		if v := limit.value; v != nil {
			if *v < 1 || *v > 1<<31-1 {
				return bad(limit.param, "want 1 or more, not %d", *v)
			}
			r.MaxTokens = int(*v)
		}
	}
	if in.Seed != nil {
		r.Seed, q.seeded = uint64(*in.Seed), true
	}
	if v := in.N; v != nil {
		if *v < 1 || *v > maxN {
			return bad("n", "want 1 to %d, not %d", maxN, *v)
		}
		q.n = int(*v)
	}
	return nil
}

func (q *query) readStop(in *wireRequest) error {
	var one string
	switch v := in.Stop; {
	case absent(v):
	case jsonv2.Unmarshal(v, &one) == nil:
		q.stop = []string{one}
	case jsonv2.Unmarshal(v, &q.stop) != nil:
		return bad("stop", "want a string or a list of strings")
	}
	if len(q.stop) > maxStops {
		return bad("stop", "want at most %d strings, not %d", maxStops, len(q.stop))
	}
	if slices.Contains(q.stop, "") {
		return bad("stop", "an empty string would end every answer")
	}
	return nil
}

func (q *query) readForm(in *wireRequest) error {
	if v := in.TopLogProbs; v != nil && *v != 0 {
		return bad("top_logprobs", "only the log-probabilities of the tokens that were sampled can be had: want 0, not %d", *v)
	}
	if in.StreamOptions != nil {
		if !in.Stream {
			return bad("stream_options", "the answer is not to be streamed")
		}
		q.usage = in.StreamOptions.IncludeUsage
	}
	switch {
	case in.ResponseFormat != nil && in.ResponseFormat.Type != "text":
		return bad("response_format", "only text can be had, not %q", in.ResponseFormat.Type)
	case in.FrequencyPenalty != nil && *in.FrequencyPenalty != 0:
		return bad("frequency_penalty", "is not supported, want 0")
	case in.PresencePenalty != nil && *in.PresencePenalty != 0:
		return bad("presence_penalty", "is not supported, want 0")
	case len(in.LogitBias) > 0:
		return bad("logit_bias", "is not supported")
	}
	return nil
}
