package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/schollz/progressbar/v3"
	"github.com/spf13/cobra"

	"github.com/mcpgym/mcpgym/bench"
	"github.com/mcpgym/mcpgym/envs"
	"github.com/mcpgym/mcpgym/policies/checkpoints"
	"github.com/mcpgym/mcpgym/policies/curves"
	"github.com/mcpgym/mcpgym/policies/grpo"
	"github.com/mcpgym/mcpgym/policies/lm"
	"github.com/mcpgym/mcpgym/policies/toolcall"
	"github.com/mcpgym/mcpgym/rewards"
)

const (
	trainFile = "train.json" // a run's settings
	heldOut   = 1 << 20      // the tasks of the train split from here on are played in evaluation, and never trained on
	atOnce    = 64           // episodes that are played at once
)

var presets = map[string]grpo.Config{"trl": grpo.Trl(), "art": grpo.Art(), "founding": grpo.Founding(1)}

var losses = strings.Fields("bnpo cispo dapo dr_grpo gspo grpo luspo reinforce rloo sapo")

// training is what is trained on what, and how.
type training struct {
	Env    string      `json:"env"`
	Driver string      `json:"driver"`
	Model  string      `json:"model"`
	LoRA   int         `json:"lora_rank,omitempty"`
	Alpha  float64     `json:"lora_alpha,omitempty"`
	Save   int         `json:"save_every"`
	GRPO   grpo.Config `json:"grpo"`
}

// given is what flags say of a grpo.Config. Of the first ones 0 is what the preset has.
type given struct {
	preset, loss                   string
	groups, group, maxTokens       int
	rate, temperature, kl          float64
	steps, evalEvery, evalEpisodes int
	seed                           uint64
}

func trainCommand() *cobra.Command {
	var t training
	var g given
	var out, resume string
	var dry, asJSON bool
	c := &cobra.Command{
		Use: "train", Short: "Train a model on episodes that it plays itself", Args: cobra.NoArgs,
		Long: "Train plays each task in a group of live episodes, and makes likelier what did better than its group (GRPO). The model is trained whole or by\n" +
			"a low-rank adapter. --out gets checkpoints, curves and what comes of it: model, or adapter, where the reward in evaluation was the highest,\n" +
			"and final-model, or final-adapter, where that is another. A run that was interrupted goes on with --resume as if it had not been.",
		Example: "  mcpgym train --env Weather-v0 --model runs/weather/model --steps 200 --groups 4 --learning-rate 1e-4 --out runs/weather-grpo\n" +
			"  mcpgym train --env Postgres-v0 --model Qwen3-0.6B --lora-rank 16 --preset art --dry-run\n" +
			"  mcpgym train --resume runs/weather-grpo",
		RunE: func(cmd *cobra.Command, _ []string) (err error) {
			if resume != "" {
				if out, err = t.resumed(cmd, resume); err != nil {
					return err
				}
			} else if err := t.check(cmd, g, out, dry); err != nil {
				return err
			}
			return t.train(cmd, out, resume != "", dry, asJSON)
		},
	}
	f := c.Flags()
	f.StringVar(&t.Env, "env", "", "environment to train in, on tasks of its split train")
	driverFlag(c, &t.Driver)
	f.StringVar(&t.Model, "model", "", "folder of the model to train, of the Hugging Face layout")
	f.IntVar(&t.LoRA, "lora-rank", 0, "rank of the adapter to train; 0 trains the model whole")
	f.Float64Var(&t.Alpha, "lora-alpha", 0, "alpha of the adapter (default twice its rank)")
	f.StringVar(&g.preset, "preset", "trl", "what else is set: the defaults of trl or art, or founding, those of the note that this project began with, in three epochs")
	f.StringVar(&g.loss, "loss", "", "loss, where it is not the preset's: "+strings.Join(losses, ", "))
	f.Float64Var(&g.kl, "kl", 0, "weight of the divergence from the model without the adapter")
	f.IntVar(&g.steps, "steps", 100, "steps to take")
	f.IntVar(&g.groups, "groups", 0, "tasks a step (default the preset's)")
	f.IntVar(&g.group, "group", 0, "episodes a task (default the preset's)")
	f.Float64Var(&g.rate, "learning-rate", 0, "highest learning rate (default the preset's)")
	f.Float64Var(&g.temperature, "temperature", 0, "of sampling (default the preset's)")
	f.IntVar(&g.maxTokens, "max-tokens", 0, "tokens of a turn (default the preset's)")
	f.IntVar(&g.evalEvery, "eval-every", 0, "steps between evaluations (default a tenth of all)")
	f.IntVar(&g.evalEpisodes, "eval-episodes", 50, "episodes of an evaluation, always the same tasks, which are not trained on; 0 for none")
	f.IntVar(&t.Save, "save-every", 0, "steps between checkpoints (default as evaluations)")
	f.Uint64Var(&g.seed, "seed", 1, "seed of samples, of the order of episodes and of an adapter's weights")
	f.StringVar(&out, "out", "", "folder for the run, which must not exist")
	f.StringVar(&resume, "resume", "", "folder of a run to go on with, by its own settings")
	f.BoolVar(&dry, "dry-run", false, "play one step, say how long all would take, and write nothing")
	f.BoolVar(&asJSON, "json", false, "print one line of JSON")
	c.RegisterFlagCompletionFunc("env", envNames)
	c.RegisterFlagCompletionFunc("preset", cobra.FixedCompletions(slices.Sorted(maps.Keys(presets)), cobra.ShellCompDirectiveNoFileComp))
	c.RegisterFlagCompletionFunc("loss", cobra.FixedCompletions(losses, cobra.ShellCompDirectiveNoFileComp))
	return c
}

// resumed reads the settings of a run.
func (t *training) resumed(cmd *cobra.Command, dir string) (string, error) {
	set := 1
	if cmd.Flags().Changed("json") {
		set++
	}
	if cmd.Flags().NFlag() > set {
		return "", errors.New("only --json goes with --resume: the run goes on with its own settings")
	}
	name := filepath.Join(dir, trainFile)
	data, err := os.ReadFile(name)
	if errors.Is(err, fs.ErrNotExist) {
		return "", fmt.Errorf("no run to go on with in %s: it has no %s", dir, trainFile)
	}
	if err != nil {
		return "", fmt.Errorf("resume: %w", err)
	}
	*t = training{}
	if err := json.Unmarshal(data, t); err != nil {
		return "", fmt.Errorf("resume: read %s: %w", name, err)
	}
	if made := filepath.Join(dir, t.makes()); exists(made) {
		return "", fmt.Errorf("the run in %s has come to its end: what came of it is in %s", dir, made)
	}
	return dir, nil
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

// makes is the folder of what comes of a run.
func (t *training) makes() string {
	if t.LoRA > 0 {
		return adapterDir
	}
	return modelDir
}

// check looks at all that can be wrong before anything is started.
func (t *training) check(cmd *cobra.Command, g given, out string, dry bool) error {
	set := cmd.Flags().Changed
	entry, err := bench.FindEnv(t.Env)
	if err != nil {
		return err
	}
	if t.Driver, err = entry.Driver(t.Driver); err != nil {
		return err
	}
	if err := entry.Split("train"); err != nil {
		return err
	}
	if t.Model == "" {
		return errors.New("want --model, a folder with the model to train")
	}
	if t.GRPO, err = g.config(set); err != nil {
		return err
	}
	switch {
	case t.LoRA < 0:
		return fmt.Errorf("--lora-rank is %d, want 0 or more", t.LoRA)
	case t.LoRA == 0 && set("lora-alpha"):
		return errors.New("--lora-alpha is for --lora-rank")
	case set("lora-alpha") && !(t.Alpha > 0 && !math.IsInf(t.Alpha, 0)):
		return fmt.Errorf("--lora-alpha is %v, want more than 0", t.Alpha)
	case t.LoRA == 0 && g.kl > 0:
		return errors.New("--kl is for --lora-rank: a model that is trained whole is no longer what it could be compared with")
	case set("save-every") && t.Save < 1:
		return positive(flagValue{"save-every", t.Save})
	}
	t.Alpha = cmp.Or(t.Alpha, 2*float64(t.LoRA))
	t.Save = cmp.Or(t.Save, t.GRPO.Eval)
	if t.Model, err = filepath.Abs(t.Model); err != nil { // found again from elsewhere
		return err
	}
	switch {
	case dry:
		return nil
	case out == "":
		return errors.New("want --out, a folder for the run")
	case exists(filepath.Join(out, trainFile)):
		return fmt.Errorf("%s has a run already: go on with it by --resume %s, or name another folder", out, out)
	case exists(out):
		return fmt.Errorf("%s exists already: name another folder", out)
	}
	return writable(filepath.Clean(out))
}

// config is a preset with what flags say otherwise.
func (g given) config(set func(flag string) bool) (c grpo.Config, err error) {
	c, ok := presets[g.preset]
	if !ok {
		return c, fmt.Errorf("no preset %q, only %s", g.preset, strings.Join(slices.Sorted(maps.Keys(presets)), ", "))
	}
	if g.loss != "" && !slices.Contains(losses, g.loss) {
		return c, fmt.Errorf("no loss %q, only %s", g.loss, strings.Join(losses, ", "))
	}
	for _, v := range []flagValue{{"steps", g.steps}, {"groups", g.groups}, {"group", g.group}, {"max-tokens", g.maxTokens}, {"eval-every", g.evalEvery}} {
		if set(v.flag) {
			if err := positive(v); err != nil {
				return c, err
			}
		}
	}
	for name, v := range map[string]float64{"learning-rate": g.rate, "temperature": g.temperature} {
		if set(name) && !(v > 0 && !math.IsInf(v, 0)) {
			return c, fmt.Errorf("--%s is %v, want more than 0", name, v)
		}
	}
	switch {
	case !(g.kl >= 0) || math.IsInf(g.kl, 0):
		return c, fmt.Errorf("--kl is %v, want 0 or more", g.kl)
	case set("group") && g.group < 2:
		return c, fmt.Errorf("--group is %d, want 2 or more: an episode is compared with the others of its task", g.group)
	case g.evalEpisodes < 0:
		return c, fmt.Errorf("--eval-episodes is %d, want 0 or more", g.evalEpisodes)
	}
	c.Steps, c.Seed, c.KL, c.EvalTasks = g.steps, g.seed, g.kl, g.evalEpisodes
	c.Groups, c.Group, c.MaxTokens = cmp.Or(g.groups, c.Groups), cmp.Or(g.group, c.Group), cmp.Or(g.maxTokens, c.MaxTokens)
	c.Temperature, c.Optim.Rate = cmp.Or(g.temperature, c.Temperature), cmp.Or(g.rate, c.Optim.Rate)
	c.Eval = cmp.Or(g.evalEvery, max(1, c.Steps/10))
	if g.preset == "founding" {
		c.Tasks = max(c.Groups, c.Steps*c.Groups/3) // three epochs
	}
	if g.loss != "" && g.loss != c.Loss {
		withLoss(&c, g.loss)
	}
	return c, c.Validate()
}

// withLoss gives a config another loss, with what belongs to that.
func withLoss(c *grpo.Config, loss string) {
	c.Loss, c.Mean, c.EpsilonLow, c.EpsilonHigh = loss, "", 0.2, 0.2
	switch loss {
	case "gspo", "luspo":
		c.EpsilonLow, c.EpsilonHigh = 3e-4, 4e-4 // of the mean over a sequence, as in GSPO's paper
	case "cispo":
		c.EpsilonLow, c.EpsilonHigh = 0, 5
	case "sapo":
		c.EpsilonLow, c.EpsilonHigh = 0, 0
	case "dr_grpo":
		c.Std, c.Length = "none", c.MaxTokens
	case "reinforce":
		c.EpsilonLow, c.EpsilonHigh, c.KLRatio = 0, 0, false
	case "rloo":
		c.Baseline, c.Std, c.KLRatio = "leave-one-out", "none", false
	}
}

// train trains, or with dry says what that would take.
func (t *training) train(cmd *cobra.Command, out string, resume, dry, asJSON bool) (err error) {
	ctx, w := cmd.Context(), cmd.OutOrStdout()
	o := lm.Options{Full: t.LoRA == 0}
	if t.LoRA > 0 {
		o.LoRA = &lm.LoRA{Rank: t.LoRA, Alpha: t.Alpha, Seed: t.GRPO.Seed}
	}
	model, err := openModel(t.Model, o, true)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, model.Close()) }()
	spec, tasks, err := openEnv(ctx, t.Env, t.Driver, "train")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, spec.Sandboxes.Close()) }()
	if err := fits(ctx, spec, tasks.Task(0), model); err != nil {
		return err
	}
	gym := grpo.Gym{Name: spec.Name, Train: tasks, Eval: held(tasks),
		Reward: rewards.Each(spec.Reward), Play: grpo.Rollouts(spec, atOnce)}
	c := t.GRPO
	c.PassTokens, c.Save = passTokens, t.Save
	if !asJSON {
		t.plan(w, model)
	}
	if dry {
		return measured(ctx, w, model, gym, c, asJSON)
	}
	if !resume {
		if err := t.begin(out); err != nil {
			return err
		}
	}
	return t.run(cmd, model, gym, c, out, asJSON)
}

// held are the tasks of a split that are kept for evaluation.
func held(tasks envs.Source) envs.Source {
	return envs.Generator(func(i int) envs.Task { return tasks.Task(heldOut + i) })
}

// fits finds out whether a model has room for a task.
func fits(ctx context.Context, spec envs.Spec, task envs.Task, model *lm.Engine) (err error) {
	env, err := envs.New(spec)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, env.Close()) }()
	o, err := env.Reset(ctx, task)
	if err != nil {
		return err
	}
	t := env.Trajectory()
	tokens, err := model.Open(toolcall.Tools(t.Tools), toolcall.Prompt(t.System, o.Text))
	if most := model.Config().MaxPositions; err == nil && len(tokens) >= most {
		return fmt.Errorf("a task of %s has %d tokens before the model says anything, and it takes %d", spec.Name, len(tokens), most)
	}
	return err
}

// begin makes the folder of a run.
func (t *training) begin(out string) error {
	data, err := json.MarshalIndent(t, "", "  ")
	if err != nil {
		return err
	}
	if err := os.Mkdir(out, 0o755); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(out, trainFile), append(data, '\n'), 0o644)
}

// plan says what is going to be done.
func (t *training) plan(w io.Writer, model *lm.Engine) {
	c := t.GRPO
	all, trained := parameters(model.Config(), t.LoRA)
	fmt.Fprintf(w, "parameters  %d, of which %d are trained\n", all, trained)
	fmt.Fprintf(w, "steps       %d in %s, each of %d tasks in %d episodes, at most %d tokens a turn at temperature %g\n", c.Steps, t.Env, c.Groups, c.Group, c.MaxTokens, c.Temperature)
	fmt.Fprintf(w, "learning    loss %s, learning rate %g\n", c.Loss, c.Optim.Rate)
	if c.EvalTasks > 0 {
		fmt.Fprintf(w, "evaluation  %d episodes, after the steps 0, %d and so on, and the last\n", c.EvalTasks, c.Eval)
	}
}

// measured plays a step and says what all of them would take.
func measured(ctx context.Context, w io.Writer, model *lm.Engine, gym grpo.Gym, c grpo.Config, asJSON bool) error {
	r, err := grpo.Measure(ctx, model, gym, c)
	if err != nil {
		return err
	}
	e := grpo.Plan(c, r)
	if asJSON {
		return printJSON(w, struct {
			Episodes     int     `json:"episodes"`
			EvalEpisodes int     `json:"eval_episodes"`
			Sampled      float64 `json:"sampled_tokens"`
			Trained      float64 `json:"trained_tokens"` // results of tools and prompts included
			Success      float64 `json:"success"`        // of the episodes of the first step
			Signal       float64 `json:"signal"`         // the share of groups, by that, that something can be learned from
			Rollouts     float64 `json:"rollout_seconds"`
			Updates      float64 `json:"update_seconds"`
			Seconds      float64 `json:"seconds"`
		}{e.Episodes, e.EvalEpisodes, e.Sampled, e.Trained, r.Success, e.Signal, e.Rollouts.Seconds(), e.Updates.Seconds(), e.Total().Seconds()})
	}
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	fmt.Fprintf(w, "episodes    %d, and %d of evaluation\n", e.Episodes, e.EvalEpisodes)
	fmt.Fprintf(w, "tokens      about %.0f sampled, %.0f learned from with prompts and results\n", e.Sampled, e.Trained)
	fmt.Fprintf(w, "success     %.0f %% of the first step's episodes; by that, %.0f %% of the groups have some that differ\n", 100*r.Success, 100*e.Signal)
	fmt.Fprintf(w, "memory      %.1f GB so far\n", float64(m.Sys)/1e9)
	fmt.Fprintf(w, "time        about %v: %v of episodes, %v of updates\n", e.Total().Round(time.Second), e.Rollouts.Round(time.Second), e.Updates.Round(time.Second))
	return nil
}

// run trains and writes what comes of it.
func (t *training) run(cmd *cobra.Command, model *lm.Engine, gym grpo.Gym, c grpo.Config, out string, asJSON bool) error {
	w := cmd.OutOrStdout()
	start := time.Now()
	step, done := stepBar(cmd.ErrOrStderr(), c.Steps)
	begun := false
	c.Progress = func(r grpo.Report) {
		if !begun && r.Step > 0 && !asJSON {
			fmt.Fprintf(w, "going on after step %d\n", r.Step)
		}
		begun = true
		step(r, func() string { return "train" + status(r, out) })
		if !asJSON && (r.Step%c.Eval == 0 || r.Step == c.Steps) {
			done()
			fmt.Fprintf(w, "step %d of %d%s%s, %v\n", r.Step, c.Steps, status(r, out), evaluation(r), time.Since(start).Round(time.Second))
		}
	}
	r, err := grpo.Train(cmd.Context(), model, gym, c, out)
	done()
	if err != nil {
		if cmd.Context().Err() == nil {
			return err
		}
		steps, _ := checkpoints.Steps(out)
		if len(steps) == 0 {
			return interruption(fmt.Sprintf("and no checkpoint could be written: %v", err))
		}
		return interruption(fmt.Sprintf("after step %d of %d; to go on: mcpgym train --resume %s", steps[len(steps)-1], c.Steps, out))
	}
	chosen, made, final := r.Step, filepath.Join(out, t.makes()), ""
	if r.Best != nil && r.Best.Step != r.Step {
		chosen, final = r.Best.Step, filepath.Join(out, "final-"+t.makes())
		if !exists(final) { // of a run that ended here
			if err := model.Export(final); err != nil {
				return err
			}
		}
		if err := model.Restore(r.Best.Dir); err != nil {
			return err
		}
	}
	if err := model.Export(made); err != nil {
		return err
	}
	if asJSON {
		return printJSON(w, struct {
			Steps       int      `json:"steps"`
			Episodes    int      `json:"episodes"`
			Tokens      int      `json:"tokens"` // sampled
			Reward      *float64 `json:"reward"` // of the last step
			EvalReward  *float64 `json:"eval_reward"`
			EvalSuccess *float64 `json:"eval_success"`
			Step        int      `json:"step"` // that path has
			Path        string   `json:"path"`
			Final       string   `json:"final_path,omitempty"` // where that is another
			Seconds     float64  `json:"seconds"`
		}{r.Steps, r.Episodes, r.Tokens, r.Reward, r.EvalReward, r.EvalSuccess, chosen, made, final, time.Since(start).Seconds()})
	}
	best := ""
	if r.Best != nil {
		best = fmt.Sprintf(", where the reward in evaluation was the highest, %.3f", r.Best.Reward)
	}
	fmt.Fprintf(w, "%s is the model after step %d%s; curves are in %s\n", made, chosen, best, filepath.Join(out, "curves.png"))
	if final != "" {
		fmt.Fprintf(w, "%s is the one after the last step\n", final)
	}
	if t.LoRA > 0 {
		fmt.Fprintf(w, "try it: mcpgym eval %s --adapter %s --env %s\n", t.Model, made, t.Env)
	} else {
		fmt.Fprintf(w, "try it: mcpgym eval %s --env %s\n", made, t.Env)
	}
	return nil
}

// status sums up the step that a run has come to, by what was logged of it.
func status(r grpo.Report, dir string) string {
	values := map[string]float64{}
	for _, file := range []string{curves.Metrics, curves.Times} {
		entries, err := curves.Read(filepath.Join(dir, file))
		if err != nil {
			continue // the run itself fails where its folder does
		}
		if n := len(entries); n > 0 && entries[n-1].Step == r.Step {
			maps.Copy(values, entries[n-1].Values)
		}
	}
	var s strings.Builder
	for _, x := range []struct {
		key, format string
		scale       float64
	}{{"train/reward", "reward %.3f", 1}, {"train/success", "success %.0f %%", 100}, {"train/loss", "loss %.4f", 1}, {"train/kl", "KL %.4f", 1},
		{curves.Clock + "tokens_per_second", "%.0f tokens/s", 1}} {
		if v, ok := values[x.key]; ok {
			fmt.Fprintf(&s, ", "+x.format, x.scale*v)
		}
	}
	return s.String()
}

// evaluation is what a run's last one gave.
func evaluation(r grpo.Report) string {
	if r.EvalSuccess == nil {
		return ""
	}
	s := fmt.Sprintf(", in evaluation success %.0f %%", 100**r.EvalSuccess)
	if r.EvalReward != nil {
		s += fmt.Sprintf(" and reward %.3f", *r.EvalReward)
	}
	return s
}

// stepBar shows on a terminal how far a run is.
func stepBar(w io.Writer, steps int) (step func(r grpo.Report, what func() string), done func()) {
	f, ok := terminal(w)
	if !ok {
		return func(grpo.Report, func() string) {}, func() {}
	}
	bar := progressbar.NewOptions(steps, progressbar.OptionSetDescription("train"), progressbar.OptionSetWriter(f), progressbar.OptionShowCount(),
		progressbar.OptionThrottle(100*time.Millisecond), progressbar.OptionClearOnFinish())
	return func(r grpo.Report, what func() string) {
		bar.Describe(what())
		bar.Set(r.Step)
	}, func() { bar.Clear() }
}
