// Package schedule says what comes when in a training run: how many steps there are, at which rate each is taken, and what goes through
// an engine together.
package schedule

import (
	"fmt"
	"iter"
	"math"
	"slices"
)

// Rate says how the learning rate changes: it rises for Warmup steps, then falls to the share Floor of the highest.
type Rate struct {
	Warmup int
	Decay  string // "cosine" or "linear"; "" for none
	Floor  float64
}

// Validate says what is wrong with a schedule.
func (r Rate) Validate() error {
	if r.Warmup < 0 || !slices.Contains([]string{"cosine", "linear", ""}, r.Decay) || !(r.Floor >= 0 && r.Floor <= 1) {
		return fmt.Errorf("schedule of %+v", r)
	}
	return nil
}

// At is the rate of a step, counted from 0, of a run of so many steps.
func (r Rate) At(highest float64, step, steps int) float64 {
	if step < r.Warmup {
		return highest * float64(step+1) / float64(r.Warmup)
	}
	left := float64(steps-step) / float64(steps-r.Warmup) // as transformers has it: not yet 0 at the last step
	switch r.Decay {
	case "cosine":
		left = (1 - math.Cos(math.Pi*left)) / 2
	case "":
		left = 1
	}
	return highest * (r.Floor + (1-r.Floor)*left)
}

// Steps is how many steps it takes to see every example so many times. The last one may go on into another epoch.
func Steps(epochs, examples, batch int) int { return (epochs*examples + batch - 1) / batch }

// Passes divides rows into passes of at most most distinct tokens, or more where a single row has more. Tokens of two rows are the same
// where they are equal and so is all that comes before them: an engine may compute them once. Rows that begin alike stand together. An
// engine that pads, or computes each row on its own, is to cut a pass that is too large for it.
func Passes[T any](rows []T, tokens func(T) []int32, most int) iter.Seq[[]T] {
	return func(yield func([]T) bool) {
		rows := slices.SortedStableFunc(slices.Values(rows), func(a, b T) int { return slices.Compare(tokens(a), tokens(b)) })
		for len(rows) > 0 {
			n, distinct := 1, len(tokens(rows[0]))
			most := max(most, distinct)
			for ; n < len(rows); n++ {
				// In this order the row before has the most in common with a row of all that come before.
				next := tokens(rows[n])
				if distinct += len(next) - alike(tokens(rows[n-1]), next); distinct > most {
					break
				}
			}
			if !yield(rows[:n:n]) {
				return
			}
			rows = rows[n:]
		}
	}
}

// alike is how many tokens two rows begin with alike.
func alike(a, b []int32) int {
	n := 0
	for n < min(len(a), len(b)) && a[n] == b[n] {
		n++
	}
	return n
}
