// Package enginetest proves that an engine keeps the contract of package engine.
package enginetest

import (
	"context"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/mcpgym/mcpgym/policies/engine"
)

// Engine opens the engine under test: each time with the same weights, which can be trained.
type Engine func(tb testing.TB) engine.Engine

// Options say how exact an engine is.
type Options struct {
	Tolerance float64 // of log-probabilities, between a pass and a sample, and between batches; 0 means 1e-4
	Adapter   bool    // it trains an adapter: a batch with Reference is the model without
}

// Check proves that an engine keeps the contract. It says nothing of whether the model computes what its files say.
func Check(t *testing.T, open Engine, o Options) {
	t.Helper()
	if o.Tolerance == 0 {
		o.Tolerance = 1e-4
	}
	c := checker{open, o}
	for _, r := range []struct {
		name string
		run  func(*testing.T)
	}{
		{"codec", c.codec},
		{"samples have the pass's log-probabilities", c.sampled},
		{"a seed decides alone", c.seeds},
		{"stops and lengths", c.stops},
		{"bad requests", c.badRequests},
		{"bad batches", c.badBatches},
		{"interrupted", c.interrupted},
		{"masks and order", c.masks},
		{"temperature and entropy", c.temperature},
		{"gradients", c.gradients},
		{"gradients add up", c.accumulation},
		{"clipping", c.clipping},
		{"what is not finite", c.notFinite},
		{"reference", c.reference},
		{"snapshot and restore", c.snapshot},
		{"export", c.export},
	} {
		t.Run(r.name, r.run)
	}
}

type checker struct {
	open Engine
	o    Options
}

func (c checker) engine(t *testing.T) engine.Engine {
	e := c.open(t)
	t.Cleanup(func() { require.NoError(t, e.Close()) })
	return e
}

var tools = []engine.Tool{{Name: "get_sum", Description: "Adds two numbers.",
	Parameters: []byte(`{"type":"object","properties":{"b":{"type":"integer"},"a":{"type":"integer"}},"required":["b","a"]}`)}}

func user(text string) engine.Message { return engine.Message{Role: "user", Text: text} }

// texts are the conversations that everything is tried on.
var texts = []string{"add 2 and 3", "what is the sum of 10 and 20, and of that and 7?", "hello", "tell me a number, any number at all, but a large one"}

func prompts(t *testing.T, e engine.Engine) [][]int32 {
	var all [][]int32
	for _, s := range texts {
		p, err := e.Open(tools, []engine.Message{user(s)})
		require.NoError(t, err)
		require.Greater(t, len(p), 1, "a conversation has tokens")
		all = append(all, p)
	}
	return all
}

// batch is sequences of different lengths, each a prompt with an answer, of which the answer counts.
func batch(t *testing.T, e engine.Engine) engine.Batch {
	var b engine.Batch
	for i, p := range prompts(t, e) {
		turn, err := e.Turn(engine.Message{Role: "assistant", Text: fmt.Sprint("that is ", 5*i)})
		require.NoError(t, err)
		mask := make([]bool, len(p)+len(turn))
		for k := len(p); k < len(mask); k++ {
			mask[k] = true
		}
		b.Tokens, b.Mask = append(b.Tokens, append(append([]int32{}, p...), turn...)), append(b.Mask, mask)
	}
	return b
}

var ctx = context.Background()

// optim is a step that is felt.
var optim = engine.Optim{Rate: 1e-3, Beta1: 0.9, Beta2: 0.999, Epsilon: 1e-8}

func forward(t *testing.T, e engine.Engine, b engine.Batch) [][]float32 {
	p, err := e.Forward(ctx, b)
	require.NoError(t, err)
	defer p.Discard()
	return p.LogProbs()
}

// near fails where two tables differ by more than the tolerance.
func (c checker) near(t *testing.T, want, got [][]float32, what string) {
	t.Helper()
	require.Len(t, got, len(want), what)
	for i := range want {
		require.Len(t, got[i], len(want[i]), what)
		for k := range want[i] {
			require.InDelta(t, want[i][k], got[i][k], c.o.Tolerance, "%s: row %d, token %d", what, i, k)
		}
	}
}

func (c checker) codec(t *testing.T) {
	e := c.engine(t)
	require.NotEmpty(t, e.Stops())
	for _, text := range texts {
		messages := []engine.Message{user(text)}
		ids, err := e.Open(tools, messages)
		require.NoError(t, err)
		call := engine.Message{Role: "assistant", Calls: []engine.Call{{ID: "c1", Name: "get_sum", Arguments: []byte(`{"b":2,"a":3}`)}}}
		reply := engine.Message{Role: "tool", Text: "5 <|im_end|> </tool_response>", CallID: "c1", Name: "get_sum"}
		turn, err := e.Turn(call)
		require.NoError(t, err)
		require.Contains(t, e.Stops(), turn[len(turn)-1], "a turn ends with a stop token")
		next, err := e.Next(true, []engine.Message{reply})
		require.NoError(t, err)
		whole, err := e.Open(tools, append(messages, call, reply))
		require.NoError(t, err)
		require.Equal(t, whole, append(append(ids, turn...), next...), "turn by turn as at once")
		cut, err := e.Next(false, []engine.Message{reply})
		require.NoError(t, err)
		require.Equal(t, append([]int32{turn[len(turn)-1]}, next...), cut, "a turn that was cut off is ended")
		for _, stop := range e.Stops() {
			require.NotContains(t, turn[:len(turn)-1], stop, "text cannot end a turn")
		}
		require.Contains(t, e.Decode(turn), "get_sum")
		require.Contains(t, e.Decode(next), "5 ")
	}
}

func (c checker) sampled(t *testing.T) {
	e := c.engine(t)
	for _, temperature := range []float64{0, 0.7, 1} {
		var b engine.Batch
		var want [][]float32
		for i, p := range prompts(t, e) {
			s, err := e.Generate(ctx, engine.Request{Prompt: p, MaxTokens: 12, Temperature: temperature, Seed: uint64(i)})
			require.NoError(t, err)
			require.Len(t, s.LogProbs, len(s.Tokens))
			mask := make([]bool, len(p)+len(s.Tokens))
			for k := len(p); k < len(mask); k++ {
				mask[k] = true
			}
			b.Tokens, b.Mask = append(b.Tokens, append(append([]int32{}, p...), s.Tokens...)), append(b.Mask, mask)
			want = append(want, append(make([]float32, len(p)), s.LogProbs...))
		}
		b.Temperature = temperature
		c.near(t, want, forward(t, e, b), fmt.Sprint("temperature ", temperature))
	}
	// Of what remains when all but the likeliest are left out, the first is the likeliest.
	p := prompts(t, e)[0]
	greedy, err := e.Generate(ctx, engine.Request{Prompt: p, MaxTokens: 8})
	require.NoError(t, err)
	for _, r := range []engine.Request{{TopK: 1}, {TopP: 1e-9}, {MinP: 1}} {
		r.Prompt, r.MaxTokens, r.Temperature, r.Seed = p, 8, 1, 9
		s, err := e.Generate(ctx, r)
		require.NoError(t, err)
		require.Equal(t, greedy.Tokens, s.Tokens, "%+v", r)
	}
}

func (c checker) seeds(t *testing.T) {
	e := c.engine(t)
	ps := prompts(t, e)
	requests := make([]engine.Request, 16)
	for i := range requests {
		requests[i] = engine.Request{Prompt: ps[i%len(ps)], MaxTokens: 4 + i, Temperature: 1, Seed: uint64(i / 2)}
	}
	alone := make([]engine.Sample, len(requests))
	for i, r := range requests {
		var err error
		alone[i], err = e.Generate(ctx, r)
		require.NoError(t, err)
		require.Zero(t, alone[i].Version)
	}
	together := make([]engine.Sample, len(requests))
	errs := make([]error, len(requests))
	var wg sync.WaitGroup
	for i, r := range requests {
		wg.Go(func() { together[i], errs[i] = e.Generate(ctx, r) })
	}
	wg.Wait()
	for i := range requests {
		require.NoError(t, errs[i])
		require.Equal(t, alone[i].Tokens, together[i].Tokens, "request %d", i)
		require.Equal(t, alone[i].Finish, together[i].Finish)
	}
	other := requests[3]
	other.Seed = 77
	different := false
	for range 5 {
		other.Seed++
		s, err := e.Generate(ctx, other)
		require.NoError(t, err)
		different = different || fmt.Sprint(s.Tokens) != fmt.Sprint(alone[3].Tokens)
	}
	require.True(t, different, "other seeds, other samples")
}

func (c checker) stops(t *testing.T) {
	e := c.engine(t)
	p := prompts(t, e)[0]
	var each []int32
	free, err := e.Generate(ctx, engine.Request{Prompt: p, MaxTokens: 10, Stops: []int32{}, Temperature: 1, Seed: 1, Each: func(token int32) { each = append(each, token) }})
	require.NoError(t, err)
	require.Equal(t, free.Tokens, each)
	require.Len(t, free.Tokens, 10, "without stops only the length ends it")
	require.Equal(t, "length", free.Finish)
	stop := free.Tokens[4]
	s, err := e.Generate(ctx, engine.Request{Prompt: p, MaxTokens: 10, Stops: []int32{stop}, Temperature: 1, Seed: 1})
	require.NoError(t, err)
	require.Equal(t, "stop", s.Finish)
	require.Equal(t, stop, s.Tokens[len(s.Tokens)-1], "the stop token is part of the sample")
	require.Equal(t, free.Tokens[:len(s.Tokens)], s.Tokens)
	require.NotContains(t, s.Tokens[:len(s.Tokens)-1], stop)
}

func (c checker) badRequests(t *testing.T) {
	e := c.engine(t)
	p := prompts(t, e)[0]
	for name, r := range map[string]engine.Request{
		"no prompt":            {MaxTokens: 3},
		"no tokens":            {Prompt: p},
		"negative":             {Prompt: p, MaxTokens: -1},
		"token out of range":   {Prompt: []int32{1 << 30}, MaxTokens: 3},
		"negative token":       {Prompt: []int32{-1}, MaxTokens: 3},
		"negative temperature": {Prompt: p, MaxTokens: 3, Temperature: -1},
		"temperature NaN":      {Prompt: p, MaxTokens: 3, Temperature: math.NaN()},
		"top p":                {Prompt: p, MaxTokens: 3, Temperature: 1, TopP: 1.5},
		"min p":                {Prompt: p, MaxTokens: 3, Temperature: 1, MinP: -0.1},
		"top k":                {Prompt: p, MaxTokens: 3, Temperature: 1, TopK: -2},
	} {
		_, err := e.Generate(ctx, r)
		require.Error(t, err, name)
	}
	_, err := e.Generate(ctx, engine.Request{Prompt: p, MaxTokens: 3})
	require.NoError(t, err, "it goes on working")
}

func (c checker) badBatches(t *testing.T) {
	e := c.engine(t)
	p := prompts(t, e)[0]
	for name, b := range map[string]engine.Batch{
		"no rows":            {},
		"one token":          {Tokens: [][]int32{p, p[:1]}},
		"token out of range": {Tokens: [][]int32{{p[0], 1 << 30}}},
		"negative token":     {Tokens: [][]int32{{p[0], -1}}},
		"mask too short":     {Tokens: [][]int32{p}, Mask: [][]bool{{false}}},
		"masks missing":      {Tokens: [][]int32{p, p}, Mask: [][]bool{make([]bool, len(p))}},
		"first token":        {Tokens: [][]int32{{p[0], p[1]}}, Mask: [][]bool{{true, true}}},
		"temperature":        {Tokens: [][]int32{p}, Temperature: -1},
	} {
		_, err := e.Forward(ctx, b)
		require.Error(t, err, name)
	}
	forward(t, e, engine.Batch{Tokens: [][]int32{p}, Mask: [][]bool{make([]bool, len(p))}}) // nothing asked for is nothing wrong
}

func (c checker) interrupted(t *testing.T) {
	e := c.engine(t)
	gone, cancel := context.WithCancel(ctx)
	cancel()
	_, err := e.Generate(gone, engine.Request{Prompt: prompts(t, e)[0], MaxTokens: 3})
	require.ErrorIs(t, err, context.Canceled)
	_, err = e.Forward(gone, batch(t, e))
	require.ErrorIs(t, err, context.Canceled)
	forward(t, e, batch(t, e))
}

func (c checker) masks(t *testing.T) {
	e := c.engine(t)
	b := batch(t, e)
	got := forward(t, e, b)
	all := forward(t, e, engine.Batch{Tokens: b.Tokens})
	for i, mask := range b.Mask {
		require.Zero(t, all[i][0])
		for k, in := range mask {
			if !in {
				require.Zero(t, got[i][k], "row %d, token %d was not asked for", i, k)
				all[i][k] = 0
			}
			require.LessOrEqual(t, got[i][k], float32(0))
		}
	}
	c.near(t, all, got, "a mask leaves the rest alone")
	var back engine.Batch
	var want [][]float32
	for i := len(got) - 1; i >= 0; i-- {
		back.Tokens, back.Mask, want = append(back.Tokens, b.Tokens[i]), append(back.Mask, b.Mask[i]), append(want, got[i])
	}
	c.near(t, want, forward(t, e, back), "rows in another order")
	for i := range got {
		one := engine.Batch{Tokens: b.Tokens[i : i+1], Mask: b.Mask[i : i+1]}
		c.near(t, got[i:i+1], forward(t, e, one), "a row alone")
	}
}

func (c checker) temperature(t *testing.T) {
	e := c.engine(t)
	b := batch(t, e)
	mean := func(temperature float64) (entropy float64) {
		b.Temperature = temperature
		p, err := e.Forward(ctx, b)
		require.NoError(t, err)
		defer p.Discard()
		n := 0
		for i, row := range p.Entropy() {
			require.Len(t, row, len(b.Tokens[i]))
			for k, h := range row {
				require.GreaterOrEqual(t, h, float32(-1e-6))
				if !b.Mask[i][k] {
					require.Zero(t, h)
					continue
				}
				entropy += float64(h)
				n++
			}
		}
		return entropy / float64(n)
	}
	cold, one, hot := mean(0.25), mean(1), mean(8)
	require.Less(t, cold, one)
	require.Less(t, one, hot)
	require.InDelta(t, one, mean(0), 1e-9, "0 is 1")
}

// weighted gives a loss, the sum of weights times log-probabilities and times entropies, and adds its gradient.
func weighted(t *testing.T, e engine.Engine, b engine.Batch, lp, h float32) (loss float64) {
	p, err := e.Forward(ctx, b)
	require.NoError(t, err)
	dlp, dh := table(b, lp), table(b, h)
	for i := range b.Tokens {
		for k := range b.Tokens[i] {
			loss += float64(dlp[i][k]*p.LogProbs()[i][k] + dh[i][k]*p.Entropy()[i][k])
		}
	}
	require.NoError(t, p.Backward(ctx, dlp, dh))
	p.Discard()
	return loss
}

func table(b engine.Batch, v float32) [][]float32 {
	all := make([][]float32, len(b.Tokens))
	for i, row := range b.Tokens {
		all[i] = make([]float32, len(row))
		for k := range row {
			if b.Mask[i][k] {
				all[i][k] = v
			}
		}
	}
	return all
}

// gradients: steps against a gradient make a loss smaller, and those for the opposite loss make it larger.
func (c checker) gradients(t *testing.T) {
	for _, g := range []struct{ lp, h float32 }{{-1, 0}, {1, 0}, {0, -1}, {0, 1}} {
		e := c.engine(t)
		b := batch(t, e)
		first := weighted(t, e, b, g.lp, g.h)
		norm, err := e.Step(ctx, optim)
		require.NoError(t, err)
		require.Positive(t, norm)
		require.Equal(t, 1, e.Version())
		last := first
		for range 4 {
			last = weighted(t, e, b, g.lp, g.h)
			_, err := e.Step(ctx, optim)
			require.NoError(t, err)
		}
		require.Less(t, last, first, "weights %+v", g)
		require.Equal(t, 5, e.Version())
	}
}

func (c checker) accumulation(t *testing.T) {
	once, parts, order := c.engine(t), c.engine(t), c.engine(t)
	b := batch(t, once)
	weighted(t, once, b, -1, 0)
	for i := range b.Tokens {
		weighted(t, parts, engine.Batch{Tokens: b.Tokens[i : i+1], Mask: b.Mask[i : i+1]}, -1, 0)
	}
	for i := len(b.Tokens) - 1; i >= 0; i-- {
		p, err := order.Forward(ctx, engine.Batch{Tokens: b.Tokens[i : i+1], Mask: b.Mask[i : i+1]})
		require.NoError(t, err)
		p.Discard() // leaves no gradients
		weighted(t, order, engine.Batch{Tokens: b.Tokens[i : i+1], Mask: b.Mask[i : i+1]}, -1, 0)
	}
	norms := make([]float64, 3)
	for i, e := range []engine.Engine{once, parts, order} {
		var err error
		norms[i], err = e.Step(ctx, optim)
		require.NoError(t, err)
	}
	require.InEpsilon(t, norms[0], norms[1], 1e-4)
	require.InEpsilon(t, norms[0], norms[2], 1e-4)
	norm, err := once.Step(ctx, optim)
	require.NoError(t, err)
	require.Zero(t, norm, "a step clears the gradients")
}

func (c checker) clipping(t *testing.T) {
	e := c.engine(t)
	b := batch(t, e)
	weighted(t, e, b, -1, 0)
	o := optim
	o.Clip = 1e-3
	free, err := e.Step(ctx, o)
	require.NoError(t, err)
	require.Greater(t, free, o.Clip, "the norm is that before clipping")
}

func (c checker) notFinite(t *testing.T) {
	e := c.engine(t)
	b := batch(t, e)
	before := forward(t, e, b)
	for _, v := range []float32{float32(math.NaN()), float32(math.Inf(1))} {
		p, err := e.Forward(ctx, b)
		require.NoError(t, err)
		bad := table(b, -1)
		bad[0][len(bad[0])-1] = v
		if err = p.Backward(ctx, bad, nil); err == nil {
			_, err = e.Step(ctx, optim)
		}
		p.Discard()
		require.ErrorIs(t, err, engine.ErrNotFinite)
		require.Zero(t, e.Version())
	}
	require.Equal(t, before, forward(t, e, b), "nothing has changed")
	weighted(t, e, b, -1, 0)
	_, err := e.Step(ctx, optim)
	require.NoError(t, err, "it goes on working")
}

func (c checker) reference(t *testing.T) {
	if !c.o.Adapter {
		t.Skip("without an adapter there is no reference")
	}
	e := c.engine(t)
	b := batch(t, e)
	r := b
	r.Reference = true
	before := forward(t, e, r)
	for range 3 {
		weighted(t, e, b, -1, 0)
		_, err := e.Step(ctx, optim)
		require.NoError(t, err)
	}
	require.Equal(t, before, forward(t, e, r), "the reference stays")
	require.NotEqual(t, before, forward(t, e, b))
}

func (c checker) snapshot(t *testing.T) {
	e := c.engine(t)
	b := batch(t, e)
	step := func(e engine.Engine) {
		weighted(t, e, b, -1, 0.1)
		_, err := e.Step(ctx, optim)
		require.NoError(t, err)
	}
	step(e)
	step(e)
	dir := filepath.Join(t.TempDir(), "snapshot")
	require.NoError(t, e.Snapshot(dir))
	step(e)
	want := forward(t, e, b)

	for _, other := range []engine.Engine{c.engine(t), e} {
		require.NoError(t, other.Restore(dir))
		require.Equal(t, 2, other.Version())
		step(other)
		require.Equal(t, want, forward(t, other, b), "bit for bit")
		s, err := other.Generate(ctx, engine.Request{Prompt: b.Tokens[0], MaxTokens: 4})
		require.NoError(t, err)
		require.Equal(t, 3, s.Version)
	}
	kept := forward(t, e, b)
	require.Error(t, e.Restore(filepath.Join(dir, "missing")))
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	for _, f := range entries {
		whole, err := os.ReadFile(filepath.Join(dir, f.Name()))
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(filepath.Join(dir, f.Name()), whole[:len(whole)/2], 0o644))
		require.Error(t, e.Restore(dir), "half of %s", f.Name())
		require.Equal(t, kept, forward(t, e, b), "what cannot be restored changes nothing")
		require.NoError(t, os.WriteFile(filepath.Join(dir, f.Name()), whole, 0o644))
	}
}

func (c checker) export(t *testing.T) {
	e := c.engine(t)
	weighted(t, e, batch(t, e), -1, 0)
	_, err := e.Step(ctx, optim)
	require.NoError(t, err)
	dir := filepath.Join(t.TempDir(), "model")
	require.NoError(t, e.Export(dir))
	name := "config.json"
	if c.o.Adapter {
		name = "adapter_config.json"
	}
	require.FileExists(t, filepath.Join(dir, name))
}
