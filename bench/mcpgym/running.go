package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"time"

	"github.com/spf13/cobra"

	"github.com/mcpgym/mcpgym/policies/checkpoints"
	"github.com/mcpgym/mcpgym/policies/lm"
)

// The files of a training run, beside those of the trainer.
const (
	runFile      = "run.json"   // the settings of sft, as they were given
	trainFile    = "train.json" // those of train
	goldFile     = "gold.jsonl" // a record of the episodes that sft learns from, where they were played for it
	tokenizerDir = "tokenizer"  // of a new model
	modelDir     = "model"      // what comes of it: a model
	adapterDir   = "adapter"    // or an adapter
)

// passTokens bounds the memory of a pass.
const passTokens = 8192

// running is what the commands have in common that train, sft and train.
type running struct {
	command  string // its name
	settings string // the file that has them

	out, resume string
	dry, asJSON bool
}

func (r *running) flags(c *cobra.Command, dry string) {
	f := c.Flags()
	f.StringVar(&r.out, "out", "", "folder for the run, which must not exist")
	f.StringVar(&r.resume, "resume", "", "folder of a run to go on with, by its own settings")
	f.BoolVar(&r.dry, "dry-run", false, dry)
	f.BoolVar(&r.asJSON, "json", false, "print one line of JSON")
}

// modelFlags adds the choice of the model to train.
func modelFlags(c *cobra.Command, model *string, rank *int) {
	c.Flags().StringVar(model, "model", "", "folder of the model to train, of the Hugging Face layout")
	c.Flags().IntVar(rank, "lora-rank", 0, "rank of the adapter to train; 0 trains the model whole")
}

// trainable is how a model is opened to be trained: by an adapter, or with a rank of 0 whole.
func trainable(rank int, alpha float64, seed uint64) lm.Options {
	if rank == 0 {
		return lm.Options{Full: true}
	}
	return lm.Options{LoRA: &lm.LoRA{Rank: rank, Alpha: alpha, Seed: seed}}
}

// resumed reads the settings of the run to go on with, which is the folder from now on.
func (r *running) resumed(cmd *cobra.Command, settings any) error {
	set := 1
	if cmd.Flags().Changed("json") {
		set++
	}
	if cmd.Flags().NFlag() > set {
		return errors.New("only --json goes with --resume: the run goes on with its own settings")
	}
	name := filepath.Join(r.resume, r.settings)
	data, err := os.ReadFile(name)
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("no run to go on with in %s: it has no %s", r.resume, r.settings)
	}
	if err != nil {
		return fmt.Errorf("resume: %w", err)
	}
	if err := json.Unmarshal(data, settings); err != nil {
		return fmt.Errorf("resume: read %s: %w", name, err)
	}
	for _, made := range []string{modelDir, adapterDir} {
		if made := filepath.Join(r.resume, made); exists(made) {
			return fmt.Errorf("the run in %s has come to its end: what came of it is in %s", r.resume, made)
		}
	}
	r.out = r.resume
	return nil
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

// check says what is wrong with the folder of a new run.
func (r *running) check() error {
	switch {
	case r.dry:
		return nil
	case r.out == "":
		return errors.New("want --out, a folder for the run")
	case exists(filepath.Join(r.out, r.settings)):
		return fmt.Errorf("%s has a run already: go on with it by --resume %s, or name another folder", r.out, r.out)
	case exists(r.out):
		return fmt.Errorf("%s exists already: name another folder", r.out)
	}
	return writable(filepath.Clean(r.out))
}

// begin makes the folder. The settings come after what else is put into it: with them it is a run.
func (r *running) begin(settings any, put func() error) error {
	data, err := json.MarshalIndent(settings, "", "  ")
	if err != nil {
		return err
	}
	if err := os.Mkdir(r.out, 0o755); err != nil {
		return err
	}
	if err := put(); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(r.out, r.settings), append(data, '\n'), 0o644)
}

// progress gives what to call after each step with what there is to say of it: a bar says that on a terminal, and after every so many
// steps a line, which has room for more. What was said before a resumption is not said again. done clears the bar.
func (r *running) progress(cmd *cobra.Command, steps, every int) (step func(n int, status, more string), done func()) {
	w, start, begun := cmd.OutOrStdout(), time.Now(), false
	bar, done := stepBar(cmd.ErrOrStderr(), steps)
	return func(n int, status, more string) {
		bar(n, "train"+status)
		switch resumed := !begun && n > 0; {
		case r.asJSON:
		case resumed:
			fmt.Fprintf(w, "going on after step %d\n", n)
		case status+more != "" && (n%every == 0 || n == steps):
			done()
			fmt.Fprintf(w, "step %d of %d%s%s, %v\n", n, steps, status, more, time.Since(start).Round(time.Second))
		}
		begun = true
	}, done
}

// stepBar shows on a terminal how far a run is.
func stepBar(w io.Writer, steps int) (step func(n int, what string), done func()) {
	f, ok := terminal(w)
	if !ok {
		return func(int, string) {}, func() {}
	}
	bar := newBar(f, "train", steps)
	return func(n int, what string) {
		bar.Describe(what)
		bar.Set(n)
	}, func() { bar.Clear() }
}

// stopped is the error of a run that ended by err: where that is an interrupt, it says how to go on.
func (r *running) stopped(ctx context.Context, err error, steps int) error {
	if ctx.Err() == nil {
		return err
	}
	saved, _ := checkpoints.Steps(r.out)
	if len(saved) == 0 {
		return interruption(fmt.Sprintf("and no checkpoint could be written: %v", err))
	}
	return interruption(fmt.Sprintf("after step %d of %d; to go on: mcpgym %s --resume %s", saved[len(saved)-1], steps, r.command, r.out))
}

// makes is the folder of what comes of a run.
func makes(rank int) string {
	if rank > 0 {
		return adapterDir
	}
	return modelDir
}

// tell says what came of a run, of which step that is and why, where the final state is if that is another, and how to try it.
func (r *running) tell(w io.Writer, made, final string, step int, why, model, env string) {
	fmt.Fprintf(w, "%s is the model after step %d%s; curves are in %s\n", made, step, why, filepath.Join(r.out, "curves.png"))
	if final != "" {
		fmt.Fprintf(w, "%s is the one after the last step\n", final)
	}
	if filepath.Base(made) == adapterDir {
		made = model + " --adapter " + made
	}
	fmt.Fprintf(w, "try it: mcpgym eval %s --env %s\n", made, env)
}

// memory is what the process has taken from the machine, in GB.
func memory() float64 {
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return float64(m.Sys) / 1e9
}
