package rewards_test

import (
	"encoding/json"
	"math"
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/mcpgym/mcpgym/envs"
	"github.com/mcpgym/mcpgym/rewards"
)

var foundingTools = []string{"query_database", "run_linter"}

// The outputs that the founding note's own program gives, to the bit; and ours where it raises an exception.
func TestFoundingVectors(t *testing.T) {
	data, err := os.ReadFile("testdata/seed_reward_vectors.json")
	require.NoError(t, err)
	var vectors []struct {
		Case, Completion string
		Reward           *float64
		Raises           string `json:"reference_raises"`
	}
	require.NoError(t, json.Unmarshal(data, &vectors))
	defined := map[string]float64{
		"arguments is null":     0.6,
		"call is a JSON list":   0.1,
		"sql is a number":       0.6,
		"arguments is a string": 0.6,
	}
	equal := 0
	for _, v := range vectors {
		t.Run(v.Case, func(t *testing.T) {
			want, ours := defined[v.Case]
			require.Equal(t, v.Raises != "", ours)
			if !ours {
				want = *v.Reward
				equal++
			}
			got := rewards.FoundingText(v.Completion, foundingTools, "inactive")
			require.Equal(t, math.Float64bits(want), math.Float64bits(got), "want %v, got %v", want, got)
		})
	}
	require.Len(t, vectors, 21)
	require.Equal(t, 17, equal)
}

func TestFoundingText(t *testing.T) {
	const query = `<tool_call>{"name":"query_database","arguments":{"sql":"x = 'inactive'"}}</tool_call>`
	for _, c := range []struct {
		name, text string
		want       float64
	}{
		{"member names count by case", `<tool_call>{"NAME":"run_linter","name":"query_database","ARGUMENTS":{"sql":"inactive"}}</tool_call>`, 0.6},
		{"sql counts by case", `<tool_call>{"name":"query_database","arguments":{"SQL":"inactive"}}</tool_call>`, 0.6},
		{"the last name counts", `<tool_call>{"name":"nope","name":"query_database","arguments":{"sql":"inactive"}}</tool_call>`, 1},
		{"the last name counts, invented", `<tool_call>{"name":"query_database","name":"nope"}</tool_call>`, -0.5},
		{"the last arguments count as a whole", `<tool_call>{"name":"query_database","arguments":{"sql":"inactive"},"arguments":{}}</tool_call>`, 0.6},
		{"the last sql counts", `<tool_call>{"name":"query_database","arguments":{"sql":"inactive","sql":"SELECT 1"}}</tool_call>`, 0.6},
		{"an escaped text", `<tool_call>{"name":"query_database","arguments":{"sql":"\u0049nactive"}}</tool_call>`, 1},
		{"a dotted capital I is another letter", `<tool_call>{"name":"query_database","arguments":{"sql":"` + "\u0130" + `nactive"}}</tool_call>`, 0.6},
		{"a name that is no text", `<tool_call>{"name":7,"arguments":{"sql":"inactive"}}</tool_call>`, -0.5},
		{"an invented tool with null arguments", `<tool_call>{"name":"nope","arguments":null}</tool_call>`, -0.5},
		{"null", `<tool_call>null</tool_call>`, 0.1},
		{"text after the object", `<tool_call>{"name":"query_database"} {}</tool_call>`, 0.1},
		{"numbers of any size", `<tool_call>{"name":"query_database","arguments":{"sql":"inactive","n":1e999}}</tool_call>`, 1},
		{"the word NaN", `<tool_call>{"name":"query_database","arguments":{"n":NaN}}</tool_call>`, 0.1},
		{"a closing tag before the opening one", `</tool_call><tool_call>{"name":"query_database"}`, 0},
		{"the first opening tag counts", `<tool_call>` + query, 0.1},
	} {
		t.Run(c.name, func(t *testing.T) {
			require.Equal(t, c.want, rewards.FoundingText(c.text, foundingTools, "inactive"))
		})
	}
	require.Equal(t, 1.0, rewards.FoundingText(query, foundingTools, "INACTIVE"))
	require.Equal(t, 0.6, rewards.FoundingText(query, foundingTools, "closed"))
	require.Equal(t, -0.5, rewards.FoundingText(query, []string{"run_linter"}, "inactive"))
}

func TestFounding(t *testing.T) {
	call := func(name, args string) envs.Call { return envs.Call{Name: name, Arguments: json.RawMessage(args)} }
	good := call("query_database", `{"sql":"status = 'Inactive'"}`)
	turn := func(calls ...envs.Call) envs.Step { return envs.Step{Action: envs.Action{Calls: calls}} }
	for _, c := range []struct {
		name  string
		steps []envs.Step
		want  float64
	}{
		{"nothing", nil, 0},
		{"an answer alone", []envs.Step{turn()}, 0},
		{"a call", []envs.Step{turn(good)}, 1},
		{"the first of two calls", []envs.Step{turn(call("run_linter", `{"path":"a"}`), good)}, 0.6},
		{"the first of two turns", []envs.Step{turn(call("nope", `{}`)), turn(good)}, -0.5},
		{"a call after a turn without any", []envs.Step{turn(), turn(good)}, 0},
		{"no arguments", []envs.Step{turn(envs.Call{Name: "query_database"})}, 0.6},
		{"arguments that are not JSON", []envs.Step{turn(envs.Call{Name: "query_database", Malformed: `{"sql":"inactive`})}, 0.1},
		{"arguments that only envs refuses", []envs.Step{turn(envs.Call{Name: "query_database", Malformed: `{"SQL":"x","sql":"inactive"}`})}, 1},
		{"a call that could not be read", []envs.Step{turn(envs.Call{Malformed: `{"name": "query_database", "arg`})}, 0.1},
		{"a call that only envs refuses", []envs.Step{turn(envs.Call{Malformed: `{"name":"nope","name":"query_database"}`})}, 0.6},
	} {
		t.Run(c.name, func(t *testing.T) {
			require.Equal(t, c.want, rewards.Founding(&envs.Trajectory{Steps: c.steps}, foundingTools, "inactive"))
		})
	}
}
