package files

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mcpgym/mcpgym/sandboxes"
)

// percentiles reports p50, p95 and p99 of what took so long, in milliseconds.
func percentiles(b *testing.B, what string, took []time.Duration) {
	slices.Sort(took)
	for _, p := range []int{50, 95, 99} {
		b.ReportMetric(float64(took[(len(took)-1)*p/100].Nanoseconds())/1e6, fmt.Sprintf("%s-p%d-ms", what, p))
	}
}

// benchDrivers runs a benchmark on this process and on a container.
func benchDrivers(b *testing.B, f func(*testing.B, driver)) {
	for _, d := range drivers {
		if d.name != "pipe" {
			b.Run(d.name, func(b *testing.B) {
				_, err := d.shared()
				d.there(b, err)
				f(b, d)
			})
		}
	}
}

// office is a tree of 50 files of 4 KiB in ten folders.
func office() Setup {
	s := Setup{Files: map[string]File{}}
	for i := range 50 {
		s.Files[fmt.Sprintf("room%d/shelf/file%02d.txt", i%10, i)] = File{Text: strings.Repeat(fmt.Sprintf("%015d\n", i), 256)}
	}
	return s
}

// BenchmarkLease has episodes begin twenty times a second, as a pool's users do that think between calls. The worlds are a
// seed, or hold their tree themselves: then a lease also compares the setups.
func BenchmarkLease(b *testing.B) { benchDrivers(b, benchmarkLease) }

func benchmarkLease(b *testing.B, d driver) {
	for _, c := range []struct {
		name string
		w    sandboxes.World
	}{{"seed", sandboxes.World{Seed: 1}}, {"setup", world(b, office())}} {
		b.Run(c.name, func(b *testing.B) {
			p, err := d.open(b.Context(), nil, func(sandboxes.World) (Setup, error) { return office(), nil }, 8)
			require.NoError(b, err)
			defer p.Close()
			p.Prefetch(slices.Repeat([]sandboxes.World{c.w}, 8)...)
			require.Eventually(b, func() bool { return p.Ready() == 8 }, 5*time.Second, time.Millisecond)
			tick := time.NewTicker(50 * time.Millisecond)
			defer tick.Stop()
			var leases, closes []time.Duration
			for b.Loop() {
				<-tick.C
				start := time.Now()
				box, err := p.Lease(b.Context(), c.w)
				leases = append(leases, time.Since(start))
				require.NoError(b, err)
				start = time.Now()
				require.NoError(b, box.Close())
				closes = append(closes, time.Since(start))
				p.Prefetch(c.w)
			}
			percentiles(b, "lease", leases)
			percentiles(b, "close", closes)
		})
	}
}

// BenchmarkCold makes and removes trees, as fast as it goes; none is made ahead.
func BenchmarkCold(b *testing.B) { benchDrivers(b, benchmarkCold) }

func benchmarkCold(b *testing.B, d driver) {
	p := d.provider(b, 1)
	w := world(b, office())
	for b.Loop() {
		box, err := p.Lease(b.Context(), w)
		require.NoError(b, err)
		require.NoError(b, box.Close())
	}
}

func BenchmarkCall(b *testing.B) { benchDrivers(b, benchmarkCall) }

func benchmarkCall(b *testing.B, d driver) {
	p := d.provider(b, 1)
	box, err := p.Lease(b.Context(), world(b, office()))
	require.NoError(b, err)
	for _, c := range []struct {
		tool string
		in   args
	}{
		{"read_text_file", args{"path": "room1/shelf/file01.txt"}}, {"list_directory", args{"path": "room1/shelf"}}, {"directory_tree", args{}}, {"search_files", args{"pattern": "**/*7.txt"}},
		{"get_file_info", args{"path": "room1/shelf/file01.txt"}}, {"write_file", args{"path": "room1/new.txt", "content": "some text\n"}},
		{"edit_file", args{"path": "room1/shelf/file01.txt", "edits": []edit{{"000000000000001\n000000000000001\n", ""}}}},
	} {
		data, err := json.Marshal(c.in)
		require.NoError(b, err)
		b.Run(c.tool, func(b *testing.B) {
			b.ReportAllocs()
			var calls []time.Duration
			for b.Loop() {
				start := time.Now()
				_, err := box.Session().Call(b.Context(), c.tool, data)
				calls = append(calls, time.Since(start))
				require.NoError(b, err)
			}
			percentiles(b, "call", calls)
		})
	}
}

func BenchmarkState(b *testing.B) {
	p := provider(b, 1)
	box, err := p.Lease(b.Context(), world(b, office()))
	require.NoError(b, err)
	call(b, box, "write_file", args{"path": "room1/new.txt", "content": "some text\n"})
	for b.Loop() {
		state(b, box)
	}
}

// BenchmarkStart starts a provider, and with it a container where it needs one, and leases the first tree.
func BenchmarkStart(b *testing.B) {
	benchDrivers(b, func(b *testing.B, d driver) {
		var starts, ends []time.Duration
		for b.Loop() {
			start := time.Now()
			p, err := d.open(b.Context(), nil, Decode, 1)
			require.NoError(b, err)
			_, err = p.Lease(b.Context(), world(b, desk()))
			require.NoError(b, err)
			starts = append(starts, time.Since(start))
			start = time.Now()
			require.NoError(b, p.Close())
			ends = append(ends, time.Since(start))
		}
		percentiles(b, "start", starts)
		percentiles(b, "end", ends)
	})
}

// BenchmarkEpisodes plays whole episodes, some at once: a lease, two calls, the state, the end.
func BenchmarkEpisodes(b *testing.B) {
	benchDrivers(b, func(b *testing.B, d driver) {
		for _, c := range []struct {
			name string
			s    Setup
			path string
			edit edit
		}{
			{"desk", desk(), "notes/may.txt", edit{"eggs", "flour"}}, {"office", office(), "room1/shelf/file01.txt", edit{"000000000000001\n000000000000001\n", ""}},
		} {
			read, change := asJSON(b, args{"path": c.path}), asJSON(b, args{"path": c.path, "edits": []edit{c.edit}})
			b.Run(c.name, func(b *testing.B) {
				p, err := d.open(b.Context(), nil, func(sandboxes.World) (Setup, error) { return c.s, nil }, 16)
				require.NoError(b, err)
				defer p.Close()
				b.SetParallelism(4)
				b.RunParallel(func(pb *testing.PB) {
					for pb.Next() {
						p.Prefetch(sandboxes.World{Seed: 1})
						box, err := p.Lease(b.Context(), sandboxes.World{Seed: 1})
						require.NoError(b, err)
						for tool, in := range map[string][]byte{"read_text_file": read, "edit_file": change} {
							_, err := box.Session().Call(b.Context(), tool, in)
							require.NoError(b, err)
						}
						state(b, box)
						require.NoError(b, box.Close())
					}
				})
				b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "episodes/s")
			})
		}
	})
}
