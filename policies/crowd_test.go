package policies

import (
	"encoding/json"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/mcpgym/mcpgym/envs"
	"github.com/mcpgym/mcpgym/envs/files"
	"github.com/mcpgym/mcpgym/envs/weather"
	trees "github.com/mcpgym/mcpgym/sandboxes/files"
)

var _ TaskAware = Crowd{}

// play plays the first episodes of train by the crowd, each with its index as seed, and gives the member that played each.
func play(t *testing.T, spec envs.Spec, n int) (all []*envs.Trajectory, by []string) {
	t.Helper()
	env, err := envs.New(spec)
	require.NoError(t, err)
	for i := range n {
		tr, err := Rollout(t.Context(), env, spec.Splits["train"].Task(i), Crowd{}, uint64(i))
		require.NoError(t, err)
		require.Nil(t, tr.Void)
		c, err := newCrowd(Episode{Seed: uint64(i)}, tr.Task)
		require.NoError(t, err)
		all, by = append(all, tr), append(by, c.name)
	}
	require.NoError(t, env.Close())
	require.NoError(t, spec.Sandboxes.Close())
	return all, by
}

func callsOf(actions []envs.Action) (calls []envs.Call) {
	for _, a := range actions {
		calls = append(calls, a.Calls...)
	}
	return calls
}

func actionsOf(tr *envs.Trajectory) (actions []envs.Action) {
	for _, s := range tr.Steps {
		actions = append(actions, s.Action)
	}
	return actions
}

func isCall(a, b envs.Call) bool {
	return a.Name == b.Name && string(a.Arguments) == string(b.Arguments)
}

// rate is a share of episodes.
type rate struct{ hits, of int }

func (r *rate) count(hit bool) {
	r.of++
	if hit {
		r.hits++
	}
}

func TestCrowd(t *testing.T) {
	spec, err := weather.Spec()
	require.NoError(t, err)
	all, by := play(t, spec, 3200)
	t.Run("rates", func(t *testing.T) { crowdRates(t, all, by) })
	t.Run("answers from what it saw", func(t *testing.T) { crowdAnswers(t, all, by) })
}

// Members err at their rates, and about a third of all episodes succeed.
func crowdRates(t *testing.T, all []*envs.Trajectory, by []string) {
	shares, success, stops := map[string]int{}, map[string]*rate{}, map[string]*rate{}
	var total, skipped, muddled, invented, blurted, misread, unknown, terse rate
	for _, m := range members {
		success[m.name], stops[m.name] = &rate{}, &rate{}
	}
	for i, tr := range all {
		shares[by[i]]++
		success[by[i]].count(tr.Score.Success)
		total.count(tr.Score.Success)
		require.Equal(t, envs.EndAnswer, tr.End, "within the limits")
		require.LessOrEqual(t, len(tr.Steps), len(tr.Task.Solution)+patience)

		gold, made := callsOf(tr.Task.Solution), callsOf(actionsOf(tr))
		asGold := len(made) > 0 && isCall(made[0], gold[0])
		named := string(gold[0].Arguments) != "{}" && tr.Task.Family != "station-reading" // there is another thing that can be named
		switch by[i] {
		case "careful":
			solution := tr.Task.Solution
			require.Equal(t, silent(solution), silent(actionsOf(tr)))
			if !reflect.DeepEqual(solution, silent(solution)) {
				terse.count(!reflect.DeepEqual(solution, actionsOf(tr)))
			}
			require.True(t, tr.Score.Success)
		case "hasty":
			skipped.count(!asGold)
		case "muddled":
			if named {
				muddled.count(!asGold)
			}
		case "inventive":
			invented.count(!asGold)
			for _, res := range tr.Results() {
				unknown.count(res.Status == envs.StatusUnknown)
			}
		case "guesser":
			blurted.count(len(made) == 0)
			if len(made) > 0 {
				require.Len(t, made, len(gold))
				misread.count(!tr.Score.Success)
			}
		}
	}
	about := func(want, delta float64, r rate, what string) {
		t.Helper()
		require.InDelta(t, want, float64(r.hits)/float64(r.of), delta, "%s of %d", what, r.of)
	}
	for _, m := range members {
		require.InDelta(t, float64(m.share)/9, float64(shares[m.name])/float64(len(all)), 0.03, m.name)
		if m.name != "careful" {
			about(0.3, 0.08, *success[m.name], m.name)
		}
	}
	about(0.35, 0.05, skipped, "skipped first calls")
	about(0.6, 0.05, muddled, "muddled first calls")
	about(0.6, 0.05, invented, "invented first calls")
	about(0.2, 0.05, unknown, "calls of no tool")
	about(0.4, 0.05, blurted, "answers at once")
	about(0.6, 0.05, misread, "misread answers")
	about(0.25, 0.08, terse, "without working")
	about(1.0/3, 0.05, total, "success")
}

// silent leaves out of actions what is written down on the way to a call or an answer.
func silent(actions []envs.Action) []envs.Action {
	out := slices.Clone(actions)
	for i, a := range out {
		_, values, ok := strings.Cut(a.Text, answerMark)
		if out[i].Text = ""; ok {
			out[i].Text = answerMark + values
		}
	}
	return out
}

// A value of the gold answer is given only by who has seen it, or has seen all that it follows from.
func crowdAnswers(t *testing.T, all []*envs.Trajectory, by []string) {
	kept, blind := 0, 0
	for i, tr := range all {
		seen := tr.Task.Prompt
		for _, res := range tr.Results() {
			seen += " " + res.Text
		}
		whole := true
		made := callsOf(actionsOf(tr))
		for _, gold := range callsOf(tr.Task.Solution) {
			found := false
			for _, c := range made {
				found = found || isCall(gold, c)
			}
			whole = whole && found
		}
		if whole {
			continue
		}
		answer, _ := tr.Answer()
		require.True(t, strings.HasPrefix(answer, answerMark), "%s writes working for what it has not seen: %s", by[i], answer)
		given := strings.Split(strings.TrimPrefix(answer, answerMark), "; ")
		_, values, _ := strings.Cut(tr.Task.Solution[len(tr.Task.Solution)-1].Text, answerMark)
		for k, gold := range strings.Split(values, "; ") {
			if k >= len(given) || given[k] != gold || gold == noData { // who gives up may have no data
				blind++
				continue
			}
			kept++
			require.Regexp(t, `(^|[^\w.-])`+regexp.QuoteMeta(gold)+`($|T|[^\w.-])`, seen, "%s, %s: %s", by[i], tr.Task.Prompt, answer)
		}
	}
	require.Greater(t, kept, 100)
	require.Greater(t, blind, 1000)
}

// The seed decides who plays and how, whatever has been played before.
func TestCrowdIsDeterministic(t *testing.T) {
	spec, err := weather.Spec()
	require.NoError(t, err)
	env, err := envs.New(spec)
	require.NoError(t, err)
	defer env.Close()
	episode := func(seed uint64) string {
		tr, err := Rollout(t.Context(), env, spec.Splits["train"].Task(3), Crowd{}, seed)
		require.NoError(t, err)
		raw, err := json.Marshal(tr.Steps)
		require.NoError(t, err)
		return string(raw)
	}
	different := map[string]bool{}
	for seed := range uint64(40) {
		first := episode(seed)
		require.Equal(t, first, episode(seed))
		different[first] = true
	}
	require.Greater(t, len(different), 15)
	_, err = Crowd{}.Start(t.Context(), Episode{})
	require.ErrorContains(t, err, "solution")
}

// The crowd knows no environment: on live file trees, with calls of several a turn and tasks that change the tree, it does as well.
func TestCrowdOnFiles(t *testing.T) {
	spec, err := files.Spec(trees.New)
	require.NoError(t, err)
	all, _ := play(t, spec, 220)
	var success rate
	for _, tr := range all {
		success.count(tr.Score.Success)
		require.Equal(t, envs.EndAnswer, tr.End)
	}
	require.InDelta(t, 0.35, float64(success.hits)/float64(success.of), 0.1)
}

func TestStandsIn(t *testing.T) {
	for _, c := range []struct {
		text, v string
		want    bool
	}{
		{"4", "4", true},
		{"at 14:00", "4", false},
		{"it is 4.5", "4", false},
		{"it is 4.", "4", true},
		{"-4", "4", false},
		{"2031-04-05", "4", false},
		{"2031-04-05T10:00", "2031-04-05", false}, // its day is a value of its own
		{"Old Kruvo", "Kruvo", true},
		{"Kruvoland and Kruvo", "Kruvo", true},
		{"Kruvoland", "Kruvo", false},
		{"/a/b/c.txt", "/a/b", false},
		{"in /a/b.", "/a/b", true},
		{"", "4", false},
		{"4", "", false},
	} {
		require.Equal(t, c.want, standsIn(c.text, c.v), "%q in %q", c.v, c.text)
	}
}

func TestMadeUp(t *testing.T) {
	c, err := newCrowd(Episode{Seed: 5}, envs.Task{Solution: []envs.Action{{}}})
	require.NoError(t, err)
	for _, v := range []string{"KQT-4821", "Kruvo", "New Kruvo", "2031-04-05", "0", "12.5", "-3", "/data/log.3088.csv", "online", "é", "--", "/data/"} {
		for range 50 {
			made := c.madeUp(v)
			require.NotEqual(t, v, made)
			if v != "é" && v != "--" {
				require.Equal(t, kindOf(v), kindOf(made), "%s for %s", made, v)
			}
		}
	}
	require.True(t, strings.HasPrefix(c.madeUp("/data/log.3088.csv"), "/data/"))
}
