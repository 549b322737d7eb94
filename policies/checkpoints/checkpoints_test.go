package checkpoints

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
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
		require.NoError(t, Write(dir, step, step, snapshot("of the first")))
	}
	require.NoError(t, os.Mkdir(filepath.Join(dir, "step-x"), 0o755))
	require.Equal(t, []int{2, 10, 1234567}, steps(t, dir))

	require.NoError(t, Write(dir, 10, 11, func(string) error { return errors.New("it is there") }))
	var state int
	require.NoError(t, Read(dir, 10, &state))
	require.Equal(t, 11, state)
	require.Equal(t, "of the first", weights(t, dir, 10))
	require.ErrorIs(t, Read(dir, 3, &state), os.ErrNotExist)

	require.NoError(t, Prune(dir, 10, 99))
	require.Equal(t, []int{10}, steps(t, dir))
	require.DirExists(t, filepath.Join(dir, "step-x"))
}

// What was not written whole is no checkpoint, and in nobody's way.
func TestBroken(t *testing.T) {
	dir := t.TempDir()
	broken := errors.New("disk full")
	err := Write(dir, 4, 1, func(to string) error { return errors.Join(snapshot("half")(to), broken) })
	require.ErrorIs(t, err, broken)
	require.ErrorContains(t, err, "step 4")
	require.ErrorContains(t, Write(dir, 4, func() {}, snapshot("whole")), "unsupported type")
	require.Empty(t, steps(t, dir))
	require.NoError(t, Write(dir, 5, 1, snapshot("whole")))
	require.Equal(t, "whole", weights(t, dir, 5))
	require.Equal(t, []int{5}, steps(t, dir))
	require.NoDirExists(t, filepath.Join(dir, ".checkpoint"))
}
