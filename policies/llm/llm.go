// Package llm is a client for models behind any OpenAI-compatible chat endpoint: hosted ones, vLLM, SGLang, llama.cpp, Ollama.
package llm

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"time"

	"github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/option"
)

// Retries is how often a request is sent again after a 408, 409, 429 or 5xx status, a lost connection, no reply in time or one
// that is not readable. Waits double from half a second, unless the server names one with Retry-After; a server that asks for
// more than two minutes is not waited for.
const Retries = 4

// Config says which model answers, where, and how long it may take.
type Config struct {
	URL   string // of the API, such as http://localhost:8000/v1
	Key   string // may be empty
	Model string
	Limit time.Duration // for one attempt, its whole reply included; 0 is five minutes
	Price *Price        // nil: replies have no cost, which is not a cost of 0
}

// Price is in any currency, for a million tokens. Cached tokens are not cheaper.
type Price struct {
	Prompt, Completion float64
}

// Client asks one model. It reads no environment variables. It may be used concurrently.
type Client struct {
	cfg  Config
	chat openai.ChatCompletionService
}

// New checks the configuration; it does not connect.
func New(cfg Config) (*Client, error) {
	u, err := url.Parse(cfg.URL)
	switch {
	case err != nil:
		return nil, errors.New("llm: the address is not a URL") // the URL's own error would show a password
	case u.Scheme != "http" && u.Scheme != "https" || u.Host == "":
		return nil, fmt.Errorf("llm: address %s: want one such as http://localhost:8000/v1", u.Redacted())
	case u.User != nil || u.RawQuery != "" || u.Fragment != "":
		return nil, fmt.Errorf("llm: address of host %s: a user, a query or a fragment has no place in it", u.Host)
	case cfg.Model == "":
		return nil, fmt.Errorf("llm: no model named for %s", cfg.URL)
	case cfg.Limit < 0:
		return nil, fmt.Errorf("llm: limit of %v for a reply", cfg.Limit)
	case cfg.Limit == 0:
		cfg.Limit = 5 * time.Minute
	}
	return &Client{cfg, openai.NewChatCompletionService(
		option.WithBaseURL(cfg.URL), option.WithAPIKey(cfg.Key), option.WithMaxRetries(Retries))}, nil
}

// Model is the name under which the model is asked for.
func (c *Client) Model() string { return c.cfg.Model }

// Role is who speaks.
type Role string

const (
	System    Role = "system"
	User      Role = "user"
	Assistant Role = "assistant"
	ToolRole  Role = "tool"
)

// Message is one message of a chat.
type Message struct {
	Role   Role
	Text   string
	Calls  []Call // only of an assistant
	CallID string // only of a tool: the call that it answers
}

// Call is a tool call as the model wrote it: Arguments may be anything.
type Call struct {
	ID, Name, Arguments string
}

// Tool is a tool that the model may call. Parameters is a JSON schema, nil for none.
type Tool struct {
	Name, Description string
	Parameters        json.RawMessage
}

// Format makes the reply a JSON value that fits a schema, where the server knows how to.
type Format struct {
	Name   string
	Schema json.RawMessage
}

// Request is one question. What is nil or 0 is left to the server; a pointer to 0 is sent.
type Request struct {
	Messages    []Message
	Tools       []Tool
	Temperature *float64
	Seed        *int64
	MaxTokens   int
	Format      *Format
}

// Finish says why the model stopped. A server's word that is not listed here is kept as it is.
type Finish string

const (
	Stop      Finish = "stop"
	Length    Finish = "length" // cut: also the calls, the last of which may be incomplete
	ToolCalls Finish = "tool_calls"
	Filter    Finish = "content_filter"
)

// Reply is what the model said. Calls are to be run only if Finish is ToolCalls.
type Reply struct {
	Text      string
	Reasoning string // thinking, where the server keeps it apart from the text
	Refusal   string
	Calls     []Call
	Finish    Finish
	Model     string // as the server names it, which may be more exact than Config.Model
	Usage     Usage
	Cost      *float64 // of all attempts; nil: there is no price, or tokens that nobody has counted
}

// Usage counts tokens over all attempts.
type Usage struct {
	Prompt, Completion int
	Cached             int // part of Prompt
	Reasoning          int // part of Completion, where the server says so
	Attempts           int // requests sent
	Guessed            int // attempts whose reply was lost: they count like the one that came
	Unknown            int // attempts that are not counted: nobody told their tokens
}

// Add sums two usages.
func (u Usage) Add(v Usage) Usage {
	return Usage{u.Prompt + v.Prompt, u.Completion + v.Completion, u.Cached + v.Cached, u.Reasoning + v.Reasoning,
		u.Attempts + v.Attempts, u.Guessed + v.Guessed, u.Unknown + v.Unknown}
}

// Cost is nil where there is no price, and where some tokens are unknown.
func (u Usage) Cost(p *Price) *float64 {
	if p == nil || u.Unknown > 0 {
		return nil
	}
	cost := (float64(u.Prompt)*p.Prompt + float64(u.Completion)*p.Completion) / 1e6
	return &cost
}

// Unique counts the tokens of several sequences. Where each is the beginning of the next, as the turns of one chat are, only
// the longest counts.
func Unique(sequences []int, prefix bool) int {
	sum, longest := 0, 0
	for _, n := range sequences {
		sum += n
		longest = max(longest, n)
	}
	if prefix {
		return longest
	}
	return sum
}

// Error is what an endpoint answered instead of a reply, after the retries.
type Error struct {
	Status int
	Text   string // the beginning of the body, without the key
}

func (e *Error) Error() string { return fmt.Sprintf("status %d: %s", e.Status, e.Text) }

// Chat asks once; retries are inside, and one reply comes out. An error is ctx's, an *Error, or says why no reply came; the
// reply's Usage and Cost hold also then. No error shows the key.
func (c *Client) Chat(ctx context.Context, r Request) (Reply, error) {
	params, err := c.params(r)
	if err != nil {
		return Reply{}, err
	}
	x := exchange{limit: c.cfg.Limit, max: r.MaxTokens}
	_, err = c.chat.New(ctx, params, option.WithMiddleware(x.attempt))
	var out Reply
	if err == nil && x.refused != nil {
		err = x.refused // a redirection that leads nowhere
	}
	if err == nil {
		out = x.reply
	}
	out.Usage = x.total()
	out.Cost = out.Usage.Cost(c.cfg.Price)
	switch {
	case err == nil:
		return out, nil
	case ctx.Err() != nil:
		err = ctx.Err()
	case x.refused != nil:
		err = &Error{x.refused.Status, c.hide(x.refused.Text)}
	default:
		err = errors.New(c.hide(err.Error()))
	}
	return out, fmt.Errorf("ask %s at %s: %w", c.cfg.Model, c.cfg.URL, err)
}

func (c *Client) hide(text string) string {
	if c.cfg.Key == "" {
		return text
	}
	return strings.ReplaceAll(text, c.cfg.Key, "[key]")
}

// params turns a request into the library's form.
func (c *Client) params(r Request) (openai.ChatCompletionNewParams, error) {
	p := openai.ChatCompletionNewParams{Model: c.cfg.Model}
	for i, m := range r.Messages {
		switch m.Role {
		case System:
			p.Messages = append(p.Messages, openai.SystemMessage(m.Text))
		case User:
			p.Messages = append(p.Messages, openai.UserMessage(m.Text))
		case ToolRole:
			p.Messages = append(p.Messages, openai.ToolMessage(m.Text, m.CallID))
		case Assistant:
			a := openai.AssistantMessage(m.Text)
			if m.Text == "" && len(m.Calls) > 0 {
				a.OfAssistant.Content = openai.ChatCompletionAssistantMessageParamContentUnion{}
			}
			for _, call := range m.Calls {
				a.OfAssistant.ToolCalls = append(a.OfAssistant.ToolCalls, openai.ChatCompletionMessageToolCallUnionParam{
					OfFunction: &openai.ChatCompletionMessageFunctionToolCallParam{ID: call.ID,
						Function: openai.ChatCompletionMessageFunctionToolCallFunctionParam{Name: call.Name, Arguments: call.Arguments}}})
			}
			p.Messages = append(p.Messages, a)
		default:
			return p, fmt.Errorf("message %d: no role %q", i, m.Role)
		}
	}
	for _, t := range r.Tools {
		f := openai.FunctionDefinitionParam{Name: t.Name}
		if t.Description != "" {
			f.Description = openai.String(t.Description)
		}
		if t.Parameters != nil {
			var fields map[string]json.RawMessage
			if err := json.Unmarshal(t.Parameters, &fields); err != nil {
				return p, fmt.Errorf("schema of tool %s: %w", t.Name, err)
			}
			f.SetExtraFields(map[string]any{"parameters": t.Parameters}) // as it is: a map would sort the keys, which models read
		}
		p.Tools = append(p.Tools, openai.ChatCompletionFunctionTool(f))
	}
	if r.Temperature != nil {
		p.Temperature = openai.Float(*r.Temperature)
	}
	if r.Seed != nil {
		p.Seed = openai.Int(*r.Seed)
	}
	if r.MaxTokens > 0 {
		p.MaxTokens = openai.Int(int64(r.MaxTokens)) // the old name: servers that do not know the new one ignore it, and write on
	}
	if r.Format != nil {
		p.ResponseFormat.OfJSONSchema = &openai.ResponseFormatJSONSchemaParam{JSONSchema: openai.ResponseFormatJSONSchemaJSONSchemaParam{
			Name: r.Format.Name, Schema: r.Format.Schema, Strict: openai.Bool(true)}}
	}
	return p, nil
}
