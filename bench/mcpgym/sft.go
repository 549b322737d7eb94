package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/mcpgym/mcpgym/bench"
	"github.com/mcpgym/mcpgym/policies/engine"
	"github.com/mcpgym/mcpgym/policies/lm"
	"github.com/mcpgym/mcpgym/policies/schedule"
	"github.com/mcpgym/mcpgym/policies/sft"
	"github.com/mcpgym/mcpgym/policies/toolcall"
)

// lessons is what is learned by what, as run.json has it.
type lessons struct {
	Env         string   `json:"env,omitempty"`
	Driver      string   `json:"driver,omitempty"`
	Split       string   `json:"split,omitempty"`
	Episodes    int      `json:"episodes,omitempty"`
	Records     []string `json:"records,omitempty"`
	OnlySuccess bool     `json:"only_success,omitempty"`
	DevEpisodes int      `json:"dev_episodes"`

	Model string `json:"model,omitempty"`
	LoRA  int    `json:"lora_rank,omitempty"`
	New   string `json:"new,omitempty"`
	Vocab int    `json:"vocab,omitempty"`

	Epochs   int     `json:"epochs"`
	Steps    int     `json:"steps,omitempty"`
	Batch    int     `json:"batch_size"`
	Rate     float64 `json:"learning_rate,omitempty"`
	Warmup   float64 `json:"warmup_ratio"`
	Schedule string  `json:"lr_schedule"`
	Pretrain float64 `json:"pretrain_ratio,omitempty"`
	Save     int     `json:"save_steps,omitempty"`
	Seed     uint64  `json:"seed"`

	judged []string // what is not for learning, and yet learned
}

func sftCommand() *cobra.Command {
	var l lessons
	r := running{command: "sft", settings: runFile}
	c := &cobra.Command{
		Use: "sft", Short: "Train a model on episodes that were played well", Args: cobra.NoArgs,
		Long: "Sft trains a model, whole or by a low-rank adapter, to say what was said in episodes: gold ones, which are played for it, or recorded ones.\n" +
			"Only the agent's own turns are learned. --out gets checkpoints, curves and what comes of it: model, or adapter. A run that was interrupted\n" +
			"goes on with --resume as if it had not been.",
		Example: "  mcpgym sft --env Weather-v0 --episodes 2000 --new nano --out runs/weather\n" +
			"  mcpgym sft --records lexical.jsonl --only-success --model Qwen3-0.6B --lora-rank 16 --out runs/qwen --dry-run\n" +
			"  mcpgym sft --resume runs/weather",
		RunE: func(cmd *cobra.Command, _ []string) (err error) {
			if r.resume != "" {
				l = lessons{}
				err = r.resumed(cmd, &l)
			} else if err = l.check(); err == nil {
				err = r.check()
			}
			if err != nil {
				return err
			}
			if r.dry && r.asJSON {
				return errors.New("--json is not for --dry-run")
			}
			return l.train(cmd, &r)
		},
	}
	f := c.Flags()
	f.StringVar(&l.Env, "env", "", "environment whose gold episodes are played and learned")
	f.StringVar(&l.Split, "split", "train", "split of the environment")
	driverFlag(c, &l.Driver)
	f.IntVar(&l.Episodes, "episodes", 1000, "gold episodes to learn, from the first of the split")
	f.StringSliceVar(&l.Records, "records", nil, "files of recorded episodes to learn instead")
	f.BoolVar(&l.OnlySuccess, "only-success", false, "leave out recorded episodes that failed")
	f.IntVar(&l.DevEpisodes, "dev-episodes", 50, "episodes more, gold ones, or the last of those recorded, that are not learned: their loss says how well the rest is")
	modelFlags(c, &l.Model, &l.LoRA)
	f.StringVar(&l.New, "new", "", "size of a model to make from nothing instead: "+strings.Join(slices.Sorted(maps.Keys(sizes)), ", "))
	f.IntVar(&l.Vocab, "vocab", 2048, "tokens of a new model")
	f.IntVar(&l.Epochs, "epochs", 3, "times that each episode is learned")
	f.IntVar(&l.Steps, "steps", 0, "steps to take, instead of epochs")
	f.IntVar(&l.Batch, "batch-size", 16, "episodes a step")
	f.Float64Var(&l.Rate, "learning-rate", 0, "highest learning rate (default 2e-3 for a new model, 2e-4 for an adapter, 2e-5 for a whole model)")
	f.Float64Var(&l.Warmup, "warmup-ratio", 0.05, "share of the steps in which the learning rate rises")
	f.StringVar(&l.Schedule, "lr-schedule", "cosine", "how it falls then: "+strings.Join(schedules, ", "))
	f.Float64Var(&l.Pretrain, "pretrain-ratio", 0, "share of the steps, at first, in which all tokens are learned, of short episodes before long ones: for a new model, which has yet to learn to read")
	f.IntVar(&l.Save, "save-steps", 0, "steps between checkpoints, at which the loss of the dev episodes is taken (default a tenth of all)")
	f.Uint64Var(&l.Seed, "seed", 1, "seed of new weights and of the order of episodes")
	r.flags(c, "say what would be done, and how long it would take, and write nothing")
	c.RegisterFlagCompletionFunc("env", envNames)
	c.RegisterFlagCompletionFunc("new", cobra.FixedCompletions(slices.Sorted(maps.Keys(sizes)), cobra.ShellCompDirectiveNoFileComp))
	return c
}

// check looks at all that can be wrong before anything is started.
func (l *lessons) check() error {
	if (l.Env == "") == (l.Records == nil) {
		return errors.New("want --env, to learn gold episodes, or --records, to learn recorded ones")
	}
	if (l.Model == "") == (l.New == "") {
		return errors.New("want --model, to train one that there is, or --new, to make one")
	}
	want := []flagValue{{"batch-size", l.Batch}, {"epochs", l.Epochs}}
	if l.Env != "" {
		want = append(want, flagValue{"episodes", l.Episodes})
	}
	if err := positive(want...); err != nil {
		return err
	}
	for _, v := range []flagValue{{"dev-episodes", l.DevEpisodes}, {"steps", l.Steps}, {"save-steps", l.Save}, {"lora-rank", l.LoRA}} {
		if v.value < 0 {
			return fmt.Errorf("--%s is %d, want 0 or more", v.flag, v.value)
		}
	}
	switch {
	case !(l.Rate >= 0) || math.IsInf(l.Rate, 0):
		return fmt.Errorf("--learning-rate is %v", l.Rate)
	case !(l.Pretrain >= 0 && l.Pretrain <= 1):
		return fmt.Errorf("--pretrain-ratio is %v, want a share from 0 to 1", l.Pretrain)
	case !(l.Warmup >= 0 && l.Warmup <= 1):
		return fmt.Errorf("--warmup-ratio is %v, want a share from 0 to 1", l.Warmup)
	case !slices.Contains(schedules, l.Schedule):
		return fmt.Errorf("no schedule %q, only %s", l.Schedule, strings.Join(schedules, ", "))
	case l.New != "" && l.LoRA > 0:
		return errors.New("--lora-rank is for --model: a new model is trained whole")
	}
	if _, ok := sizes[l.New]; l.New != "" && !ok {
		return fmt.Errorf("no size %q, only %s", l.New, strings.Join(slices.Sorted(maps.Keys(sizes)), ", "))
	}
	if l.Env != "" {
		entry, err := bench.FindEnv(l.Env)
		if err != nil {
			return err
		}
		if l.Driver, err = entry.Driver(l.Driver); err != nil {
			return err
		}
		if err := entry.Split(l.Split); err != nil {
			return err
		}
	}
	// What the settings name is found again from elsewhere.
	for i := range l.Records {
		var err error
		if l.Records[i], err = filepath.Abs(l.Records[i]); err != nil {
			return err
		}
	}
	if l.Model != "" {
		var err error
		if l.Model, err = filepath.Abs(l.Model); err != nil {
			return err
		}
	}
	return nil
}

// train trains, or with dry says what that would be.
func (l *lessons) train(cmd *cobra.Command, r *running) (err error) {
	ctx, w := cmd.Context(), cmd.OutOrStdout()
	var model *lm.Engine
	if l.Model != "" { // before episodes are played, which takes longer
		if model, err = openModel(l.Model, trainable(l.LoRA, 2*float64(l.LoRA), l.Seed), true); err != nil {
			return err
		}
	}
	records := l.Records
	if r.resume != "" && l.Env != "" {
		records = []string{filepath.Join(r.out, goldFile)}
	}
	played, gold, counts, err := l.episodes(cmd, records)
	if err != nil {
		return err
	}
	var codec engine.Codec = model
	tokens := filepath.Join(r.out, tokenizerDir) // of a new model
	if l.New != "" {
		if r.resume == "" {
			if tokens, err = os.MkdirTemp("", "mcpgym-tokenizer-"); err != nil {
				return err
			}
			defer os.RemoveAll(tokens)
			if err := l.learnTokens(cmd, played, tokens); err != nil {
				return err
			}
		}
		if codec, err = toolcall.OpenCodec(tokens); err != nil {
			return err
		}
	}
	most := sizes[l.New].MaxPositions
	if model != nil {
		most = model.Config().MaxPositions
	}
	learned, err := examples(cmd, codec, most, played, counts)
	if err != nil {
		return err
	}
	c, err := l.config(learned)
	if err != nil {
		return err
	}
	for _, what := range slices.Compact(l.judged) {
		fmt.Fprintf(cmd.ErrOrStderr(), "mcpgym: %s\n", what)
	}
	if r.resume == "" && !r.dry {
		if err := r.begin(l, func() error { return l.keep(r.out, tokens, gold) }); err != nil {
			return err
		}
		tokens = filepath.Join(r.out, tokenizerDir) // where the model, which copies it at the end, finds it for as long as the run
	}
	if l.New != "" {
		if model, err = newModel(l.New, l.Seed, tokens); err != nil {
			return err
		}
	}
	if !r.asJSON {
		l.plan(w, model, c, counts)
	}
	if r.dry {
		return timed(ctx, w, model, c)
	}
	return l.run(cmd, r, model, c)
}

// keep puts into the folder of a run what its settings do not make again.
func (l *lessons) keep(out, tokenizer string, gold *bench.Record) error {
	if l.New != "" {
		if err := os.CopyFS(filepath.Join(out, tokenizerDir), os.DirFS(tokenizer)); err != nil {
			return err
		}
	}
	if gold != nil {
		return gold.Save(filepath.Join(out, goldFile))
	}
	return nil
}

func (l *lessons) config(examples []sft.Example) (sft.Config, error) {
	train, err := l.split(len(examples))
	if err != nil {
		return sft.Config{}, err
	}
	steps := cmp.Or(l.Steps, schedule.Steps(l.Epochs, train, l.Batch))
	rate := l.Rate
	if rate == 0 {
		switch {
		case l.New != "":
			rate = 2e-3
		case l.LoRA > 0:
			rate = 2e-4
		default:
			rate = 2e-5
		}
	}
	save := cmp.Or(l.Save, max(1, steps/10))
	return sft.Config{Train: examples[:train], Dev: examples[train:], Steps: steps, Batch: l.Batch, Seed: l.Seed, Pretrain: int(math.Round(l.Pretrain * float64(steps))),
		PassTokens: passTokens, Eval: save, Save: save,
		Optim:    engine.Optim{Rate: rate, Beta1: 0.9, Beta2: 0.95, Epsilon: 1e-8, WeightDecay: 0.01, Clip: 1},
		Schedule: schedule.Rate{Warmup: int(math.Round(l.Warmup * float64(steps))), Decay: decay(l.Schedule)}}, nil
}

// plan says what is going to be done.
func (l *lessons) plan(w io.Writer, e *lm.Engine, c sft.Config, counts left) {
	tokens, learned, longest := size(c.Train)
	from := "records"
	if l.Env != "" {
		from = l.Env + ", split " + l.Split
	}
	fmt.Fprintf(w, "episodes    %d of %s, and %d for the dev loss\n", len(c.Train), from, len(c.Dev))
	if len(counts) > 0 {
		fmt.Fprintf(w, "left out    %v\n", counts)
	}
	fmt.Fprintf(w, "tokens      %d, of which %d are learned; the longest episode has %d, the model takes %d\n", tokens, learned, longest, e.Config().MaxPositions)
	all, trained := parameters(e.Config(), l.LoRA)
	fmt.Fprintf(w, "parameters  %d, of which %d are trained; %d tokens in the vocabulary\n", all, trained, e.Config().Vocab)
	fmt.Fprintf(w, "steps       %d of %d episodes, %.1f epochs, learning rate %g, schedule %s\n", c.Steps, c.Batch,
		float64(c.Steps*c.Batch)/float64(len(c.Train)), c.Optim.Rate, l.Schedule)
}

// timed tries a pass and says what all of them would take.
func timed(ctx context.Context, w io.Writer, e *lm.Engine, c sft.Config) error {
	var b engine.Batch
	for pass := range schedule.Passes(c.Train[:min(c.Batch, len(c.Train))], func(x sft.Example) []int32 { return x.Tokens }, c.PassTokens) {
		for _, x := range pass {
			b.Tokens, b.Mask = append(b.Tokens, x.Tokens), append(b.Mask, x.Mask)
		}
		break
	}
	start, n := time.Now(), 0
	p, err := e.Forward(ctx, b)
	if err != nil {
		return err
	}
	defer p.Discard()
	d := make([][]float32, len(b.Tokens))
	for i, row := range b.Tokens {
		d[i] = make([]float32, len(row))
		n += len(row)
	}
	if err := p.Backward(ctx, d, nil); err != nil {
		return err
	}
	speed := float64(n) / time.Since(start).Seconds()
	tokens, _, _ := size(c.Train)
	seconds := float64(tokens) / float64(len(c.Train)) * float64(c.Steps*c.Batch) / speed
	fmt.Fprintf(w, "memory      %.1f GB\ntime        about %v, at %.0f tokens a second, by one pass of %d\n", memory(), (time.Duration(seconds) * time.Second).Round(time.Second), speed, n)
	return nil
}

// run trains and writes what comes of it.
func (l *lessons) run(cmd *cobra.Command, r *running, model *lm.Engine, c sft.Config) error {
	w, start := cmd.OutOrStdout(), time.Now()
	step, done := r.progress(cmd, c.Steps, c.Eval)
	c.Progress = func(s sft.Report) { step(s.Step, lossesOf(s), "") }
	s, err := sft.Train(cmd.Context(), model, c, r.out)
	done()
	if err != nil {
		return r.stopped(cmd.Context(), err, c.Steps)
	}
	chosen, made, why := s.Step, filepath.Join(r.out, makes(l.LoRA)), ""
	if s.Best != nil {
		why = ", where the dev loss was the least"
		if chosen = s.Best.Step; chosen != s.Step {
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
			Steps     int      `json:"steps"`
			Tokens    int      `json:"tokens"` // learned from
			TrainLoss *float64 `json:"train_loss"`
			DevLoss   *float64 `json:"dev_loss"`
			Step      int      `json:"step"` // that was written
			Path      string   `json:"path"`
			Seconds   float64  `json:"seconds"`
		}{s.Steps, s.Tokens, s.TrainLoss, s.DevLoss, chosen, made, time.Since(start).Seconds()})
	}
	r.tell(w, made, "", chosen, why, l.Model, "...")
	return nil
}

// lossesOf sums up the step that a run has come to.
func lossesOf(r sft.Report) (s string) {
	if r.TrainLoss != nil {
		s = fmt.Sprintf(", loss %.4f", *r.TrainLoss)
		if r.DevLoss != nil {
			s += fmt.Sprintf(", dev loss %.4f", *r.DevLoss)
		}
	}
	return s
}
