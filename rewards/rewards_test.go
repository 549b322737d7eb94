package rewards_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/mark3labs/mcp-go/mcp"
	"github.com/mark3labs/mcp-go/server"
	"github.com/stretchr/testify/require"

	"github.com/mcpgym/mcpgym/envs"
	"github.com/mcpgym/mcpgym/envs/weather"
	"github.com/mcpgym/mcpgym/rewards"
	"github.com/mcpgym/mcpgym/sandboxes"
	"github.com/mcpgym/mcpgym/sandboxes/casetest"
	"github.com/mcpgym/mcpgym/sandboxes/mcpmem"
)

// fixed is a component whose score is known.
func fixed(name string, kind envs.PartKind, weight float64, score *float64) rewards.Component {
	return rewards.Component{Name: name, Kind: kind, Weight: weight, Score: func(*envs.Trajectory) (envs.Part, error) {
		return envs.Part{Score: score, Reason: "fixed"}, nil
	}}
}

func gate(weight, score float64) rewards.Component { return fixed("gate", envs.Gate, weight, &score) }
func credit(weight, score float64) rewards.Component {
	return fixed("credit", envs.Credit, weight, &score)
}
func penalty(weight, score float64) rewards.Component {
	return fixed("penalty", envs.Penalty, weight, &score)
}

func TestCasesWeights(t *testing.T) {
	casetest.Run(t, "weights", func(t *testing.T, c casetest.Case) {
		var in struct{ Scores, Weights []*float64 }
		c.In(t, &in)
		require.Len(t, in.Weights, len(in.Scores))
		var sum rewards.Sum
		for i, s := range in.Scores {
			kind, weight := envs.Credit, *in.Weights[i]
			if weight < 0 {
				kind, weight = envs.Penalty, -weight
			}
			sum = append(sum, fixed(fmt.Sprint(i), kind, weight, s))
		}
		score, err := sum.Score(&envs.Trajectory{})
		reported := []*float64{}
		for _, p := range score.Parts {
			reported = append(reported, p.Score)
		}
		got := map[string]any{"total": score.Value, "reported": reported}
		switch {
		case errors.Is(err, envs.ErrUnscored):
			got["total"] = nil
		case err != nil:
			got = map[string]any{"error": true}
		}
		c.Check(t, got)
	})
}

func TestSumValidate(t *testing.T) {
	double := gate(0.5, 1)
	double.Name = "credit"
	nameless := gate(1, 1)
	nameless.Name = ""
	hollow := gate(1, 1)
	hollow.Score = nil
	var tenths rewards.Sum
	for i := range 10 {
		tenths = append(tenths, fixed(fmt.Sprint(i), envs.Gate, 0.1, nil))
	}
	for _, c := range []struct {
		name string
		sum  rewards.Sum
		want string // part of the error, empty where there is none
	}{
		{"one gate", rewards.Sum{gate(1, 1)}, ""},
		{"all kinds", rewards.Sum{gate(0.7, 1), credit(0.3, 1), penalty(1, 1)}, ""},
		{"ten tenths, whose sum of floats is not 1", tenths, ""},
		{"nothing", nil, "without a gate"},
		{"no gate", rewards.Sum{credit(1, 1)}, "without a gate"},
		{"only a penalty", rewards.Sum{penalty(1, 1)}, "without a gate"},
		{"too little", rewards.Sum{gate(0.7, 1), credit(0.2, 1)}, "want 1"},
		{"too much", rewards.Sum{gate(0.7, 1), credit(0.4, 1)}, "want 1"},
		{"a penalty does not count towards 1", rewards.Sum{gate(0.7, 1), penalty(0.3, 1)}, "want 1"},
		{"weight 0", rewards.Sum{gate(1, 1), credit(0, 1)}, "weight 0"},
		{"negative weight", rewards.Sum{gate(1, 1), penalty(-0.5, 1)}, "weight -0.5"},
		{"weight above 1", rewards.Sum{gate(1, 1), penalty(1.5, 1)}, "weight 1.5"},
		{"weight not a number", rewards.Sum{gate(1, 1), penalty(math.NaN(), 1)}, "weight NaN"},
		{"two of one name", rewards.Sum{double, credit(0.5, 1)}, `"credit"`},
		{"no name", rewards.Sum{nameless}, "name of its own"},
		{"no function", rewards.Sum{hollow}, "a function"},
		{"unknown kind", rewards.Sum{gate(1, 1), fixed("x", "bonus", 0.5, nil)}, `kind "bonus"`},
	} {
		t.Run(c.name, func(t *testing.T) {
			err := c.sum.Validate()
			if c.want == "" {
				require.NoError(t, err)
				return
			}
			require.ErrorContains(t, err, c.want)
		})
	}
	spec, err := weather.Spec()
	require.NoError(t, err)
	require.NoError(t, spec.Reward.(rewards.Sum).Validate())
}

func TestSum(t *testing.T) {
	for _, c := range []struct {
		name    string
		sum     rewards.Sum
		success bool
		want    float64
	}{
		{"all of it", rewards.Sum{gate(0.7, 1), credit(0.3, 1), penalty(0.5, 0)}, true, 1},
		{"weights count", rewards.Sum{gate(0.7, 1), credit(0.3, 0)}, true, 0.7},
		{"part of a credit", rewards.Sum{gate(0.7, 1), credit(0.3, 0.5)}, true, 0.85},
		{"a penalty is subtracted", rewards.Sum{gate(0.7, 1), credit(0.3, 1), penalty(0.5, 0.4)}, true, 0.8},
		{"a penalty does not undo success", rewards.Sum{gate(1, 1), penalty(1, 1)}, true, 0},
		{"a credit needs success", rewards.Sum{gate(0.7, 0), credit(0.3, 1)}, false, 0},
		{"nearly is not success, and earns nothing", rewards.Sum{gate(0.7, 0.999), credit(0.3, 1)}, false, 0},
		{"every gate is needed", rewards.Sum{gate(0.5, 1), fixed("second", envs.Gate, 0.5, new(float64))}, false, 0},
		{"every gate is needed, in any order", rewards.Sum{fixed("first", envs.Gate, 0.5, new(float64)), gate(0.5, 1)}, false, 0},
		{"a penalty without success", rewards.Sum{gate(0.7, 0), credit(0.3, 1), penalty(0.5, 1)}, false, -0.5},
		{"penalties stop at -1", rewards.Sum{gate(1, 0), penalty(0.8, 1), fixed("more", envs.Penalty, 0.8, new(float64(1)))}, false, -1},
		{"rounded to 9 decimals", rewards.Sum{gate(0.7, 1), credit(0.3, 1.0/3)}, true, 0.8},
		{"nine decimals are kept", rewards.Sum{gate(1, 1), penalty(0.5, 0.000000002)}, true, 0.999999999},
		{"rounded to nothing", rewards.Sum{gate(1, 0), penalty(1e-12, 1)}, false, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			score, err := c.sum.Score(&envs.Trajectory{})
			require.NoError(t, err)
			require.Equal(t, c.success, score.Success)
			require.Equal(t, c.want, score.Value)
			require.False(t, math.Signbit(score.Value) && score.Value == 0, "-0")
			require.Len(t, score.Parts, len(c.sum))
			for i, p := range score.Parts {
				v, reason, _ := scoreOf(c.sum[i], nil)
				require.Equal(t, envs.Part{Name: c.sum[i].Name, Kind: c.sum[i].Kind, Weight: c.sum[i].Weight, Score: v, Reason: reason}, p)
			}
		})
	}
}

func TestSumErrors(t *testing.T) {
	t.Run("unscored is not zero", func(t *testing.T) {
		sum := rewards.Sum{gate(0.7, 1), fixed("judge", envs.Credit, 0.3, nil)}
		score, err := sum.Score(&envs.Trajectory{})
		require.ErrorIs(t, err, envs.ErrUnscored)
		require.ErrorContains(t, err, "judge")
		require.False(t, score.Success)
		require.Zero(t, score.Value)
		require.Len(t, score.Parts, 2, "the parts are returned all the same")
		require.Equal(t, 1.0, *score.Parts[0].Score)
		require.Nil(t, score.Parts[1].Score)
	})
	for _, bad := range []float64{math.NaN(), math.Inf(1), math.Inf(-1), 1.5, -0.1} {
		for _, kind := range []envs.PartKind{envs.Gate, envs.Credit, envs.Penalty} {
			t.Run(fmt.Sprint(kind, bad), func(t *testing.T) {
				score, err := rewards.Sum{gate(0.7, 1), fixed("odd", kind, 0.3, &bad)}.Score(&envs.Trajectory{})
				require.ErrorContains(t, err, "odd")
				require.NotErrorIs(t, err, envs.ErrUnscored)
				require.False(t, score.Success)
				require.Zero(t, score.Value)
			})
		}
	}
	t.Run("a part fails", func(t *testing.T) {
		cause := errors.New("unreadable")
		_, err := rewards.Sum{{Name: "state", Kind: envs.Gate, Weight: 1, Score: func(*envs.Trajectory) (envs.Part, error) {
			return envs.Part{}, cause
		}}}.Score(&envs.Trajectory{})
		require.ErrorIs(t, err, cause)
		require.ErrorContains(t, err, "state")
	})
}

// results are n calls of each status.
func results(n int, statuses ...envs.Status) []envs.CallResult {
	var all []envs.CallResult
	for _, s := range statuses {
		for range n {
			all = append(all, envs.CallResult{Name: "get", Status: s})
		}
	}
	return all
}

func TestParts(t *testing.T) {
	invented := envs.CallResult{Name: "get", Status: envs.StatusInvalid, Unknown: []string{"a", "b"}}
	extra := envs.CallResult{Name: "get", Status: envs.StatusOK, Unknown: []string{"a"}}
	innocent := results(1, envs.StatusOK, envs.StatusToolError, envs.StatusLimit, envs.StatusDefect, envs.StatusKilled)
	for _, c := range []struct {
		name    string
		part    rewards.Component
		par     int
		results []envs.CallResult
		want    float64
	}{
		{"valid: no calls", rewards.ValidCalls(0.1), 0, nil, 1},
		{"valid: what the agent is not charged for", rewards.ValidCalls(0.1), 0, innocent, 1},
		{"valid: unknown tool", rewards.ValidCalls(0.1), 0, results(1, envs.StatusOK, envs.StatusUnknown), 0.5},
		{"valid: malformed", rewards.ValidCalls(0.1), 0, results(1, envs.StatusOK, envs.StatusOK, envs.StatusOK, envs.StatusMalformed), 0.75},
		{"valid: invalid", rewards.ValidCalls(0.1), 0, results(2, envs.StatusOK, envs.StatusInvalid), 0.5},
		{"valid: none", rewards.ValidCalls(0.1), 0, results(1, envs.StatusUnknown, envs.StatusMalformed, envs.StatusInvalid), 0},

		{"efficiency: as gold", rewards.Efficiency(0.1), 3, results(3, envs.StatusOK), 1},
		{"efficiency: fewer", rewards.Efficiency(0.1), 3, results(2, envs.StatusOK), 1},
		{"efficiency: twice as many", rewards.Efficiency(0.1), 3, results(6, envs.StatusOK), 0.5},
		{"efficiency: failed calls count", rewards.Efficiency(0.1), 1, results(1, envs.StatusOK, envs.StatusUnknown, envs.StatusToolError, envs.StatusMalformed), 0.25},
		{"efficiency: nothing to do, nothing done", rewards.Efficiency(0.1), 0, nil, 1},
		{"efficiency: nothing to do, something done", rewards.Efficiency(0.1), 0, results(1, envs.StatusOK), 0},

		{"hallucination: none", rewards.Hallucination(0.5), 0, append(innocent, results(1, envs.StatusMalformed, envs.StatusInvalid)...), 0},
		{"hallucination: a tool", rewards.Hallucination(0.5), 0, results(1, envs.StatusUnknown), 0.2},
		{"hallucination: parameters", rewards.Hallucination(0.5), 0, []envs.CallResult{invented}, 0.4},
		{"hallucination: a parameter that the schema allows", rewards.Hallucination(0.5), 0, []envs.CallResult{extra}, 0.2},
		{"hallucination: tools and parameters", rewards.Hallucination(0.5), 0, append(results(2, envs.StatusUnknown), invented), 0.8},
		{"hallucination: five", rewards.Hallucination(0.5), 0, results(5, envs.StatusUnknown), 1},
		{"hallucination: more than five", rewards.Hallucination(0.5), 0, results(9, envs.StatusUnknown), 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := record("", "done", c.results...)
			r.Task.Par = c.par
			part, err := c.part.Score(r)
			require.NoError(t, err)
			require.InDelta(t, c.want, *part.Score, 1e-12, part.Reason)
			require.NotEmpty(t, part.Reason)
		})
	}
	require.Equal(t, envs.Credit, rewards.ValidCalls(0.1).Kind)
	require.Equal(t, envs.Credit, rewards.Efficiency(0.1).Kind)
	require.Equal(t, envs.Penalty, rewards.Hallucination(0.5).Kind)
	part, err := rewards.Hallucination(0.5).Score(record("", "", append(results(2, envs.StatusUnknown), invented, extra)...))
	require.NoError(t, err)
	require.Equal(t, map[string]int{"tools": 2, "arguments": 3, "claims": 0}, part.Counts)
}

// What a part is decides what it may do: a gate that became a credit would open every door.
func TestKinds(t *testing.T) {
	for _, c := range []struct {
		part rewards.Component
		name string
		kind envs.PartKind
	}{
		{rewards.Answer(0.25), "answer", envs.Gate},
		{rewards.Assertions(0.25), "assertions", envs.Gate},
		{rewards.Collateral(0.25), "collateral", envs.Gate},
		{rewards.Reported(0.25), "reported", envs.Gate},
		{rewards.ValidCalls(0.25), "valid_calls", envs.Credit},
		{rewards.Efficiency(0.25), "efficiency", envs.Credit},
		{rewards.Format(0.25), "format", envs.Credit},
		{rewards.Hallucination(0.25), "hallucination", envs.Penalty},
	} {
		require.Equal(t, c.name, c.part.Name)
		require.Equal(t, c.kind, c.part.Kind, c.name)
		require.Equal(t, 0.25, c.part.Weight, c.name)
	}
}

// cities is a world with one tool that knows the weather in two cities.
type cities map[string]string

func citySpec(t *testing.T) envs.Spec {
	t.Helper()
	srv := server.NewMCPServer("cities", "1")
	srv.AddTools(mcpmem.Tool("get_weather", "Current temperature in a city.",
		func(_ context.Context, w cities, in struct{ City string }) (any, error) {
			for name, temperature := range w {
				if strings.EqualFold(name, in.City) {
					return map[string]any{"city": name, "temperature": json.Number(temperature), "unit": "C"}, nil
				}
			}
			return nil, fmt.Errorf("no city %q", in.City)
		}, mcp.WithReadOnlyHintAnnotation(true), mcp.WithString("city", mcp.Required())))
	p, err := mcpmem.New(srv, nil, func(sandboxes.World) (cities, error) { return cities{"Paris": "21.4", "Oslo": "7.9"}, nil })
	require.NoError(t, err)
	return envs.Spec{
		Name:      "Cities-v0",
		Splits:    map[string]envs.Source{"test": envs.Generator(func(int) envs.Task { return parisTask })},
		Limits:    envs.Limits{Turns: 8, Calls: 8, ResultBytes: 1000, Call: time.Second, Episode: time.Minute},
		Reward:    rewards.Sum{rewards.Answer(0.8), rewards.ValidCalls(0.1), rewards.Efficiency(0.1), rewards.Hallucination(0.5)},
		Sandboxes: p,
	}
}

var parisTask = envs.Task{ID: "paris", Family: "current", Prompt: "How warm is it in Paris?", Par: 1,
	Want: json.RawMessage(`{"answer":[{"kind":"number","value":"21.4","unit":"C"}],"evidence":[[{"tool":"get_weather","has":{"city":"Paris","temperature":21.4}}]]}`)}

func say(text string) envs.Action { return envs.Action{Text: text} }

func call(tool, args string) envs.Action {
	return envs.Action{Calls: []envs.Call{{Name: tool, Arguments: json.RawMessage(args)}}}
}

// start resets a fresh environment to a task.
func start(t *testing.T, spec envs.Spec, task envs.Task) *envs.Env {
	t.Helper()
	e, err := envs.New(spec)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, e.Close()) })
	_, err = e.Reset(t.Context(), task)
	require.NoError(t, err)
	return e
}

// play plays actions and returns the last step.
func play(t *testing.T, e *envs.Env, actions ...envs.Action) envs.Step {
	t.Helper()
	var last envs.Step
	for _, a := range actions {
		var err error
		last, err = e.Step(t.Context(), a)
		require.NoError(t, err)
	}
	return last
}

// partScore is the score of one part.
func partScore(t *testing.T, s *envs.Score, name string) float64 {
	t.Helper()
	require.NotNil(t, s)
	for _, p := range s.Parts {
		if p.Name == name {
			return *p.Score
		}
	}
	require.Fail(t, "no part "+name)
	return 0
}

func TestCasesReward(t *testing.T) {
	t.Run("C161", func(t *testing.T) {
		for _, text := range []string{"I checked: 21.4 C", "I checked.\nANSWER: 21.4 C"} {
			s := play(t, start(t, citySpec(t), parisTask), say(text)).Score
			require.Zero(t, partScore(t, s, "answer"), text)
			require.False(t, s.Success)
			require.Positive(t, partScore(t, s, "hallucination"), "a penalty")
			require.Negative(t, s.Value)
		}
	})
	t.Run("C162/a", func(t *testing.T) {
		s := play(t, start(t, citySpec(t), parisTask), say("It is 21.4 C in Paris.\nANSWER: 21.4 C")).Score
		require.Zero(t, partScore(t, s, "answer"))
		require.Equal(t, -0.1, s.Value, "nothing earned, one claim made up")
	})
	t.Run("C162/b", func(t *testing.T) {
		spec := citySpec(t)
		mine, other := start(t, spec, parisTask), start(t, spec, parisTask)
		seen := play(t, other, call("get_weather", `{"city":"Paris"}`))
		require.Contains(t, seen.Observation.Results[0].Text, "21.4")
		s := play(t, mine, say("ANSWER: 21.4 C")).Score
		require.Zero(t, partScore(t, s, "answer"))
		require.Equal(t, -0.1, s.Value)
		s = play(t, other, say("ANSWER: 21.4 C")).Score
		require.Equal(t, 1.0, s.Value, "the session that called")
	})
	t.Run("C162/c", func(t *testing.T) {
		s := play(t, start(t, citySpec(t), parisTask), call("get_weather", `{"city":"PARIS"}`), say("It is 21.4 C in Paris.\nANSWER: 21.4 C")).Score
		require.Equal(t, 1.0, partScore(t, s, "answer"))
		require.True(t, s.Success)
		require.Equal(t, 1.0, s.Value)
	})
	t.Run("C165", func(t *testing.T) {
		for _, final := range []string{"", "Done.", "See the result above.", "ANSWER:"} {
			s := play(t, start(t, citySpec(t), parisTask), call("get_weather", `{"city":"Paris"}`), say(final)).Score
			require.Zero(t, s.Value, final)
			require.False(t, s.Success)
		}
	})
	t.Run("C166", func(t *testing.T) {
		e := start(t, citySpec(t), parisTask)
		step := play(t, e, call("get_wether", `{"city":"Paris"}`))
		require.False(t, step.Terminated || step.Truncated, "the episode goes on")
		require.True(t, step.Observation.Results[0].IsError)
		require.Contains(t, step.Observation.Results[0].Text, "get_weather")
		s := play(t, e, call("get_weather", `{"city":"Paris"}`), say("ANSWER: 21.4")).Score
		require.Equal(t, map[string]int{"tools": 1, "arguments": 0, "claims": 0}, s.Parts[3].Counts)
		require.Equal(t, 0.2, partScore(t, s, "hallucination"))
		require.True(t, s.Success)
		require.Equal(t, 0.8, s.Value) // 0.8 + 0.1/2 + 0.1/2 - 0.5/5
	})
	t.Run("C167", func(t *testing.T) {
		e := start(t, citySpec(t), parisTask)
		s := play(t, e, call("search_web", `{"q":"Paris"}`), call("search_web", `{"q":"Paris"}`), say("ANSWER: 21.4")).Score
		require.Len(t, e.Trajectory().Results(), 2, "both attempts are in the record")
		for _, r := range e.Trajectory().Results() {
			require.Equal(t, "search_web", r.Name)
			require.Equal(t, envs.StatusUnknown, r.Status)
		}
		require.Equal(t, map[string]int{"tools": 2, "arguments": 0, "claims": 1}, s.Parts[3].Counts, "and 21.4 was never seen")
		require.Equal(t, -0.3, s.Value)
	})
	t.Run("C168", func(t *testing.T) {
		spec, err := weather.Spec()
		require.NoError(t, err)
		for _, split := range spec.SplitNames() {
			for i := range 40 {
				task := spec.Splits[split].Task(i)
				s := play(t, start(t, spec, task), envs.Action{}).Score
				require.False(t, s.Success, task.ID)
				require.Zero(t, s.Value, task.ID)
			}
		}
		for _, criteria := range []string{``, `{}`, `{"answer":[],"evidence":[]}`, `{"answer":[{"kind":"text","value":"yes"}],"evidence":[]}`} {
			_, err := rewards.DecodeWant(json.RawMessage(criteria))
			require.Error(t, err, criteria)
			empty := parisTask
			empty.Want = json.RawMessage(criteria)
			e := start(t, citySpec(t), empty)
			_, err = e.Step(t.Context(), say("ANSWER: yes"))
			require.Error(t, err, criteria)
			require.Nil(t, e.Trajectory().Score)
			require.NotNil(t, e.Trajectory().Void)
		}
	})
	t.Run("C169", func(t *testing.T) {
		one := 1.0
		kept, silent := fixed("did not delete", envs.Credit, 0.3, &one), fixed("did not leak", envs.Credit, 0.3, &one)
		sum := rewards.Sum{kept, silent, gate(0.4, 0)}
		require.NoError(t, sum.Validate())
		s, err := sum.Score(record("", ""))
		require.NoError(t, err)
		require.Zero(t, s.Value)
		s, err = rewards.Sum{kept, silent, gate(0.4, 1)}.Score(record("", "a summary"))
		require.NoError(t, err)
		require.Equal(t, 1.0, s.Value)
	})
}

// BenchmarkScore scores the record of a Weather task's gold solution.
func BenchmarkScore(b *testing.B) {
	spec, err := weather.Spec()
	require.NoError(b, err)
	var longest *envs.Trajectory
	for i := range 64 {
		task := spec.Splits["test"].Task(i)
		e, err := envs.New(spec)
		require.NoError(b, err)
		_, err = e.Reset(b.Context(), task)
		require.NoError(b, err)
		for _, a := range task.Solution {
			_, err := e.Step(b.Context(), a)
			require.NoError(b, err)
		}
		require.NoError(b, e.Close())
		if t := e.Trajectory(); longest == nil || len(t.Steps) > len(longest.Steps) {
			longest = t
		}
	}
	size := 0
	for _, r := range longest.Results() {
		size += len(r.Text)
	}
	b.ReportAllocs()
	for b.Loop() {
		if s, err := spec.Reward.Score(longest); err != nil || s.Value != 1 {
			b.Fatal(s, err)
		}
	}
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "scores/s")
	b.ReportMetric(float64(len(longest.Results())), "results")
	b.ReportMetric(float64(size), "bytes")
}
