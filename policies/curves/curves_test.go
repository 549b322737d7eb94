package curves

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// log writes a step of a run whose values depend on the step alone, but for the clock's.
func log(t *testing.T, l *Log, step int, clock float64) {
	t.Helper()
	v := map[string]float64{"train/loss": 1 / float64(step+1), "time/seconds": clock}
	if step%3 == 0 {
		v["dev/loss"] = 3
	}
	require.NoError(t, l.Log(step, v))
}

func steps(t *testing.T, dir string, next, end int, clock float64) {
	t.Helper()
	l, err := Open(dir, next)
	require.NoError(t, err)
	for i := next; i < end; i++ {
		log(t, l, i, clock)
	}
	require.NoError(t, l.Sync())
	require.NoError(t, l.Close())
}

func read(t *testing.T, path ...string) string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(path...))
	require.NoError(t, err)
	return string(data)
}

func TestLines(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "new")
	l, err := Open(dir, 0)
	require.NoError(t, err)
	require.NoError(t, l.Log(0, nil))
	require.NoError(t, l.Log(0, map[string]float64{"dev/loss": 2.5, "time/seconds": 0.25}))
	require.NoError(t, l.Log(7, map[string]float64{"b": math.NaN(), "a": math.Inf(1), "c": math.Inf(-1), "d\"": 1e-9, "e": 1e30, "f": -0.1}))
	require.ErrorContains(t, l.Log(6, map[string]float64{"a": 1}), "step 6 after 7")
	require.ErrorContains(t, l.Log(8, map[string]float64{"step": 1}), "called step")
	want := `{"step":0,"dev/loss":2.5}
{"step":7,"a":"Infinity","b":"NaN","c":"-Infinity","d\"":1e-9,"e":1e+30,"f":-0.1}
`
	require.Equal(t, want, read(t, dir, Metrics), "before it is closed")
	require.Equal(t, "{\"step\":0,\"time/seconds\":0.25}\n", read(t, dir, Times))
	require.NoError(t, l.Close())

	entries, err := Read(filepath.Join(dir, Metrics))
	require.NoError(t, err)
	require.Len(t, entries, 2)
	require.Equal(t, Entry{0, map[string]float64{"dev/loss": 2.5}}, entries[0])
	require.Equal(t, 7, entries[1].Step)
	v := entries[1].Values
	require.True(t, math.IsNaN(v["b"]))
	require.Equal(t, []float64{math.Inf(1), math.Inf(-1), 1e-9, 1e30, -0.1}, []float64{v["a"], v["c"], v["d\""], v["e"], v["f"]})
	require.Len(t, v, 6)
}

// A run that was stopped after any step, or in the middle of a line, has in the end the lines of one that was not.
func TestResume(t *testing.T) {
	whole := t.TempDir()
	steps(t, whole, 0, 10, 1)
	require.Equal(t, 10, strings.Count(read(t, whole, Metrics), "\n"))
	for _, next := range []int{0, 1, 6, 10} {
		dir := t.TempDir()
		steps(t, dir, 0, 10, 1)
		for _, name := range []string{Metrics, Times} {
			f, err := os.OpenFile(filepath.Join(dir, name), os.O_APPEND|os.O_WRONLY, 0)
			require.NoError(t, err)
			_, err = f.WriteString(`{"step":10,"train/l`)
			require.NoError(t, err)
			require.NoError(t, f.Close())
		}
		steps(t, dir, next, 10, 1)
		require.Equal(t, read(t, whole, Metrics), read(t, dir, Metrics), "from %d", next)
		require.Equal(t, read(t, whole, Times), read(t, dir, Times), "from %d", next)
	}
	slow := t.TempDir()
	steps(t, slow, 0, 10, 5)
	require.Equal(t, read(t, whole, Metrics), read(t, slow, Metrics), "the clock is elsewhere")
}

func TestOpenRefuses(t *testing.T) {
	_, err := Open(t.TempDir(), -1)
	require.Error(t, err)
	for _, text := range []string{"nonsense\n", "{}\n", "[]\n", "{\"step\":-1}\n", "{\"step\":1.5}\n", "{\"step\":1,\"a\":null}\n", "{\"step\":1,\"a\":\"x\"}\n",
		"{\"step\":1}\n\n"} {
		path := filepath.Join(t.TempDir(), Metrics)
		require.NoError(t, os.WriteFile(path, []byte(text), 0o644))
		_, err := Open(filepath.Dir(path), 5)
		require.ErrorContains(t, err, "line ", text)
		require.Equal(t, text, read(t, path), "it is left alone")
	}
}

// The bytes were written by the RecordWriter of Python's tensorboard 2.21 from its own Event messages.
func TestEventBytes(t *testing.T) {
	want, err := hex.DecodeString("1800000000000000a37f4b220900001040fc54d9411a0d627261696e2e4576656e743a32338d2fe9" +
		"100000000000000095fbfe180900001040fc54d94110ad023a020801cb79b93b" +
		"3200000000000000241956ec0900001040fc54d94110ad022a240a0f0a086465762f6c6f737315000020400a110a0a747261696e2f6c6f7373150000807f739ba72b")
	require.NoError(t, err)
	now := time.UnixMilli(1700000000250)
	f, err := newEvents(t.TempDir(), 301, now)
	require.NoError(t, err)
	_, err = f.Write(scalars(301, []string{"dev/loss", "train/loss"}, map[string]float64{"train/loss": math.Inf(1), "dev/loss": 2.5}, now))
	require.NoError(t, err)
	require.NoError(t, f.Close())
	require.Equal(t, want, []byte(read(t, f.Name())))
}

// Each time that a run goes on it has an event file of its own, which comes after those before it.
func TestEventFiles(t *testing.T) {
	dir := t.TempDir()
	steps(t, dir, 0, 6, 1)
	steps(t, dir, 4, 6, 1)
	steps(t, dir, 5, 6, 1)
	names, err := filepath.Glob(filepath.Join(dir, "events.out.tfevents.*"))
	require.NoError(t, err)
	require.Len(t, names, 3)
	require.True(t, slices.IsSorted(names))
	for i, scalars := range []int{6, 2, 1} {
		n := 0
		for data := []byte(read(t, names[i])); len(data) > 0; n++ {
			size := binary.LittleEndian.Uint64(data)
			require.Equal(t, record(data[12:12+size]), data[:16+size])
			data = data[16+size:]
		}
		require.Equal(t, 2+scalars, n, "the version, the start, and a record a step")
	}
	require.Contains(t, read(t, names[0]), "time/seconds")
	require.False(t, bytes.Equal([]byte(read(t, names[1])), []byte(read(t, names[2]))))
}
