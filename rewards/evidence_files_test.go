package rewards_test

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/mcpgym/mcpgym/envs"
	"github.com/mcpgym/mcpgym/rewards"
	"github.com/mcpgym/mcpgym/sandboxes"
)

// A file is shown by a list that has its path, its text by a result that has both, unless the agent may have written it.
func TestEvidenceOfFiles(t *testing.T) {
	call := func(tool, args, text string) envs.Step {
		return envs.Step{Action: envs.Action{Calls: []envs.Call{{Name: tool, Arguments: json.RawMessage(args)}}},
			Observation: envs.Observation{Results: []envs.CallResult{{Name: tool, Text: text, Status: envs.StatusOK}}}}
	}
	const path, text = `{"file":"/a/b.ini"}`, `{"file":"/a/b.ini","says":"port = 80"}`
	read := call("read", `{"path":"/a/b.ini"}`, `{"path":"/a/b.ini","size":20,"content":"[mail]\r\nport = 80\r\n"}`)
	for _, c := range []struct {
		name, fact string
		steps      []envs.Step
		at         string // the place that shows it, empty where none does
		step       int
	}{
		{"an entry", path, []envs.Step{call("list", `{}`, `{"path":"/a","entries":[{"path":"/a/b"},{"path":"/a/b.ini","size":3}]}`)}, "/entries/1/path", 0},
		{"a text", path, []envs.Step{call("list", `{}`, `{"entries":["/a/","/a/b.ini"]}`)}, "/entries/1", 0},
		{"part of a text", path, []envs.Step{call("list", `{}`, `{"entries":["/a/b.ini.bak"],"content":"see /a/b.ini"}`)}, "", 0},
		{"written before it is listed", path, []envs.Step{call("write", `{"path":"/a/b.ini"}`, `{"path":"/a/b.ini"}`), call("list", `{}`, `["/a/b.ini"]`)}, "", 0},
		{"listed before it is written", path, []envs.Step{call("list", `{}`, `["/a/b.ini"]`), call("write", `{"path":"/a/b.ini"}`, `{"path":"/a/b.ini"}`)}, "/0", 0},
		{"read", text, []envs.Step{read}, "/content", 0},
		{"read among others", text, []envs.Step{call("read", `{}`, `{"files":[{"path":"/a/c.ini","content":"port = 80"},{"path":"/a/b.ini","content":"port = 80"}]}`)}, "/files/1/content", 0},
		{"of two pages the second", text, []envs.Step{call("read", `{}`, `{"path":"/a/b.ini","content":"port = 8"}`), read}, "/content", 1},
		{"another file", text, []envs.Step{call("read", `{}`, `{"path":"/a/c.ini","content":"port = 80"}`)}, "", 0},
		{"part of a word", text, []envs.Step{call("read", `{}`, `{"path":"/a/b.ini","content":"port = 8080\nsport = 80"}`)}, "", 0},
		{"no content", text, []envs.Step{call("read", `{}`, `{"path":"/a/b.ini","error":"port = 80"}`)}, "", 0},
		{"written before it is read", text, []envs.Step{call("write", `{"path":"/a/b.ini","content":"[mail]\nport = 80\n"}`, `{}`), read}, "", 0},
		{"read before it is written", text, []envs.Step{read, call("write", `{"path":"/a/b.ini","content":"port = 80"}`, `{}`)}, "/content", 0},
		{"something else is written", text, []envs.Step{call("write", `{"path":"/a/b.ini","content":"port = 81"}`, `{}`), read}, "/content", 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			tr := &envs.Trajectory{Task: envs.Task{Want: json.RawMessage(`{"answer":[{"kind":"text","value":"x"}],"evidence":[[` + c.fact + `]]}`)}, Steps: c.steps,
				Tools: []sandboxes.Tool{{Name: "read", ReadOnly: true}, {Name: "list", ReadOnly: true}, {Name: "write"}}}
			got, err := rewards.Evidence(tr)
			require.NoError(t, err)
			require.Len(t, got, 1)
			if c.at == "" {
				require.Equal(t, -1, got[0].Step)
				return
			}
			require.Equal(t, c.step, got[0].Step)
			require.Equal(t, c.at, string(got[0].Path))
		})
	}
	for _, fact := range []string{`{"says":"x"}`, `{"file":"/a","has":{"a":1}}`} {
		_, err := rewards.DecodeWant(json.RawMessage(`{"answer":[{"kind":"text","value":"x"}],"evidence":[[` + fact + `]]}`))
		require.ErrorContains(t, err, "a fact that any result shows, or one that is said in two ways")
	}
}
