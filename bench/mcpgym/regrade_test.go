package main

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/mcpgym/mcpgym/bench"
)

// played is the file of a record of the first eight tasks of Weather-v0, which the lexical policy wins and loses.
func played(t *testing.T) string {
	file := filepath.Join(t.TempDir(), "lexical.jsonl")
	code, _, errOut := call(t, "", "run", "--env", "Weather-v0", "--policy", "lexical", "--episodes", "8", "--out", file)
	require.Zero(t, code, errOut)
	return file
}

// edited changes a record's file and computes its digests anew.
func edited(t *testing.T, file string, edit func(r *bench.Record)) {
	r, problems, err := bench.Load(file)
	require.NoError(t, err)
	require.Empty(t, problems)
	edit(r)
	require.NoError(t, r.Save(file))
}

func TestRegrade(t *testing.T) {
	file := played(t)
	code, out, errOut := call(t, "", "regrade", filepath.Dir(file))
	require.Zero(t, code, "%s%s", out, errOut)
	require.Equal(t, "ok   "+file+": 8 episodes of lexical in Weather-v0, split test\n", out)
	code, out, _ = call(t, "", "regrade", "--json", file)
	require.Zero(t, code)
	require.JSONEq(t, `{"file":"`+file+`","env":"Weather-v0","policy":"lexical","split":"test","episodes":8,"void":0,"problems":[]}`, out)

	edited(t, file, func(r *bench.Record) {
		for i := range r.Episodes { // more differences than verify lists
			for k := range r.Episodes[i].Score.Parts {
				r.Episodes[i].Score.Parts[k].Reason = "forged"
			}
		}
		r.Episodes[7].Score.Value = 1
	})
	code, out, _ = call(t, "", "regrade", file)
	require.Equal(t, 1, code)
	require.Equal(t, 8*4+1, strings.Count(out, "FAIL "+file+": episode "), "%s", out)
	require.Contains(t, out, "episode 7 trial 0: reward: value: recorded 1, now 0\n")
	require.NotContains(t, out, "ok ")

	code, out, _ = call(t, "", "regrade", file, "--json")
	require.Equal(t, 1, code)
	var got struct{ Problems []map[string]any }
	require.NoError(t, json.Unmarshal([]byte(out), &got))
	require.Len(t, got.Problems, 33)
	require.Contains(t, got.Problems, map[string]any{"episode": 7.0, "trial": 0.0, "what": "reward: value", "recorded": 1.0, "now": 0.0})

	// A change without new digests is found by them.
	file = played(t)
	data, err := os.ReadFile(file)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(file, []byte(strings.Replace(string(data), `"end":"answer"`, `"end":"Answer"`, 1)), 0o644))
	code, out, _ = call(t, "", "regrade", file)
	require.Equal(t, 1, code)
	require.Contains(t, out, "episode 0 trial 0: the line does not match its digest")
}

func TestRegradeInterrupted(t *testing.T) {
	file := played(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	var out, errOut strings.Builder
	require.Equal(t, 130, run(ctx, []string{"regrade", file}, nil, &out, &errOut))
	require.Empty(t, out.String())
}

func TestRegradeWrongInput(t *testing.T) {
	dir := t.TempDir()
	file := played(t)
	data, err := os.ReadFile(file)
	require.NoError(t, err)
	write := func(name, text string) string {
		path := filepath.Join(dir, name)
		require.NoError(t, os.WriteFile(path, []byte(text), 0o644))
		return path
	}
	headless := write("headless.jsonl", `{"format":1,"env":"Wea`)
	torn := write("torn.jsonl", string(data[:len(data)-30]))
	foreign := write("foreign.jsonl", `{"format":1,"env":"Other-v0","tasks":1,"trials":1}`+"\n"+`{"i":0}`)
	split := write("split.jsonl", `{"format":1,"env":"Weather-v0","split":"tset","tasks":1,"trials":1}`+"\n"+`{"i":0}`)
	empty := t.TempDir()
	for _, c := range []struct {
		args string
		want []string
	}{
		{"regrade", []string{"1 arg"}},
		{"regrade " + dir + "/missing.jsonl", []string{"missing.jsonl", "no such file"}},
		{"regrade " + empty, []string{"no record"}},
		{"regrade " + headless, []string{"headless.jsonl", "line 1"}},
		{"regrade " + torn, []string{"torn.jsonl", "line 9: not JSON, or torn; 7 of 8 episodes can be read"}},
		{"regrade " + foreign, []string{"foreign.jsonl", `"Other-v0"`, "Weather-v0"}},
		{"regrade " + split, []string{"split.jsonl", `"tset"`, "only train, test, ood"}},
		{"explain", []string{"1 arg"}},
		{"explain " + file, []string{`"episode"`}},
		{"explain " + file + " --episode 8", []string{"no episode 8", "only 0 to 7 with 1 trials"}},
		{"explain " + file + " --episode 0 --trial 1", []string{"no episode 0 with trial 1"}},
		{"explain " + file + " --episode first", []string{`"first"`, "--episode"}},
		{"explain " + dir + "/missing.jsonl --episode 0", []string{"missing.jsonl", "no such file"}},
		{"explain " + headless + " --episode 0", []string{"headless.jsonl", "line 1"}},
		{"explain " + foreign + " --episode 0", []string{"foreign.jsonl", `"Other-v0"`, "Weather-v0"}},
		{"explain " + split + " --episode 0", []string{"split.jsonl", `"tset"`, "only train, test, ood"}},
	} {
		t.Run(c.args, func(t *testing.T) {
			code, out, errOut := call(t, "", strings.Fields(c.args)...)
			require.Equal(t, 2, code, "%s%s", out, errOut)
			require.Empty(t, out)
			require.Equal(t, 1, strings.Count(errOut, "\n"), "%s", errOut)
			for _, w := range c.want {
				require.Contains(t, errOut, w)
			}
		})
	}
}
