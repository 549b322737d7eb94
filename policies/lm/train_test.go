package lm

import (
	"context"
	"math"
	"math/rand/v2"
	"path/filepath"
	"runtime"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/mcpgym/mcpgym/policies/engine"
	"github.com/mcpgym/mcpgym/policies/lm/internal/f32"
)

var adam = engine.Optim{Rate: 1e-2, Beta1: 0.9, Beta2: 0.99, Epsilon: 1e-8, WeightDecay: 0.1, Clip: 1}

// mixed has all that an engine knows: grouped heads, biases, norms of heads.
func mixed(c *Config) { c.Kind, c.QKVBias, c.OutBias, c.QKNorm = "qwen3", true, true, true }

func newFull(t testing.TB, c Config) *Engine {
	t.Helper()
	e, err := New(c, 1, Options{Full: true})
	require.NoError(t, err)
	scramble(e)
	return e
}

func ragged() [][]int32 {
	r := rand.New(rand.NewPCG(8, 9))
	var rows [][]int32
	for _, n := range []int{9, 71, 2, 40, 33, 3} {
		row := make([]int32, n)
		for i := range row {
			row[i] = r.Int32N(23)
		}
		rows = append(rows, row)
	}
	return rows
}

func bits(x []float32) []uint32 {
	out := make([]uint32, len(x))
	for i, v := range x {
		out[i] = math.Float32bits(v)
	}
	return out
}

// train takes steps on a batch and returns the last pass's log-probabilities.
func train(t testing.TB, e *Engine, b engine.Batch, steps int) [][]float32 {
	t.Helper()
	var last [][]float32
	for range steps {
		p := forward(t, e, b)
		last = p.LogProbs()
		backward(t, p, crossEntropy(p, b.Mask), p.Entropy())
		_, err := e.Step(t.Context(), adam)
		require.NoError(t, err)
	}
	return last
}

// A row's results are the same bits whatever else is in its batch, and gradients are those of the rows added up. (A row that shares more
// than 256 tokens is summed up in other parts than alone.)
func TestBatching(t *testing.T) {
	alone(t)
	e := newFull(t, small(mixed))
	rows := ragged()
	weights := make([][]float32, len(rows))
	for i, row := range rows {
		weights[i] = make([]float32, len(row))
		for j := range row[1:] {
			weights[i][j+1] = float32(j%5) - 1.5
		}
	}
	reversed, reversedWeights := slices.Clone(rows), slices.Clone(weights)
	slices.Reverse(reversed)
	slices.Reverse(reversedWeights)

	p := forward(t, e, engine.Batch{Tokens: rows})
	backward(t, p, weights, weights)
	want := slices.Clone(e.values.g)
	clear(e.values.g)
	q := forward(t, e, engine.Batch{Tokens: reversed})
	backward(t, q, reversedWeights, reversedWeights)
	requireNear(t, want, e.values.g)
	clear(e.values.g)
	for i, row := range rows {
		require.Equal(t, p.LogProbs()[i], q.LogProbs()[len(rows)-1-i])
		require.Equal(t, p.Entropy()[i], q.Entropy()[len(rows)-1-i])
		alone := forward(t, e, engine.Batch{Tokens: [][]int32{row}})
		require.Equal(t, p.LogProbs()[i], alone.LogProbs()[0])
		require.Equal(t, p.Entropy()[i], alone.Entropy()[0])
		backward(t, alone, weights[i:i+1], weights[i:i+1])
	}
	requireNear(t, want, e.values.g)
}

func requireNear(t testing.TB, want, got []float32) {
	t.Helper()
	difference := slices.Clone(got)
	f32.Axpy(difference, -1, want)
	require.LessOrEqual(t, math.Sqrt(f32.SumSquares(difference)), 1e-5*math.Sqrt(f32.SumSquares(want)))
}

// A token that is not asked for, and what follows the last that is, changes nothing.
func TestMask(t *testing.T) {
	alone(t)
	e := newFull(t, small(mixed))
	row := ragged()[3]
	mask := make([]bool, len(row))
	mask[7], mask[12] = true, true
	all := forward(t, e, engine.Batch{Tokens: [][]int32{row}})
	some := forward(t, e, engine.Batch{Tokens: [][]int32{row, row[:5]}, Mask: [][]bool{mask, make([]bool, 5)}})
	for i := range row {
		if mask[i] {
			require.Equal(t, all.LogProbs()[0][i], some.LogProbs()[0][i])
			require.Equal(t, all.Entropy()[0][i], some.Entropy()[0][i])
			require.NotZero(t, some.LogProbs()[0][i])
		} else {
			require.Zero(t, some.LogProbs()[0][i])
			require.Zero(t, some.Entropy()[0][i])
		}
	}
	require.Equal(t, make([]float32, 5), some.LogProbs()[1])

	gradient := make([]float32, len(row))
	gradient[7], gradient[12] = 2, -3
	backward(t, all, [][]float32{gradient}, nil)
	want := slices.Clone(e.values.g)
	clear(e.values.g)
	gradient[20] = 5 // of a token that was not asked for
	backward(t, some, [][]float32{gradient, make([]float32, 5)}, nil)
	requireNear(t, want, e.values.g)

	clear(e.values.g)
	none := forward(t, e, engine.Batch{Tokens: [][]int32{row}, Mask: [][]bool{make([]bool, len(row))}})
	backward(t, none, [][]float32{gradient}, nil)
	require.Zero(t, f32.SumSquares(e.values.g))
}

// The head may see its rows in any number of parts.
func TestHeadInParts(t *testing.T) {
	alone(t)
	for _, e := range []*Engine{newFull(t, small(mixed)), scrambledAdapter(t, small(mixed), LoRA{Rank: 3, Alpha: 6})} {
		b := engine.Batch{Tokens: ragged(), Temperature: 0.8}
		whole := forward(t, e, b)
		d := crossEntropy(whole, nil)
		backward(t, whole, d, d)
		want := slices.Clone(e.values.g)
		for _, chunk := range []int{1, 7, 50} {
			clear(e.values.g)
			p, err := e.newPass(b)
			require.NoError(t, err)
			require.Greater(t, p.chunk, chunk)
			p.chunk = chunk
			require.NoError(t, p.forward(t.Context()))
			require.Equal(t, whole.LogProbs(), p.LogProbs())
			require.Equal(t, whole.Entropy(), p.Entropy())
			backward(t, p, d, d)
			requireNear(t, want, e.values.g)
		}
	}
}

// A pass without gradients of entropies takes another way where the head is not trained.
func TestNoEntropy(t *testing.T) {
	alone(t)
	e := scrambledAdapter(t, small(mixed), LoRA{Rank: 3, Alpha: 6})
	b := engine.Batch{Tokens: ragged(), Temperature: 0.8}
	p := forward(t, e, b)
	d := crossEntropy(p, nil)
	d[1][7], d[3][2] = 0, 3
	none := make([][]float32, len(d))
	for i := range d {
		none[i] = make([]float32, len(d[i]))
	}
	backward(t, p, d, none)
	want := slices.Clone(e.values.g)
	clear(e.values.g)
	backward(t, forward(t, e, b), d, nil)
	requireNear(t, want, e.values.g)
	clear(e.values.g)
	backward(t, forward(t, e, b), nil, nil)
	require.Zero(t, f32.SumSquares(e.values.g))
}

// Several passes may be open at a time.
func TestOpenPasses(t *testing.T) {
	alone(t)
	e := newFull(t, small(mixed))
	rows := ragged()
	one := func(i int) engine.Batch { return engine.Batch{Tokens: rows[i : i+1]} }
	for i := range 2 {
		p := forward(t, e, one(i))
		backward(t, p, crossEntropy(p, nil), nil)
	}
	want := slices.Clone(e.values.g)
	clear(e.values.g)
	p, q := forward(t, e, one(0)), forward(t, e, one(1))
	forward(t, e, one(3)).Discard()
	backward(t, p, crossEntropy(p, nil), nil)
	backward(t, q, crossEntropy(q, nil), nil)
	require.Equal(t, bits(want), bits(e.values.g))

	require.ErrorContains(t, p.Backward(t.Context(), nil, nil), "ended")
	p.Discard()
	p = forward(t, e, one(0))
	p.Discard()
	require.ErrorContains(t, p.Backward(t.Context(), nil, nil), "ended")
	p = forward(t, e, one(0))
	_, err := e.Step(t.Context(), adam)
	require.NoError(t, err)
	require.ErrorContains(t, p.Backward(t.Context(), nil, nil), "changed")
}

func TestReference(t *testing.T) {
	alone(t)
	c := small(func(c *Config) { mixed(c); c.DType = BF16 })
	b := engine.Batch{Tokens: ragged()}
	base, err := New(c, 1, Options{})
	require.NoError(t, err)
	want := forward(t, base, b)
	require.ErrorIs(t, want.Backward(t.Context(), nil, nil), errNothingTrained)
	_, err = base.Step(t.Context(), adam)
	require.ErrorIs(t, err, errNothingTrained)

	e, err := New(c, 1, Options{LoRA: &LoRA{Rank: 3, Alpha: 6, Seed: 4}})
	require.NoError(t, err)
	fresh := forward(t, e, b) // B is 0
	require.Equal(t, want.LogProbs(), fresh.LogProbs())
	require.Equal(t, want.Entropy(), fresh.Entropy())
	fresh.Discard()
	scramble(e)
	trained := forward(t, e, b)
	require.NotEqual(t, want.LogProbs(), trained.LogProbs())
	b.Reference = true
	reference := forward(t, e, b)
	require.Equal(t, want.LogProbs(), reference.LogProbs())
	require.Equal(t, want.Entropy(), reference.Entropy())
	require.ErrorContains(t, reference.Backward(t.Context(), nil, nil), "no gradients")
	require.Zero(t, f32.SumSquares(e.values.g))
	backward(t, trained, crossEntropy(trained, nil), nil)
	require.NotZero(t, f32.SumSquares(e.values.g))

	_, err = newFull(t, c).Forward(t.Context(), b)
	require.ErrorContains(t, err, "no reference")
}

// Results are the same bits at any number of cores.
func TestCores(t *testing.T) {
	alone(t)
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(0))
	for _, adapter := range []bool{false, true} {
		var want []uint32
		for _, procs := range []int{1, 2, 3, 7} {
			runtime.GOMAXPROCS(procs)
			e := newFull(t, small(mixed))
			if adapter {
				e = scrambledAdapter(t, small(mixed), LoRA{Rank: 3, Alpha: 6})
			}
			train(t, e, engine.Batch{Tokens: append(ragged(), related()[3:11]...)}, 2)
			if want == nil {
				want = bits(e.values.w)
			}
			require.Equal(t, want, bits(e.values.w), "%d cores", procs)
		}
	}
}

func TestSnapshot(t *testing.T) {
	alone(t)
	open := map[string]func() *Engine{
		"full": func() *Engine { return newFull(t, small(mixed)) },
		"lora": func() *Engine { return scrambledAdapter(t, small(mixed), LoRA{Rank: 3, Alpha: 6}) },
	}
	b := engine.Batch{Tokens: ragged()}
	for name, open := range open {
		t.Run(name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "snapshot")
			e := open()
			train(t, e, b, 2)
			require.NoError(t, e.Snapshot(dir))
			train(t, e, b, 2)

			other := open()
			p := forward(t, other, b) // gradients that Restore forgets
			backward(t, p, crossEntropy(p, nil), nil)
			open := forward(t, other, b)
			require.NoError(t, other.Restore(dir))
			require.Equal(t, 2, other.Version())
			require.Error(t, open.Backward(t.Context(), nil, nil))
			train(t, other, b, 2)
			require.Equal(t, 4, other.Version())
			require.Equal(t, bits(e.values.w), bits(other.values.w))
			require.Equal(t, bits(e.values.m), bits(other.values.m))
			require.Equal(t, bits(e.values.v), bits(other.values.v))

			require.Error(t, e.Snapshot(dir), "the folder is there already")
			before := bits(e.values.w)
			require.Error(t, e.Restore(t.TempDir()))
			wider := newFull(t, small(func(c *Config) { mixed(c); c.Vocab++ }))
			require.ErrorContains(t, wider.Restore(dir), "another model")
			require.Equal(t, before, bits(e.values.w))
		})
	}
	e := open["lora"]()
	dir := filepath.Join(t.TempDir(), "snapshot")
	require.NoError(t, e.Snapshot(dir))
	for _, l := range []LoRA{{Rank: 3, Alpha: 7}, {Rank: 4, Alpha: 8}, {Rank: 3, Alpha: 6, Targets: []string{"q_proj"}}} {
		require.Error(t, scrambledAdapter(t, small(mixed), l).Restore(dir))
	}
	frozen, err := New(small(nil), 1, Options{})
	require.NoError(t, err)
	require.ErrorIs(t, frozen.Snapshot(dir), errNothingTrained)
	require.ErrorIs(t, frozen.Restore(dir), errNothingTrained)
}

func TestNotFinite(t *testing.T) {
	alone(t)
	e := newFull(t, small(mixed))
	b := engine.Batch{Tokens: ragged()}
	train(t, e, b, 1)
	w, m, v := bits(e.values.w), bits(e.values.m), bits(e.values.v)
	for _, bad := range []float64{math.NaN(), math.Inf(-1)} {
		p := forward(t, e, b)
		d := crossEntropy(p, nil)
		backward(t, p, d, nil)
		e.values.g[5] = float32(bad)
		_, err := e.Step(t.Context(), adam)
		require.ErrorIs(t, err, engine.ErrNotFinite)
		require.Equal(t, w, bits(e.values.w))
		require.Equal(t, m, bits(e.values.m))
		require.Equal(t, v, bits(e.values.v))
		require.Equal(t, 1, e.Version())
		require.Zero(t, f32.SumSquares(e.values.g), "or no later step could succeed")

		p = forward(t, e, b)
		d[1][3] = float32(bad)
		require.ErrorIs(t, p.Backward(t.Context(), d, nil), engine.ErrNotFinite)
		require.ErrorIs(t, p.Backward(t.Context(), nil, d), engine.ErrNotFinite)
		require.Zero(t, f32.SumSquares(e.values.g))
		p.Discard()
	}
	e.blocks[1].up.weight.w[3] = float32(math.NaN())
	_, err := e.Forward(t.Context(), b)
	require.ErrorIs(t, err, engine.ErrNotFinite)
}

func TestStep(t *testing.T) {
	alone(t)
	c := small(mixed)
	t.Run("decay", func(t *testing.T) {
		e := newFull(t, c)
		before := slices.Clone(e.values.w)
		norm, err := e.Step(t.Context(), engine.Optim{Rate: 0.5, Beta1: 0.9, Beta2: 0.9, Epsilon: 1e-8, WeightDecay: 0.2})
		require.NoError(t, err)
		require.Zero(t, norm)
		at := 0
		for _, x := range e.trained {
			for i, v := range x.w {
				want := before[at+i]
				if len(x.shape) == 2 {
					want *= 0.9
				}
				require.InDelta(t, want, v, 1e-6, x.name)
			}
			at += len(x.w)
		}
	})
	t.Run("clip", func(t *testing.T) {
		// The first moment after the first step is a tenth of the clipped gradient.
		first := func(clip float64) (norm, moment float64) {
			e := newFull(t, c)
			p := forward(t, e, engine.Batch{Tokens: ragged()})
			backward(t, p, crossEntropy(p, nil), nil)
			o := adam
			o.Clip = clip
			norm, err := e.Step(t.Context(), o)
			require.NoError(t, err)
			require.Zero(t, f32.SumSquares(e.values.g))
			return norm, 10 * math.Sqrt(f32.SumSquares(e.values.m))
		}
		norm, moment := first(0)
		require.InEpsilon(t, norm, moment, 1e-5)
		_, moment = first(2 * norm)
		require.InEpsilon(t, norm, moment, 1e-5)
		clipped, moment := first(norm / 3)
		require.Equal(t, norm, clipped, "the norm before clipping")
		require.InEpsilon(t, norm/3, moment, 1e-5)
	})
	t.Run("refused", func(t *testing.T) {
		e := newFull(t, c)
		before := bits(e.values.w)
		for _, change := range []func(*engine.Optim){
			func(o *engine.Optim) { o.Rate = math.NaN() },
			func(o *engine.Optim) { o.Rate = -1 },
			func(o *engine.Optim) { o.Beta1 = 1 },
			func(o *engine.Optim) { o.Beta2 = -0.1 },
			func(o *engine.Optim) { o.Epsilon = 0 },
			func(o *engine.Optim) { o.WeightDecay = math.Inf(1) },
			func(o *engine.Optim) { o.Clip = -1 },
		} {
			o := adam
			change(&o)
			_, err := e.Step(t.Context(), o)
			require.Error(t, err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		_, err := e.Step(ctx, adam)
		require.ErrorIs(t, err, context.Canceled)
		require.Equal(t, before, bits(e.values.w))
		require.Zero(t, e.Version())
	})
}

func TestForwardRefuses(t *testing.T) {
	alone(t)
	e := newFull(t, small(func(c *Config) { c.MaxPositions = 8 }))
	row := []int32{1, 2, 3}
	for name, b := range map[string]engine.Batch{
		"at least two":             {Tokens: [][]int32{row, {1}}},
		"token 23 at 1":            {Tokens: [][]int32{row, {1, 23}}},
		"token -1 at 0":            {Tokens: [][]int32{{-1, 2}}},
		"mask of 1 rows for 2":     {Tokens: [][]int32{row, row}, Mask: [][]bool{{false, true, true}}},
		"for 2 tokens, not 3":      {Tokens: [][]int32{row}, Mask: [][]bool{{false, true}}},
		"first token of row 0":     {Tokens: [][]int32{row}, Mask: [][]bool{{true, true, true}}},
		"temperature of -1":        {Tokens: [][]int32{row}, Temperature: -1},
		"temperature of NaN":       {Tokens: [][]int32{row}, Temperature: math.NaN()},
		"10 tokens: the model":     {Tokens: [][]int32{make([]int32, 10)}},
		"gradients of 1 rows":      {Tokens: [][]int32{row, row}},
		"2 gradients for 3 tokens": {Tokens: [][]int32{row}},
	} {
		p, err := e.Forward(t.Context(), b)
		if err == nil {
			err = p.Backward(t.Context(), [][]float32{{0, 1}}, nil)
			p.Discard()
		}
		require.ErrorContains(t, err, name)
	}
	_, err := e.Forward(t.Context(), engine.Batch{Tokens: [][]int32{make([]int32, 9)}})
	require.NoError(t, err, "the last token is only predicted")
	ctx, cancel := context.WithCancel(t.Context())
	p, err := e.Forward(ctx, engine.Batch{Tokens: [][]int32{row}})
	require.NoError(t, err)
	cancel()
	require.ErrorIs(t, p.Backward(ctx, nil, nil), context.Canceled)
	backward(t, p, crossEntropy(p, nil), nil) // the interrupted one has changed nothing
	_, err = e.Forward(ctx, engine.Batch{Tokens: [][]int32{row}})
	require.ErrorIs(t, err, context.Canceled)
}

func TestNew(t *testing.T) {
	alone(t)
	c := small(func(c *Config) { mixed(c); c.Hidden, c.Vocab = 64, 300 })
	weights := func(seed uint64) []float32 {
		e, err := New(c, seed, Options{Full: true})
		require.NoError(t, err)
		return e.values.w
	}
	require.Equal(t, bits(weights(1)), bits(weights(1)))
	require.NotEqual(t, bits(weights(1)), bits(weights(2)))
	e, err := New(c, 1, Options{Full: true})
	require.NoError(t, err)
	deviation := func(x []float32) float64 { return math.Sqrt(f32.SumSquares(x) / float64(len(x))) }
	about := func(want float64, w []float32) { t.Helper(); require.InEpsilon(t, want, deviation(w), 0.1) }
	about(0.3, e.embed.w)
	about(1/math.Sqrt(64), e.blocks[1].q.weight.w)
	about(1/math.Sqrt(float64(c.Heads*c.HeadDim))/2, e.blocks[1].o.weight.w)
	about(1/math.Sqrt(float64(c.Intermediate))/2, e.blocks[0].down.weight.w)
	require.Zero(t, deviation(e.blocks[0].o.bias.w))
	require.EqualValues(t, 1, slices.Min(e.blocks[0].qNorm.w))
	require.EqualValues(t, 1, slices.Max(e.blocks[1].norm2.w))
	require.EqualValues(t, float32(0.1), slices.Max(e.norm.w))

	e, err = New(c, 1, Options{LoRA: &LoRA{Rank: 4, Alpha: 2, Targets: []string{"o_proj", "up_proj"}}})
	require.NoError(t, err)
	require.Len(t, e.trained, 2*2*2)
	for i := range e.blocks {
		require.Nil(t, e.blocks[i].q.a)
		a := e.blocks[i].up.a.w
		require.Zero(t, f32.SumSquares(e.blocks[i].up.b.w))
		require.InDelta(t, 0.125, slices.Max(a), 0.01) // 1 over the root of its inputs
		require.InDelta(t, -0.125, slices.Min(a), 0.01)
		require.EqualValues(t, 0.5, e.blocks[i].up.scale)
	}

	for want, o := range map[string]Options{
		"in one way":         {Full: true, LoRA: &LoRA{Rank: 1, Alpha: 1}},
		"rank 0":             {LoRA: &LoRA{Alpha: 1}},
		"alpha 0":            {LoRA: &LoRA{Rank: 1}},
		`called "embedding"`: {LoRA: &LoRA{Rank: 1, Alpha: 1, Targets: []string{"embedding"}}},
		"without targets":    {LoRA: &LoRA{Rank: 1, Alpha: 1, Targets: []string{}}},
		"F32 or BF16":        {DType: "F16"},
		"read the adapter":   {Adapter: t.TempDir()},
	} {
		_, err := New(c, 1, o)
		require.ErrorContains(t, err, want)
	}
	_, err = New(Config{}, 1, Options{})
	require.Error(t, err)
}

// Weights that are not trained stay as they are stored: in bfloat16 where that loses nothing or is asked for.
func TestStorage(t *testing.T) {
	alone(t)
	b := engine.Batch{Tokens: ragged()}
	for i := range b.Tokens {
		for j := range b.Tokens[i] {
			b.Tokens[i][j] += 3
		}
	}
	results := map[string][][]float32{}
	for _, name := range []string{"llama-untied", "qwen3-untied-hd32-bf16"} {
		for _, d := range []DType{"", F32, BF16} {
			e, err := Open(folder(name), Options{DType: d})
			require.NoError(t, err)
			results[name+string(d)] = forward(t, e, b).LogProbs()
		}
	}
	require.Equal(t, results["llama-untied"], results["llama-untiedF32"])
	require.NotEqual(t, results["llama-untied"], results["llama-untiedBF16"])
	require.InDelta(t, results["llama-untied"][1][5], results["llama-untiedBF16"][1][5], 0.1)
	require.Equal(t, results["qwen3-untied-hd32-bf16"], results["qwen3-untied-hd32-bf16F32"])
	require.Equal(t, results["qwen3-untied-hd32-bf16"], results["qwen3-untied-hd32-bf16BF16"])
}
