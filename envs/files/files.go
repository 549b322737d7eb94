// Package files is the environment Files-v0: finding, reading and keeping in order the files of invented projects.
package files

import (
	"fmt"
	"time"

	"github.com/mcpgym/mcpgym/envs"
	"github.com/mcpgym/mcpgym/rewards"
	"github.com/mcpgym/mcpgym/sandboxes"
	"github.com/mcpgym/mcpgym/sandboxes/files"
)

const system = `You look after the files of a project through tools. Look before you act: names can mislead, and what is in a file counts. Long files and lists come in pages.
Do what the task asks and change nothing else: in a file that you edit all other bytes stay, the ends of its lines too. Leave no files of your own behind. A file counts as lying under a folder at any depth, and in a folder only directly.
Give paths in full, from the root "/". Where you are asked for values, the last line of your final message must be
ANSWER: <value>
and nothing may follow it. Give several values in the order asked for, separated by semicolons.`

// Spec returns the environment, whose trees a driver opens. Its splits: train (unbounded), test (the same families on other
// projects) and ood (compositions that train lacks).
func Spec(open files.Driver) (envs.Spec, error) {
	provider, err := open(sandboxes.Identity{"worlds": "Files-v0"}, setup, 4)
	if err != nil {
		return envs.Spec{}, fmt.Errorf("open Files-v0: %w", err)
	}
	spec := Rules()
	spec.Sandboxes = provider
	return spec, nil
}

// Rules returns the environment without sandboxes: all that scoring a record takes.
func Rules() envs.Spec {
	return envs.Spec{
		Name:   "Files-v0",
		System: system,
		Splits: map[string]envs.Source{
			"train": split("train", families),
			"test":  split("test", families),
			"ood":   split("ood", oodFamilies),
		},
		Limits: envs.Limits{Turns: 30, Calls: 48, ResultBytes: 8000, Call: 5 * time.Second, Episode: time.Minute},
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
