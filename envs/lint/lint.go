// Package lint is the environment Lint-v0: mending modules of Python and shell scripts until a linter is satisfied and hidden
// tests pass.
package lint

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/mcpgym/mcpgym/envs"
	"github.com/mcpgym/mcpgym/rewards"
	"github.com/mcpgym/mcpgym/sandboxes"
	"github.com/mcpgym/mcpgym/sandboxes/confine"
	"github.com/mcpgym/mcpgym/sandboxes/files"
	"github.com/mcpgym/mcpgym/sandboxes/lint"
)

// Spec returns the environment. open serves its trees; run, which stays the caller's, runs the linters and the hidden tests. Where
// linters are missing the error wraps lint.ErrNoLinters. Its splits: train (unbounded), test (the same families on other projects)
// and ood (compositions that train lacks).
func Spec(ctx context.Context, open files.Driver, run confine.Runner) (envs.Spec, error) {
	code, err := lint.NewCode(ctx, run)
	if err != nil {
		return envs.Spec{}, fmt.Errorf("open Lint-v0: %w", err)
	}
	trees, err := open(sandboxes.Identity{"worlds": "Lint-v0"}, setup, 4)
	if err != nil {
		return envs.Spec{}, fmt.Errorf("open Lint-v0: %w", err)
	}
	spec := Rules()
	if spec.Sandboxes, err = lint.Tree(ctx, trees, code); err != nil {
		return envs.Spec{}, errors.Join(fmt.Errorf("open Lint-v0: %w", err), trees.Close())
	}
	return spec, nil
}

// Rules returns the environment without sandboxes: all that scoring a record takes.
func Rules() envs.Spec {
	return envs.Spec{
		Name:   "Lint-v0",
		System: system,
		Splits: map[string]envs.Source{
			"train": split("train", families),
			"test":  split("test", families),
			"ood":   split("ood", oodFamilies),
		},
		Limits: envs.Limits{Turns: 20, Calls: 40, ResultBytes: 12000, Call: time.Minute, Episode: 5 * time.Minute},
		Reward: rewards.Sum{
			rewards.Answer(0.4),
			rewards.Assertions(0.2),
			rewards.Collateral(0.2),
			rewards.ValidCalls(0.1),
			rewards.Efficiency(0.1),
			rewards.Hallucination(0.5),
		},
		Cheats: cheats,
	}
}
