package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/stretchr/testify/require"

	"github.com/mcpgym/mcpgym/envs"
	"github.com/mcpgym/mcpgym/policies/bpe"
	"github.com/mcpgym/mcpgym/policies/curves"
	"github.com/mcpgym/mcpgym/policies/engine"
	"github.com/mcpgym/mcpgym/policies/grpo"
	"github.com/mcpgym/mcpgym/policies/lm"
	"github.com/mcpgym/mcpgym/policies/toolcall"
)

// caller makes a model that now and then calls a tool which does not exist, and else answers at once. The first is worse.
func caller(t *testing.T) string {
	dir := t.TempDir()
	_, tools, _ := call(t, "", "tools", "Weather-v0", "--json")
	tok, err := bpe.Train(slices.Values([]string{tools, "no", "look", "hello"}), 3000, toolcall.SmallTokens)
	require.NoError(t, err)
	require.NoError(t, toolcall.WriteSmall(dir, tok))
	codec, err := toolcall.OpenCodec(dir)
	require.NoError(t, err)
	e, err := lm.New(lm.Config{Kind: "llama", Hidden: 32, Intermediate: 48, Layers: 2, Heads: 2, KVHeads: 2, HeadDim: 16, Vocab: codec.Size(), Tied: true,
		Eps: 1e-6, Theta: 1e4, MaxPositions: 8192, DType: lm.F32, EOS: codec.Stops()}, 3, lm.Options{Full: true, Tokenizer: dir})
	require.NoError(t, err)
	var b engine.Batch
	for _, m := range []engine.Message{{Role: "assistant", Text: "no"}, {Role: "assistant", Calls: []engine.Call{{ID: "c", Name: "look", Arguments: json.RawMessage(`{}`)}}}} {
		prompt, err := e.Open(nil, []engine.Message{{Role: "user", Text: "hello"}})
		require.NoError(t, err)
		turn, err := e.Turn(m)
		require.NoError(t, err)
		b.Tokens = append(b.Tokens, append(prompt, turn...))
		b.Mask = append(b.Mask, append(make([]bool, len(prompt)), slices.Repeat([]bool{true}, len(turn))...))
	}
	for range 40 {
		p, err := e.Forward(t.Context(), b)
		require.NoError(t, err)
		var d [][]float32
		for i, m := range b.Mask {
			row := make([]float32, len(m))
			for k, in := range m {
				if in {
					row[k] = float32(2*i - 3) // answers are learned more
				}
			}
			d = append(d, row)
		}
		require.NoError(t, p.Backward(t.Context(), d, nil))
		_, err = e.Step(t.Context(), engine.Optim{Rate: 0.01, Beta1: 0.9, Beta2: 0.99, Epsilon: 1e-8, Clip: 1})
		require.NoError(t, err)
	}
	model := filepath.Join(t.TempDir(), "caller")
	require.NoError(t, e.Export(model))
	return model
}

// TestTrainOnEpisodes goes the whole way: a model learns from episodes that it plays, is interrupted and goes on, and gets an adapter.
func TestTrainOnEpisodes(t *testing.T) {
	dir, model := t.TempDir(), caller(t)
	in := func(name string) string { return filepath.Join(dir, name) }
	learn := strings.Fields("train --env Weather-v0 --model " + model + " --preset art --groups 2 --group 4 --max-tokens 24 --steps 2 --eval-episodes 6 --learning-rate 0.01 --seed 5")
	code, out, errOut := call(t, "", append(learn, "--out", in("whole"))...)
	require.Zero(t, code, errOut)
	require.Empty(t, errOut)
	for _, want := range []string{"steps       2 in Weather-v0, each of 2 tasks in 4 episodes, at most 24 tokens a turn at temperature 1\n", "learning    loss cispo, learning rate 0.01\n",
		"evaluation  6 episodes, after the steps 0, 1 and so on, and the last\n", "\nstep 0 of 2, in evaluation success 0 % and reward -0.", "\nstep 2 of 2, reward -0.",
		in("whole/model") + " is the model after step ", "try it: mcpgym eval " + in("whole/model") + " --env Weather-v0\n"} {
		require.Contains(t, out, want)
	}
	require.Regexp(t, `step 1 of 2, reward -0\.\d+, success 0 %, loss -?\d\.\d+, \d+ tokens/s, in evaluation success 0 % and reward -?0\.\d+, \d+s\n`, out)
	for _, name := range []string{"curves.png", "curves.svg", "metrics.jsonl", "model/model.safetensors", "model/tokenizer.json"} {
		require.FileExists(t, filepath.Join(in("whole"), name))
	}
	reward := func(run string) (of []float64) {
		entries, err := curves.Read(in(run + "/" + curves.Metrics))
		require.NoError(t, err)
		for _, p := range curves.Points(entries, "eval/reward") {
			of = append(of, p.Y)
		}
		return of
	}
	rewards := reward("whole")
	require.Len(t, rewards, 3)
	require.Greater(t, rewards[2], rewards[0])

	ctx, cancel := context.WithCancel(t.Context())
	w, errs := &until{text: "step 1 of 2", cancel: cancel}, &bytes.Buffer{}
	require.Equal(t, 130, run(ctx, append(learn, "--out", in("run")), nil, w, errs), "%s", errs)
	require.Equal(t, "mcpgym: interrupted, after step 1 of 2; to go on: mcpgym train --resume "+in("run")+"\n", errs.String())
	require.NoFileExists(t, in("run/model/config.json"))
	code, _, errOut = call(t, "", "eval", in("run"), "--env", "Weather-v0")
	require.Equal(t, 2, code)
	require.Equal(t, "mcpgym: "+in("run")+" is a run that has not come to its end: go on with it by mcpgym train --resume "+in("run")+"\n", errOut)
	code, _, errOut = call(t, "", append(learn, "--out", in("run"))...)
	require.Equal(t, 2, code)
	require.Equal(t, "mcpgym: "+in("run")+" has a run already: go on with it by --resume "+in("run")+", or name another folder\n", errOut)
	t.Chdir(dir) // by its own settings, from anywhere
	code, out, errOut = call(t, "", "train", "--resume", in("run"))
	require.Zero(t, code, errOut)
	require.Contains(t, out, "going on after step 1\n")
	require.NotContains(t, out, "step 1 of 2")
	for _, name := range []string{"model/model.safetensors", "model/tokenizer.json", "metrics.jsonl", trainFile} {
		require.Equal(t, read(t, filepath.Join(in("whole"), name)), read(t, filepath.Join(in("run"), name)), name)
	}
	code, _, errOut = call(t, "", "train", "--resume", in("run"))
	require.Equal(t, 2, code)
	require.Equal(t, "mcpgym: the run in "+in("run")+" has come to its end: what came of it is in "+in("run/model")+"\n", errOut)

	// Where no episode is better than another, what it began with is the best.
	code, out, errOut = call(t, "", strings.Fields("train --env Weather-v0 --model "+model+" --lora-rank 2 --lora-alpha 6 --kl 0.1 --preset art --groups 1 --group 2 --max-tokens 1"+
		" --steps 1 --eval-episodes 2 --learning-rate 0.5 --out "+in("lora"))...)
	require.Zero(t, code, errOut)
	for _, want := range []string{", KL 0.0000, ", in("lora/adapter") + " is the model after step 0, where the reward in evaluation was the highest, ",
		in("lora/final-adapter") + " is the one after the last step\n", "try it: mcpgym eval " + model + " --adapter " + in("lora/adapter") + " --env Weather-v0\n"} {
		require.Contains(t, out, want)
	}
	code, _, errOut = call(t, "", "eval", in("lora"), "--env", "Weather-v0")
	require.Equal(t, 2, code)
	require.Equal(t, "mcpgym: "+in("lora")+" is a run: name the model that it trained an adapter for, and --adapter "+in("lora/adapter")+"\n", errOut)
	weights := "/adapter_model.safetensors"
	require.NotEqual(t, read(t, in("lora/adapter"+weights)), read(t, in("lora/final-adapter"+weights))) // which has decayed
	require.Regexp(t, `"lora_alpha": ?6\b`, read(t, in("lora/adapter/adapter_config.json")))

	code, out, errOut = call(t, "", strings.Fields("train --env Weather-v0 --model "+model+" --group 2 --max-tokens 1 --steps 1 --eval-episodes 0 --json --out "+in("short"))...)
	require.Zero(t, code, errOut)
	var made map[string]any
	require.NoError(t, json.Unmarshal([]byte(out), &made), "%s", out)
	require.Positive(t, made["seconds"])
	for _, key := range []string{"reward", "loss"} {
		require.Contains(t, made, key)
		delete(made, key)
	}
	delete(made, "seconds")
	require.Equal(t, map[string]any{"steps": 1.0, "episodes": 2.0, "tokens": 2.0, "success": 0.0, "kl": nil, "eval_reward": nil, "eval_success": nil, "step": 1.0, "path": in("short/model")}, made)
}

func TestTrainEstimate(t *testing.T) {
	model := caller(t)
	t.Chdir(t.TempDir())
	args := strings.Fields("train --env Weather-v0 --model " + model + " --groups 1 --group 2 --steps 5 --max-tokens 6 --eval-every 2 --eval-episodes 7 --dry-run")
	code, out, errOut := call(t, "", args...)
	require.Zero(t, code, errOut)
	require.Regexp(t, `(?s)\nepisodes    10, and 28 of evaluation\ntokens      about [1-9]\d* sampled, [1-9]\d* learned from .*\nsuccess     0 % .*, 0 % .*\nmemory      .*\ntime        about \d+s: \d+s of episodes, \d+s of updates\n$`, out)
	code, out, errOut = call(t, "", append(args, "--json")...)
	require.Zero(t, code, errOut)
	var e map[string]float64
	require.NoError(t, json.Unmarshal([]byte(out), &e), "%s", out)
	require.Equal(t, []float64{10, 28, 0, 0}, []float64{e["episodes"], e["eval_episodes"], e["success"], e["signal"]})
	require.Positive(t, e["sampled_tokens"])
	require.Greater(t, e["trained_tokens"]/10, e["sampled_tokens"]/38, "of an episode")
	require.Positive(t, e["rollout_seconds"])
	require.InDelta(t, e["seconds"], e["rollout_seconds"]+e["update_seconds"], 1e-6)
	files, err := os.ReadDir(".")
	require.NoError(t, err)
	require.Empty(t, files)
}

// What is evaluated is not what is trained on.
func TestHeld(t *testing.T) {
	tasks := held(envs.Generator(func(i int) envs.Task { return envs.Task{ID: strconv.Itoa(i)} }))
	require.Equal(t, []string{"1048576", "1048579"}, []string{tasks.Task(0).ID, tasks.Task(3).ID})
}

// Every loss goes with every preset.
func TestTrainLosses(t *testing.T) {
	for preset, c := range presets {
		for _, loss := range append([]string{""}, losses...) {
			for _, kl := range []float64{0, 0.1} {
				g := given{preset: preset, loss: loss, kl: kl, steps: 30}
				got, err := g.config(func(string) bool { return false })
				require.NoError(t, err, "%+v", g)
				require.Equal(t, cmp.Or(loss, c.Loss), got.Loss)
				require.Equal(t, c.Group, got.Group)
				require.Equal(t, c.Optim, got.Optim)
				require.Equal(t, kl, got.KL)
			}
		}
	}
	c, err := given{preset: "founding", steps: 30, group: 4, rate: 0.5, seed: 3, evalEpisodes: 9}.config(func(string) bool { return false })
	require.NoError(t, err)
	require.Equal(t, []int{30, 20, 2, 4, 1024, 9, 3}, []int{c.Steps, c.Tasks, c.Groups, c.Group, c.MaxTokens, c.EvalTasks, c.Eval})
	require.Equal(t, 0.5, c.Optim.Rate)
}

// What flags set is what is trained with, also where the loss has something else, and all else is the preset's.
func TestTrainFlags(t *testing.T) {
	base := func(loss string) grpo.Config {
		c, err := given{preset: "art", loss: loss, steps: 30}.config(func(string) bool { return false })
		require.NoError(t, err)
		return c
	}
	for _, c := range []struct {
		flags string
		edit  func(c *grpo.Config)
	}{
		{"--std none", func(c *grpo.Config) { c.Std = "none" }},
		{"--loss dr_grpo --std batch", func(c *grpo.Config) { c.Std = "batch" }},
		{"--epochs 2 --updates 3", func(c *grpo.Config) { c.Epochs, c.Updates = 2, 3 }},
		{"--dynamic 3", func(c *grpo.Config) { c.Dynamic = 3 }},
		{"--bypass", func(c *grpo.Config) { c.Bypass = true }},
		{"--preset trl --bypass", func(c *grpo.Config) {
			*c = grpo.Trl()
			c.Steps, c.Eval, c.Bypass, c.Correction = 30, 3, true, grpo.Correction{}
		}},
		{"--entropy 0.01", func(c *grpo.Config) { c.Entropy = 0.01 }},
		{"--epsilon-high 4", func(c *grpo.Config) { c.EpsilonHigh = 4 }},
		{"--loss dapo --epsilon-high 0.28", func(c *grpo.Config) { c.EpsilonHigh = 0.28 }},
		{"--schedule cosine --warmup 30", func(c *grpo.Config) { c.Schedule.Decay, c.Schedule.Warmup = "cosine", 30 }},
		{"--preset trl --schedule constant", func(c *grpo.Config) { *c = grpo.Trl(); c.Steps, c.Eval, c.Schedule.Decay = 30, 3, "" }},
	} {
		t.Run(c.flags, func(t *testing.T) {
			var g given
			cmd := &cobra.Command{}
			g.flags(cmd)
			require.NoError(t, cmd.ParseFlags(append(strings.Fields("--preset art --steps 30 --seed 0 --eval-episodes 0"), strings.Fields(c.flags)...)))
			got, err := g.config(cmd.Flags().Changed)
			require.NoError(t, err)
			want := base(g.loss)
			c.edit(&want)
			require.Equal(t, want, got)
		})
	}
}

func TestTrainOnEpisodesWrongInput(t *testing.T) {
	dir := t.TempDir()
	model, adapter := checkpoint(t) // of 128 positions
	torn, lossy := filepath.Join(t.TempDir(), "torn"), filepath.Join(t.TempDir(), "lossy")
	require.NoError(t, os.MkdirAll(torn, 0o755))
	require.NoError(t, os.WriteFile(filepath.Join(torn, trainFile), []byte("{"), 0o644))
	require.NoError(t, os.CopyFS(lossy, os.DirFS(model)))
	config := filepath.Join(lossy, "tokenizer_config.json")
	said := "{{- message.content -}}"
	require.Contains(t, read(t, config), said)
	require.NoError(t, os.WriteFile(config, []byte(strings.Replace(read(t, config), said, "{%- if loop.last or message.role != 'assistant' -%}"+said+"{%- endif -%}", 1)), 0o644))
	out := dir + "/out"
	good := "train --env Weather-v0 --model " + model + " --out " + out
	for _, c := range []struct {
		args string
		want []string
	}{
		{"train --model " + model + " --out " + out, []string{"no environment", "Weather-v0"}},
		{"train --env Wether-v0 --model " + model + " --out " + out, []string{`"Wether-v0"`, "Weather-v0"}},
		{"train --env Weather-v0 --out " + out, []string{"want --model"}},
		{"train --env Weather-v0 --model " + model, []string{"want --out"}},
		{good + " --driver docker", []string{`"docker"`, "only in-process"}},
		{good + " --preset verl", []string{`no preset "verl", only art, founding, trl`}},
		{good + " --loss ppo", []string{`no loss "ppo", only bnpo, cispo, dapo, dr_grpo, gspo, grpo, luspo, reinforce, rloo, sapo`}},
		{good + " --steps 0", []string{"--steps is 0, want 1 or more"}},
		{good + " --groups 0", []string{"--groups is 0"}},
		{good + " --group 1", []string{"--group is 1, want 2 or more"}},
		{good + " --max-tokens 0", []string{"--max-tokens is 0"}},
		{good + " --eval-every 0", []string{"--eval-every is 0"}},
		{good + " --eval-episodes -1", []string{"--eval-episodes is -1"}},
		{good + " --save-every 0", []string{"--save-every is 0"}},
		{good + " --learning-rate 0", []string{"--learning-rate is 0"}},
		{good + " --learning-rate NaN", []string{"--learning-rate is NaN"}},
		{good + " --temperature 0", []string{"--temperature is 0, want more than 0"}},
		{good + " --kl -1", []string{"--kl is -1"}},
		{good + " --std groups", []string{`no std "groups", only group, batch, none`}},
		{good + " --epochs 0", []string{"--epochs is 0"}},
		{good + " --updates 0", []string{"--updates is 0"}},
		{good + " --updates 9", []string{"updates of 9, for 8 episodes"}},
		{good + " --loss reinforce --epochs 2", []string{"reinforce: 2 updates an episode"}},
		{good + " --entropy NaN", []string{"--entropy is NaN, want 0 or more"}},
		{good + " --epsilon-high 0", []string{"--epsilon-high is 0, want more than 0"}},
		{good + " --loss sapo --epsilon-high 0.2", []string{"sapo: ", "epsilon_high", "nothing is clipped"}},
		{good + " --loss cispo --epsilon-high 0.2", []string{"cispo: epsilon_high of 0.2"}},
		{good + " --schedule fast", []string{`no schedule "fast", only cosine, linear, constant`}},
		{good + " --dynamic -1", []string{"--dynamic is -1, want 0 or more"}},
		{good + " --warmup -1", []string{"--warmup is -1, want 0 to 100"}},
		{good + " --steps 5 --warmup 6", []string{"--warmup is 6, want 0 to 5, the --steps"}},
		{good + " --kl 0.1", []string{"--kl is for --lora-rank"}},
		{good + " --lora-rank -1", []string{"--lora-rank is -1"}},
		{good + " --lora-alpha 8", []string{"--lora-alpha is for --lora-rank"}},
		{good + " --lora-rank 4 --lora-alpha 0", []string{"--lora-alpha is 0"}},
		{good, []string{"Weather-v0", "tokens before the model says anything, and it takes 128"}},
		{"train --env Weather-v0 --model " + model + " --out " + dir, []string{dir + " exists already"}},
		{"train --env Weather-v0 --model " + model + " --out " + dir + "/no/such", []string{"no/such", "no such file"}},
		{"train --env Weather-v0 --model " + dir + "/missing --out " + out, []string{"missing", "no such file"}},
		{"train --env Weather-v0 --model " + adapter + " --out " + out, []string{adapter + " is an adapter", "--adapter"}},
		{"train --env Weather-v0 --model ../../policies/lm/testdata/models/qwen3-tied --out " + out, []string{"qwen3-tied", "no tokenizer.json"}},
		{"train --env Weather-v0 --model " + lossy + " --out " + out, []string{"lossy", "the chat template is not prefix-preserving"}},
		{"train --resume " + dir, []string{"no run to go on with in " + dir, trainFile}},
		{"train --resume " + torn, []string{filepath.Join(torn, trainFile)}},
		{"train --resume " + dir + " --steps 5", []string{"only --json goes with --resume"}},
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
