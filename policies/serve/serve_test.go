package serve

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/option"
	"github.com/stretchr/testify/require"

	"github.com/mcpgym/mcpgym/policies/bpe"
	"github.com/mcpgym/mcpgym/policies/engine"
	"github.com/mcpgym/mcpgym/policies/llm"
	"github.com/mcpgym/mcpgym/policies/toolcall"
)

// parrot is an engine that says what it is told to: a text for each prompt. It may be used concurrently.
type parrot struct {
	engine.Engine
	*toolcall.Codec
	tok  *bpe.Tokenizer
	says func(prompt string, r engine.Request) (string, error)
	hold func(ctx context.Context, n int) error // called before the n-th token

	mu       sync.Mutex
	asked    []engine.Request
	prompts  []string
	finished []error // of each Generate
	sampled  atomic.Int64
}

func (p *parrot) Open(tools []engine.Tool, m []engine.Message) ([]int32, error) {
	return p.Codec.Open(tools, m)
}
func (p *parrot) Next(stopped bool, m []engine.Message) ([]int32, error) {
	return p.Codec.Next(stopped, m)
}
func (p *parrot) Turn(m engine.Message) ([]int32, error) { return p.Codec.Turn(m) }
func (p *parrot) Decode(tokens []int32) string           { return p.Codec.Decode(tokens) }
func (p *parrot) Stops() []int32                         { return p.Codec.Stops() }

func (p *parrot) Generate(ctx context.Context, r engine.Request) (s engine.Sample, err error) {
	prompt := p.tok.Decode(r.Prompt)
	p.mu.Lock()
	p.asked, p.prompts = append(p.asked, r), append(p.prompts, prompt)
	p.mu.Unlock()
	defer func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.finished = append(p.finished, err)
	}()
	text, err := p.says(prompt, r)
	if err != nil {
		return s, err
	}
	s.Finish = "length"
	for i, token := range append(p.tok.Encode(text), p.Codec.Stops()[0]) {
		if i == r.MaxTokens {
			return s, nil
		}
		if p.hold != nil {
			if err := p.hold(ctx, i); err != nil {
				return engine.Sample{}, err
			}
		}
		if err := ctx.Err(); err != nil {
			return engine.Sample{}, err
		}
		p.sampled.Add(1)
		s.Tokens, s.LogProbs = append(s.Tokens, token), append(s.LogProbs, -float32(i)/8)
		if r.Each != nil {
			r.Each(token)
		}
	}
	s.Finish = "stop"
	return s, nil
}

func newParrot(tb testing.TB, says func(prompt string, r engine.Request) (string, error)) *parrot {
	tok, err := bpe.Train(slices.Values([]string{"the sum of the numbers is the sum of the numbers", `get_sum{"a":1,"b":2}`}), 300, toolcall.SmallTokens)
	require.NoError(tb, err)
	codec, err := toolcall.NewCodec(toolcall.Small(), tok)
	require.NoError(tb, err)
	return &parrot{Codec: codec, tok: tok, says: says}
}

func always(text string) func(string, engine.Request) (string, error) {
	return func(string, engine.Request) (string, error) { return text, nil }
}

func start(tb testing.TB, p *parrot) (url string) {
	s := httptest.NewServer(New(p, "small", Options{}))
	tb.Cleanup(s.Close)
	return s.URL
}

func client(url string) *openai.Client {
	c := openai.NewClient(option.WithBaseURL(url+"/v1"), option.WithAPIKey("any"), option.WithMaxRetries(0))
	return &c
}

var getSum = openai.ChatCompletionFunctionTool(openai.FunctionDefinitionParam{Name: "get_sum", Description: openai.String("Adds."),
	Parameters: openai.FunctionParameters{"type": "object"}})

// adds calls the tool and then says what it gave.
func adds(prompt string, _ engine.Request) (string, error) {
	if _, result, ok := strings.Cut(prompt, "<|tool|>"); ok {
		result, _, _ = strings.Cut(result, "<|end|>")
		return "The sum is " + result + ".", nil
	}
	return `<think>I add.</think>Let me see. <tool_call>get_sum{"a":1,"b":20}</tool_call>`, nil
}

func TestToolCallAndResult(t *testing.T) {
	p := newParrot(t, adds)
	ask := client(start(t, p))
	params := openai.ChatCompletionNewParams{Model: "small", Tools: []openai.ChatCompletionToolUnionParam{getSum}, Temperature: openai.Float(0.5), Seed: openai.Int(7),
		MaxCompletionTokens: openai.Int(99), Messages: []openai.ChatCompletionMessageParamUnion{openai.SystemMessage("Be brief."), openai.UserMessage("1 + 20?")}}
	first, err := ask.Chat.Completions.New(t.Context(), params)
	require.NoError(t, err)
	require.Len(t, first.Choices, 1)
	said := first.Choices[0].Message
	require.Equal(t, "tool_calls", first.Choices[0].FinishReason)
	require.Equal(t, "Let me see.", said.Content)
	require.JSONEq(t, `"I add."`, said.JSON.ExtraFields["reasoning_content"].Raw())
	require.Len(t, said.ToolCalls, 1)
	require.Equal(t, "get_sum", said.ToolCalls[0].Function.Name)
	require.Equal(t, `{"a":1,"b":20}`, said.ToolCalls[0].Function.Arguments)
	require.NotEmpty(t, said.ToolCalls[0].ID)
	require.EqualValues(t, len(p.asked[0].Prompt), first.Usage.PromptTokens)
	require.EqualValues(t, p.sampled.Load(), first.Usage.CompletionTokens)
	require.Equal(t, first.Usage.PromptTokens+first.Usage.CompletionTokens, first.Usage.TotalTokens)

	params.Messages = append(params.Messages, said.ToParam(), openai.ToolMessage("21", said.ToolCalls[0].ID))
	second, err := ask.Chat.Completions.New(t.Context(), params)
	require.NoError(t, err)
	require.Equal(t, "stop", second.Choices[0].FinishReason)
	require.Equal(t, "The sum is 21.", second.Choices[0].Message.Content)
	require.Empty(t, second.Choices[0].Message.ToolCalls)

	system := "<|system|>get_sum<|end|><|user|>1 + 20?<|end|><|assistant|>"
	require.Equal(t, []string{system, system + `Let me see.<tool_call>get_sum{"a":1,"b":20}</tool_call><|end|><|tool|>21<|end|><|assistant|>`}, p.prompts)
	r := p.asked[0]
	require.Equal(t, []any{0.5, uint64(7), 99, 1.0}, []any{r.Temperature, r.Seed, r.MaxTokens, r.TopP})

	models, err := ask.Models.List(t.Context())
	require.NoError(t, err)
	require.Len(t, models.Data, 1)
	require.Equal(t, "small", models.Data[0].ID)
}

func TestOurClient(t *testing.T) {
	p := newParrot(t, adds)
	c, err := llm.New(llm.Config{URL: start(t, p) + "/v1", Model: "small"})
	require.NoError(t, err)
	chat := llm.Request{Tools: []llm.Tool{{Name: "get_sum"}}, Messages: []llm.Message{{Role: llm.User, Text: "1 + 20?"}}, MaxTokens: 200}
	first, err := c.Chat(t.Context(), chat)
	require.NoError(t, err)
	require.Equal(t, llm.ToolCalls, first.Finish)
	require.Equal(t, []string{"I add.", "Let me see."}, []string{first.Reasoning, first.Text})
	require.Len(t, first.Calls, 1)
	require.Equal(t, int(p.sampled.Load()), first.Usage.Completion)

	chat.Messages = append(chat.Messages, llm.Message{Role: llm.Assistant, Text: first.Text, Calls: first.Calls}, llm.Message{Role: llm.ToolRole, Text: "21", CallID: first.Calls[0].ID})
	second, err := c.Chat(t.Context(), chat)
	require.NoError(t, err)
	require.Equal(t, llm.Stop, second.Finish)
	require.Equal(t, "The sum is 21.", second.Text)

	chat.MaxTokens = 5
	cut, err := c.Chat(t.Context(), chat)
	require.NoError(t, err)
	require.Equal(t, llm.Length, cut.Finish)
	require.Equal(t, 5, cut.Usage.Completion)
}

// post sends a body and gives the status and the answer's body.
func post(tb testing.TB, url, body string) (int, []byte) {
	resp, err := http.Post(url+"/v1/chat/completions", "application/json", strings.NewReader(body))
	require.NoError(tb, err)
	defer resp.Body.Close()
	data, err := io.ReadAll(resp.Body)
	require.NoError(tb, err)
	return resp.StatusCode, data
}

// events gives the data of the events of a stream.
func events(tb testing.TB, body []byte) []string {
	var out []string
	lines := bufio.NewScanner(bytes.NewReader(body))
	for lines.Scan() {
		if lines.Text() == "" {
			continue
		}
		data, ok := strings.CutPrefix(lines.Text(), "data: ")
		require.True(tb, ok, lines.Text())
		out = append(out, data)
	}
	return out
}

const (
	oneTool = `"tools":[{"type":"function","function":{"name":"get_sum","parameters":{"type":"object"}}}],`
	hello   = `"model":"small","messages":[{"role":"user","content":"hello"}]`
)

// whole asks for an answer at once, streamed for one piece by piece, which is put together. Both forget what is random.
func whole(tb testing.TB, url, more string) (wireAnswer, []byte) {
	status, body := post(tb, url, "{"+more+hello+"}")
	require.Equal(tb, http.StatusOK, status, string(body))
	var a wireAnswer
	require.NoError(tb, json.Unmarshal(body, &a))
	a.ID, a.Object, a.Created = "", "", 0
	for _, c := range a.Choices {
		for i := range c.Message.ToolCalls {
			require.NotEmpty(tb, c.Message.ToolCalls[i].ID)
			c.Message.ToolCalls[i].ID = ""
		}
	}
	return a, body
}

func streamed(tb testing.TB, url, more string) (a wireAnswer, contents []string) {
	status, body := post(tb, url, `{"stream":true,"stream_options":{"include_usage":true},`+more+hello+"}")
	require.Equal(tb, http.StatusOK, status, string(body))
	all := events(tb, body)
	require.Equal(tb, "[DONE]", all[len(all)-1])
	for _, data := range all[:len(all)-1] {
		var piece wireAnswer
		require.NoError(tb, json.Unmarshal([]byte(data), &piece))
		require.Equal(tb, "chat.completion.chunk", piece.Object)
		a.Model = piece.Model
		if piece.Usage != nil {
			require.Empty(tb, piece.Choices)
			a.Usage = piece.Usage
		}
		for _, c := range piece.Choices {
			for len(a.Choices) <= c.Index {
				a.Choices = append(a.Choices, wireChoice{Index: len(a.Choices), Message: &wireSaid{Content: new(string)}})
			}
			to := &a.Choices[c.Index]
			require.Nil(tb, to.Finish, "nothing follows the end")
			to.Message.Role += c.Delta.Role
			*to.Message.Content += c.Delta.Content
			to.Message.Reasoning += c.Delta.Reasoning
			for _, call := range c.Delta.ToolCalls {
				require.Equal(tb, len(to.Message.ToolCalls), *call.Index)
				require.NotEmpty(tb, call.ID)
				call.Index, call.ID = nil, ""
				to.Message.ToolCalls = append(to.Message.ToolCalls, call)
			}
			to.LogProbs, to.Finish = c.LogProbs, c.Finish
			contents = append(contents, c.Delta.Content+c.Delta.Reasoning)
		}
	}
	for i, c := range a.Choices {
		if *c.Message.Content == "" && len(c.Message.ToolCalls) > 0 {
			a.Choices[i].Message.Content = nil
		}
	}
	return a, contents
}

var turns = []struct {
	name, says string
	content    string
	reasoning  string
	calls      []string
	finish     string
}{
	{"text", " The sum of 1 and 2 is 3. \n", "The sum of 1 and 2 is 3.", "", nil, "stop"},
	{"nothing", "", "", "", nil, "stop"},
	{"characters of several tokens", "日本 😀 e\u0301 café\u00a0", "日本 😀 e\u0301 café", "", nil, "stop"},
	{"thinking", "<think>\n hm\n</think>\n\nyes", "yes", "hm", nil, "stop"},
	{"two thoughts", "a<think>b</think> c<think> </think><think> d </think>", "a c", "b\nd", nil, "stop"},
	{"a thought without end", "<think>on and on <tool_call>get_sum{}", "", "on and on <tool_call>get_sum{}", nil, "stop"},
	{"a call", `<tool_call>get_sum{"a":1}</tool_call>`, "", "", []string{`get_sum{"a":1}`}, "tool_calls"},
	{"two calls, text between", "x\n<tool_call>get_sum{}</tool_call> y <tool_call>\n{\"name\": \"get_sum\", \"arguments\": {\"b\": \"é\"}}\n</tool_call>\n", "x\n y", "",
		[]string{`get_sum{}`, `get_sum{"b": "é"}`}, "tool_calls"},
	{"malformed", `so <tool_call>get_sum{"a":</tool_call> then`, "so  then\n<tool_call>get_sum{\"a\":</tool_call>", "", nil, "stop"},
	{"malformed and not", `<tool_call>no</tool_call><tool_call>get_sum{}</tool_call>`, "<tool_call>no</tool_call>", "", []string{`get_sum{}`}, "tool_calls"},
	{"unclosed", `<tool_call>get_sum{"a":1}`, `<tool_call>get_sum{"a":1}`, "", nil, "stop"},
	{"what is no tag", "if a <tool and b </tool_call> < c <thin", "if a <tool and b </tool_call> < c <thin", "", nil, "stop"},
	{"bare JSON", `{"name": "get_sum", "arguments": {}}`, `{"name": "get_sum", "arguments": {}}`, "", nil, "stop"},
}

func TestStreamingIsTheSame(t *testing.T) {
	for _, c := range turns {
		t.Run(c.name, func(t *testing.T) {
			url := start(t, newParrot(t, always(c.says)))
			got, _ := whole(t, url, oneTool+`"n":2,"logprobs":true,`)
			require.Len(t, got.Choices, 2)
			m := got.Choices[1].Message
			content, calls := "", []string(nil)
			if m.Content != nil {
				content = *m.Content
			}
			for _, call := range m.ToolCalls {
				calls = append(calls, call.Function.Name+call.Function.Arguments)
			}
			require.Equal(t, c.content, content)
			require.Equal(t, c.reasoning, m.Reasoning)
			require.Equal(t, c.calls, calls)
			require.Equal(t, c.finish, *got.Choices[1].Finish)

			pieces, contents := streamed(t, url, oneTool+`"n":2,"logprobs":true,`)
			require.Equal(t, got, pieces)
			for _, s := range contents {
				require.True(t, utf8.ValidString(s))
				require.NotContains(t, s, "\uFFFD")
			}

			var sum openai.ChatCompletionAccumulator
			answers := client(url).Chat.Completions.NewStreaming(t.Context(), openai.ChatCompletionNewParams{Model: "small",
				Tools: []openai.ChatCompletionToolUnionParam{getSum}, Messages: []openai.ChatCompletionMessageParamUnion{openai.UserMessage("hello")}})
			for answers.Next() {
				require.True(t, sum.AddChunk(answers.Current()))
			}
			require.NoError(t, answers.Err())
			require.Equal(t, c.content, sum.Choices[0].Message.Content)
			require.Len(t, sum.Choices[0].Message.ToolCalls, len(c.calls))
			for i, call := range sum.Choices[0].Message.ToolCalls {
				require.Equal(t, c.calls[i], call.Function.Name+call.Function.Arguments)
			}
			require.Equal(t, c.finish, sum.Choices[0].FinishReason)
		})
	}
}

// TestContentComesAsItIsSaid holds the engine until the client has seen what was said.
func TestContentComesAsItIsSaid(t *testing.T) {
	p := newParrot(t, always("<think>hm</think>one <tool_call>get_sum{}</tool_call>"))
	said := []string{"h", "m", "o", "n", "e"}
	seen := make(chan string)
	p.hold = func(ctx context.Context, n int) error {
		if n < 2 || n == 4 || n > 7 { // tags are tokens; of what follows "one " nothing can be told yet
			return nil
		}
		select {
		case got := <-seen:
			if got != said[0] {
				return fmt.Errorf("the client saw %q, want %q", got, said[0])
			}
			said = said[1:]
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	answers := client(start(t, p)).Chat.Completions.NewStreaming(ctx, openai.ChatCompletionNewParams{Model: "small",
		Tools: []openai.ChatCompletionToolUnionParam{getSum}, Messages: []openai.ChatCompletionMessageParamUnion{openai.UserMessage("hello")}})
	for answers.Next() {
		d := answers.Current().Choices[0].Delta
		text := d.Content
		if f, ok := d.JSON.ExtraFields["reasoning_content"]; ok {
			require.NoError(t, json.Unmarshal([]byte(f.Raw()), &text))
		}
		if text != "" {
			select {
			case seen <- text:
			case <-ctx.Done():
			}
		}
	}
	require.NoError(t, answers.Err())
	require.Empty(t, said)
}

// TestPreview cuts random turns between any two characters.
func TestPreview(t *testing.T) {
	parts := []string{"<think>", "</think>", "<tool_call>", "</tool_call>", "<", "<t", "think>", "tool_call>", `get{"a":1}`, " ", "\n", "\u3000", "x", "é", `{"name":"`}
	r := rand.New(rand.NewPCG(1, 2))
	for range 20000 {
		var b strings.Builder
		for range r.IntN(12) {
			b.WriteString(parts[r.IntN(len(parts))])
		}
		text, thinking, calls := b.String(), r.IntN(2) == 0, r.IntN(3) > 0
		want := read(text, nil, thinking, calls)
		p := preview{thinking: thinking, calls: calls}
		for rest := text; rest != ""; {
			n := 1 + r.IntN(len(rest))
			for !utf8.ValidString(rest[:n]) {
				n++
			}
			p.add(rest[:n])
			rest = rest[n:]
			require.True(t, strings.HasPrefix(want.content, p.content.String()), "%q: %q is no beginning of %q", text, p.content.String(), want.content)
			require.True(t, strings.HasPrefix(want.reasoning, p.reasoning.String()), "%q: %q is no beginning of %q", text, p.reasoning.String(), want.reasoning)
		}
		if !calls || !strings.Contains(text, callStart) {
			p.end()
			found := toolcall.Reader{Thinking: thinking}.Read(text)
			require.Equal(t, want.content, p.content.String(), "%q", text)
			require.Equal(t, want.reasoning, p.reasoning.String(), "%q", text)
			if !strings.Contains(text, callStart) {
				require.Equal(t, []string{found.Text, found.Reasoning}, []string{want.content, want.reasoning}, "%q", text)
			}
		}
	}
}

func TestWithoutToolsCallsAreText(t *testing.T) {
	p := newParrot(t, always(`<think>t</think>x <tool_call>get_sum{}</tool_call>`))
	url := start(t, p)
	for _, more := range []string{"", oneTool + `"tool_choice":"none",`} {
		got, _ := whole(t, url, more)
		require.Equal(t, `x <tool_call>get_sum{}</tool_call>`, *got.Choices[0].Message.Content)
		require.Equal(t, "t", got.Choices[0].Message.Reasoning)
		require.Equal(t, "stop", *got.Choices[0].Finish)
		pieces, _ := streamed(t, url, more)
		require.Equal(t, got, pieces)
	}
	for _, prompt := range p.prompts {
		require.NotContains(t, prompt, "get_sum", "who may not call a tool is not told of it")
	}
}

func TestParallelCallsOff(t *testing.T) {
	url := start(t, newParrot(t, always(`<tool_call>get_sum{"a":1}</tool_call><tool_call>get_sum{"a":2}</tool_call>`)))
	got, _ := whole(t, url, oneTool+`"parallel_tool_calls":false,`)
	require.Len(t, got.Choices[0].Message.ToolCalls, 1)
	require.Equal(t, `{"a":1}`, got.Choices[0].Message.ToolCalls[0].Function.Arguments)
}

func TestStopStrings(t *testing.T) {
	long := strings.Repeat("the sum ", 500)
	for _, c := range []struct{ name, stop, says, want, finish string }{
		{"within a token", `"m"`, "the sum of" + long, "the su", "stop"},
		{"across tokens", `"m of t"`, "the sum of the numbers" + long, "the su", "stop"},
		{"not after all", `["the numbers are"]`, "the numbers is", "the numbers is", "stop"},
		{"the first to be complete", `["sum of", "m", "xyz"]`, "the sum of", "the su", "stop"},
		{"of several at once the longest", `["of", "m of", "f"]`, "the sum of", "the su", "stop"},
		{"at the end", `"the"`, "sum the", "sum", "stop"},
		{"a part of it at the end", `"then"`, "sum the", "sum the", "stop"},
		{"characters of several tokens", `"本"`, "日本語" + long, "日", "stop"},
		{"in a call", `"\"b\""`, `<tool_call>get_sum{"a":1,"b":2}</tool_call>` + long, `<tool_call>get_sum{"a":1,`, "stop"},
		{"after a call", `"</tool_call>"`, `<tool_call>get_sum{"a":1}</tool_call>`, `<tool_call>get_sum{"a":1}`, "stop"},
		{"behind a call", `"\n"`, "<tool_call>get_sum{}</tool_call>\nthe", "", "tool_calls"},
		{"at the beginning", `"t"`, "the", "", "stop"},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := newParrot(t, always(c.says))
			url := start(t, p)
			more := oneTool + `"stop":` + c.stop + `,"max_tokens":5000,`
			got, _ := whole(t, url, more)
			if m := got.Choices[0].Message; c.want != "" || m.Content != nil {
				require.Equal(t, c.want, *m.Content)
			}
			require.Equal(t, c.finish, *got.Choices[0].Finish)
			pieces, _ := streamed(t, url, more)
			require.Equal(t, got, pieces)

			withProbs, _ := whole(t, url, more+`"logprobs":true,`)
			require.Equal(t, got.Usage, withProbs.Usage, "the tokens up to the stop string count, no matter how many were sampled")
			require.Equal(t, got.Choices[0].Message, withProbs.Choices[0].Message)
			require.Len(t, withProbs.Choices[0].LogProbs.Content, got.Usage.Completion)
		})
	}
}

// TestStopStringEndsTheSampling holds the engine until the server gives it up.
func TestStopStringEndsTheSampling(t *testing.T) {
	p := newParrot(t, always("one two three four five six"))
	p.hold = func(ctx context.Context, n int) error {
		if n < 10 {
			return nil
		}
		<-ctx.Done()
		return ctx.Err()
	}
	got, _ := whole(t, start(t, p), `"stop":" two",`)
	require.Equal(t, "one", *got.Choices[0].Message.Content)
	require.ErrorIs(t, p.finished[0], context.Canceled)
}

func TestCutWithinACharacter(t *testing.T) {
	url := start(t, newParrot(t, always("x本")))
	for n, want := range map[int]string{1: "x", 2: "x\uFFFD", 3: "x\uFFFD", 4: "x本"} {
		more := fmt.Sprintf(`"max_tokens":%d,`, n)
		got, _ := whole(t, url, more)
		require.Equal(t, want, *got.Choices[0].Message.Content)
		require.Equal(t, "length", *got.Choices[0].Finish)
		require.Equal(t, n, got.Usage.Completion)
		pieces, _ := streamed(t, url, more)
		require.Equal(t, got, pieces)
	}
}

func TestCutWithinACall(t *testing.T) {
	url := start(t, newParrot(t, always(`<tool_call>get_sum{}</tool_call><tool_call>get_sum{"a":1}</tool_call>`)))
	got, _ := whole(t, url, oneTool+`"max_tokens":12,`)
	require.Equal(t, "length", *got.Choices[0].Finish)
	require.Len(t, got.Choices[0].Message.ToolCalls, 1)
	require.True(t, strings.HasPrefix(*got.Choices[0].Message.Content, "<tool_call>g"), *got.Choices[0].Message.Content)
	pieces, _ := streamed(t, url, oneTool+`"max_tokens":12,`)
	require.Equal(t, got, pieces)
}

func TestLogProbs(t *testing.T) {
	got, body := whole(t, start(t, newParrot(t, always("é!"))), `"logprobs":true,"top_logprobs":0,`)
	require.Equal(t, 4, got.Usage.Completion)
	l := got.Choices[0].LogProbs.Content
	require.Equal(t, []wireLogProb{{"\uFFFD", 0, nil, []struct{}{}}, {"\uFFFD", -0.125, nil, []struct{}{}}, {"!", -0.25, []int{33}, []struct{}{}},
		{"<|end|>", -0.375, []int{60, 124, 101, 110, 100, 124, 62}, []struct{}{}}}, l)
	require.Contains(t, string(body), `"bytes":null,"top_logprobs":[]`)
	got, _ = whole(t, start(t, newParrot(t, always("é!"))), "")
	require.Nil(t, got.Choices[0].LogProbs)
}

func TestSeeds(t *testing.T) {
	p := newParrot(t, always("x"))
	url := start(t, p)
	seeds := func(more string) []uint64 {
		p.asked = nil
		whole(t, url, more)
		var out []uint64
		for _, r := range p.asked {
			out = append(out, r.Seed)
		}
		slices.Sort(out)
		return slices.Compact(out)
	}
	require.Equal(t, []uint64{5}, seeds(`"seed":5,`))
	many := seeds(`"seed":5,"n":8,`)
	require.Len(t, many, 8)
	require.Contains(t, many, uint64(5), "the first choice is the one that n = 1 gives")
	require.Equal(t, many, seeds(`"seed":5,"n":8,`))
	require.NotEqual(t, seeds(""), seeds(""))
}

func TestSamplingOptions(t *testing.T) {
	p := newParrot(t, always("x"))
	url := start(t, p)
	whole(t, url, `"seed":1,`)
	whole(t, url, `"seed":-1,"temperature":0.25,"top_p":0.5,"top_k":3,"min_p":0.125,"max_tokens":7,"unknown":{"x":[]},`)
	whole(t, url, `"seed":1,"temperature":1e-300,"top_p":null,"top_k":-1,"max_tokens":7,"max_completion_tokens":9,"stop":null,"tool_choice":null,"tools":null,`)
	for i := range p.asked {
		p.asked[i].Prompt, p.asked[i].Each = nil, nil
	}
	require.Equal(t, []engine.Request{
		{MaxTokens: 2048, Temperature: 1, TopP: 1, Seed: 1},
		{MaxTokens: 7, Temperature: 0.25, TopP: 0.5, TopK: 3, MinP: 0.125, Seed: 1<<64 - 1},
		{MaxTokens: 9, Temperature: 0, TopP: 1, Seed: 1},
	}, p.asked)
}

func TestMessages(t *testing.T) {
	p := newParrot(t, always("x"))
	url := start(t, p)
	status, body := post(t, url, `{"model":"small","messages":[{"role":"developer","content":"d"},{"role":"user","content":[{"type":"text","text":"a"},{"type":"text","text":"<|end|>"}],"name":"me"},
		{"role":"assistant","content":null,"reasoning_content":"r","tool_calls":[{"id":"1","type":"function","function":{"name":"f","arguments":"{\"z\": 1, \"a\": 2}"}},{"id":"2","function":{"name":"g","arguments":""}}]},
		{"role":"tool","tool_call_id":"2","content":"two"},{"role":"tool","tool_call_id":"1","content":[{"type":"text","text":"one"}]},{"role":"assistant","content":""},{"role":"user","content":""}]}`)
	require.Equal(t, http.StatusOK, status, string(body))
	require.Equal(t, `<|system|>d<|end|><|user|>a<|end|><|end|><|assistant|><think>r</think><tool_call>f{"z":1,"a":2}</tool_call><tool_call>g{}</tool_call><|end|>`+
		`<|tool|>two<|end|><|tool|>one<|end|><|assistant|><|end|><|user|><|end|><|assistant|>`, p.prompts[0])
	stops := 0
	for _, token := range p.asked[0].Prompt {
		if token == p.Codec.Stops()[0] {
			stops++
		}
	}
	require.Equal(t, 7, stops, "what somebody wrote is no control token")
}

func TestRefusals(t *testing.T) {
	p := newParrot(t, always("x"))
	url := start(t, p)
	message := func(m string) string { return `{"model":"small","messages":[{"role":"user","content":"u"},` + m + `]}` }
	called := `{"role":"assistant","tool_calls":[{"id":"1","function":{"name":"f","arguments":"{}"}}]},`
	for _, c := range []struct {
		body, param, says string
	}{
		{``, "", "JSON"},
		{`{`, "", "JSON"},
		{`[]`, "", "want an object"},
		{`{"model":"small","messages":[{"role":"user","content":"` + "\xff" + `"}]}`, "messages[0].content", "UTF-8"},
		{`{` + hello + `} {}`, "", "JSON"},
		{`{"messages":[]}`, "model", "small"},
		{`{"model":7,"messages":[]}`, "model", "a string"},
		{`{"model":"small"}`, "messages", "at least one"},
		{`{"model":"small","messages":[]}`, "messages", "at least one"},
		{`{"model":"small","messages":"hi"}`, "messages", "a list"},
		{`{"model":"small","messages":[null]}`, "messages[0].role", "not"},
		{`{"model":"small","Messages":[{"role":"user","content":"u"}]}`, "messages", "at least one"},
		{message(`{"role":"x","content":"c"}`), "messages[1].role", `"x"`},
		{message(`{"role":"user","content":7}`), "messages[1].content", "a string"},
		{message(`{"role":"user","content":{"type":"text","text":"x"}}`), "messages[1].content", "a string"},
		{message(`{"role":"user"}`), "messages[1].content", "missing"},
		{message(`{"role":"assistant"}`), "messages[1].content", "missing"},
		{message(`{"role":"user","content":[{"type":"image_url","image_url":{"url":"x"}}]}`), "messages[1].content[0].type", "image_url"},
		{message(`{"role":"user","content":[{"type":"text"}]}`), "messages[1].content[0].text", "missing"},
		{message(`{"role":"user","content":["x"]}`), "messages[1].content", "text parts"},
		{message(`{"role":"user","content":"a","content":"b"}`), "messages[1].content", "twice"},
		{message(`{"role":"user","content":"a","tool_calls":[{"id":"1"}]}`), "messages[1].tool_calls", "assistant"},
		{message(`{"role":"tool","content":"c"}`), "messages[1].tool_call_id", "no call"},
		{message(`{"role":"tool","content":"c","tool_call_id":"1"}`), "messages[1].tool_call_id", `"1"`},
		{message(called + `{"role":"tool","tool_call_id":"1"}`), "messages[2].content", "missing"},
		{message(`{"role":"assistant","tool_calls":[{"function":{"name":"f","arguments":"{}"}}]}`), "messages[1].tool_calls[0].id", "missing"},
		{message(`{"role":"assistant","tool_calls":[{"id":"1","function":{"arguments":"{}"}}]}`), "messages[1].tool_calls[0].function.name", "missing"},
		{message(`{"role":"assistant","tool_calls":[{"id":"1","type":"custom"}]}`), "messages[1].tool_calls[0].type", "custom"},
		{message(`{"role":"assistant","tool_calls":[{"id":"1","function":{"name":"f","arguments":"{\"a\":"}}]}`), "messages[1].tool_calls[0].function.arguments", "object"},
		{message(`{"role":"assistant","tool_calls":[{"id":"1","function":{"name":"f","arguments":"[]"}}]}`), "messages[1].tool_calls[0].function.arguments", "object"},
		{message(`{"role":"assistant","tool_calls":[{"id":"1","function":{"name":"f","arguments":"{\"a\":1,\"a\":2}"}}]}`), "messages[1].tool_calls[0].function.arguments", "object"},
		{message(`{"role":"assistant","tool_calls":[{"id":"1","function":{"name":"f","arguments":{}}}]}`), "messages[1].tool_calls[0].function.arguments", "a string"},
		{`{"tools":[{"type":"x"}],` + hello + `}`, "tools[0].type", `"x"`},
		{`{"tools":[{"type":"function","function":{}}],` + hello + `}`, "tools[0].function.name", "missing"},
		{`{"tools":[{"type":"function","function":{"name":"f","parameters":[]}}],` + hello + `}`, "tools[0].function.parameters", "object"},
		{`{"tools":[{"type":"function","function":{"name":"f"}},{"type":"function","function":{"name":"f"}}],` + hello + `}`, "tools[1].function.name", "another"},
		{`{"tool_choice":"required",` + oneTool + hello + `}`, "tool_choice", "forced"},
		{`{"tool_choice":{"type":"function","function":{"name":"get_sum"}},` + oneTool + hello + `}`, "tool_choice", "forced"},
		{`{"tool_choice":"any",` + hello + `}`, "tool_choice", `"any"`},
		{`{"tool_choice":7,` + hello + `}`, "tool_choice", "auto or none"},
		{`{"temperature":-1,` + hello + `}`, "temperature", "-1"},
		{`{"temperature":2.5,` + hello + `}`, "temperature", "2.5"},
		{`{"temperature":"hot",` + hello + `}`, "temperature", "a number"},
		{`{"temperature":1e999,` + hello + `}`, "temperature", "a number"},
		{`{"temperature":1,"temperature":0,` + hello + `}`, "temperature", "twice"},
		{`{"unknown":{"a":1,"a":2},` + hello + `}`, "unknown.a", "twice"},
		{`{"top_p":0,` + hello + `}`, "top_p", "0"},
		{`{"top_p":1.5,` + hello + `}`, "top_p", "1.5"},
		{`{"min_p":-0.5,` + hello + `}`, "min_p", "-0.5"},
		{`{"min_p":2,` + hello + `}`, "min_p", "2"},
		{`{"top_k":-2,` + hello + `}`, "top_k", "-2"},
		{`{"top_k":1.5,` + hello + `}`, "top_k", "an integer"},
		{`{"max_tokens":-1,` + hello + `}`, "max_tokens", "-1"},
		{`{"max_tokens":0,` + hello + `}`, "max_tokens", "0"},
		{`{"max_completion_tokens":-5,"max_tokens":4,` + hello + `}`, "max_completion_tokens", "-5"},
		{`{"max_tokens":9999999999,` + hello + `}`, "max_tokens", "9999999999"},
		{`{"seed":"x",` + hello + `}`, "seed", "an integer"},
		{`{"n":0,` + hello + `}`, "n", "1 to 8"},
		{`{"n":9,` + hello + `}`, "n", "1 to 8"},
		{`{"stop":7,` + hello + `}`, "stop", "a string"},
		{`{"stop":[7],` + hello + `}`, "stop", "a string"},
		{`{"stop":["x",""],` + hello + `}`, "stop", "empty"},
		{`{"stop":[` + strings.Repeat(`"x",`, 16) + `"x"],` + hello + `}`, "stop", "at most 16"},
		{`{"logprobs":1,` + hello + `}`, "logprobs", "true or false"},
		{`{"logprobs":true,"top_logprobs":3,` + hello + `}`, "top_logprobs", "3"},
		{`{"stream":"yes",` + hello + `}`, "stream", "true or false"},
		{`{"stream_options":{"include_usage":true},` + hello + `}`, "stream_options", "streamed"},
		{`{"response_format":{"type":"json_object"},` + hello + `}`, "response_format", "json_object"},
		{`{"frequency_penalty":0.5,` + hello + `}`, "frequency_penalty", "not supported"},
		{`{"presence_penalty":0.5,` + hello + `}`, "presence_penalty", "not supported"},
		{`{"logit_bias":{"5":1},` + hello + `}`, "logit_bias", "not supported"},
		{`{` + strings.Repeat(`"x":[`, 1) + strings.Repeat("[", 20000), "", "JSON"},
	} {
		status, body := post(t, url, c.body)
		require.Equal(t, http.StatusBadRequest, status, "%.200s: %s", c.body, body)
		var e struct {
			Error struct {
				Message, Type string
				Param, Code   *string
			}
		}
		require.NoError(t, json.Unmarshal(body, &e))
		param := ""
		if e.Error.Param != nil {
			param = *e.Error.Param
		}
		require.Equal(t, "invalid_request_error", e.Error.Type)
		if c.says != "JSON" {
			require.Equal(t, c.param, param, "%.200s: %s", c.body, e.Error.Message)
		}
		require.Contains(t, e.Error.Message, c.says, c.body)
		require.Contains(t, e.Error.Message, c.param, c.body)
	}
	require.Empty(t, p.asked)
}

func TestStatuses(t *testing.T) {
	p := newParrot(t, always("x"))
	url := start(t, p)
	status, body := post(t, url, `{"model":"gpt","messages":[{"role":"user","content":"u"}]}`)
	require.Equal(t, http.StatusNotFound, status)
	require.Contains(t, string(body), `"param":"model","code":"model_not_found"`)
	status, body = post(t, url, `{"x":"`+strings.Repeat("x", maxBody)+`",`+hello+"}")
	require.Equal(t, http.StatusRequestEntityTooLarge, status, string(body[:min(200, len(body))]))
	require.Contains(t, string(body), `"type":"invalid_request_error"`)

	for _, c := range []struct {
		method, path string
		status       int
		says         string
	}{
		{"GET", "/health", http.StatusOK, `"ok"`},
		{"GET", "/v1/models", http.StatusOK, `"id":"small"`},
		{"POST", "/v1/models", http.StatusMethodNotAllowed, `"error"`},
		{"GET", "/v1/chat/completions", http.StatusMethodNotAllowed, `"error"`},
		{"POST", "/v1/completions", http.StatusNotFound, `"error"`},
	} {
		req, err := http.NewRequestWithContext(t.Context(), c.method, url+c.path, nil)
		require.NoError(t, err)
		resp, err := http.DefaultClient.Do(req)
		require.NoError(t, err)
		body, err := io.ReadAll(resp.Body)
		require.NoError(t, err)
		resp.Body.Close()
		require.Equal(t, c.status, resp.StatusCode, c.path)
		require.Contains(t, string(body), c.says)
		require.Equal(t, "application/json", resp.Header.Get("Content-Type"))
	}
}

func TestEngineErrors(t *testing.T) {
	var fails error
	p := newParrot(t, func(string, engine.Request) (string, error) { return "one two", fails })
	url := start(t, p)
	for _, more := range []string{`"n":2,`, `"stream":true,"n":2,`} {
		fails = fmt.Errorf("generate: %w", engine.ErrTooLong)
		status, body := post(t, url, "{"+more+hello+"}")
		require.Equal(t, http.StatusBadRequest, status)
		require.Contains(t, string(body), `"param":"messages","code":"context_length_exceeded"`)
		fails = errors.New("no memory")
		status, body = post(t, url, "{"+more+hello+"}")
		require.Equal(t, http.StatusInternalServerError, status)
		require.JSONEq(t, `{"error":{"message":"no memory","type":"server_error","param":null,"code":null}}`, string(body))
	}

	fails = nil
	p.hold = func(_ context.Context, n int) error {
		if n == 4 {
			return errors.New("lost")
		}
		return nil
	}
	status, _ := post(t, url, "{"+hello+"}")
	require.Equal(t, http.StatusInternalServerError, status)
	answers := client(url).Chat.Completions.NewStreaming(t.Context(), openai.ChatCompletionNewParams{Model: "small", Messages: []openai.ChatCompletionMessageParamUnion{openai.UserMessage("hello")}})
	said := ""
	for answers.Next() {
		said += answers.Current().Choices[0].Delta.Content
	}
	require.NotEmpty(t, said)
	require.ErrorContains(t, answers.Err(), "lost", "who reads a stream learns that it broke off")

	// A template that refuses a conversation.
	text, err := toolcall.NewTemplate(`{% for m in messages %}{% if m.role == 'tool' %}{{ raise_exception('no tools here') }}{% endif %}<|{{ m.role }}|>{{ m.content }}<|end|>{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}`,
		toolcall.Config{EOS: "<|end|>"})
	require.NoError(t, err)
	p.Codec, err = toolcall.NewCodec(text, p.tok)
	require.NoError(t, err)
	status, body := post(t, url, "{"+oneTool+hello+"}")
	require.Equal(t, http.StatusBadRequest, status)
	require.Contains(t, string(body), "shows no tools")
}

// TestClientGone hangs up on a request that would take for ever.
func TestClientGone(t *testing.T) {
	for _, more := range []string{"", `"stream":true,`, `"n":3,`, `"stop":"zz","logprobs":true,`} {
		p := newParrot(t, always("one two three"))
		began := make(chan struct{}, 3)
		p.hold = func(ctx context.Context, n int) error {
			if n < 4 {
				return nil
			}
			began <- struct{}{}
			<-ctx.Done()
			return ctx.Err()
		}
		handled := make(chan struct{})
		h := New(p, "small", Options{})
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			defer close(handled)
			h.ServeHTTP(w, r)
		}))
		ctx, cancel := context.WithCancel(t.Context())
		req, err := http.NewRequestWithContext(ctx, "POST", s.URL+"/v1/chat/completions", strings.NewReader("{"+more+hello+"}"))
		require.NoError(t, err)
		go func() {
			<-began
			cancel()
		}()
		resp, err := http.DefaultClient.Do(req)
		if err == nil {
			_, err = io.ReadAll(resp.Body)
			resp.Body.Close()
		}
		require.ErrorIs(t, err, context.Canceled)
		<-handled
		for _, err := range p.finished {
			require.ErrorIs(t, err, context.Canceled)
		}
		require.Len(t, p.finished, len(p.asked), "nothing goes on behind the handler")
		s.Close()
	}
}

func TestGivenUp(t *testing.T) {
	for _, more := range []string{"", `"stream":true,`} {
		for _, after := range []int{0, 5} {
			ctx, cancel := context.WithCancel(t.Context())
			p := newParrot(t, always("one two three"))
			w := httptest.NewRecorder()
			p.hold = func(ctx context.Context, n int) error {
				if n < after {
					return nil
				}
				cancel() // as a server that goes down does
				<-ctx.Done()
				return ctx.Err()
			}
			New(p, "small", Options{}).ServeHTTP(w, httptest.NewRequestWithContext(ctx, "POST", "/v1/chat/completions", strings.NewReader("{"+more+hello+"}")))
			if w.Code != http.StatusOK {
				require.Equal(t, http.StatusServiceUnavailable, w.Code)
			} else {
				require.NotEmpty(t, more, "only a stream that has begun has another status")
				require.NotContains(t, w.Body.String(), "DONE")
			}
			require.Contains(t, w.Body.String(), `{"error":{"message":"the request was given up","type":"server_error","param":null,"code":null}}`)
		}
	}
}

// brokenWriter is a client whose connection is lost, though nobody has noticed.
type brokenWriter struct{ *httptest.ResponseRecorder }

func (brokenWriter) Write([]byte) (int, error) { return 0, io.ErrClosedPipe }

func TestLostConnection(t *testing.T) {
	p := newParrot(t, always("one two three"))
	p.hold = func(ctx context.Context, n int) error {
		if n < 5 {
			return nil
		}
		<-ctx.Done()
		return ctx.Err()
	}
	New(p, "small", Options{}).ServeHTTP(brokenWriter{httptest.NewRecorder()}, httptest.NewRequest("POST", "/v1/chat/completions", strings.NewReader(`{"stream":true,"n":2,`+hello+"}")))
	require.Len(t, p.finished, 2)
	require.ErrorIs(t, p.finished[0], context.Canceled)
}

// slowWriter is a client that does not read until it is let.
type slowWriter struct {
	*httptest.ResponseRecorder
	let chan struct{}
}

func (w slowWriter) Write(b []byte) (int, error) {
	<-w.let
	return w.ResponseRecorder.Write(b)
}

func TestSlowClientHoldsUpNobody(t *testing.T) {
	p := newParrot(t, always("one two three"))
	sampled := make(chan struct{})
	p.hold = func(_ context.Context, n int) error {
		if n == 12 {
			close(sampled)
		}
		return nil
	}
	w := slowWriter{httptest.NewRecorder(), make(chan struct{})}
	handled := make(chan struct{})
	go func() {
		defer close(handled)
		New(p, "small", Options{}).ServeHTTP(w, httptest.NewRequest("POST", "/v1/chat/completions", strings.NewReader(`{"stream":true,`+hello+"}")))
	}()
	<-sampled // though nothing was read
	close(w.let)
	<-handled
	require.Contains(t, w.Body.String(), "[DONE]")
}

func TestManyAtOnce(t *testing.T) {
	p := newParrot(t, func(prompt string, _ engine.Request) (string, error) {
		_, q, _ := strings.Cut(prompt, "<|user|>")
		q, _, _ = strings.Cut(q, "<|end|>")
		return "It is " + q + "!", nil
	})
	var ready sync.WaitGroup
	ready.Add(16)
	p.hold = func(_ context.Context, n int) error { // none is done before all have begun
		if n == 0 {
			ready.Done()
			ready.Wait()
		}
		return nil
	}
	url := start(t, p)
	var all sync.WaitGroup
	for i := range 16 {
		all.Go(func() {
			stream := i%2 == 0
			resp, err := http.Post(url+"/v1/chat/completions", "", strings.NewReader(fmt.Sprintf(`{"stream":%v,"model":"small","messages":[{"role":"user","content":"%d"}]}`, stream, i)))
			if err != nil {
				t.Error(err)
				return
			}
			defer resp.Body.Close()
			body, _ := io.ReadAll(resp.Body)
			said := ""
			if stream {
				for line := range strings.Lines(string(body)) {
					var piece wireAnswer
					if json.Unmarshal([]byte(strings.TrimPrefix(line, "data: ")), &piece) == nil {
						said += piece.Choices[0].Delta.Content
					}
				}
			} else {
				var a wireAnswer
				if json.Unmarshal(body, &a) == nil && len(a.Choices) == 1 {
					said = *a.Choices[0].Message.Content
				}
			}
			if want := fmt.Sprintf("It is %d!", i); said != want {
				t.Errorf("%q, want %q", said, want)
			}
		})
	}
	all.Wait()
}

// TestThinkingPrompt has a template that begins the thinking block.
func TestThinkingPrompt(t *testing.T) {
	p := newParrot(t, always("hm</think>yes"))
	text, err := toolcall.NewTemplate("{% for m in messages %}<|{{ m.role }}|>{% if m.role == 'assistant' %}<think>\n{{ m.reasoning_content or '' }}</think>{% endif %}{{ m.content }}<|end|>{% endfor %}"+
		"{% if add_generation_prompt %}<|assistant|><think>\n{% endif %}", toolcall.Config{EOS: "<|end|>"})
	require.NoError(t, err)
	p.Codec, err = toolcall.NewCodec(text, p.tok)
	require.NoError(t, err)
	url := start(t, p)
	got, _ := whole(t, url, "")
	require.Equal(t, []string{"hm", "yes"}, []string{got.Choices[0].Message.Reasoning, *got.Choices[0].Message.Content})
	pieces, _ := streamed(t, url, "")
	require.Equal(t, got, pieces)
}

// FuzzRequest sends anything: what comes back is an answer or an error in the API's form.
func FuzzRequest(f *testing.F) {
	p := newParrot(f, always(`x<tool_call>get_sum{}</tool_call>`))
	h := New(p, "small", Options{})
	for _, seed := range []string{"{" + hello + "}", "{" + oneTool + hello + "}", `{"stream":true,"stop":["x","yz"],"n":2,"logprobs":true,` + hello + "}",
		`{"model":"small","messages":[{"role":"assistant","content":[{"type":"text","text":"x"}],"tool_calls":[{"id":"1","function":{"name":"f","arguments":"{}"}}]},{"role":"tool","tool_call_id":"1","content":"c"}]}`} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest("POST", "/v1/chat/completions", bytes.NewReader(body)))
		switch w.Code {
		case http.StatusOK, http.StatusBadRequest, http.StatusNotFound:
		default:
			t.Fatalf("status %d: %s", w.Code, w.Body)
		}
		if w.Header().Get("Content-Type") == "application/json" && !json.Valid(w.Body.Bytes()) {
			t.Fatalf("no JSON: %s", w.Body)
		}
	})
}
