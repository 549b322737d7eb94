package lm

import (
	"fmt"
	"math"

	"github.com/mcpgym/mcpgym/policies/engine"
	"github.com/mcpgym/mcpgym/policies/lm/internal/f32"
)

// logits computes those of spots[lo:hi], divided by the temperature, into the workspace, unless they are there.
func (p *pass) logits(lo, hi int) []float32 {
	d, vocab := p.e.config.Hidden, p.e.config.Vocab
	out := p.e.work.get(bufLogits, p.chunk*vocab)[:(hi-lo)*vocab]
	if p.e.work.logitsOf == p && p.e.work.logitsAt == lo {
		return out
	}
	p.e.work.logitsOf, p.e.work.logitsAt = p, lo
	p.e.head.mul(out, p.hidden[lo*d:hi*d], hi-lo)
	if p.temperature != 1 {
		f32.Parallel(hi-lo, 1, func(a, b int) { f32.Scale(out[a*vocab:b*vocab], 1/p.temperature) })
	}
	return out
}

// score computes what the pass gives of spots[lo:hi].
func (p *pass) score(lo, hi int) error {
	d, vocab := p.e.config.Hidden, p.e.config.Vocab
	logits := p.logits(lo, hi)
	f32.Parallel(hi-lo, 1, func(a, b int) {
		prob := make([]float32, vocab)
		for i := a; i < b; i++ {
			row := logits[i*vocab : (i+1)*vocab]
			lse := f32.Softmax(prob, row)
			p.lse[lo+i] = lse
			entropy := max(0, float32(lse-float64(f32.Dot(prob, row))))
			for _, t := range p.spots[lo+i].asked {
				p.logProbs[t.row][t.col] = float32(float64(row[t.token]) - lse)
				p.entropy[t.row][t.col] = entropy
			}
			if p.mean != nil {
				copy(row, prob)
			}
		}
	})
	if p.mean != nil {
		p.e.work.logitsOf = nil // they are probabilities now
		p.e.head.mulBack(p.mean[lo*d:hi*d], logits, nil, hi-lo, false)
	}
	for _, s := range p.spots[lo:hi] {
		for _, t := range s.asked {
			if v := float64(p.logProbs[t.row][t.col]); math.IsNaN(v) || math.IsInf(v, 0) {
				return fmt.Errorf("the log-probability of token %d of row %d is %v: %w", t.col, t.row, v, engine.ErrNotFinite)
			}
		}
	}
	return nil
}

// scoreBackward computes the gradient of p.hidden, and adds to that of the head. The last chunk's logits may be in memory still, so
// it goes first. Where the head is not trained and nothing is asked of entropies, the gradient needs no logits: it is the token's row
// of the head less the mean that the forward pass has computed. What rows give for the same spot is added up.
func (p *pass) scoreBackward(dHidden []float32, dLogProbs, dEntropy [][]float32) {
	e, d, vocab := p.e, p.e.config.Hidden, p.e.config.Vocab
	if p.mean != nil && dEntropy == nil {
		f32.Parallel(len(p.spots), 16, func(lo, hi int) {
			line := make([]float32, d)
			for i := lo; i < hi; i++ {
				dh := dHidden[i*d : (i+1)*d]
				clear(dh)
				for _, t := range p.spots[i].asked {
					if g := t.of(dLogProbs); g != 0 {
						e.head.row(line, int(t.token))
						f32.Axpy(line, -1, p.mean[i*d:(i+1)*d])
						f32.Axpy(dh, g/p.temperature, line)
					}
				}
			}
		})
		return
	}
	last := (len(p.spots) - 1) / p.chunk
	for n := last; n >= 0; n-- {
		lo := n * p.chunk
		hi := min(lo+p.chunk, len(p.spots))
		logits := p.logits(lo, hi)
		e.work.logitsOf = nil // what follows overwrites them
		f32.Parallel(hi-lo, 1, func(a, b int) {
			var prob []float32
			for i := a; i < b; i++ {
				row, all := logits[i*vocab:(i+1)*vocab], p.spots[lo+i].asked
				var dLog, dEnt float32
				for _, t := range all {
					dLog += t.of(dLogProbs)
					dEnt += t.of(dEntropy)
				}
				switch {
				case dLog == 0 && dEnt == 0:
					clear(row)
				case dEnt == 0:
					f32.Softmax(row, row)
					f32.Scale(row, -dLog/p.temperature)
				default:
					// With l the logits, the entropy's gradient is -p*(l-lse+entropy).
					if prob == nil {
						prob = make([]float32, vocab)
					}
					f32.Softmax(prob, row)
					shift := float32(p.lse[lo+i]) - all[0].of(p.entropy) - dLog/dEnt
					for j := range row {
						row[j] -= shift
					}
					f32.Mul(row, row, prob)
					f32.Scale(row, -dEnt/p.temperature)
				}
				for _, t := range all {
					row[t.token] += t.of(dLogProbs) / p.temperature
				}
			}
		})
		e.head.mulBack(dHidden[lo*d:hi*d], logits, p.hidden[lo*d:hi*d], hi-lo, false)
	}
}

// of is the token's value in a table of the batch's shape, or 0 without one.
func (t asked) of(table [][]float32) float32 {
	if table == nil {
		return 0
	}
	return table[t.row][t.col]
}
