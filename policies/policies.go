// Package policies defines what acts in an environment: a Policy starts an Agent for every episode.
//
// The policies here need no model: noop, random and lexical are the baselines of every leaderboard, oracle proves tasks,
// replay re-executes records.
package policies

import (
	"context"
	"errors"
	"fmt"

	"github.com/mcpgym/mcpgym/envs"
	"github.com/mcpgym/mcpgym/sandboxes"
)

// Episode is all that a policy may know of an episode before it acts.
type Episode struct {
	System, Prompt string
	Tools          []sandboxes.Tool
	Seed           uint64 // of the policy's own choices
}

// Policy starts agents. Start may be called concurrently.
type Policy interface {
	Start(ctx context.Context, ep Episode) (Agent, error)
}

// Agent plays one episode and is used by one goroutine. It holds its own history: Act gets only what is new.
type Agent interface {
	Act(ctx context.Context, o envs.Observation) (envs.Action, error)
	Close() error
}

// TaskAware is a policy that is shown the task itself, with what is hidden from agents. It proves tasks and attacks
// rewards; it is never ranked.
type TaskAware interface {
	Policy
	StartTask(ctx context.Context, ep Episode, task envs.Task) (Agent, error)
}

// AgentFunc is an agent without anything to close.
type AgentFunc func(ctx context.Context, o envs.Observation) (envs.Action, error)

// Act calls f.
func (f AgentFunc) Act(ctx context.Context, o envs.Observation) (envs.Action, error) {
	return f(ctx, o)
}

// Close does nothing.
func (AgentFunc) Close() error { return nil }

// Rollout plays one episode to its end. The trajectory is returned also where the episode is void; then err is nil too,
// since a void episode is data. An error is ctx's, or the policy's own failure.
func Rollout(ctx context.Context, env *envs.Env, task envs.Task, p Policy, seed uint64) (*envs.Trajectory, error) {
	o, err := env.Reset(ctx, task)
	if err != nil {
		return voided(ctx, env, err)
	}
	ep := Episode{System: env.Trajectory().System, Prompt: o.Text, Tools: env.Trajectory().Tools, Seed: seed}
	var agent Agent
	if aware, ok := p.(TaskAware); ok {
		agent, err = aware.StartTask(ctx, ep, task)
	} else {
		agent, err = p.Start(ctx, ep)
	}
	if err != nil {
		return nil, fmt.Errorf("start policy on %s: %w", task.ID, err)
	}
	defer agent.Close()
	for {
		a, err := agent.Act(ctx, o)
		if err != nil {
			return nil, fmt.Errorf("act on %s: %w", task.ID, err)
		}
		s, err := env.Step(ctx, a)
		if err != nil {
			return voided(ctx, env, err)
		}
		if s.Terminated || s.Truncated {
			return env.Trajectory(), nil
		}
		o = s.Observation
	}
}

// voided gives the record of an episode that a fault ended.
func voided(ctx context.Context, env *envs.Env, err error) (*envs.Trajectory, error) {
	if ctx.Err() != nil {
		return nil, err
	}
	if _, ok := errors.AsType[*sandboxes.Fault](err); ok && env.Trajectory() != nil && env.Trajectory().Void != nil {
		return env.Trajectory(), nil
	}
	return nil, err
}
