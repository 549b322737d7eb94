package lm

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"sync"

	"github.com/mcpgym/mcpgym/policies/engine"
	"github.com/mcpgym/mcpgym/policies/lm/internal/f32"
)

// sampler answers requests. All that there are at a time go through the model together, a round after the other: one token each of
// those that are being continued, and many of those whose prompt is still to be read. Tokens that have been through the model after the
// same ones before, for another request or an earlier turn, do not go through it again: eight episodes of a group that all begin alike
// cost what one does until they part.
type sampler struct {
	mu      sync.Mutex
	waiting []*stream // that have come and are not in the work yet
	running bool

	// Of the goroutine that is running.
	pages pages
	of    int       // the changes of the weights that the pages are of
	rows  []row     // of the round: tokens that go through the model
	heads []*stream // of the round: those that are given a token
	bufs  [sampleBufs][]float32
}

// stream is a request that is being answered.
type stream struct {
	ctx      context.Context
	r        engine.Request
	tokens   []int32 // the prompt, and the sample so far
	done     int     // tokens that are in pages
	pages    []*page
	rng      *rand.Rand
	logProbs []float32
	finish   string
	err      error
	each     chan int32 // of the tokens, if the request wants them; it holds all there may be
	ended    chan struct{}
}

// row is a token that goes through the model.
type row struct {
	s        *stream
	position int
}

func (r row) page() *page { return r.s.pages[r.position/pageSize] }

const (
	maxStreams = 256 // that are continued at a time
	maxRows    = 512 // that go through the model in a round
)

// Generate samples a continuation. It ends with "length" where the model takes no more tokens.
func (e *Engine) Generate(ctx context.Context, r engine.Request) (engine.Sample, error) {
	if err := e.checkRequest(&r); err != nil {
		return engine.Sample{}, fmt.Errorf("generate: %w", err)
	}
	if err := ctx.Err(); err != nil {
		return engine.Sample{}, err
	}
	s := &stream{ctx: ctx, r: r, tokens: slices.Grow(slices.Clone(r.Prompt), r.MaxTokens), rng: rand.New(rand.NewPCG(r.Seed, 0)), ended: make(chan struct{})}
	if r.Each != nil {
		s.each = make(chan int32, r.MaxTokens)
	}
	e.sampler.mu.Lock()
	e.sampler.waiting = append(e.sampler.waiting, s)
	if !e.sampler.running {
		e.sampler.running = true
		go e.sample()
	}
	e.sampler.mu.Unlock()
	if s.each != nil {
		for token := range s.each {
			r.Each(token)
		}
	}
	<-s.ended
	if s.err != nil {
		return engine.Sample{}, s.err
	}
	return engine.Sample{Tokens: s.tokens[len(r.Prompt):], LogProbs: s.logProbs, Finish: s.finish, Version: e.version}, nil
}

func (e *Engine) checkRequest(r *engine.Request) error {
	switch {
	case len(r.Prompt) == 0:
		return errors.New("an empty prompt")
	case len(r.Prompt) >= e.config.MaxPositions:
		return fmt.Errorf("a prompt of %d tokens, for a model that takes %d: %w", len(r.Prompt), e.config.MaxPositions, engine.ErrTooLong)
	case r.MaxTokens < 1:
		return fmt.Errorf("a sample of at most %d tokens", r.MaxTokens)
	case !(r.Temperature >= 0) || math.IsInf(r.Temperature, 0):
		return fmt.Errorf("a temperature of %v", r.Temperature)
	case r.TopK < 0:
		return fmt.Errorf("top k of %d", r.TopK)
	case !(r.TopP >= 0 && r.TopP <= 1):
		return fmt.Errorf("top p of %v", r.TopP)
	case !(r.MinP >= 0 && r.MinP <= 1):
		return fmt.Errorf("min p of %v", r.MinP)
	}
	for i, t := range r.Prompt {
		if t < 0 || int(t) >= e.config.Vocab {
			return fmt.Errorf("the prompt has the token %d at %d, of a vocabulary of %d", t, i, e.config.Vocab)
		}
	}
	if r.Stops == nil {
		r.Stops = e.Stops()
	}
	r.MaxTokens = min(r.MaxTokens, e.config.MaxPositions-len(r.Prompt))
	return nil
}

// sample runs until there is nothing to do.
func (e *Engine) sample() {
	s := &e.sampler
	var active []*stream
	for {
		s.mu.Lock()
		n := min(len(s.waiting), maxStreams-len(active))
		active = append(active, s.waiting[:n]...)
		s.waiting = slices.Delete(s.waiting, 0, n)
		if len(active) == 0 {
			s.running = false
			s.mu.Unlock()
			return
		}
		s.mu.Unlock()
		if s.pages.known == nil || s.of != e.changes { // what was read with other weights is of no use
			s.pages.size = e.pageFloats()
			s.pages.clear()
			s.of = e.changes
		}
		for _, t := range active {
			if err := t.ctx.Err(); err != nil {
				t.err = err
			}
		}
		active = s.remove(active)
		if len(active) > 0 {
			e.round(active)
			active = s.remove(active)
		}
	}
}

// remove answers streams that have ended, and returns the others.
func (s *sampler) remove(active []*stream) []*stream {
	return slices.DeleteFunc(active, func(t *stream) bool {
		if t.err == nil && t.finish == "" {
			return false
		}
		s.pages.drop(t.pages...)
		if t.each != nil {
			close(t.each)
		}
		close(t.ended)
		return true
	})
}

// round takes streams one step on.
func (e *Engine) round(active []*stream) {
	s := &e.sampler
	s.rows, s.heads = s.rows[:0], s.heads[:0]
	for _, t := range active {
		s.plan(t)
	}
	logits := e.through()
	vocab := e.config.Vocab
	f32.Parallel(len(s.heads), 1, func(lo, hi int) {
		var p picker
		for i := lo; i < hi; i++ {
			s.heads[i].extend(&p, logits[i*vocab:(i+1)*vocab])
		}
	})
}

// plan gives a stream pages for its tokens. Those that no page has are the round's rows.
func (s *sampler) plan(t *stream) {
	for ; t.done < len(t.tokens); t.done++ {
		if len(s.rows) >= maxRows && t.done+1 < len(t.tokens) {
			return
		}
		at := t.done % pageSize
		if at == 0 {
			t.pages = append(t.pages, nil)
		}
		last := len(t.pages) - 1
		own, g := t.tokens[last*pageSize:min((last+1)*pageSize, len(t.tokens))], t.pages[last]
		if g == nil || at < g.n && g.tokens[at] != own[at] {
			k := pageKey{first: own[0]}
			if last > 0 {
				k.after = t.pages[last-1].id
			}
			other := s.pages.find(k.after, own, at)
			if other == nil {
				if at > 0 && g.ready < at { // they part in what goes through the model in this round
					return
				}
				other = s.pages.begin(k, g, at)
			}
			if t.pages[last] = other; g != nil {
				s.pages.drop(g)
			}
			g = other
		}
		if at == g.n {
			g.tokens[at] = own[at]
			g.n++
			s.rows = append(s.rows, row{t, t.done})
		}
	}
	s.heads = append(s.heads, t)
}

// extend samples a token.
func (t *stream) extend(p *picker, logits []float32) {
	token, logProb := p.pick(t.rng, logits, t.r)
	if math.IsNaN(logProb) || math.IsInf(logProb, 0) {
		t.err = fmt.Errorf("generate: the log-probability of a token is %v: %w", logProb, engine.ErrNotFinite)
		return
	}
	t.tokens, t.logProbs = append(t.tokens, token), append(t.logProbs, float32(logProb))
	if t.each != nil {
		t.each <- token
	}
	switch {
	case slices.Contains(t.r.Stops, token):
		t.finish = "stop"
	case len(t.logProbs) == t.r.MaxTokens:
		t.finish = "length"
	}
}

// The buffers of a round.
const (
	sampleX = iota
	sampleNorm
	sampleQ
	sampleK
	sampleV
	sampleO
	sampleGate
	sampleUp
	sampleLow
	sampleLogits
	sampleBufs
)

func (s *sampler) buf(i, n int) []float32 {
	if cap(s.bufs[i]) < n {
		s.bufs[i] = make([]float32, n)
	}
	return s.bufs[i][:n]
}

// wide is a head's size in panels.
func wide(dim int) int { return (dim + f32.Width - 1) / f32.Width * f32.Width }

// through takes the round's rows through the model. It returns the logits of what comes next in those streams that are given a token.
func (e *Engine) through() (logits []float32) {
	s, c, n := &e.sampler, e.config, len(e.sampler.rows)
	d, q, kv, ff := c.Hidden, c.Heads*c.HeadDim, c.KVHeads*c.HeadDim, c.Intermediate
	longest := 0
	for _, r := range s.rows {
		longest = max(longest, r.position+1)
	}
	sin, cos := e.rope.table(longest)
	x, h := s.buf(sampleX, n*d), s.buf(sampleNorm, n*d)
	qs, ks, vs, o := s.buf(sampleQ, n*q), s.buf(sampleK, n*kv), s.buf(sampleV, n*kv), s.buf(sampleO, n*q)
	gate, up := s.buf(sampleGate, n*ff), s.buf(sampleUp, n*ff)
	var low []float32
	if e.adapter != nil {
		low = s.buf(sampleLow, n*e.adapter.Rank)
	}
	linear := func(l *linear, y, x []float32) { l.forward(y, x, low[:n*l.rank()], n) }
	for i, r := range s.rows {
		e.embed.row(x[i*d:(i+1)*d], int(r.s.tokens[r.position]))
	}
	for i := range e.blocks {
		b := &e.blocks[i]
		normRows(h, x, b.norm1, c)
		linear(&b.q, qs, h)
		linear(&b.k, ks, h)
		linear(&b.v, vs, h)
		// All keys are there before the first is asked for: rows of one stream see each other.
		f32.Parallel(n, 8, func(lo, hi int) {
			line := make([]float32, c.HeadDim)
			for j := lo; j < hi; j++ {
				at := s.rows[j].position
				half := c.HeadDim / 2
				cos, sin := cos[at*half:(at+1)*half], sin[at*half:(at+1)*half]
				for hd := range c.Heads {
					turn(qs[j*q+hd*c.HeadDim:][:c.HeadDim], line, b.qNorm, cos, sin, float32(c.Eps))
				}
				for hd := range c.KVHeads {
					turn(ks[j*kv+hd*c.HeadDim:][:c.HeadDim], line, b.kNorm, cos, sin, float32(c.Eps))
				}
				f32.Scale(qs[j*q:(j+1)*q], float32(1/math.Sqrt(float64(c.HeadDim))))
				e.store(s.rows[j], i, ks[j*kv:(j+1)*kv], vs[j*kv:(j+1)*kv])
			}
		})
		f32.Parallel(n*c.KVHeads, 4, func(lo, hi int) {
			l := looks.Get().(*look)
			for j := lo; j < hi; j++ {
				e.attend(l, s.rows[j/c.KVHeads], i, j%c.KVHeads, o[j/c.KVHeads*q:][:q], qs[j/c.KVHeads*q:][:q])
			}
			looks.Put(l)
		})
		linear(&b.o, h, o)
		addRows(x, h, d)
		normRows(h, x, b.norm2, c)
		linear(&b.gate, gate, h)
		linear(&b.up, up, h)
		activate(gate, gate, up, ff)
		linear(&b.down, h, gate)
		addRows(x, h, d)
	}
	for i, r := range s.rows {
		g := r.page()
		copy(e.outOf(g, r.position%pageSize), x[i*d:(i+1)*d])
		g.ready = g.n
	}
	h = s.buf(sampleNorm, len(s.heads)*d)
	for i, t := range s.heads {
		f32.RMSNorm(h[i*d:(i+1)*d], e.outOf(t.pages[len(t.pages)-1], (t.done-1)%pageSize), e.norm.w, float32(c.Eps))
	}
	logits = s.buf(sampleLogits, len(s.heads)*c.Vocab)
	e.head.mul(logits, h, len(s.heads))
	return logits
}

// turn norms a query or key, where there is a norm, and rotates it.
func turn(x, line []float32, norm *tensor, cos, sin []float32, eps float32) {
	if norm != nil {
		f32.RMSNorm(line, x, norm.w, eps)
	} else {
		copy(line, x)
	}
	half := len(x) / 2
	rotate(x[:half], x[half:], line[:half], line[half:], cos, sin)
}

// A page has, for each layer and head of keys, keys as [headDim,pageSize] and values as panels of [pageSize,16], and after them what comes
// out of the last layer, as [pageSize,hidden].
func (e *Engine) pageFloats() int {
	c := e.config
	return c.Layers*c.KVHeads*pageSize*(c.HeadDim+wide(c.HeadDim)) + pageSize*c.Hidden
}

// outOf is what comes out of the last layer for a token in a page.
func (e *Engine) outOf(g *page, at int) []float32 {
	d := e.config.Hidden
	return g.data[len(g.data)-(pageSize-at)*d:][:d]
}

// pageHead is the keys and values of a head in a page.
func (e *Engine) pageHead(g *page, layer, head int) (keys, values []float32) {
	k, v := e.config.HeadDim*pageSize, wide(e.config.HeadDim)*pageSize
	at := (layer*e.config.KVHeads + head) * (k + v)
	return g.data[at : at+k], g.data[at+k : at+k+v]
}

// store puts a row's keys and values of a layer into its page.
func (e *Engine) store(r row, layer int, ks, vs []float32) {
	dim, at := e.config.HeadDim, r.position%pageSize
	g := r.page()
	for head := range e.config.KVHeads {
		keys, values := e.pageHead(g, layer, head)
		k, v := ks[head*dim:(head+1)*dim], vs[head*dim:(head+1)*dim]
		for d := range k {
			keys[d*pageSize+at] = k[d]
		}
		for d := 0; d < dim; d += f32.Width {
			copy(values[d*pageSize+at*f32.Width:][:f32.Width], v[d:])
		}
	}
}

// look is what one goroutine needs to attend.
type look struct {
	scores, out  []float32
	keys, values [][]float32 // panels
}

var looks = sync.Pool{New: func() any { return new(look) }}

// attend computes the part of o of the queries that share a head of keys.
func (e *Engine) attend(l *look, r row, layer, head int, o, q []float32) {
	dim, group := e.config.HeadDim, e.config.Heads/e.config.KVHeads
	full := wide(dim)
	n := r.position + 1
	l.keys, l.values = l.keys[:0], l.values[:0]
	for _, g := range r.s.pages[:(n+pageSize-1)/pageSize] {
		keys, values := e.pageHead(g, layer, head)
		l.keys = append(l.keys, keys)
		for ; len(values) > 0; values = values[pageSize*f32.Width:] {
			l.values = append(l.values, values[:pageSize*f32.Width])
		}
	}
	width, parts := len(l.keys)*pageSize, full/f32.Width
	l.scores, l.out = slices.Grow(l.scores[:0], width)[:width], slices.Grow(l.out[:0], full)[:full]
	for j := head * group; j < (head+1)*group; j++ {
		f32.Panels(l.scores, q[j*dim:(j+1)*dim], l.keys, false)
		f32.Softmax(l.scores[:n], l.scores[:n])
		clear(l.scores[n:])
		for i := range l.keys {
			f32.Panels(l.out, l.scores[i*pageSize:(i+1)*pageSize], l.values[i*parts:(i+1)*parts], i > 0)
		}
		copy(o[j*dim:(j+1)*dim], l.out)
	}
}

// picker chooses tokens.
type picker struct {
	prob  []float32
	order []int32
}

// pick chooses a token, by a number of rng unless the temperature is 0. It changes the logits. The log-probability is that before
// tokens were left out.
func (p *picker) pick(rng *rand.Rand, logits []float32, r engine.Request) (token int32, logProb float64) {
	if r.Temperature == 0 {
		for i, v := range logits {
			if v > logits[token] {
				token = int32(i)
			}
		}
		return token, float64(logits[token]) - f32.LogSumExp(logits)
	}
	if r.Temperature != 1 {
		f32.Scale(logits, 1/float32(r.Temperature))
	}
	p.prob = slices.Grow(p.prob[:0], len(logits))[:len(logits)]
	lse := f32.Softmax(p.prob, logits)
	u := rng.Float64()
	if r.TopK > 0 || r.TopP > 0 && r.TopP < 1 || r.MinP > 0 {
		token = p.truncated(u, r)
	} else {
		token = choose(u, p.prob, nil)
	}
	return token, float64(logits[token]) - lse
}

// choose returns the token where the sum of the probabilities, in order, passes the part u of all.
func choose(u float64, prob []float32, order []int32) int32 {
	n := len(order)
	if order == nil {
		n = len(prob)
	}
	at := func(i int) int32 {
		if order == nil {
			return int32(i)
		}
		return order[i]
	}
	var total, sum float64
	for i := range n {
		total += float64(prob[at(i)])
	}
	u *= total
	last := int32(0)
	for i := range n {
		t := at(i)
		if prob[t] == 0 {
			continue
		}
		last = t
		if sum += float64(prob[t]); sum > u {
			break
		}
	}
	return last
}

// truncated chooses among the likeliest.
func (p *picker) truncated(u float64, r engine.Request) int32 {
	likeliest := f32.Max(p.prob)
	p.order = p.order[:0]
	for i, v := range p.prob {
		if v > 0 && float64(v) >= r.MinP*float64(likeliest) {
			p.order = append(p.order, int32(i))
		}
	}
	if r.TopK > 0 || r.TopP > 0 && r.TopP < 1 {
		slices.SortFunc(p.order, func(a, b int32) int {
			if p.prob[a] != p.prob[b] {
				if p.prob[a] > p.prob[b] {
					return -1
				}
				return 1
			}
			return int(a - b)
		})
		kept := p.order
		if r.TopK > 0 && r.TopK < len(kept) {
			kept = kept[:r.TopK]
		}
		if r.TopP > 0 && r.TopP < 1 {
			var total, sum float64
			for _, t := range kept {
				total += float64(p.prob[t])
			}
			for i, t := range kept {
				if sum += float64(p.prob[t]); sum >= r.TopP*total {
					kept = kept[:i+1]
					break
				}
			}
		}
		p.order = kept
	}
	return choose(u, p.prob, p.order)
}
