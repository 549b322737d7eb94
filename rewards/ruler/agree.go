package ruler

import (
	"math"

	"github.com/mcpgym/mcpgym/envs"
)

// tau is Kendall's tau-b between two lists of scores: 1 is the same order, -1 the reverse. It is 0 where one of the lists has
// no order at all.
func tau(a, b []float64) float64 {
	var agree, inA, inB float64 // pairs: agreeing less disagreeing, ordered by a, ordered by b
	for i := range a {
		for j := range i {
			x, y := sign(a[i]-a[j]), sign(b[i]-b[j])
			agree += x * y
			inA += x * x
			inB += y * y
		}
	}
	if inA == 0 || inB == 0 {
		return 0
	}
	return agree / math.Sqrt(inA*inB)
}

func sign(x float64) float64 {
	switch {
	case x > 0:
		return 1
	case x < 0:
		return -1
	}
	return 0
}

// bias is how much more a trajectory gets in the first place than in the last, by least squares over how the scores of each
// trajectory move with its place. What a trajectory is worth cancels out.
func bias(first, second []float64, place1, place2 []int) float64 {
	var moved, square float64
	for i := range first {
		d := float64(place2[i] - place1[i])
		moved += d * (first[i] - second[i])
		square += d * d
	}
	if square == 0 {
		return 0
	}
	return moved / square * float64(len(first)-1)
}

// Accuracy is the share of pairs with different true values that the scores put in the right order; equal scores are half
// right. Trajectories without a score or without a true value are left out. Where no pair is left, pairs is 0 and so is share.
// The true value of a trajectory is its own Score.
func Accuracy(scores []*envs.Score, group []*envs.Trajectory) (share float64, pairs int) {
	right := 0.0
	for i, a := range group {
		for j, b := range group[:i] {
			if a.Score == nil || b.Score == nil || scores[i] == nil || scores[j] == nil || a.Score.Value == b.Score.Value {
				continue
			}
			pairs++
			right += (1 + sign(scores[i].Value-scores[j].Value)*sign(a.Score.Value-b.Score.Value)) / 2
		}
	}
	if pairs == 0 {
		return 0, 0
	}
	return right / float64(pairs), pairs
}
