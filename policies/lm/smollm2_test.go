package lm

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/mcpgym/mcpgym/policies/bpe"
	"github.com/mcpgym/mcpgym/policies/engine"
	"github.com/mcpgym/mcpgym/policies/lm/internal/f32"
	"github.com/mcpgym/mcpgym/policies/toolcall"
)

// smolLM2Golden was computed by transformers on the folder that testdata/torch/smollm2.sh makes.
type smolLM2Golden struct {
	SHA256 string `json:"safetensors_sha256"`
	Text   struct {
		Text      string      `json:"text"`
		Tokens    []int32     `json:"input_ids"`
		LogProbs  []float64   `json:"token_logprobs"`
		CE        float64     `json:"mean_ce"`
		Positions []int       `json:"positions"`
		TopTokens [][]int32   `json:"top20_ids"`
		TopLogits [][]float64 `json:"top20_logits"`
		LogSumExp []float64   `json:"logsumexp"`
	} `json:"text"`
	Greedy []struct {
		User   string  `json:"user"`
		Prompt string  `json:"prompt"`
		Tokens []int32 `json:"prompt_ids"`
		Answer []int32 `json:"output_ids"`
		Text   string  `json:"output"`
		Margin float64 `json:"min_margin"` // between the likeliest token's logit and the next
	} `json:"greedy"`
}

func smolLM2Folder(tb testing.TB) string {
	tb.Helper()
	return fetched(tb, "smollm2", "MCPGYM_SMOLLM2", "smollm2.sh", "smollm2")
}

// TestSmolLM2 is a published model's numbers, text and chat.
func TestSmolLM2(t *testing.T) {
	alone(t)
	dir := smolLM2Folder(t)
	data, err := os.ReadFile(filepath.Join("testdata", "smollm2_golden.json"))
	require.NoError(t, err)
	var g smolLM2Golden
	require.NoError(t, json.Unmarshal(data, &g))
	require.Equal(t, g.SHA256, fileSum(t, filepath.Join(dir, "model.safetensors")))

	tok, err := bpe.Open(filepath.Join(dir, "tokenizer.json"))
	require.NoError(t, err)
	require.Equal(t, g.Text.Tokens, tok.Encode(g.Text.Text))
	template, err := toolcall.ReadTemplate(dir, toolcall.Config{})
	require.NoError(t, err)
	e, err := Open(dir, Options{})
	require.NoError(t, err)
	require.Len(t, g.Greedy, 4)
	for _, chat := range g.Greedy {
		opening := []engine.Message{{Role: "user", Text: chat.User}}
		text, err := template.Render(nil, opening, true)
		require.NoError(t, err)
		require.Equal(t, chat.Prompt, text)
		tokens, err := e.Open(nil, opening)
		require.NoError(t, err)
		require.Equal(t, chat.Tokens, tokens)
		require.Equal(t, strings.TrimSuffix(chat.Text, "<|im_end|>"), e.Decode(chat.Answer))
	}

	t.Run("numbers", func(t *testing.T) {
		for name, o := range map[string]Options{"bf16": {}, "f32": {DType: F32}} {
			e, err := Open(dir, o)
			require.NoError(t, err)
			w := worst{}
			p := forward(t, e, engine.Batch{Tokens: [][]int32{g.Text.Tokens}})
			for i, want := range g.Text.LogProbs {
				w.add("log-probs", float64(p.LogProbs()[0][i+1]), want)
			}
			w.add("loss", meanCE(p, nil), g.Text.CE)
			p.Discard()
			logits := logitsOf(t, e, g.Text.Tokens)
			for i, at := range g.Text.Positions {
				w.add("log-sum-exp", f32.LogSumExp(logits[at]), g.Text.LogSumExp[i])
				for j, token := range g.Text.TopTokens[i] {
					w.add("logits", float64(logits[at][token]), g.Text.TopLogits[i][j])
				}
			}
			for quantity, d := range w {
				t.Logf("%s: %s: %.1e", name, quantity, d)
				// The reference differs by 3e-5 from itself in float64.
				require.LessOrEqual(t, d, 2e-4, quantity)
			}
		}
	})
	t.Run("greedy", func(t *testing.T) {
		answers := make([]engine.Sample, len(g.Greedy))
		errs := make([]error, len(g.Greedy))
		var all sync.WaitGroup
		for i, chat := range g.Greedy {
			all.Go(func() {
				answers[i], errs[i] = e.Generate(t.Context(), engine.Request{Prompt: chat.Tokens, MaxTokens: len(chat.Answer)})
			})
		}
		all.Wait()
		compared := 0
		for i, chat := range g.Greedy {
			require.NoError(t, errs[i])
			if chat.Margin > 0.01 {
				require.Equal(t, chat.Text, tok.Decode(answers[i].Tokens))
				require.Equal(t, chat.Answer, answers[i].Tokens)
				require.Equal(t, "stop", answers[i].Finish)
				compared++
			}
		}
		require.Equal(t, 3, compared)
	})
}

func fileSum(t *testing.T, path string) string {
	t.Helper()
	f, err := os.Open(path)
	require.NoError(t, err)
	defer f.Close()
	h := sha256.New()
	_, err = io.Copy(h, f)
	require.NoError(t, err)
	return hex.EncodeToString(h.Sum(nil))
}
