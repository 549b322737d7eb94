package rewards_test

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/mcpgym/mcpgym/envs"
	"github.com/mcpgym/mcpgym/rewards"
)

func TestEvidencePlaces(t *testing.T) {
	look := func(tool, args, text string, status envs.Status) envs.Step {
		return envs.Step{Action: envs.Action{Calls: []envs.Call{{Name: tool, Arguments: json.RawMessage(args)}}},
			Observation: envs.Observation{Results: []envs.CallResult{{Name: tool, Text: text, Status: status}}}}
	}
	steps := []envs.Step{
		look("weather", `{}`, `{"city":"A","days":[{"high":3}]}`, envs.StatusToolError),
		look("weather", `{}`, `{"city":"A","z":{"days":[{"high":3}]},"days":[{"high":2},{"high":3},{"high":3}]}`, envs.StatusOK),
		look("query_database", `{"sql":"SELECT n, name FROM orders"}`, `{"columns":["n","name"],"rows":[[1,"x"],[2,"Bob"]],"row_count":2}`, envs.StatusOK),
		look("query_database", `{"sql":"SELECT n FROM items"}`, `{"columns":["n"],"rows":[],"row_count":0}`, envs.StatusOK),
		look("find", `{}`, `{"a/b":{"m~n":{"id":7}}}`, envs.StatusOK),
	}
	for _, c := range []struct {
		name, evidence string
		want           rewards.Shown
	}{
		{"an object with the fields around it, the first by name and place", `[{"has":{"city":"A","high":3}}]`, rewards.Shown{`{"city":"A","high":3}`, 1, 0, "weather", "/days/1"}},
		{"the result as a whole", `[{"has":{"city":"A"}}]`, rewards.Shown{`{"city":"A"}`, 1, 0, "weather", ""}},
		{"a cell", `[{"cell":{"kind":"text","value":"bob"},"from":["orders"]}]`, rewards.Shown{`"bob" from orders`, 2, 0, "query_database", "/rows/1/1"}},
		{"the number of rows before the cells", `[{"cell":{"kind":"number","value":"2"},"from":["orders"]}]`, rewards.Shown{`"2" from orders`, 2, 0, "query_database", "/row_count"}},
		{"no rows", `[{"cell":{"kind":"none"},"from":["items"]}]`, rewards.Shown{"no row from items", 3, 0, "query_database", "/rows"}},
		{"names with slashes and tildes", `[{"has":{"id":7}}]`, rewards.Shown{`{"id":7}`, 4, 0, "find", "/a~1b/m~0n"}},
		{"the second fact of a group", `[{"has":{"id":8}},{"has":{"id":7}}]`, rewards.Shown{`{"id":7}`, 4, 0, "find", "/a~1b/m~0n"}},
		{"not shown", `[{"has":{"id":8}},{"has":{"id":9}}]`, rewards.Shown{Fact: `{"id":8}`, Step: -1}},
		{"another table", `[{"cell":{"kind":"text","value":"Bob"},"from":["items"]}]`, rewards.Shown{Fact: `"Bob" from items`, Step: -1}},
	} {
		t.Run(c.name, func(t *testing.T) {
			tr := &envs.Trajectory{Task: envs.Task{Want: json.RawMessage(`{"answer":[{"kind":"text","value":"x"}],"evidence":[` + c.evidence + `]}`)}, Steps: steps}
			for range 20 { // maps have no order
				got, err := rewards.Evidence(tr)
				require.NoError(t, err)
				require.Equal(t, []rewards.Shown{c.want}, got)
			}
		})
	}
	got, err := rewards.Evidence(&envs.Trajectory{Steps: steps})
	require.NoError(t, err)
	require.Empty(t, got)
	_, err = rewards.Evidence(&envs.Trajectory{Task: envs.Task{Want: json.RawMessage(`"yes"`)}})
	require.ErrorContains(t, err, "read the wanted answer")
}
