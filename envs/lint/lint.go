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

const system = `You mend the code of a project through tools. run_linter shows what a linter finds; what a docstring, or the comment at the head of a script, says of the code is right. Tests that you do not see call the code, and the linter then checks the whole tree.
Mend a finding at its cause: what is unused goes; a name that is not defined is a slip of the pen; compare with None by "is"; a default that could change becomes None and is made in the function; except names the error that the docstring names, as in "except ValueError"; a new error is raised "from err", the one before; a loop variable that nothing uses becomes _; in scripts for sh write cd "$1" || exit 1, read -r, $(...) and quotes around variables.
Change only files with something to mend, and there nothing else: names and parameters stay. No comments or settings that silence a linter, no eval or exec, no other files.
Give paths in full, from the root "/". Where you are asked for values, the last line of your final message must be
ANSWER: <value>
and nothing may follow it. Give several values in the order asked for, separated by semicolons.`

// Driver opens sandboxes of file trees: files.New, or what serves the trees elsewhere.
type Driver func(id sandboxes.Identity, setup func(sandboxes.World) (files.Setup, error), size int) (*files.Provider, error)

// Spec returns the environment. open serves its trees; run, which stays the caller's, runs the linters and the hidden tests. Where
// linters are missing the error wraps lint.ErrNoLinters. Its splits: train (unbounded), test (the same families on other projects)
// and ood (compositions that train lacks).
func Spec(ctx context.Context, open Driver, run confine.Runner) (envs.Spec, error) {
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
		Limits: envs.Limits{Turns: 20, Calls: 40, ResultBytes: 12000, Call: 15 * time.Second, Episode: 2 * time.Minute},
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
