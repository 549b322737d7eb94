package grpo

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/mcpgym/mcpgym/policies/engine"
)

// Rates are what a step of a run takes, as Measure found or a log says.
type Rates struct {
	Rollout float64 // seconds that the episodes of a step take
	Tokens  float64 // of an episode, prompts and results included
	Own     float64 // of an episode, that the model writes
	Forward float64 // tokens a second through a pass, forwards
	Success float64 // the share of episodes
}

// Estimate is what a run takes.
type Estimate struct {
	Episodes, EvalEpisodes int     // without those that replace others
	Sampled, Trained       float64 // tokens: that the model writes, and that go through the passes of updates
	Rollouts, Updates      time.Duration
	Signal                 float64 // the share of groups whose episodes differ, as far as success decides
}

// Total is the time that a run takes.
func (e Estimate) Total() time.Duration { return e.Rollouts + e.Updates }

// Plan estimates a run from the rates of a step. It counts a pass backwards as two forwards, and takes no task for one without signal.
func Plan(c Config, r Rates) Estimate {
	evaluations := 0
	if c.EvalTasks > 0 {
		evaluations = 2
		if c.Eval > 0 {
			evaluations += (c.Steps - 1) / c.Eval
		}
	}
	step := c.Groups * c.Group
	e := Estimate{Episodes: c.Steps * step, EvalEpisodes: evaluations * c.EvalTasks, Signal: Signal(r.Success, c.Group)}
	episodes := float64(e.Episodes + e.EvalEpisodes)
	e.Sampled, e.Trained = episodes*r.Own, float64(e.Episodes*c.Epochs)*r.Tokens
	passes := 3 * float64(c.Epochs)
	if !c.Bypass && c.Epochs*c.Updates > 1 || c.rewardKL() {
		passes++
	}
	if c.KL > 0 {
		passes++
	}
	e.Rollouts = seconds(episodes / float64(step) * r.Rollout)
	e.Updates = seconds(float64(e.Episodes) * r.Tokens * passes / r.Forward)
	return e
}

func seconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }

// Measure plays the first step of a run, and learns nothing from it.
func Measure(ctx context.Context, e engine.Engine, g Gym, c Config) (r Rates, err error) {
	if err := errors.Join(c.Validate(), g.check(c)); err != nil {
		return r, fmt.Errorf("measure: %w", err)
	}
	t := &trainer{Config: c, gym: g, engine: e}
	t.Dynamic = 0
	start := time.Now()
	groups, _, sum, err := t.collect(ctx, 0)
	if err != nil {
		return r, fmt.Errorf("measure: %w", err)
	}
	r.Rollout = time.Since(start).Seconds()
	var rows []*row
	for _, g := range groups {
		rows = append(rows, g.rows...)
	}
	tokens := 0
	for _, row := range rows {
		tokens += len(row.Tokens)
	}
	start = time.Now()
	if err := t.forward(ctx, rows, false); err != nil {
		return r, fmt.Errorf("measure: %w", err)
	}
	r.Forward = float64(tokens) / time.Since(start).Seconds()
	n := float64(len(rows))
	r.Tokens, r.Own, r.Success = float64(tokens)/n, float64(sum.own)/n, float64(sum.success)/n
	return r, nil
}
