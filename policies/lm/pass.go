package lm

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"runtime"
	"slices"

	"github.com/mcpgym/mcpgym/policies/engine"
	"github.com/mcpgym/mcpgym/policies/lm/internal/f32"
)

// pass is the result of a forward pass. Rows are packed one after the other without padding, each up to the last token that is asked
// for: what comes later changes nothing before it, and that token itself is only predicted. What rows begin with alike is there once: a
// row adds only its tokens from where it leaves all earlier rows. Work and memory are those of these distinct tokens, each of which sees
// in attention the keys of all that its row has before it.
type pass struct {
	e       *Engine
	changes int
	ended   bool

	logProbs    [][]float32
	entropy     [][]float32
	temperature float32

	tokens    []int32
	sequences []sequence
	shared    int // tokens that sequences begin with but that are not their own, counted for each
	longest   int
	adapters  bool
	keeps     bool // what Backward needs

	arena  []float32
	layers []activations
	spots  []spot
	last   []float32 // [len(spots),hidden]: what the last norm gets
	hidden []float32 // [len(spots),hidden]: what the head gets
	mean   []float32 // [len(spots),hidden]: of the head's rows, as likely as they are; nil where the head is trained
	lse    []float64 // of the scaled logits, at each of spots
	chunk  int       // logits of so many of spots are in memory at a time
}

// sequence is a row of the batch that adds tokens to the packed one. Rows that are the beginning of an earlier one have none.
type sequence struct {
	tokens []int32
	at     []int // where each is in the packed batch
	start  int   // the first that is its own: those before are earlier sequences'
	spare  int   // where they begin among the pass's shared
}

// spot is a position of the packed batch whose logits are needed, once however many rows ask for them. From the last layer only these
// positions come out: the others are done with once it has their keys and values.
type spot struct {
	at    int
	asked []asked
}

// asked is a token whose probability is asked for.
type asked struct {
	row, col int // in the batch
	at       int // in the packed batch, where it is predicted
	token    int32
}

// activations are what a layer's backward pass needs of its forward pass. What is cheap to compute anew is not kept.
type activations struct {
	last    bool      // of all layers
	x       []float32 // [rows,hidden]: the input
	q, k, v []float32 // [rows,heads*headDim]: before norm and rotation
	o       []float32 // [rows,heads*headDim]: of attention

	// From here on the rows of the last layer are those of the pass's spots.
	mid  []float32 // [rows,hidden]: after attention
	gate []float32 // [rows,intermediate]
	up   []float32
	low  [7][]float32 // [rows,rank]: of adapters; those of q, k and v are always of all rows
}

// workspace is memory that passes use one after the other.
type workspace struct {
	arenas   [][]float32 // of passes that have ended, the smallest first
	bufs     [bufCount][]float32
	logitsOf *pass // whose logits bufLogits holds, from logitsAt on
	logitsAt int
}

// The buffers of the workspace.
const (
	bufX    = iota // [rows,hidden], or its gradient
	bufLast        // [len(spots),hidden]: the gradient of what comes out of the last layer
	bufNorm        // [rows,hidden]: after a norm
	bufY           // [rows,hidden]
	bufA           // [rows,intermediate], or attention's output
	bufB           // [rows,intermediate], or k
	bufC           // v, or attention's output at the spots
	bufLow
	bufLogits
	bufCount
)

func (w *workspace) get(buf, n int) []float32 {
	if cap(w.bufs[buf]) < n {
		w.bufs[buf] = make([]float32, n)
	}
	return w.bufs[buf][:n]
}

// take gives memory for a pass.
func (w *workspace) take(size int) []float32 {
	i := slices.IndexFunc(w.arenas, func(a []float32) bool { return cap(a) >= size })
	if i < 0 {
		if n := len(w.arenas); n > 0 {
			w.arenas = slices.Delete(w.arenas, n-1, n)
			runtime.GC() // or there may be both for a while
		}
		return make([]float32, size)
	}
	arena := w.arenas[i][:size]
	w.arenas = slices.Delete(w.arenas, i, i+1)
	return arena
}

func (w *workspace) give(arena []float32) {
	w.arenas = append(w.arenas, arena)
	slices.SortFunc(w.arenas, func(a, b []float32) int { return cmp.Compare(cap(a), cap(b)) })
}

// logitsSize is how many logits are in memory at a time. Where Backward needs them it computes them anew, but for the last so many.
const logitsSize = 1 << 24

// Forward gives the log-probabilities of a batch's tokens. What rows begin with alike is computed once, forward and backward, wherever in
// the batch they are. Time and memory go by distinct tokens: two are the same where they are equal and so is all that comes before them.
// The pass keeps its activations until Backward or Discard. Several passes may be open, but none outlives a Step or Restore. A
// Batch.Reference is for engines that train an adapter, or nothing: one that trains the whole model keeps no copy of what it was.
func (e *Engine) Forward(ctx context.Context, b engine.Batch) (engine.Pass, error) {
	if b.Reference && e.full {
		return nil, errors.New("forward: an engine that trains the whole model has no reference: open the model a second time")
	}
	p, err := e.newPass(b)
	if err != nil {
		return nil, fmt.Errorf("forward: %w", err)
	}
	if err := p.forward(ctx); err != nil {
		p.Discard()
		return nil, fmt.Errorf("forward: %w", err)
	}
	return p, nil
}

func (e *Engine) newPass(b engine.Batch) (*pass, error) {
	if len(b.Tokens) == 0 {
		return nil, errors.New("a batch without rows")
	}
	if b.Mask != nil && len(b.Mask) != len(b.Tokens) {
		return nil, fmt.Errorf("a mask of %d rows for %d", len(b.Mask), len(b.Tokens))
	}
	if !(b.Temperature >= 0) || math.IsInf(b.Temperature, 0) {
		return nil, fmt.Errorf("a temperature of %v", b.Temperature)
	}
	p := &pass{e: e, changes: e.changes, temperature: float32(b.Temperature), adapters: !b.Reference}
	p.keeps = !b.Reference && len(e.trained) > 0
	if b.Temperature == 0 {
		p.temperature = 1
	}
	p.logProbs, p.entropy = make([][]float32, len(b.Tokens)), make([][]float32, len(b.Tokens))
	var all []asked
	for i, row := range b.Tokens {
		if len(row) < 2 {
			return nil, fmt.Errorf("row %d has %d tokens: at least two are needed", i, len(row))
		}
		p.logProbs[i], p.entropy[i] = make([]float32, len(row)), make([]float32, len(row))
		for t, token := range row {
			if token < 0 || int(token) >= e.config.Vocab {
				return nil, fmt.Errorf("row %d has the token %d at %d, of a vocabulary of %d", i, token, t, e.config.Vocab)
			}
		}
		if b.Mask != nil {
			if len(b.Mask[i]) != len(row) {
				return nil, fmt.Errorf("the mask of row %d is for %d tokens, not %d", i, len(b.Mask[i]), len(row))
			}
			if b.Mask[i][0] {
				return nil, fmt.Errorf("the first token of row %d is asked for: nothing predicts it", i)
			}
		}
		n := len(row) - 1
		for b.Mask != nil && n > 0 && !b.Mask[i][n] {
			n--
		}
		if n > e.config.MaxPositions {
			return nil, fmt.Errorf("row %d has %d tokens: the model takes %d", i, n+1, e.config.MaxPositions)
		}
		for t, at := range p.pack(row[:n]) {
			if b.Mask == nil || b.Mask[i][t+1] {
				all = append(all, asked{row: i, col: t + 1, at: at, token: row[t+1]})
			}
		}
	}
	slices.SortStableFunc(all, func(a, b asked) int { return cmp.Compare(a.at, b.at) })
	for n := 0; len(all) > 0; all = all[n:] {
		for n = 1; n < len(all) && all[n].at == all[0].at; n++ {
		}
		p.spots = append(p.spots, spot{at: all[0].at, asked: all[:n]})
	}
	p.allocate()
	return p, nil
}

// pack adds a row to the packed batch, but for what it begins with like an earlier one, and says where each of its tokens is there.
func (p *pass) pack(row []int32) []int {
	s := sequence{tokens: row, at: make([]int, 0, len(row)), spare: p.shared}
	for _, earlier := range p.sequences {
		n := 0
		for n < min(len(row), len(earlier.tokens)) && row[n] == earlier.tokens[n] {
			n++
		}
		if n > s.start {
			s.start, s.at = n, append(s.at[:0], earlier.at[:n]...)
		}
	}
	for _, token := range row[s.start:] {
		s.at = append(s.at, len(p.tokens))
		p.tokens = append(p.tokens, token)
	}
	if s.start < len(row) {
		p.sequences = append(p.sequences, s)
		p.shared += s.start
		p.longest = max(p.longest, len(row))
	}
	return s.at
}

// allocate divides one piece of memory among what is kept.
func (p *pass) allocate() {
	e, c, rows := p.e, p.e.config, len(p.tokens)
	q, kv := c.Heads*c.HeadDim, c.KVHeads*c.HeadDim
	kept := 1
	if p.keeps {
		kept = c.Layers
	}
	size := rows*kept*(2*c.Hidden+2*q+2*kv+2*c.Intermediate) + 2*len(p.spots)*c.Hidden
	if p.keeps {
		size -= (rows - len(p.spots)) * (c.Hidden + 2*c.Intermediate)
	}
	means := p.keeps && e.head.g == nil
	if means {
		size += len(p.spots) * c.Hidden
	}
	if !p.keeps {
		size += rows * c.Hidden // two inputs take turns
	}
	if p.adapters {
		for i := range kept {
			for _, l := range e.blocks[i].all {
				size += rows * l.rank()
			}
		}
	}
	p.arena = e.work.take(size)
	at := 0
	take := func(n int) []float32 {
		at += n
		return p.arena[at-n : at : at]
	}
	p.layers = make([]activations, c.Layers)
	for i := range p.layers {
		a := &p.layers[i]
		if i >= kept {
			*a = p.layers[i-1]
			if i == 1 {
				a.x = take(rows * c.Hidden)
			} else {
				a.x = p.layers[i-2].x
			}
			continue
		}
		a.x, a.q, a.k, a.v, a.o = take(rows*c.Hidden), take(rows*q), take(rows*kv), take(rows*kv), take(rows*q)
		out := rows
		if i == c.Layers-1 {
			out = len(p.spots)
		}
		a.mid, a.gate, a.up = take(out*c.Hidden), take(out*c.Intermediate), take(out*c.Intermediate)
		for j, l := range e.blocks[i].all {
			if p.adapters && l.a != nil {
				a.low[j] = take(rows * l.rank())
			}
		}
	}
	p.layers[c.Layers-1].last = true
	p.last, p.hidden = take(len(p.spots)*c.Hidden), take(len(p.spots)*c.Hidden)
	if means {
		p.mean = take(len(p.spots) * c.Hidden)
	}
	p.lse = make([]float64, len(p.spots))
	p.chunk = max(1, min(len(p.spots), logitsSize/c.Vocab))
}

// LogProbs has the log-probabilities of the tokens that were asked for.
func (p *pass) LogProbs() [][]float32 { return p.logProbs }

// Entropy has the entropies of the distributions of the tokens that were asked for.
func (p *pass) Entropy() [][]float32 { return p.entropy }

// Discard ends the pass.
func (p *pass) Discard() {
	if p.ended {
		return
	}
	p.ended = true
	p.e.work.give(p.arena)
	p.arena, p.layers, p.last, p.hidden, p.mean = nil, nil, nil, nil, nil
	if p.e.work.logitsOf == p {
		p.e.work.logitsOf = nil
	}
}

func (p *pass) forward(ctx context.Context) error {
	e, d := p.e, p.e.config.Hidden
	x := p.layers[0].x
	f32.Parallel(len(p.tokens), 64, func(lo, hi int) {
		for i := lo; i < hi; i++ {
			e.embed.row(x[i*d:(i+1)*d], int(p.tokens[i]))
		}
	})
	for i := range p.layers {
		if err := ctx.Err(); err != nil {
			return err
		}
		out := p.last
		if i+1 < len(p.layers) {
			out = p.layers[i+1].x
		}
		e.blocks[i].forward(p, &p.layers[i], out)
	}
	normRows(p.hidden, p.last, e.norm, e.config)
	for lo := 0; lo < len(p.spots); lo += p.chunk {
		if err := ctx.Err(); err != nil {
			return err
		}
		if err := p.score(lo, min(lo+p.chunk, len(p.spots))); err != nil {
			return err
		}
	}
	return nil
}

// Backward adds to the gradients of what is trained, given the loss's. Once it has begun it is not interrupted, so that gradients are
// added whole or, where there is an error, not at all.
func (p *pass) Backward(ctx context.Context, dLogProbs, dEntropy [][]float32) error {
	switch {
	case p.ended:
		return errors.New("backward: the pass has ended")
	case len(p.e.trained) == 0:
		return fmt.Errorf("backward: %w", errNothingTrained)
	case !p.keeps:
		return errors.New("backward: a pass of the reference has no gradients")
	case p.changes != p.e.changes:
		return errors.New("backward: the weights have changed since the pass")
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	for _, d := range [][][]float32{dLogProbs, dEntropy} {
		if err := p.check(d); err != nil {
			return fmt.Errorf("backward: %w", err)
		}
	}
	p.backward(dLogProbs, dEntropy)
	p.Discard()
	return nil
}

// check demands gradients of the shape of the batch.
func (p *pass) check(d [][]float32) error {
	if d == nil {
		return nil
	}
	if len(d) != len(p.logProbs) {
		return fmt.Errorf("gradients of %d rows for %d", len(d), len(p.logProbs))
	}
	for i, row := range d {
		if len(row) != len(p.logProbs[i]) {
			return fmt.Errorf("row %d has %d gradients for %d tokens", i, len(row), len(p.logProbs[i]))
		}
		for t, v := range row {
			if math.IsNaN(float64(v)) || math.IsInf(float64(v), 0) {
				return fmt.Errorf("the gradient of token %d of row %d: %w", t, i, engine.ErrNotFinite)
			}
		}
	}
	return nil
}

func (p *pass) backward(dLogProbs, dEntropy [][]float32) {
	e, c, rows := p.e, p.e.config, len(p.tokens)
	if len(p.spots) == 0 {
		return
	}
	d := c.Hidden
	dHidden := e.work.get(bufNorm, len(p.spots)*d)
	p.scoreBackward(dHidden, dLogProbs, dEntropy)
	dx, dLast := e.work.get(bufX, rows*d), e.work.get(bufLast, len(p.spots)*d)
	clear(dLast)
	n := normBackward{dx: dLast, dy: dHidden, x: p.last, norm: e.norm, eps: float32(c.Eps)}
	n.run(len(p.spots))
	for i := len(p.layers) - 1; i >= 0; i-- {
		e.blocks[i].backward(p, &p.layers[i], dx, dLast, i > 0 || e.full)
	}
	if e.embed.g != nil {
		f32.Parallel(d, 64, func(lo, hi int) {
			for i, token := range p.tokens {
				at := int(token) * d
				f32.Add(e.embed.g[at+lo:at+hi], dx[i*d+lo:i*d+hi])
			}
		})
	}
}

// pick copies the spots' rows out of x.
func (p *pass) pick(y, x []float32, width int) []float32 {
	for i, s := range p.spots {
		copy(y[i*width:(i+1)*width], x[s.at*width:])
	}
	return y
}

// place copies rows to where the spots' are in x, of which the others are 0.
func (p *pass) place(x, y []float32, width int) {
	clear(x)
	for i, s := range p.spots {
		copy(x[s.at*width:(s.at+1)*width], y[i*width:])
	}
}

// forward computes the layer's output from its input a.x, the last layer's at the spots alone.
func (b *block) forward(p *pass, a *activations, out []float32) {
	c, rows, work := p.e.config, len(p.tokens), &p.e.work
	d := c.Hidden
	h := work.get(bufNorm, rows*d)
	normRows(h, a.x, b.norm1, c)
	b.q.forward(a.q, h, a.low[0], rows)
	b.k.forward(a.k, h, a.low[1], rows)
	b.v.forward(a.v, h, a.low[2], rows)
	p.attention(b, a)
	x, o := a.x, a.o
	if a.last {
		rows = len(p.spots)
		x, o = p.pick(h[:rows*d], a.x, d), p.pick(work.get(bufC, rows*c.Heads*c.HeadDim), a.o, c.Heads*c.HeadDim)
		h = work.get(bufY, rows*d)
	}
	mid := a.mid[:rows*d]
	b.o.forward(mid, o, a.low[3], rows)
	addRows(mid, x, d)
	normRows(h, mid, b.norm2, c)
	b.gate.forward(a.gate, h, a.low[4], rows)
	b.up.forward(a.up, h, a.low[5], rows)
	act := work.get(bufA, rows*c.Intermediate)
	activate(act, a.gate, a.up, c.Intermediate)
	b.down.forward(out, act, a.low[6], rows)
	addRows(out, mid, d)
}

// backward turns dx, the gradient of the layer's output, into that of its input, which is not needed where through is false. The gradient of
// the last layer's output is dLast.
func (b *block) backward(p *pass, a *activations, dx, dLast []float32, through bool) {
	c, all, work := p.e.config, len(p.tokens), &p.e.work
	d, ff, qs := c.Hidden, c.Intermediate, c.Heads*c.HeadDim
	rows, dy := all, dx
	if a.last {
		rows, dy = len(p.spots), dLast
	}
	rank := 0
	if p.e.adapter != nil {
		rank = p.e.adapter.Rank
	}
	spare := work.get(bufLow, all*rank)
	h, dh := work.get(bufNorm, all*d), work.get(bufY, all*d)

	act, dAct := work.get(bufA, rows*ff), work.get(bufB, rows*ff)
	if b.down.learns() {
		activate(act, a.gate, a.up, ff)
	}
	b.down.backward(dAct, dy, act, a.low[6], spare, rows, false)
	f32.Parallel(rows, 16, func(lo, hi int) {
		lo, hi = lo*ff, hi*ff
		gate, up, dUp, dGate := a.gate[lo:hi], a.up[lo:hi], act[lo:hi], dAct[lo:hi]
		f32.SiLU(dUp, gate)
		f32.Mul(dUp, dUp, dGate)
		f32.Mul(dGate, dGate, up)
		f32.SiLUBackward(dGate, dGate, gate)
	})
	normRows(h, a.mid[:rows*d], b.norm2, c)
	b.gate.backward(dh, dAct, h, a.low[4], spare, rows, false)
	b.up.backward(dh, act, h, a.low[5], spare, rows, true)
	n := normBackward{dx: dy, dy: dh, x: a.mid, norm: b.norm2, eps: float32(c.Eps)}
	n.run(rows)

	dq := work.get(bufA, all*qs) // the gradient of a.o, which attention turns into that of a.q
	if a.last {
		part := work.get(bufB, rows*qs)
		b.o.backward(part, dy, p.pick(work.get(bufC, rows*qs), a.o, qs), a.low[3], spare, rows, false)
		p.place(dq, part, qs)
		p.place(dx, dy, d)
	} else {
		b.o.backward(dq, dy, a.o, a.low[3], spare, rows, false)
	}
	rows = all
	kv := c.KVHeads * c.HeadDim
	dk, dv := work.get(bufB, (rows+p.shared)*kv), work.get(bufC, (rows+p.shared)*kv)
	p.attentionBackward(b, a, dq, dk, dv)
	dk, dv = dk[:rows*kv], dv[:rows*kv]
	normRows(h, a.x, b.norm1, c)
	if !through {
		dh = nil
	}
	b.q.backward(dh, dq, h, a.low[0], spare, rows, false)
	b.k.backward(dh, dk, h, a.low[1], spare, rows, true)
	b.v.backward(dh, dv, h, a.low[2], spare, rows, true)
	if through {
		n := normBackward{dx: dx, dy: dh, x: a.x, norm: b.norm1, eps: float32(c.Eps)}
		n.run(rows)
	}
}

// learns is whether backward reads x.
func (l *linear) learns() bool { return l.a != nil || l.weight.g != nil }

func normRows(y, x []float32, norm *tensor, c Config) {
	d := len(norm.w)
	f32.Parallel(len(x)/d, 32, func(lo, hi int) {
		for i := lo; i < hi; i++ {
			f32.RMSNorm(y[i*d:(i+1)*d], x[i*d:(i+1)*d], norm.w, float32(c.Eps))
		}
	})
}

func addRows(y, x []float32, width int) {
	f32.Parallel(len(x)/width, 64, func(lo, hi int) {
		f32.Add(y[lo*width:hi*width], x[lo*width:hi*width])
	})
}

// activate computes y = silu(gate)*up.
func activate(y, gate, up []float32, width int) {
	f32.Parallel(len(y)/width, 16, func(lo, hi int) {
		lo, hi = lo*width, hi*width
		f32.SiLU(y[lo:hi], gate[lo:hi])
		f32.Mul(y[lo:hi], y[lo:hi], up[lo:hi])
	})
}

// normBackward adds a norm's gradients to those of its input and, where it is trained, of its weight.
type normBackward struct {
	dx, dy, x []float32
	norm      *tensor
	eps       float32
}

// normBlock is how many rows' gradients of a norm's weight are added up on their own. It is fixed, so that the sum does not depend on
// the number of cores.
const normBlock = 64

func (n normBackward) run(rows int) {
	d := len(n.norm.w)
	blocks := (rows + normBlock - 1) / normBlock
	var sums []float32
	if n.norm.g != nil {
		sums = make([]float32, blocks*d)
	}
	f32.Parallel(blocks, 1, func(lo, hi int) {
		y := make([]float32, d)
		for b := lo; b < hi; b++ {
			var dw []float32
			if sums != nil {
				dw = sums[b*d : (b+1)*d]
			}
			for i := b * normBlock; i < min((b+1)*normBlock, rows); i++ {
				x := n.x[i*d : (i+1)*d]
				r := f32.RMSNorm(y, x, n.norm.w, n.eps)
				f32.RMSNormBackward(n.dx[i*d:(i+1)*d], dw, n.dy[i*d:(i+1)*d], x, n.norm.w, r)
			}
		}
	})
	if sums != nil {
		sumRows(n.norm.g, sums, blocks)
	}
}
