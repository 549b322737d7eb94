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

// Read reads the state of a checkpoint.
func Read(dir string, step int, state any) error {
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

// Write writes a checkpoint into dir, which exists: snapshot makes the folder that it is given. Where there is a checkpoint of the step
// its state is written anew, at once or not at all, and its snapshot stays.
func Write(dir string, step int, state any, snapshot func(dir string) error) error {
	if err := write(dir, step, state, snapshot); err != nil {
		return fmt.Errorf("write a checkpoint of step %d: %w", step, err)
	}
	return nil
}

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

// Prune removes all checkpoints of dir but those of the steps to keep.
func Prune(dir string, keep ...int) error {
	steps, err := Steps(dir)
	for _, s := range steps {
		if !slices.Contains(keep, s) {
			err = errors.Join(err, os.RemoveAll(folder(dir, s)))
		}
	}
	if err != nil {
		return fmt.Errorf("remove checkpoints: %w", err)
	}
	return nil
}
