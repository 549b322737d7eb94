package lm

import (
	"context"
	"maps"
	"math"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/mcpgym/mcpgym/policies/engine"
	"github.com/mcpgym/mcpgym/policies/lm/internal/checkpoint"
	"github.com/mcpgym/mcpgym/policies/lm/internal/f32"
)

// tolerances are what float32 arithmetic in another order may differ by.
var tolerances = map[string]float64{
	"logits": 5e-5, "logit sums": 5e-5, "log-probs": 5e-5, "entropy": 5e-5, "loss": 1e-5, "gradient norm": 1e-5, "gradient l2": 1e-5,
	"gradient sum": 2e-5, "gradient entries": 2e-6, "padded log-probs": 5e-5, "padded loss": 1e-5, "padded norm": 1e-5,
	"adamw loss": 1e-4, "adamw norm": 1e-4, "adamw weights": 1e-3, "merged logits": 5e-5,
}

func TestParity(t *testing.T) {
	alone(t)
	for _, name := range checkpoints {
		t.Run(name, func(t *testing.T) {
			g := readGolden(t, name)
			e, err := Open(folder(name), Options{Full: true})
			require.NoError(t, err)
			w := worst{}
			parity(t, w, e, g.Sequence, g.Batch)
			if g.AdamW != nil {
				parityAdamW(t, w, e, *g.AdamW)
			}
			report(t, w)
			if g.LoRA == nil {
				return
			}
			t.Run("lora", func(t *testing.T) {
				e, err := Open(folder(name), Options{Adapter: filepath.Join(folder(name), "lora")})
				require.NoError(t, err)
				require.Equal(t, g.LoRA.Rank, e.adapter.Rank)
				w := worst{}
				parity(t, w, e, g.LoRA.Sequence, g.LoRA.Batch)
				merged := remake(t, e)
				parityLogits(t, w, "merged logits", merged, g.LoRA.Sequence.Tokens, g.LoRA.Merged.Logits)
				parityAdamW(t, w, e, *g.LoRA.AdamW)
				report(t, w)
			})
		})
	}
}

func report(t *testing.T, w worst) {
	t.Helper()
	for _, q := range slices.Sorted(maps.Keys(w)) {
		t.Logf("%-36s %-18s %.1e (at most %.0e)", strings.TrimPrefix(t.Name(), "TestParity/"), q, w[q], tolerances[q])
		require.LessOrEqual(t, w[q], tolerances[q], q)
	}
}

// remake gives the model that e exports: its adapter is in the weights.
func remake(t *testing.T, e *Engine) *Engine {
	t.Helper()
	tensors := map[string]checkpoint.Tensor{}
	for _, m := range e.merged(e.config.DType) {
		tensors[m.Name] = m
	}
	out, err := build(e.config, Options{}, func(name string) (checkpoint.Tensor, error) { return tensors[name], nil })
	require.NoError(t, err)
	return out
}

func parity(t *testing.T, w worst, e *Engine, s goldenSequence, b goldenBatch) {
	t.Helper()
	parityLogits(t, w, "logits", e, s.Tokens, s.Logits)

	p := forward(t, e, engine.Batch{Tokens: [][]int32{s.Tokens}})
	n := len(s.Tokens) - 1
	for i := range n {
		w.add("log-probs", float64(p.LogProbs()[0][i+1]), s.LogProbs[i])
		w.add("entropy", float64(p.Entropy()[0][i+1]), s.Entropy[i])
	}
	w.add("loss", meanCE(p, nil), s.CE)
	backward(t, p, crossEntropy(p, nil), nil)
	w.addRelative("gradient norm", gradNorm(e), s.GradNorm)
	require.Len(t, s.Gradients, len(e.trained))
	for _, x := range e.trained {
		want := s.Gradients[peftName(x.name)]
		require.Equal(t, want.Shape, x.shape, x.name)
		w.addRelative("gradient l2", math.Sqrt(f32.SumSquares(x.g)), want.L2)
		// A sum of many terms that cancel is as far off as these are large.
		w.add("gradient sum", f32.Sum(x.g)/(want.L2*math.Sqrt(float64(x.size()))), want.Sum/(want.L2*math.Sqrt(float64(x.size()))))
		for i, at := range want.Index {
			w.add("gradient entries", float64(x.g[at]), want.Value[i])
		}
	}
	clear(e.values.g)

	mask := make([][]bool, len(b.Rows))
	for i, row := range b.Rows {
		mask[i] = make([]bool, len(row))
		for j := b.PromptLen; j < len(row); j++ {
			mask[i][j] = true
		}
	}
	all := forward(t, e, engine.Batch{Tokens: b.Rows})
	p = forward(t, e, engine.Batch{Tokens: b.Rows, Mask: mask})
	loss := meanCE(p, mask)
	backward(t, p, crossEntropy(p, mask), nil)
	norm := gradNorm(e)
	clear(e.values.g)
	for _, side := range []goldenPad{b.Left, b.Right} {
		for i, row := range side.LogProbs {
			for j, want := range row {
				w.add("padded log-probs", float64(all.LogProbs()[i][j+1]), want)
			}
		}
		w.add("padded loss", loss, side.CE)
		w.addRelative("padded norm", norm, side.GradNorm)
	}
	all.Discard()
}

func peftName(name string) string {
	if !strings.Contains(name, ".lora_") {
		return name
	}
	return "base_model.model." + strings.Replace(name, ".weight", ".default.weight", 1)
}

// logitsOf gives the logits at every position, the last included.
func logitsOf(t *testing.T, e *Engine, tokens []int32) [][]float32 {
	t.Helper()
	p := forward(t, e, engine.Batch{Tokens: [][]int32{append(slices.Clone(tokens), 0)}})
	defer p.Discard()
	out := make([]float32, len(tokens)*e.config.Vocab)
	e.head.mul(out, p.(*pass).hidden, len(tokens))
	return slices.Collect(slices.Chunk(out, e.config.Vocab))
}

func parityLogits(t *testing.T, w worst, quantity string, e *Engine, tokens []int32, want goldenLogits) {
	t.Helper()
	logits := logitsOf(t, e, tokens)
	for i, at := range want.Positions {
		for j, col := range want.Columns {
			w.add(quantity, float64(logits[at][col]), want.Values[i][j])
		}
	}
	var sum, abs float64
	for i, row := range logits {
		w.add(quantity, f32.LogSumExp(row), want.LogSumExp[i])
		best := 0
		for j, x := range row {
			sum, abs = sum+float64(x), abs+math.Abs(float64(x))
			if x > row[best] {
				best = j
			}
		}
		require.Equal(t, want.Argmax[i], best, "position %d", i)
	}
	w.add("logit sums", sum/abs, want.Sum/want.AbsSum)
	w.addRelative("logit sums", abs, want.AbsSum)
}

func parityAdamW(t *testing.T, w worst, e *Engine, g goldenAdamW) {
	t.Helper()
	for _, x := range e.trained {
		x.decay = true // the reference ran without exceptions
	}
	o := engine.Optim{Rate: g.Rate, Beta1: g.Betas[0], Beta2: g.Betas[1], Epsilon: g.Epsilon, WeightDecay: g.WeightDecay, Clip: g.Clip}
	b := engine.Batch{Tokens: g.Rows}
	for i, want := range g.Losses {
		p := forward(t, e, b)
		w.add("adamw loss", meanCE(p, nil), want)
		if i == len(g.Norms) {
			p.Discard()
			break
		}
		backward(t, p, crossEntropy(p, nil), nil)
		norm, err := e.Step(context.Background(), o)
		require.NoError(t, err)
		w.addRelative("adamw norm", norm, g.Norms[i])
	}
	require.Equal(t, len(g.Norms), e.Version())
	require.Len(t, g.Params, len(e.trained))
	for _, x := range e.trained {
		want := g.Params[peftName(x.name)]
		require.Equal(t, want.Shape, x.shape, x.name)
		for i, at := range want.Index {
			w.add("adamw weights", float64(x.w[at]), want.Value[i])
		}
	}
}

func forward(t testing.TB, e *Engine, b engine.Batch) engine.Pass {
	t.Helper()
	p, err := e.Forward(context.Background(), b)
	require.NoError(t, err)
	return p
}

func backward(t testing.TB, p engine.Pass, dLogProbs, dEntropy [][]float32) {
	t.Helper()
	require.NoError(t, p.Backward(context.Background(), dLogProbs, dEntropy))
}

// meanCE is the mean of the negative log-probabilities of what a mask asks for.
func meanCE(p engine.Pass, mask [][]bool) float64 {
	var sum, n float64
	for i, row := range p.LogProbs() {
		for j := 1; j < len(row); j++ {
			if mask == nil || mask[i][j] {
				sum, n = sum-float64(row[j]), n+1
			}
		}
	}
	return sum / n
}

// crossEntropy is the gradient of meanCE with respect to the log-probabilities.
func crossEntropy(p engine.Pass, mask [][]bool) [][]float32 {
	var n float32
	out := make([][]float32, len(p.LogProbs()))
	for i, row := range p.LogProbs() {
		out[i] = make([]float32, len(row))
		for j := 1; j < len(row); j++ {
			if mask == nil || mask[i][j] {
				out[i][j], n = -1, n+1
			}
		}
	}
	for _, row := range out {
		f32.Scale(row, 1/n)
	}
	return out
}

func gradNorm(e *Engine) float64 { return math.Sqrt(f32.SumSquares(e.values.g)) }
