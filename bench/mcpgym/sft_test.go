package main

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/mcpgym/mcpgym/bench"
	"github.com/mcpgym/mcpgym/sandboxes"
)

// until is a writer that cancels where a text is written.
type until struct {
	bytes.Buffer
	text   string
	cancel context.CancelFunc
}

func (u *until) Write(p []byte) (int, error) {
	if strings.Contains(string(p), u.text) {
		u.cancel()
	}
	return u.Buffer.Write(p)
}

// TestTrain goes the whole way: a new model learns from gold, is interrupted, goes on, is played and watched, gets an adapter, and the
// two become one.
func TestTrain(t *testing.T) {
	dir := t.TempDir()
	in := func(name string) string { return filepath.Join(dir, name) }
	learn := strings.Fields("sft --env Weather-v0 --episodes 4 --dev-episodes 1 --new pico --vocab 1200 --batch-size 1 --steps 3 --save-steps 1 --seed 7")
	code, out, errOut := call(t, "", append(learn, "--out", in("whole"))...)
	require.Zero(t, code, errOut)
	for _, want := range []string{"episodes    4 of Weather-v0, split train, and 1 for the dev loss\n", "steps       3 of 1 episodes, 0.8 epochs, learning rate 0.002, schedule cosine\n",
		in("whole/model") + " is the model after step "} {
		require.Contains(t, out, want)
	}
	require.Regexp(t, `; [1-9]\d+ tokens in the vocabulary\n`, out)
	require.Regexp(t, `\nstep 3 of 3, loss \d\.\d{4}, dev loss \d\.\d{4}, \d+s\n`, out)
	for _, name := range []string{"gold.jsonl", "curves.png", "curves.svg", "metrics.jsonl", "model/config.json", "model/model.safetensors", "model/tokenizer.json", "model/tokenizer_config.json"} {
		require.FileExists(t, filepath.Join(in("whole"), name))
	}

	ctx, cancel := context.WithCancel(t.Context())
	w, errs := &until{text: "step 1 of 3", cancel: cancel}, &bytes.Buffer{}
	require.Equal(t, 130, run(ctx, append(learn, "--out", in("run")), nil, w, errs), "%s", errs)
	require.Equal(t, "mcpgym: interrupted, after step 1 of 3; to go on: mcpgym sft --resume "+in("run")+"\n", errs.String())
	require.NoFileExists(t, in("run/model/config.json"))
	code, _, errOut = call(t, "", append(learn, "--out", in("run"))...)
	require.Equal(t, 2, code)
	require.Contains(t, errOut, in("run")+" has a run already: go on with it by --resume "+in("run"))
	code, _, errOut = call(t, "", "eval", in("run"), "--env", "Weather-v0")
	require.Equal(t, 2, code)
	require.Contains(t, errOut, in("run")+" is a run that has not come to its end")
	code, out, errOut = call(t, "", "sft", "--resume", in("run"))
	require.Zero(t, code, errOut)
	require.Contains(t, out, "going on after step 1\n")
	require.NotContains(t, out, "step 1 of 3")
	for _, name := range []string{"model/model.safetensors", "model/tokenizer.json", "metrics.jsonl"} {
		require.Equal(t, read(t, filepath.Join(in("whole"), name)), read(t, filepath.Join(in("run"), name)), name)
	}
	code, _, errOut = call(t, "", "sft", "--resume", in("run"))
	require.Equal(t, 2, code)
	require.Contains(t, errOut, "has come to its end")

	play := strings.Fields("--env Weather-v0 --episodes 3 --trials 2 --max-tokens 6 --temperature 1 --json --out")
	var rows [2]map[string]any
	for i, parallel := range []string{"6", "1"} {
		code, out, errOut = call(t, "", append(append([]string{"eval", in("run/model"), "--parallel", parallel}, play...), in("run.jsonl"))...)
		require.Zero(t, code, errOut)
		require.NoError(t, json.Unmarshal([]byte(out), &rows[i]))
		delete(rows[i], "seconds")
	}
	require.Equal(t, rows[0], rows[1])
	require.Equal(t, "run", rows[0]["policy"])
	require.Equal(t, 6.0, rows[0]["episodes"])
	require.Equal(t, 0.0, rows[0]["success"])
	code, out, _ = call(t, "", "verify", in("run.jsonl"))
	require.Zero(t, code, out)
	r, _, err := bench.Load(in("run.jsonl"))
	require.NoError(t, err)
	require.Len(t, r.Episodes, 6)
	require.True(t, r.Ranked)
	require.Contains(t, r.Provenance.Command, "eval "+in("run/model")+" --env Weather-v0 --temperature 1 --max-tokens 6 --split test --episodes 3")
	said := 0
	for _, e := range r.Episodes {
		for _, s := range e.Steps {
			said += len(s.Action.Sample.Tokens)
			require.LessOrEqual(t, len(s.Action.Sample.Tokens), 6)
		}
	}
	require.NotZero(t, said)
	require.Equal(t, said, *r.Provenance.Tokens)

	code, out, errOut = call(t, "", strings.Fields("chat "+in("run/model")+" --env Weather-v0 --task 3 --max-tokens 6")...)
	require.Zero(t, code, errOut)
	for _, want := range []string{"test/compare/3 (compare)\n\nCompare the current temperature in Waestost", "\nstep 0\n  ", "ended by: ", "failure (gates not met"} {
		require.Contains(t, out, want)
	}

	// What it has sampled is learned as text, by a model of fewer tokens.
	code, out, errOut = call(t, "", strings.Fields("sft --records "+in("run.jsonl")+" --dev-episodes 0 --new pico --vocab 300 --batch-size 1 --dry-run")...)
	require.Zero(t, code, errOut)
	require.Contains(t, out, "; 300 tokens in the vocabulary\n")

	code, out, errOut = call(t, "", strings.Fields("sft --records "+in("run.jsonl")+","+in("whole/gold.jsonl")+" --dev-episodes 2 --model "+in("run/model")+
		" --lora-rank 2 --steps 4 --batch-size 2 --learning-rate 0.01 --warmup-ratio 0 --lr-schedule constant --only-success --json --out "+in("lora"))...)
	require.Zero(t, code, errOut)
	var made struct {
		Steps int
		Path  string
		Dev   *float64 `json:"dev_loss"`
	}
	require.NoError(t, json.Unmarshal([]byte(out), &made))
	require.Equal(t, in("lora/adapter"), made.Path)
	require.Equal(t, 4, made.Steps)
	require.NotNil(t, made.Dev)
	require.FileExists(t, in("lora/adapter/adapter_model.safetensors"))
	code, _, errOut = call(t, "", "merge", in("run/model"), in("lora/adapter"), in("merged"))
	require.Zero(t, code, errOut)
	require.NotEqual(t, read(t, in("run/model/model.safetensors")), read(t, in("merged/model.safetensors")))
	code, _, errOut = call(t, "", "merge", in("run/model"), in("half"), "--dtype", "bfloat16")
	require.Zero(t, code, errOut)
	require.InDelta(t, len(read(t, in("run/model/model.safetensors")))/2, len(read(t, in("half/model.safetensors"))), 2000)
	require.Contains(t, read(t, in("half/config.json")), "bfloat16")
	var shown [3]string
	for i, model := range []string{in("merged"), in("run/model") + " --adapter " + made.Path, in("run/model")} {
		code, shown[i], errOut = call(t, "", strings.Fields("chat "+model+" --env Weather-v0 --max-tokens 6")...)
		require.Zero(t, code, errOut)
	}
	require.Equal(t, shown[0], shown[1])
	require.NotEqual(t, shown[0], shown[2])
}

func read(t *testing.T, file string) string {
	data, err := os.ReadFile(file)
	require.NoError(t, err)
	return string(data)
}

func TestTrainDryRun(t *testing.T) {
	t.Chdir(t.TempDir())
	code, out, errOut := call(t, "", strings.Fields("sft --env Weather-v0 --episodes 4 --dev-episodes 0 --new pico --vocab 1200 --batch-size 2 --dry-run")...)
	require.Zero(t, code, errOut)
	require.Regexp(t, `(?s)^episodes    4 of .*\ntokens      \d+, of which \d+ are learned; .*\nparameters  1\d{5}, .*\nsteps       6 of 2 episodes, 3.0 epochs, .*\nmemory      \d+\.\d GB\ntime        about .*s, at [1-9]\d* tokens a second`, out)
	files, err := os.ReadDir(".")
	require.NoError(t, err)
	require.Empty(t, files)
}

// Episodes that cannot be learned are left out and counted.
func TestTrainLeavesOut(t *testing.T) {
	file := played(t)
	edited(t, file, func(r *bench.Record) {
		r.Episodes[0].Void, r.Episodes[0].Score = &sandboxes.Fault{Kind: sandboxes.FaultDied, Op: "step 1"}, nil
		r.Episodes[1].Steps[0].Action.Calls[0].Malformed = "{"
	})
	learn := "sft --records " + file + " --dev-episodes 1 --new pico --vocab 1200 --dry-run"
	code, out, errOut := call(t, "", strings.Fields(learn)...)
	require.Zero(t, code, errOut)
	require.Equal(t, "mcpgym: the split test of Weather-v0 is learned, by which policies are judged\n", errOut)
	require.Contains(t, out, "episodes    5 of records, and 1 for the dev loss\nleft out    1 that have calls that cannot be read, 1 that were void\n")
	failed := 0
	r, _, err := bench.Load(file)
	require.NoError(t, err)
	for _, e := range r.Episodes {
		if e.Score != nil && !e.Score.Success {
			failed++
		}
	}
	require.Positive(t, failed)
	code, out, errOut = call(t, "", strings.Fields(learn+" --only-success --dev-episodes 0")...)
	require.Zero(t, code, errOut)
	require.Contains(t, out, " "+string(rune('0'+failed))+" that failed")

	model, _ := checkpoint(t) // of 128 positions
	code, _, errOut = call(t, "", strings.Fields("sft --records "+file+" --model "+model+" --dry-run --dev-episodes 0")...)
	require.Equal(t, 2, code)
	require.Contains(t, errOut, "nothing to learn: of the episodes, 6 that are longer than the 128 tokens that the model takes, 1 that have calls that cannot be read, 1 that were void"[:40])
	require.Contains(t, errOut, "6 that are longer than the 128 tokens that the model takes")
}

func TestTrainWrongInput(t *testing.T) {
	dir, file := t.TempDir(), played(t)
	model, adapter := checkpoint(t)
	other := filepath.Join(t.TempDir(), "torn")
	require.NoError(t, os.MkdirAll(other, 0o755))
	require.NoError(t, os.WriteFile(filepath.Join(other, runFile), []byte("{"), 0o644))
	foreign := filepath.Join(t.TempDir(), "foreign.jsonl")
	require.NoError(t, os.WriteFile(foreign, []byte(`{"format":1,"env":"Other-v0","tasks":1,"trials":1}`+"\n"+`{"i":0}`), 0o644))
	out := dir + "/out"
	gold := "sft --env Weather-v0 --new pico --out " + out
	for _, c := range []struct {
		args string
		want []string
	}{
		{"sft --new pico --out " + out, []string{"want --env", "--records"}},
		{"sft --env Weather-v0 --records x.jsonl --new pico --out " + out, []string{"want --env", "--records"}},
		{"sft --env Weather-v0 --out " + out, []string{"want --model", "--new"}},
		{"sft --env Weather-v0 --new pico --model x --out " + out, []string{"want --model", "--new"}},
		{"sft --env Weather-v0 --new pico", []string{"want --out"}},
		{"sft --env Wether-v0 --new pico --out " + out, []string{`"Wether-v0"`, "Weather-v0"}},
		{gold + " --split tset", []string{`"tset"`, "only train, test, ood"}},
		{gold + " --driver docker", []string{`"docker"`, "only in-process"}},
		{"sft --env Weather-v0 --new giant --out " + out, []string{`no size "giant", only micro, nano, pico`}},
		{gold + " --episodes 0", []string{"--episodes is 0"}},
		{gold + " --batch-size 0", []string{"--batch-size is 0"}},
		{gold + " --epochs 0", []string{"--epochs is 0"}},
		{gold + " --steps -1", []string{"--steps is -1, want 0 or more"}},
		{gold + " --dev-episodes -1", []string{"--dev-episodes is -1"}},
		{gold + " --learning-rate -1", []string{"--learning-rate is -1"}},
		{gold + " --warmup-ratio 2", []string{"--warmup-ratio is 2"}},
		{gold + " --lr-schedule fast", []string{`"fast"`, "cosine, linear, constant"}},
		{gold + " --lora-rank 4", []string{"--lora-rank is for --model"}},
		{gold + " --episodes 2 --dev-episodes 1 --vocab 100", []string{"100 tokens", "256"}},
		{gold + " --dry-run --json", []string{"--json is not for --dry-run"}},
		{"sft --env Weather-v0 --new pico --out " + dir, []string{dir + " exists already"}},
		{"sft --env Weather-v0 --new pico --out " + dir + "/no/such", []string{"no/such", "no such file"}},
		{"sft --env Weather-v0 --model " + dir + "/missing --out " + out, []string{"missing", "no such file"}},
		{"sft --env Weather-v0 --model " + adapter + " --out " + out, []string{adapter + " is an adapter", "--adapter"}},
		{"sft --env Weather-v0 --model ../../policies/lm/testdata/models/qwen3-tied --out " + out, []string{"qwen3-tied", "no tokenizer.json"}},
		{"sft --records " + dir + "/missing.jsonl --new pico --out " + out, []string{"missing.jsonl", "no such file"}},
		{"sft --records " + foreign + " --new pico --out " + out, []string{"foreign.jsonl", `"Other-v0"`}},
		{"sft --records " + file + " --new pico --out " + out, []string{"nothing to learn: there are 8 episodes, and --dev-episodes takes 50"}},
		{"sft --resume " + dir, []string{"no run to go on with in " + dir, runFile}},
		{"sft --resume " + other, []string{filepath.Join(other, runFile)}},
		{"sft --resume " + dir + " --out " + out, []string{"only --json goes with --resume"}},
		{"sft --resume " + dir + " --steps 5", []string{"only --json goes with --resume"}},
		{"eval", []string{"1 arg"}},
		{"eval " + dir + "/missing --env Weather-v0", []string{"missing", "no such file"}},
		{"eval " + dir + " --env Weather-v0", []string{dir, "config.json"}},
		{"eval " + model, []string{"no environment"}},
		{"eval " + model + " --env Weather-v0 --parallel 0", []string{"--parallel is 0"}},
		{"eval " + model + " --env Weather-v0 --temperature -1", []string{"--temperature is -1"}},
		{"eval " + model + " --env Weather-v0 --max-tokens 0", []string{"--max-tokens is 0"}},
		{"eval " + model + " --env Weather-v0 --adapter " + dir, []string{dir, "adapter_config.json"}},
		{"eval " + model + " --env Weather-v0 --out " + dir + "/no/such/x.jsonl", []string{"write", "no such file"}},
		{"chat", []string{"1 arg"}},
		{"chat " + dir + "/missing", []string{"missing", "no such file"}},
		{"chat " + model + " --task 3", []string{"--task is for --env"}},
		{"chat " + model + " --env Weather-v0 --task -1", []string{"--task is -1"}},
		{"chat " + model + " --env Weather-v0 --split x", []string{"only train, test, ood"}},
		{"chat " + model + " --max-tokens 0", []string{"--max-tokens is 0"}},
		{"merge " + model, []string{"arg"}},
		{"merge " + model + " " + out, []string{"--dtype"}},
		{"merge " + model + " " + out + " --dtype int8", []string{"int8", "bfloat16, float32"}},
		{"merge " + model + " " + adapter + " " + dir, []string{dir + " exists already"}},
		{"merge " + model + " " + dir + " " + out, []string{dir, "adapter_config.json"}},
		{"merge " + dir + " " + adapter + " " + out, []string{dir, "config.json"}},
		{"merge ../../policies/lm/testdata/models/qwen3-tied " + adapter + " " + out, []string{adapter, "shape"}},
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
	files, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Empty(t, files)
}
