//go:build !race

package lm

import (
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/mcpgym/mcpgym/policies/engine"
)

// TestMemory counts all that is allocated, which is more than what is ever in use. The race detector makes pools forget, so that all
// is allocated again.
func TestMemory(t *testing.T) {
	alone(t)
	c := Config{Kind: "llama", Hidden: 96, Intermediate: 256, Layers: 6, Heads: 6, KVHeads: 3, HeadDim: 16, Vocab: 700,
		MaxPositions: 512, Eps: 1e-5, Theta: 1e4, DType: F32}
	const rows, length = 8, 256
	perLayer := 2*c.Hidden + 2*c.Heads*c.HeadDim + 2*c.KVHeads*c.HeadDim + 2*c.Intermediate
	oneLayer := 3*c.Hidden + 2*c.Intermediate + c.Vocab // the gradients of one layer, and the logits
	activations := rows * length * (c.Layers*perLayer + 2*c.Hidden + oneLayer)
	for name, o := range map[string]Options{"full": {Full: true}, "lora": {LoRA: &LoRA{Rank: 8, Alpha: 8}}} {
		t.Run(name, func(t *testing.T) {
			var before, after runtime.MemStats
			e, err := New(c, 1, o)
			require.NoError(t, err)
			want := activations
			for _, w := range e.trained {
				want += 4 * w.size() // with its gradient and two moments
			}
			if o.LoRA != nil {
				want += rows * length * (c.Layers*7*8 + c.Hidden)
				for _, w := range e.weights {
					want += w.size()
				}
			}
			runtime.GC()
			runtime.ReadMemStats(&before)
			train(t, e, engine.Batch{Tokens: randomRows(c.Vocab, rows, length)}, 1)
			runtime.ReadMemStats(&after)
			first := after.TotalAlloc - before.TotalAlloc
			runtime.ReadMemStats(&before)
			train(t, e, engine.Batch{Tokens: randomRows(c.Vocab, rows, length)}, 1)
			runtime.ReadMemStats(&after)
			require.Less(t, float64(after.TotalAlloc-before.TotalAlloc), 0.1*float64(first), "a second step uses the first one's memory")
			used := float64(first)
			for _, x := range [][]float32{e.values.w, e.values.g, e.values.m, e.values.v} {
				used += float64(4 * len(x))
			}
			if o.LoRA != nil {
				for _, w := range e.weights {
					used += float64(4 * w.size())
				}
			}
			t.Logf("%.1f MB, %.3f of the count", used/1e6, used/float64(4*want))
			require.Less(t, used, 1.2*float64(4*want))

			runtime.GC()
			runtime.ReadMemStats(&before)
			p := forward(t, e, engine.Batch{Tokens: randomRows(c.Vocab, rows, length*5/4)})
			runtime.ReadMemStats(&after)
			arena := float64(4 * len(p.(*pass).arena))
			require.Less(t, float64(after.HeapAlloc)-float64(before.HeapAlloc), 0.75*arena, "a larger batch leaves no garbage")
			// Memory is used again, however many passes are open at a time.
			q := forward(t, e, engine.Batch{Tokens: randomRows(c.Vocab, rows, length)})
			p.Discard()
			q.Discard()
			runtime.ReadMemStats(&before)
			for range 2 {
				p := forward(t, e, engine.Batch{Tokens: randomRows(c.Vocab, rows, length)})
				q := forward(t, e, engine.Batch{Tokens: randomRows(c.Vocab, rows, length*5/4)})
				p.Discard()
				q.Discard()
			}
			runtime.ReadMemStats(&after)
			require.Less(t, float64(after.TotalAlloc-before.TotalAlloc), 0.5*arena)
		})
	}
}
