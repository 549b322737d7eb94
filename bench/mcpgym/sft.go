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
	"github.com/mcpgym/mcpgym/policies"
	"github.com/mcpgym/mcpgym/policies/bpe"
	"github.com/mcpgym/mcpgym/policies/checkpoints"
	"github.com/mcpgym/mcpgym/policies/engine"
	"github.com/mcpgym/mcpgym/policies/lm"
	"github.com/mcpgym/mcpgym/policies/sft"
	"github.com/mcpgym/mcpgym/policies/toolcall"
)

// sizes are shapes of models that are made from nothing. Their vocabulary is another matter.
var sizes = map[string]lm.Config{
	"pico":  small(64, 2, 2, 192),
	"nano":  small(128, 4, 4, 384),
	"micro": small(256, 6, 8, 768),
}

// small has no norms of queries and keys: over heads of 32 they keep attention from ever being sharp enough to copy a word out of a
// long prompt.
func small(hidden, layers, heads, intermediate int) lm.Config {
	return lm.Config{Kind: "llama", Hidden: hidden, Intermediate: intermediate, Layers: layers, Heads: heads, KVHeads: heads / 2, HeadDim: 32,
		MaxPositions: 8192, Eps: 1e-6, Theta: 1e4, Tied: true, DType: lm.F32}
}

// The files of a run, beside those of sft.Train.
const (
	runFile      = "run.json"   // lessons, as they were given
	goldFile     = "gold.jsonl" // a record of the episodes that it learns from, where they were played for it
	tokenizerDir = "tokenizer"  // of a new model
	modelDir     = "model"      // what comes of it: a model
	adapterDir   = "adapter"    // or an adapter
)

// passTokens bounds the memory of a pass.
const passTokens = 4096

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
	Save     int     `json:"save_steps,omitempty"`
	Seed     uint64  `json:"seed"`

	judged []string // what is not for learning, and yet learned
}

func sftCommand() *cobra.Command {
	var l lessons
	var out, resume string
	var dry, asJSON bool
	c := &cobra.Command{
		Use: "sft", Short: "Train a model on episodes that were played well", Args: cobra.NoArgs,
		Long: "Sft trains a model, whole or by a low-rank adapter, to say what was said in episodes: gold ones, which are played for it, or recorded ones.\n" +
			"Only the agent's own turns are learned. --out gets checkpoints, curves and what comes of it: model, or adapter. A run that was interrupted\n" +
			"goes on with --resume as if it had not been.",
		Example: "  mcpgym sft --env Weather-v0 --episodes 2000 --new nano --out runs/weather\n" +
			"  mcpgym sft --records lexical.jsonl --only-success --model Qwen3-0.6B --lora-rank 16 --out runs/qwen --dry-run\n" +
			"  mcpgym sft --resume runs/weather",
		RunE: func(cmd *cobra.Command, _ []string) (err error) {
			if resume != "" {
				if out, err = resumed(cmd, resume, &l); err != nil {
					return err
				}
			} else if err := l.check(out, dry); err != nil {
				return err
			}
			if dry && asJSON {
				return errors.New("--json is not for --dry-run")
			}
			return l.train(cmd, out, resume != "", dry, asJSON)
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
	f.StringVar(&l.Model, "model", "", "folder of the model to train, of the Hugging Face layout")
	f.IntVar(&l.LoRA, "lora-rank", 0, "rank of the adapter to train; 0 trains the model whole")
	f.StringVar(&l.New, "new", "", "size of a model to make from nothing instead: "+strings.Join(slices.Sorted(maps.Keys(sizes)), ", "))
	f.IntVar(&l.Vocab, "vocab", 2048, "tokens of a new model")
	f.IntVar(&l.Epochs, "epochs", 3, "times that each episode is learned")
	f.IntVar(&l.Steps, "steps", 0, "steps to take, instead of epochs")
	f.IntVar(&l.Batch, "batch-size", 16, "episodes a step")
	f.Float64Var(&l.Rate, "learning-rate", 0, "highest learning rate (default 2e-3 for a new model, 2e-4 for an adapter, 2e-5 for a whole model)")
	f.Float64Var(&l.Warmup, "warmup-ratio", 0.05, "share of the steps in which the learning rate rises")
	f.StringVar(&l.Schedule, "lr-schedule", "cosine", "how it falls then: cosine, linear or constant")
	f.IntVar(&l.Save, "save-steps", 0, "steps between checkpoints, at which the loss of the dev episodes is taken (default a tenth of all)")
	f.Uint64Var(&l.Seed, "seed", 1, "seed of new weights and of the order of episodes")
	f.StringVar(&out, "out", "", "folder for the run, which must not exist")
	f.StringVar(&resume, "resume", "", "folder of a run to go on with, by its own settings")
	f.BoolVar(&dry, "dry-run", false, "say what would be done, and how long it would take, and write nothing")
	f.BoolVar(&asJSON, "json", false, "print one line of JSON")
	c.RegisterFlagCompletionFunc("env", envNames)
	c.RegisterFlagCompletionFunc("new", cobra.FixedCompletions(slices.Sorted(maps.Keys(sizes)), cobra.ShellCompDirectiveNoFileComp))
	return c
}

// resumed reads the settings of a run.
func resumed(cmd *cobra.Command, dir string, l *lessons) (string, error) {
	set := 1
	if cmd.Flags().Changed("json") {
		set++
	}
	if cmd.Flags().NFlag() > set {
		return "", errors.New("only --json goes with --resume: the run goes on with its own settings")
	}
	name := filepath.Join(dir, runFile)
	data, err := os.ReadFile(name)
	if errors.Is(err, fs.ErrNotExist) {
		return "", fmt.Errorf("no run to go on with in %s: it has no %s", dir, runFile)
	}
	if err != nil {
		return "", fmt.Errorf("resume: %w", err)
	}
	*l = lessons{}
	if err := json.Unmarshal(data, l); err != nil {
		return "", fmt.Errorf("resume: read %s: %w", name, err)
	}
	for _, made := range []string{modelDir, adapterDir} {
		if _, err := os.Stat(filepath.Join(dir, made)); err == nil {
			return "", fmt.Errorf("the run in %s has come to its end: what came of it is in %s", dir, filepath.Join(dir, made))
		}
	}
	return dir, nil
}

// check looks at all that can be wrong before anything is started.
func (l *lessons) check(out string, dry bool) error {
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
	case !(l.Warmup >= 0 && l.Warmup <= 1):
		return fmt.Errorf("--warmup-ratio is %v, want a share from 0 to 1", l.Warmup)
	case !slices.Contains([]string{"cosine", "linear", "constant"}, l.Schedule):
		return fmt.Errorf("no schedule %q, only cosine, linear, constant", l.Schedule)
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
	if dry {
		return nil
	}
	if out == "" {
		return errors.New("want --out, a folder for the run")
	}
	if _, err := os.Lstat(out); err == nil {
		if _, err := os.Stat(filepath.Join(out, runFile)); err == nil {
			return fmt.Errorf("%s has a run already: go on with it by --resume %s, or name another folder", out, out)
		}
		return fmt.Errorf("%s exists already: name another folder", out)
	}
	return writable(filepath.Clean(out))
}

// train trains, or with dry says what that would be.
func (l *lessons) train(cmd *cobra.Command, out string, resume, dry, asJSON bool) (err error) {
	ctx, w := cmd.Context(), cmd.OutOrStdout()
	var base *lm.Engine
	if l.Model != "" { // before episodes are played, which takes longer
		o := lm.Options{Full: l.LoRA == 0}
		if l.LoRA > 0 {
			o.LoRA = &lm.LoRA{Rank: l.LoRA, Alpha: 2 * float64(l.LoRA), Seed: l.Seed}
		}
		if base, err = openModel(l.Model, o, true); err != nil {
			return err
		}
	}
	records := l.Records
	if resume && l.Env != "" {
		records = []string{filepath.Join(out, goldFile)}
	}
	played, gold, counts, err := l.episodes(cmd, records)
	if err != nil {
		return err
	}
	var codec engine.Codec = base
	tokens := filepath.Join(out, tokenizerDir) // of a new model
	if l.New != "" {
		if !resume {
			if tokens, err = os.MkdirTemp("", "mcpgym-tokenizer-"); err != nil {
				return err
			}
			defer os.RemoveAll(tokens)
			if err := l.learnTokens(played, tokens); err != nil {
				return err
			}
		}
		if codec, err = toolcall.OpenCodec(tokens); err != nil {
			return err
		}
	}
	most := sizes[l.New].MaxPositions
	if base != nil {
		most = base.Config().MaxPositions
	}
	learned, err := examples(ctx, codec, most, played, counts)
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
	if !resume && !dry {
		if err := l.begin(out, tokens, gold); err != nil {
			return err
		}
		tokens = filepath.Join(out, tokenizerDir) // where the model, which copies it at the end, finds it for as long as the run
	}
	if l.New != "" {
		if base, err = newModel(l.New, l.Seed, tokens); err != nil {
			return err
		}
	}
	if !asJSON {
		l.plan(w, base, c, counts)
	}
	if dry {
		return timed(ctx, w, base, c)
	}
	return l.run(cmd, base, c, out, asJSON)
}

// begin makes the folder of a run.
func (l *lessons) begin(out, tokenizer string, gold *bench.Record) error {
	data, err := json.MarshalIndent(l, "", "  ")
	if err != nil {
		return err
	}
	if err := os.Mkdir(out, 0o755); err != nil {
		return err
	}
	if l.New != "" {
		if err := os.CopyFS(filepath.Join(out, tokenizerDir), os.DirFS(tokenizer)); err != nil {
			return err
		}
	}
	if gold != nil {
		if err := gold.Save(filepath.Join(out, goldFile)); err != nil {
			return err
		}
	}
	return os.WriteFile(filepath.Join(out, runFile), append(data, '\n'), 0o644)
}

// left counts what is not learned, by the reason.
type left map[string]int

func (c left) String() string {
	var parts []string
	for _, why := range slices.Sorted(maps.Keys(c)) {
		parts = append(parts, fmt.Sprintf("%d that %s", c[why], why))
	}
	return strings.Join(parts, ", ")
}

// episodes gives those to learn from: of records, or without any those that are played, which it gives as a record too.
func (l *lessons) episodes(cmd *cobra.Command, files []string) (all []*envs.Trajectory, gold *bench.Record, counts left, err error) {
	counts = left{}
	take := func(r *bench.Record, spec envs.Spec) error {
		if r.Split != "train" {
			l.judged = append(l.judged, fmt.Sprintf("the split %s of %s is learned, by which policies are judged", r.Split, r.Env))
		}
		for _, e := range r.Episodes {
			switch {
			case e.Void != nil:
				counts["were void"]++
				continue
			case (l.OnlySuccess || l.Env != "") && (e.Score == nil || !e.Score.Success):
				counts["failed"]++
				continue
			}
			t, err := r.Trajectory(spec, e)
			if err != nil {
				return err
			}
			if !writes(t) {
				counts["have calls that cannot be read"]++
				continue
			}
			all = append(all, t)
		}
		return nil
	}
	if files == nil {
		spec, _, err := openEnv(cmd.Context(), l.Env, l.Driver, l.Split)
		if err != nil {
			return nil, nil, nil, err
		}
		defer spec.Sandboxes.Close()
		n := l.Episodes + l.DevEpisodes
		progress, done := progressBar(cmd.ErrOrStderr(), "play gold", n)
		gold, err = bench.Run(cmd.Context(), bench.Config{Spec: spec, Policy: policies.Oracle{}, Name: "oracle", Split: l.Split, Tasks: n, Trials: 1, Seed: l.Seed,
			Parallel: runtime.NumCPU(), Progress: progress})
		done()
		if err != nil {
			return nil, nil, nil, err
		}
		gold.Provenance = provenance(cmd.Context(), l.Driver, fmt.Sprintf("run --env %s --policy oracle --split %s --episodes %d --seed %d", l.Env, l.Split, n, l.Seed))
		return all, gold, counts, take(gold, spec)
	}
	files, err = recordFiles(files)
	if err != nil {
		return nil, nil, nil, err
	}
	for _, file := range files {
		r, problems, err := loadWhole(file)
		if err != nil {
			return nil, nil, nil, err
		}
		spec, err := rules(cmd.Context(), r)
		if err == nil {
			err = take(r, spec)
		}
		if err != nil {
			return nil, nil, nil, fmt.Errorf("learn from %s: %w", file, err)
		}
		for _, p := range problems {
			fmt.Fprintf(cmd.ErrOrStderr(), "mcpgym: %s: %s\n", file, p)
		}
	}
	return all, nil, counts, nil
}

// writes says whether a chat can be made of an episode. The tokens that another model may have sampled are forgotten.
func writes(t *envs.Trajectory) bool {
	t.Steps = slices.Clone(t.Steps)
	for i := range t.Steps {
		t.Steps[i].Action.Sample = nil
		if _, err := toolcall.Message(t.Steps[i].Action); err != nil {
			return false
		}
	}
	return len(t.Steps) > 0
}

// split divides episodes into those to learn and the last, by which that is judged.
func (l *lessons) split(n int) (train int, err error) {
	if train = n - l.DevEpisodes; train < 1 {
		return 0, fmt.Errorf("nothing to learn: there are %d episodes, and --dev-episodes takes %d", n, l.DevEpisodes)
	}
	return train, nil
}

// learnTokens makes a tokenizer of what is said in the episodes to learn, and writes it with the small chat template.
func (l *lessons) learnTokens(played []*envs.Trajectory, dir string) error {
	train, err := l.split(len(played))
	if err != nil {
		return err
	}
	template := toolcall.Small()
	var failed error
	tok, err := bpe.Train(func(yield func(string) bool) {
		for _, t := range played[:train] {
			chat := toolcall.Prompt(t.System, t.Task.Prompt)
			for _, s := range t.Steps {
				m, err := toolcall.Message(s.Action)
				failed = errors.Join(failed, err)
				chat = append(append(chat, m), toolcall.Replies(s.Observation)...)
			}
			text, err := template.Render(toolcall.Tools(t.Tools), chat, false)
			if failed = errors.Join(failed, err); failed != nil || !yield(text) {
				return
			}
		}
	}, l.Vocab, toolcall.SmallTokens)
	if err := errors.Join(failed, err); err != nil {
		return err
	}
	return toolcall.WriteSmall(dir, tok)
}

// newModel makes a model of random weights that speaks the tokens of a folder.
func newModel(size string, seed uint64, tokenizer string) (*lm.Engine, error) {
	codec, err := toolcall.OpenCodec(tokenizer)
	if err != nil {
		return nil, err
	}
	config := sizes[size]
	config.Vocab, config.EOS = codec.Size(), codec.Stops()
	return lm.New(config, seed, lm.Options{Full: true, Tokenizer: tokenizer})
}

// examples are the episodes as tokens, but for those that are longer than the model takes.
func examples(ctx context.Context, codec engine.Codec, most int, played []*envs.Trajectory, counts left) ([]sft.Example, error) {
	var out []sft.Example
	for _, t := range played {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		s, err := toolcall.NewSequence(codec, t)
		if err != nil {
			return nil, err
		}
		if len(s.Tokens) > most {
			counts[fmt.Sprintf("are longer than the %d tokens that the model takes", most)]++
			continue
		}
		out = append(out, sft.Example{Tokens: s.Tokens, Mask: s.Mask})
	}
	if len(out) == 0 {
		if len(counts) > 0 {
			return nil, fmt.Errorf("nothing to learn: of the episodes, %v", counts)
		}
		return nil, errors.New("nothing to learn: there are no episodes")
	}
	return out, nil
}

func (l *lessons) config(examples []sft.Example) (sft.Config, error) {
	train, err := l.split(len(examples))
	if err != nil {
		return sft.Config{}, err
	}
	steps := cmp.Or(l.Steps, sft.StepsOf(l.Epochs, train, l.Batch))
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
	decay := l.Schedule
	if decay == "constant" {
		decay = ""
	}
	return sft.Config{Train: examples[:train], Dev: examples[train:], Steps: steps, Batch: l.Batch, Seed: l.Seed, PassTokens: passTokens, Eval: save, Save: save,
		Optim:    engine.Optim{Rate: rate, Beta1: 0.9, Beta2: 0.95, Epsilon: 1e-8, WeightDecay: 0.01, Clip: 1},
		Schedule: sft.Schedule{Warmup: int(math.Round(l.Warmup * float64(steps))), Decay: decay}}, nil
}

// size sums up examples.
func size(examples []sft.Example) (tokens, learned, longest int) {
	for _, x := range examples {
		tokens += len(x.Tokens)
		longest = max(longest, len(x.Tokens))
		for _, m := range x.Mask {
			if m {
				learned++
			}
		}
	}
	return tokens, learned, longest
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

// parameters counts those of a model, and those of them, or of an adapter of that rank, that are trained.
func parameters(c lm.Config, rank int) (all, trained int) {
	for _, w := range c.Weights() {
		n := 1
		for _, d := range w.Shape {
			n *= d
		}
		all += n
	}
	if rank == 0 {
		return all, all
	}
	for _, l := range c.Linears() {
		trained += rank * (l.In + l.Out)
	}
	return all, trained
}

// timed tries a pass and says what all of them would take.
func timed(ctx context.Context, w io.Writer, e *lm.Engine, c sft.Config) error {
	var b engine.Batch
	for _, x := range c.Train[:min(c.Batch, len(c.Train))] {
		if len(b.Tokens) > 0 && (len(b.Tokens)+1)*len(x.Tokens) > c.PassTokens {
			break
		}
		b.Tokens, b.Mask = append(b.Tokens, x.Tokens), append(b.Mask, x.Mask)
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
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	fmt.Fprintf(w, "memory      %.1f GB\ntime        about %v, at %.0f tokens a second, by one pass of %d\n", float64(m.Sys)/1e9, (time.Duration(seconds) * time.Second).Round(time.Second), speed, n)
	return nil
}

// run trains and writes what comes of it.
func (l *lessons) run(cmd *cobra.Command, e *lm.Engine, c sft.Config, out string, asJSON bool) error {
	w := cmd.OutOrStdout()
	start := time.Now()
	step, done := trainBar(cmd.ErrOrStderr(), c.Steps)
	first := -1
	c.Progress = func(r sft.Report) {
		if first < 0 {
			first = r.Step
			if first > 0 && !asJSON {
				fmt.Fprintf(w, "going on after step %d\n", first)
			}
		}
		step(r)
		if !asJSON && r.Step > first && (r.Step%c.Eval == 0 || r.Step == c.Steps) {
			done()
			fmt.Fprintf(w, "step %d of %d, loss %.4f%s, %v\n", r.Step, c.Steps, *r.TrainLoss, devLoss(r), time.Since(start).Round(time.Second))
		}
	}
	r, err := sft.Train(cmd.Context(), e, c, out)
	done()
	if err != nil {
		if cmd.Context().Err() == nil {
			return err
		}
		if r.Steps == 0 || !saved(out, r.Step) {
			return interruption(fmt.Sprintf("and no checkpoint could be written: %v", err))
		}
		return interruption(fmt.Sprintf("after step %d of %d; to go on: mcpgym sft --resume %s", r.Step, r.Steps, out))
	}
	chosen := r.Step
	if r.Best != nil && r.Best.Step != r.Step {
		chosen = r.Best.Step
		if err := e.Restore(r.Best.Dir); err != nil {
			return err
		}
	}
	made := filepath.Join(out, modelDir)
	if l.LoRA > 0 {
		made = filepath.Join(out, adapterDir)
	}
	if err := e.Export(made); err != nil {
		return err
	}
	if asJSON {
		return printJSON(w, struct {
			Steps     int      `json:"steps"`
			Tokens    int      `json:"tokens"` // learned from
			TrainLoss *float64 `json:"train_loss"`
			DevLoss   *float64 `json:"dev_loss"`
			Step      int      `json:"step"` // that was written
			Path      string   `json:"path"`
			Seconds   float64  `json:"seconds"`
		}{r.Steps, r.Tokens, r.TrainLoss, r.DevLoss, chosen, made, time.Since(start).Seconds()})
	}
	best := ""
	if len(c.Dev) > 0 {
		best = ", where the dev loss was the least"
	}
	fmt.Fprintf(w, "%s is the model after step %d%s; curves are in %s\n", made, chosen, best, filepath.Join(out, "curves.png"))
	if l.LoRA > 0 {
		fmt.Fprintf(w, "try it: mcpgym eval %s --adapter %s --env ...\n", l.Model, made)
	} else {
		fmt.Fprintf(w, "try it: mcpgym eval %s --env ...\n", made)
	}
	return nil
}

func devLoss(r sft.Report) string {
	if r.DevLoss == nil {
		return ""
	}
	return fmt.Sprintf(", dev loss %.4f", *r.DevLoss)
}

func saved(out string, step int) bool {
	steps, err := checkpoints.Steps(out)
	return err == nil && slices.Contains(steps, step)
}

// trainBar shows on a terminal how far a run is.
func trainBar(w io.Writer, steps int) (step func(sft.Report), done func()) {
	f, ok := terminal(w)
	if !ok {
		return func(sft.Report) {}, func() {}
	}
	bar := progressbar.NewOptions(steps, progressbar.OptionSetDescription("train"), progressbar.OptionSetWriter(f), progressbar.OptionShowCount(),
		progressbar.OptionShowIts(), progressbar.OptionThrottle(100*time.Millisecond), progressbar.OptionClearOnFinish())
	return func(r sft.Report) {
		if r.TrainLoss != nil {
			bar.Describe(fmt.Sprintf("train, loss %.3f%s", *r.TrainLoss, devLoss(r)))
		}
		bar.Set(r.Step)
	}, func() { bar.Clear() }
}
