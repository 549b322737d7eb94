package f32

import (
	"errors"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestParallel(t *testing.T) {
	for _, p := range []int{1, 2, 5} {
		procs(t, p)
		for _, n := range []int{-1, 0, 1, 2, 7, 100, 1001} {
			for _, grain := range []int{0, 1, 10, 5000} {
				seen := make([]atomic.Int32, max(n, 0))
				Parallel(n, grain, func(lo, hi int) {
					if hi < n && hi-lo < grain || lo >= hi {
						t.Errorf("%d to %d of %d, grain %d", lo, hi, n, grain)
					}
					for i := lo; i < hi; i++ {
						seen[i].Add(1)
					}
				})
				for i := range seen {
					require.EqualValues(t, 1, seen[i].Load())
				}
			}
		}
	}
}

// TestParallelRuns fails where all is left to the caller: two calls wait for each other.
func TestParallelRuns(t *testing.T) {
	procs(t, 2)
	for range 100 {
		var both sync.WaitGroup
		both.Add(2)
		Parallel(2, 1, func(lo, hi int) {
			both.Done()
			both.Wait()
		})
	}
}

func TestParallelNested(t *testing.T) {
	procs(t, 4)
	var sum atomic.Int64
	var outside sync.WaitGroup
	for range 8 {
		outside.Go(func() {
			Parallel(50, 1, func(lo, hi int) {
				for i := lo; i < hi; i++ {
					Parallel(20, 1, func(lo, hi int) {
						Parallel(hi-lo, 1, func(lo, hi int) { sum.Add(int64(hi - lo)) })
					})
				}
			})
		})
	}
	outside.Wait()
	require.EqualValues(t, 8*50*20, sum.Load())
}

func TestParallelPanics(t *testing.T) {
	for _, p := range []int{1, 3} {
		procs(t, p)
		broken := errors.New("broken")
		for range 50 {
			var running atomic.Int32
			require.PanicsWithValue(t, broken, func() {
				Parallel(100, 1, func(lo, hi int) {
					running.Add(1)
					defer running.Add(-1)
					if lo <= 42 && 42 < hi {
						panic(broken)
					}
				})
			})
			require.Zero(t, running.Load())
		}
		var n atomic.Int32 // the workers are still there
		Parallel(100, 1, func(lo, hi int) { n.Add(int32(hi - lo)) })
		require.EqualValues(t, 100, n.Load())
	}
}
