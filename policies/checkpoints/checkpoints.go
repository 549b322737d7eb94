// Package checkpoints keeps those of a training run: folders named by the step, each with an engine's snapshot and with the state of
// whatever trains it. A checkpoint has its name only when it is whole, and on the disk.
package checkpoints

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/mcpgym/mcpgym/policies/curves"
)

const prefix = "step-"

func folder(dir string, step int) string {
	return filepath.Join(dir, fmt.Sprintf("%s%06d", prefix, step))
}

// Engine is where the snapshot of a checkpoint is, for an engine's Restore.
func Engine(dir string, step int) string { return filepath.Join(folder(dir, step), "engine") }

// Steps are those that dir has checkpoints of, in order. There are none where dir does not exist.
func Steps(dir string) (steps []int, err error) {
	files, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	for _, f := range files {
		if name, ok := strings.CutPrefix(f.Name(), prefix); ok {
			if step, err := strconv.Atoi(name); err == nil {
				steps = append(steps, step)
			}
		}
	}
	slices.Sort(steps)
	return steps, err
}

// Mark is what the state of every run has, which embeds it.
type Mark struct {
	Run  string             // tells runs apart
	Line map[string]float64 // what was measured of the state's step; nil once it was logged
}

// Open goes to the latest checkpoint of dir, if there is one: state, of which mark is a part, is read from it, and restore is given the
// folder of its snapshot. The log is open for what comes next. That the checkpoint is not of the run is an error.
func Open(dir, run string, state any, mark *Mark, restore func(dir string) error) (*curves.Log, error) {
	steps, err := Steps(dir)
	if err != nil {
		return nil, err
	}
	*mark = Mark{run, map[string]float64{}}
	next := 0
	if n := len(steps); n > 0 {
		next = steps[n-1]
		*mark = Mark{}
		if err := read(dir, next, state); err != nil {
			return nil, err
		}
		if mark.Run != run {
			return nil, fmt.Errorf("%s has a checkpoint of a run with other settings or data", dir)
		}
		if err := restore(Engine(dir, next)); err != nil {
			return nil, err
		}
		if mark.Line == nil {
			next++
		}
	}
	return curves.Open(dir, next)
}

// Save puts the log on the disk and writes a checkpoint into dir, which exists: snapshot makes the folder that it is given. Then it
// removes all others but those of the steps to keep.
func Save(dir string, log *curves.Log, step int, state any, snapshot func(dir string) error, keep ...int) error {
	if err := log.Sync(); err != nil {
		return err
	}
	if err := write(dir, step, state, snapshot); err != nil {
		return fmt.Errorf("write a checkpoint of step %d: %w", step, err)
	}
	if err := prune(dir, append(keep, step)); err != nil {
		return fmt.Errorf("remove checkpoints: %w", err)
	}
	return nil
}

// read reads the state of a checkpoint.
func read(dir string, step int, state any) error {
	name := filepath.Join(folder(dir, step), "state.json")
	data, err := os.ReadFile(name)
	if err == nil {
		err = json.Unmarshal(data, state)
	}
	if err != nil {
		return fmt.Errorf("read the checkpoint %s: %w", name, err)
	}
	return nil
}

// write writes a checkpoint. Where there is one of the step its state is written anew, at once or not at all, and its snapshot stays.
func write(dir string, step int, state any, snapshot func(dir string) error) error {
	to := folder(dir, step)
	if _, err := os.Stat(to); err == nil {
		return writeState(to, state)
	}
	tmp := filepath.Join(dir, ".checkpoint") // one that was left is of a process that was killed
	if err := errors.Join(os.RemoveAll(tmp), os.Mkdir(tmp, 0o755)); err != nil {
		return err
	}
	if err := snapshot(filepath.Join(tmp, "engine")); err != nil {
		return err
	}
	if err := writeState(tmp, state); err != nil {
		return err
	}
	return errors.Join(os.Rename(tmp, to), sync(dir))
}

func writeState(dir string, state any) error {
	data, err := json.Marshal(state)
	if err != nil {
		return err
	}
	tmp := filepath.Join(dir, ".state.json")
	if err := os.WriteFile(tmp, append(data, '\n'), 0o644); err != nil {
		return err
	}
	if err := sync(tmp); err != nil {
		return err
	}
	return errors.Join(os.Rename(tmp, filepath.Join(dir, "state.json")), sync(dir))
}

// sync puts a file or a folder's list of files on the disk.
func sync(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}

func prune(dir string, keep []int) error {
	steps, err := Steps(dir)
	for _, s := range steps {
		if !slices.Contains(keep, s) {
			err = errors.Join(err, os.RemoveAll(folder(dir, s)))
		}
	}
	return err
}
