package bench

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mcpgym/mcpgym/envs"
	"github.com/mcpgym/mcpgym/policies"
	"github.com/mcpgym/mcpgym/sandboxes/confine"
	"github.com/mcpgym/mcpgym/sandboxes/container"
	"github.com/mcpgym/mcpgym/sandboxes/lint"
	"github.com/mcpgym/mcpgym/sandboxes/postgres"
)

var update = flag.Bool("update", false, "play the baselines and write their records and the board")

const results = "../results"

// reproduce executes an environment's part of the leaderboard: the baselines are played anew and must give the same bytes,
// every other record is replayed in fresh sandboxes, and what is generated from the records must be what the repository
// holds. On drivers other than the first a sample of each record is replayed, or all of it with MCPGYM_SOAK set. With
// -update the baselines' records and the generated files are written first, and each record names the drivers on which it
// was then replayed in full.
func reproduce(t *testing.T, name string) {
	if testing.Short() {
		t.Skip("the whole board takes a minute under the race detector; without -short it is played")
	}
	entry, err := FindEnv(name)
	require.NoError(t, err)
	if *update {
		record(t, entry)
	}
	paths, err := filepath.Glob(filepath.Join(results, Dir(name), "*"))
	require.NoError(t, err)
	paths = slices.DeleteFunc(paths, func(p string) bool { return !IsRecord(p) })
	for i, driver := range entry.Drivers {
		t.Run("driver="+driver, func(t *testing.T) {
			spec := openOrSkip(t, entry, driver)
			require.Equal(t, slices.Sorted(slices.Values(entry.Splits)), spec.SplitNames())
			for _, path := range paths {
				r, problems, err := Load(path)
				require.NoError(t, err)
				row := fmt.Sprintf("policy=%s/split=%s", r.Policy, r.Split)
				if r.Training != nil {
					row += fmt.Sprintf("/seed=%d", r.Training.Seed)
				}
				t.Run(row, func(t *testing.T) {
					require.Equal(t, r.Path(results), path, "a record lies where its header says")
					report(t, path, problems)
					if i == 0 && playedAnew(t, spec, r) {
						return
					}
					some := r
					if i > 0 && os.Getenv("MCPGYM_SOAK") == "" {
						some = r.first(sample)
					}
					found, err := Replay(t.Context(), spec, some, runtime.NumCPU(), nil)
					require.NoError(t, err)
					report(t, path, found)
				})
			}
			if i == 0 {
				weights(t, spec)
			}
		})
	}
	for _, split := range entry.recorded() {
		for _, b := range Baselines() {
			require.FileExists(t, Header{Env: name, Policy: b.Name, Split: split}.Path(results), "no record of a baseline: go test ./bench -update")
		}
	}
	find := committed
	if *update {
		find = allResults
	}
	all, err := find()
	require.NoError(t, err)
	for path, data := range all.texts {
		have, err := os.ReadFile(path)
		if err != nil || string(have) != string(data) {
			t.Errorf("%s is not what the records give: go test ./bench -update (%v)", path, err)
		}
	}
	for path := range all.pictures {
		require.FileExists(t, path)
	}
	for _, b := range all.boards {
		if b.Env != name {
			continue
		}
		fmt.Fprintf(t.Output(), "\n%s, split %s\n%s", b.Env, b.Split, b.Show(false))
		for _, row := range append(b.Rows, b.Withheld...) {
			switch row.Policy {
			case "oracle":
				require.Equal(t, 1.0, row.Pass1, "gold must succeed on every task")
			case "noop":
				require.Zero(t, row.Passes, "doing nothing must not succeed")
				for _, task := range row.Tally.Tasks {
					require.LessOrEqual(t, *task.MeanReward, 0.0, task.Task)
				}
			}
			require.Zero(t, row.Void, "%s: a sandbox failed", row.Policy)
		}
	}
}

// generated is what all records give.
type generated struct {
	texts, pictures map[string][]byte
	boards          []Board
}

func allResults() (g generated, err error) {
	records, err := LoadResults(results)
	if err != nil {
		return g, err
	}
	if g.texts, g.pictures, err = Generated(results, records); err != nil {
		return g, err
	}
	g.boards, err = Boards(records)
	return g, err
}

// committed is what the records give as long as no test writes any.
var committed = sync.OnceValues(allResults)

// playedAnew plays a record's policy again, if it is a baseline, and says whether that gives the record, byte for byte: the
// same actions in fresh sandboxes, and all that came of them. On another major version of a program it does not try.
func playedAnew(t *testing.T, spec envs.Spec, r *Record) bool {
	k := slices.IndexFunc(Baselines(), func(b Baseline) bool { return b.Name == r.Policy })
	if k < 0 || !maps.Equal(r.Identity, spec.Sandboxes.Identity()) {
		return false
	}
	anew := playBaseline(t, spec, Baselines()[k], r.Split, r.Tasks)
	anew.Provenance = r.Provenance
	want, err := r.Marshal()
	require.NoError(t, err)
	got, err := anew.Marshal()
	require.NoError(t, err)
	if string(got) == string(want) {
		return true
	}
	t.Errorf("playing %s anew gives another record; if that is meant, go test ./bench -update", r.Policy)
	return false
}

// sample is how many tasks of a record are replayed on drivers other than the first.
const sample = 10

// first is the record of the first tasks alone.
func (r *Record) first(tasks int) *Record {
	some := *r
	some.Tasks = min(tasks, r.Tasks)
	some.Episodes = slices.DeleteFunc(slices.Clone(r.Episodes), func(e Episode) bool { return e.Index >= some.Tasks })
	return &some
}

func report(t *testing.T, path string, problems []Problem) {
	for _, p := range problems {
		if p.Soft {
			t.Logf("%s: %s", path, p)
		} else {
			t.Errorf("%s: %s", path, p)
		}
	}
}

// openOrSkip opens an environment until the test ends. Where what the driver needs is missing the test is skipped, unless
// MCPGYM_REQUIRE names it.
func openOrSkip(tb testing.TB, entry Entry, driver string) envs.Spec {
	spec, err := entry.Open(tb.Context(), driver)
	needs := ""
	switch {
	case errors.Is(err, postgres.ErrNotInstalled):
		needs = "postgres"
	case errors.Is(err, container.ErrNoEngine), errors.Is(err, container.ErrNoImage):
		needs = "docker"
	case errors.Is(err, confine.ErrUnavailable), errors.Is(err, lint.ErrNoLinters):
		needs = "lint"
	}
	if needs != "" && !slices.Contains(strings.Split(os.Getenv("MCPGYM_REQUIRE"), ","), needs) {
		tb.Skip(err)
	}
	require.NoError(tb, err)
	tb.Cleanup(func() { require.NoError(tb, spec.Sandboxes.Close()) })
	return spec
}

// record plays the baselines on an environment's first driver, replays them on the others that can be had, and writes their
// records and what is generated.
func record(t *testing.T, entry Entry) {
	var made []*Record
	for i, driver := range entry.Drivers {
		t.Run("record on "+driver, func(t *testing.T) {
			spec := openOrSkip(t, entry, driver)
			if i == 0 {
				for _, split := range entry.recorded() {
					for _, b := range Baselines() {
						r := playBaseline(t, spec, b, split, entry.Tasks)
						r.Provenance = provenance(t, driver, r)
						made = append(made, r)
					}
				}
				return
			}
			for _, r := range made {
				found, err := Replay(t.Context(), spec, r, runtime.NumCPU(), nil)
				require.NoError(t, err)
				report(t, r.Policy, found)
				r.Provenance.Drivers = append(r.Provenance.Drivers, driver)
			}
		})
	}
	require.False(t, t.Failed(), "the drivers differ: nothing is written")
	for _, r := range made {
		require.NoError(t, r.Save(r.Path(results)))
	}
	require.NoError(t, WriteResults(results))
}

// Of the baselines only random differs from trial to trial.
func playBaseline(t *testing.T, spec envs.Spec, b Baseline, split string, tasks int) *Record {
	r, err := Run(t.Context(), Config{Spec: spec, Policy: b.Policy, Name: b.Name, Split: split, Tasks: tasks, Trials: 1, Seed: 1, Parallel: runtime.NumCPU()})
	require.NoError(t, err)
	return r
}

func provenance(t *testing.T, driver string, r *Record) Provenance {
	out, err := exec.Command("git", "rev-parse", "--short=12", "HEAD").Output()
	require.NoError(t, err, "records name the commit they were made at")
	return Provenance{Commit: strings.TrimSpace(string(out)), Date: time.Now().UTC().Format(time.DateOnly), Drivers: []string{driver},
		Command: fmt.Sprintf("go run ./bench/mcpgym run --env %s --policy %s --split %s --episodes %d --seed %d", r.Env, r.Policy, r.Split, r.Tasks, r.Seed)}
}

// latencies reports the percentiles of durations as benchmark metrics, in microseconds.
func latencies(b *testing.B, what string, d []time.Duration) {
	if len(d) == 0 {
		return
	}
	slices.Sort(d)
	for _, q := range []int{50, 95, 99} {
		b.ReportMetric(float64(d[min(len(d)-1, len(d)*q/100)].Nanoseconds())/1e3, fmt.Sprintf("p%d-%s-us", q, what))
	}
}

// speed measures an environment on each driver: whole episodes of the oracle, and in them the latencies of reset and step;
// replay; and for live sandboxes the lease and the first call after it.
func speed(b *testing.B, name string) {
	entry, err := FindEnv(name)
	require.NoError(b, err)
	if len(entry.Drivers) == 1 {
		speedOn(b, entry, entry.Drivers[0])
		return
	}
	for _, driver := range entry.Drivers {
		b.Run("driver="+driver, func(b *testing.B) { speedOn(b, entry, driver) })
	}
}

// paced measures leases that are asked for ten times a second, as agents do that think between calls: the next world is
// announced when one is leased, so that the pool can make it in time. What a world is cloned from is there.
func paced(b *testing.B, spec envs.Spec, tasks []envs.Task) {
	const leases = 100
	var lease, first []time.Duration
	for _, t := range tasks {
		box, err := spec.Sandboxes.Lease(b.Context(), t.World)
		require.NoError(b, err)
		require.NoError(b, box.Close())
	}
	for b.Loop() {
		spec.Sandboxes.Prefetch(tasks[0].World)
		tick := time.NewTicker(100 * time.Millisecond)
		for i := range leases {
			<-tick.C
			start := time.Now()
			box, err := spec.Sandboxes.Lease(b.Context(), tasks[i%len(tasks)].World)
			lease = append(lease, time.Since(start))
			require.NoError(b, err)
			spec.Sandboxes.Prefetch(tasks[(i+1)%len(tasks)].World)
			call := tasks[i%len(tasks)].Solution[0].Calls[0]
			start = time.Now()
			_, err = box.Session().Call(b.Context(), call.Name, call.Arguments)
			first = append(first, time.Since(start))
			require.NoError(b, err)
			require.NoError(b, box.Close())
		}
		tick.Stop()
	}
	latencies(b, "lease", lease)
	latencies(b, "first-call", first)
}

// hurried measures how long leases wait that are asked for as fast as the sandboxes can be made.
func hurried(b *testing.B, spec envs.Spec, tasks []envs.Task) {
	var wait []time.Duration
	spec.Sandboxes.Prefetch(tasks[0].World)
	for i := 0; b.Loop(); i++ {
		start := time.Now()
		box, err := spec.Sandboxes.Lease(b.Context(), tasks[i%len(tasks)].World)
		wait = append(wait, time.Since(start))
		require.NoError(b, err)
		spec.Sandboxes.Prefetch(tasks[(i+1)%len(tasks)].World)
		require.NoError(b, box.Close())
	}
	latencies(b, "pool-wait", wait)
}

func speedOn(b *testing.B, entry Entry, driver string) {
	spec := openOrSkip(b, entry, driver)
	tasks := make([]envs.Task, entry.Tasks)
	for i := range tasks {
		tasks[i] = spec.Splits["test"].Task(i)
	}
	if len(entry.Drivers) > 1 {
		b.Run("paced", func(b *testing.B) { paced(b, spec, tasks) })
		b.Run("hurried", func(b *testing.B) { hurried(b, spec, tasks) })
	}
	b.Run("lease", func(b *testing.B) {
		b.ReportAllocs()
		var took []time.Duration
		for i := 0; b.Loop(); i++ {
			start := time.Now()
			s, err := spec.Sandboxes.Lease(b.Context(), tasks[i%len(tasks)].World)
			took = append(took, time.Since(start))
			require.NoError(b, err)
			require.NoError(b, s.Close())
		}
		latencies(b, "lease", took)
	})
	b.Run("episode", func(b *testing.B) {
		b.ReportAllocs()
		env, err := envs.New(spec)
		require.NoError(b, err)
		defer env.Close()
		var resets, steps []time.Duration
		for i := 0; b.Loop(); i++ {
			task := tasks[i%len(tasks)]
			start := time.Now()
			_, err := env.Reset(b.Context(), task)
			resets = append(resets, time.Since(start))
			require.NoError(b, err)
			for _, a := range task.Solution {
				start := time.Now()
				_, err := env.Step(b.Context(), a)
				steps = append(steps, time.Since(start))
				require.NoError(b, err)
			}
		}
		latencies(b, "reset", resets)
		latencies(b, "step", steps)
		b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "episodes/s")
	})
	b.Run("episodes=64", func(b *testing.B) { // that many at once
		var mu sync.Mutex
		var all []time.Duration
		b.SetParallelism(64 / runtime.GOMAXPROCS(0))
		b.ResetTimer()
		var next atomic.Int64
		b.RunParallel(func(pb *testing.PB) {
			env, err := envs.New(spec)
			if err != nil {
				b.Error(err)
				return
			}
			defer env.Close()
			var steps []time.Duration
			for pb.Next() {
				task := tasks[int(next.Add(1))%len(tasks)]
				if _, err := env.Reset(b.Context(), task); err != nil {
					b.Error(err)
					return
				}
				for _, a := range task.Solution {
					start := time.Now()
					if _, err := env.Step(b.Context(), a); err != nil {
						b.Error(err)
						return
					}
					steps = append(steps, time.Since(start))
				}
			}
			mu.Lock()
			all = append(all, steps...)
			mu.Unlock()
		})
		b.ReportMetric(float64(len(all))/b.Elapsed().Seconds(), "steps/s")
		latencies(b, "step", all)
	})
	b.Run("replay", func(b *testing.B) {
		r, err := Run(context.Background(), Config{Spec: spec, Policy: policies.Oracle{}, Name: "oracle", Split: "test", Tasks: 2 * entry.Tasks, Trials: 1, Seed: 1, Parallel: runtime.NumCPU()})
		require.NoError(b, err)
		for b.Loop() {
			problems, err := Replay(b.Context(), spec, r, runtime.NumCPU(), nil)
			require.NoError(b, err)
			require.Empty(b, problems)
		}
		b.ReportMetric(2*float64(entry.Tasks*b.N)/b.Elapsed().Seconds(), "episodes/s")
	})
}
