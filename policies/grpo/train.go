package grpo

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

// Report is how far a run has come. What has not been measured is nil.
type Report struct {
	Step, Steps int
	Episodes    int      // played in training so far, void ones included
	Tokens      int      // that the model wrote in those that count
	Reward      *float64 // of the last step, as the next ones: the mean
	Success     *float64 // the share of episodes
	Loss        *float64 // the mean over its updates
	KL          *float64
	Speed       *float64 `json:"-"` // in tokens a second, prompts and results included, from first to last; not known of a step before a resumption
	EvalReward  *float64 // when it was last taken
	EvalSuccess *float64 // of the episodes planned
	Best        *Best    // by EvalReward
}

// Best is the state with the highest reward in evaluation.
type Best struct {
	Step   int
	Reward float64
	Dir    string `json:"-"` // for the engine's Restore
}

// Train takes c.Steps steps: each plays groups of episodes with the engine, and learns from them. In dir, which it makes, it keeps the
// latest checkpoint and the best, and the run's curves. Where dir has a checkpoint of the same run, Train goes on from there: with an
// engine, a gym and a reward that are deterministic, bit for bit as if it had never stopped, also where it was killed. That a checkpoint
// of another run is there is an error.
//
// An interrupted run leaves a checkpoint and returns ctx's error; a step that has begun to change the weights is finished first. Where
// a number is not finite the episodes that it came from are in not-finite.json, no checkpoint is written, and the error wraps
// engine.ErrNotFinite. After an error the engine may hold gradients, and the steps of a part of the updates: it is of use only after
// Restore.
func Train(ctx context.Context, e engine.Engine, g Gym, c Config, dir string) (_ Report, err error) {
	if err := errors.Join(c.Validate(), g.check(c)); err != nil {
		return Report{}, fmt.Errorf("train: %w", err)
	}
	t := &trainer{Config: c, gym: g, engine: e, dir: dir, state: state{Report: Report{Steps: c.Steps}}}
	id, err := t.id()
	if err == nil {
		t.log, err = checkpoints.Open(dir, id, &t.state, &t.state.Mark, e.Restore)
	}
	if err != nil {
		return Report{}, fmt.Errorf("train: %w", err)
	}
	err = t.run(ctx)
	if errors.Is(err, engine.ErrNotFinite) {
		err = errors.Join(err, t.keepPass())
	} else if ctx.Err() != nil && !t.between {
		err = errors.Join(err, t.save())
	}
	if err := errors.Join(err, t.picture(), t.log.Close()); err != nil {
		return t.report(), fmt.Errorf("train, after step %d: %w", t.state.Step, err)
	}
	return t.report(), nil
}

type trainer struct {
	Config
	gym     Gym
	engine  engine.Engine
	dir     string
	log     *curves.Log
	state   state
	epoch   int // that order is of
	order   []int
	pass    []*row // that were last computed with
	between bool   // some updates of a step have been made, but not all
}

// state is what a checkpoint has besides the engine's snapshot. What else decides a step follows from Step and Next.
type state struct {
	checkpoints.Mark
	Report
	Next int // the task that comes next
}

// id tells runs apart.
func (t *trainer) id() (string, error) {
	data, err := json.Marshal([]any{t.gym.Name, t.Config})
	if err != nil {
		return "", err
	}
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:]), nil
}

func (t *trainer) report() Report {
	r := t.state.Report
	if r.Best != nil {
		r.Best = &Best{r.Best.Step, r.Best.Reward, checkpoints.Engine(t.dir, r.Best.Step)}
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
	line, next := maps.Clone(s.Line), s.Report
	if t.EvalTasks > 0 && (s.Step == 0 || s.Step == t.Steps || t.Eval > 0 && s.Step%t.Eval == 0) {
		if err := t.evaluate(ctx, line, &next); err != nil {
			return err
		}
	}
	if err := t.log.Log(s.Step, line); err != nil {
		return err
	}
	better := next.Best != s.Best
	s.Report, s.Line = next, nil
	if better || s.Step == t.Steps || t.Save > 0 && s.Step > 0 && s.Step%t.Save == 0 {
		return t.save()
	}
	return nil
}

// evaluate plays tasks that are not trained on, always the same with the same seeds.
func (t *trainer) evaluate(ctx context.Context, line map[string]float64, r *Report) error {
	start := time.Now()
	var plays []Play
	for i := range t.EvalTasks {
		plays = append(plays, Play{t.gym.Eval.Task(i), seedOf(t.Seed, seedEval, i)})
	}
	played, err := t.played(ctx, plays)
	if err != nil {
		return fmt.Errorf("evaluate: %w", err)
	}
	var reward Mean
	void, success := 0, 0
	for _, m := range played {
		switch {
		case m.Void != nil:
			void++
		case m.Score != nil:
			reward.Add(m.Score.Value, 1)
			if m.Score.Success {
				success++
			}
		}
	}
	planned := float64(len(plays))
	rate := float64(success) / planned
	line["eval/success"], line["eval/void"], line[curves.Clock+"eval_seconds"] = rate, float64(void)/planned, time.Since(start).Seconds()
	r.EvalReward, r.EvalSuccess = nil, &rate
	if mean, ok := reward.Value(); ok {
		line["eval/reward"] = mean
		r.EvalReward = &mean
		if r.Best == nil || mean > r.Best.Reward {
			r.Best = &Best{Step: r.Step, Reward: mean}
		}
	}
	return nil
}

// step plays, and learns from what was played.
func (t *trainer) step(ctx context.Context) error {
	start := time.Now()
	groups, next, sum, err := t.collect(ctx, t.state.Next)
	if err != nil {
		return err
	}
	played := time.Since(start).Seconds()
	var rows []*row
	tokens := 0
	for _, g := range groups {
		for _, r := range g.rows {
			tokens += len(r.Tokens)
			if r.cut && t.MaskTruncated {
				r.Mask = make([]bool, len(r.Mask)) // it still counts in means over sequences, as in TRL
			}
		}
		rows = append(rows, g.rows...)
	}
	line, err := t.learn(ctx, rows)
	if err != nil {
		return err
	}
	sum.log(line)
	seconds := time.Since(start).Seconds()
	speed := float64(tokens) / seconds
	s := &t.state
	s.Step, s.Next, s.Line = s.Step+1, next, line
	s.Episodes, s.Tokens, s.Speed = s.Episodes+sum.planned, s.Tokens+sum.own, &speed
	for key, to := range map[string]**float64{"reward": &s.Reward, "success": &s.Success, "loss": &s.Loss, "kl": &s.KL} {
		*to = nil
		if v, ok := line["train/"+key]; ok {
			*to = &v
		}
	}
	line["train/episodes"], line["train/tokens"] = float64(s.Episodes), float64(s.Tokens)
	line[curves.Clock+"seconds"], line[curves.Clock+"rollout_seconds"] = seconds, played
	line[curves.Clock+"sampled_tokens_per_second"], line[curves.Clock+"tokens_per_second"] = float64(sum.own)/played, speed
	return nil
}

// learn makes the updates of a step, and says what was measured.
func (t *trainer) learn(ctx context.Context, rows []*row) (map[string]float64, error) {
	var m Metrics
	if t.rewardKL() {
		if err := t.penalise(ctx, rows, &m.KL); err != nil {
			return nil, err
		}
	}
	if err := t.advantages(rows); err != nil {
		return nil, err
	}
	switch {
	case t.Bypass:
		if err := bypass(t.active(rows)); err != nil {
			return nil, err
		}
	case t.Epochs*t.Updates > 1 && !t.rewardKL(): // of a single update the ratio is 1, and needs no pass
		if err := t.forward(ctx, t.active(rows), false); err != nil {
			return nil, err
		}
	}
	if t.lossKL() {
		if err := t.forward(ctx, t.active(rows), true); err != nil {
			return nil, err
		}
	}
	o := t.Optim
	o.Rate = t.Schedule.At(o.Rate, t.state.Step, t.Steps)
	line := map[string]float64{"train/learning_rate": o.Rate}
	var loss, norm Mean
	for epoch := range t.Epochs {
		order := shuffled(rows, seedOf(t.Seed, seedUpdates, t.state.Step, epoch))
		for u := range t.Updates {
			part := order[u*len(rows)/t.Updates : (u+1)*len(rows)/t.Updates]
			of := Size{float64(len(part)), float64(own(part))}
			if t.parts().mean == "batch" {
				of.Tokens = float64(own(rows)) / float64(t.Updates)
			}
			if part = t.active(part); len(part) == 0 {
				continue
			}
			value, measured, err := t.backward(ctx, part, of)
			if err != nil {
				return nil, err
			}
			t.between = true
			ctx = context.WithoutCancel(ctx) // an interrupted step might have been taken or not, and those after it belong to it
			n, err := t.engine.Step(ctx, o)
			if err != nil {
				return nil, err
			}
			loss.Add(value, 1)
			norm.Add(n, 1)
			m.add(measured)
		}
	}
	t.between = false
	all := m.all()
	all["loss"], all["gradient_norm"] = &loss, &norm
	for name, x := range all {
		if v, ok := x.Value(); ok {
			line["train/"+name] = v
		}
	}
	return line, nil
}

// shuffled has the groups in a random order. Their members stay together, since they begin alike.
func shuffled(rows []*row, seed uint64) (out []*row) {
	of := map[string][]*row{}
	var groups []string
	for _, r := range rows {
		if of[r.group] == nil {
			groups = append(groups, r.group)
		}
		of[r.group] = append(of[r.group], r)
	}
	for _, i := range rand.New(rand.NewPCG(seed, 0)).Perm(len(groups)) {
		out = append(out, of[groups[i]]...)
	}
	return out
}

func own(rows []*row) (n int) {
	for _, r := range rows {
		n += r.own()
	}
	return n
}

// active are the rows that something is learned from.
func (t *trainer) active(rows []*row) (out []*row) {
	for _, r := range rows {
		if r.own() > 0 && (r.advantage != 0 || t.lossKL() || t.Entropy > 0) {
			out = append(out, r)
		}
	}
	return out
}

func (t *trainer) advantages(rows []*row) error {
	var groups []string
	var rewards []*float64
	for _, r := range rows {
		groups, rewards = append(groups, r.group), append(rewards, r.reward)
	}
	all, err := Advantages(t.Config, groups, rewards)
	for i, a := range all {
		rows[i].advantage = a
	}
	return err
}

// penalise subtracts from rewards how far the sequences are from the reference (TRL's RLOOTrainer).
func (t *trainer) penalise(ctx context.Context, rows []*row, measured *Mean) error {
	rows = slices.DeleteFunc(slices.Clone(rows), func(r *row) bool { return r.reward == nil || r.own() == 0 })
	if err := errors.Join(t.forward(ctx, rows, false), t.forward(ctx, rows, true)); err != nil {
		return err
	}
	for _, r := range rows {
		reward := *r.reward
		for k, in := range r.Mask {
			if in {
				x, _ := divergence(t.estimator(), float64(r.old[k])-float64(r.reference[k]))
				reward -= t.KL * x
				measured.Add(x, 1)
			}
		}
		r.reward = &reward
	}
	return nil
}

// bypass takes the sampler's log-probabilities for those of the policy as it was.
func bypass(rows []*row) error {
	for _, r := range rows {
		for k, in := range r.Mask {
			if in && math.IsNaN(float64(r.LogProbs[k])) {
				return fmt.Errorf("bypass: the sampler gave no probability of a token of %s", r.group)
			}
		}
		r.old = r.LogProbs
	}
	return nil
}

// passes goes through rows, those that begin alike together, as many at a time as there is room for.
func (t *trainer) passes(rows []*row, f func(rows []*row, b engine.Batch) error) error {
	for t.pass = range schedule.Passes(rows, func(r *row) []int32 { return r.Tokens }, t.PassTokens) {
		b := engine.Batch{Temperature: t.Temperature}
		for _, r := range t.pass {
			b.Tokens, b.Mask = append(b.Tokens, r.Tokens), append(b.Mask, r.Mask)
		}
		if err := f(t.pass, b); err != nil {
			return err
		}
	}
	return nil
}

// forward gives rows their log-probabilities by the weights as they are, or by the reference.
func (t *trainer) forward(ctx context.Context, rows []*row, reference bool) error {
	return t.passes(rows, func(rows []*row, b engine.Batch) error {
		b.Reference = reference
		p, err := t.engine.Forward(ctx, b)
		if err != nil {
			return err
		}
		defer p.Discard()
		for i, lp := range p.LogProbs() {
			if reference {
				rows[i].reference = lp
			} else {
				rows[i].old = lp
			}
		}
		return nil
	})
}

// backward adds up the gradients of an update.
func (t *trainer) backward(ctx context.Context, rows []*row, of Size) (loss float64, m Metrics, err error) {
	err = t.passes(rows, func(rows []*row, b engine.Batch) error {
		p, err := t.engine.Forward(ctx, b)
		if err != nil {
			return err
		}
		defer p.Discard()
		in := Batch{Mask: b.Mask, LogProbs: p.LogProbs(), Entropy: p.Entropy(), Of: of}
		for _, r := range rows {
			in.Sampler, in.Advantages = append(in.Sampler, r.LogProbs), append(in.Advantages, r.advantage)
			if r.old != nil {
				in.Old = append(in.Old, r.old)
			}
			if r.reference != nil {
				in.Reference = append(in.Reference, r.reference)
			}
		}
		value, dLogProbs, dEntropy, measured := Loss(t.Config, in)
		if math.IsNaN(value) || math.IsInf(value, 0) {
			return fmt.Errorf("the loss is %v: %w", value, engine.ErrNotFinite)
		}
		loss += value
		m.add(measured)
		return p.Backward(ctx, dLogProbs, dEntropy)
	})
	return loss, m, err
}

// keepPass writes the episodes that something went wrong with.
func (t *trainer) keepPass() error {
	type kept struct {
		Tokens    []int32
		Mask      []bool
		Reward    *float64
		Advantage float64
	}
	var rows []kept
	for _, r := range t.pass {
		rows = append(rows, kept{r.Tokens, r.Mask, r.reward, r.advantage})
	}
	data, err := json.Marshal(struct {
		Step     int // that was taken last
		Episodes []kept
	}{t.state.Step, rows})
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(t.dir, "not-finite.json"), append(data, '\n'), 0o644)
}

// log adds what was played to a line.
func (s tally) log(line map[string]float64) {
	groups, episodes := float64(s.groups), float64(s.episodes)
	line["train/groups"], line["train/zero_variance"] = groups, float64(s.flat)/groups
	line["train/void"] = float64(s.void) / float64(s.planned)
	for name, n := range map[string]int{"success": s.success, "unscored": s.unscored, "cut": s.cut, "turns": s.turns, "length": s.own} {
		line["train/"+name] = float64(n) / episodes
	}
	if len(s.rewards) > 0 {
		line["train/reward"], line["train/reward_std"] = meanOf(s.rewards), Config{Population: true}.deviation(s.rewards)
	}
}

func (t *trainer) picture() error {
	entries, err := curves.Read(filepath.Join(t.dir, curves.Metrics))
	if err != nil {
		return err
	}
	points := func(key string) []curves.Point { return curves.Points(entries, key) }
	if len(points("train/reward")) == 0 {
		return nil
	}
	panels := []curves.Panel{
		{Y: "reward", Curves: []curves.Curve{{Name: "train", Points: points("train/reward")}, {Name: "eval", Points: points("eval/reward")}}},
		{Y: "share of episodes", Curves: []curves.Curve{{Name: "success", Points: points("train/success")}, {Name: "success, eval", Points: points("eval/success")}}},
		{Y: "entropy (nats per token)", Curves: []curves.Curve{{Points: points("train/entropy")}}},
		{Y: "norm of the gradients, before clipping", Curves: []curves.Curve{{Points: points("train/gradient_norm")}}},
	}
	panels = slices.DeleteFunc(panels, func(p curves.Panel) bool {
		return !slices.ContainsFunc(p.Curves, func(c curves.Curve) bool { return len(c.Points) > 0 })
	})
	return curves.Save(filepath.Join(t.dir, "curves"), curves.Picture{Title: "Group relative policy optimisation", X: "step", Panels: panels})
}

// save writes a checkpoint, beside which only the best stays.
func (t *trainer) save() error {
	var keep []int
	if t.state.Best != nil {
		keep = append(keep, t.state.Best.Step)
	}
	return checkpoints.Save(t.dir, t.log, t.state.Step, t.state, t.engine.Snapshot, keep...)
}
