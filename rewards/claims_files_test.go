package rewards_test

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/mcpgym/mcpgym/envs"
	"github.com/mcpgym/mcpgym/rewards"
)

// A number of files follows from lists of all of them, by what the prompt quotes.
func TestClaimsCountFiles(t *testing.T) {
	for answer, want := range map[string]int{"2": 0, "3": 0, "4": 0, "5": 1, "9": 1} { // in /a and .csv, in /a, .csv
		tr := &envs.Trajectory{
			Task: envs.Task{Prompt: `How many files under "/a/" end in ".csv"?`, Want: json.RawMessage(`{"answer":[{"kind":"number","value":"2"}],"evidence":[[{"file":"/a/x.csv"}]]}`)},
			Steps: []envs.Step{
				{Action: envs.Action{Calls: []envs.Call{{Name: "directory_tree", Arguments: json.RawMessage(`{}`)}}},
					Observation: envs.Observation{Results: []envs.CallResult{{Name: "directory_tree", Status: envs.StatusOK, Text: `{"path":"/","entries":["/a/x.csv","/a/y.csv","/a/z.md","/b/u.csv","/b/v.csv","/c/one.md","/c/two.md"]}`}}}},
				{Action: envs.Action{Calls: []envs.Call{{Name: "list_directory", Arguments: json.RawMessage(`{"path":"/a"}`)}}},
					Observation: envs.Observation{Results: []envs.CallResult{{Name: "list_directory", Status: envs.StatusOK, Text: `{"path":"/a","entries":[{"path":"/a/x.csv","type":"file"}]}`}}}},
				{Action: envs.Action{Text: "ANSWER: " + answer}},
			},
			End: envs.EndAnswer,
		}
		require.Len(t, rewards.UnsupportedClaims(tr), want, answer)
	}
}
