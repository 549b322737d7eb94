package sandboxes

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"
)

// Pool is a Provider that makes sandboxes before they are asked for, so that a lease costs microseconds whatever a world
// costs to make. One worker refills it: a second one takes its processor time from the episodes that run.
type Pool struct {
	id    Identity
	size  int
	open  func(context.Context, World) (Sandbox, error)
	stop  context.CancelFunc
	ctx   context.Context
	wake  chan struct{}
	ended chan struct{}

	mu     sync.Mutex
	want   []World              // announced, not yet made
	ready  map[string][]Sandbox // by world, made and not yet leased
	nready int
	making string        // the world that the worker makes now
	made   chan struct{} // closed when it is made or has failed; nil while the worker makes none
	leased map[*pooled]struct{}
}

// NewPool returns a pool that holds up to size sandboxes of the worlds announced by Prefetch. Worlds that were not
// announced, or are not ready, are made by Lease itself. A world that cannot be made ahead is dropped from the pool, and
// Lease reports why.
func NewPool(id Identity, size int, open func(context.Context, World) (Sandbox, error)) *Pool {
	ctx, stop := context.WithCancel(context.Background())
	p := &Pool{id: id, size: size, open: open, ctx: ctx, stop: stop, wake: make(chan struct{}, 1), ended: make(chan struct{}),
		ready: map[string][]Sandbox{}, leased: map[*pooled]struct{}{}}
	go p.refill()
	return p
}

func (p *Pool) refill() {
	defer close(p.ended)
	for {
		p.mu.Lock()
		var w World
		work := len(p.want) > 0 && p.nready < p.size && p.ctx.Err() == nil
		if work {
			w, p.want = p.want[0], p.want[1:]
			p.making, p.made = w.key(), make(chan struct{})
		}
		key := p.making
		p.mu.Unlock()
		if !work {
			select {
			case <-p.ctx.Done():
				return
			case <-p.wake:
				continue
			}
		}
		s, err := p.open(p.ctx, w)
		p.mu.Lock()
		if err == nil {
			p.ready[key] = append(p.ready[key], s)
			p.nready++
		}
		close(p.made)
		p.made = nil
		p.mu.Unlock()
	}
}

func (w World) key() string { return strconv.FormatUint(w.Seed, 10) + " " + string(w.Setup) } // a copy: setups can be large

// Lease takes a ready sandbox of the world, or makes one. Ready ones that have died meanwhile are closed.
func (p *Pool) Lease(ctx context.Context, w World) (Sandbox, error) {
	s, err := p.take(ctx, w)
	if err != nil {
		return nil, err
	}
	p.poke()
	if s == nil {
		if s, err = p.open(ctx, w); err != nil {
			if Interrupted(ctx, err) {
				return nil, err
			}
			return nil, NewFault(FaultLease, "lease", err)
		}
	}
	l := &pooled{Sandbox: s, pool: p}
	p.mu.Lock()
	closed := p.ctx.Err() != nil
	if !closed {
		p.leased[l] = struct{}{}
	}
	p.mu.Unlock()
	if closed {
		return nil, errors.Join(&Fault{Kind: FaultLease, Op: "lease", Msg: "the pool was closed meanwhile"}, s.Close())
	}
	return l, nil
}

// take returns a ready sandbox of a world, or nil where the caller has to make one. It waits for one that the worker has
// begun: nobody else may ever want it, and it would keep its place in the pool for ever.
func (p *Pool) take(ctx context.Context, w World) (Sandbox, error) {
	key := w.key()
	for {
		p.mu.Lock()
		if p.ctx.Err() != nil {
			p.mu.Unlock()
			return nil, &Fault{Kind: FaultLease, Op: "lease", Msg: "the pool is closed"}
		}
		if n := len(p.ready[key]); n > 0 {
			s := p.ready[key][n-1]
			if !AliveOf(s) {
				dead := p.bury()
				p.mu.Unlock()
				for _, s := range dead {
					_ = s.Close() // whatever is wrong with it, its world is gone
				}
				continue
			}
			p.ready[key] = p.ready[key][:n-1]
			p.nready--
			if n == 1 {
				delete(p.ready, key)
			}
			p.mu.Unlock()
			return s, nil
		}
		i := slices.IndexFunc(p.want, func(o World) bool { return o.Seed == w.Seed && bytes.Equal(o.Setup, w.Setup) })
		if i >= 0 { // made by the caller, so no longer wanted
			p.want = slices.Delete(p.want, i, i+1)
		}
		made := p.made
		if i >= 0 || made == nil || p.making != key {
			p.mu.Unlock()
			return nil, nil
		}
		p.mu.Unlock()
		select {
		case <-made:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// bury takes the dead from those that are ready: what has ended one has often ended others. The caller holds mu.
func (p *Pool) bury() (dead []Sandbox) {
	for key, ss := range p.ready {
		p.ready[key] = slices.DeleteFunc(ss, func(s Sandbox) bool {
			if AliveOf(s) {
				return false
			}
			dead = append(dead, s)
			return true
		})
		if len(p.ready[key]) == 0 {
			delete(p.ready, key)
		}
	}
	p.nready -= len(dead)
	return dead
}

// Prefetch queues worlds for the worker. It keeps at most four times the pool's size: what is announced too early is made
// by Lease.
func (p *Pool) Prefetch(worlds ...World) {
	p.mu.Lock()
	room := max(0, 4*p.size-len(p.want))
	p.want = append(p.want, worlds[:min(room, len(worlds))]...)
	p.mu.Unlock()
	p.poke()
}

func (p *Pool) poke() {
	select {
	case p.wake <- struct{}{}:
	default:
	}
}

// Identity returns what NewPool was given.
func (p *Pool) Identity() Identity { return p.id }

// Ready returns how many sandboxes wait to be leased.
func (p *Pool) Ready() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.nready
}

// Close ends the worker and closes every sandbox, leased ones too.
func (p *Pool) Close() error {
	p.stop()
	<-p.ended
	p.mu.Lock()
	var all []Sandbox
	for _, ss := range p.ready {
		all = append(all, ss...)
	}
	for l := range p.leased {
		all = append(all, l.Sandbox)
	}
	p.ready, p.nready, p.leased, p.want = map[string][]Sandbox{}, 0, map[*pooled]struct{}{}, nil
	p.mu.Unlock()
	var errs []error
	for _, s := range all {
		errs = append(errs, s.Close())
	}
	return errors.Join(errs...)
}

// pooled is a leased sandbox that leaves its pool's books when it is closed.
type pooled struct {
	Sandbox
	pool *Pool
}

func (l *pooled) Close() error {
	l.pool.mu.Lock()
	delete(l.pool.leased, l)
	l.pool.mu.Unlock()
	return l.Sandbox.Close()
}

func (l *pooled) Probe(ctx context.Context, ask []Question) ([]Answer, error) {
	return ProbeOf(ctx, l.Sandbox, ask)
}

func (l *pooled) State(ctx context.Context) (State, error) { return StateOf(ctx, l.Sandbox) }

// AliveOf asks a sandbox, or what it holds, whether it can still be used: by its method Alive() bool, where it has one. It is
// asked before anybody uses it; what cannot die while it waits needs no such method.
func AliveOf(v any) bool {
	a, ok := v.(interface{ Alive() bool })
	return !ok || a.Alive()
}

// ProbeOf asks a sandbox, or anything else that may be a Prober. Where it is none the error wraps errors.ErrUnsupported.
func ProbeOf(ctx context.Context, v any, ask []Question) ([]Answer, error) {
	if p, ok := v.(Prober); ok {
		return p.Probe(ctx, ask)
	}
	return nil, fmt.Errorf("probe a world that answers no questions: %w", errors.ErrUnsupported)
}

// StateOf reads the state of a sandbox, or of anything else that may be a Stater. Where it is none the error wraps
// errors.ErrUnsupported.
func StateOf(ctx context.Context, v any) (State, error) {
	if s, ok := v.(Stater); ok {
		return s.State(ctx)
	}
	return State{}, fmt.Errorf("read the state of a world that shows none: %w", errors.ErrUnsupported)
}
