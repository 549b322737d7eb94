// Package sft trains an engine on examples of what an agent should say.
package sft

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/mcpgym/mcpgym/policies/checkpoints"
	"github.com/mcpgym/mcpgym/policies/curves"
	"github.com/mcpgym/mcpgym/policies/engine"
	"github.com/mcpgym/mcpgym/policies/schedule"
)

// Example is a sequence and which of its tokens are learned: the agent's own, and never the first.
type Example struct {
	Tokens []int32
	Mask   []bool
}

// Config is a run. All but the last three decide what comes out of it.
type Config struct {
	Train, Dev []Example // Dev may be empty
	Steps      int       // of the optimiser
	Batch      int       // examples a step
	Seed       uint64    // of the order of examples, which is another in each epoch
	Pretrain   int       // so many steps at first are of short examples, then with longer ones bit by bit, all tokens of which are learned
	Optim      engine.Optim
	Schedule   schedule.Rate // of Optim.Rate
	Eval       int           // Dev's loss is taken before the first step, after every so many (0: none) and after the last

	PassTokens int          // of a pass, of which what examples begin with alike counts once; more where a single example has more
	Save       int          // a checkpoint is written after every so many steps (0: none), where Dev's loss is the least so far, and at the end
	Progress   func(Report) // is called at the start and after every step; may be nil
}

// Report is how far a run has come. What has not been measured is nil.
type Report struct {
	Step, Steps int
	Tokens      int      // learned from so far, each as often as it was seen
	TrainLoss   *float64 // of the last step's examples, before it; in nats per token, as all losses
	DevLoss     *float64 // when it was last taken
	Best        *Best    // by DevLoss
}

// Best is the state with the least loss of Dev.
type Best struct {
	Step int
	Loss float64
	Dir  string `json:"-"` // for the engine's Restore
}

// Train takes c.Steps steps against the mean negative log-likelihood of the learned tokens of each step's examples. In dir, which it
// makes, it keeps the latest checkpoint and the best, and the run's curves. Where dir has a checkpoint of the same run, Train goes on
// from there: on an engine that is deterministic, bit for bit as if it had never stopped, also where it was killed. That a checkpoint
// of another run is there is an error.
//
// An interrupted run leaves a checkpoint and returns ctx's error. Where a number is not finite the examples that it came from are in
// not-finite.json, no checkpoint is written, and the error wraps engine.ErrNotFinite. After an error the engine may hold gradients:
// it is of use only after Restore. Without one it is in the state of the last step, not of the best.
func Train(ctx context.Context, e engine.Engine, c Config, dir string) (_ Report, err error) {
	if err := c.check(); err != nil {
		return Report{}, fmt.Errorf("train: %w", err)
	}
	t := &trainer{Config: c, engine: e, dir: dir, state: state{Report: Report{Steps: c.Steps}}}
	id, err := c.id()
	if err == nil {
		t.log, err = checkpoints.Open(dir, id, &t.state, &t.state.Mark, e.Restore)
	}
	if err != nil {
		return Report{}, fmt.Errorf("train: %w", err)
	}
	err = t.run(ctx)
	if errors.Is(err, engine.ErrNotFinite) {
		err = errors.Join(err, t.keepPass())
	} else if ctx.Err() != nil {
		err = errors.Join(err, t.save())
	}
	if err := errors.Join(err, t.draw(), t.log.Close()); err != nil {
		return t.report(), fmt.Errorf("train, after step %d: %w", t.state.Step, err)
	}
	return t.report(), nil
}

func (c Config) check() error {
	if c.Steps < 1 || c.Batch < 1 || c.Pretrain < 0 || c.Pretrain > c.Steps || c.PassTokens < 1 || c.Eval < 0 || c.Save < 0 {
		return fmt.Errorf("%d steps of %d examples, %d of them to pretrain, %d tokens a pass, evaluation every %d, checkpoints every %d",
			c.Steps, c.Batch, c.Pretrain, c.PassTokens, c.Eval, c.Save)
	}
	if err := c.Schedule.Validate(); err != nil {
		return err
	}
	if len(c.Train) == 0 {
		return errors.New("no examples")
	}
	return errors.Join(check("example", c.Train), check("dev example", c.Dev))
}

func check(what string, examples []Example) error {
	for i, x := range examples {
		if len(x.Mask) != len(x.Tokens) || !slices.Contains(x.Mask, true) || x.Mask[0] {
			return fmt.Errorf("%s %d has %d tokens and a mask of %d: some must be learned, but not the first", what, i, len(x.Tokens), len(x.Mask))
		}
	}
	return nil
}

// id tells runs apart.
func (c Config) id() (string, error) {
	h := sha256.New()
	out := json.NewEncoder(h)
	err := out.Encode([]any{c.Steps, c.Batch, c.Seed, c.Pretrain, c.Optim, c.Schedule, c.Eval, len(c.Train)})
	for _, examples := range [][]Example{c.Train, byLength(c.Dev)} { // the order of Dev's does not matter
		for _, x := range examples {
			err = errors.Join(err, out.Encode(x))
		}
	}
	return hex.EncodeToString(h.Sum(nil)), err
}

type trainer struct {
	Config
	engine engine.Engine
	dir    string
	log    *curves.Log
	state  state
	sorted []Example // by length, for the first steps
	epoch  int       // that order is of
	order  []int
	pass   []Example // that were last computed with
}

// state is what a checkpoint has besides the engine's snapshot. Which examples come next follows from Step.
type state struct {
	checkpoints.Mark
	Report
}

func (t *trainer) report() Report {
	r := t.state.Report
	if r.Best != nil {
		r.Best = &Best{r.Best.Step, r.Best.Loss, checkpoints.Engine(t.dir, r.Best.Step)}
	}
	return r
}

func (t *trainer) run(ctx context.Context) error {
	for {
		if t.state.Line != nil {
			if err := t.finish(ctx); err != nil {
				return err
			}
		}
		if t.Progress != nil {
			t.Progress(t.report())
		}
		if t.state.Step == t.Steps {
			return nil
		}
		if err := t.step(ctx); err != nil {
			return err
		}
	}
}

// finish evaluates, logs and saves after a step, and before the first.
func (t *trainer) finish(ctx context.Context) error {
	s := &t.state
	line, dev, best := maps.Clone(s.Line), s.DevLoss, s.Best
	if len(t.Dev) > 0 && (s.Step == 0 || s.Step == t.Steps || t.Eval > 0 && s.Step%t.Eval == 0) {
		loss, err := t.loss(ctx, t.Dev, false)
		if err != nil {
			return err
		}
		line["dev/loss"], line["dev/perplexity"] = loss, math.Exp(loss)
		dev = &loss
		if best == nil || loss < best.Loss {
			best = &Best{Step: s.Step, Loss: loss}
		}
	}
	if err := t.log.Log(s.Step, line); err != nil {
		return err
	}
	better := best != s.Best
	s.Line, s.DevLoss, s.Best = nil, dev, best
	if better || s.Step == t.Steps || t.Save > 0 && s.Step > 0 && s.Step%t.Save == 0 {
		return t.save()
	}
	return nil
}

func (t *trainer) step(ctx context.Context) error {
	start := time.Now()
	examples := t.examples(t.state.Step)
	loss, err := t.loss(ctx, examples, true)
	if err != nil {
		return err
	}
	o := t.Optim
	o.Rate = t.Schedule.At(o.Rate, t.state.Step, t.Steps)
	t.pass = examples
	norm, err := t.engine.Step(context.WithoutCancel(ctx), o) // an interrupted one might have been taken or not
	if err != nil {
		return err
	}
	seen := 0
	for _, x := range examples {
		seen += len(x.Tokens)
	}
	seconds := time.Since(start).Seconds()
	t.state.Step++
	t.state.Tokens += learned(examples)
	t.state.TrainLoss = &loss
	t.state.Line = map[string]float64{"train/loss": loss, "train/gradient_norm": norm, "train/learning_rate": o.Rate,
		"train/tokens": float64(t.state.Tokens), curves.Clock + "seconds": seconds, curves.Clock + "tokens_per_second": float64(seen) / seconds}
	return nil
}

// examples are those of a step, counted from 0, by length.
//
// A model of random weights learns late to copy out of a long text, since at first it looks at all tokens alike. Short examples first
// (Bengio et al. 2009, Curriculum Learning), and all of their tokens, bring that forward. The shortest are not among them: of traces that
// nobody has chosen these are the ones that guess before there is anything to copy.
func (t *trainer) examples(step int) []Example {
	var out []Example
	if step < t.Pretrain {
		if t.sorted == nil {
			t.sorted = byLength(t.Train)
		}
		n := float64(len(t.sorted))
		from, to := int(0.3*n), int(math.Ceil(n*max(0.55, 1.5*float64(step+1)/float64(t.Pretrain)-0.5)))
		r := rand.New(rand.NewPCG(t.Seed, ^uint64(step)))
		for range t.Batch {
			x := t.sorted[from+r.IntN(to-from)]
			all := slices.Repeat([]bool{true}, len(x.Tokens))
			all[0] = false
			out = append(out, Example{x.Tokens, all})
		}
		return byLength(out)
	}
	for i := step * t.Batch; i < (step+1)*t.Batch; i++ {
		if epoch := i / len(t.Train); t.order == nil || epoch != t.epoch {
			t.epoch, t.order = epoch, rand.New(rand.NewPCG(t.Seed, uint64(epoch))).Perm(len(t.Train))
		}
		out = append(out, t.Train[t.order[i%len(t.Train)]])
	}
	return byLength(out)
}

func byLength(examples []Example) []Example {
	return slices.SortedStableFunc(slices.Values(examples), func(a, b Example) int { return len(a.Tokens) - len(b.Tokens) })
}

func learned(examples []Example) (n int) {
	for _, x := range examples {
		for _, in := range x.Mask {
			if in {
				n++
			}
		}
	}
	return n
}

// loss is the mean over all learned tokens of examples, however many passes they need. Where learn, its gradients are added up.
func (t *trainer) loss(ctx context.Context, examples []Example, learn bool) (float64, error) {
	share := 1 / float64(learned(examples))
	loss := 0.0
	for t.pass = range schedule.Passes(examples, func(x Example) []int32 { return x.Tokens }, t.PassTokens) {
		part, err := t.onePass(ctx, share, learn)
		if err != nil {
			return 0, err
		}
		loss += part
	}
	return loss, nil
}

func (t *trainer) onePass(ctx context.Context, share float64, learn bool) (loss float64, err error) {
	var b engine.Batch
	for _, x := range t.pass {
		b.Tokens, b.Mask = append(b.Tokens, x.Tokens), append(b.Mask, x.Mask)
	}
	p, err := t.engine.Forward(ctx, b)
	if err != nil {
		return 0, err
	}
	defer p.Discard()
	gradients := make([][]float32, len(b.Tokens))
	for i, row := range p.LogProbs() {
		gradients[i] = make([]float32, len(row))
		for k, in := range b.Mask[i] {
			if in {
				loss -= share * float64(row[k])
				gradients[i][k] = -float32(share)
			}
		}
	}
	if math.IsNaN(loss) || math.IsInf(loss, 0) {
		return 0, fmt.Errorf("the loss is %v: %w", loss, engine.ErrNotFinite)
	}
	if learn {
		return loss, p.Backward(ctx, gradients, nil)
	}
	return loss, nil
}

// keepPass writes the examples that something went wrong with.
func (t *trainer) keepPass() error {
	data, err := json.Marshal(struct {
		Step     int // that was taken last
		Examples []Example
	}{t.state.Step, t.pass})
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(t.dir, "not-finite.json"), append(data, '\n'), 0o644)
}

func (t *trainer) draw() error {
	entries, err := curves.Read(filepath.Join(t.dir, curves.Metrics))
	if err != nil {
		return err
	}
	train := curves.Points(entries, "train/loss")
	if len(train) == 0 {
		return nil
	}
	return curves.Save(filepath.Join(t.dir, "curves"), curves.Picture{Title: "Supervised training", X: "step", Panels: []curves.Panel{
		{Y: "loss (nats per token)", Curves: []curves.Curve{{Name: "train", Points: train}, {Name: "dev", Points: curves.Points(entries, "dev/loss")}}},
		{Y: "norm of the gradients, before clipping", Curves: []curves.Curve{{Points: curves.Points(entries, "train/gradient_norm")}}},
		{Y: "learning rate", Curves: []curves.Curve{{Points: curves.Points(entries, "train/learning_rate")}}},
	}})
}

// save writes a checkpoint, beside which only the best stays.
func (t *trainer) save() error {
	var keep []int
	if t.state.Best != nil {
		keep = append(keep, t.state.Best.Step)
	}
	return checkpoints.Save(t.dir, t.log, t.state.Step, t.state, t.engine.Snapshot, keep...)
}
