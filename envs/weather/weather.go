// Package weather is the environment Weather-v0: questions about an invented weather service.
package weather

import (
	"fmt"
	"time"

	"github.com/mcpgym/mcpgym/envs"
	"github.com/mcpgym/mcpgym/rewards"
	"github.com/mcpgym/mcpgym/sandboxes/weather"
)

const system = `You answer questions about the weather with the tools of a weather service. Call tools until you have seen what the answer needs; never guess.
The last line of your final message must be
ANSWER: <value>
and nothing may follow it. Give several values in the order asked for, separated by semicolons. Write dates as YYYY-MM-DD and numbers as the service gives them, in its units unless the question names another. If you have looked and the service has no such data, write
ANSWER: no data`

// Spec returns the environment. Its splits: train (unbounded), test (500 tasks of the same families on other worlds) and ood
// (500 tasks of compositions that train lacks).
func Spec() (envs.Spec, error) {
	provider, err := weather.Provider()
	if err != nil {
		return envs.Spec{}, fmt.Errorf("open Weather-v0: %w", err)
	}
	return envs.Spec{
		Name:   "Weather-v0",
		System: system,
		Splits: map[string]envs.Source{
			"train": split("train", families),
			"test":  split("test", families),
			"ood":   split("ood", oodFamilies),
		},
		Limits: envs.Limits{Turns: 16, Calls: 24, ResultBytes: 4000, Call: 2 * time.Second, Episode: time.Minute},
		Reward: rewards.Sum{
			rewards.Answer(0.8),
			rewards.ValidCalls(0.1),
			rewards.Efficiency(0.1),
			rewards.Hallucination(0.5),
		},
		Sandboxes: provider,
		Cheats:    cheats,
	}, nil
}
