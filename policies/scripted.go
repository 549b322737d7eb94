package policies

import (
	"context"
	"fmt"

	"github.com/mcpgym/mcpgym/envs"
)

// Noop ends every episode at once with an empty answer. It must earn nothing anywhere.
type Noop struct{}

// Start returns an agent that answers nothing.
func (Noop) Start(context.Context, Episode) (Agent, error) { return Script(nil), nil }

// Oracle plays each task's gold solution. It is never ranked.
type Oracle struct{}

// Start fails: without the task there is no gold solution.
func (Oracle) Start(context.Context, Episode) (Agent, error) {
	return nil, fmt.Errorf("oracle plays only tasks whose solution it is given")
}

// StartTask returns an agent that plays the task's solution.
func (Oracle) StartTask(_ context.Context, _ Episode, task envs.Task) (Agent, error) {
	if len(task.Solution) == 0 {
		return nil, fmt.Errorf("task %s has no solution", task.ID)
	}
	return Script(task.Solution), nil
}

// Replay plays a record's actions again.
type Replay struct{ Steps []envs.Step }

// Start returns an agent that plays the recorded actions.
func (r Replay) Start(context.Context, Episode) (Agent, error) {
	actions := make([]envs.Action, len(r.Steps))
	for i, s := range r.Steps {
		actions[i] = s.Action
	}
	return Script(actions), nil
}

// Script returns an agent that plays the given actions whatever it sees, and then answers nothing.
func Script(actions []envs.Action) Agent {
	next := 0
	return AgentFunc(func(context.Context, envs.Observation) (envs.Action, error) {
		if next == len(actions) {
			return envs.Action{}, nil
		}
		next++
		return actions[next-1], nil
	})
}
