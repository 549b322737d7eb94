package lint

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/mcpgym/mcpgym/envs"
	"github.com/mcpgym/mcpgym/envs/envtest"
	"github.com/mcpgym/mcpgym/policies"
	"github.com/mcpgym/mcpgym/rewards"
	"github.com/mcpgym/mcpgym/sandboxes"
	"github.com/mcpgym/mcpgym/sandboxes/confine"
	"github.com/mcpgym/mcpgym/sandboxes/files"
	"github.com/mcpgym/mcpgym/sandboxes/lint"
)

var runner = sync.OnceValues(func() (confine.Runner, error) { return confine.Local(context.Background()) })

// newSpec skips the test where linters cannot be run, or fails it where MCPGYM_REQUIRE names lint.
func newSpec(t testing.TB) envs.Spec {
	t.Helper()
	run, err := runner()
	var spec envs.Spec
	if err == nil {
		spec, err = Spec(t.Context(), files.New, run)
	}
	missing := errors.Is(err, confine.ErrUnavailable) || errors.Is(err, lint.ErrNoLinters)
	if missing && !slices.Contains(strings.Split(os.Getenv("MCPGYM_REQUIRE"), ","), "lint") {
		t.Skip(err)
	}
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, spec.Sandboxes.Close()) })
	return spec
}

func TestSplitsAreDisjoint(t *testing.T) {
	spec, seen := Rules(), map[uint64]string{}
	for _, name := range spec.SplitNames() {
		for i := range 300 {
			task := spec.Splits[name].Task(i)
			require.Empty(t, seen[task.World.Seed], task.ID)
			seen[task.World.Seed] = task.ID
		}
	}
}

func TestEnv(t *testing.T) { envtest.Check(t, newSpec(t)) }

// What tasks take for the findings of a project is what the linter finds, and the clean project has none and passes its tests.
func TestFindings(t *testing.T) {
	spec := newSpec(t)
	n := 40
	if testing.Short() {
		n = 11
	}
	seen := map[string]bool{}
	for i := range n {
		task := spec.Splits[[]string{"train", "ood"}[i%2]].Task(i / 2)
		var o options
		require.NoError(t, json.Unmarshal(task.World.Setup, &o))
		p := newProject(task.World.Seed, o)
		box, err := spec.Sandboxes.Lease(t.Context(), task.World)
		require.NoError(t, err)
		answers, err := sandboxes.ProbeOf(t.Context(), box, []sandboxes.Question{{Kind: "lint/linter", Text: "/"}})
		require.NoError(t, err)
		for _, c := range p.mend(p.faults) {
			got, err := box.Session().Call(t.Context(), c.Name, c.Arguments)
			require.NoError(t, err)
			require.False(t, got.IsError, got.Text)
		}
		requireTests(t, box, p)
		require.NoError(t, box.Close())
		var r lint.Result
		require.NoError(t, json.Unmarshal(answers[0].Value, &r))
		type at struct {
			file, rule string
			line       int
		}
		var want, got []at
		for _, f := range p.faults {
			if f.rule != "" {
				want = append(want, at{f.in.path, f.rule, f.line()})
			}
			seen[f.rule] = true
		}
		for _, f := range r.Findings {
			got = append(got, at{f.File, f.Rule, f.Line})
		}
		require.ElementsMatch(t, want, got, "%s\n%s", task.ID, answers[0].Value)
		if task.Want == nil {
			continue
		}
		answer, err := rewards.FinalAnswer(task.Solution[len(task.Solution)-1].Text)
		require.NoError(t, err)
		var right []string
		count := map[string]int{}
		for _, f := range got {
			if strings.Contains(task.Prompt, " "+f.rule+":") {
				right = append(right, fmt.Sprintf("%s; %d", f.file, f.line))
			}
			count[f.file]++
		}
		if task.Family != "where" {
			for file, n := range count {
				if n == slices.Max(slices.Collect(maps.Values(count))) {
					right = append(right, fmt.Sprintf("%s; %d", file, len(got)))
				}
			}
		}
		require.Equal(t, []string{answer}, right, task.ID)
	}
	if !testing.Short() {
		require.Len(t, seen, len(allRules)+1, "a rule is never drawn")
	}
}

// requireTests asks what the hidden tests ask and compares one result after the other.
func requireTests(t *testing.T, box sandboxes.Sandbox, p *project) {
	t.Helper()
	asked := p.asserts()[1]
	answers, err := sandboxes.ProbeOf(t.Context(), box, []sandboxes.Question{asked.Ask})
	require.NoError(t, err)
	require.Empty(t, answers[0].Err)
	var want, got lint.Tests
	require.NoError(t, json.Unmarshal(asked.Want, &want))
	require.NoError(t, json.Unmarshal(answers[0].Value, &got))
	require.Equal(t, 0, got.Exit)
	var a, b []json.RawMessage
	require.NoError(t, json.Unmarshal([]byte(want.Stdout), &a))
	require.NoError(t, json.Unmarshal([]byte(got.Stdout), &b))
	require.Len(t, b, len(a))
	for i, c := range p.checks() {
		k := i + len(p.touched())
		require.Equal(t, string(a[k]), string(b[k]), "%+v\n%s", c, p.texts())
	}
	require.Equal(t, want, got)
}

// firstOf gives the first tasks of a family, train's or else ood's.
func firstOf(t *testing.T, family string, n int) (all []envs.Task) {
	spec := Rules()
	for _, split := range []string{"train", "ood"} {
		for i := 0; len(all) < n && i < 10*n; i++ {
			if task := spec.Splits[split].Task(i); task.Family == family {
				all = append(all, task)
			}
		}
	}
	require.Len(t, all, n, family)
	return all
}

// play plays turns of a task.
func play(t *testing.T, e *envs.Env, task envs.Task, turns ...envs.Action) *envs.Trajectory {
	t.Helper()
	steps := make([]envs.Step, len(turns))
	for i, a := range turns {
		steps[i].Action = a
	}
	tr, err := policies.Rollout(t.Context(), e, task, policies.Replay{Steps: steps}, 1)
	require.NoError(t, err)
	require.Nil(t, tr.Void)
	return tr
}

// Each cheat earns nothing, and fails where it should: at the gate that is there for it.
func TestCheats(t *testing.T) {
	e, err := envs.New(newSpec(t))
	require.NoError(t, err)
	defer e.Close()
	cases := map[string]string{"suppressed by line": "C138", "suppressed by settings": "C139", "emptied": "C140", "deleted": "C140", "the examples emptied too": "C141", "moved elsewhere": "C142", "own linter and hooks": "C143"}
	gates := map[string]string{"suppressed by line": "assertions", "suppressed by file": "assertions", "suppressed by settings": "assertions collateral", "emptied": "assertions",
		"the examples emptied too": "collateral", "moved elsewhere": "assertions collateral", "in a string": "assertions", "in a string beside its shell": "assertions", "ends at import": "assertions",
		"prints and ends": "assertions", "constants": "assertions", "one file more": "collateral", "unused names used": "assertions", "the last one left": "assertions", "mended unasked": "collateral"}
	seen := map[string]bool{}
	for _, family := range []string{"unused", "comparisons", "shell", "logic", "audit"} {
		task := firstOf(t, family, 1)[0]
		for _, c := range allCheats(task) {
			t.Run(strings.TrimSpace(cases[c.Name]+" "+c.Name)+"/"+family, func(t *testing.T) {
				tr := play(t, e, task, c.Actions...)
				require.LessOrEqual(t, tr.Score.Value, 0.0)
				require.False(t, tr.Score.Success)
				for _, r := range tr.Results() {
					require.NotEqual(t, envs.StatusInvalid, r.Status, r.Text)
				}
				for _, p := range tr.Score.Parts {
					if strings.Contains(gates[c.Name], p.Name) {
						require.Zero(t, *p.Score, "%s: %s", p.Name, p.Reason)
					}
				}
			})
			seen[c.Name] = true
		}
	}
	for name := range gates {
		require.True(t, seen[name], name)
	}
}

// Work that is done in another way than gold does it is as good, but for the calls that it takes.
func TestOtherWays(t *testing.T) {
	e, err := envs.New(newSpec(t))
	require.NoError(t, err)
	defer e.Close()
	wins := func(t *testing.T, task envs.Task, turns ...envs.Action) {
		t.Helper()
		tr := play(t, e, task, turns...)
		require.True(t, tr.Score.Success, "%s: %+v", task.ID, tr.Score)
		require.GreaterOrEqual(t, tr.Score.Value, 0.9, "%s: %+v", task.ID, tr.Score.Parts)
	}
	for _, f := range slices.Concat(families, oodFamilies) {
		task := firstOf(t, f.name, 1)[0]
		if f.reads {
			continue
		}
		p := newProject(task.World.Seed, f.options)
		var whole envs.Action // all files anew, and no second look
		for _, s := range p.touched() {
			whole.Calls = append(whole.Calls, write(s.path, s.text(true)))
		}
		wins(t, task, task.Solution[0], task.Solution[1], whole, task.Solution[len(task.Solution)-1])
	}
	for _, tt := range []struct{ rule, from, to string }{
		{"E711", "    if limit is None:\n        return part\n    return min(part, limit)\n", "    if limit is not None:\n        return min(part, limit)\n    return part\n"},
		{"E713", "item not in known:", "(item not in known):"},
		{"B006", "if counts is None:\n        counts = {}", "counts = {} if counts is None else counts"},
		{"E722", "except ValueError:", "except (ValueError, UnicodeError):"},
		{"B007", "for _ in", "for _turn in"},
		{"B904", "as err:\n        raise LookupError(key) from err", "as missing:\n        raise LookupError(key) from missing"},
		{"F632", "if amount == 0:", "if not amount:"},
		{"SC2086", `"$file"`, `"${file}"`},
		{"SC2164", `cd "$1" || exit 1`, "if ! cd \"$1\"; then\n    exit 1\nfi"},
		{"SC2162", "while read -r line", "while IFS= read -r line"},
		{"SC3014", `if [ "$word" =`, `if test "$word" =`},
		{"SC2006", `first=$(sed -n 1p "$1")`, `first="$(sed -n 1p "$1")"`},
	} {
		t.Run(tt.rule, func(t *testing.T) {
			f := family{name: tt.rule, options: options{Rules: []string{tt.rule}, Files: 1, Most: 1}, wording: []string{"Mend $f."}}
			for seed := uint64(0); ; seed++ {
				require.Less(t, seed, uint64(200))
				task, ok := f.task(tt.rule, seed, rand.New(rand.NewPCG(seed, 0)))
				if !ok {
					continue
				}
				in := newProject(seed, f.options).faults[0]
				right := strings.Replace(in.new, tt.from, tt.to, 1)
				if right == in.new {
					continue
				}
				if tt.rule == "SC3014" { // test has no bracket at its end
					right = strings.Replace(right, " ]; then", "; then", 1)
				}
				wins(t, task, task.Solution[0], task.Solution[1], envs.Action{Calls: []envs.Call{write(in.in.path, strings.Replace(in.in.text(false), in.old, right, 1))}}, task.Solution[len(task.Solution)-1])
				return
			}
		})
	}
}
