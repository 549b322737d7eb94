// Package bench plays policies in environments, keeps the records, and makes the leaderboard out of them. A row of the board
// is a golden file that anyone can play again.
package bench

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/mcpgym/mcpgym/envs"
	"github.com/mcpgym/mcpgym/policies"
	"github.com/mcpgym/mcpgym/sandboxes"
)

// Config says what to play.
type Config struct {
	Spec     envs.Spec
	Policy   policies.Policy
	Name     string // of the policy
	Split    string
	Tasks    int // the first of the split
	Trials   int // of each task
	Seed     uint64
	Parallel int
	Progress func(done int) // may be nil; called by one goroutine at a time
}

// Run plays every task of a config and returns the record, whatever the order in which episodes end. Equal configs give
// equal records. Where no sandbox can be had for the first task, nothing is played. When ctx ends, the error is ctx's and
// nothing of the run is kept.
func Run(ctx context.Context, c Config) (*Record, error) {
	if c.Tasks < 1 || c.Trials < 1 || c.Parallel < 1 {
		return nil, fmt.Errorf("play %s: want at least one task, trial and worker, have %d, %d and %d", c.Spec.Name, c.Tasks, c.Trials, c.Parallel)
	}
	src, err := c.Spec.Source(c.Split)
	if err != nil {
		return nil, err
	}
	if err := preflight(ctx, c.Spec, src.Task(0)); err != nil {
		return nil, err
	}
	_, aware := c.Policy.(policies.TaskAware)
	r := &Record{Header: Header{Format: Format, Env: c.Spec.Name, Policy: c.Name, Split: c.Split, Ranked: !aware, Seed: c.Seed, Tasks: c.Tasks, Trials: c.Trials,
		Identity: c.Spec.Sandboxes.Identity(), Limits: c.Spec.Limits, System: c.Spec.System, Tools: map[string][]sandboxes.Tool{}}}
	out := make([]*envs.Trajectory, c.Tasks*c.Trials)
	err = each(ctx, c.Spec, src, c.Tasks, c.Trials, c.Parallel, func(ctx context.Context, env *envs.Env, task envs.Task, i, trial int) error {
		t, err := policies.Rollout(ctx, env, task, c.Policy, episodeSeed(c.Seed, i, trial))
		out[i*c.Trials+trial] = t
		return err
	}, c.Progress)
	if err != nil {
		return nil, fmt.Errorf("play %s in %s: %w", c.Name, c.Spec.Name, err)
	}
	for i := range c.Tasks {
		for trial := range c.Trials {
			if err := r.add(i, trial, episodeSeed(c.Seed, i, trial), out[i*c.Trials+trial]); err != nil {
				return nil, err
			}
		}
	}
	return r, nil
}

// preflight opens one sandbox: a server that is down is found before an episode is played, not in a column of faults.
func preflight(ctx context.Context, spec envs.Spec, task envs.Task) error {
	env, err := envs.New(spec)
	if err != nil {
		return err
	}
	if _, err := env.Reset(ctx, task); err != nil {
		return errors.Join(fmt.Errorf("nothing was played: %w", err), env.Close())
	}
	return env.Close()
}

// episodeSeed spreads a run's seed over its episodes (splitmix64's finaliser; Steele, Lea, Flood 2014).
func episodeSeed(seed uint64, index, trial int) uint64 {
	x := seed*0x9E3779B97F4A7C15 + uint64(index)<<16 + uint64(trial) + 1
	x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9
	x = (x ^ (x >> 27)) * 0x94D049BB133111EB
	return (x ^ (x >> 31)) >> 11 // stays exact in readers that know only doubles
}

// each calls play for every task and trial, in an environment per worker. Worlds are announced to the provider as far ahead
// as there are workers. The first error ends it.
func each(ctx context.Context, spec envs.Spec, src envs.Source, tasks, trials, parallel int,
	play func(ctx context.Context, env *envs.Env, task envs.Task, index, trial int) error, progress func(done int)) error {
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	type job struct {
		task         envs.Task
		index, trial int
	}
	parallel = min(parallel, tasks*trials)
	jobs := make(chan job, parallel)
	var workers sync.WaitGroup
	var mu sync.Mutex
	done := 0
	for range parallel {
		env, err := envs.New(spec)
		if err != nil {
			stop(err)
			break
		}
		workers.Go(func() {
			defer env.Close()
			for j := range jobs {
				if ctx.Err() != nil {
					continue
				}
				if err := play(ctx, env, j.task, j.index, j.trial); err != nil {
					stop(err)
					continue
				}
				mu.Lock()
				if done++; progress != nil {
					progress(done)
				}
				mu.Unlock()
			}
			if err := env.Close(); err != nil {
				stop(err)
			}
		})
	}
	for i := 0; i < tasks && ctx.Err() == nil; i++ {
		task := src.Task(i)
		for trial := range trials {
			spec.Sandboxes.Prefetch(task.World)
			select {
			case jobs <- job{task, i, trial}:
			case <-ctx.Done():
			}
		}
	}
	close(jobs)
	workers.Wait()
	if err := context.Cause(ctx); err != nil {
		return err
	}
	if done != tasks*trials {
		return errors.New("episodes are missing")
	}
	return nil
}
