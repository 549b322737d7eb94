package grpo

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/mark3labs/mcp-go/mcp"
	"github.com/mark3labs/mcp-go/server"
	"github.com/stretchr/testify/require"

	"github.com/mcpgym/mcpgym/envs"
	"github.com/mcpgym/mcpgym/policies"
	"github.com/mcpgym/mcpgym/policies/bpe"
	"github.com/mcpgym/mcpgym/policies/checkpoints"
	"github.com/mcpgym/mcpgym/policies/curves"
	"github.com/mcpgym/mcpgym/policies/engine"
	"github.com/mcpgym/mcpgym/policies/lm"
	"github.com/mcpgym/mcpgym/policies/toolcall"
	"github.com/mcpgym/mcpgym/rewards"
	"github.com/mcpgym/mcpgym/sandboxes"
	"github.com/mcpgym/mcpgym/sandboxes/casetest"
	"github.com/mcpgym/mcpgym/sandboxes/mcpmem"
)

// digit rewards an answer that begins with a digit.
type digit struct{}

func (digit) Score(t *envs.Trajectory) (envs.Score, error) {
	answer, ok := t.Answer()
	if ok && answer != "" && strings.Contains("0123456789", answer[:1]) {
		return envs.Score{Success: true, Value: 1}, nil
	}
	return envs.Score{}, nil
}

func toySpec(t *testing.T) envs.Spec {
	t.Helper()
	s := server.NewMCPServer("toy", "1")
	s.AddTools(mcpmem.Tool("roll", "Rolls.", func(context.Context, struct{}, struct{}) (any, error) { return "7", nil }, mcp.WithReadOnlyHintAnnotation(true)))
	p, err := mcpmem.New(s, sandboxes.Identity{"sandbox": "toy"}, func(sandboxes.World) (struct{}, error) { return struct{}{}, nil })
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, p.Close()) })
	return envs.Spec{
		Name:   "Toy-v0",
		Splits: map[string]envs.Source{"train": tasks("t"), "dev": tasks("d")},
		Limits: envs.Limits{Turns: 3, Calls: 3, ResultBytes: 1000, Call: time.Second, Episode: time.Minute},
		Reward: digit{}, Sandboxes: p,
	}
}

func tasks(prefix string) envs.Source {
	return envs.Generator(func(i int) envs.Task {
		return envs.Task{ID: fmt.Sprint(prefix, i), Family: "toy", Prompt: fmt.Sprintf("say %d", i%10)}
	})
}

func toyGym(t *testing.T) Gym {
	t.Helper()
	spec := toySpec(t)
	return Gym{Name: "Toy-v0", Train: spec.Splits["train"], Eval: spec.Splits["dev"], Reward: rewards.Each(spec.Reward), Play: Rollouts(spec, 16)}
}

// folder has a small tokenizer and a template.
var folder = sync.OnceValues(func() (string, error) {
	text := `say 0 1 2 3 4 5 6 7 8 9 roll {"type":"object","properties":{}} Rolls.`
	tok, err := bpe.Train(slices.Values([]string{text, text}), 280, toolcall.SmallTokens)
	if err != nil {
		return "", err
	}
	dir, err := os.MkdirTemp("", "grpo")
	if err != nil {
		return "", err
	}
	return dir, toolcall.WriteSmall(dir, tok)
})

func TestMain(m *testing.M) {
	code := m.Run()
	if dir, err := folder(); err == nil {
		os.RemoveAll(dir)
	}
	os.Exit(code)
}

func newModel(t *testing.T, o lm.Options) *lm.Engine {
	t.Helper()
	dir, err := folder()
	require.NoError(t, err)
	codec, err := toolcall.OpenCodec(dir)
	require.NoError(t, err)
	o.Tokenizer = dir
	e, err := lm.New(lm.Config{Kind: "qwen3", Hidden: 32, Intermediate: 48, Layers: 1, Heads: 2, KVHeads: 1, HeadDim: 16, Vocab: codec.Size(), Eps: 1e-6, Theta: 1e4,
		QKNorm: true, Tied: true, MaxPositions: 512, DType: lm.F32}, 1, o)
	require.NoError(t, err)
	return e
}

var (
	full = lm.Options{Full: true}
	lora = lm.Options{LoRA: &lm.LoRA{Rank: 4, Alpha: 8}}
)

func config() Config {
	c := Trl()
	c.Steps, c.Groups, c.Group, c.MaxTokens, c.Temperature = 4, 4, 8, 4, 1
	c.Optim.Rate, c.Schedule.Decay = 1e-2, ""
	c.Eval, c.EvalTasks, c.PassTokens, c.Seed = 2, 8, 2000, 5
	return c
}

func file(t *testing.T, path ...string) string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(path...))
	require.NoError(t, err)
	return string(data)
}

func lines(t *testing.T, dir string) []curves.Entry {
	t.Helper()
	all, err := curves.Read(filepath.Join(dir, curves.Metrics))
	require.NoError(t, err)
	return all
}

// A model learns to answer with a digit.
func TestLearns(t *testing.T) {
	for name, change := range map[string]func(*Config){
		"dapo": func(c *Config) { c.Dynamic, c.EpsilonHigh = 3, 0.28 },
		"gspo": func(c *Config) {
			c.Loss, c.Epochs, c.Updates, c.EpsilonLow, c.EpsilonHigh = "gspo", 2, 2, 0.1, 0.1
			c.Bypass, c.Correction = true, Correction{}
		},
		"art": func(c *Config) {
			c.Loss, c.Mean, c.EpsilonLow, c.EpsilonHigh, c.Population = "cispo", "sequences", 0, 5, true
		},
		"reinforce": func(c *Config) { c.Loss, c.EpsilonLow, c.EpsilonHigh, c.Std = "reinforce", 0, 0, "none" },
		"rloo":      func(c *Config) { c.Loss, c.Baseline, c.Std, c.Whiten = "rloo", "leave-one-out", "none", true },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := config()
			c.Steps, c.Group, c.Eval, c.EvalTasks, c.Optim.Rate = 30, 16, 0, 32, 4e-2
			change(&c)
			dir := t.TempDir()
			r, err := Train(t.Context(), newModel(t, full), toyGym(t), c, dir)
			require.NoError(t, err)
			all := lines(t, dir)
			require.Less(t, all[0].Values["eval/reward"], 0.2, "it knew nothing")
			require.Greater(t, *r.EvalReward, 0.6)
			require.Greater(t, *r.EvalSuccess, 0.6)
			require.Equal(t, r.Step, r.Best.Step)
			require.Less(t, all[25].Values["train/entropy"], all[1].Values["train/entropy"]-0.5)
			require.FileExists(t, filepath.Join(dir, "curves.svg"))
		})
	}
}

// spy is an engine that says what it is asked.
type spy struct {
	engine.Engine
	passes, steps int
	forward       func(engine.Batch)
	step          func()
	poison        bool  // its log-probabilities are not numbers
	fail          error // of passes
}

func (s *spy) Forward(ctx context.Context, b engine.Batch) (engine.Pass, error) {
	s.passes++
	if s.forward != nil {
		s.forward(b)
	}
	if err := errors.Join(s.fail, ctx.Err()); err != nil {
		return nil, err
	}
	p, err := s.Engine.Forward(ctx, b)
	if s.poison && err == nil {
		p.LogProbs()[0][slices.Index(b.Mask[0], true)] = float32(math.NaN())
	}
	return p, err
}

func (s *spy) Step(ctx context.Context, o engine.Optim) (float64, error) {
	s.steps++
	if s.step != nil {
		s.step()
	}
	return s.Engine.Step(ctx, o)
}

// The first update is at the weights that sampled: its ratios are 1. Later ones are not.
func TestFirstUpdate(t *testing.T) {
	for _, bypass := range []bool{false, true} {
		t.Run(fmt.Sprint("bypass ", bypass), func(t *testing.T) { firstUpdate(t, bypass) })
	}
}

func firstUpdate(t *testing.T, direct bool) {
	c := config()
	c.Epochs, c.Updates, c.Temperature = 2, 2, 0.7
	tr := &trainer{Config: c, gym: toyGym(t), engine: newModel(t, full)}
	groups, next, sum, err := tr.collect(t.Context(), 0)
	require.NoError(t, err)
	require.Equal(t, 4, next)
	require.Equal(t, 32, sum.planned)
	var rows []*row
	for _, g := range groups {
		rows = append(rows, g.rows...)
	}
	require.NoError(t, tr.advantages(rows))
	rows = tr.active(rows)
	require.NotEmpty(t, rows)
	if direct {
		require.NoError(t, bypass(rows))
		unknown := *rows[0]
		unknown.LogProbs = slices.Repeat([]float32{float32(math.NaN())}, len(unknown.Mask))
		require.ErrorContains(t, bypass([]*row{&unknown}), "gave no probability of a token")
	} else {
		require.NoError(t, tr.forward(t.Context(), rows, false))
	}
	for i := range 2 {
		_, m, err := tr.backward(t.Context(), rows, Size{float64(len(rows)), float64(own(rows))})
		require.NoError(t, err)
		ratio, ok := m.Ratio.Value()
		require.True(t, ok)
		clipped := m.ClipLow.Sum + m.ClipHigh.Sum
		if i == 0 {
			require.InDelta(t, 1, ratio, 1e-5)
			require.Zero(t, clipped)
			corrected, ok := m.Corrected.Value()
			require.True(t, ok)
			require.InDelta(t, 1, corrected, 1e-5, "sampling and training agree")
		} else {
			require.Positive(t, clipped, "the step was large")
		}
		_, err = tr.engine.Step(t.Context(), engine.Optim{Rate: 0.1, Beta1: 0.9, Beta2: 0.99, Epsilon: 1e-8})
		require.NoError(t, err)
	}
}

// Rows without advantage go through no pass, but count in means.
func TestSilent(t *testing.T) {
	c := config()
	c.Groups = 2
	g := toyGym(t)
	g.Reward = scored(func(task string, i int) *float64 { return value(float64(i % 2 * int(task[1]-'0'))) })
	for _, loss := range []string{"grpo", "dapo", "dr_grpo"} {
		c.Loss = loss
		if c.Length = 0; loss == "dr_grpo" {
			c.Length = 10
		}
		e := &spy{Engine: newModel(t, full)}
		tr := &trainer{Config: c, gym: g, engine: e}
		groups, _, _, err := tr.collect(t.Context(), 0)
		require.NoError(t, err)
		all := slices.Concat(groups[0].rows, groups[1].rows)
		share := 0.5
		if loss == "dapo" {
			share = float64(own(groups[1].rows)) / float64(own(all))
		}
		e.forward = func(b engine.Batch) { require.Len(t, b.Tokens, 8) }
		norm := func(rows []*row) float64 {
			tr.engine.(*spy).Engine = newModel(t, full)
			line, err := tr.learn(t.Context(), rows)
			require.NoError(t, err)
			return line["train/gradient_norm"]
		}
		require.InEpsilon(t, share*norm(groups[1].rows), norm(all), 1e-4, loss)
		require.Equal(t, 2, e.passes)
	}
}

// A new adapter changes nothing: the divergence from the reference begins at exactly 0. It does not stay there.
func TestReference(t *testing.T) {
	for _, loss := range []string{"dapo", "rloo"} {
		c := config()
		c.Steps, c.KL = 2, 0.1
		if loss == "rloo" {
			c.Loss, c.Baseline, c.KLRatio = loss, "leave-one-out", false
		}
		dir := t.TempDir()
		e := &spy{Engine: newModel(t, lora)}
		tr := &trainer{Config: c, gym: toyGym(t), engine: e, dir: dir}
		for step := range 2 {
			groups, _, _, err := tr.collect(t.Context(), 4*step)
			require.NoError(t, err)
			var rows []*row
			var before []float64
			for _, g := range groups {
				for _, r := range g.rows {
					rows, before = append(rows, r), append(before, *r.reward)
				}
			}
			line, err := tr.learn(t.Context(), rows)
			require.NoError(t, err)
			changed := false
			for i, r := range rows {
				changed = changed || *r.reward != before[i]
				want := before[i]
				for k, in := range r.Mask {
					if in && loss == "rloo" {
						want -= c.KL * float64(r.old[k]-r.reference[k])
					}
				}
				require.InDelta(t, want, *r.reward, 1e-6)
			}
			if loss == "rloo" {
				require.Equal(t, step > 0, changed)
			} else {
				require.False(t, changed)
			}
			require.Contains(t, line, "train/kl")
			require.Equal(t, step > 0, line["train/kl"] != 0)
		}
	}
}

func hard() Config {
	c := config()
	c.Steps, c.Epochs, c.Updates, c.Dynamic, c.Tasks, c.KL, c.Save = 5, 2, 2, 2, 10, 0.05, 2
	return c
}

func train(t *testing.T, e engine.Engine, c Config, dir string) Report {
	t.Helper()
	r, err := Train(t.Context(), e, toyGym(t), c, dir)
	require.NoError(t, err)
	return r
}

func weights(t *testing.T, dir string, step int) string {
	t.Helper()
	return file(t, checkpoints.Engine(dir, step), "state.safetensors")
}

// Interrupted anywhere, in play, evaluation or learning, a run goes on as if it had not been. Each step is taken whole or not at all.
func TestInterrupted(t *testing.T) {
	c := hard()
	whole := t.TempDir()
	e := &spy{Engine: newModel(t, lora)}
	want := train(t, e, c, whole)
	require.Positive(t, *want.Speed)
	want.Best, want.Speed = nil, nil
	steps, passes := e.steps, e.passes
	require.Equal(t, 5*4, steps)
	for i := range 8 {
		t.Run(fmt.Sprint(i), func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			ctx, cancel := context.WithCancel(t.Context())
			e, g := &spy{Engine: newModel(t, lora)}, toyGym(t)
			switch play := g.Play; {
			case i < 3: // within a pass
				e.forward = func(engine.Batch) {
					if e.passes == 1+i*passes/3 {
						cancel()
					}
				}
			case i < 6: // within a step of the optimiser, the first of an epoch or not
				e.step = func() {
					if e.steps == 1+(i-3)*steps/3+i%2 {
						cancel()
					}
				}
			default: // in play
				n := 0
				g.Play = func(ctx context.Context, p policies.Policy, plays []Play) ([]*envs.Trajectory, error) {
					if n++; n == 2*(i-4) {
						cancel()
					}
					return play(ctx, p, plays)
				}
			}
			r, err := Train(ctx, e, g, c, dir)
			require.ErrorIs(t, err, context.Canceled)
			require.Equal(t, 4*r.Step, e.Version(), "whole steps")
			left, err := checkpoints.Steps(dir)
			require.NoError(t, err)
			require.Contains(t, left, r.Step)
			again := newModel(t, lora)
			got := train(t, again, c, dir)
			got.Best, got.Speed = nil, nil
			require.Equal(t, want, got)
			require.True(t, weights(t, whole, 5) == weights(t, dir, 5))
			require.Equal(t, file(t, whole, curves.Metrics), file(t, dir, curves.Metrics))
		})
	}
}

// killer is an engine whose process is killed in the middle of a snapshot.
type killer struct {
	engine.Engine
	left int
}

func (k *killer) Snapshot(dir string) error {
	if k.left--; k.left == 0 {
		self, _ := os.FindProcess(os.Getpid())
		_ = self.Kill()
		select {}
	}
	return k.Engine.Snapshot(dir)
}

// Killed in the middle of a checkpoint, a run goes on from the one before.
func TestKilled(t *testing.T) {
	const env = "MCPGYM_GRPO_KILL"
	c := hard()
	if v := os.Getenv(env); v != "" {
		which, dir, _ := strings.Cut(v, " ")
		left, err := strconv.Atoi(which)
		require.NoError(t, err)
		train(t, &killer{newModel(t, lora), left}, c, dir)
		return
	}
	whole := t.TempDir()
	train(t, newModel(t, lora), c, whole)
	for _, n := range []int{1, 2, 3} {
		dir := t.TempDir()
		cmd := exec.Command(os.Args[0], "-test.run=^TestKilled$")
		cmd.Env = append(os.Environ(), fmt.Sprintf("%s=%d %s", env, n, dir))
		out, err := cmd.CombinedOutput()
		require.ErrorContains(t, err, "killed", "%s", out)
		left, err := checkpoints.Steps(dir)
		require.NoError(t, err)
		require.Equal(t, n > 1, len(left) > 0)
		train(t, newModel(t, lora), c, dir)
		require.True(t, weights(t, whole, 5) == weights(t, dir, 5))
		require.Equal(t, file(t, whole, curves.Metrics), file(t, dir, curves.Metrics))
	}
}

// How sequences are cut into passes, and how many episodes are played at once, changes no more than rounding does.
func TestPasses(t *testing.T) {
	c := hard()
	c.Steps, c.Dynamic = 2, 0
	var norms []float64
	for _, n := range []int{1, 100, 100000} {
		c.PassTokens = n
		dir, g := t.TempDir(), toyGym(t)
		g.Play = Rollouts(toySpec(t), n)
		e := &spy{Engine: newModel(t, lora)}
		e.forward = func(b engine.Batch) {
			longest, distinct := 0, map[string]bool{}
			for _, row := range b.Tokens {
				longest = max(longest, len(row))
				for k := range row {
					distinct[fmt.Sprint(row[:k+1])] = true
				}
			}
			require.LessOrEqual(t, len(distinct), max(longest, n))
		}
		_, err := Train(t.Context(), e, g, c, dir)
		require.NoError(t, err)
		norms = append(norms, lines(t, dir)[1].Values["train/gradient_norm"])
	}
	require.InEpsilon(t, norms[0], norms[1], 1e-4)
	require.InEpsilon(t, norms[0], norms[2], 1e-4)
}

// Where a number is not finite the run stops, and says what it was computing with.
func TestNotFinite(t *testing.T) {
	c := config()
	c.Steps, c.Save = 6, 1
	e, dir := &spy{Engine: newModel(t, full)}, t.TempDir()
	e.step = func() { e.poison = e.steps == 2 }
	r, err := Train(t.Context(), e, toyGym(t), c, dir)
	require.ErrorIs(t, err, engine.ErrNotFinite)
	require.Equal(t, 2, r.Step)
	var kept struct {
		Step     int
		Episodes []struct {
			Tokens    []int32
			Mask      []bool
			Reward    *float64
			Advantage float64
		}
	}
	require.NoError(t, json.Unmarshal([]byte(file(t, dir, "not-finite.json")), &kept))
	require.Equal(t, 2, kept.Step)
	require.NotEmpty(t, kept.Episodes)
	for _, e := range kept.Episodes {
		require.Len(t, e.Mask, len(e.Tokens))
		require.NotZero(t, e.Advantage)
	}
	left, err := checkpoints.Steps(dir)
	require.NoError(t, err)
	require.Contains(t, left, 2)
}

// Weights that some of a step's updates have changed are in no checkpoint.
func TestBetween(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	e, dir, gone := &spy{Engine: newModel(t, lora)}, t.TempDir(), errors.New("gone")
	e.step = func() {
		if e.steps == 5 {
			e.fail = gone
			cancel()
		}
	}
	c := hard()
	c.Save = 0
	r, err := Train(ctx, e, toyGym(t), c, dir)
	require.ErrorIs(t, err, gone)
	require.Equal(t, 1, r.Step)
	require.Equal(t, 5, e.Version())
	left, err := checkpoints.Steps(dir)
	require.NoError(t, err)
	require.Equal(t, []int{0}, left)
}

func TestRefuses(t *testing.T) {
	dir, c := t.TempDir(), config()
	c.Steps = 2
	train(t, newModel(t, full), c, dir)
	for name, change := range map[string]func(*Config, *Gym){
		"seed":  func(c *Config, _ *Gym) { c.Seed++ },
		"rate":  func(c *Config, _ *Gym) { c.Optim.Rate *= 2 },
		"loss":  func(c *Config, _ *Gym) { c.Loss = "grpo" },
		"steps": func(c *Config, _ *Gym) { c.Steps = 3 },
		"gym":   func(_ *Config, g *Gym) { g.Name = "Toy-v1" },
	} {
		c, g := c, toyGym(t)
		change(&c, &g)
		_, err := Train(t.Context(), newModel(t, full), g, c, dir)
		require.ErrorContains(t, err, "other settings", name)
	}
	g := toyGym(t)
	g.Eval = nil
	_, err := Train(t.Context(), newModel(t, full), g, c, t.TempDir())
	require.ErrorContains(t, err, "eval_tasks of 8: the gym needs")
	c.Group = 1
	_, err = Train(t.Context(), newModel(t, full), toyGym(t), c, t.TempDir())
	require.ErrorContains(t, err, "group of 1")
}

// collect plays a step's groups of a gym and a config.
func collect(t *testing.T, c Config, g Gym) ([]*group, int, tally, error) {
	t.Helper()
	tr := &trainer{Config: c, gym: g, engine: newModel(t, full)}
	return tr.collect(t.Context(), 0)
}

// Void episodes are played again. A group that stays void is left out whole, and another is played.
func TestVoid(t *testing.T) {
	c := config()
	g := toyGym(t)
	play := g.Play
	broken := map[string]int{"t1": 1, "t2": 100} // tasks, and how often their first member fails
	g.Play = func(ctx context.Context, p policies.Policy, plays []Play) ([]*envs.Trajectory, error) {
		out, err := play(ctx, p, plays)
		done := map[string]bool{}
		for i, x := range plays {
			if id := x.Task.ID; broken[id] > 0 && !done[id] {
				broken[id]--
				done[id] = true
				out[i].Void = &sandboxes.Fault{Kind: sandboxes.FaultDied, Op: "toy", Msg: "gone"}
			}
		}
		return out, err
	}
	groups, next, sum, err := collect(t, c, g)
	require.NoError(t, err)
	require.Equal(t, 5, next, "one more task")
	var keys []string
	for _, x := range groups {
		keys = append(keys, x.key)
		require.Len(t, x.rows, 8)
	}
	require.Equal(t, []string{"0", "1", "3", "4"}, keys)
	require.Equal(t, 1+3, sum.void)
	require.Equal(t, 5*8+1+2, sum.planned)

	g.Play = func(ctx context.Context, p policies.Policy, plays []Play) ([]*envs.Trajectory, error) {
		out, err := play(ctx, p, plays)
		for i := range out {
			out[i].Void = &sandboxes.Fault{Kind: sandboxes.FaultDied, Op: "toy", Msg: "gone"}
		}
		return out, err
	}
	_, _, _, err = collect(t, c, g)
	require.ErrorContains(t, err, "none of 8 groups")
	for _, got := range [][]*envs.Trajectory{nil, make([]*envs.Trajectory, 32)} {
		g.Play = func(context.Context, policies.Policy, []Play) ([]*envs.Trajectory, error) { return got, nil }
		_, _, _, err := collect(t, c, g)
		require.ErrorContains(t, err, "of 32 episodes")
	}
	require.ErrorContains(t, err, "gone")
}

// scored is a reward that is made of the task's number and the member's.
type scored func(task string, member int) *float64

func (s scored) ScoreGroup(_ context.Context, group []*envs.Trajectory) ([]*envs.Score, error) {
	var out []*envs.Score
	for i, m := range group {
		if r := s(m.Task.ID, i); r != nil {
			out = append(out, &envs.Score{Value: *r})
		} else {
			out = append(out, nil)
		}
	}
	return out, nil
}

func value(x float64) *float64 { return &x }

// together is a reward that waits until as many groups as there are are asked for.
type together struct {
	envs.GroupReward
	groups sync.WaitGroup
	fail   error // of the first task's group
}

func (r *together) ScoreGroup(ctx context.Context, group []*envs.Trajectory) ([]*envs.Score, error) {
	r.groups.Done()
	r.groups.Wait()
	if r.fail != nil {
		if group[0].Task.ID == "t0" {
			return nil, r.fail
		}
		<-ctx.Done()
	}
	return r.GroupReward.ScoreGroup(ctx, group)
}

// Groups are scored at once, and keep their order. Where one fails the others are told.
func TestScores(t *testing.T) {
	g := toyGym(t)
	r := &together{GroupReward: scored(func(task string, i int) *float64 {
		n, _ := strconv.Atoi(task[1:])
		return value(float64(100*n + i))
	})}
	r.groups.Add(4)
	g.Reward = r
	groups, _, _, err := collect(t, config(), g)
	require.NoError(t, err)
	for n, x := range groups {
		for i, row := range x.rows {
			require.Equal(t, float64(100*n+i), *row.reward)
		}
	}
	r.fail = errors.New("gone")
	r.groups.Add(4)
	_, _, _, err = collect(t, config(), g)
	require.ErrorIs(t, err, r.fail)
	require.ErrorContains(t, err, "reward: ")
}

// What a step's line says, its report says too; what was not measured is nil.
func TestReport(t *testing.T) {
	g, c, dir := toyGym(t), config(), t.TempDir()
	c.Steps, c.KL = 1, 0.05
	r, err := Train(t.Context(), newModel(t, lora), g, c, dir)
	require.NoError(t, err)
	line := lines(t, dir)[1].Values
	for key, got := range map[string]*float64{"reward": r.Reward, "success": r.Success, "loss": r.Loss, "kl": r.KL} {
		require.Equal(t, line["train/"+key], *got, key)
	}
	times, err := curves.Read(filepath.Join(dir, curves.Times))
	require.NoError(t, err)
	require.Equal(t, times[len(times)-1].Values[curves.Clock+"tokens_per_second"], *r.Speed)

	c.KL = 0
	g.Reward = scored(func(string, int) *float64 { return nil })
	r, err = Train(t.Context(), newModel(t, full), g, c, t.TempDir())
	require.NoError(t, err)
	require.Equal(t, []*float64{nil, nil, nil}, []*float64{r.Reward, r.Loss, r.KL})
	require.Zero(t, *r.Success)
}

// An episode that was not scored has no advantage, and is no part of the others' baseline.
func TestUnscored(t *testing.T) {
	c := config()
	c.Groups = 1
	g := toyGym(t)
	g.Reward = scored(func(_ string, i int) *float64 {
		if i < 2 {
			return nil
		}
		return value(float64(i % 2))
	})
	tr := &trainer{Config: c, gym: g, engine: newModel(t, full)}
	groups, _, sum, err := tr.collect(t.Context(), 0)
	require.NoError(t, err)
	require.Equal(t, 2, sum.unscored)
	require.NoError(t, tr.advantages(groups[0].rows))
	for i, r := range groups[0].rows {
		if i < 2 {
			require.Zero(t, r.advantage)
		} else {
			require.InDelta(t, (float64(i%2)-0.5)/(math.Sqrt(0.3)+1e-4), r.advantage, 1e-9)
		}
	}
	g.Reward = scored(func(string, int) *float64 { return value(math.NaN()) })
	_, err = Train(t.Context(), newModel(t, full), g, c, t.TempDir())
	require.ErrorContains(t, err, "is NaN")
}

// Groups without signal are replaced, a number of times. What else learns from them keeps them.
func TestDynamic(t *testing.T) {
	g := toyGym(t)
	g.Reward = scored(func(task string, i int) *float64 { // every third task has a signal
		n, _ := strconv.Atoi(task[1:])
		if n%3 == 0 {
			return value(float64(i))
		}
		return value(0.1)
	})
	c := config()
	for _, x := range []struct {
		dynamic, next, groups int
		kl                    float64
	}{{0, 4, 4, 0}, {2, 8, 3, 0}, {5, 10, 4, 0}, {5, 10, 10, 0.1}} {
		c.Dynamic, c.KL = x.dynamic, x.kl
		groups, next, sum, err := collect(t, c, g)
		require.NoError(t, err)
		require.Equal(t, x.next, next)
		require.Len(t, groups, x.groups)
		require.Equal(t, x.next, sum.groups)
		require.Equal(t, x.next-(x.next+2)/3, sum.flat)
	}
	t.Run("C238", func(t *testing.T) { // advantages of 1e-9 are none, but the tokens are kept for another term
		g.Reward = scored(func(_ string, i int) *float64 { return value(0.1 + 1e-9*float64(i)) })
		c.Dynamic, c.KL = 2, 0
		groups, _, _, err := collect(t, c, g)
		require.NoError(t, err)
		require.Empty(t, groups)
		c.Entropy = 0.01
		groups, _, _, err = collect(t, c, g)
		require.NoError(t, err)
		require.Len(t, groups, 8)
	})
	t.Run("nothing to learn", func(t *testing.T) {
		g.Reward = scored(func(string, int) *float64 { return value(0.1) })
		for _, dynamic := range []int{0, 2} {
			c := config()
			c.Steps, c.Dynamic = 1, dynamic
			e, dir := &spy{Engine: newModel(t, full)}, t.TempDir()
			r, err := Train(t.Context(), e, g, c, dir)
			require.NoError(t, err)
			require.Zero(t, e.steps)
			require.Zero(t, e.passes)
			require.Equal(t, 1, r.Step)
			require.Equal(t, 1.0, lines(t, dir)[1].Values["train/zero_variance"])
		}
	})
}

func TestTasks(t *testing.T) {
	t.Run("C222", func(t *testing.T) { // tasks that the source repeats are not repeated once more
		c := config()
		c.Groups, c.Group = 8, 4
		g := toyGym(t)
		g.Train = envs.Generator(func(i int) envs.Task { return tasks("t").Task(i / 4) })
		_, next, sum, err := collect(t, c, g)
		require.NoError(t, err)
		require.Equal(t, 32, sum.planned)
		require.Equal(t, 29, next)
		g.Train = envs.Generator(func(int) envs.Task { return tasks("t").Task(0) })
		_, _, _, err = collect(t, c, g)
		require.ErrorContains(t, err, "none is new")
	})
	t.Run("each once", func(t *testing.T) {
		c, g := config(), toyGym(t)
		play, seeds := g.Play, map[uint64]bool{}
		var ids []string
		g.Play = func(ctx context.Context, p policies.Policy, plays []Play) ([]*envs.Trajectory, error) {
			for _, x := range plays {
				if x.Task.ID[0] == 't' {
					ids = append(ids, x.Task.ID)
					seeds[x.Seed] = true
				}
			}
			return play(ctx, p, plays)
		}
		_, err := Train(t.Context(), newModel(t, full), g, c, t.TempDir())
		require.NoError(t, err)
		require.Len(t, seeds, 4*4*8, "each episode has another")
		ids = slices.Compact(ids)
		for i, id := range ids {
			require.Equal(t, fmt.Sprint("t", i), id)
		}
		require.Len(t, ids, 4*4)
	})
	t.Run("epochs", func(t *testing.T) { // each epoch has every task once, in an order of its own
		c := config()
		c.Tasks = 7
		tr := &trainer{Config: c, gym: toyGym(t)}
		var epochs [][]string
		for n := range 21 {
			if n%7 == 0 {
				epochs = append(epochs, nil)
			}
			epochs[n/7] = append(epochs[n/7], tr.task(n).ID)
		}
		require.NotEqual(t, epochs[0], epochs[1])
		for _, e := range epochs {
			slices.Sort(e)
			require.Equal(t, []string{"t0", "t1", "t2", "t3", "t4", "t5", "t6"}, e)
		}
	})
}

// parrot is an engine that says what it is told to, in each episode the same.
type parrot struct {
	engine.Engine
	turns [][]int32
}

func (p parrot) Generate(_ context.Context, r engine.Request) (engine.Sample, error) {
	turn := p.turns[0]
	for _, said := range p.turns { // the first that the conversation does not have yet
		if turn = said; !contains(r.Prompt, said) {
			break
		}
	}
	s := engine.Sample{Tokens: turn, Finish: "stop"}
	for i := range turn {
		s.LogProbs = append(s.LogProbs, -float32(i+1))
	}
	return s, nil
}

func contains(all, part []int32) bool {
	for i := range len(all) - len(part) + 1 {
		if slices.Equal(all[i:i+len(part)], part) {
			return true
		}
	}
	return false
}

// saying gives turns their tokens.
func saying(t *testing.T, e engine.Engine, turns ...engine.Message) (p parrot) {
	t.Helper()
	p.Engine = e
	for _, m := range turns {
		m.Role = "assistant"
		tokens, err := e.Turn(m)
		require.NoError(t, err)
		p.turns = append(p.turns, tokens)
	}
	return p
}

func roll(thought string) engine.Message {
	return engine.Message{Reasoning: thought, Calls: []engine.Call{{Name: "roll", Arguments: []byte("{}")}}}
}

func TestRows(t *testing.T) {
	e := newModel(t, full)
	c := config()
	c.Groups, c.Group, c.Overlong = 1, 2, Overlong{Max: 30, Cache: 20}
	t.Run("C224", func(t *testing.T) { // three turns: the model's own tokens alone carry loss, each with its log-probability
		p := saying(t, e, roll("a"), roll("b"), engine.Message{Text: "7"})
		tr := &trainer{Config: c, gym: toyGym(t), engine: p}
		groups, _, sum, err := tr.collect(t.Context(), 0)
		require.NoError(t, err)
		require.Equal(t, 2*3, sum.turns)
		for _, r := range groups[0].rows {
			require.Len(t, r.Mask, len(r.Tokens))
			require.Len(t, r.LogProbs, len(r.Tokens))
			require.False(t, r.cut)
			var own []int32
			for i, in := range r.Mask {
				require.Equal(t, in, r.LogProbs[i] != 0)
				if in {
					own = append(own, r.Tokens[i])
				}
			}
			require.Equal(t, slices.Concat(p.turns...), own)
			require.Contains(t, e.Decode(r.Tokens), "<|tool|>7<|end|>")
			require.NotContains(t, e.Decode(own), "<|tool|>")
			require.Equal(t, 1+SoftOverlong(c.Overlong, len(own)), *r.reward)
			require.Negative(t, SoftOverlong(c.Overlong, len(own)))
		}
	})
	t.Run("C227", func(t *testing.T) { // turns without tokens cannot be trained on
		tr := &trainer{Config: c, engine: e}
		_, err := tr.row(&envs.Trajectory{Task: envs.Task{ID: "t0", Prompt: "say 0"}, Steps: []envs.Step{{Action: envs.Action{Text: "0"}, Terminated: true}}})
		require.ErrorContains(t, err, "no trainable turn")
		_, err = tr.row(&envs.Trajectory{Task: envs.Task{ID: "t0"}})
		require.ErrorContains(t, err, "no trainable turn")
	})
	t.Run("cut", func(t *testing.T) { // a turn without its end may carry no loss
		p := saying(t, e, engine.Message{Text: "7"})
		p.turns[0] = p.turns[0][:1]
		for _, masked := range []bool{false, true} {
			c := c
			c.Steps, c.MaskTruncated, c.EvalTasks = 1, masked, 0
			g := toyGym(t)
			g.Reward = scored(func(_ string, i int) *float64 { return value(float64(i)) })
			s := &spy{Engine: p}
			dir := t.TempDir()
			_, err := Train(t.Context(), s, g, c, dir)
			require.NoError(t, err)
			require.Equal(t, 1.0, lines(t, dir)[0].Values["train/cut"])
			require.Equal(t, masked, s.passes == 0)
		}
	})
	casetest.Run(t, "mask", func(t *testing.T, x casetest.Case) { // padding is no part of a sequence
		var in struct {
			IDs           []int32
			Pad, EOS      int32
			Length, Width int
		}
		x.In(t, &in)
		p := parrot{Engine: e, turns: [][]int32{in.IDs[:in.Length]}}
		tr := &trainer{Config: c, gym: toyGym(t), engine: p}
		groups, _, _, err := tr.collect(t.Context(), 0)
		require.NoError(t, err)
		r := groups[0].rows[0]
		mask := make([]int, len(in.IDs))
		for i, in := range r.Mask[len(r.Mask)-in.Length:] {
			if in {
				mask[i] = 1
			}
		}
		require.Equal(t, in.Length, r.own())
		x.Check(t, map[string]any{"mask": mask})
	})
	casetest.Run(t, "mask-shift", func(t *testing.T, x casetest.Case) { // what is masked is the token, which the one before predicts
		var in struct{ Prompt, Completion int }
		x.In(t, &in)
		n := in.Prompt + in.Completion
		b := engine.Batch{Tokens: [][]int32{make([]int32, n)}, Mask: [][]bool{make([]bool, n)}}
		for i := in.Prompt; i < n; i++ {
			b.Mask[0][i] = true
		}
		p, err := e.Forward(t.Context(), b)
		require.NoError(t, err)
		defer p.Discard()
		_, d, _, _ := Loss(of("dapo"), Batch{Mask: b.Mask, LogProbs: p.LogProbs(), Entropy: p.Entropy(), Advantages: []float64{1}})
		learned := make([]int, n)
		for i := range learned {
			require.Equal(t, d[0][i] != 0, p.LogProbs()[0][i] != 0)
			if d[0][i] != 0 {
				learned[i] = 1
			}
		}
		x.Check(t, map[string]any{"mask": learned, "label_mask": learned[1:]})
	})
}

func TestPlan(t *testing.T) {
	c := config()
	c.Steps, c.Eval, c.EvalTasks, c.Groups, c.Group = 10, 4, 8, 4, 8
	r := Rates{Rollout: 2, Tokens: 100, Own: 10, Forward: 1000, Success: 0.1819}
	got := Plan(c, r)
	require.Equal(t, 320, got.Episodes)
	require.Equal(t, 4*8, got.EvalEpisodes, "before, after 4, 8 and 10 steps")
	require.InDelta(t, 3520, got.Sampled, 1e-9)
	require.InDelta(t, 32000, got.Trained, 1e-9)
	require.InDelta(t, 22, got.Rollouts.Seconds(), 1e-6)
	require.InDelta(t, 96, got.Updates.Seconds(), 1e-6)
	require.InDelta(t, 118, got.Total().Seconds(), 1e-6)
	require.InDelta(t, 1-math.Pow(0.1819, 8)-math.Pow(0.8181, 8), got.Signal, 1e-12)
	c.Eval, c.Epochs, c.KL = 0, 2, 0.1
	got = Plan(c, r)
	require.Equal(t, 2*8, got.EvalEpisodes)
	require.InDelta(t, 64000, got.Trained, 1e-9)
	require.InDelta(t, 32*(2*3+2), got.Updates.Seconds(), 1e-6)
	c.EvalTasks, c.Bypass = 0, true
	got = Plan(c, r)
	require.Zero(t, got.EvalEpisodes)
	require.InDelta(t, 32*(2*3+1), got.Updates.Seconds(), 1e-6)

	// The evaluations are as many as there are.
	for _, x := range []struct{ steps, eval, want int }{{4, 2, 3}, {5, 2, 4}, {4, 0, 2}, {1, 1, 2}} {
		c := config()
		c.Steps, c.Eval, c.EvalTasks = x.steps, x.eval, 2
		require.Equal(t, 2*x.want, Plan(c, r).EvalEpisodes)
		dir := t.TempDir()
		train(t, newModel(t, full), c, dir)
		n := 0
		for _, l := range lines(t, dir) {
			if _, ok := l.Values["eval/success"]; ok {
				n++
			}
		}
		require.Equal(t, x.want, n)
	}

	e := &spy{Engine: newModel(t, full)}
	m, err := Measure(t.Context(), e, toyGym(t), config())
	require.NoError(t, err)
	require.Zero(t, e.steps)
	require.Positive(t, m.Rollout)
	require.Positive(t, m.Forward)
	require.Greater(t, m.Tokens, m.Own)
	require.Less(t, m.Own, 10.0)
}

// What goes wrong in play ends the run, and no goroutine stays.
func TestRollouts(t *testing.T) {
	spec := toySpec(t)
	broken := errors.New("no model")
	var plays []Play
	for i := range 40 {
		plays = append(plays, Play{spec.Splits["train"].Task(i), uint64(i)})
	}
	got, err := Rollouts(spec, 7)(t.Context(), policies.Random{}, plays)
	require.NoError(t, err)
	for i, m := range got {
		require.Equal(t, plays[i].Task.ID, m.Task.ID)
	}
	_, err = Rollouts(spec, 7)(t.Context(), failing{broken}, plays)
	require.ErrorIs(t, err, broken)
	spec.Reward = nil
	_, err = Rollouts(spec, 7)(t.Context(), policies.Random{}, plays)
	require.ErrorContains(t, err, "no reward")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = Rollouts(toySpec(t), 7)(ctx, policies.Random{}, plays)
	require.ErrorIs(t, err, context.Canceled)
}

type failing struct{ err error }

func (f failing) Start(context.Context, policies.Episode) (policies.Agent, error) { return nil, f.err }
