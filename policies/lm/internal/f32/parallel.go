package f32

import (
	"runtime"
	"sync"
	"sync/atomic"
)

// Parallel calls f for consecutive ranges that together are [0, n), each at least grain long but for the last, on up to GOMAXPROCS
// goroutines, and returns when all calls have. Where the ranges begin and end depends on GOMAXPROCS. Parallel may be called from
// within f. A panic of f, the first where there are several, is raised again in the caller once no call is running any more.
func Parallel(n, grain int, f func(lo, hi int)) {
	if n <= 0 {
		return
	}
	procs := runtime.GOMAXPROCS(0)
	// A few ranges a worker, as workers do not run equally fast.
	size := max(grain, (n+4*procs-1)/(4*procs), 1)
	if procs == 1 || size >= n {
		f(0, n)
		return
	}
	chunks := (n + size - 1) / size
	j := jobs.Get().(*job)
	j.f, j.n, j.size, j.panicked = f, n, size, nil
	j.next.Store(0)
	j.left.Store(int64(chunks))
	helpers := min(procs, chunks) - 1
	j.refs.Store(int64(1 + helpers))
	ready(helpers)
	for range helpers {
		select {
		case offers <- j:
		default: // so many offers are waiting already that nobody is idle
			j.refs.Add(-1)
		}
	}
	j.run()
	<-j.done
	p := j.panicked
	j.f = nil // offers may lie about for a while
	j.release()
	if p != nil {
		panic(p.value)
	}
}

// job is one call of Parallel. The caller works on it like any worker, so it needs no worker to make progress and calls can nest.
type job struct {
	f        func(lo, hi int)
	n, size  int
	next     atomic.Int64  // the next chunk that nobody has taken
	left     atomic.Int64  // chunks that have not ended
	done     chan struct{} // gets a value when left reaches 0
	refs     atomic.Int64  // the caller and the offers: the last to let go puts the job back
	mu       sync.Mutex
	panicked *panicked
}

type panicked struct{ value any }

var (
	jobs    = sync.Pool{New: func() any { return &job{done: make(chan struct{}, 1)} }}
	offers  = make(chan *job, 256)
	workers atomic.Int64
)

// ready starts workers until there are n. They stay, waiting for offers.
func ready(n int) {
	for w := workers.Load(); w < int64(n); w = workers.Load() {
		if workers.CompareAndSwap(w, w+1) {
			go func() {
				for j := range offers {
					j.run()
					j.release()
				}
			}()
		}
	}
}

func (j *job) run() {
	for {
		lo := int(j.next.Add(1)-1) * j.size
		if lo >= j.n {
			return
		}
		j.call(lo, min(lo+j.size, j.n))
	}
}

func (j *job) call(lo, hi int) {
	defer func() {
		if v := recover(); v != nil {
			j.mu.Lock()
			if j.panicked == nil {
				j.panicked = &panicked{v}
			}
			j.mu.Unlock()
		}
		if j.left.Add(-1) == 0 {
			j.done <- struct{}{}
		}
	}()
	j.f(lo, hi)
}

func (j *job) release() {
	if j.refs.Add(-1) == 0 {
		jobs.Put(j)
	}
}
