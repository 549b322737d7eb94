package sft

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/mcpgym/mcpgym/policies/curves"
	"github.com/mcpgym/mcpgym/policies/engine"
	"github.com/mcpgym/mcpgym/policies/lm"
	"github.com/mcpgym/mcpgym/policies/schedule"
)

const vocab = 12

// bigram is an engine whose logits are a table by the token before, trained by plain descent with momentum.
type bigram struct {
	engine.Engine
	w, g, m   [vocab][vocab]float64
	version   int
	forward   func(engine.Batch) // may be nil, as the others
	step      func(norm float64) error
	snapshot  func()
	passes    int
	discarded int
}

func newBigram() *bigram {
	b := &bigram{}
	r := rand.New(rand.NewPCG(1, 1))
	for i := range b.w {
		for j := range b.w[i] {
			b.w[i][j] = r.NormFloat64()
		}
	}
	return b
}

func (b *bigram) probability(prev, token int32) float64 {
	sum := 0.0
	for _, w := range b.w[prev] {
		sum += math.Exp(w)
	}
	return math.Exp(b.w[prev][token]) / sum
}

type bigramPass struct {
	b     *bigram
	batch engine.Batch
	ended bool
}

func (b *bigram) Forward(ctx context.Context, batch engine.Batch) (engine.Pass, error) {
	b.passes++
	if b.forward != nil {
		b.forward(batch)
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	return &bigramPass{b: b, batch: batch}, nil
}

func (p *bigramPass) LogProbs() [][]float32 {
	var out [][]float32
	for i, row := range p.batch.Tokens {
		out = append(out, make([]float32, len(row)))
		for k, in := range p.batch.Mask[i] {
			if in {
				out[i][k] = float32(math.Log(p.b.probability(row[k-1], row[k])))
			}
		}
	}
	return out
}

func (p *bigramPass) Entropy() [][]float32 { return nil }

func (p *bigramPass) Backward(_ context.Context, d, _ [][]float32) error {
	for i, row := range p.batch.Tokens {
		for k, in := range p.batch.Mask[i] {
			if in {
				for j := range p.b.w {
					p.b.g[row[k-1]][j] -= float64(d[i][k]) * p.b.probability(row[k-1], int32(j))
				}
				p.b.g[row[k-1]][row[k]] += float64(d[i][k])
			}
		}
	}
	p.ended = true
	return nil
}

func (p *bigramPass) Discard() {
	if !p.ended {
		p.b.discarded++
	}
}

func (b *bigram) Step(ctx context.Context, o engine.Optim) (float64, error) {
	sum := 0.0
	for i := range b.w {
		for j := range b.w[i] {
			sum += b.g[i][j] * b.g[i][j]
		}
	}
	if b.step != nil {
		if err := b.step(math.Sqrt(sum)); err != nil {
			return 0, err
		}
	}
	if err := ctx.Err(); err != nil {
		return 0, err
	}
	for i := range b.w {
		for j := range b.w[i] {
			b.m[i][j] = o.Beta1*b.m[i][j] + b.g[i][j]
			b.w[i][j] -= o.Rate * b.m[i][j]
		}
	}
	b.g = [vocab][vocab]float64{}
	b.version++
	return math.Sqrt(sum), nil
}

type bigramState struct {
	W, M    [vocab][vocab]float64
	Version int
}

func (b *bigram) Snapshot(dir string) error {
	data, err := json.Marshal(bigramState{b.w, b.m, b.version})
	if err != nil {
		return err
	}
	if err := os.Mkdir(dir, 0o755); err != nil {
		return err
	}
	file := filepath.Join(dir, "weights.json")
	if err := os.WriteFile(file, data[:len(data)/2], 0o644); err != nil {
		return err
	}
	if b.snapshot != nil {
		b.snapshot()
	}
	return os.WriteFile(file, data, 0o644)
}

func (b *bigram) Restore(dir string) error {
	data, err := os.ReadFile(filepath.Join(dir, "weights.json"))
	if err != nil {
		return err
	}
	var s bigramState
	if err := json.Unmarshal(data, &s); err != nil {
		return err
	}
	b.w, b.m, b.version, b.g = s.W, s.M, s.Version, [vocab][vocab]float64{}
	return nil
}

// examples are n random sequences, of which most of the second half is learned.
func examples(seed uint64, n int) []Example {
	r := rand.New(rand.NewPCG(seed, 0))
	out := make([]Example, n)
	for i := range out {
		size := 4 + r.IntN(12)
		x := Example{Mask: make([]bool, size)}
		for k := range size {
			x.Tokens = append(x.Tokens, r.Int32N(vocab))
			x.Mask[k] = k > size/2 && r.IntN(4) > 0
		}
		x.Mask[size/2] = true
		out[i] = x
	}
	return out
}

func config() Config {
	return Config{Train: examples(1, 10), Dev: examples(2, 6), Steps: 14, Batch: 4, Seed: 3, Eval: 4, Save: 3, PassTokens: 30,
		Optim: engine.Optim{Rate: 2, Beta1: 0.5}, Schedule: schedule.Rate{Warmup: 3, Decay: "cosine", Floor: 0.1}}
}

func train(t *testing.T, e engine.Engine, c Config, dir string) Report {
	t.Helper()
	r, err := Train(t.Context(), e, c, dir)
	require.NoError(t, err)
	return r
}

func entries(t *testing.T, dir string) []curves.Entry {
	t.Helper()
	all, err := curves.Read(filepath.Join(dir, curves.Metrics))
	require.NoError(t, err)
	return all
}

func file(t *testing.T, path ...string) string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(path...))
	require.NoError(t, err)
	return string(data)
}

func folders(t *testing.T, dir string) []string {
	t.Helper()
	names, err := filepath.Glob(filepath.Join(dir, "step-*"))
	require.NoError(t, err)
	for i := range names {
		names[i] = filepath.Base(names[i])
	}
	return names
}

// mean is what a loss should be.
func mean(b *bigram, all []Example) float64 {
	sum, n := 0.0, 0.0
	for _, x := range all {
		for k, in := range x.Mask {
			if in {
				sum -= math.Log(b.probability(x.Tokens[k-1], x.Tokens[k]))
				n++
			}
		}
	}
	return sum / n
}

func TestTrain(t *testing.T) {
	c, dir, b := config(), t.TempDir(), newBigram()
	var seen []Report
	c.Progress = func(r Report) { seen = append(seen, r) }
	r := train(t, b, c, dir)

	require.Equal(t, 14, b.version)
	require.Len(t, seen, 15)
	for i, s := range seen {
		require.Equal(t, [2]int{i, 14}, [2]int{s.Step, s.Steps})
	}
	require.Nil(t, seen[0].TrainLoss)
	require.InDelta(t, mean(newBigram(), c.Dev), *seen[0].DevLoss, 1e-6)
	require.Equal(t, seen[14], r)
	require.InDelta(t, mean(b, c.Dev), *r.DevLoss, 1e-6, "of the weights as they are at the end")
	require.Less(t, mean(b, c.Train), mean(newBigram(), c.Train)-0.5)

	all := entries(t, dir)
	require.Len(t, all, 15)
	tokens := 0.0
	for i, e := range all {
		require.Equal(t, i, e.Step)
		_, dev := e.Values["dev/loss"]
		require.Equal(t, i%4 == 0 || i == 14, dev)
		if dev {
			require.InDelta(t, math.Exp(e.Values["dev/loss"]), e.Values["dev/perplexity"], 1e-12)
		}
		if i > 0 {
			require.Equal(t, c.Schedule.At(2, i-1, 14), e.Values["train/learning_rate"])
			require.Greater(t, e.Values["train/tokens"], tokens)
			tokens = e.Values["train/tokens"]
		}
	}
	require.InDelta(t, r.Tokens, tokens, 0)
	require.Equal(t, *r.TrainLoss, all[14].Values["train/loss"])
	require.NotContains(t, file(t, dir, curves.Metrics), curves.Clock)
	require.Equal(t, 14, strings.Count(file(t, dir, curves.Times), "time/tokens_per_second"))
	require.Contains(t, file(t, dir, "curves.svg"), ">loss (nats per token)<")

	// The same run elsewhere has the same files; one that has ended is not run again.
	again := t.TempDir()
	c.Progress = nil
	require.Equal(t, r.DevLoss, train(t, newBigram(), c, again).DevLoss)
	require.Equal(t, file(t, dir, curves.Metrics), file(t, again, curves.Metrics))
	idle := newBigram()
	require.Equal(t, r, train(t, idle, c, dir))
	require.Equal(t, b.w, idle.w)
	require.Zero(t, idle.passes)
	c.Seed++
	train(t, newBigram(), c, t.TempDir())
}

// The loss weighs tokens alike, whatever example and pass they are in, and its gradients are that loss's.
func TestLoss(t *testing.T) {
	c := config()
	c.Dev, c.Steps, c.Batch = nil, 1, len(c.Train)
	var norms, losses []float64
	for _, tokens := range []int{1, 30, 1000} {
		c.PassTokens = tokens
		b, dir := newBigram(), t.TempDir()
		b.step = func(norm float64) error { norms = append(norms, norm); return nil }
		b.forward = func(batch engine.Batch) {
			longest, distinct := 0, map[string]bool{}
			for _, row := range batch.Tokens {
				longest = max(longest, len(row))
				for k := range row {
					distinct[fmt.Sprint(row[:k+1])] = true
				}
			}
			require.LessOrEqual(t, len(distinct), max(longest, tokens))
		}
		train(t, b, c, dir)
		losses = append(losses, entries(t, dir)[0].Values["train/loss"])
		require.Equal(t, map[int]int{1: 10, 30: 4, 1000: 1}[tokens], b.passes)
		require.Zero(t, b.discarded)
	}
	for i := range losses {
		require.InDelta(t, mean(newBigram(), c.Train), losses[i], 1e-6)
		require.InDelta(t, norms[0], norms[i], 1e-6)
	}
	// Against differences of the loss.
	b, want := newBigram(), 0.0
	for i := range b.w {
		for j := range b.w {
			w := b.w[i][j]
			b.w[i][j] = w + 1e-4
			more := mean(b, c.Train)
			b.w[i][j] = w - 1e-4
			d := (more - mean(b, c.Train)) / 2e-4
			b.w[i][j] = w
			want += d * d
		}
	}
	require.InDelta(t, math.Sqrt(want), norms[0], 1e-6)
}

// Each epoch shows every example once, in an order of its own that the seed decides.
func TestOrder(t *testing.T) {
	c := config()
	c.Dev, c.Batch = nil, 5
	order := func(seed uint64, epochs int) [][]int {
		c.Seed, c.Steps = seed, schedule.Steps(epochs, len(c.Train), c.Batch)
		tr := &trainer{Config: c}
		var out [][]int
		for step := range c.Steps {
			var which []int
			for _, x := range tr.examples(step) {
				which = append(which, slices.IndexFunc(c.Train, func(y Example) bool { return &x.Tokens[0] == &y.Tokens[0] }))
			}
			late := &trainer{Config: c}
			require.Equal(t, tr.examples(step), late.examples(step), "also for one that starts there")
			out = append(out, which)
		}
		return out
	}
	a := order(1, 3)
	require.Len(t, a, 6)
	for epoch := range 3 {
		all := slices.Concat(a[2*epoch], a[2*epoch+1])
		slices.Sort(all)
		require.Equal(t, []int{0, 1, 2, 3, 4, 5, 6, 7, 8, 9}, all)
	}
	require.NotEqual(t, a[:2], a[2:4])
	require.NotEqual(t, a[:2], order(2, 1))
	require.Equal(t, a, order(1, 3))
}

// Pretraining takes all tokens, at first of short examples, at last of all but the shortest.
func TestPretrain(t *testing.T) {
	c := config()
	c.Dev, c.Steps, c.Batch, c.Pretrain = nil, 50, 40, 40
	for i := range c.Train {
		c.Train[i] = Example{make([]int32, 20-i), slices.Repeat([]bool{false, true}, 10)[:20-i]}
	}
	lengths := func(step int) [2]int {
		tr := &trainer{Config: c}
		out := tr.examples(step)
		require.Equal(t, out, (&trainer{Config: c}).examples(step))
		require.Len(t, out, c.Batch)
		for _, x := range out {
			require.Len(t, x.Mask, len(x.Tokens))
			require.Equal(t, step < c.Pretrain, !slices.Contains(x.Mask[1:], false))
			require.False(t, x.Mask[0])
		}
		return [2]int{len(out[0].Tokens), len(out[len(out)-1].Tokens)}
	}
	require.Equal(t, 10, len(c.Train))
	for step, want := range map[int][2]int{0: {14, 16}, 26: {14, 16}, 33: {14, 18}, 39: {14, 20}, 40: {11, 20}} {
		require.Equal(t, want, lengths(step), "step %d", step)
	}
}

// Interrupted in any pass, evaluation included, a run goes on as if it had not been, and so a second time.
func TestInterrupted(t *testing.T) {
	c := config()
	c.Steps, c.Eval, c.Save, c.PassTokens = 7, 3, 2, 60
	whole, b := t.TempDir(), newBigram()
	want := train(t, b, c, whole)
	for n := 1; n <= b.passes; n++ {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			t.Parallel() // most of the time is spent on waiting for the disk
			dir := t.TempDir()
			stopped := 0
			for _, after := range []int{n, 2} {
				ctx, cancel := context.WithCancel(t.Context())
				e := newBigram()
				e.forward = func(engine.Batch) {
					if e.passes == after {
						cancel()
					}
				}
				r, err := Train(ctx, e, c, dir)
				if err == nil {
					continue // the second time there was little left to do
				}
				stopped++
				require.ErrorIs(t, err, context.Canceled)
				require.Contains(t, folders(t, dir), fmt.Sprintf("step-%06d", r.Step))
				require.Equal(t, r.Step, e.version)
			}
			require.NotZero(t, stopped)
			e := newBigram()
			got := train(t, e, c, dir)
			require.Equal(t, b.w, e.w, "interrupted in pass %d", n)
			require.Equal(t, file(t, whole, curves.Metrics), file(t, dir, curves.Metrics))
			got.Best.Dir = want.Best.Dir
			require.Equal(t, want, got)
			require.Equal(t, folders(t, whole), folders(t, dir))
		})
	}
}

// A step is taken whole, also where the run is interrupted meanwhile.
func TestInterruptedStep(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	e := newBigram()
	e.step = func(float64) error {
		if e.version == 4 {
			cancel()
		}
		return nil
	}
	c := config()
	dir := t.TempDir()
	r, err := Train(ctx, e, c, dir)
	require.ErrorIs(t, err, context.Canceled)
	require.Equal(t, 5, r.Step)
	require.Equal(t, 5, e.version)
	whole, rest := newBigram(), newBigram()
	train(t, whole, c, t.TempDir())
	train(t, rest, c, dir)
	require.Equal(t, whole.w, rest.w)
}

// Killed in the middle of a checkpoint, a run goes on from the one before.
func TestKilled(t *testing.T) {
	const env = "MCPGYM_SFT_KILL"
	c := config()
	if v := os.Getenv(env); v != "" {
		which, dir, _ := strings.Cut(v, " ")
		left, err := strconv.Atoi(which)
		require.NoError(t, err)
		b := newBigram()
		b.snapshot = func() {
			if left--; left == 0 {
				self, _ := os.FindProcess(os.Getpid())
				_ = self.Kill()
				select {}
			}
		}
		train(t, b, c, dir)
		return
	}
	whole, b := t.TempDir(), newBigram()
	train(t, b, c, whole)
	for _, n := range []int{1, 2, 4} {
		dir := t.TempDir()
		cmd := exec.Command(os.Args[0], "-test.run=^TestKilled$")
		cmd.Env = append(os.Environ(), fmt.Sprintf("%s=%d %s", env, n, dir))
		out, err := cmd.CombinedOutput()
		require.ErrorContains(t, err, "killed", "%s", out)
		require.DirExists(t, filepath.Join(dir, ".checkpoint"), "it died there")
		require.Equal(t, n > 1, len(folders(t, dir)) > 0)

		e := newBigram()
		train(t, e, c, dir)
		require.Equal(t, b.w, e.w)
		require.Less(t, e.passes, b.passes+1)
		require.Equal(t, file(t, whole, curves.Metrics), file(t, dir, curves.Metrics))
		require.Equal(t, folders(t, whole), folders(t, dir))
		require.NoDirExists(t, filepath.Join(dir, ".checkpoint"))
	}
}

// The best checkpoint stays, though the loss of the dev examples rises again, and its weights have that loss.
func TestBest(t *testing.T) {
	c := config()
	c.Steps, c.Optim.Rate = 40, 4
	dir := t.TempDir()
	r := train(t, newBigram(), c, dir)
	require.Less(t, r.Best.Step, 40)
	require.Positive(t, r.Best.Step)
	require.Less(t, r.Best.Loss, *r.DevLoss)
	for _, e := range entries(t, dir) {
		if loss, ok := e.Values["dev/loss"]; ok {
			require.LessOrEqual(t, r.Best.Loss, loss)
			require.True(t, e.Step != r.Best.Step || loss == r.Best.Loss)
		}
	}
	require.Equal(t, []string{fmt.Sprintf("step-%06d", r.Best.Step), "step-000040"}, folders(t, dir))
	b := newBigram()
	require.NoError(t, b.Restore(r.Best.Dir))
	require.InDelta(t, r.Best.Loss, mean(b, c.Dev), 1e-6)

	c.Dev, dir = nil, t.TempDir()
	r = train(t, newBigram(), c, dir)
	require.Nil(t, r.Best)
	require.Nil(t, r.DevLoss)
	require.Equal(t, []string{"step-000040"}, folders(t, dir))
}

// Where a number is not finite the run stops, and says what it was computing with.
func TestNotFinite(t *testing.T) {
	for _, where := range []string{"loss", "dev", "step"} {
		t.Run(where, func(t *testing.T) {
			c, dir, e := config(), t.TempDir(), newBigram()
			c.Steps = 30
			poison := func() { e.w[5][5] = math.NaN() }
			switch where {
			case "loss":
				e.step = func(float64) error {
					if e.version == 6 {
						poison()
					}
					return nil
				}
			case "dev":
				c.Train = slices.DeleteFunc(examples(1, 60), func(x Example) bool { return slices.Contains(x.Tokens, 5) })
				e.step = func(float64) error {
					if e.version == 6 {
						poison()
					}
					return nil
				}
			case "step":
				e.step = func(float64) error {
					if e.version == 7 {
						return fmt.Errorf("a step: %w", engine.ErrNotFinite)
					}
					return nil
				}
			}
			r, err := Train(t.Context(), e, c, dir)
			require.ErrorIs(t, err, engine.ErrNotFinite)
			var kept struct {
				Step     int
				Examples []Example
			}
			require.NoError(t, json.Unmarshal([]byte(file(t, dir, "not-finite.json")), &kept))
			require.Equal(t, r.Step, kept.Step)
			require.NotEmpty(t, kept.Examples)
			if where == "step" {
				require.Equal(t, (&trainer{Config: c}).examples(7), kept.Examples)
			} else {
				require.True(t, slices.ContainsFunc(kept.Examples, func(x Example) bool { return slices.Contains(x.Tokens, 5) }))
			}
			require.NotContains(t, folders(t, dir), fmt.Sprintf("step-%06d", r.Step), "what went wrong replaces no checkpoint")
			require.NotEmpty(t, folders(t, dir))
		})
	}
}

func TestRefuses(t *testing.T) {
	dir := t.TempDir()
	train(t, newBigram(), config(), dir)
	for name, change := range map[string]func(*Config){
		"seed":     func(c *Config) { c.Seed++ },
		"steps":    func(c *Config) { c.Steps++ },
		"rate":     func(c *Config) { c.Optim.Rate *= 2 },
		"schedule": func(c *Config) { c.Schedule.Floor = 0 },
		"pretrain": func(c *Config) { c.Pretrain = 1 },
		"examples": func(c *Config) { c.Train = c.Train[:9] },
		"a mask":   func(c *Config) { c.Train[3].Mask[len(c.Train[3].Mask)-1] = !c.Train[3].Mask[len(c.Train[3].Mask)-1] },
		"dev":      func(c *Config) { c.Train, c.Dev = append(c.Train, c.Dev[0]), c.Dev[1:] },
	} {
		c := config()
		change(&c)
		_, err := Train(t.Context(), newBigram(), c, dir)
		require.ErrorContains(t, err, "other settings", name)
	}
	c := config()
	c.PassTokens, c.Save = 7, 1
	train(t, newBigram(), c, dir)

	for name, change := range map[string]func(*Config){
		"no steps":        func(c *Config) { c.Steps = 0 },
		"no batch":        func(c *Config) { c.Batch = 0 },
		"no tokens":       func(c *Config) { c.PassTokens = 0 },
		"pretrain":        func(c *Config) { c.Pretrain = c.Steps + 1 },
		"negative eval":   func(c *Config) { c.Eval = -1 },
		"negative save":   func(c *Config) { c.Save = -1 },
		"decay":           func(c *Config) { c.Schedule.Decay = "step" },
		"no examples":     func(c *Config) { c.Train = nil },
		"nothing learned": func(c *Config) { clear(c.Train[3].Mask) },
		"first":           func(c *Config) { c.Dev[3].Mask[0] = true },
		"short mask":      func(c *Config) { c.Dev[3].Mask = c.Dev[3].Mask[1:] },
		"empty":           func(c *Config) { c.Train[0] = Example{} },
	} {
		c, e := config(), newBigram()
		change(&c)
		_, err := Train(t.Context(), e, c, t.TempDir())
		require.Error(t, err, name)
		require.Zero(t, e.passes, name)
	}
}

// model is what training uses of a language model.
type model struct {
	engine.Engine
	lm *lm.Engine
}

func (m model) Forward(ctx context.Context, b engine.Batch) (engine.Pass, error) {
	return m.lm.Forward(ctx, b)
}
func (m model) Step(ctx context.Context, o engine.Optim) (float64, error) { return m.lm.Step(ctx, o) }
func (m model) Snapshot(dir string) error                                 { return m.lm.Snapshot(dir) }
func (m model) Restore(dir string) error                                  { return m.lm.Restore(dir) }

func newModel(t *testing.T) model {
	t.Helper()
	e, err := lm.New(lm.Config{Kind: "qwen3", Hidden: 32, Intermediate: 48, Layers: 2, Heads: 4, KVHeads: 2, HeadDim: 8, Vocab: vocab, QKNorm: true,
		Tied: true, MaxPositions: 64, Eps: 1e-6, Theta: 1e4, DType: lm.F32}, 1, lm.Options{Full: true})
	require.NoError(t, err)
	return model{lm: e}
}

func modelConfig() Config {
	c := config()
	c.Train, c.Dev, c.Batch, c.Steps, c.PassTokens = examples(1, 20), c.Train[:5], 20, 60, 100
	c.Eval, c.Save = 20, 50
	c.Optim = engine.Optim{Rate: 1e-2, Beta1: 0.9, Beta2: 0.99, Epsilon: 1e-8, WeightDecay: 0.01, Clip: 1}
	return c
}

// A model learns twenty random sequences by heart.
func TestModelOverfits(t *testing.T) {
	c, dir := modelConfig(), t.TempDir()
	r := train(t, newModel(t), c, dir)
	first := entries(t, dir)[1].Values["train/loss"]
	require.InDelta(t, math.Log(vocab), first, 0.2, "it knew nothing")
	require.Less(t, *r.TrainLoss, 0.05)
	require.Less(t, *r.DevLoss, 0.05, "those are of the same sequences")
	require.Equal(t, r.Step, r.Best.Step)
}

// A model's run is the same bit for bit on any number of cores, and where it was interrupted.
func TestModelResumes(t *testing.T) {
	c := modelConfig()
	c.Steps, c.Eval, c.Save, c.Batch = 12, 4, 5, 7
	whole := t.TempDir()
	train(t, newModel(t), c, whole)
	weights := file(t, whole, "step-000012", "engine", "state.safetensors")

	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	alone := t.TempDir()
	train(t, newModel(t), c, alone)
	require.True(t, weights == file(t, alone, "step-000012", "engine", "state.safetensors"))
	runtime.GOMAXPROCS(3)

	dir := t.TempDir()
	ctx, cancel := context.WithCancel(t.Context())
	c.Progress = func(r Report) {
		if r.Step == 7 {
			cancel()
		}
	}
	_, err := Train(ctx, newModel(t), c, dir)
	require.ErrorIs(t, err, context.Canceled)
	train(t, newModel(t), c, dir)
	require.True(t, weights == file(t, dir, "step-000012", "engine", "state.safetensors"))
	for _, other := range []string{alone, dir} {
		require.Equal(t, file(t, whole, curves.Metrics), file(t, other, curves.Metrics))
	}
}

// What is not learned is only read: a last token of that kind may be any.
func TestModelMask(t *testing.T) {
	run := func(change func([]Example)) string {
		c, dir := modelConfig(), t.TempDir()
		c.Steps, c.Dev = 3, nil
		for i := range c.Train {
			c.Train[i].Mask[len(c.Train[i].Mask)-1] = false
			c.Train[i].Mask[1] = true
		}
		change(c.Train)
		train(t, newModel(t), c, dir)
		return file(t, dir, curves.Metrics)
	}
	want := run(func([]Example) {})
	other := func(at func(Example) int) func([]Example) {
		return func(all []Example) {
			for _, x := range all {
				x.Tokens[at(x)] = (x.Tokens[at(x)] + 1) % vocab
			}
		}
	}
	require.Equal(t, want, run(other(func(x Example) int { return len(x.Tokens) - 1 })))
	require.NotEqual(t, want, run(other(func(x Example) int { return 0 })), "what comes before is read")
	require.NotEqual(t, want, run(other(func(x Example) int { return slices.Index(x.Mask, true) })))
}

// Gradients that were added up over passes are those of one.
func TestModelAccumulates(t *testing.T) {
	c := modelConfig()
	c.Steps, c.Dev = 3, nil
	var all [][]curves.Entry
	for _, tokens := range []int{1, 60, 10000} {
		c.PassTokens = tokens
		dir := t.TempDir()
		train(t, newModel(t), c, dir)
		all = append(all, entries(t, dir))
	}
	for _, run := range all {
		require.Len(t, run, 3)
		for i, e := range run {
			for _, key := range []string{"train/loss", "train/gradient_norm"} {
				require.InDelta(t, all[0][i].Values[key], e.Values[key], 1e-6, "step %d: %s", e.Step, key)
			}
		}
	}
}
