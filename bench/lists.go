package bench

import (
	"fmt"
	"strings"

	"github.com/mcpgym/mcpgym/envs"
	"github.com/mcpgym/mcpgym/envs/weather"
	"github.com/mcpgym/mcpgym/policies"
)

// Entry is an environment that this project ships.
type Entry struct {
	Name   string
	About  string
	Driver string   // that Open uses
	Splits []string // that are recorded, 500 tasks each
	Open   func() (envs.Spec, error)
}

// Envs lists the environments, sorted by name.
func Envs() []Entry {
	return []Entry{
		{"Weather-v0", "questions about an invented weather service", "in-process", []string{"test", "ood"}, weather.Spec},
	}
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

// FindEnv finds an environment by name, or says which there are.
func FindEnv(name string) (Entry, error) {
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
	for _, b := range Baselines() {
		if b.Name == name {
			return b, nil
		}
		names = append(names, b.Name)
	}
	return Baseline{}, fmt.Errorf("no policy %q, only %s", name, strings.Join(names, ", "))
}
