package lm

import (
	"context"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/mcpgym/mcpgym/policies/engine"
)

var million = Config{Kind: "llama", Hidden: 128, Intermediate: 512, Layers: 4, Heads: 4, KVHeads: 4, HeadDim: 32, Vocab: 1024,
	MaxPositions: 256, Eps: 1e-5, Theta: 1e4, DType: F32}

// smolLM2 is the shape of SmolLM2-135M.
var smolLM2 = Config{Kind: "llama", Hidden: 576, Intermediate: 1536, Layers: 30, Heads: 9, KVHeads: 3, HeadDim: 64, Vocab: 49152,
	MaxPositions: 8192, Eps: 1e-5, Theta: 1e5, Tied: true, DType: BF16}

func randomRows(vocab, rows, length int) [][]int32 {
	r := rand.New(rand.NewPCG(1, 2))
	out := make([][]int32, rows)
	for i := range out {
		out[i] = make([]int32, length)
		for j := range out[i] {
			out[i][j] = int32(r.IntN(vocab))
		}
	}
	return out
}

func benchmarkTrain(b *testing.B, c Config, o Options, rows, length int) {
	e, err := New(c, 1, o)
	require.NoError(b, err)
	batch := engine.Batch{Tokens: randomRows(c.Vocab, rows, length)}
	step := func() {
		p := forward(b, e, batch)
		backward(b, p, crossEntropy(p, nil), nil)
		_, err := e.Step(context.Background(), engine.Optim{Rate: 1e-3, Beta1: 0.9, Beta2: 0.999, Epsilon: 1e-8, Clip: 1})
		require.NoError(b, err)
	}
	step()
	b.ReportAllocs()
	for b.Loop() {
		step()
	}
	b.ReportMetric(float64(rows*length*b.N)/b.Elapsed().Seconds(), "tokens/s")
}

// BenchmarkTrain1M is a step of a million parameters trained whole: 3,072 tokens forward, backward and AdamW.
func BenchmarkTrain1M(b *testing.B) { benchmarkTrain(b, million, Options{Full: true}, 16, 192) }

// BenchmarkLoRASmolLM2 is a step of an adapter of all seven projections of a model of 135 million parameters.
func BenchmarkLoRASmolLM2(b *testing.B) {
	benchmarkTrain(b, smolLM2, Options{LoRA: &LoRA{Rank: 8, Alpha: 16}}, 4, 256)
}

// BenchmarkForwardBackwardGroup is a pass of eight rows whose first three quarters are the same, and of eight that share nothing.
func BenchmarkForwardBackwardGroup(b *testing.B) {
	for _, c := range []struct {
		name   string
		shared int
	}{{"shared", 192}, {"apart", 0}} {
		b.Run(c.name, func(b *testing.B) {
			e, err := New(million, 1, Options{Full: true})
			require.NoError(b, err)
			rows := randomRows(million.Vocab, 8, 256)
			for i, row := range rows {
				copy(row, rows[0][:c.shared])
				row[c.shared] = int32(i) // where they part
			}
			distinct := 0
			for b.Loop() {
				p := forward(b, e, engine.Batch{Tokens: rows})
				distinct = len(p.(*pass).tokens)
				backward(b, p, crossEntropy(p, nil), nil)
			}
			b.ReportMetric(float64(distinct), "distinct-tokens")
			b.ReportMetric(8*255, "all-tokens")
		})
	}
}
