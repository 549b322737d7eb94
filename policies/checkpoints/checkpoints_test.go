package checkpoints

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/mcpgym/mcpgym/policies/curves"
)

// snapshot writes a folder as an engine does.
func snapshot(text string) func(string) error {
	return func(dir string) error {
		if err := os.Mkdir(dir, 0o755); err != nil {
			return err
		}
		return os.WriteFile(filepath.Join(dir, "weights"), []byte(text), 0o644)
	}
}

func weights(t *testing.T, dir string, step int) string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(Engine(dir, step), "weights"))
	require.NoError(t, err)
	return string(data)
}

func steps(t *testing.T, dir string) []int {
	t.Helper()
	s, err := Steps(dir)
	require.NoError(t, err)
	return s
}

func TestCheckpoints(t *testing.T) {
	dir := t.TempDir()
	require.Empty(t, steps(t, filepath.Join(dir, "none")))
	for _, step := range []int{10, 2, 1234567} {
		require.NoError(t, write(dir, step, step, snapshot("of the first")))
	}
	require.NoError(t, os.Mkdir(filepath.Join(dir, "step-x"), 0o755))
	require.Equal(t, []int{2, 10, 1234567}, steps(t, dir))

	require.NoError(t, write(dir, 10, 11, func(string) error { return errors.New("it is there") }))
	var state int
	require.NoError(t, read(dir, 10, &state))
	require.Equal(t, 11, state)
	require.Equal(t, "of the first", weights(t, dir, 10))
	require.ErrorIs(t, read(dir, 3, &state), os.ErrNotExist)

	require.NoError(t, prune(dir, []int{10, 99}))
	require.Equal(t, []int{10}, steps(t, dir))
	require.DirExists(t, filepath.Join(dir, "step-x"))
}

// What was not written whole is no checkpoint, and in nobody's way.
func TestBroken(t *testing.T) {
	dir := t.TempDir()
	broken := errors.New("disk full")
	err := write(dir, 4, 1, func(to string) error { return errors.Join(snapshot("half")(to), broken) })
	require.ErrorIs(t, err, broken)
	require.ErrorContains(t, write(dir, 4, func() {}, snapshot("whole")), "unsupported type")
	require.Empty(t, steps(t, dir))
	require.NoError(t, write(dir, 5, 1, snapshot("whole")))
	require.Equal(t, "whole", weights(t, dir, 5))
	require.Equal(t, []int{5}, steps(t, dir))
	require.NoDirExists(t, filepath.Join(dir, ".checkpoint"))
}

// state is as a run's.
type state struct {
	Mark
	Step int
}

// A run goes on where its latest checkpoint was written, and the log from there.
func TestOpen(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "run")
	open := func(run string) (s state, from string) {
		log, err := Open(dir, run, &s, &s.Mark, func(d string) error { from = d; return nil })
		require.NoError(t, err)
		t.Cleanup(func() { log.Close() })
		return s, from
	}
	s, from := open("a")
	require.Equal(t, state{Mark: Mark{"a", map[string]float64{}}}, s)
	require.Empty(t, from)

	log, err := curves.Open(dir, 0)
	require.NoError(t, err)
	defer log.Close()
	for s.Step = range 4 {
		require.NoError(t, log.Log(s.Step, map[string]float64{"x": 1}))
		require.NoError(t, Save(dir, log, s.Step, s, snapshot("weights"), 1))
	}
	require.Equal(t, []int{1, 3}, steps(t, dir))
	logged := func() (n int) {
		entries, err := curves.Read(filepath.Join(dir, curves.Metrics))
		require.NoError(t, err)
		return len(entries)
	}
	s.Line, s.Step = nil, 3
	require.NoError(t, Save(dir, log, 3, s, snapshot("others")))
	require.Equal(t, []int{3}, steps(t, dir))
	got, from := open("a")
	require.Equal(t, s, got)
	require.Equal(t, Engine(dir, 3), from)
	require.Equal(t, 4, logged(), "the line of its step is there")
	s.Line = map[string]float64{"x": 2}
	require.NoError(t, Save(dir, log, 3, s, snapshot("others")))
	got, _ = open("a")
	require.Equal(t, s, got)
	require.Equal(t, 3, logged(), "it is logged anew")

	require.ErrorContains(t, Save(dir, log, 9, s, func(string) error { return errors.New("full") }), "write a checkpoint of step 9: full")
	_, err = Open(dir, "b", &s, &s.Mark, func(string) error { t.Error("restored"); return nil })
	require.ErrorContains(t, err, "other settings")
	gone := errors.New("gone")
	_, err = Open(dir, "a", &s, &s.Mark, func(string) error { return gone })
	require.ErrorIs(t, err, gone)
	require.NoError(t, os.WriteFile(filepath.Join(folder(dir, 3), "state.json"), []byte("{}"), 0o644))
	_, err = Open(dir, "a", &s, &s.Mark, func(string) error { return nil })
	require.ErrorContains(t, err, "other settings", "one that does not say of which")
}
