package lm

import (
	"math"
	"sync"

	"github.com/mcpgym/mcpgym/policies/lm/internal/f32"
)

// attentionRows is about how many queries meet the keys at a time, or more in a long sequence. More make larger products; fewer waste
// less on keys that come after the query.
const attentionRows = 64

// headTask is attention in one sequence for one head of keys and the queries that share it. The queries are those of the sequence's own
// tokens; the keys and values are of all its tokens, also those that it shares with earlier sequences. Its queries are ordered by
// position, then by head, so that those of consecutive positions are one matrix.
type headTask struct {
	p          *pass
	b          *block
	a          *activations
	s          sequence
	head       int
	group, dim int
	eps        float32
	sin, cos   []float32

	q, k, v      []float32 // [own*group,dim], [n,dim], [n,dim]
	prob, dProb  []float32 // [step*group,n]
	out          []float32 // [step*group,dim]
	dq, dk, dv   []float32
	line, dNorms []float32 // [dim], [2*dim]: the gradients of the norms of q and k
}

// eachHead calls f for the tasks of a layer, at once where it can.
func (p *pass) eachHead(b *block, a *activations, backward bool, f func(task *headTask, index int)) {
	c := p.e.config
	sin, cos := p.e.rope.table(p.longest)
	f32.Parallel(len(p.sequences)*c.KVHeads, 1, func(lo, hi int) {
		memory := attentionMemory.Get().(*[]float32)
		defer attentionMemory.Put(memory)
		for i := lo; i < hi; i++ {
			t := headTask{p: p, b: b, a: a, s: p.sequences[i/c.KVHeads], head: i % c.KVHeads, group: c.Heads / c.KVHeads,
				dim: c.HeadDim, eps: float32(c.Eps), sin: sin, cos: cos}
			t.place(memory, backward)
			f(&t, i)
		}
	})
}

var attentionMemory = sync.Pool{New: func() any { return new([]float32) }}

func (t *headTask) place(memory *[]float32, backward bool) {
	n, own := len(t.s.at), len(t.s.at)-t.s.start
	block := min(t.step(), own) * t.group
	sizes := []int{own * t.group * t.dim, n * t.dim, n * t.dim, block * n, block * t.dim, t.dim}
	into := []*[]float32{&t.q, &t.k, &t.v, &t.prob, &t.out, &t.line}
	if backward {
		sizes = append(sizes, own*t.group*t.dim, n*t.dim, n*t.dim, block*n)
		into = append(into, &t.dq, &t.dk, &t.dv, &t.dProb)
	}
	total := 0
	for _, size := range sizes {
		total += size
	}
	if cap(*memory) < total {
		*memory = make([]float32, total)
	}
	at := 0
	for i, size := range sizes {
		*into[i] = (*memory)[at : at+size : at+size]
		at += size
	}
}

// step is the number of positions whose queries are taken together.
func (t *headTask) step() int { return max(1, max(attentionRows, len(t.s.at)/16)/t.group) }

// attention computes a.o from a.q, a.k and a.v.
func (p *pass) attention(b *block, a *activations) {
	p.eachHead(b, a, false, func(t *headTask, _ int) {
		t.gather()
		width := t.group * t.dim
		stride := p.e.config.Heads * t.dim
		for lo := t.s.start; lo < len(t.s.at); lo += t.step() {
			hi := min(lo+t.step(), len(t.s.at))
			rows := (hi - lo) * t.group
			prob := t.probabilities(lo, hi)
			f32.MatMul(t.out, prob, t.v, rows, t.dim, hi, false, false, false)
			for i, at := range t.s.at[lo:hi] {
				copy(a.o[at*stride+t.head*width:][:width], t.out[i*width:])
			}
		}
	})
}

// gather copies the task's queries, keys and values, normed and rotated, the queries divided by the root of their size.
func (t *headTask) gather() {
	kv := t.p.e.config.KVHeads * t.dim
	scale := float32(1 / math.Sqrt(float64(t.dim)))
	for i, at := range t.s.at {
		at = at*kv + t.head*t.dim
		copy(t.v[i*t.dim:(i+1)*t.dim], t.a.v[at:])
		t.rotate(t.k[i*t.dim:(i+1)*t.dim], t.normed(t.a.k[at:at+t.dim], t.b.kNorm), i)
	}
	for i := t.s.start; i < len(t.s.at); i++ {
		for j := range t.group {
			t.rotate(t.own(t.q, i, j), t.normed(t.query(t.a.q, i, j), t.b.qNorm), i)
		}
	}
	f32.Scale(t.q, scale)
}

// query is the part of x that belongs to the query j of position i.
func (t *headTask) query(x []float32, i, j int) []float32 {
	return x[t.s.at[i]*t.p.e.config.Heads*t.dim+(t.head*t.group+j)*t.dim:][:t.dim]
}

// own is the part of q or dq that belongs to the query j of position i.
func (t *headTask) own(q []float32, i, j int) []float32 {
	return q[((i-t.s.start)*t.group+j)*t.dim:][:t.dim]
}

func (t *headTask) normed(x []float32, norm *tensor) []float32 {
	if norm == nil {
		return x
	}
	f32.RMSNorm(t.line, x, norm.w, t.eps)
	return t.line
}

// rotate computes y from x, which do not overlap, at position i.
func (t *headTask) rotate(y, x []float32, i int) {
	half := t.dim / 2
	rotate(y[:half], y[half:], x[:half], x[half:], t.cos[i*half:(i+1)*half], t.sin[i*half:(i+1)*half])
}

func rotate(y0, y1, x0, x1, cos, sin []float32) {
	y0, y1, x0, x1, sin = y0[:len(cos)], y1[:len(cos)], x0[:len(cos)], x1[:len(cos)], sin[:len(cos)]
	for i, c := range cos {
		s, a, b := sin[i], x0[i], x1[i]
		y0[i], y1[i] = a*c-b*s, b*c+a*s
	}
}

// rotateBack is rotate's transpose, which is the rotation by minus the angle. y may be x.
func rotateBack(y0, y1, x0, x1, cos, sin []float32) {
	y0, y1, x0, x1, sin = y0[:len(cos)], y1[:len(cos)], x0[:len(cos)], x1[:len(cos)], sin[:len(cos)]
	for i, c := range cos {
		s, a, b := sin[i], x0[i], x1[i]
		y0[i], y1[i] = a*c+b*s, b*c-a*s
	}
}

// probabilities are those of the queries of positions [lo,hi) over the keys before hi: 0 at the keys that come after a query.
func (t *headTask) probabilities(lo, hi int) []float32 {
	rows := (hi - lo) * t.group
	prob := t.prob[:rows*hi]
	f32.MatMul(prob, t.q[(lo-t.s.start)*t.group*t.dim:], t.k, rows, hi, t.dim, false, true, false)
	for r := range rows {
		row, seen := prob[r*hi:(r+1)*hi], lo+r/t.group+1
		f32.Softmax(row[:seen], row[:seen])
		clear(row[seen:])
	}
	return prob
}

// attentionBackward turns dq, the gradient of a.o, into that of a.q, and computes those of a.k and a.v, from nothing but a.q, a.k and
// a.v: the probabilities are computed anew rather than kept, as they would take more memory than all else in a long sequence. What a
// sequence adds to the gradients of tokens that are not its own goes to rows of dk and dv beyond those of the packed batch, and is added
// up in the order of the sequences, so that the sum does not depend on who came first.
func (p *pass) attentionBackward(b *block, a *activations, dq, dk, dv []float32) {
	norms := b.qNorm != nil && b.qNorm.g != nil
	var dNorms []float32
	dim, tasks := p.e.config.HeadDim, len(p.sequences)*p.e.config.KVHeads
	if norms {
		dNorms = make([]float32, tasks*2*dim)
	}
	p.eachHead(b, a, true, func(t *headTask, index int) {
		if norms {
			t.dNorms = dNorms[index*2*dim : (index+1)*2*dim]
		}
		t.backward(dq, dk, dv)
	})
	if norms {
		for i := range tasks {
			f32.Add(b.qNorm.g, dNorms[i*2*dim:i*2*dim+dim])
			f32.Add(b.kNorm.g, dNorms[i*2*dim+dim:(i+1)*2*dim])
		}
	}
	rows, kv := len(p.tokens), dim*p.e.config.KVHeads
	f32.Parallel(kv, 32, func(lo, hi int) {
		for _, s := range p.sequences {
			for i, at := range s.at[:s.start] {
				from, to := (rows+s.spare+i)*kv, at*kv
				f32.Add(dk[to+lo:to+hi], dk[from+lo:from+hi])
				f32.Add(dv[to+lo:to+hi], dv[from+lo:from+hi])
			}
		}
	})
}

func (t *headTask) backward(dq, dk, dv []float32) {
	t.gather()
	clear(t.dk)
	clear(t.dv)
	dim, width := t.dim, t.group*t.dim
	for lo := t.s.start; lo < len(t.s.at); lo += t.step() {
		hi, first := min(lo+t.step(), len(t.s.at)), (lo-t.s.start)*width
		rows := (hi - lo) * t.group
		prob, dProb := t.probabilities(lo, hi), t.dProb[:rows*hi]
		dOut := t.out[:rows*dim]
		for i := lo; i < hi; i++ {
			copy(dOut[(i-lo)*width:(i-lo+1)*width], t.query(dq, i, 0)[:width:width])
		}
		f32.MatMul(t.dv, prob, dOut, hi, dim, rows, true, false, true)
		f32.MatMul(dProb, dOut, t.v, rows, hi, dim, false, true, false)
		for r := range rows {
			row, d := prob[r*hi:(r+1)*hi], dProb[r*hi:(r+1)*hi]
			f32.Mul(d, d, row)
			f32.Axpy(d, -float32(f32.Sum(d)), row)
		}
		f32.MatMul(t.dq[first:], dProb, t.k, rows, dim, hi, false, false, false)
		f32.MatMul(t.dk, dProb, t.q[first:], hi, dim, rows, true, false, true)
	}
	f32.Scale(t.dq, float32(1/math.Sqrt(float64(dim))))
	kv := t.p.e.config.KVHeads * dim
	var dqNorm, dkNorm []float32
	if t.dNorms != nil {
		dqNorm, dkNorm = t.dNorms[:dim], t.dNorms[dim:]
	}
	for i, at := range t.s.at {
		from := at*kv + t.head*dim
		to := from
		if i < t.s.start {
			to = (len(t.p.tokens)+t.s.spare+i)*kv + t.head*dim
		}
		copy(dv[to:to+dim], t.dv[i*dim:])
		t.rotateBack(dk[to:to+dim], t.dk[i*dim:(i+1)*dim], t.a.k[from:from+dim], t.b.kNorm, dkNorm, i)
	}
	for i := t.s.start; i < len(t.s.at); i++ {
		for j := range t.group {
			t.rotateBack(t.query(dq, i, j), t.own(t.dq, i, j), t.query(t.a.q, i, j), t.b.qNorm, dqNorm, i)
		}
	}
}

// rotateBack computes the gradient dx of x, a query or key before norm and rotation, from that after them.
func (t *headTask) rotateBack(dx, dy, x []float32, norm *tensor, dNorm []float32, i int) {
	half := t.dim / 2
	cos, sin := t.cos[i*half:(i+1)*half], t.sin[i*half:(i+1)*half]
	if norm == nil {
		rotateBack(dx[:half], dx[half:], dy[:half], dy[half:], cos, sin)
		return
	}
	rotateBack(dy[:half], dy[half:], dy[:half], dy[half:], cos, sin)
	r := f32.RMSNorm(t.line, x, norm.w, t.eps)
	clear(dx)
	f32.RMSNormBackward(dx, dNorm, dy, x, norm.w, r)
}
