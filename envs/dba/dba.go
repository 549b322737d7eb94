// Package dba is the environment DBA-v0: questions about a company's database that go together with its upkeep. A linter
// compares the database with the schema that is declared for it, and checks the jobs and scripts of the repository that goes with
// it; the verifier runs the same linter.
package dba

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/mcpgym/mcpgym/envs"
	"github.com/mcpgym/mcpgym/rewards"
	"github.com/mcpgym/mcpgym/sandboxes"
	"github.com/mcpgym/mcpgym/sandboxes/confine"
	"github.com/mcpgym/mcpgym/sandboxes/files"
	"github.com/mcpgym/mcpgym/sandboxes/lint"
	"github.com/mcpgym/mcpgym/sandboxes/postgres"
)

const system = `You look after a company's Postgres database. query_database runs one SQL statement; run_linter compares the database with a file that declares how a part of it should be, and checks the rows. The files are schema.sql, billing.sql and support.sql. What they declare is right.
The tables are in schema public: information_schema.columns lists them with their columns, pg_constraint the names of constraints. Comments on columns (col_description) say what values mean; without one a value means what it says.
Do what the task asks and nothing else: what the linter finds beyond that stays as it is. Where a declared key, check or NOT NULL is missing, add it as declared, valid; where a foreign key has no index, create one. Names of constraints and indexes are up to you. Commit what you change.
Jobs and scripts that use the database are in a repository: tools read and change its files, from the root "/", and run_linter checks them, too. The text at the head of a file is right. Mend a finding at its cause and nothing else: what is unused goes, a name that is not defined is a slip of the pen, compare with None by "is", in scripts read -r and quotes around variables.
Answer only from what results have shown: let the database compute numbers. The last line of your final message must be
ANSWER: <value>
and nothing may follow it. Give several values in the order asked for, separated by semicolons.`

// Spec returns the environment, whose databases are on s. open serves its repositories; run runs the linters of code, and where
// they are missing the error wraps lint.ErrNoLinters. Its splits: train, test (the same families on other databases) and ood
// (other tasks, again on other databases). All are unbounded. Closing Spec.Sandboxes leaves s and run open.
func Spec(ctx context.Context, s *postgres.Server, open files.Driver, run confine.Runner) (envs.Spec, error) {
	box, err := provider(ctx, s, open, run)
	if err != nil {
		return envs.Spec{}, fmt.Errorf("open DBA-v0: %w", err)
	}
	spec := Rules()
	spec.Sandboxes = box
	return spec, nil
}

// Rules returns the environment without sandboxes: all that scoring a record takes.
func Rules() envs.Spec {
	return spec("DBA-v0", system, nil, map[string]envs.Source{
		"train": split("train", 24, plans, families),
		"test":  split("test", 16, plans, families),
		"ood":   split("ood", 16, oodPlans, oodFamilies),
	})
}

func spec(name, system string, box sandboxes.Provider, splits map[string]envs.Source) envs.Spec {
	return envs.Spec{
		Name:   name,
		System: system,
		Splits: splits,
		Limits: envs.Limits{Turns: 16, Calls: 40, ResultBytes: 8000, Call: time.Minute, Episode: 5 * time.Minute},
		Reward: rewards.Sum{
			rewards.Answer(0.4),
			rewards.Assertions(0.2),
			rewards.Collateral(0.2),
			rewards.ValidCalls(0.1),
			rewards.Efficiency(0.1),
			rewards.Hallucination(0.5),
		},
		Sandboxes: box,
		Cheats:    cheats,
	}
}

// Founding is the formula of the project's founding note, for the task that the note gives: any tool that there is, and the word
// inactive in a query. It is a column to compare with; see rewards.FoundingText.
func Founding(t *envs.Trajectory) float64 {
	names := make([]string, len(t.Tools))
	for i, tool := range t.Tools {
		names[i] = tool.Name
	}
	return rewards.Founding(t, names, "inactive")
}

// ready is the number of databases that are kept ready.
const ready = 4

func provider(ctx context.Context, s *postgres.Server, open files.Driver, run confine.Runner) (sandboxes.Provider, error) {
	code, err := lint.NewCode(ctx, run)
	if err != nil {
		return nil, err
	}
	var made sync.Map // what there is to know of the worlds leased so far, which are few
	of := func(w sandboxes.World) (content, error) {
		key := fmt.Sprintf("%d %s", w.Seed, w.Setup)
		if v, ok := made.Load(key); ok {
			return v.(content), nil
		}
		c, err := readWorld(w)
		if err != nil {
			return content{}, err
		}
		v, _ := made.LoadOrStore(key, content{c.setup(), c.ReadOnly, c.files(), c.tree()})
		return v.(content), nil
	}
	trees, err := open(sandboxes.Identity{"dba": "2"}, func(w sandboxes.World) (files.Setup, error) {
		c, err := of(w)
		return c.tree, err
	}, ready)
	if err != nil {
		return nil, err
	}
	pg, err := postgres.New(ctx, s, sandboxes.Identity{"dba": "2"}, func(w sandboxes.World) (string, bool, error) {
		c, err := of(w)
		return c.setup, c.readOnly, err
	}, ready, "query_database")
	if err != nil {
		return nil, errors.Join(err, trees.Close())
	}
	box, err := lint.Both(ctx, pg, s, func(w sandboxes.World) (map[string]string, error) {
		c, err := of(w)
		return c.files, err
	}, trees, code)
	if err != nil {
		return nil, errors.Join(err, pg.Close(), trees.Close())
	}
	return box, nil
}

// content is what a world is made from.
type content struct {
	setup    string
	readOnly bool
	files    map[string]string // that declare it
	tree     files.Setup
}
