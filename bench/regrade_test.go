package bench

import (
	"context"
	"encoding/json"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/mcpgym/mcpgym/envs"
	"github.com/mcpgym/mcpgym/policies"
	"github.com/mcpgym/mcpgym/rewards"
	"github.com/mcpgym/mcpgym/sandboxes"
)

// weatherRules are the rules of Weather-v0, and a record of it. Episode 0 is won with one call, episode 7 is lost.
func weatherRules(t *testing.T) (envs.Spec, []byte) {
	entry, err := FindEnv("Weather-v0")
	require.NoError(t, err)
	spec, err := entry.Open(t.Context(), "in-process")
	require.NoError(t, err)
	defer spec.Sandboxes.Close()
	r, err := Run(t.Context(), Config{Spec: spec, Policy: policies.Lexical{}, Name: "lexical", Split: "test", Tasks: 8, Trials: 2, Seed: 1, Parallel: 2})
	require.NoError(t, err)
	data, err := r.Marshal()
	require.NoError(t, err)
	rules, err := entry.Scoring(t.Context())
	require.NoError(t, err)
	require.Nil(t, rules.Sandboxes)
	return rules, data
}

func reread(t *testing.T, data []byte) *Record {
	r, problems, err := Unmarshal(data)
	require.NoError(t, err)
	require.Empty(t, problems)
	return r
}

func texts(problems []Problem) []string {
	list := []string{}
	for _, p := range problems {
		list = append(list, p.String())
	}
	return list
}

// Whatever is edited in a record that moves a score, or in the score, is found, and nothing else is.
func TestRegrade(t *testing.T) {
	spec, data := weatherRules(t)
	const won = `{"name":"efficiency","kind":"credit","weight":0.1,"score":1,"reason":"1 calls, gold makes 1"}`
	for _, c := range []struct {
		name string
		edit func(r *Record, e *Episode) // e is episode 0, trial 1: won
		want []string
	}{
		{"nothing", func(*Record, *Episode) {}, []string{}},
		{"value", func(_ *Record, e *Episode) { e.Score.Value = 0.5 }, []string{"episode 0 trial 1: reward: value: recorded 0.5, now 1"}},
		{"success", func(_ *Record, e *Episode) { e.Score.Success = false }, []string{"episode 0 trial 1: reward: success: recorded false, now true"}},
		{"a part's score", func(_ *Record, e *Episode) { *e.Score.Parts[1].Score = 0.25 }, []string{
			`episode 0 trial 1: reward: part valid_calls: recorded {"name":"valid_calls","kind":"credit","weight":0.1,"score":0.25,"reason":"1 of 1 calls valid"}, now {"name":"valid_calls","kind":"credit","weight":0.1,"score":1,"reason":"1 of 1 calls valid"}`}},
		{"a part is missing", func(_ *Record, e *Episode) { e.Score.Parts = slices.Delete(e.Score.Parts, 2, 3) }, []string{
			"episode 0 trial 1: reward: part efficiency: recorded null, now " + won}},
		{"a part too many", func(_ *Record, e *Episode) {
			e.Score.Parts = append(e.Score.Parts, envs.Part{Name: "x", Kind: envs.Credit})
		}, []string{
			`episode 0 trial 1: reward: part x: recorded {"name":"x","kind":"credit","weight":0,"score":null}, now null`}},
		{"no score", func(_ *Record, e *Episode) { e.Score = nil }, []string{"episode 0 trial 1: reward: score: recorded null, now "}},
		{"parts exchanged", func(_ *Record, e *Episode) {
			p := e.Score.Parts
			p[1], p[2] = p[2], p[1]
		}, []string{"episode 0 trial 1: reward: parts: recorded ["}},
		{"a part twice", func(_ *Record, e *Episode) { e.Score.Parts = append(e.Score.Parts, e.Score.Parts[0]) }, []string{"episode 0 trial 1: reward: parts: recorded ["}},
		{"the evidence", func(_ *Record, e *Episode) { e.Steps[0].Observation.Results[0].Text = "{}" }, []string{
			"episode 0 trial 1: reward: success: recorded true, now false", "episode 0 trial 1: reward: value: recorded 1, now -0.1", "episode 0 trial 1: reward: part answer: recorded ",
			"episode 0 trial 1: reward: part hallucination: recorded "}},
		{"the answer", func(_ *Record, e *Episode) { e.Steps[1].Action.Text = "ANSWER: 1" }, []string{
			"episode 0 trial 1: reward: success: recorded true, now false", "episode 0 trial 1: reward: value: recorded 1, now -0.1", "episode 0 trial 1: reward: part answer: recorded ",
			"episode 0 trial 1: reward: part hallucination: recorded "}},
		{"void, and scored", func(_ *Record, e *Episode) { e.Void = &sandboxes.Fault{} }, []string{"episode 0 trial 1: the episode is void, and yet it has a score"}},
		{"void", func(_ *Record, e *Episode) { e.Void, e.Score = &sandboxes.Fault{}, nil }, []string{}},
		{"more results than calls", func(_ *Record, e *Episode) {
			s := &e.Steps[0]
			s.Observation.Results = append(s.Observation.Results, s.Observation.Results[0])
		}, []string{"episode 0 trial 1 step 0: more results than calls"}},
		{"prompt", func(_ *Record, e *Episode) { e.Prompt += " " }, []string{"episode 0 trial 1: the task is not what test 0 gives now"}},
		{"seed", func(_ *Record, e *Episode) { e.Seed++ }, []string{"episode 0 trial 1: the seed does not follow from the record's seed 1"}},
		{"trial", func(_ *Record, e *Episode) { e.Trial = 2 }, []string{"episode 0 trial 2: the header plans only 8 tasks with 2 trials"}},
		{"index", func(_ *Record, e *Episode) { e.Index = -1 }, []string{"the header plans only 8 tasks with 2 trials"}},
		{"twice", func(r *Record, e *Episode) { r.Episodes[2] = *e }, []string{"episode 0 trial 1: the episode is recorded twice"}},
		{"limits", func(r *Record, _ *Episode) { r.Limits.Turns++ }, []string{"header: the limits or the system prompt"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := reread(t, data)
			c.edit(r, &r.Episodes[1])
			done := 0
			found, err := Regrade(t.Context(), spec, r, func(n int) { done = n })
			require.NoError(t, err)
			require.Equal(t, 16, done)
			require.Len(t, found, len(c.want), "%v", texts(found))
			for i, w := range c.want {
				require.Contains(t, found[i].String(), w)
			}
		})
	}
}

// Rules that have changed are found in every episode they change.
func TestRegradeNewRules(t *testing.T) {
	spec, data := weatherRules(t)
	r := reread(t, data)
	was := spec.Reward
	spec.Reward = rewards.Sum{rewards.Answer(0.9), rewards.ValidCalls(0.1), rewards.Hallucination(0.5)}
	found, err := Regrade(t.Context(), spec, r, nil)
	require.NoError(t, err)
	values := 0
	for _, p := range found {
		if p.What == "reward: value" {
			values++
		}
	}
	require.Contains(t, texts(found), `episode 0 trial 0: reward: part efficiency: recorded {"name":"efficiency","kind":"credit","weight":0.1,"score":1,"reason":"1 calls, gold makes 1"}, now null`)
	require.Len(t, found, values+2*16, "two parts of every episode")

	spec.Reward = rewards.Sum{{Name: "broken", Kind: envs.Gate, Weight: 1, Score: func(*envs.Trajectory) (envs.Part, error) { return envs.Part{}, nil }}}
	found, err = Regrade(t.Context(), spec, r, nil)
	require.NoError(t, err)
	require.Equal(t, "episode 0 trial 0: reward: cannot be computed now: reward part broken: not scored", found[0].String())
	require.Len(t, found, 16)

	spec.Reward = was
	spec.Name = "Weather-v1"
	_, err = Regrade(t.Context(), spec, r, nil)
	require.EqualError(t, err, "the record is of Weather-v0, which cannot be scored by the rules of Weather-v1")

	spec.Name = "Weather-v0"
	ctx, cancel := context.WithCancel(t.Context())
	last := 0
	_, err = Regrade(ctx, spec, r, func(done int) {
		last = done
		cancel()
	})
	require.ErrorIs(t, err, context.Canceled)
	require.Equal(t, 1, last)
}

// Records of every environment are scored without a server.
func TestScoring(t *testing.T) {
	for _, e := range Envs() {
		if len(e.Drivers) > 1 {
			e.Open = nil
		}
		spec, err := e.Scoring(t.Context())
		require.NoError(t, err, e.Name)
		require.Equal(t, e.Name, spec.Name)
		require.Nil(t, spec.Sandboxes)
		require.Equal(t, slices.Sorted(slices.Values(e.Splits)), spec.SplitNames())
	}
}

func TestExplain(t *testing.T) {
	spec, data := weatherRules(t)
	earned := func(e Explanation) map[string]float64 {
		m := map[string]float64{}
		for _, p := range e.Parts {
			m[p.Name] = p.Earned
		}
		return m
	}
	r := reread(t, data)
	e, err := Explain(spec, r, r.Episodes[0])
	require.NoError(t, err)
	require.Empty(t, e.Problems)
	require.True(t, *e.Success)
	require.Equal(t, map[string]float64{"answer": 0.8, "valid_calls": 0.1, "efficiency": 0.1, "hallucination": 0}, earned(e))
	require.Equal(t, []rewards.Shown{{Fact: `{"station_id":"PZM-6162","temperature":60.4}`, Tool: "get_current"}}, e.Evidence)
	require.Empty(t, e.BadCalls)

	// A turn with an invented tool and an invented parameter before it.
	first := r.Episodes[0].Steps[0]
	second := first.Observation.Results[0]
	second.Unknown = []string{"lang"}
	bad := r.Episodes[0]
	bad.Steps = append([]envs.Step{{
		Action:      envs.Action{Calls: []envs.Call{{Name: "nope", Arguments: json.RawMessage(`{}`)}, first.Action.Calls[0]}},
		Observation: envs.Observation{Results: []envs.CallResult{{Name: "nope", Status: envs.StatusUnknown}, second}},
	}}, bad.Steps...)
	e, err = Explain(spec, r, bad)
	require.NoError(t, err)
	require.True(t, *e.Success)
	require.Equal(t, map[string]float64{"answer": 0.8, "valid_calls": 0.066666667, "efficiency": 0.033333333, "hallucination": -0.2}, earned(e))
	require.Equal(t, 0.7, *e.Value)
	require.Equal(t, []BadCall{{0, 0, "nope", envs.StatusUnknown, nil}, {0, 1, "get_current", envs.StatusOK, []string{"lang"}}}, e.BadCalls)
	require.NotEmpty(t, e.Problems)

	lost, err := Explain(spec, r, r.Episodes[14])
	require.NoError(t, err)
	require.Empty(t, e.References)
	require.Empty(t, e.Claims)
	made := r.Episodes[0]
	made.Steps = slices.Clone(made.Steps)
	made.Steps[0].Action.Calls = []envs.Call{{Name: "get_current", Arguments: json.RawMessage(`{"station_id":"XXX-0000"}`)}}
	made.Steps[1].Action.Text = "ANSWER: 4711"
	e, err = Explain(spec, r, made)
	require.NoError(t, err)
	require.Equal(t, []string{"XXX-0000"}, e.References)
	require.Equal(t, []rewards.Claim{{Text: "4711", Reason: "no result shows it, and it does not follow from any"}}, e.Claims)
	require.Equal(t, -0.2, earned(e)["hallucination"])

	require.Equal(t, "test/driest-day/7", lost.Task)
	require.False(t, *lost.Success)
	require.Equal(t, map[string]float64{"answer": 0, "valid_calls": 0, "efficiency": 0, "hallucination": 0}, earned(lost))
	require.Len(t, lost.Evidence, 7)

	blind := r.Episodes[14]
	blind.Steps = blind.Steps[len(blind.Steps)-1:]
	e, err = Explain(spec, r, blind)
	require.NoError(t, err)
	for _, s := range e.Evidence {
		require.Equal(t, -1, s.Step)
	}

	void := r.Episodes[0]
	void.Void, void.Score = &sandboxes.Fault{Kind: sandboxes.FaultDied}, nil
	e, err = Explain(spec, r, void)
	require.NoError(t, err)
	require.Nil(t, e.Value)
	require.Empty(t, e.Problems)
}
