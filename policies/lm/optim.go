package lm

import (
	"context"
	"errors"
	"fmt"
	"math"

	"github.com/mcpgym/mcpgym/policies/engine"
	"github.com/mcpgym/mcpgym/policies/lm/internal/f32"
)

// optimState holds all that is trained, one tensor after the other.
type optimState struct {
	w, g, m, v []float32
	segments   []segment
}

// segment is a part of a tensor, small enough that the parts keep all cores busy. Sums over it are added up in order, so that
// results do not depend on the number of cores.
type segment struct {
	lo, hi int
	tensor *tensor
}

const segmentSize = 1 << 15

func (s *optimState) place(trained []*tensor) {
	n := 0
	for _, t := range trained {
		n += t.size()
	}
	if n == 0 {
		return
	}
	s.w, s.g, s.m, s.v = make([]float32, n), make([]float32, n), make([]float32, n), make([]float32, n)
	at := 0
	for _, t := range trained {
		end := at + t.size()
		t.w, t.g = s.w[at:end:end], s.g[at:end:end]
		for ; at < end; at = min(at+segmentSize, end) {
			s.segments = append(s.segments, segment{at, min(at+segmentSize, end), t})
		}
	}
}

// Step updates what is trained from the gradients that have been added up, and clears these. It returns their global norm before
// clipping. Where that is not finite the weights, their moments and Version stay, and the error wraps engine.ErrNotFinite.
func (e *Engine) Step(ctx context.Context, o engine.Optim) (float64, error) {
	if len(e.trained) == 0 {
		return 0, errNothingTrained
	}
	if err := ctx.Err(); err != nil {
		return 0, err
	}
	if err := checkOptim(o); err != nil {
		return 0, fmt.Errorf("step: %w", err)
	}
	s := &e.values
	sums := make([]float64, len(s.segments))
	f32.Parallel(len(sums), 1, func(lo, hi int) {
		for i := lo; i < hi; i++ {
			sums[i] = f32.SumSquares(s.g[s.segments[i].lo:s.segments[i].hi])
		}
	})
	var norm float64
	for _, x := range sums {
		norm += x
	}
	norm = math.Sqrt(norm)
	if math.IsNaN(norm) || math.IsInf(norm, 0) {
		clear(s.g)
		return norm, fmt.Errorf("step: the gradients' norm is %v: %w", norm, engine.ErrNotFinite)
	}
	a := f32.Adam{Step: e.version + 1, Rate: o.Rate, Beta1: o.Beta1, Beta2: o.Beta2, Epsilon: o.Epsilon, Scale: 1}
	if o.Clip > 0 {
		a.Scale = min(1, o.Clip/(norm+1e-6))
	}
	f32.Parallel(len(s.segments), 1, func(lo, hi int) {
		for _, part := range s.segments[lo:hi] {
			a := a
			if part.tensor.decay {
				a.Decay = o.WeightDecay
			}
			i, j := part.lo, part.hi
			f32.AdamW(s.w[i:j], s.g[i:j], s.m[i:j], s.v[i:j], a)
			clear(s.g[i:j])
		}
	})
	e.version++
	e.changes++
	return norm, nil
}

var errNothingTrained = errors.New("nothing of this model is trained: it was opened without Full, LoRA or Adapter")

// checkOptim refuses what would make weights that are not numbers.
func checkOptim(o engine.Optim) error {
	for _, x := range []float64{o.Rate, o.WeightDecay, o.Clip} {
		if !(x >= 0) || math.IsInf(x, 0) {
			return fmt.Errorf("a rate of %v, weight decay of %v or clip of %v", o.Rate, o.WeightDecay, o.Clip)
		}
	}
	if !(o.Beta1 >= 0 && o.Beta1 < 1 && o.Beta2 >= 0 && o.Beta2 < 1) {
		return fmt.Errorf("betas of %v and %v", o.Beta1, o.Beta2)
	}
	if !(o.Epsilon > 0) || math.IsInf(o.Epsilon, 0) {
		return fmt.Errorf("an epsilon of %v", o.Epsilon)
	}
	return nil
}
