package lm

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/mcpgym/mcpgym/policies/engine"
)

// TestGreedy compares continuations with those of the reference implementation.
func TestGreedy(t *testing.T) {
	alone(t)
	for _, name := range checkpoints {
		var g struct {
			Greedy greedy
			LoRA   *struct{ Greedy greedy }
		}
		data, err := os.ReadFile(filepath.Join(folder(name), "golden.json"))
		require.NoError(t, err)
		require.NoError(t, json.Unmarshal(data, &g))
		t.Run(name, func(t *testing.T) {
			e, err := Open(folder(name), Options{})
			require.NoError(t, err)
			g.Greedy.check(t, e)
		})
		if g.LoRA != nil {
			t.Run(name+"/lora", func(t *testing.T) {
				e, err := Open(folder(name), Options{Adapter: filepath.Join(folder(name), "lora")})
				require.NoError(t, err)
				g.LoRA.Greedy.check(t, e)
			})
		}
	}
}

type greedy struct{ Prompt, Output []int32 }

func (g greedy) check(t *testing.T, e *Engine) {
	require.NotEmpty(t, g.Output)
	for range 2 { // the second time from pages that are there
		s, err := e.Generate(context.Background(), engine.Request{Prompt: g.Prompt, MaxTokens: len(g.Output), Stops: []int32{}})
		require.NoError(t, err)
		require.Equal(t, g.Output, s.Tokens)
		require.Equal(t, "length", s.Finish)
	}
}

// random prompts with beginnings in common.
func promptsOf(r *rand.Rand, vocab, n int) [][]int32 {
	var all [][]int32
	for i := range n {
		var p []int32
		if i > 0 && r.IntN(3) > 0 {
			from := all[r.IntN(i)]
			p = slices.Clone(from[:r.IntN(len(from)+1)])
		}
		for range 1 + r.IntN(60) {
			p = append(p, int32(r.IntN(vocab)))
		}
		all = append(all, p)
	}
	return all
}

// TestSharing samples many at a time, in turns that go on from one another, and compares each with an engine that has never read
// anything else.
func TestSharing(t *testing.T) {
	for _, name := range []string{"qwen3-tied", "llama3rope-tied-bf16"} {
		t.Run(name, func(t *testing.T) {
			e, err := Open(folder(name), Options{})
			require.NoError(t, err)
			ctx, r := context.Background(), rand.New(rand.NewPCG(1, 0))
			n := 300
			if testing.Short() {
				n = 60
			}
			prompts := promptsOf(r, e.config.Vocab, n)
			requests, got := make([]engine.Request, 3*n), make([]engine.Sample, 3*n)
			errs := make([]error, n)
			var wg sync.WaitGroup
			for i, p := range prompts {
				wg.Go(func() {
					for turn := range 3 {
						q := engine.Request{Prompt: p, MaxTokens: 1 + (7*i+turn)%40, Temperature: 1, Seed: uint64(i), Stops: []int32{5}}
						s, err := e.Generate(ctx, q)
						if err != nil {
							errs[i] = err
							return
						}
						requests[3*i+turn], got[3*i+turn] = q, s
						p = append(append(slices.Clone(p), s.Tokens...), int32(turn), int32(i%200))
					}
				})
			}
			wg.Wait()
			for _, err := range errs {
				require.NoError(t, err)
			}
			for i := range requests {
				if i%10 > 0 {
					continue
				}
				e.changes++
				alone, err := e.Generate(ctx, requests[i])
				require.NoError(t, err)
				require.Equal(t, alone, got[i], "request %d", i)
			}
			e.sampler.mu.Lock()
			defer e.sampler.mu.Unlock()
			known := 0
			for _, all := range e.sampler.pages.known {
				for _, g := range all {
					require.Zero(t, g.users, "a page that nobody holds any more")
					require.Equal(t, g.n, g.ready)
					known++
				}
			}
			require.Equal(t, known, e.sampler.pages.unused.Len())
		})
	}
}

// Tokens that come after the same ones are in a page once, whether their requests come together or one after the other.
func TestPagesAreFound(t *testing.T) {
	prompt := promptsOf(rand.New(rand.NewPCG(2, 0)), 200, 1)[0]
	for len(prompt) < 100 {
		prompt = append(prompt, int32(len(prompt)))
	}
	for _, c := range []struct {
		name        string
		temperature float64
		most        int
	}{
		{"all the same", 0, 9}, // 100 + 29 tokens
		{"until they part", 1, 6 + 8*3},
	} {
		for _, together := range []bool{true, false} {
			t.Run(fmt.Sprint(c.name, ", together ", together), func(t *testing.T) {
				e, err := Open(folder("qwen3-tied"), Options{})
				require.NoError(t, err)
				var wg sync.WaitGroup
				for i := range 8 {
					wg.Go(func() {
						_, err := e.Generate(context.Background(), engine.Request{Prompt: prompt, MaxTokens: 30, Temperature: c.temperature, Seed: uint64(i), Stops: []int32{}})
						require.NoError(t, err)
					})
					if !together {
						wg.Wait()
					}
				}
				wg.Wait()
				known := 0
				for _, all := range e.sampler.pages.known {
					known += len(all)
				}
				require.LessOrEqual(t, known, c.most)
				require.GreaterOrEqual(t, known, 9)
			})
		}
	}
}

func TestPagesForget(t *testing.T) {
	alone(t)
	p := pages{size: maxUnused / 4 / 4} // four of them may lie unused
	p.clear()
	var held []*page
	after := uint64(0)
	for i := range 6 {
		g := p.begin(pageKey{after, int32(i)}, nil, 0)
		g.tokens[0], g.n, g.ready = int32(i), 1, 1
		after = g.id
		held = append(held, g)
	}
	p.drop(held...)
	require.Len(t, p.known, 4)
	require.Equal(t, 4, p.unused.Len())
	g := p.find(0, []int32{0}, 0)
	require.Same(t, held[0], g, "the beginning stays longest")
	require.Nil(t, p.find(held[4].id, []int32{5}, 0))
	require.Nil(t, p.find(held[3].id, []int32{4}, 0))
	p.drop(g)
	require.Equal(t, 4, p.unused.Len())
}

func TestGenerateCancelled(t *testing.T) {
	e, err := Open(folder("qwen3-tied"), Options{})
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error)
	go func() {
		_, err := e.Generate(ctx, engine.Request{Prompt: []int32{1}, MaxTokens: 1 << 30, Temperature: 1, Stops: []int32{}})
		done <- err
	}()
	cancel()
	err = <-done
	if err != nil { // it may have ended before
		require.ErrorIs(t, err, context.Canceled)
	}
	s, err := e.Generate(context.Background(), engine.Request{Prompt: []int32{1}, MaxTokens: 3, Stops: []int32{}})
	require.NoError(t, err)
	require.Len(t, s.Tokens, 3)
}

// BenchmarkSample1M samples 256 episodes at a time, whose prompts have a long beginning in common.
func BenchmarkSample1M(b *testing.B) {
	e, err := New(Config{Kind: "qwen3", Hidden: 128, Intermediate: 512, Layers: 4, Heads: 4, KVHeads: 4, HeadDim: 32, Vocab: 1024, Eps: 1e-6, Theta: 10000, QKNorm: true, MaxPositions: 4096, DType: F32}, 1, Options{Full: true})
	require.NoError(b, err)
	benchmarkSample(b, e, 256, 300, 20, 32)
}

// BenchmarkSampleSmolLM2 samples 8 at a time from a model of the size of SmolLM2-135M.
func BenchmarkSampleSmolLM2(b *testing.B) {
	for _, d := range []DType{F32, BF16} {
		b.Run(fmt.Sprint(d), func(b *testing.B) {
			e, err := New(Config{Kind: "llama", Hidden: 576, Intermediate: 1536, Layers: 30, Heads: 9, KVHeads: 3, HeadDim: 64, Vocab: 49152, Eps: 1e-5, Theta: 100000, Tied: true, MaxPositions: 8192, DType: d}, 1, Options{})
			require.NoError(b, err)
			benchmarkSample(b, e, 8, 100, 20, 64)
		})
	}
}

func benchmarkSample(b *testing.B, e *Engine, streams, common, own, tokens int) {
	ctx := context.Background()
	for b.Loop() {
		e.changes++
		var wg sync.WaitGroup
		for i := range streams {
			wg.Go(func() {
				r := rand.New(rand.NewPCG(7, 0))
				var p []int32
				for range common {
					p = append(p, int32(r.IntN(e.config.Vocab)))
				}
				for j := range own {
					p = append(p, int32((i*31+j*7)%e.config.Vocab))
				}
				_, err := e.Generate(ctx, engine.Request{Prompt: p, MaxTokens: tokens, Temperature: 1, Seed: uint64(i), Stops: []int32{}})
				require.NoError(b, err)
			})
		}
		wg.Wait()
	}
	b.ReportMetric(float64(b.N*streams*tokens)/b.Elapsed().Seconds(), "tokens/s")
}
