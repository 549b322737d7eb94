package postgres

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mcpgym/mcpgym/sandboxes"
)

// percentiles reports p50, p95 and p99 of what took so long, in milliseconds.
func percentiles(b *testing.B, what string, took []time.Duration) {
	slices.Sort(took)
	for _, p := range []int{50, 95, 99} {
		b.ReportMetric(float64(took[(len(took)-1)*p/100].Microseconds())/1000, fmt.Sprintf("%s-p%d-ms", what, p))
	}
}

// episode leases a world, runs one statement, reads the state and closes it; the times are of the first two.
func episode(b *testing.B, p sandboxes.Provider, sql string) (lease, first time.Duration) {
	start := time.Now()
	box, err := p.Lease(b.Context(), sandboxes.World{Seed: 1})
	lease = time.Since(start)
	require.NoError(b, err)
	start = time.Now()
	r := ask(b, box, sql)
	first = time.Since(start)
	require.False(b, r.IsError, r.Text)
	stateOf(b, box)
	require.NoError(b, box.Close())
	return lease, first
}

// BenchmarkPaced has episodes begin ten times a second, as a pool's users do that think between calls.
func BenchmarkPaced(b *testing.B) {
	p := provider(b, local(b), false, 4)
	world := sandboxes.World{Seed: 1}
	episode(b, p, "SELECT 1") // the template exists
	p.Prefetch(world, world, world, world)
	require.Eventually(b, func() bool { return p.Ready() == 4 }, 5*time.Second, time.Millisecond)
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	var leases, firsts []time.Duration
	for b.Loop() {
		<-tick.C
		l, f := episode(b, p, "UPDATE customers SET active = false WHERE id = 1")
		p.Prefetch(world)
		leases, firsts = append(leases, l), append(firsts, f)
	}
	percentiles(b, "lease", leases)
	percentiles(b, "first", firsts)
}

// BenchmarkWrite has four episodes at once, as fast as it goes; none is made ahead.
func BenchmarkWrite(b *testing.B) {
	p := provider(b, local(b), false, 1)
	episode(b, p, "SELECT 1")
	b.SetParallelism(2)
	b.ResetTimer()
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			episode(b, p, "UPDATE customers SET active = false WHERE id = 1")
		}
	})
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "episodes/s")
}

func BenchmarkRead(b *testing.B) {
	p := provider(b, local(b), true, 1)
	episode(b, p, "SELECT 1")
	var leases, firsts []time.Duration
	for b.Loop() {
		l, f := episode(b, p, "SELECT count(*) FROM customers WHERE NOT active")
		leases, firsts = append(leases, l), append(firsts, f)
	}
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "episodes/s")
	percentiles(b, "lease", leases)
	percentiles(b, "first", firsts)
}
