package llm

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mcpgym/mcpgym/sandboxes/casetest"
)

const key = "sk-secret-key-1234567890"

// serve gives a client of a server whose n-th attempt, counted from 0, is answered by answer.
func serve(t *testing.T, cfg Config, answer func(n int, w http.ResponseWriter, body []byte)) (*Client, *atomic.Int32) {
	t.Helper()
	n := new(atomic.Int32)
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil || r.URL.Path != "/v1/chat/completions" || r.Header.Get("Authorization") != "Bearer "+key {
			w.WriteHeader(http.StatusTeapot)
			return
		}
		answer(int(n.Add(1)-1), w, body)
	}))
	t.Cleanup(s.Close)
	cfg.URL, cfg.Key, cfg.Model = s.URL+"/v1", key, "m"
	c, err := New(cfg)
	require.NoError(t, err)
	return c, n
}

func say(w http.ResponseWriter, text string, tokens int) {
	w.Header().Set("Content-Type", "application/json")
	fmt.Fprintf(w, `{"model":"m-1","choices":[{"finish_reason":"stop","message":{"role":"assistant","content":%q}}],
		"usage":{"prompt_tokens":%d,"completion_tokens":%d}}`, text, tokens-10, 10)
}

// busy refuses an attempt, to be repeated at once.
func busy(w http.ResponseWriter, status int) {
	w.Header().Set("Retry-After-Ms", "1")
	w.WriteHeader(status)
}

func hang(w http.ResponseWriter) {
	conn, _, err := w.(http.Hijacker).Hijack()
	if err == nil {
		conn.Close()
	}
}

var hello = Request{Messages: []Message{{Role: User, Text: "hello"}}}

func TestRequest(t *testing.T) {
	casetest.Run(t, "request", func(t *testing.T, c casetest.Case) {
		var in struct {
			Temperature *float64 `json:"temperature"`
			Seed        *int64   `json:"seed"`
			MaxTokens   int      `json:"max_tokens"`
		}
		c.In(t, &in)
		var sent json.RawMessage
		client, _ := serve(t, Config{}, func(_ int, w http.ResponseWriter, body []byte) {
			sent = body
			say(w, "hi", 20)
		})
		_, err := client.Chat(t.Context(), Request{hello.Messages, nil, in.Temperature, in.Seed, in.MaxTokens, nil})
		require.NoError(t, err)
		c.Check(t, map[string]any{"sent": sent})
	})
}

func TestWholeRequest(t *testing.T) {
	var sent []byte
	client, _ := serve(t, Config{}, func(_ int, w http.ResponseWriter, body []byte) {
		sent = body
		say(w, "hi", 20)
	})
	_, err := client.Chat(t.Context(), Request{
		Messages: []Message{{Role: System, Text: "s"}, {Role: User, Text: "u"},
			{Role: Assistant, Calls: []Call{{"c1", "read", `{"p":`}}}, {Role: ToolRole, Text: "gone", CallID: "c1"}, {Role: Assistant, Text: "a"}},
		Tools:     []Tool{{"read", "reads", json.RawMessage(`{"type":"object","properties":{"n":{"type":"integer","maximum":9007199254740993}}}`)}, {Name: "now"}},
		MaxTokens: 7,
		Format:    &Format{"out", json.RawMessage(`{"type":"object"}`)},
	})
	require.NoError(t, err)
	require.JSONEq(t, `{"model":"m","max_tokens":7,
		"messages":[{"role":"system","content":"s"},{"role":"user","content":"u"},
			{"role":"assistant","tool_calls":[{"id":"c1","type":"function","function":{"name":"read","arguments":"{\"p\":"}}]},
			{"role":"tool","content":"gone","tool_call_id":"c1"},{"role":"assistant","content":"a"}],
		"tools":[{"type":"function","function":{"name":"read","description":"reads","parameters":{"type":"object","properties":{"n":{"type":"integer","maximum":9007199254740993}}}}},
			{"type":"function","function":{"name":"now"}}],
		"response_format":{"type":"json_schema","json_schema":{"name":"out","strict":true,"schema":{"type":"object"}}}}`, string(sent))
	require.Contains(t, string(sent), `{"type":"object","properties":{"n":{"type":"integer","maximum":9007199254740993}}}`, "in its order")

	_, err = client.Chat(t.Context(), Request{Messages: []Message{{Role: "judge"}}})
	require.ErrorContains(t, err, `no role "judge"`)
	_, err = client.Chat(t.Context(), Request{Tools: []Tool{{Name: "x", Parameters: json.RawMessage(`[]`)}}})
	require.ErrorContains(t, err, "schema of tool x")
}

func TestStream(t *testing.T) {
	casetest.Run(t, "stream", func(t *testing.T, c casetest.Case) {
		var pieces []json.RawMessage
		c.In(t, &pieces)
		client, _ := serve(t, Config{}, func(_ int, w http.ResponseWriter, _ []byte) { // as a server that streams unasked
			w.Header().Set("Content-Type", "text/event-stream; charset=utf-8")
			for _, p := range pieces {
				fmt.Fprintf(w, "data: {\"model\":\"m\",\"choices\":[{\"delta\":{\"tool_calls\":[%s]},\"finish_reason\":null}]}\n\n", p)
			}
			fmt.Fprint(w, "data: {\"model\":\"m\",\"choices\":[{\"delta\":{},\"finish_reason\":\"tool_calls\"}]}\n\n"+
				": a comment\n\ndata: {\"model\":\"m\",\"choices\":[],\"usage\":{\"prompt_tokens\":5,\"completion_tokens\":6}}\n\ndata: [DONE]\n\n")
		})
		r, err := client.Chat(t.Context(), hello)
		require.NoError(t, err)
		require.Equal(t, ToolCalls, r.Finish)
		require.Equal(t, Usage{Prompt: 5, Completion: 6, Attempts: 1}, r.Usage)
		calls := []map[string]any{}
		for _, call := range r.Calls {
			calls = append(calls, map[string]any{"id": call.ID, "name": call.Name, "arguments": json.RawMessage(call.Arguments)})
		}
		c.Check(t, map[string]any{"calls": calls})
	})
}

func TestJoin(t *testing.T) {
	for _, c := range []struct{ name, pieces, want string }{
		{"none", `[]`, ``},
		{"interleaved by index", `[{"index":0,"id":"a","function":{"name":"f","arguments":"1"}},{"index":1,"id":"b","function":{"name":"g","arguments":"3"}},
			{"index":0,"function":{"arguments":"2"}},{"index":1,"function":{"arguments":"4"}}]`, "a f 12,b g 34"},
		{"the id and name in every piece", `[{"index":0,"id":"a","function":{"name":"f","arguments":"{"}},{"index":0,"id":"a","function":{"name":"f","arguments":"}"}}]`, "a f {}"},
		{"the id late", `[{"index":0,"function":{"name":"f","arguments":"{"}},{"index":0,"id":"a","function":{"arguments":"}"}}]`, "a f {}"},
		{"no ids, one index", `[{"index":0,"function":{"name":"f","arguments":"{}"}},{"index":0,"function":{"name":"g","arguments":"{}"}}]`, " f {}, g {}"},
		{"no index, by id", `[{"id":"a","function":{"name":"f","arguments":"1"}},{"id":"b","function":{"name":"g","arguments":"3"}},{"id":"a","function":{"arguments":"2"}}]`, "a f 12,b g 3"},
		{"an index after none", `[{"id":"a","function":{"name":"f","arguments":"1"}},{"index":1,"id":"b","function":{"name":"g","arguments":"2"}}]`, "a f 1,b g 2"},
	} {
		t.Run(c.name, func(t *testing.T) {
			var pieces []wireCall
			require.NoError(t, json.Unmarshal([]byte(c.pieces), &pieces))
			var got []string
			for _, call := range join(pieces) {
				got = append(got, fmt.Sprintf("%s %s %s", call.ID, call.Function.Name, call.Function.Arguments))
			}
			require.Equal(t, c.want, strings.Join(got, ","))
		})
	}
}

func TestFinish(t *testing.T) {
	casetest.Run(t, "finish", func(t *testing.T, c casetest.Case) {
		var in struct {
			FinishReason     string `json:"finish_reason"`
			CompletionTokens int    `json:"completion_tokens"`
			MaxTokens        int    `json:"max_tokens"`
			Calls            int    `json:"calls"`
		}
		c.In(t, &in)
		f := finish(in.FinishReason, in.Calls, in.CompletionTokens, in.MaxTokens)
		c.Check(t, map[string]any{"truncated": f == Length, "run_calls": f == ToolCalls})
	})
	for _, c := range []struct {
		reason                 string
		calls, tokens, maximum int
		want                   Finish
	}{
		{"stop", 0, 9, 0, Stop},
		{"stop", 0, 9, 9, Stop}, // it may just have ended there
		{"length", 2, 9, 0, Length},
		{"content_filter", 1, 9, 99, Filter},
		{"function_call", 1, 9, 0, ToolCalls},
		{"tool_calls", 0, 9, 0, Stop},
		{"", 1, 9, 0, ToolCalls},
		{"", 0, 9, 0, Stop},
		{"eos", 0, 9, 0, "eos"},
	} {
		require.Equal(t, c.want, finish(c.reason, c.calls, c.tokens, c.maximum), "%+v", c)
	}
}

func TestUsage(t *testing.T) {
	casetest.Run(t, "usage", func(t *testing.T, c casetest.Case) {
		var in struct{ Prompt, Completion []int }
		c.In(t, &in)
		var u Usage
		for i := range in.Prompt {
			u = u.Add(Usage{Prompt: in.Prompt[i], Completion: in.Completion[i]})
		}
		c.Check(t, map[string]any{"negative": u.Prompt < 0 || u.Completion < 0, "prompt_total": u.Prompt, "completion_total": u.Completion})
	})
	casetest.Run(t, "usage-unique", func(t *testing.T, c casetest.Case) {
		var in struct {
			Tokens   []int `json:"sequence_tokens"`
			IsPrefix bool  `json:"is_prefix"`
		}
		c.In(t, &in)
		c.Check(t, map[string]any{"unique_tokens": Unique(in.Tokens, in.IsPrefix)})
	})
	require.Equal(t, 47, Unique([]int{10, 16, 21}, false))

	u := Usage{Prompt: 1_000_000, Completion: 500_000}
	require.Nil(t, u.Cost(nil))
	require.Equal(t, 4.0, *u.Cost(&Price{Prompt: 1, Completion: 6}))
	require.Equal(t, 0.0, *u.Cost(&Price{}), "a price of 0 is a price")
	u.Unknown = 1
	require.Nil(t, u.Cost(&Price{1, 1}))
}

// What servers do wrong, one attempt after another, and what comes of it.
func TestRetry(t *testing.T) {
	partly := func(w http.ResponseWriter) {
		w.Header().Set("Content-Length", "1000")
		say(w, "never whole", 100)
	}
	for _, c := range []struct {
		name    string
		answers []func(w http.ResponseWriter)
		want    Usage
	}{
		{"C247: rate limited", []func(http.ResponseWriter){
			func(w http.ResponseWriter) { busy(w, 429) }}, Usage{Prompt: 90, Completion: 10, Attempts: 2}},
		{"server errors", []func(http.ResponseWriter){
			func(w http.ResponseWriter) { busy(w, 500) },
			func(w http.ResponseWriter) { busy(w, 503) },
			func(w http.ResponseWriter) { busy(w, 408) }}, Usage{Prompt: 90, Completion: 10, Attempts: 4}},
		{"C246: the reply is lost", []func(http.ResponseWriter){hang}, Usage{Prompt: 180, Completion: 20, Attempts: 2, Guessed: 1}},
		{"the reply is cut", []func(http.ResponseWriter){partly}, Usage{Prompt: 180, Completion: 20, Attempts: 2, Guessed: 1}},
		{"a page of a proxy", []func(http.ResponseWriter){
			func(w http.ResponseWriter) { fmt.Fprint(w, "<html>soon</html>") }}, Usage{Prompt: 180, Completion: 20, Attempts: 2, Guessed: 1}},
		{"C249: fails after the answer", []func(http.ResponseWriter){
			func(w http.ResponseWriter) {
				fmt.Fprint(w, `{"choices":[],"usage":{"prompt_tokens":70,"completion_tokens":30}}`)
			}}, Usage{Prompt: 160, Completion: 40, Attempts: 2}},
		{"an error with status 200", []func(http.ResponseWriter){
			func(w http.ResponseWriter) {
				fmt.Fprint(w, `{"error":{"message":"overloaded"},"choices":[],"usage":{"prompt_tokens":70,"completion_tokens":0}}`)
			}}, Usage{Prompt: 160, Completion: 10, Attempts: 2}},
		{"a stream that is cut", []func(http.ResponseWriter){
			func(w http.ResponseWriter) {
				w.Header().Set("Content-Type", "text/event-stream")
				fmt.Fprint(w, "data: {\"choices\":[{\"delta\":{\"content\":\"he\"}}]}\n\n")
			}}, Usage{Prompt: 180, Completion: 20, Attempts: 2, Guessed: 1}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			client, n := serve(t, Config{Price: &Price{Prompt: 1e6}}, func(n int, w http.ResponseWriter, _ []byte) {
				if n < len(c.answers) {
					c.answers[n](w)
					return
				}
				say(w, "hi", 100)
			})
			r, err := client.Chat(t.Context(), hello)
			require.NoError(t, err)
			require.Equal(t, "hi", r.Text)
			require.Equal(t, "m-1", r.Model)
			require.Equal(t, c.want, r.Usage)
			require.Equal(t, float64(c.want.Prompt), *r.Cost)
			require.EqualValues(t, len(c.answers)+1, n.Load())
		})
	}
}

func TestNoReplyInTime(t *testing.T) {
	t.Parallel()
	free := make(chan struct{})
	client, _ := serve(t, Config{Limit: 300 * time.Millisecond}, func(n int, w http.ResponseWriter, _ []byte) {
		if n == 0 {
			fmt.Fprint(w, "{")
			w.(http.Flusher).Flush()
			<-free
			return
		}
		say(w, "hi", 100)
	})
	defer close(free)
	r, err := client.Chat(t.Context(), hello)
	require.NoError(t, err)
	require.Equal(t, Usage{Prompt: 180, Completion: 20, Attempts: 2, Guessed: 1}, r.Usage)
}

// A wait that the server names is kept, in seconds too.
func TestRetryAfter(t *testing.T) {
	t.Parallel()
	var first time.Time
	var waited time.Duration
	client, _ := serve(t, Config{}, func(n int, w http.ResponseWriter, _ []byte) {
		if n == 0 {
			first = time.Now()
			w.Header().Set("Retry-After", "1")
			w.WriteHeader(429)
			return
		}
		waited = time.Since(first)
		say(w, "hi", 100)
	})
	_, err := client.Chat(t.Context(), hello)
	require.NoError(t, err)
	require.GreaterOrEqual(t, waited, time.Second)
}

func TestFailures(t *testing.T) {
	for _, c := range []struct {
		name     string
		answer   func(w http.ResponseWriter)
		attempts int
		status   int
		want     string
		usage    Usage
	}{
		{"C248: a wrong key", func(w http.ResponseWriter) {
			w.WriteHeader(401)
			fmt.Fprintf(w, `{"error":{"message":"wrong key %s"}}`, key)
		}, 1, 401, "wrong key [key]", Usage{Attempts: 1}},
		{"a bad request, with an error that is no object", func(w http.ResponseWriter) {
			w.WriteHeader(400)
			fmt.Fprint(w, `{"error":"no such model"}`)
		}, 1, 400, "no such model", Usage{Attempts: 1}},
		{"always rate limited", func(w http.ResponseWriter) { busy(w, 429) }, Retries + 1, 429, "status 429", Usage{Attempts: Retries + 1}},
		{"a wait of an hour", func(w http.ResponseWriter) {
			w.Header().Set("Retry-After", "3600")
			w.WriteHeader(429)
		}, 1, 429, "status 429", Usage{Attempts: 1}},
		{"a status that is neither", func(w http.ResponseWriter) { w.WriteHeader(304) }, 1, 304, "status 304", Usage{Attempts: 1}},
	} {
		t.Run(c.name, func(t *testing.T) {
			client, n := serve(t, Config{Price: &Price{1, 1}}, func(_ int, w http.ResponseWriter, _ []byte) { c.answer(w) })
			r, err := client.Chat(t.Context(), hello)
			require.ErrorContains(t, err, c.want)
			require.ErrorContains(t, err, "ask m at "+client.cfg.URL)
			require.NotContains(t, fmt.Sprintf("%v %+v %#v", err, err, err), key)
			var e *Error
			require.ErrorAs(t, err, &e)
			require.Equal(t, c.status, e.Status)
			require.EqualValues(t, c.attempts, n.Load())
			require.Equal(t, c.usage, r.Usage)
			require.Empty(t, r.Text)
		})
	}
}

// Where nobody listens nothing is charged.
func TestNobody(t *testing.T) {
	t.Parallel()
	s := httptest.NewServer(http.NotFoundHandler())
	s.Close()
	c, err := New(Config{URL: s.URL, Model: "m", Price: &Price{1, 1}})
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond) // within the first wait
	defer cancel()
	r, err := c.Chat(ctx, hello)
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.Equal(t, Usage{Attempts: 1}, r.Usage)
	require.Equal(t, 0.0, *r.Cost)
}

// Tokens that nobody has counted have no cost.
func TestUncounted(t *testing.T) {
	client, _ := serve(t, Config{Price: &Price{1, 1}}, func(_ int, w http.ResponseWriter, _ []byte) {
		fmt.Fprint(w, `{"choices":[{"finish_reason":"stop","message":{"content":"hi"}}],"usage":{"prompt_tokens":-5,"completion_tokens":3}}`)
	})
	r, err := client.Chat(t.Context(), hello)
	require.NoError(t, err)
	require.Equal(t, Usage{Attempts: 1, Unknown: 1}, r.Usage)
	require.Nil(t, r.Cost)
}

func TestCancel(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	client, n := serve(t, Config{}, func(_ int, w http.ResponseWriter, _ []byte) {
		cancel()
		time.Sleep(10 * time.Millisecond)
		hang(w)
	})
	r, err := client.Chat(ctx, hello)
	require.ErrorIs(t, err, context.Canceled)
	require.EqualValues(t, 1, n.Load())
	require.Equal(t, Usage{Attempts: 1, Unknown: 1}, r.Usage)
}

func TestMessages(t *testing.T) {
	for _, c := range []struct{ name, body string }{
		{"reasoning_content", `{"content":"hi","reasoning_content":"hm"}`},
		{"reasoning", `{"content":[{"type":"text","text":"h"},{"type":"text","text":"i"}],"reasoning":"hm","refusal":null}`},
	} {
		t.Run(c.name, func(t *testing.T) {
			client, _ := serve(t, Config{}, func(_ int, w http.ResponseWriter, _ []byte) {
				fmt.Fprintf(w, `{"choices":[{"finish_reason":"stop","message":%s}],
					"usage":{"prompt_tokens":9,"completion_tokens":4,"prompt_tokens_details":{"cached_tokens":8},"completion_tokens_details":{"reasoning_tokens":3}}}`, c.body)
			})
			r, err := client.Chat(t.Context(), hello)
			require.NoError(t, err)
			require.Equal(t, Reply{Text: "hi", Reasoning: "hm", Finish: Stop,
				Usage: Usage{Prompt: 9, Completion: 4, Cached: 8, Reasoning: 3, Attempts: 1}}, r)
		})
	}

	client, _ := serve(t, Config{}, func(_ int, w http.ResponseWriter, _ []byte) {
		fmt.Fprint(w, `{"choices":[{"finish_reason":"stop","message":{"content":null,"refusal":"no","tool_calls":[
			{"id":"a","type":"function","function":{"name":"f","arguments":"{\"n\":1"}},{"type":"function","function":{"name":"g","arguments":{"n": 2}}}]}}]}`)
	})
	r, err := client.Chat(t.Context(), hello)
	require.NoError(t, err)
	require.Equal(t, "no", r.Refusal)
	require.Equal(t, ToolCalls, r.Finish)
	require.Equal(t, []Call{{"a", "f", `{"n":1`}, {"call_1", "g", `{"n": 2}`}}, r.Calls)
}

func TestNew(t *testing.T) {
	for _, c := range []struct {
		cfg  Config
		want string
	}{
		{Config{Model: "m"}, "want one such as"},
		{Config{URL: "localhost:8000/v1", Model: "m"}, "want one such as"},
		{Config{URL: "http://u:pass-word@h/v1", Model: "m"}, "a user"},
		{Config{URL: "http://u:pass-word@h/%zz", Model: "m"}, "not a URL"},
		{Config{URL: "http://h/v1?key=pass-word", Model: "m"}, "a query"},
		{Config{URL: "http://h/v1"}, "no model"},
		{Config{URL: "http://h/v1", Model: "m", Limit: -1}, "limit"},
	} {
		_, err := New(c.cfg)
		require.ErrorContains(t, err, c.want, "%+v", c.cfg)
		require.NotContains(t, err.Error(), "pass-word")
	}
	c, err := New(Config{URL: "http://h", Model: "m"})
	require.NoError(t, err)
	require.Equal(t, "m", c.Model())
}

// Nothing of the machine's environment reaches a request.
func TestEnvironment(t *testing.T) {
	t.Setenv("OPENAI_API_KEY", "sk-ambient")
	t.Setenv("OPENAI_BASE_URL", "http://127.0.0.1:1/")
	t.Setenv("OPENAI_ORG_ID", "org-ambient")
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		say(w, fmt.Sprint(r.Header), 20)
	}))
	defer s.Close()
	c, err := New(Config{URL: s.URL, Model: "m"})
	require.NoError(t, err)
	r, err := c.Chat(t.Context(), hello)
	require.NoError(t, err)
	require.NotContains(t, r.Text, "ambient")
	require.NotContains(t, r.Text, "Authorization")
}
