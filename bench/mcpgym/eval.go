package main

import (
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/mcpgym/mcpgym/policies/engine"
	"github.com/mcpgym/mcpgym/policies/lm"
	"github.com/mcpgym/mcpgym/policies/toolcall"
)

// openModel opens a model that can hold a conversation, and with tools one that calls them. An error says what there is instead.
func openModel(dir string, o lm.Options, tools bool) (*lm.Engine, error) {
	if _, err := os.Stat(filepath.Join(dir, "config.json")); errors.Is(err, fs.ErrNotExist) {
		has := func(name string) bool { _, err := os.Stat(filepath.Join(dir, name)); return err == nil }
		switch {
		case has(filepath.Join(modelDir, "config.json")):
			return nil, fmt.Errorf("%s is a run: its model is %s", dir, filepath.Join(dir, modelDir))
		case has(runFile):
			return nil, fmt.Errorf("%s is a run that has not come to its end: go on with it by mcpgym sft --resume %s", dir, dir)
		case has("adapter_config.json"):
			return nil, fmt.Errorf("%s is an adapter: name the model that it was trained on, and --adapter %s", dir, dir)
		}
	}
	e, err := lm.Open(dir, o)
	if err != nil {
		return nil, err
	}
	var offered []engine.Tool
	if tools {
		offered = []engine.Tool{{Name: "look"}}
	}
	if _, err := e.Open(offered, []engine.Message{{Role: "user", Text: "hello"}}); err != nil {
		return nil, errors.Join(fmt.Errorf("open the model %s: %w", dir, err), e.Close())
	}
	return e, nil
}

// modelName is how a model is called without a name: as its folder, or for that of a run as the run.
func modelName(dir string) string {
	if abs, err := filepath.Abs(dir); err == nil {
		dir = abs
	}
	if filepath.Base(dir) == modelDir {
		dir = filepath.Dir(dir)
	}
	return filepath.Base(dir)
}

// speaking is a model and how it is sampled.
type speaking struct {
	adapter     string
	temperature float64
	maxTokens   int
}

func (s *speaking) flags(c *cobra.Command) {
	f := c.Flags()
	f.StringVar(&s.adapter, "adapter", "", "folder of an adapter, in the layout of PEFT, that was trained on the model")
	f.Float64Var(&s.temperature, "temperature", 0, "of sampling; 0 takes the likeliest token")
	f.IntVar(&s.maxTokens, "max-tokens", 512, "tokens of a turn")
}

func (s *speaking) check() error {
	if !(s.temperature >= 0) || math.IsInf(s.temperature, 0) {
		return fmt.Errorf("--temperature is %v, want 0 or more", s.temperature)
	}
	return positive(flagValue{"max-tokens", s.maxTokens})
}

func (s *speaking) open(dir string, tools bool) (*lm.Engine, engine.Request, error) {
	e, err := openModel(dir, lm.Options{Adapter: s.adapter}, tools)
	return e, engine.Request{Temperature: s.temperature, MaxTokens: s.maxTokens}, err
}

func evalCommand() *cobra.Command {
	var p playing
	var s speaking
	var name string
	c := &cobra.Command{
		Use: "eval CHECKPOINT", Short: "Play a trained model in an environment", Args: cobra.ExactArgs(1),
		Long:    "Eval plays as run does, by what a model in a folder of the Hugging Face layout says. Many episodes at once share its work.",
		Example: "  mcpgym eval runs/weather/model --env Weather-v0 --split test --episodes 200",
		RunE: func(cmd *cobra.Command, args []string) (err error) {
			if err := errors.Join(p.check(), s.check()); err != nil {
				return err
			}
			model, sampling, err := s.open(args[0], true)
			if err != nil {
				return err
			}
			defer func() { err = errors.Join(err, model.Close()) }()
			command := fmt.Sprintf("eval %s --env %s --temperature %g --max-tokens %d", args[0], p.env, s.temperature, s.maxTokens)
			if s.adapter != "" {
				command += " --adapter " + s.adapter
			}
			if name == "" {
				name = modelName(args[0])
			}
			return p.play(cmd, toolcall.Policy{Engine: model, Sampling: sampling}, name, command)
		},
	}
	p.flags(c, 64)
	s.flags(c)
	c.Flags().StringVar(&name, "name", "", "name of the policy (default that of the folder)")
	return c
}
