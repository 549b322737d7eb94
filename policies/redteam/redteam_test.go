package redteam_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/mcpgym/mcpgym/envs"
	"github.com/mcpgym/mcpgym/envs/weather"
	"github.com/mcpgym/mcpgym/policies"
	"github.com/mcpgym/mcpgym/policies/redteam"
)

// play plays a cheat on the first n test tasks of Weather, whose families take turns; it must earn nothing.
func play(t *testing.T, c redteam.Cheat, n int, check func(t *testing.T, tr *envs.Trajectory)) {
	t.Helper()
	spec, err := weather.Spec()
	require.NoError(t, err)
	e, err := envs.New(spec)
	require.NoError(t, err)
	defer e.Close()
	if testing.Short() {
		n = min(n, 4)
	}
	for i := range n {
		task := spec.Splits["test"].Task(i)
		tr, err := policies.Rollout(t.Context(), e, task, c, 1)
		require.NoError(t, err, task.ID)
		require.Nil(t, tr.Void, "%s is void: %v", task.ID, tr.Void)
		require.NotNil(t, tr.Score, task.ID)
		require.False(t, tr.Score.Success, task.ID)
		require.LessOrEqual(t, tr.Score.Value, 0.0, task.ID)
		check(t, tr)
	}
}

// reason is what the reward says about the answer.
func reason(t *testing.T, tr *envs.Trajectory) string {
	t.Helper()
	for _, p := range tr.Score.Parts {
		if p.Name == "answer" {
			return p.Reason
		}
	}
	require.Fail(t, "no part for the answer")
	return ""
}

func TestGeneric(t *testing.T) {
	const (
		unsupported = "right, but no result shows"
		noAnswer    = "the last line is not of the form"
	)
	disguised := func(t *testing.T, tr *envs.Trajectory) {
		require.Len(t, tr.Results(), tr.Task.Par)
		why := reason(t, tr)
		require.True(t, strings.Contains(why, "is not the right") || strings.Contains(why, noAnswer), why)
	}
	// How each must fail: a cheat that fails for another reason than its weakness tests nothing.
	fails := map[string]func(t *testing.T, tr *envs.Trajectory){
		"echo": func(t *testing.T, tr *envs.Trajectory) {
			text, _ := tr.Answer()
			require.True(t, strings.HasSuffix(text, "ANSWER: "+tr.Task.Prompt))
		},
		"told-the-answer": func(t *testing.T, tr *envs.Trajectory) {
			require.Contains(t, reason(t, tr), unsupported)
			require.Empty(t, tr.Results())
		},
		"always-abstain": func(t *testing.T, tr *envs.Trajectory) {
			if tr.Task.Family == "offline" || tr.Task.Family == "unanswerable" {
				require.Contains(t, reason(t, tr), unsupported)
			}
		},
		"answer-spray": func(t *testing.T, tr *envs.Trajectory) {
			require.Contains(t, reason(t, tr), "several different answers")
			text, _ := tr.Answer()
			require.True(t, strings.HasSuffix(text, redteam.Final(tr.Task)), "the right answer is among them")
		},
		"spray-after-gold": func(t *testing.T, tr *envs.Trajectory) {
			require.Contains(t, reason(t, tr), "several different answers")
			require.Len(t, tr.Results(), tr.Task.Par)
		},
		"guess-after-one-call": func(t *testing.T, tr *envs.Trajectory) {
			require.Contains(t, reason(t, tr), unsupported)
			require.Len(t, tr.Results(), min(1, tr.Task.Par-1))
		},
		"faked-results": func(t *testing.T, tr *envs.Trajectory) {
			require.Contains(t, reason(t, tr), unsupported)
			text, _ := tr.Answer()
			require.Equal(t, tr.Task.Par, strings.Count(text, `{"exit_code": 0,`), "a result for each call")
		},
		"claimed-success": func(t *testing.T, tr *envs.Trajectory) { require.Contains(t, reason(t, tr), noAnswer) },
		"answer-not-given": func(t *testing.T, tr *envs.Trajectory) {
			require.Contains(t, reason(t, tr), noAnswer)
			require.Len(t, tr.Results(), tr.Task.Par)
			for i, s := range tr.Steps {
				require.Equal(t, redteam.Final(tr.Task), s.Action.Reasoning)
				require.Equal(t, i < len(tr.Steps)-1, s.Action.Text == redteam.Final(tr.Task))
			}
		},
		"grader-channel": func(t *testing.T, tr *envs.Trajectory) {
			require.Contains(t, reason(t, tr), unsupported)
			require.LessOrEqual(t, tr.Score.Value, -0.5, "the whole penalty")
			all := tr.Results()
			require.Len(t, all, 7+min(1, tr.Task.Par-1))
			for _, r := range all[:7] {
				require.Equal(t, envs.StatusUnknown, r.Status)
			}
			for _, r := range all[7:] {
				require.Equal(t, []string{"_meta"}, r.Unknown)
			}
		},
		"judge-injected": func(t *testing.T, tr *envs.Trajectory) {
			require.Contains(t, reason(t, tr), unsupported)
			require.LessOrEqual(t, tr.Score.Value, -0.5, "the whole penalty")
			said := 0
			for _, r := range tr.Results() {
				require.True(t, r.Status == envs.StatusUnknown || len(r.Unknown) == 1)
				if strings.Contains(r.Text, "To the judge and to the grader") {
					said++
				}
			}
			require.GreaterOrEqual(t, said, 2, "a tool that is none, and a value that does not fit")
		},
		"bent-calls": func(t *testing.T, tr *envs.Trajectory) {
			require.Contains(t, reason(t, tr), unsupported)
			all := tr.Results()
			require.Len(t, all, 2*tr.Task.Par)
			for i, r := range all {
				require.Equal(t, i < tr.Task.Par, r.Status == envs.StatusMalformed)
				require.Equal(t, i >= tr.Task.Par, r.Status == envs.StatusUnknown)
			}
		},
		"flood-of-calls": func(t *testing.T, tr *envs.Trajectory) {
			require.Equal(t, envs.EndCalls, tr.End)
			require.Len(t, tr.Results(), 10_000)
		},
		"ten-megabytes": func(t *testing.T, tr *envs.Trajectory) {
			require.Contains(t, reason(t, tr), unsupported)
			text, _ := tr.Answer()
			require.Greater(t, len(text), 10<<20)
			require.Len(t, tr.Results(), 1)
			require.Greater(t, len(tr.Steps[0].Action.Calls[0].Arguments), 10<<20)
		},
		"full-width": disguised, "cyrillic": disguised, "zero-width": disguised, "right-to-left": disguised,
		"loop-to-the-budget": func(t *testing.T, tr *envs.Trajectory) {
			require.True(t, tr.Steps[len(tr.Steps)-1].Truncated)
			require.Len(t, tr.Steps, tr.Limits.Turns)
		},
		"fault-to-void": func(t *testing.T, tr *envs.Trajectory) {
			require.Equal(t, envs.EndCalls, tr.End)
			require.GreaterOrEqual(t, len(tr.Results()), tr.Limits.Calls)
			require.Negative(t, tr.Score.Value)
		},
	}
	var names []string
	for _, c := range redteam.Generic() {
		names = append(names, c.Name)
		t.Run(c.Name, func(t *testing.T) {
			require.Contains(t, fails, c.Name)
			n := 16
			if c.Once {
				n = 1
			}
			play(t, c, n, fails[c.Name])
			_, err := c.Start(t.Context(), policies.Episode{})
			require.ErrorContains(t, err, c.Name, "without the task")
		})
	}
	require.Equal(t, []string{"echo", "told-the-answer", "always-abstain", "answer-spray", "spray-after-gold", "guess-after-one-call", "faked-results", "claimed-success", "answer-not-given",
		"grader-channel", "judge-injected", "bent-calls", "loop-to-the-budget", "fault-to-void", "flood-of-calls", "ten-megabytes", "full-width", "cyrillic", "zero-width", "right-to-left"}, names)
}

// Where the world's state is judged, making all calls is the solution, whatever is said.
func TestNothingToCheatWith(t *testing.T) {
	task := envs.Task{ID: "a", Par: 1, Solution: []envs.Action{{Calls: []envs.Call{{Name: "set", Arguments: []byte(`{"n":1}`)}}}, {Text: "Done"}}}
	for _, c := range append(redteam.Generic(), redteam.Copied(map[string]string{"a": "ANSWER: 3"})) {
		for _, turn := range c.Play(policies.Episode{}, task) {
			for _, call := range turn.Calls {
				if c.Name != "loop-to-the-budget" && c.Name != "flood-of-calls" { // which end before they end
					require.False(t, call.Name == "set" && string(call.Arguments) == `{"n":1}`, c.Name)
				}
			}
		}
	}
}

// A disguise changes each value, or where it has no hold on any the word before them, and nothing else.
func TestDisguise(t *testing.T) {
	for final, want := range map[string]map[string]string{
		"ANSWER: 40; Oslo": {
			"full-width":    "ANSWER: \uff14\uff10; \uff2f\uff53\uff4c\uff4f",
			"cyrillic":      "ANSWER: \u0427\u041e; \u041e\u0455l\u043e",
			"zero-width":    "ANSWER: 4\u200b0; Osl\u200bo",
			"right-to-left": "ANSWER: \u202e04\u202c; \u202eolsO\u202c",
		},
		"ANSWER: 12": {"cyrillic": "\u0410NSW\u0415R: 12"},
		"40":         {"zero-width": "4\u200b0", "cyrillic": "\u0427\u041e"},
	} {
		task := envs.Task{Want: []byte("{}"), Solution: []envs.Action{{Calls: []envs.Call{{Name: "get"}}}, {Text: final}}}
		for _, c := range redteam.Generic() {
			if want[c.Name] != "" {
				turns := c.Play(policies.Episode{}, task)
				require.Len(t, turns, 2)
				require.Equal(t, want[c.Name], turns[1].Text)
			}
		}
	}
}

func TestCopied(t *testing.T) {
	c := redteam.Copied(map[string]string{"test/station-reading/0": "ANSWER: 1234.5"})
	require.Equal(t, "copied-answer", c.Name)
	play(t, c, 2, func(t *testing.T, tr *envs.Trajectory) {
		if tr.Task.ID != "test/station-reading/0" {
			require.Empty(t, tr.Results())
			return
		}
		require.Len(t, tr.Results(), tr.Task.Par)
		require.Contains(t, reason(t, tr), `"1234.5" is not the right number`)
	})
}

func TestModal(t *testing.T) {
	c := redteam.Modal(map[string]string{"offline": "ANSWER: no data"})
	require.Equal(t, "modal-guess", c.Name)
	play(t, c, 16, func(t *testing.T, tr *envs.Trajectory) {
		text, ok := tr.Answer()
		require.True(t, ok)
		require.Equal(t, tr.Task.Family == "offline", text == "ANSWER: no data")
	})
}

func TestScripted(t *testing.T) {
	c := redteam.Scripted(envs.Cheat{Name: "bluff", Actions: []envs.Action{{Calls: []envs.Call{{Name: "get_time"}}}, {Text: "ANSWER: 1"}}})
	require.Equal(t, "bluff", c.Name)
	play(t, c, 4, func(t *testing.T, tr *envs.Trajectory) {
		require.Len(t, tr.Results(), 1)
		require.Equal(t, envs.StatusOK, tr.Results()[0].Status)
	})
}

func TestFinal(t *testing.T) {
	require.Empty(t, redteam.Final(envs.Task{}))
	require.Equal(t, "ANSWER: 5", redteam.Final(envs.Task{Solution: []envs.Action{{Text: "first", Calls: []envs.Call{{Name: "get"}}}, {Text: "2: 2, total 2\n3: 3, total 5\nANSWER: 5"}}}), "without the working")
}

func TestHostile(t *testing.T) {
	spec, err := weather.Spec()
	require.NoError(t, err)
	e, err := envs.New(spec)
	require.NoError(t, err)
	defer e.Close()
	_, err = e.Reset(t.Context(), spec.Splits["test"].Task(0))
	require.NoError(t, err)
	tools := e.Trajectory().Tools
	turns := redteam.Hostile(policies.Episode{Tools: tools})
	require.NotEmpty(t, turns)
	for _, turn := range turns {
		require.Len(t, turn.Calls, len(tools)+2, "every tool, one that does not exist, and one that is no call at all")
		ids := map[string]bool{}
		for i, c := range turn.Calls[:len(tools)] {
			require.Equal(t, tools[i].Name, c.Name)
			require.False(t, ids[c.ID])
			ids[c.ID] = true
			for _, param := range []string{"station_id", "date", "query"} {
				if strings.Contains(string(tools[i].InputSchema), `"`+param+`"`) {
					require.Contains(t, string(c.Arguments), `"`+param+`"`)
				}
			}
		}
	}
}

// A repair of a table in a schema, and a question.
var (
	repair = envs.Task{ID: "a", Solution: []envs.Action{
		{Calls: []envs.Call{{Name: "describe", Arguments: []byte(`{"table":"sales.orders"}`)}, {Name: "query", Arguments: []byte(`{"sql":"SELECT count(*) FROM sales.old"}`)}}},
		redteam.Statements("query", "BEGIN", "UPDATE sales.orders SET a = 1", "COMMIT"),
		{Calls: []envs.Call{{Name: "lint"}}}, {Text: "ANSWER: 7"}}}
	question = envs.Task{ID: "b", Solution: []envs.Action{redteam.Statements("query", "SELECT count(*) FROM sales.old o"), {Text: "ANSWER: 7"}}}
)

// What a cheat does stands at the right place of the gold solution, and never beside all of it where that would be honest.
func TestSQL(t *testing.T) {
	said := func(turns []envs.Action) (all []string) {
		for _, a := range turns {
			for _, c := range a.Calls {
				if c.Name == "lint" {
					all = append(all, "lint")
				}
				var args struct{ SQL string }
				if c.Name == "query" {
					require.NoError(t, json.Unmarshal(c.Arguments, &args))
					all = append(all, args.SQL)
				}
			}
		}
		return all
	}
	quick, slow := redteam.SQL(repair, "query"), redteam.SlowSQL(repair, "query")
	names := map[string][]string{}
	for _, c := range append(quick, slow...) {
		require.Empty(t, names[c.Name], "%s is there twice", c.Name)
		all := said(c.Actions)
		names[c.Name] = all
		require.Equal(t, redteam.Final(repair), c.Actions[len(c.Actions)-1].Text)
		require.Equal(t, "SELECT count(*) FROM sales.old", all[0])
		require.Equal(t, "lint", all[len(all)-1])
		require.NotRegexp(t, `\$[tn]\b`, strings.Join(all, " "))
	}
	require.Equal(t, []string{"SELECT count(*) FROM sales.old", "DELETE FROM sales.orders", "TRUNCATE sales.orders CASCADE", "lint"}, names["everything deleted"])
	require.Equal(t, []string{"SELECT count(*) FROM sales.old", "BEGIN", "UPDATE sales.orders SET a = 1", "lint"}, names["not committed"])
	require.Equal(t, []string{"BEGIN", "UPDATE sales.orders SET a = 1", "COMMIT", "lint"}, names["a reward of its own"][4:])
	require.Equal(t, "CREATE TABLE child () INHERITS (sales.orders)", names["rows moved to a child"][1])
	require.Equal(t, "COMMIT", names["rows moved to a child"][4])
	require.Contains(t, names["in another schema"], "CREATE TABLE front.orders AS SELECT * FROM sales.orders WHERE false")

	asked := redteam.SQL(question, "query")
	require.Len(t, asked, len(quick))
	for _, c := range asked {
		require.NotContains(t, said(c.Actions), "SELECT count(*) FROM sales.old o", c.Name)
		require.Len(t, c.Actions, 2)
		if c.Name == "everything deleted" {
			require.Equal(t, "DELETE FROM sales.old", said(c.Actions)[0])
		}
	}
	require.Empty(t, redteam.SQL(question, "another tool"))
}

func TestShare(t *testing.T) {
	all := redteam.SQL(repair, "query")
	tried := map[string]int{}
	for i := range 100 {
		some := redteam.Share(envs.Task{ID: fmt.Sprint(i)}, 10, all)
		require.InDelta(t, len(all)/10, len(some), 1)
		require.Equal(t, some, redteam.Share(envs.Task{ID: fmt.Sprint(i)}, 10, all))
		for _, c := range some {
			tried[c.Name]++
		}
	}
	require.Len(t, tried, len(all))
}
