package lm

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/mcpgym/mcpgym/policies/bpe"
	"github.com/mcpgym/mcpgym/policies/engine"
	"github.com/mcpgym/mcpgym/policies/engine/enginetest"
	"github.com/mcpgym/mcpgym/policies/toolcall"
)

// alone skips a test in which nothing happens at once, where the race detector makes it slow.
func alone(t *testing.T) {
	t.Helper()
	if testing.Short() {
		t.Skip("with -short only what is concurrent is tested")
	}
}

// tokenizer makes a folder with a small tokenizer and a template.
func tokenizer(tb testing.TB) (dir string, size int) {
	dir = tb.TempDir()
	text := `the sum of 2 and 3 is what? get_sum {"type":"object","properties":{"b":{"type":"integer"}}} Adds two numbers.`
	tok, err := bpe.Train(slices.Values([]string{text, text, "get_sum", "that is 5"}), 300, toolcall.SmallTokens)
	require.NoError(tb, err)
	require.NoError(tb, toolcall.WriteSmall(dir, tok))
	return dir, tok.Size()
}

func tiny(vocab int) Config {
	return Config{Kind: "qwen3", Hidden: 32, Intermediate: 48, Layers: 2, Heads: 4, KVHeads: 2, HeadDim: 16, Vocab: vocab, Eps: 1e-6, Theta: 1e4,
		QKNorm: true, MaxPositions: 2048, DType: F32}
}

func TestContract(t *testing.T) {
	dir, size := tokenizer(t)
	for _, o := range []Options{{Full: true}, {LoRA: &LoRA{Rank: 4, Alpha: 8}}, {LoRA: &LoRA{Rank: 2, Alpha: 2, Targets: []string{"q_proj", "down_proj"}}, DType: BF16}} {
		name := "full"
		if o.LoRA != nil {
			name = "lora " + string(o.DType)
		}
		t.Run(name, func(t *testing.T) {
			o.Tokenizer = dir
			enginetest.Check(t, func(tb testing.TB) engine.Engine {
				e, err := New(tiny(size), 3, o)
				require.NoError(tb, err)
				return e
			}, enginetest.Options{Adapter: o.LoRA != nil})
		})
	}
}

// TestExport opens again what was exported.
func TestExport(t *testing.T) {
	alone(t)
	dir, size := tokenizer(t)
	base, err := New(tiny(size), 3, Options{Tokenizer: dir})
	require.NoError(t, err)
	at := filepath.Join(t.TempDir(), "base")
	require.NoError(t, base.Export(at))
	e, err := Open(at, Options{LoRA: &LoRA{Rank: 4, Alpha: 8}})
	require.NoError(t, err)
	prompt, err := e.Open(nil, []engine.Message{{Role: "user", Text: "what is the sum?"}})
	require.NoError(t, err)
	b := engine.Batch{Tokens: [][]int32{prompt}}
	logProbs := func(e *Engine) [][]float32 {
		p, err := e.Forward(t.Context(), b)
		require.NoError(t, err)
		defer p.Discard()
		return p.LogProbs()
	}
	untrained := logProbs(e)
	require.Equal(t, logProbs(base), untrained)
	p, err := e.Forward(t.Context(), b)
	require.NoError(t, err)
	d := [][]float32{make([]float32, len(prompt))}
	for i := range d[0] {
		d[0][i] = -1
	}
	require.NoError(t, p.Backward(t.Context(), d, nil))
	_, err = e.Step(t.Context(), engine.Optim{Rate: 0.01, Beta1: 0.9, Beta2: 0.99, Epsilon: 1e-8})
	require.NoError(t, err)

	adapter, merged := filepath.Join(t.TempDir(), "adapter"), filepath.Join(t.TempDir(), "merged")
	require.NoError(t, e.Export(adapter))
	require.NoError(t, e.Merge(merged, ""))
	require.Error(t, e.Merge(merged, ""), "a folder that is there is not written over")
	adapted, err := Open(at, Options{Adapter: adapter})
	require.NoError(t, err)
	require.Equal(t, logProbs(e), logProbs(adapted))
	one, err := Open(merged, Options{})
	require.NoError(t, err)
	got, want := logProbs(one), logProbs(e)
	for i := range want[0] {
		require.InDelta(t, want[0][i], got[0][i], 1e-5)
	}
	require.NotEqual(t, untrained, want)
	require.Equal(t, e.Stops(), one.Stops())
}

// TestTokenizerOfAFolder: without one the engine takes tokens; a broken one, or one that is too large, is not taken.
func TestTokenizerOfAFolder(t *testing.T) {
	alone(t)
	e, err := Open(folder("qwen3-tied"), Options{})
	require.NoError(t, err)
	_, err = e.Open(nil, []engine.Message{{Role: "user", Text: "hi"}})
	require.ErrorContains(t, err, "no tokenizer.json")
	dir, size := tokenizer(t)
	_, err = New(tiny(size-1), 3, Options{Tokenizer: dir})
	require.ErrorContains(t, err, "tokenizer.json: 300 tokens, for a model with a vocabulary of 299")
	require.NoError(t, os.WriteFile(filepath.Join(dir, "tokenizer.json"), []byte("{"), 0o644))
	_, err = New(tiny(size), 3, Options{Tokenizer: dir})
	require.ErrorContains(t, err, "tokenizer.json")
}
