package lm

import (
	"bytes"
	"errors"
	"fmt"
	"slices"

	jsonv2 "github.com/go-json-experiment/json"

	"github.com/mcpgym/mcpgym/policies/lm/internal/checkpoint"
)

// snapshotState is what a snapshot says besides its tensors.
type snapshotState struct {
	Config  Config
	Scale   float64 // of the adapter; 0 without one
	Version int
}

func (e *Engine) snapshotState() snapshotState {
	s := snapshotState{Config: e.config, Version: e.version}
	if e.adapter != nil {
		s.Scale = e.adapter.Scale()
	}
	return s
}

// Snapshot writes what is trained, its moments and Version into a new folder. Gradients that were added up since the last Step are
// not in it.
func (e *Engine) Snapshot(dir string) error {
	if len(e.trained) == 0 {
		return fmt.Errorf("snapshot: %w", errNothingTrained)
	}
	if err := checkpoint.WriteSnapshot(dir, e.snapshotState(), e.values.tensors(e.trained)); err != nil {
		return fmt.Errorf("snapshot: %w", err)
	}
	return nil
}

// tensors names the weights and their moments.
func (s *optimState) tensors(trained []*tensor) []checkpoint.Tensor {
	var out []checkpoint.Tensor
	at := 0
	for _, t := range trained {
		end := at + t.size()
		out = append(out, checkpoint.Tensor{Name: t.name, Shape: t.shape, F32: s.w[at:end]},
			checkpoint.Tensor{Name: t.name + ".m", Shape: t.shape, F32: s.m[at:end]},
			checkpoint.Tensor{Name: t.name + ".v", Shape: t.shape, F32: s.v[at:end]})
		at = end
	}
	return out
}

// Restore reads what Snapshot wrote into an engine of the same model that trains the same weights, which then goes on bit for bit.
// Gradients that were added up are forgotten. Where there is an error nothing has changed.
func (e *Engine) Restore(dir string) (err error) {
	if len(e.trained) == 0 {
		return fmt.Errorf("restore: %w", errNothingTrained)
	}
	var state snapshotState
	file, err := checkpoint.ReadSnapshot(dir, &state)
	if err != nil {
		return fmt.Errorf("restore: %w", err)
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	want := e.snapshotState()
	want.Version = state.Version
	if same, err := sameJSON(state, want); err != nil {
		return fmt.Errorf("restore: %w", err)
	} else if !same {
		return fmt.Errorf("restore: %s is of another model or adapter", dir)
	}
	if state.Version < 0 {
		return fmt.Errorf("restore: %s has the version %d", dir, state.Version)
	}
	next := optimState{w: make([]float32, len(e.values.w)), m: make([]float32, len(e.values.w)), v: make([]float32, len(e.values.w))}
	tensors := next.tensors(e.trained)
	if n := len(file.Tensors()); n != len(tensors) {
		return fmt.Errorf("restore: %s has %d tensors, not %d", dir, n, len(tensors))
	}
	for _, t := range tensors {
		from, err := file.Read(t.Name)
		if err != nil {
			return fmt.Errorf("restore: %w", err)
		}
		if !slices.Equal(from.Shape, t.Shape) || from.F32 == nil {
			return fmt.Errorf("restore: %s in %s is %v, not float32 of %v", t.Name, dir, from.Shape, t.Shape)
		}
		copy(t.F32, from.F32)
	}
	copy(e.values.w, next.w)
	copy(e.values.m, next.m)
	copy(e.values.v, next.v)
	clear(e.values.g)
	e.version = state.Version
	e.changes++
	return nil
}

// sameJSON compares two values by what is written of them, where a slice that is nil is an empty one.
func sameJSON(a, b any) (bool, error) {
	x, err := jsonv2.Marshal(a)
	if err != nil {
		return false, err
	}
	y, err := jsonv2.Marshal(b)
	return bytes.Equal(x, y), err
}
