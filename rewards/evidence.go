package rewards

import (
	"github.com/go-json-experiment/json/jsontext"

	"github.com/mcpgym/mcpgym/envs"
)

// Shown says where a record shows what an answer must follow from.
type Shown struct {
	Fact string           `json:"fact"` // where no result shows any of its group: the first of them
	Step int              `json:"step"` // -1 where no result shows it
	Call int              `json:"call"` // of the step
	Tool string           `json:"tool"`
	Path jsontext.Pointer `json:"path"` // in the result; empty for the result as a whole
}

// Evidence lists for each group of a task's evidence the first of its facts that is shown, and the first result that shows
// it. A task that asks for no answer has no evidence.
func Evidence(t *envs.Trajectory) ([]Shown, error) {
	if len(t.Task.Want) == 0 {
		return nil, nil
	}
	want, err := DecodeWant(t.Task.Want)
	if err != nil {
		return nil, err
	}
	results := shown(t)
	all := make([]Shown, len(want.Evidence))
	for i, group := range want.Evidence {
		var f Fact
		if all[i], f, err = find(group, results); err != nil {
			return nil, err
		}
		all[i].Fact = f.String()
	}
	return all, nil
}

// find looks for the facts of a group, one after the other, in all results. Where none is shown it gives the first of them.
func find(group []Fact, results []result) (Shown, Fact, error) {
	for _, f := range group {
		for _, r := range results {
			if at, ok, err := f.in(r); ok || err != nil {
				return Shown{Step: r.step, Call: r.call, Tool: r.tool, Path: at}, f, err
			}
		}
	}
	if len(group) == 0 {
		return Shown{Step: -1}, Fact{}, nil
	}
	return Shown{Step: -1}, group[0], nil
}
