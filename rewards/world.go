package rewards

import (
	"bytes"
	"fmt"
	"regexp"
	"slices"

	"github.com/mcpgym/mcpgym/envs"
)

// Assertions is the gate for what the verifier has asked the world at the end: every answer must be the wanted one. Rows (a
// list of lists) are compared as Rows does, in order only where the assertion says so. All else must be equal as JSON: a text
// in every byte, its line ends too, and a number by its value, which is no text. Reports are not looked at. A task that asserts
// nothing passes; a world that the agent has ended does not.
func Assertions(weight float64) Component {
	return Component{"assertions", envs.Gate, weight, func(t *envs.Trajectory) (envs.Part, error) {
		asked, held := t.Task.Assertions, 0
		switch {
		case !slices.ContainsFunc(asked, func(a envs.Assertion) bool { return !a.Report }):
			return scored(1, "nothing is asserted")
		case t.End == envs.EndKilled:
			return scored(0, "the sandbox is gone")
		case len(t.Probes) != len(asked):
			return envs.Part{Reason: fmt.Sprintf("%d of %d questions were answered", len(t.Probes), len(asked))}, nil
		}
		for i, a := range asked {
			if a.Report {
				continue
			}
			if err := t.Probes[i].Err; err != "" { // the agent can cause this: it has dropped a table, say
				return scored(0, "assertion %d: %s", i, err)
			}
			same, err := sameAnswer(a, t.Probes[i].Value)
			if err != nil {
				return envs.Part{}, fmt.Errorf("assertion %d: %w", i, err)
			}
			if !same {
				return scored(0, "assertion %d: the world has %.200s, wanted is %.200s", i, t.Probes[i].Value, a.Want)
			}
			held++
		}
		return scored(1, "%d of %d hold", held, held)
	}}
}

func sameAnswer(a envs.Assertion, got []byte) (bool, error) {
	w, err := envs.DecodeJSON(a.Want)
	if err != nil {
		return false, fmt.Errorf("read the wanted answer: %w", err)
	}
	g, err := envs.DecodeJSON(got)
	if err != nil {
		return false, fmt.Errorf("read the world's answer: %w", err)
	}
	gold, isRows := asRows(w)
	rows, are := asRows(g)
	if isRows && are {
		return Rows{Gold: gold, Ordered: a.Ordered}.Match(rows)
	}
	return bytes.Equal(envs.Canonical(w), envs.Canonical(g)), nil
}

// asRows reads a list of lists that is not empty.
func asRows(v any) ([][]any, bool) {
	list, ok := v.([]any)
	if !ok || len(list) == 0 {
		return nil, false
	}
	rows := make([][]any, len(list))
	for i, e := range list {
		if rows[i], ok = e.([]any); !ok {
			return nil, false
		}
	}
	return rows, true
}

// Collateral is the gate for what the agent has changed: each difference of the world's state against its start must match
// one of Task.Allow as a whole. A world with more differences than its state lists has changed too much.
func Collateral(weight float64) Component {
	return Component{"collateral", envs.Gate, weight, func(t *envs.Trajectory) (envs.Part, error) {
		switch {
		case t.End == envs.EndKilled:
			return scored(0, "the sandbox is gone")
		case t.State == nil:
			return envs.Part{Reason: "the world shows no state"}, nil
		case t.State.More > 0:
			return scored(0, "%d differences", len(t.State.Diff)+t.State.More)
		case len(t.State.Diff) == 0:
			return scored(1, "nothing has changed")
		}
		// Most are allowed word for word, and to compile an expression for each would cost more than all else.
		literal := map[string]bool{}
		for _, line := range t.State.Diff {
			literal[regexp.QuoteMeta(line)] = false
		}
		var allow []*regexp.Regexp
		for i, a := range t.Task.Allow {
			if _, ok := literal[a]; ok {
				literal[a] = true
				continue
			}
			re, err := regexp.Compile(`^(?s:` + a + `)$`)
			if err != nil {
				return envs.Part{}, fmt.Errorf("allowed difference %d: %w", i, err)
			}
			allow = append(allow, re)
		}
	lines:
		for _, line := range t.State.Diff {
			if literal[regexp.QuoteMeta(line)] {
				continue
			}
			for _, a := range allow {
				if a.MatchString(line) {
					continue lines
				}
			}
			return scored(0, "not asked for: %.200s", line)
		}
		return scored(1, "%d differences, all of them part of the task", len(t.State.Diff))
	}}
}
