// Package postgres is the environment Postgres-v0: questions about the databases of invented businesses, and repairs of them.
package postgres

import (
	"context"
	"fmt"
	"time"

	"github.com/mcpgym/mcpgym/envs"
	"github.com/mcpgym/mcpgym/rewards"
	"github.com/mcpgym/mcpgym/sandboxes"
	"github.com/mcpgym/mcpgym/sandboxes/postgres"
)

const system = `You work on a PostgreSQL database through tools. First look at its tables and columns: names can mislead, comments tell the truth. Have the database compute everything; never guess.
Each row with an id of its own counts by itself. Rows that are marked as deleted, cancelled or the like count unless the question leaves them out. Change nothing that was not asked for.
Where you are asked for values, the last line of your final message must be
ANSWER: <value>
and nothing may follow it. Give several values in the order asked for, separated by semicolons. Write dates as YYYY-MM-DD and amounts in euros with two decimals. Each value must stand in the result of a query on the tables that it comes from, and you must not have written it into that query yourself; if you change data, query the values before. If the database cannot say, show it by a query on the table in question that returns no row, or by the description of a table that lacks such a column, and write
ANSWER: no data`

// Spec returns the environment, whose worlds are databases of a server that stays the caller's. Its splits: train
// (unbounded), test (the same families on other worlds) and ood (compositions that train lacks).
func Spec(ctx context.Context, s *postgres.Server) (envs.Spec, error) {
	provider, err := postgres.New(ctx, s, sandboxes.Identity{"worlds": "Postgres-v0"}, schemas(), 4)
	if err != nil {
		return envs.Spec{}, fmt.Errorf("open Postgres-v0: %w", err)
	}
	spec := Rules()
	spec.Sandboxes = provider
	return spec, nil
}

// Rules returns the environment without sandboxes: all that scoring a record takes.
func Rules() envs.Spec {
	return envs.Spec{
		Name:   "Postgres-v0",
		System: system,
		Splits: map[string]envs.Source{
			"train": split("train", families),
			"test":  split("test", families),
			"ood":   split("ood", oodFamilies),
		},
		Limits: envs.Limits{Turns: 16, Calls: 24, ResultBytes: 12000, Call: 12 * time.Second, Episode: 5 * time.Minute},
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
