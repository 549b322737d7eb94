package lm

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/mcpgym/mcpgym/policies/engine"
	"github.com/mcpgym/mcpgym/policies/lm/internal/checkpoint"
	"github.com/mcpgym/mcpgym/policies/toolcall"
)

var _ engine.Engine = (*Engine)(nil)

// speak reads the tokenizer and the chat template of a folder. Without them, or with a template that training cannot rely on, the
// engine takes and gives tokens alone.
func (e *Engine) speak(dir string) error {
	if _, err := os.Stat(filepath.Join(dir, "tokenizer.json")); dir == "" || errors.Is(err, os.ErrNotExist) {
		e.Codec = speechless{errors.New("the model has no tokenizer.json"), e}
		return nil
	}
	codec, err := toolcall.OpenCodec(dir)
	switch {
	case errors.Is(err, toolcall.ErrNotPrefix), errors.Is(err, toolcall.ErrNoTemplate):
		e.Codec = speechless{err, e}
	case err != nil:
		return err
	default:
		if n := codec.Size(); n > e.config.Vocab {
			return fmt.Errorf("%s: %d tokens, for a model with a vocabulary of %d", filepath.Join(dir, "tokenizer.json"), n, e.config.Vocab)
		}
		e.Codec = codec
	}
	e.tokenizer = dir
	return nil
}

// speechless is the codec of a model that has none.
type speechless struct {
	why error
	e   *Engine
}

func (s speechless) Open([]engine.Tool, []engine.Message) ([]int32, error) { return nil, s.why }
func (s speechless) Next(bool, []engine.Message) ([]int32, error)          { return nil, s.why }
func (s speechless) Turn(engine.Message) ([]int32, error)                  { return nil, s.why }
func (s speechless) Decode([]int32) string                                 { return "" }

// Stops are those that the model's files name.
func (s speechless) Stops() []int32 {
	if s.e.generation.EOS != nil {
		return s.e.generation.EOS
	}
	return s.e.config.EOS
}

// Export writes a new folder: the adapter, where the engine has one, else the model. See Merge for both in one.
func (e *Engine) Export(dir string) error {
	if e.adapter == nil {
		return e.Merge(dir, "")
	}
	a := *e.adapter
	for i := range e.blocks {
		for _, l := range e.blocks[i].all {
			if l.a != nil {
				a.Layers = append(a.Layers, checkpoint.AdapterLayer{Name: l.name, A: l.a.w, B: l.b.w})
			}
		}
	}
	if err := checkpoint.WriteAdapter(dir, e.config, a); err != nil {
		return fmt.Errorf("export the adapter: %w", err)
	}
	return nil
}

// Merge writes a new folder with the whole model, the adapter added to its weights, and the tokenizer. Numbers are stored as d, or as
// the model's own were where that is empty.
func (e *Engine) Merge(dir string, d DType) error {
	c := e.config
	c.DType = cmp.Or(d, c.DType)
	if err := checkpoint.WriteModel(dir, c, e.generation, e.merged(c.DType), e.tokenizer); err != nil {
		return fmt.Errorf("export the model: %w", err)
	}
	return nil
}

// Close does nothing: what the engine holds is memory.
func (e *Engine) Close() error { return nil }
