// Package curves keeps what a training run measures: a line of JSON for each step, an event file for TensorBoard, and pictures.
package curves

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// The files of a run. What is in Metrics depends on the run alone, so that equal runs have equal files. Values of the clock, whose
// keys begin with Clock, are in Times instead. The event file has both.
const (
	Metrics = "metrics.jsonl"
	Times   = "times.jsonl"
	Clock   = "time/"
)

// Log is an open folder of a run. It is for one goroutine at a time.
type Log struct {
	metrics, times, events *os.File
	last                   int
}

// Open opens a run's folder, which it makes if need be, to log the steps from next on: 0 for a new run, or the one after that of the
// checkpoint which a run goes on from. Whatever the folder has of these steps, and a line that was cut off, is dropped; of the event
// file TensorBoard is told so.
func Open(dir string, next int) (*Log, error) {
	if next < 0 {
		return nil, fmt.Errorf("log from step %d on", next)
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, fmt.Errorf("open the log: %w", err)
	}
	l := &Log{last: next}
	var errs [3]error
	l.metrics, errs[0] = openLines(filepath.Join(dir, Metrics), next)
	l.times, errs[1] = openLines(filepath.Join(dir, Times), next)
	l.events, errs[2] = newEvents(dir, next, time.Now())
	if err := errors.Join(errs[:]...); err != nil {
		l.Close()
		return nil, fmt.Errorf("open the log: %w", err)
	}
	return l, nil
}

// Log writes the values of a step: a name each, like train/loss. What was not measured is left out. Steps never decrease. When Log
// returns, what it wrote outlives the process.
func (l *Log) Log(step int, values map[string]float64) error {
	if step < l.last {
		return fmt.Errorf("log step %d after %d", step, l.last)
	}
	if _, ok := values["step"]; ok {
		return errors.New("log a value called step")
	}
	if len(values) == 0 {
		return nil
	}
	l.last = step
	keys := slices.Sorted(maps.Keys(values))
	var metrics, times []string
	for _, k := range keys {
		if strings.HasPrefix(k, Clock) {
			times = append(times, k)
		} else {
			metrics = append(metrics, k)
		}
	}
	_, err := l.events.Write(scalars(step, keys, values, time.Now()))
	if err := errors.Join(err, writeLine(l.metrics, step, metrics, values), writeLine(l.times, step, times, values)); err != nil {
		return fmt.Errorf("log step %d: %w", step, err)
	}
	return nil
}

// Sync puts what was logged on the disk. A run calls it before it writes a checkpoint.
func (l *Log) Sync() error {
	if err := errors.Join(l.metrics.Sync(), l.times.Sync(), l.events.Sync()); err != nil {
		return fmt.Errorf("log: %w", err)
	}
	return nil
}

// Close closes the files.
func (l *Log) Close() error {
	var errs []error
	for _, f := range []*os.File{l.metrics, l.times, l.events} {
		if f != nil {
			errs = append(errs, f.Close())
		}
	}
	return errors.Join(errs...)
}

// Entry is what was logged of a step. Not measured is not in Values.
type Entry struct {
	Step   int
	Values map[string]float64
}

// Read reads a file of lines. One that is being written is no error: its last line is left out while that has no end.
func Read(path string) ([]Entry, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	lines, _, err := parse(data)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return lines, nil
}

// parse gives the lines and where each ends.
func parse(data []byte) (lines []Entry, ends []int, err error) {
	for at := 0; ; {
		n := bytes.IndexByte(data[at:], '\n')
		if n < 0 {
			return lines, ends, nil
		}
		line, err := parseLine(data[at : at+n])
		if err != nil {
			return nil, nil, fmt.Errorf("line %d: %w", len(lines)+1, err)
		}
		at += n + 1
		lines, ends = append(lines, line), append(ends, at)
	}
}

// openLines opens a file of lines behind the last one before next.
func openLines(path string, next int) (*os.File, error) {
	data, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	lines, ends, err := parse(data)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	size := 0
	for i, l := range lines {
		if l.Step >= next {
			break
		}
		size = ends[i]
	}
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o644)
	if err != nil {
		return nil, err
	}
	if err := f.Truncate(int64(size)); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

func writeLine(f *os.File, step int, keys []string, values map[string]float64) error {
	if len(keys) == 0 {
		return nil
	}
	line := fmt.Appendf(nil, `{"step":%d`, step)
	for _, k := range keys {
		name, err := json.Marshal(k)
		if err != nil {
			return err
		}
		value, err := json.Marshal(number(values[k]))
		if err != nil {
			return err
		}
		line = fmt.Appendf(line, ",%s:%s", name, value)
	}
	_, err := f.Write(append(line, "}\n"...)) // at once: a line is there or cut off, never mixed with another
	return err
}

func parseLine(text []byte) (Entry, error) {
	var values map[string]number
	if err := json.Unmarshal(text, &values); err != nil {
		return Entry{}, err
	}
	step, ok := values["step"]
	if !ok || step < 0 || float64(step) != math.Trunc(float64(step)) {
		return Entry{}, errors.New("no step")
	}
	delete(values, "step")
	l := Entry{Step: int(step), Values: map[string]float64{}}
	for k, v := range values {
		l.Values[k] = float64(v)
	}
	return l, nil
}

// number is written as JSON has it, or where it is not finite as a word: those of JSON for protocol buffers, which Python's float and
// pandas know too.
type number float64

var words = map[string]float64{"NaN": math.NaN(), "Infinity": math.Inf(1), "-Infinity": math.Inf(-1)}

func (n number) MarshalJSON() ([]byte, error) {
	switch v := float64(n); {
	case math.IsNaN(v):
		return []byte(`"NaN"`), nil
	case math.IsInf(v, 1):
		return []byte(`"Infinity"`), nil
	case math.IsInf(v, -1):
		return []byte(`"-Infinity"`), nil
	default:
		return json.Marshal(v)
	}
}

func (n *number) UnmarshalJSON(text []byte) error {
	var word string
	if json.Unmarshal(text, &word) == nil { // also null, which is no number either
		v, ok := words[word]
		if !ok {
			return fmt.Errorf("the number %q", word)
		}
		*n = number(v)
		return nil
	}
	return json.Unmarshal(text, (*float64)(n))
}
