package bench

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/mcpgym/mcpgym/envs"
	"github.com/mcpgym/mcpgym/envs/dba"
	"github.com/mcpgym/mcpgym/envs/files"
	"github.com/mcpgym/mcpgym/envs/lint"
	"github.com/mcpgym/mcpgym/envs/postgres"
	"github.com/mcpgym/mcpgym/envs/weather"
	"github.com/mcpgym/mcpgym/policies"
	"github.com/mcpgym/mcpgym/sandboxes/confine"
	trees "github.com/mcpgym/mcpgym/sandboxes/files"
	server "github.com/mcpgym/mcpgym/sandboxes/postgres"
)

// Entry is an environment that this project ships.
type Entry struct {
	Name    string
	About   string
	Drivers []string // that Open knows; the first is used where none is asked for
	Splits  []string // all but train are recorded
	Tasks   int      // recorded of each split
	// Open starts what the environment needs, on one of Drivers. Closing the spec's sandboxes ends it.
	Open func(ctx context.Context, driver string) (envs.Spec, error)
	// Rules gives the spec without sandboxes, which is all that scoring a record takes. It may be nil where Open starts nothing.
	Rules func() envs.Spec
	// Founding scores a record by the founding formula, for a column to compare with. It may be nil.
	Founding func(*envs.Trajectory) float64
}

// live are the drivers of environments whose sandboxes are more than a part of this process.
var live = []string{"local", "container"}

// Envs lists the environments, sorted by name.
func Envs() []Entry {
	return []Entry{
		{"DBA-v0", "keep a live Postgres database in order, and the programs that use it, with a linter for both", live, []string{"train", "test", "ood"}, 60, onAll(dba.Spec), dba.Rules, dba.Founding},
		{"Files-v0", "find, read and keep in order the files of a project", live, []string{"train", "test", "ood"}, 200, onFiles, files.Rules, nil},
		{"Lint-v0", "mend modules of Python and shell scripts, with linters and hidden tests", live, []string{"train", "test", "ood"}, 60, onLint, lint.Rules, nil},
		{"Postgres-v0", "questions to a live Postgres database, and repairs of it", live, []string{"train", "test", "ood"}, 120, onPostgres(postgres.Spec), postgres.Rules, nil},
		{"Weather-v0", "questions about an invented weather service", []string{"in-process"}, []string{"train", "test", "ood"}, 500,
			func(context.Context, string) (envs.Spec, error) { return weather.Spec() }, nil, nil},
	}
}

// recorded are the splits that scores are taken on.
func (e Entry) recorded() []string {
	return slices.DeleteFunc(slices.Clone(e.Splits), func(s string) bool { return s == "train" })
}

// Driver checks the name of a driver; without one it gives the default.
func (e Entry) Driver(name string) (string, error) {
	if name == "" {
		return e.Drivers[0], nil
	}
	if !slices.Contains(e.Drivers, name) {
		return "", fmt.Errorf("%s has no driver %q, only %s", e.Name, name, strings.Join(e.Drivers, ", "))
	}
	return name, nil
}

// Split checks the name of a split.
func (e Entry) Split(name string) error {
	if !slices.Contains(e.Splits, name) {
		return fmt.Errorf("%s has no split %q, only %s", e.Name, name, strings.Join(e.Splits, ", "))
	}
	return nil
}

// Baseline is a policy that needs no model.
type Baseline struct {
	Name   string
	About  string
	Policy policies.Policy
}

// Baselines lists the policies that are cheap enough to be played anew by every test run, sorted by strength.
func Baselines() []Baseline {
	return []Baseline{
		{"noop", "answers nothing", policies.Noop{}},
		{"random", "valid calls drawn from the schemas, a random answer", policies.Random{}},
		{"lexical", "matches words of the prompt with tools, parameters and results", policies.Lexical{}},
		{"oracle", "plays the gold solution; not ranked", policies.Oracle{}},
	}
}

// Policies lists the policies that can be played without a model: the baselines, and those whose episodes serve another end than a
// row of the board.
func Policies() []Baseline {
	return append(Baselines(), Baseline{"crowd", "errs from the gold solution in many ways, for a model to imitate; not ranked", policies.Crowd{}})
}

// references are the rows that a trained policy is compared with, where they are on its board.
func references(policy string) []string {
	return append([]string{"noop", "random", "lexical"}, map[string][]string{
		"nano-rft":  {"nano-sft"},
		"nano-grpo": {"nano-sft", "nano-rft"},
	}[policy]...)
}

// foundingOf gives the founding formula of an environment, nil where it has none.
func foundingOf(env string) func(*envs.Trajectory) float64 {
	for _, e := range Envs() {
		if e.Name == env {
			return e.Founding
		}
	}
	return nil
}

// FindEnv finds an environment by name, or says which there are. A name that ends in .json is a file with a task in the form
// that envs/dba.Load reads; its environment is not among those that are recorded.
func FindEnv(name string) (Entry, error) {
	if filepath.Ext(name) == ".json" {
		raw, err := os.ReadFile(name)
		if err != nil {
			return Entry{}, fmt.Errorf("read the task: %w", err)
		}
		return Entry{Name: name, About: "a task from a file", Drivers: live, Splits: []string{"test"}, Open: onAll(func(ctx context.Context, s *server.Server, open trees.Driver, run confine.Runner) (envs.Spec, error) {
			spec, err := dba.Load(ctx, s, open, run, raw)
			if err != nil {
				err = fmt.Errorf("%s: %w", name, err)
			}
			return spec, err
		})}, nil
	}
	var names []string
	for _, e := range Envs() {
		if e.Name == name {
			return e, nil
		}
		names = append(names, e.Name)
	}
	return Entry{}, fmt.Errorf("no environment %q, only %s", name, strings.Join(names, ", "))
}

// FindPolicy finds a policy by name, or says which there are.
func FindPolicy(name string) (Baseline, error) {
	var names []string
	for _, b := range Policies() {
		if b.Name == name {
			return b, nil
		}
		names = append(names, b.Name)
	}
	return Baseline{}, fmt.Errorf("no policy %q, only %s", name, strings.Join(names, ", "))
}
