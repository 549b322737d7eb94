package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/mcpgym/mcpgym/bench"
	"github.com/mcpgym/mcpgym/envs"
	"github.com/mcpgym/mcpgym/policies/grpo"
	"github.com/mcpgym/mcpgym/policies/lm"
	"github.com/mcpgym/mcpgym/policies/toolcall"
	"github.com/mcpgym/mcpgym/rewards"
)

const heldOut = 1 << 20 // the tasks of the train split from here on are played in evaluation, and never trained on

var presets = map[string]grpo.Config{"trl": grpo.Trl(), "art": grpo.Art(), "founding": grpo.Founding(1)}

var losses = strings.Fields("bnpo cispo dapo dr_grpo gspo grpo luspo reinforce rloo sapo")

var deviations = []string{"group", "batch", "none"}

var schedules = []string{"cosine", "linear", "constant"}

// training is what is trained on what, and how.
type training struct {
	Env    string      `json:"env"`
	Driver string      `json:"driver"`
	Model  string      `json:"model"`
	LoRA   int         `json:"lora_rank,omitempty"`
	Alpha  float64     `json:"lora_alpha,omitempty"`
	Save   int         `json:"save_every"`
	Spared string      `json:"without_penalty,omitempty"`
	AtOnce int         `json:"parallel"`
	GRPO   grpo.Config `json:"grpo"`
}

// given is what flags say of a grpo.Config. Of the first ones 0 is what the preset has.
type given struct {
	preset, loss, std, schedule             string
	groups, group, dynamic                  int
	maxTokens, epochs, updates, warmup      int
	rate, temperature, entropy, epsilonHigh float64
	bypass                                  bool
	kl                                      float64
	steps, evalEvery, evalEpisodes          int
	seed                                    uint64
}

func trainCommand() *cobra.Command {
	var t training
	var g given
	r := running{command: "train", settings: trainFile}
	c := &cobra.Command{
		Use: "train", Short: "Train a model on episodes that it plays itself", Args: cobra.NoArgs,
		Long: "Train plays each task in a group of live episodes, and makes likelier what did better than its group (GRPO). The model is trained whole or by\n" +
			"a low-rank adapter. --out gets checkpoints, curves and what comes of it: model, or adapter, where the reward in evaluation was the highest,\n" +
			"and final-model, or final-adapter, where that is another. A run that was interrupted goes on with --resume as if it had not been.",
		Example: "  mcpgym train --env Weather-v0 --model runs/weather/model --steps 200 --groups 4 --learning-rate 1e-4 --out runs/weather-grpo\n" +
			"  mcpgym train --env Postgres-v0 --model Qwen3-0.6B --lora-rank 16 --preset art --dry-run\n" +
			"  mcpgym train --resume runs/weather-grpo",
		RunE: func(cmd *cobra.Command, _ []string) (err error) {
			if r.resume != "" {
				t = training{}
				err = r.resumed(cmd, &t)
			} else if err = t.check(cmd, g); err == nil {
				err = r.check()
			}
			if err != nil {
				return err
			}
			return t.train(cmd, &r)
		},
	}
	f := c.Flags()
	f.StringVar(&t.Env, "env", "", "environment to train in, on tasks of its split train")
	driverFlag(c, &t.Driver)
	g.flags(c)
	modelFlags(c, &t.Model, &t.LoRA)
	f.Float64Var(&t.Alpha, "lora-alpha", 0, "alpha of the adapter (default twice its rank)")
	f.IntVar(&t.Save, "save-every", 0, "steps between checkpoints (default as evaluations)")
	f.StringVar(&t.Spared, "without-penalty", "", "penalty to leave out of the reward in training, such as hallucination; evaluation is by the same reward")
	f.IntVar(&t.AtOnce, "parallel", 64, "episodes at once")
	r.flags(c, "play one step, say how long all would take, and write nothing")
	c.RegisterFlagCompletionFunc("env", envNames)
	return c
}

func (g *given) flags(c *cobra.Command) {
	f := c.Flags()
	f.StringVar(&g.preset, "preset", "trl", "what else is set: the defaults of trl or art, or founding, those of the note that this project began with, in three epochs")
	f.StringVar(&g.loss, "loss", "", "loss, where it is not the preset's: "+strings.Join(losses, ", "))
	f.Float64Var(&g.kl, "kl", 0, "weight of the divergence from the model without the adapter")
	f.Float64Var(&g.entropy, "entropy", 0, "weight of the entropy, which is rewarded")
	f.StringVar(&g.std, "std", "", "deviation that advantages are divided by: "+strings.Join(deviations, ", ")+" (default the preset's, or the loss's)")
	f.Float64Var(&g.epsilonHigh, "epsilon-high", 0, "ratios are clipped at 1 + so much; of cispo it is the highest ratio itself (default the preset's, or the loss's)")
	f.IntVar(&g.steps, "steps", 100, "steps to take")
	f.IntVar(&g.groups, "groups", 0, "tasks a step (default the preset's)")
	f.IntVar(&g.group, "group", 0, "episodes a task (default the preset's)")
	f.IntVar(&g.dynamic, "dynamic", 0, "groups whose episodes all earn the same are replaced, until so many times --groups have been played (DAPO); 0: they are kept")
	f.BoolVar(&g.bypass, "bypass", false, "ratios are to the probabilities that were sampled with, not to ones computed anew: a quarter less work for several updates")
	f.IntVar(&g.epochs, "epochs", 0, "times that the episodes of a step are learned (default the preset's)")
	f.IntVar(&g.updates, "updates", 0, "updates of the weights that the episodes of a step are divided into (default the preset's)")
	f.Float64Var(&g.rate, "learning-rate", 0, "highest learning rate (default the preset's)")
	f.IntVar(&g.warmup, "warmup", 0, "steps in which the learning rate rises")
	f.StringVar(&g.schedule, "schedule", "", "how it falls then: "+strings.Join(schedules, ", ")+" (default the preset's)")
	f.Float64Var(&g.temperature, "temperature", 0, "of sampling (default the preset's)")
	f.IntVar(&g.maxTokens, "max-tokens", 0, "tokens of a turn (default the preset's)")
	f.IntVar(&g.evalEvery, "eval-every", 0, "steps between evaluations (default a tenth of all)")
	f.IntVar(&g.evalEpisodes, "eval-episodes", 50, "episodes of an evaluation, always the same tasks, which are not trained on; 0 for none")
	f.Uint64Var(&g.seed, "seed", 1, "seed of samples, of the order of episodes and of an adapter's weights")
	c.RegisterFlagCompletionFunc("preset", cobra.FixedCompletions(slices.Sorted(maps.Keys(presets)), cobra.ShellCompDirectiveNoFileComp))
	c.RegisterFlagCompletionFunc("loss", cobra.FixedCompletions(losses, cobra.ShellCompDirectiveNoFileComp))
	c.RegisterFlagCompletionFunc("std", cobra.FixedCompletions(deviations, cobra.ShellCompDirectiveNoFileComp))
	c.RegisterFlagCompletionFunc("schedule", cobra.FixedCompletions(schedules, cobra.ShellCompDirectiveNoFileComp))
}

// check looks at all that can be wrong before anything is started.
func (t *training) check(cmd *cobra.Command, g given) error {
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
	if err := positive(flagValue{"parallel", t.AtOnce}); err != nil {
		return err
	}
	t.Alpha = cmp.Or(t.Alpha, 2*float64(t.LoRA))
	t.Save = cmp.Or(t.Save, t.GRPO.Eval)
	t.Model, err = filepath.Abs(t.Model) // found again from elsewhere
	return err
}

// config is a preset with what flags say otherwise.
func (g given) config(set func(flag string) bool) (c grpo.Config, err error) {
	c, ok := presets[g.preset]
	if !ok {
		return c, fmt.Errorf("no preset %q, only %s", g.preset, strings.Join(slices.Sorted(maps.Keys(presets)), ", "))
	}
	for _, v := range []struct {
		flag, value string
		of          []string
	}{{"loss", g.loss, losses}, {"std", g.std, deviations}, {"schedule", g.schedule, schedules}} {
		if set(v.flag) && !slices.Contains(v.of, v.value) {
			return c, fmt.Errorf("no %s %q, only %s", v.flag, v.value, strings.Join(v.of, ", "))
		}
	}
	for _, v := range []flagValue{{"steps", g.steps}, {"groups", g.groups}, {"group", g.group}, {"max-tokens", g.maxTokens}, {"epochs", g.epochs},
		{"updates", g.updates}, {"eval-every", g.evalEvery}} {
		if set(v.flag) {
			if err := positive(v); err != nil {
				return c, err
			}
		}
	}
	for name, v := range map[string]float64{"learning-rate": g.rate, "temperature": g.temperature, "epsilon-high": g.epsilonHigh} {
		if set(name) && !(v > 0 && !math.IsInf(v, 0)) {
			return c, fmt.Errorf("--%s is %v, want more than 0", name, v)
		}
	}
	for name, v := range map[string]float64{"kl": g.kl, "entropy": g.entropy} {
		if !(v >= 0) || math.IsInf(v, 0) {
			return c, fmt.Errorf("--%s is %v, want 0 or more", name, v)
		}
	}
	switch {
	case set("group") && g.group < 2:
		return c, fmt.Errorf("--group is %d, want 2 or more: an episode is compared with the others of its task", g.group)
	case g.evalEpisodes < 0:
		return c, fmt.Errorf("--eval-episodes is %d, want 0 or more", g.evalEpisodes)
	case g.dynamic < 0:
		return c, fmt.Errorf("--dynamic is %d, want 0 or more", g.dynamic)
	case g.warmup < 0 || g.warmup > g.steps:
		return c, fmt.Errorf("--warmup is %d, want 0 to %d, the --steps", g.warmup, g.steps)
	}
	c.Steps, c.Seed, c.KL, c.EvalTasks, c.Bypass = g.steps, g.seed, g.kl, g.evalEpisodes, g.bypass
	c.Dynamic = cmp.Or(g.dynamic, c.Dynamic)
	c.Groups, c.Group, c.MaxTokens = cmp.Or(g.groups, c.Groups), cmp.Or(g.group, c.Group), cmp.Or(g.maxTokens, c.MaxTokens)
	c.Epochs, c.Updates = cmp.Or(g.epochs, c.Epochs), cmp.Or(g.updates, c.Updates)
	c.Temperature, c.Optim.Rate = cmp.Or(g.temperature, c.Temperature), cmp.Or(g.rate, c.Optim.Rate)
	c.Eval = cmp.Or(g.evalEvery, max(1, c.Steps/10))
	if g.bypass { // there is no difference to correct
		c.Correction = grpo.Correction{}
	}
	if g.preset == "founding" {
		c.Tasks = max(c.Groups, c.Steps*c.Groups/3) // three epochs
	}
	if g.loss != "" && g.loss != c.Loss {
		withLoss(&c, g.loss)
	}
	c.Std, c.EpsilonHigh, c.Entropy = cmp.Or(g.std, c.Std), cmp.Or(g.epsilonHigh, c.EpsilonHigh), cmp.Or(g.entropy, c.Entropy)
	c.Schedule.Warmup = cmp.Or(g.warmup, c.Schedule.Warmup)
	if g.schedule != "" {
		c.Schedule.Decay = decay(g.schedule)
	}
	return c, c.Validate()
}

// decay is a schedule's, as its flag names it.
func decay(schedule string) string {
	if schedule == "constant" {
		return ""
	}
	return schedule
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
func (t *training) train(cmd *cobra.Command, r *running) (err error) {
	ctx, w := cmd.Context(), cmd.OutOrStdout()
	model, err := openModel(t.Model, trainable(t.LoRA, t.Alpha, t.GRPO.Seed), true)
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
	name := spec.Name
	if t.Spared != "" {
		sum, ok := spec.Reward.(rewards.Sum)
		if !ok {
			return fmt.Errorf("--without-penalty: the reward of %s has no parts", spec.Name)
		}
		if spec.Reward, err = sum.Without(t.Spared); err != nil {
			return fmt.Errorf("--without-penalty: %w", err)
		}
		name += " without " + t.Spared
	}
	gym := grpo.Gym{Name: name, Train: tasks, Eval: held(tasks), Reward: rewards.Each(spec.Reward), Play: grpo.Rollouts(spec, t.AtOnce)}
	c := t.GRPO
	c.PassTokens, c.Save = passTokens, t.Save
	if !r.asJSON {
		t.plan(w, model)
	}
	if r.dry {
		return measured(ctx, w, model, gym, c, r.asJSON)
	}
	if r.resume == "" {
		if err := r.begin(t, func() error { return nil }); err != nil {
			return err
		}
	}
	return t.run(cmd, r, model, gym, c)
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
	fmt.Fprintf(w, "episodes    %d, and %d of evaluation\n", e.Episodes, e.EvalEpisodes)
	fmt.Fprintf(w, "tokens      about %.0f sampled, %.0f learned from with prompts and results\n", e.Sampled, e.Trained)
	fmt.Fprintf(w, "success     %.0f %% of the first step's episodes; by that, %.0f %% of the groups have some that differ\n", 100*r.Success, 100*e.Signal)
	fmt.Fprintf(w, "memory      %.1f GB so far\n", memory())
	fmt.Fprintf(w, "time        about %v: %v of episodes, %v of updates\n", e.Total().Round(time.Second), e.Rollouts.Round(time.Second), e.Updates.Round(time.Second))
	return nil
}

// run trains and writes what comes of it.
func (t *training) run(cmd *cobra.Command, r *running, model *lm.Engine, gym grpo.Gym, c grpo.Config) error {
	w, start := cmd.OutOrStdout(), time.Now()
	step, done := r.progress(cmd, c.Steps, c.Eval)
	c.Progress = func(s grpo.Report) { step(s.Step, status(s), evaluation(s)) }
	s, err := grpo.Train(cmd.Context(), model, gym, c, r.out)
	done()
	if err != nil {
		return r.stopped(cmd.Context(), err, c.Steps)
	}
	chosen, made, why, final := s.Step, filepath.Join(r.out, makes(t.LoRA)), "", ""
	if s.Best != nil {
		why = fmt.Sprintf(", where the reward in evaluation was the highest, %.3f", s.Best.Reward)
		if chosen = s.Best.Step; chosen != s.Step {
			final = filepath.Join(r.out, "final-"+makes(t.LoRA))
			if !exists(final) { // of a run that ended here
				if err := model.Export(final); err != nil {
					return err
				}
			}
			if err := model.Restore(s.Best.Dir); err != nil {
				return err
			}
		}
	}
	if err := model.Export(made); err != nil {
		return err
	}
	if r.asJSON {
		return printJSON(w, struct {
			Steps       int      `json:"steps"`
			Episodes    int      `json:"episodes"`
			Tokens      int      `json:"tokens"` // sampled
			Reward      *float64 `json:"reward"` // of the last step, as the next ones
			Success     *float64 `json:"success"`
			Loss        *float64 `json:"loss"`
			KL          *float64 `json:"kl"`
			EvalReward  *float64 `json:"eval_reward"`
			EvalSuccess *float64 `json:"eval_success"`
			Step        int      `json:"step"` // that path has
			Path        string   `json:"path"`
			Final       string   `json:"final_path,omitempty"` // where that is another
			Seconds     float64  `json:"seconds"`
		}{s.Steps, s.Episodes, s.Tokens, s.Reward, s.Success, s.Loss, s.KL, s.EvalReward, s.EvalSuccess, chosen, made, final, time.Since(start).Seconds()})
	}
	r.tell(w, made, final, chosen, why, t.Model, t.Env)
	return nil
}

// status sums up the step that a run has come to, as far as it was measured.
func status(r grpo.Report) string {
	var s strings.Builder
	for _, x := range []struct {
		value  *float64
		format string
		scale  float64
	}{{r.Reward, "reward %.3f", 1}, {r.Success, "success %.0f %%", 100}, {r.Loss, "loss %.4f", 1}, {r.KL, "KL %.4f", 1}, {r.Speed, "%.0f tokens/s", 1}} {
		if x.value != nil {
			fmt.Fprintf(&s, ", "+x.format, x.scale**x.value)
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
