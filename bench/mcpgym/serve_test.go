package main

import (
	"bufio"
	"bytes"
	"context"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/option"
	"github.com/stretchr/testify/require"

	"github.com/mcpgym/mcpgym/policies/bpe"
	"github.com/mcpgym/mcpgym/policies/engine"
	"github.com/mcpgym/mcpgym/policies/lm"
	"github.com/mcpgym/mcpgym/policies/toolcall"
)

// checkpoint makes a folder with a small model of random weights, which talks nonsense, and one with an adapter that was trained a
// step, without a model.
func checkpoint(t *testing.T) (model, adapter string) {
	dir := t.TempDir()
	tok, err := bpe.Train(slices.Values([]string{"what is the sum of 2 and 3?", "the sum is what"}), 300, toolcall.SmallTokens)
	require.NoError(t, err)
	require.NoError(t, toolcall.WriteSmall(dir, tok))
	base, err := lm.New(lm.Config{Kind: "qwen3", Hidden: 32, Intermediate: 48, Layers: 2, Heads: 4, KVHeads: 2, HeadDim: 16, Vocab: tok.Size(),
		Eps: 1e-6, Theta: 1e4, QKNorm: true, MaxPositions: 128, DType: lm.F32}, 3, lm.Options{Tokenizer: dir})
	require.NoError(t, err)
	model, adapter = filepath.Join(t.TempDir(), "nonsense"), filepath.Join(t.TempDir(), "adapter")
	require.NoError(t, base.Export(model))

	e, err := lm.Open(model, lm.Options{LoRA: &lm.LoRA{Rank: 4, Alpha: 8}})
	require.NoError(t, err)
	prompt, err := e.Open(nil, []engine.Message{{Role: "user", Text: "what is the sum?"}})
	require.NoError(t, err)
	p, err := e.Forward(t.Context(), engine.Batch{Tokens: [][]int32{prompt}})
	require.NoError(t, err)
	d := [][]float32{make([]float32, len(prompt))}
	for i := range d[0] {
		d[0][i] = -1
	}
	require.NoError(t, p.Backward(t.Context(), d, nil))
	_, err = e.Step(t.Context(), engine.Optim{Rate: 0.05, Beta1: 0.9, Beta2: 0.99, Epsilon: 1e-8})
	require.NoError(t, err)
	require.NoError(t, e.Export(adapter))
	return model, adapter
}

// serving runs the command until the end of the test, or until it is told to end, and gives the address that it prints.
func serving(t *testing.T, args ...string) (url string, end func() (code int, errOut string)) {
	ctx, cancel := context.WithCancel(t.Context())
	in, out := io.Pipe()
	var errOut bytes.Buffer
	done := make(chan int, 1)
	go func() {
		defer out.Close()
		done <- run(ctx, append([]string{"serve", "--addr", "127.0.0.1:0"}, args...), strings.NewReader(""), out, &errOut)
	}()
	lines := bufio.NewReader(in)
	first, err := lines.ReadString('\n')
	require.NoError(t, err, "it ended before it served")
	second, err := lines.ReadString('\n')
	require.NoError(t, err)
	url = regexp.MustCompile(`http://127\.0\.0\.1:\d+/v1`).FindString(first)
	require.NotEmpty(t, url, first)
	require.Contains(t, second, "curl "+url+"/chat/completions -d '{")
	code, ended := 0, false
	end = func() (int, string) {
		if !ended {
			cancel()
			code, ended = <-done, true
		}
		return code, errOut.String()
	}
	t.Cleanup(func() { end() })
	return url, end
}

func TestServe(t *testing.T) {
	model, adapter := checkpoint(t)
	url, end := serving(t, model, "--max-tokens", "30")
	ask := openai.NewClient(option.WithBaseURL(url), option.WithAPIKey("any"), option.WithMaxRetries(0))
	list, err := ask.Models.List(t.Context())
	require.NoError(t, err)
	require.Len(t, list.Data, 1)
	require.Equal(t, "nonsense", list.Data[0].ID)

	params := openai.ChatCompletionNewParams{Model: "nonsense", Seed: openai.Int(4), N: openai.Int(2), Logprobs: openai.Bool(true),
		Tools:    []openai.ChatCompletionToolUnionParam{openai.ChatCompletionFunctionTool(openai.FunctionDefinitionParam{Name: "get"})},
		Messages: []openai.ChatCompletionMessageParamUnion{openai.UserMessage("what is the sum?")}}
	got, err := ask.Chat.Completions.New(t.Context(), params)
	require.NoError(t, err)
	require.Len(t, got.Choices, 2)
	require.NotEqual(t, got.Choices[0].Message.Content, got.Choices[1].Message.Content)
	require.NotZero(t, got.Usage.CompletionTokens)
	require.LessOrEqual(t, got.Usage.CompletionTokens, int64(60))
	require.Less(t, got.Choices[0].Logprobs.Content[0].Logprob, -3.0, "a model that knows nothing")

	answers := ask.Chat.Completions.NewStreaming(t.Context(), params)
	var sum openai.ChatCompletionAccumulator
	for answers.Next() {
		require.True(t, sum.AddChunk(answers.Current()))
	}
	require.NoError(t, answers.Err())
	for i, c := range got.Choices {
		require.Equal(t, c.Message.Content, sum.Choices[i].Message.Content)
		require.Equal(t, c.FinishReason, sum.Choices[i].FinishReason)
	}

	params.Messages = []openai.ChatCompletionMessageParamUnion{openai.UserMessage(strings.Repeat("what is the sum? ", 100))}
	_, err = ask.Chat.Completions.New(t.Context(), params)
	var refused *openai.Error
	require.ErrorAs(t, err, &refused)
	require.Equal(t, "context_length_exceeded", refused.Code)
	code, errOut := end()
	require.Zero(t, code, "an interrupt is how it ends")
	require.Empty(t, errOut)

	url, _ = serving(t, model, "--adapter", adapter, "--name", "trained")
	ask = openai.NewClient(option.WithBaseURL(url), option.WithAPIKey("any"), option.WithMaxRetries(0))
	params.Model, params.MaxTokens = "trained", openai.Int(1)
	params.Messages = []openai.ChatCompletionMessageParamUnion{openai.UserMessage("what is the sum?")}
	adapted, err := ask.Chat.Completions.New(t.Context(), params)
	require.NoError(t, err)
	require.NotEqual(t, got.Choices[0].Logprobs.Content[0].Logprob, adapted.Choices[0].Logprobs.Content[0].Logprob)
}

func TestServeWrongInput(t *testing.T) {
	model, _ := checkpoint(t)
	empty := t.TempDir()
	for _, c := range []struct {
		args string
		want []string
	}{
		{"serve", []string{"1 arg"}},
		{"serve --addr 127.0.0.1:0 " + empty + "/missing", []string{"missing", "no such file"}},
		{"serve --addr 127.0.0.1:0 " + empty, []string{"config.json"}},
		{"serve " + model + " --addr nowhere", []string{"serve at nowhere"}},
		{"serve " + model + " --addr 127.0.0.1:0 --adapter " + empty, []string{"adapter_config.json"}},
		{"serve " + model + " --max-tokens 0", []string{"--max-tokens is 0"}},
		{"serve ../../policies/lm/testdata/models/qwen3-tied --addr 127.0.0.1:0", []string{"qwen3-tied", "no tokenizer.json"}},
	} {
		t.Run(c.args, func(t *testing.T) {
			code, out, errOut := call(t, "", strings.Fields(c.args)...)
			require.Equal(t, 2, code, "%s%s", out, errOut)
			require.Empty(t, out)
			require.Equal(t, 1, strings.Count(errOut, "\n"), "%s", errOut)
			for _, w := range c.want {
				require.Contains(t, errOut, w)
			}
		})
	}
}

// TestServeUntil ends a server with one request that is about to be done and one that never would be.
func TestServeUntil(t *testing.T) {
	ctx, interrupt := context.WithCancel(t.Context())
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	began, running := make(chan struct{}, 2), atomic.Int32{}
	h := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		running.Add(1)
		defer running.Add(-1)
		began <- struct{}{}
		if r.URL.Path == "/soon" {
			<-ctx.Done()
		} else {
			<-r.Context().Done()
			w.WriteHeader(http.StatusServiceUnavailable)
		}
	})
	ended := make(chan error, 1)
	go func() { ended <- serveUntil(ctx, l, h, 100*time.Millisecond) }()
	statuses := make(chan string, 2)
	for _, path := range []string{"/soon", "/never"} {
		go func() {
			resp, err := http.Get("http://" + l.Addr().String() + path)
			if err != nil {
				statuses <- err.Error()
				return
			}
			resp.Body.Close()
			statuses <- path + " " + resp.Status
		}()
		<-began
	}
	interrupt()
	require.NoError(t, <-ended)
	require.Zero(t, running.Load())
	require.ElementsMatch(t, []string{"/soon 200 OK", "/never 503 Service Unavailable"}, []string{<-statuses, <-statuses})
}
