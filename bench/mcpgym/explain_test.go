package main

import (
	"encoding/json"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/mcpgym/mcpgym/bench"
	"github.com/mcpgym/mcpgym/envs"
	"github.com/mcpgym/mcpgym/sandboxes"
)

func TestExplain(t *testing.T) {
	file := played(t)
	code, out, errOut := call(t, "", "explain", file, "--episode", "0")
	require.Zero(t, code, "%s%s", out, errOut)
	require.Equal(t, `test/station-reading/0 (station-reading), played by lexical in Weather-v0
ended by: answer

part           kind     weight  score  earned  reason
answer         gate      0.800  1.000  +0.800  right, and shown by the results
valid_calls    credit    0.100  1.000  +0.100  1 of 1 calls valid
efficiency     credit    0.100  1.000  +0.100  1 calls, gold makes 1
hallucination  penalty   0.500  0.000  +0.000  nothing is made up
reward 1.000, success

the right answer follows from
  step 0, call 0, get_current as a whole: {"station_id":"PZM-6162","temperature":60.4}
`, out)

	code, out, _ = call(t, "", "explain", file, "--episode", "7")
	require.Zero(t, code)
	require.Contains(t, out, "efficiency     credit    0.100  0.667  +0.000  3 calls, gold makes 2\n")
	require.Contains(t, out, "reward 0.000, failure (gates not met: credits do not count)\n")
	require.Contains(t, out, `  step 2, call 0, get_daily_forecast /days/6: {"date":"2033-09-05",`)

	code, out, _ = call(t, "", "explain", file, "--episode", "7", "--json")
	require.Zero(t, code)
	var got struct {
		Task     string
		Success  bool
		Value    float64
		Parts    []map[string]any
		Evidence []map[string]any
		Problems []any
	}
	require.NoError(t, json.Unmarshal([]byte(out), &got))
	require.Equal(t, "test/driest-day/7", got.Task)
	require.Equal(t, map[string]any{"name": "valid_calls", "kind": "credit", "weight": 0.1, "score": 1.0, "reason": "3 of 3 calls valid", "earned": 0.0}, got.Parts[1])
	require.Len(t, got.Evidence, 7)
	require.Equal(t, "/days/3", got.Evidence[3]["path"])
	require.NotNil(t, got.Problems)
	require.Empty(t, got.Problems)
}

// What has been done to an episode is said, and the status is 1.
func TestExplainEdited(t *testing.T) {
	file := played(t)
	edited(t, file, func(r *bench.Record) {
		r.Episodes[0].Score.Value = 0.5
		s := &r.Episodes[1].Steps[1] // an invented tool, in place of what showed the answer
		s.Action.Calls[0].Name = "get_weather"
		s.Observation.Results = []envs.CallResult{{Name: "get_weather", Status: envs.StatusUnknown}}
		r.Episodes[2].Prompt += "?"
		r.Episodes[3].Void, r.Episodes[3].Score = &sandboxes.Fault{Kind: sandboxes.FaultDied, Op: "step 1"}, nil
	})
	for _, c := range []struct {
		episode string
		code    int
		want    []string
	}{
		{"0", 1, []string{"reward 1.000, success", "FAIL episode 0 trial 0: reward: value: recorded 0.5, now 1\n"}},
		{"1", 1, []string{"hallucination  penalty   0.500  0.400  -0.200  1 invented tools, 0 invented arguments, 1 unsupported claims", "reward -0.200, failure", "bad calls\n  step 1, call 0, get_weather: unknown_tool\n", "shown by no result: ", "made up\n  claim \"21.6\": no result shows it",
			"FAIL episode 1 trial 0: reward: part hallucination: recorded "}},
		{"2", 1, []string{"not scored\nFAIL episode 2 trial 0: the task is not what test 2 gives now\n"}},
		{"3", 0, []string{"void, not scored: ", "step 1"}},
		{"4", 0, []string{"reward "}},
	} {
		code, out, errOut := call(t, "", "explain", file, "--episode", c.episode)
		require.Equal(t, c.code, code, "%s%s", out, errOut)
		require.Empty(t, errOut)
		for _, w := range c.want {
			require.Contains(t, out, w)
		}
	}
	code, out, _ := call(t, "", "explain", file, "--episode", "0", "--json")
	require.Equal(t, 1, code)
	require.Contains(t, out, `"problems":[{"episode":0,"trial":0,"what":"reward: value","recorded":0.5,"now":1}]`)

	// A change without new digests: it fails the episode it is in, and is only mentioned beside others.
	file = played(t)
	data, err := os.ReadFile(file)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(file, []byte(strings.Replace(string(data), `"id":"`, `"id":"x`, 1)), 0o644))
	code, out, _ = call(t, "", "explain", file, "--episode", "0")
	require.Equal(t, 1, code)
	require.Contains(t, out, "FAIL episode 0 trial 0: the line does not match its digest\n")
	code, _, errOut := call(t, "", "explain", file, "--episode", "7")
	require.Zero(t, code)
	require.Contains(t, errOut, "the line does not match its digest\n")
}
