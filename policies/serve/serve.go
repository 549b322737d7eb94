// Package serve answers the chat completions of OpenAI's API from an engine, so that a trained policy takes the place of a hosted
// model by another name and address.
package serve

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/mcpgym/mcpgym/policies/engine"
	"github.com/mcpgym/mcpgym/policies/toolcall"
)

// Options are all optional.
type Options struct {
	MaxTokens int // of an answer whose request names no limit; 0 is 2048
}

// New gives a handler for POST /v1/chat/completions, GET /v1/models and GET /health. Requests at the same time are the engine's to
// share; one whose client is gone is given up. Tools are called where a request offers some: what a model writes as a call and cannot
// be read as one is part of the content, as are all calls where none are offered. A stop string ends a turn wherever it stands, also
// in a call or a thought. The handler leaves the engine open.
func New(e engine.Engine, model string, o Options) http.Handler {
	o.MaxTokens = cmp.Or(o.MaxTokens, 2048)
	s := &server{e, model, o, time.Now().Unix()}
	mux := http.NewServeMux()
	for _, route := range []struct {
		method, path string
		handle       http.HandlerFunc
	}{
		{"POST", "/v1/chat/completions", s.chat},
		{"GET", "/v1/models", s.models},
		{"GET", "/health", func(w http.ResponseWriter, _ *http.Request) {
			answer(w, http.StatusOK, map[string]string{"status": "ok"})
		}},
	} {
		mux.HandleFunc(route.method+" "+route.path, route.handle)
		mux.HandleFunc(route.path, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Allow", route.method)
			fail(w, refuse(http.StatusMethodNotAllowed, "", "", "%s takes %s, not %s", route.path, route.method, r.Method))
		})
	}
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		fail(w, refuse(http.StatusNotFound, "", "", "there is no %s here, only /v1/chat/completions, /v1/models and /health", r.URL.Path))
	})
	return mux
}

type server struct {
	engine  engine.Engine
	model   string
	options Options
	since   int64
}

// answer writes JSON.
func answer(w http.ResponseWriter, status int, v any) {
	body, err := encode(v)
	if err != nil { // a value of ours that is no JSON
		status, body = http.StatusInternalServerError, []byte(`{"error":{"message":"the answer cannot be written","type":"server_error","param":null,"code":null}}`)
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	w.Write(body) // who does not read it does not miss it
}

func encode(v any) ([]byte, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	err := e.Encode(v)
	return b.Bytes(), err
}

func fail(w http.ResponseWriter, err error) {
	r := refusalOf(err)
	answer(w, r.status, map[string]*refusal{"error": r})
}

// refusalOf gives errors of an engine the form of the API.
func refusalOf(err error) *refusal {
	var r *refusal
	switch {
	case errors.As(err, &r):
		return r
	case errors.Is(err, engine.ErrTooLong):
		return refuse(http.StatusBadRequest, "messages", "context_length_exceeded", "%s", err)
	case errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded): // by who serves, or the client is gone and reads nothing
		return refuse(http.StatusServiceUnavailable, "", "", "the request was given up")
	}
	return refuse(http.StatusInternalServerError, "", "", "%s", err)
}

func (s *server) models(w http.ResponseWriter, _ *http.Request) {
	answer(w, http.StatusOK, map[string]any{"object": "list", "data": []any{
		map[string]any{"id": s.model, "object": "model", "created": s.since, "owned_by": "mcpgym"}}})
}

// The wire's form of an answer, and of each piece of one that is streamed.
type wireAnswer struct {
	ID      string       `json:"id"`
	Object  string       `json:"object"`
	Created int64        `json:"created"`
	Model   string       `json:"model"`
	Choices []wireChoice `json:"choices"`
	Usage   *wireUsage   `json:"usage,omitempty"`
}

type wireChoice struct {
	Index    int           `json:"index"`
	Message  *wireSaid     `json:"message,omitempty"`
	Delta    *wireDelta    `json:"delta,omitempty"`
	LogProbs *wireLogProbs `json:"logprobs"`
	Finish   *string       `json:"finish_reason"`
}

type wireSaid struct {
	Role      string     `json:"role"`
	Content   *string    `json:"content"` // null beside calls, where there is no text
	Refusal   *string    `json:"refusal"`
	Reasoning string     `json:"reasoning_content,omitempty"`
	ToolCalls []wireCall `json:"tool_calls,omitempty"`
}

type wireDelta struct {
	Role      string     `json:"role,omitempty"`
	Content   string     `json:"content,omitempty"`
	Reasoning string     `json:"reasoning_content,omitempty"`
	ToolCalls []wireCall `json:"tool_calls,omitempty"`
}

type wireLogProbs struct {
	Content []wireLogProb `json:"content"`
}

type wireLogProb struct {
	Token   string     `json:"token"`
	LogProb float32    `json:"logprob"`
	Bytes   []int      `json:"bytes"`
	Top     []struct{} `json:"top_logprobs"`
}

type wireUsage struct {
	Prompt     int `json:"prompt_tokens"`
	Completion int `json:"completion_tokens"`
	Total      int `json:"total_tokens"`
}

// choice is one of the answers to a request.
type choice struct {
	turn
	finish   string
	tokens   int
	logProbs *wireLogProbs
}

func (s *server) chat(w http.ResponseWriter, r *http.Request) {
	q, err := s.parse(w, r)
	if err != nil {
		fail(w, err)
		return
	}
	prompt, err := s.engine.Open(q.tools, q.messages)
	if err != nil { // templates refuse some conversations
		fail(w, bad("messages", "%s", err))
		return
	}
	if !q.seeded {
		var seed [8]byte
		rand.Read(seed[:])
		q.sampling.Seed = binary.LittleEndian.Uint64(seed[:])
	}
	ctx, cancel := context.WithCancelCause(r.Context())
	defer cancel(nil)
	key := rand.Text()
	head := wireAnswer{ID: "chatcmpl-" + key, Object: "chat.completion", Created: time.Now().Unix(), Model: s.model}
	var out *stream
	if q.stream {
		head.Object = "chat.completion.chunk"
		out = &stream{w: w, head: head, roles: map[int]bool{}}
	}
	choices := make([]choice, q.n)
	var all sync.WaitGroup
	for i := range choices {
		all.Go(func() {
			r := q.sampling
			r.Prompt = slices.Clone(prompt)
			r.Seed += uint64(i) * 0x9e3779b97f4a7c15
			var delta func(wireDelta) error
			if out != nil {
				delta = func(d wireDelta) error { return out.send(i, d) }
			}
			c, err := s.say(ctx, q, r, fmt.Sprintf("call_%s_%d", key, i), delta)
			if err == nil && out != nil {
				err = out.end(i, c)
			}
			if err != nil {
				cancel(err) // the first one is the cause
			}
			choices[i] = c
		})
	}
	all.Wait()
	if err := context.Cause(ctx); err != nil {
		if out != nil && out.began {
			out.write(map[string]*refusal{"error": refusalOf(err)})
			return
		}
		fail(w, err)
		return
	}
	usage := &wireUsage{Prompt: len(prompt)}
	for i, c := range choices {
		usage.Completion += c.tokens
		head.Choices = append(head.Choices, wireChoice{Index: i, Message: c.message(), LogProbs: c.logProbs, Finish: &c.finish})
	}
	usage.Total = usage.Prompt + usage.Completion
	switch {
	case out != nil && q.usage:
		out.done(usage)
	case out != nil:
		out.done(nil)
	default:
		head.Usage = usage
		answer(w, http.StatusOK, head)
	}
}

func (c choice) message() *wireSaid {
	m := &wireSaid{Role: "assistant", Reasoning: c.reasoning, ToolCalls: wireCalls(c.calls)}
	if c.content != "" || len(c.calls) == 0 {
		m.Content = &c.content
	}
	return m
}

func wireCalls(calls []engine.Call) []wireCall {
	var out []wireCall
	for _, c := range calls {
		w := wireCall{ID: c.ID, Type: "function"}
		w.Function.Name, w.Function.Arguments = c.Name, string(c.Arguments)
		out = append(out, w)
	}
	return out
}

// queue hands tokens from the engine, which is not to wait for a slow client, to who reads them.
type queue struct {
	mu     sync.Mutex
	tokens []int32
	more   chan struct{}
}

func (q *queue) put(token int32) {
	q.mu.Lock()
	q.tokens = append(q.tokens, token)
	q.mu.Unlock()
	select {
	case q.more <- struct{}{}:
	default:
	}
}

func (q *queue) take() []int32 {
	q.mu.Lock()
	defer q.mu.Unlock()
	tokens := q.tokens
	q.tokens = nil
	return tokens
}

// say samples one turn, and tells of it piece by piece where delta is not nil. Its calls have ids that begin with id.
func (s *server) say(ctx context.Context, q *query, r engine.Request, id string, delta func(wireDelta) error) (choice, error) {
	calls := len(q.tools) > 0
	thinking := toolcall.OpensThinking(s.engine.Decode(r.Prompt))
	in := reading{codec: s.engine, stop: q.stop, preview: preview{thinking: thinking, calls: calls}}
	tokens := queue{more: make(chan struct{}, 1)}
	if delta != nil || len(q.stop) > 0 {
		r.Each = tokens.put
	}
	type result struct {
		engine.Sample
		err error
	}
	sampling, enough := context.WithCancel(ctx)
	defer enough()
	done := make(chan result, 1)
	go func() {
		sample, err := s.engine.Generate(sampling, r)
		done <- result{sample, err}
	}()

	var said, thought int // bytes that delta was told
	tell := func(t turn) error {
		d := wireDelta{Content: t.content[min(said, len(t.content)):], Reasoning: t.reasoning[min(thought, len(t.reasoning)):]}
		if delta == nil || d.Content == "" && d.Reasoning == "" {
			return nil
		}
		said, thought = said+len(d.Content), thought+len(d.Reasoning)
		return delta(d)
	}
	var ended result
	var gone error // the client
	for running := true; running; {
		select {
		case <-tokens.more:
		case ended = <-done:
			running = false
		}
		for _, token := range tokens.take() {
			in.add(token)
		}
		if in.stopped && !q.logProbs { // those come with the whole sample
			enough()
		}
		if gone == nil {
			gone = tell(turn{reasoning: in.preview.reasoning.String(), content: in.preview.content.String()})
		}
		if gone != nil {
			enough()
		}
	}
	if gone != nil {
		return choice{}, gone
	}
	if err := ended.err; err != nil && (!in.stopped || ctx.Err() != nil || q.logProbs) {
		return choice{}, err
	}
	if !in.stopped {
		for _, token := range ended.Tokens[min(in.tokens, len(ended.Tokens)):] {
			in.add(token)
		}
		in.finish()
	}
	c := choice{turn: read(in.turnText(), q.tools, thinking, calls), finish: ended.Finish, tokens: in.tokens}
	if q.one && len(c.calls) > 1 {
		c.calls = c.calls[:1]
	}
	for i := range c.calls {
		c.calls[i].ID = fmt.Sprintf("%s_%d", id, i)
	}
	if in.stopped {
		c.finish = "stop"
	}
	if c.finish == "stop" && len(c.calls) > 0 {
		c.finish = "tool_calls"
	}
	if q.logProbs {
		if len(ended.LogProbs) != len(ended.Tokens) || c.tokens > len(ended.Tokens) {
			return choice{}, fmt.Errorf("the engine gave %d log-probabilities for %d tokens", len(ended.LogProbs), len(ended.Tokens))
		}
		c.logProbs = s.logProbs(ended.Tokens[:c.tokens], ended.LogProbs)
	}
	return c, tell(c.turn)
}

// logProbs lists tokens. The one that ended the turn is among them, though it is no part of the content.
func (s *server) logProbs(tokens []int32, values []float32) *wireLogProbs {
	out := &wireLogProbs{Content: make([]wireLogProb, len(tokens))}
	stops := s.engine.Stops()
	for i, token := range tokens {
		spelled := []int32{token}
		if slices.Contains(stops, token) {
			spelled = append(spelled, token) // of two the last is left out
		}
		p := wireLogProb{Token: s.engine.Decode(spelled), LogProb: max(values[i], -9999), Top: []struct{}{}} // JSON knows no infinity
		if !strings.Contains(p.Token, "\uFFFD") {
			p.Bytes = []int{}
			for _, b := range []byte(p.Token) {
				p.Bytes = append(p.Bytes, int(b))
			}
		} // else a part of a character, whose bytes are not known
		out.Content[i] = p
	}
	return out
}
