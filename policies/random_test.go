package policies_test

import (
	"context"
	"testing"

	"github.com/mark3labs/mcp-go/mcp"
	"github.com/mark3labs/mcp-go/server"
	"github.com/stretchr/testify/require"

	"github.com/mcpgym/mcpgym/envs"
	"github.com/mcpgym/mcpgym/policies"
)

func TestRandom(t *testing.T) {
	prompts := []string{"How many pages does book B-1042 have?", "Which train has the longest delay at Ashford on 2031-05-04?", `Is "Tides of Ember" free?`}
	calls, invalid, right, failed := 0, 0, 0, 0
	used := map[string]int{}
	distinct := map[string]bool{}
	for seed := range uint64(500) {
		tools := library()
		if seed%2 == 1 {
			tools = railway()
		}
		s := spec(t, tools, prompts[seed%3], "none of this", 1, obj{"x": 1})
		tr := play(t, s, policies.Random{}, seed)
		require.NotNil(t, tr.Score)
		require.Equal(t, envs.EndAnswer, tr.End)
		require.LessOrEqual(t, len(tr.Steps), 20)
		first := transcript(t, tr)
		require.Equal(t, first, transcript(t, play(t, s, policies.Random{}, seed)))
		distinct[first] = true
		for _, r := range tr.Results() {
			calls++
			used[r.Name]++
			require.Empty(t, r.Unknown, r.Text)
			require.NotEqual(t, envs.StatusUnknown, r.Status)
			switch r.Status {
			case envs.StatusInvalid, envs.StatusMalformed:
				invalid++
			case envs.StatusToolError:
				failed++
			}
		}
		if tr.Score.Success {
			right++
		}
	}
	require.Zero(t, invalid)
	require.Zero(t, right)
	require.InDelta(t, 2.5, float64(calls)/500, 1.5, "calls an episode")
	require.Less(t, failed, calls*2/3, "too many calls that no world would understand")
	require.Len(t, used, 6, "each tool is tried: %v", used)
	require.Greater(t, len(distinct), 300)
}

func TestRandomFitsSchemas(t *testing.T) {
	for _, c := range []struct{ name, schema string }{
		{"a reference", `{"type":"object","properties":{"a":{"$ref":"#/$defs/level"}},"required":["a"],"$defs":{"level":{"type":"integer","minimum":70,"maximum":71}}}`},
		{"alternatives, null first", `{"type":"object","properties":{"a":{"anyOf":[{"type":"null"},{"type":"string","enum":["x","y"]}],"not":{"type":"null"}}},"required":["a"]}`},
		{"all of several", `{"type":"object","properties":{"a":{"allOf":[{"type":"number"},{"minimum":-3,"maximum":-2}]}},"required":["a"]}`},
		{"several types", `{"type":"object","properties":{"a":{"type":["null","boolean"],"not":{"type":"null"}}},"required":["a"]}`},
		{"a pattern", `{"type":"object","properties":{"a":{"type":"string","pattern":"^(?:AB|CD)-[0-9]{3}x?$"}},"required":["a"]}`},
		{"lengths", `{"type":"object","properties":{"a":{"type":"string","minLength":30,"maxLength":31},"b":{"type":"string","maxLength":2}},"required":["a","b"]}`},
		{"a format", `{"$schema":"http://json-schema.org/draft-07/schema#","type":"object","properties":{"a":{"type":"string","format":"date"}},"required":["a"]}`},
		{"lists and objects", `{"type":"object","properties":{"a":{"type":"array","minItems":2,"items":{"type":"object","properties":{"n":{"type":"integer","minimum":4}},"required":["n"],"additionalProperties":false}}},"required":["a"]}`},
		{"a constant and examples", `{"type":"object","properties":{"a":{"const":9},"b":{"type":"string","examples":["left"],"pattern":"^l"}},"required":["a","b"]}`},
		{"many that are required", `{"type":"object","properties":{"a":{"type":"string"},"b":{"type":"string"},"c":{"type":"string"},"d":{"type":"string"}},"required":["a","b","c","d"]}`},
	} {
		t.Run(c.name, func(t *testing.T) {
			tool := server.ServerTool{Tool: mcp.NewToolWithRawSchema("thing", "", []byte(c.schema)), Handler: func(context.Context, mcp.CallToolRequest) (*mcp.CallToolResult, error) {
				return mcp.NewToolResultText("{}"), nil
			}}
			calls := 0
			for seed := range uint64(30) {
				tr := play(t, spec(t, []server.ServerTool{tool}, "Go.", "x", 1, obj{"x": 1}), policies.Random{}, seed)
				for _, r := range tr.Results() {
					calls++
					require.Equal(t, envs.StatusOK, r.Status, r.Text)
				}
			}
			require.Greater(t, calls, 40)
		})
	}
}
