package llm

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"net/http/httptrace"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/openai/openai-go/v3/option"
)

// maxBody bounds a reply, in bytes.
const maxBody = 64 << 20

// exchange is one request and all attempts at it. The library repeats an attempt that returns an error, so an attempt reads
// and checks its whole reply.
type exchange struct {
	limit time.Duration
	max   int // tokens

	reply   Reply
	refused *Error // the last attempt's, if it was that
	usage   Usage  // of the replies that came
	lost    int    // requests that went out, and no count of tokens came back
}

// total counts a lost reply like the one that came: it answered the same request.
func (x *exchange) total() Usage {
	u := x.usage
	if one := x.reply.Usage; one.Prompt > 0 {
		u.Guessed = x.lost
		for range x.lost {
			u = u.Add(one)
		}
	} else {
		u.Unknown = x.lost
	}
	return u
}

func (x *exchange) attempt(req *http.Request, next option.MiddlewareNext) (*http.Response, error) {
	ctx, cancel := context.WithTimeout(req.Context(), x.limit)
	defer cancel()
	var connected atomic.Bool // then the server may have read the request, and charge for it
	ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{GotConn: func(httptrace.GotConnInfo) { connected.Store(true) }})
	x.usage.Attempts++
	x.refused = nil
	res, body, err := roundTrip(req.WithContext(ctx), next)
	if err != nil {
		if connected.Load() {
			x.lost++
		}
		if ctx.Err() != nil && req.Context().Err() == nil {
			err = fmt.Errorf("no reply within %v", x.limit)
		}
		return nil, err
	}
	media, _, _ := mime.ParseMediaType(res.Header.Get("Content-Type"))
	w, err := readReply(body, media == "text/event-stream")
	counted := w.Usage.valid()
	if counted {
		x.usage = x.usage.Add(w.Usage.count())
	}
	if res.StatusCode/100 != 2 {
		x.refused = &Error{res.StatusCode, fmt.Sprintf("%.500q", bytes.TrimSpace(body))}
		res.Body = io.NopCloser(bytes.NewReader(body))
		return res, nil // the library knows which statuses are worth another attempt
	}
	if !counted {
		x.lost++
	}
	if err != nil {
		return nil, fmt.Errorf("reply not readable: %w: %.200q", err, body)
	}
	x.reply = w.reply(x.max)
	res.Header.Set("Content-Type", "application/json")
	res.Body = io.NopCloser(strings.NewReader("{}")) // read already
	return res, nil
}

func roundTrip(req *http.Request, next option.MiddlewareNext) (*http.Response, []byte, error) {
	res, err := next(req)
	if err != nil {
		return nil, nil, err
	}
	defer res.Body.Close()
	body, err := io.ReadAll(io.LimitReader(res.Body, maxBody+1))
	if err == nil && len(body) > maxBody {
		err = fmt.Errorf("a reply of more than %d bytes", maxBody)
	}
	return res, body, err
}

// The wire's form, of whole replies and of the pieces of streamed ones. Servers take liberties: text comes as parts,
// arguments as objects.
type wireReply struct {
	Model   string       `json:"model"`
	Choices []wireChoice `json:"choices"`
	Usage   *wireUsage   `json:"usage"`
	Error   any          `json:"error"`
}

type wireChoice struct {
	Finish  string      `json:"finish_reason"`
	Message wireMessage `json:"message"`
	Delta   wireMessage `json:"delta"`
}

type wireMessage struct {
	Content          text       `json:"content"`
	ReasoningContent text       `json:"reasoning_content"`
	Reasoning        text       `json:"reasoning"`
	Refusal          text       `json:"refusal"`
	ToolCalls        []wireCall `json:"tool_calls"`
}

type wireCall struct {
	Index    *int   `json:"index"`
	ID       string `json:"id"`
	Function struct {
		Name      string `json:"name"`
		Arguments text   `json:"arguments"`
	} `json:"function"`
}

type wireUsage struct {
	Prompt     int `json:"prompt_tokens"`
	Completion int `json:"completion_tokens"`
	PromptMore struct {
		Cached int `json:"cached_tokens"`
	} `json:"prompt_tokens_details"`
	CompletionMore struct {
		Reasoning int `json:"reasoning_tokens"`
	} `json:"completion_tokens_details"`
}

func (u *wireUsage) valid() bool {
	return u != nil && u.Prompt > 0 && u.Completion >= 0
}

func (u *wireUsage) count() Usage {
	return Usage{Prompt: u.Prompt, Completion: u.Completion, Cached: u.PromptMore.Cached, Reasoning: u.CompletionMore.Reasoning}
}

// text is a string, a list of parts with texts, null, or any other JSON value as it stands.
type text string

func (t *text) UnmarshalJSON(data []byte) error {
	var s string
	var parts []struct {
		Text string `json:"text"`
	}
	switch {
	case json.Unmarshal(data, &s) == nil: // also null
		*t = text(s)
	case json.Unmarshal(data, &parts) == nil:
		*t = ""
		for _, p := range parts {
			*t += text(p.Text)
		}
	default:
		*t = text(data)
	}
	return nil
}

// readReply reads a whole reply, or puts the pieces of a stream together: some servers stream unasked.
func readReply(body []byte, stream bool) (wireReply, error) {
	var all wireReply
	if !stream {
		if err := json.Unmarshal(body, &all); err != nil {
			return wireReply{Usage: all.Usage}, err
		}
		return all, all.check()
	}
	var m wireMessage
	finish := ""
	lines := bufio.NewScanner(bytes.NewReader(body))
	lines.Buffer(nil, maxBody)
	for lines.Scan() {
		data, ok := bytes.CutPrefix(lines.Bytes(), []byte("data:"))
		if data = bytes.TrimSpace(data); !ok || len(data) == 0 || string(data) == "[DONE]" {
			continue
		}
		var piece wireReply
		if err := json.Unmarshal(data, &piece); err != nil {
			return all, fmt.Errorf("a piece of the stream: %w", err)
		}
		if piece.Usage != nil { // running totals: the last one counts
			all.Usage = piece.Usage
		}
		if piece.Error != nil {
			all.Error = piece.Error
		}
		all.Model = piece.Model
		for _, c := range piece.Choices {
			m.Content += c.Delta.Content
			m.ReasoningContent += c.Delta.ReasoningContent
			m.Reasoning += c.Delta.Reasoning
			m.Refusal += c.Delta.Refusal
			m.ToolCalls = append(m.ToolCalls, c.Delta.ToolCalls...)
			if c.Finish != "" {
				finish = c.Finish
			}
		}
	}
	if err := lines.Err(); err != nil {
		return all, err
	}
	if finish != "" { // without one the stream was cut
		m.ToolCalls = join(m.ToolCalls)
		all.Choices = []wireChoice{{Finish: finish, Message: m}}
	}
	return all, all.check()
}

func (w wireReply) check() error {
	if w.Error != nil {
		return fmt.Errorf("error %v", w.Error)
	}
	if len(w.Choices) == 0 {
		return errors.New("no choices")
	}
	return nil
}

// join puts the pieces of streamed calls together. A piece goes on with the call of its id; without an id, with the last call
// at its index; without an index, with the last call. It begins a call if there is none, if its id is another one, or if it
// names a function though the call is whole.
func join(pieces []wireCall) []wireCall {
	var calls []wireCall
	for _, p := range pieces {
		at := len(calls) - 1
		for p.Index != nil && at >= 0 && (calls[at].Index == nil || *calls[at].Index != *p.Index) {
			at--
		}
		if p.ID != "" {
			if same := slices.IndexFunc(calls, func(c wireCall) bool { return c.ID == p.ID }); same >= 0 {
				at = same
			}
		}
		if at < 0 || p.ID != "" && calls[at].ID != "" && p.ID != calls[at].ID ||
			p.ID == "" && p.Function.Name != "" && json.Valid([]byte(calls[at].Function.Arguments)) {
			calls = append(calls, p)
			continue
		}
		c := &calls[at]
		c.Function.Arguments += p.Function.Arguments
		if c.ID == "" {
			c.ID = p.ID
		}
		if c.Function.Name == "" {
			c.Function.Name = p.Function.Name
		}
	}
	return calls
}

// reply gives the first choice. A call without an id gets one that tells its place.
func (w wireReply) reply(maxTokens int) Reply {
	c := w.Choices[0]
	out := Reply{Text: string(c.Message.Content), Reasoning: string(c.Message.ReasoningContent), Refusal: string(c.Message.Refusal), Model: w.Model}
	if out.Reasoning == "" {
		out.Reasoning = string(c.Message.Reasoning)
	}
	for i, call := range c.Message.ToolCalls {
		if call.ID == "" {
			call.ID = "call_" + strconv.Itoa(i)
		}
		out.Calls = append(out.Calls, Call{call.ID, call.Function.Name, string(call.Function.Arguments)})
	}
	if w.Usage.valid() {
		out.Usage = w.Usage.count()
	}
	out.Finish = finish(c.Finish, len(out.Calls), out.Usage.Completion, maxTokens)
	return out
}

// finish corrects what servers get wrong: calls that were cut at the limit of tokens are called tool_calls or stop, and a turn
// with calls is called stop.
func finish(reason string, calls, tokens, maxTokens int) Finish {
	f := Finish(reason)
	switch {
	case calls > 0 && maxTokens > 0 && tokens >= maxTokens:
		return Length
	case calls > 0 && f != Length && f != Filter:
		return ToolCalls
	case f == "" || f == "function_call" || f == ToolCalls: // without a call
		return Stop
	}
	return f
}
