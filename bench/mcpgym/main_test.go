package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/mcpgym/mcpgym/bench"
	"github.com/mcpgym/mcpgym/sandboxes/casetest"
)

// call runs the command as a shell would.
func call(t *testing.T, in string, args ...string) (code int, out, errOut string) {
	t.Helper()
	var o, e bytes.Buffer
	code = run(t.Context(), args, strings.NewReader(in), &o, &e)
	return code, o.String(), e.String()
}

func TestCasesExitCode(t *testing.T) {
	casetest.Run(t, "exit-code", func(t *testing.T, c casetest.Case) {
		var in struct{ Failed, Passed int }
		c.In(t, &in)
		code := 0
		if exitCode(in.Failed, in.Passed) != nil {
			code = 1
		}
		c.Check(t, map[string]int{"exit": code})
	})
}

// Wrong input gives one line that says what is wrong and what there is, status 2, and writes nothing.
func TestWrongInput(t *testing.T) {
	dir := t.TempDir()
	torn := filepath.Join(dir, "torn.jsonl")
	require.NoError(t, os.WriteFile(torn, []byte(`{"format":1,"env":"Wea`), 0o644))
	foreign := filepath.Join(dir, "foreign.jsonl")
	require.NoError(t, os.WriteFile(foreign, []byte(`{"format":1,"env":"Other-v0"}`), 0o644))
	for _, c := range []struct {
		args string
		want []string
	}{
		{"run --env Wether-v0 --policy noop", []string{`"Wether-v0"`, "Weather-v0"}},
		{"run --policy noop", []string{"Weather-v0"}},
		{"run --env Weather-v0", []string{"lexical"}},
		{"run --env Weather-v0 --policy best", []string{`"best"`, "noop, random, lexical, oracle"}},
		{"run --env Weather-v0 --policy noop --split tset", []string{`"tset"`, "only train, test, ood"}},
		{"run --env Weather-v0 --policy noop --episodes -5", []string{"--episodes is -5", "1 or more"}},
		{"run --env Weather-v0 --policy noop --trials 0", []string{"--trials is 0"}},
		{"run --env Weather-v0 --policy noop --parallel 0", []string{"--parallel is 0"}},
		{"run --env Weather-v0 --policy noop --episodes many", []string{`"many"`, "--episodes"}},
		{"run --env Weather-v0 --policy noop --seed -1", []string{`"-1"`}},
		{"run --env Weather-v0 --policy noop --out " + dir + "/no/such/x.jsonl", []string{"write", "no such file or directory"}},
		{"run --env Weather-v0 --policy noop --verbose", []string{"--verbose"}},
		{"run --env Weather-v0 --policy noop --driver docker", []string{`"docker"`, "only in-process"}},
		{"tools Weather", []string{"Weather-v0"}},
		{"tools", []string{"1 arg"}},
		{"play Weather-v0 --split x", []string{"only train, test, ood"}},
		{"play Weather-v0 --index -1", []string{"--index is -1"}},
		{"verify " + dir + "/missing.jsonl", []string{"missing.jsonl", "no such file"}},
		{"verify " + torn, []string{"torn.jsonl", "line 1"}},
		{"verify " + foreign, []string{"foreign.jsonl", `"Other-v0"`, "Weather-v0"}},
		{"verify", []string{"1 arg"}},
		{"show " + torn, []string{"torn.jsonl", "line 1"}},
		{"board " + dir, []string{"no records"}},
		{"bord", []string{`"bord"`, "board", "verify"}},
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
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Len(t, entries, 2)
}

func TestRunTwice(t *testing.T) {
	var first map[string]any
	for range 2 {
		code, out, errOut := call(t, "", "run", "--env", "Weather-v0", "--policy", "oracle", "--split", "test", "--episodes", "32", "--json")
		require.Zero(t, code, errOut)
		lines := strings.Split(strings.TrimSpace(out), "\n")
		var got map[string]any
		require.NoError(t, json.Unmarshal([]byte(lines[len(lines)-1]), &got))
		for _, key := range strings.Fields("env policy split episodes void success reward hallucination turns seconds") {
			require.Contains(t, got, key)
		}
		require.Equal(t, 1.0, got["success"])
		delete(got, "seconds")
		if first == nil {
			first = got
		}
		require.Equal(t, first, got)
	}
}

func TestVerify(t *testing.T) {
	file := filepath.Join(t.TempDir(), "lexical.jsonl")
	code, _, errOut := call(t, "", "run", "--env", "Weather-v0", "--policy", "oracle", "--episodes", "20", "--out", file)
	require.Zero(t, code, errOut)
	code, out, errOut := call(t, "", "verify", file)
	require.Zero(t, code, "%s%s", out, errOut)
	require.Contains(t, out, "20 episodes of oracle in Weather-v0")

	// One character of one observation.
	data, err := os.ReadFile(file)
	require.NoError(t, err)
	lines := strings.Split(string(data), "\n")
	require.Contains(t, lines[8], `\"station_id\":\"`)
	lines[8] = strings.Replace(lines[8], `\"country\":\"`, `\"country\":\"X`, 1)
	require.NoError(t, os.WriteFile(file, []byte(strings.Join(lines, "\n")), 0o644))
	code, out, _ = call(t, "", "verify", file)
	require.Equal(t, 1, code)
	require.Regexp(t, `episode 7 trial 0 step \d+: observation: result 0`, out)

	require.NoError(t, os.WriteFile(file+"x", data[:len(data)-30], 0o644))
	code, out, errOut = call(t, "", "verify", file+"x")
	require.Equal(t, 2, code)
	require.Empty(t, out)
	require.Contains(t, errOut, "line 21: not JSON, or torn; 19 of 20 episodes can be read")

	code, out, _ = call(t, "", "show", file)
	require.Zero(t, code)
	require.Contains(t, out, "20 tasks, 1 trials each")
	code, out, _ = call(t, "", "show", file, "--episode", "3")
	require.Zero(t, code)
	require.Contains(t, out, "reward 1.000, success")
	code, _, errOut = call(t, "", "show", file, "--episode", "20")
	require.Equal(t, 2, code)
	require.Contains(t, errOut, "only 0 to 19")
}

func TestInterrupted(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	var out, errOut bytes.Buffer
	file := filepath.Join(t.TempDir(), "x.jsonl")
	require.Equal(t, 130, run(ctx, strings.Fields("run --env Weather-v0 --policy noop --out "+file), nil, &out, &errOut))
	require.Equal(t, "mcpgym: interrupted, nothing was written\n", errOut.String())
	require.NoFileExists(t, file)
}

func TestPlay(t *testing.T) {
	_, task, _ := call(t, "quit\n", "play", "Weather-v0", "--split", "test", "--index", "0")
	require.Contains(t, task, "given up")
	in := "tools\nget_current station_id=XXX\nget_current {\"station\nget_curent\nget_current station_id\nhelp\nget_current station_id=PZM-6162\nconvert_units value=1 from=C to=F\ntools convert_units\ntask\nanswer 60.4\n"
	code, out, errOut := call(t, in, "play", "Weather-v0", "--split", "test", "--index", "0")
	require.Zero(t, code, errOut)
	for _, want := range []string{"does not match pattern", "[malformed]", "[unknown_tool]", "get_current", "write key=value", `"value":33.8`, "Unit to convert to", "ended by: answer", "efficiency", "reward 0.", "success"} {
		require.Contains(t, out, want)
	}
	code, out, _ = call(t, "", "play", "Weather-v0")
	require.Zero(t, code)
	require.Contains(t, out, "given up")
}

func TestListings(t *testing.T) {
	for _, args := range []string{"envs --json", "tools Weather-v0 --json"} {
		code, out, errOut := call(t, "", strings.Fields(args)...)
		require.Zero(t, code, errOut)
		require.True(t, json.Valid([]byte(out)), "%s", out)
	}
	code, out, _ := call(t, "", "envs")
	require.Zero(t, code)
	require.Contains(t, out, "lexical")
	code, out, _ = call(t, "", "completion", "bash")
	require.Zero(t, code)
	require.Contains(t, out, "mcpgym")
}

// A record of a trained model says where its weights come from, and everything reads it, compressed as it is.
func TestEvalTrained(t *testing.T) {
	model, adapter := checkpoint(t)
	dir := t.TempDir()
	file := func(seed string) string { return filepath.Join(dir, "weather", "nano-x.seed"+seed+".jsonl.gz") }
	require.NoError(t, os.Mkdir(filepath.Join(dir, "weather"), 0o755))
	eval := []string{"eval", model, "--env", "Weather-v0", "--episodes", "3", "--max-tokens", "5", "--json", "--name", "nano-x"}
	for _, seed := range []string{"0", "7"} {
		code, out, errOut := call(t, "", append(eval, "--training-seed", seed, "--trained-by", "make x", "--expert", "--out", file(seed))...)
		require.Zero(t, code, errOut)
		require.Contains(t, out, `"training_seeds":[`+seed+`],"expert":true`)
	}
	r, problems, err := bench.Load(file("7"))
	require.NoError(t, err)
	require.Empty(t, problems)
	require.False(t, r.Ranked)
	data, err := os.ReadFile(filepath.Join(model, "model.safetensors"))
	require.NoError(t, err)
	require.Equal(t, &bench.Training{Seed: 7, Command: "make x", Weights: fmt.Sprintf("%x", sha256.Sum256(data)), Expert: true, MaxTokens: 5, Arithmetic: bench.Arithmetic()}, r.Training)
	require.Contains(t, r.Provenance.Command, ` --name nano-x --training-seed 7 --trained-by "make x" --expert --split test`)

	for _, c := range []struct {
		args string
		want []string
	}{
		{"verify " + dir, []string{"seed0.jsonl.gz: 3 episodes of nano-x", "seed7.jsonl.gz: 3 episodes of nano-x"}},
		{"regrade " + file("7"), []string{"ok "}},
		{"show " + file("7"), []string{"trained from seed 7 by: make x\nweights " + r.Training.Weights}},
		{"explain " + file("7") + " --episode 1", []string{"nano-x"}},
		{"board " + dir, []string{"seeds", "nano-x (expert, not ranked) │ 2 "}},
		{"board --json " + dir, []string{`"training_seeds":[0,7],"expert":true`}},
	} {
		code, out, errOut := call(t, "", strings.Fields(c.args)...)
		require.Zero(t, code, errOut)
		for _, want := range c.want {
			require.Contains(t, out, want, c.args)
		}
	}
	for args, want := range map[string]string{
		"--expert":          "go with --training-seed",
		"--trained-by make": "go with --training-seed",
		"--training-seed 1": "needs --trained-by",
		"--training-seed 1 --trained-by make --adapter " + adapter: "mcpgym merge",
	} {
		code, _, errOut := call(t, "", append(eval, strings.Fields(args)...)...)
		require.Equal(t, 2, code)
		require.Contains(t, errOut, want)
	}
}
