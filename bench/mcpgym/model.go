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

// openModel opens a model that can hold a conversation, and with tools one that calls them. An error says what there is instead.
func openModel(dir string, o lm.Options, tools bool) (*lm.Engine, error) {
	if _, err := os.Stat(filepath.Join(dir, "config.json")); errors.Is(err, fs.ErrNotExist) {
		has := func(name string) bool { return exists(filepath.Join(dir, name)) }
		switch {
		case has(filepath.Join(modelDir, "config.json")):
			return nil, fmt.Errorf("%s is a run: its model is %s", dir, filepath.Join(dir, modelDir))
		case has(filepath.Join(adapterDir, "adapter_config.json")):
			return nil, fmt.Errorf("%s is a run: name the model that it trained an adapter for, and --adapter %s", dir, filepath.Join(dir, adapterDir))
		case has(runFile):
			return nil, fmt.Errorf("%s is a run that has not come to its end: go on with it by mcpgym sft --resume %s", dir, dir)
		case has(trainFile):
			return nil, fmt.Errorf("%s is a run that has not come to its end: go on with it by mcpgym train --resume %s", dir, dir)
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
