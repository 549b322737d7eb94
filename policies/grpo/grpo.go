// Package grpo trains an engine by group relative policy optimisation: each task is played by a group of episodes, and what did better
// than its group becomes likelier.
//
// This file is the algorithm: advantages, the loss with its gradients, and metrics. The loop around it is in train.go. It departs from
// the papers, and from TRL 1.16 whose numbers it reproduces, in these points:
//
//   - Rewards of a group that are all equal give advantages of exactly 0, whatever rounding makes of their mean.
//   - Rows without advantage go through no pass where no other term learns from them. They still count in all means. A step in which
//     there is nothing to learn takes no step of the optimiser, where others go on by momentum.
//   - Means are over all sequences of an update, however many passes these need: TRL's accumulation of gradients, with one process. Only
//     TopEntropy looks at each pass by itself, as it does there.
//   - The updates of an epoch are of whole groups, as far as that comes out even (as in verl), where TRL shuffles episodes. Members begin
//     alike, and what they share goes through a pass once.
//   - Logarithms of ratios are bounded by 20 on both sides (as verl does), so that none overflows. There is no gradient beyond.
//   - A group with void episodes is completed or left out whole. An episode that was not scored is no part of the group's baseline, and
//     has no advantage (as in TRL 1.16).
//   - With Dynamic, groups without signal are replaced, as DAPO says and TRL does not; a step has fewer groups where that has been tried
//     often enough. Where another term learns from their tokens they stay, in addition.
//   - Lengths, those of Overlong and of Config.Length, are in tokens that the model wrote. What tools answered does not count.
package grpo

import (
	"errors"
	"fmt"
	"math"
	"slices"
)

// Advantages gives each episode's, of which groups has the task and rewards the reward: nil for one that was not scored. Groups may be
// mixed. A reward that is not finite is an error.
func Advantages(c Config, groups []string, rewards []*float64) ([]float64, error) {
	if len(groups) != len(rewards) {
		return nil, fmt.Errorf("advantages of %d rewards in groups of %d", len(rewards), len(groups))
	}
	members := map[string][]int{} // that were scored
	var scored []float64
	for i, r := range rewards {
		if r == nil {
			continue
		}
		if math.IsNaN(*r) || math.IsInf(*r, 0) {
			return nil, fmt.Errorf("advantages: the reward %d, of %s, is %v", i, groups[i], *r)
		}
		members[groups[i]] = append(members[groups[i]], i)
		scored = append(scored, *r)
	}
	out := make([]float64, len(rewards))
	for _, in := range members {
		var of []float64
		for _, i := range in {
			of = append(of, *rewards[i])
		}
		if !signal(of) {
			continue
		}
		mean := meanOf(of)
		for _, i := range in {
			a := *rewards[i] - mean // GRPO
			if c.Baseline == "leave-one-out" {
				a *= float64(len(of)) / float64(len(of)-1) // r - (sum - r)/(n-1): RLOO
			}
			switch c.Std {
			case "group":
				a /= c.deviation(of) + c.Eps
			case "batch":
				a /= c.deviation(scored) + c.Eps
			}
			out[i] = a
		}
	}
	if c.Whiten {
		c.whiten(out, rewards)
	}
	return out, nil
}

// whiten divides advantages by their deviation. Their mean is 0 already.
func (c Config) whiten(advantages []float64, rewards []*float64) {
	var of []float64
	for i, a := range advantages {
		if rewards[i] != nil {
			of = append(of, a)
		}
	}
	if !signal(of) {
		return
	}
	d := c.deviation(of) + c.Eps
	for i := range advantages {
		advantages[i] /= d
	}
}

// signal says whether rewards differ.
func signal(rewards []float64) bool {
	return len(rewards) > 1 && slices.Max(rewards) != slices.Min(rewards)
}

func meanOf(x []float64) float64 {
	sum := 0.0
	for _, v := range x {
		sum += v
	}
	return sum / float64(len(x))
}

func (c Config) deviation(x []float64) float64 {
	n := float64(len(x) - 1)
	if c.Population {
		n++
	}
	mean, sum := meanOf(x), 0.0
	for _, v := range x {
		sum += (v - mean) * (v - mean)
	}
	return math.Sqrt(sum / n)
}

// Signal is the probability that a group's episodes differ, where each succeeds with the probability p on its own.
func Signal(p float64, group int) float64 {
	return 1 - math.Pow(p, float64(group)) - math.Pow(1-p, float64(group))
}

// SoftOverlong is what is added to the reward of an episode of so many tokens: nothing up to o.Max - o.Cache, -1 from o.Max on, and what
// is on the line between (DAPO, eq. 13).
func SoftOverlong(o Overlong, length int) float64 {
	if o.Max == 0 {
		return 0
	}
	return max(min(float64(o.Max-o.Cache-length)/float64(o.Cache), 0), -1)
}

// Batch is what Loss is computed from. Its tables have a row for each sequence and the shape of Mask, which has the tokens that carry loss.
// What they hold elsewhere is not looked at.
type Batch struct {
	Mask       [][]bool
	LogProbs   [][]float32 // by the policy
	Old        [][]float32 // by the policy as it was at sampling; nil: by this one
	Reference  [][]float32 // is there where the loss has KL
	Sampler    [][]float32 // as they were when sampled; NaN: not known; nil: Old
	Entropy    [][]float32
	Advantages []float64
	Of         Size // of the update that this is a part of; zero: of this
}

// Size is what means are over. Of an epoch of several updates, the mean "batch" has Tokens as many as there are in one update on average.
type Size struct{ Sequences, Tokens float64 }

// Metrics are means over a batch. Of the parts of an update they are added up.
type Metrics struct {
	Entropy   Mean
	KL        Mean // as it is in the loss, or in the reward
	Ratio     Mean
	ClipLow   Mean // the share of ratios, of tokens or of sequences, that are below the bound where advantages are negative
	ClipHigh  Mean // and above it where they are positive: those through which no gradient goes
	Corrected Mean // what the loss is multiplied by for the difference between sampling and training
	OffPolicy Mean // the share of sequences left out
}

// Mean is a mean that can be pooled: of values each with a weight.
type Mean struct{ Sum, Weight float64 }

// Add adds values' mean, or what else has a sum and a weight.
func (m *Mean) Add(sum, weight float64) { m.Sum, m.Weight = m.Sum+sum, m.Weight+weight }

// Value is the mean, if there is any value.
func (m Mean) Value() (mean float64, ok bool) { return m.Sum / m.Weight, m.Weight > 0 }

// add pools metrics.
func (m *Metrics) add(o Metrics) {
	to, from := m.all(), o.all()
	for name, x := range to {
		x.Add(from[name].Sum, from[name].Weight)
	}
}

func (m *Metrics) all() map[string]*Mean {
	return map[string]*Mean{"entropy": &m.Entropy, "kl": &m.KL, "ratio": &m.Ratio, "clip_low": &m.ClipLow, "clip_high": &m.ClipHigh,
		"correction": &m.Corrected, "off_policy": &m.OffPolicy}
}

// Loss is the loss of a batch, and its gradients with respect to the log-probabilities and the entropies, which are nil where it has no
// term of them. The config is one that Validate accepts.
func Loss(c Config, b Batch) (value float64, dLogProbs, dEntropy [][]float32, m Metrics) {
	parts := c.parts()
	if b.Old == nil {
		b.Old = b.LogProbs
	}
	if b.Sampler == nil {
		b.Sampler = b.Old
	}
	total := Size{Sequences: float64(len(b.Mask))}
	for _, row := range b.Mask {
		total.Tokens += float64(count(row))
	}
	if b.Of == (Size{}) {
		b.Of = total
	}
	learned, acting := c.topEntropy(b)

	for i, mask := range b.Mask {
		grad := make([]float32, len(mask))
		dLogProbs = append(dLogProbs, grad)
		var tokens []int
		for t, in := range mask {
			if in {
				tokens = append(tokens, t)
			}
		}
		n := float64(len(tokens))
		a := b.Advantages[i]
		keep := b.keep(c, i, tokens, &m)
		correct := b.correction(c, i, tokens)

		// The ratio w: of each token, of the sequence (GSPO, eq. 7: the geometric mean), or their product (RLOO).
		logs := 0.0
		for _, t := range tokens {
			logs += diff(b.LogProbs, b.Old, i, t)
		}
		ofSequence := parts.level == "sequence" || parts.level == "product"
		spread := 1.0 // d log w / d log-probability of a token
		if parts.level == "sequence" {
			spread = 1 / max(n, 1)
		}
		w, slope := ratio(logs * spread)
		if ofSequence {
			c.clipped(parts, w, a, &m)
		}

		weight := c.weight(parts.mean, n, b.Of)
		dRatio := 0.0 // with respect to the sequence's ratio
		for _, t := range tokens {
			if parts.level == "token" {
				w, slope = ratio(diff(b.LogProbs, b.Old, i, t))
				c.clipped(parts, w, a, &m)
			}
			p, dw, dl := c.surrogate(parts.surrogate, w, a, float64(b.LogProbs[i][t]))
			f := keep * correct[t]
			if c.Correction.Mode != "" {
				m.Corrected.Add(correct[t], 1)
			}
			if learned != nil && !learned[i][t] {
				f = 0
			}
			p, dw, dl = f*p, f*dw, f*dl
			if c.lossKL() {
				k, dk := divergence(c.estimator(), diff(b.LogProbs, b.Reference, i, t))
				if c.KLRatio { // DeepSeek-V3.2 (2512.02556); the ratio carries gradient
					k, dk, dw = k*w, dk*w, dw+c.KL*k
				}
				p, dl = p+c.KL*k, dl+c.KL*dk
				m.KL.Add(k, 1)
			}
			value += weight * p
			grad[t] = float32(weight * dl)
			if ofSequence {
				dRatio += weight * dw
			} else {
				grad[t] = float32(weight * (dl + dw*w*slope))
			}
			m.Entropy.Add(float64(b.Entropy[i][t]), 1)
		}
		if ofSequence {
			for _, t := range tokens {
				grad[t] += float32(dRatio * w * slope * spread)
			}
		}
	}

	if c.Entropy > 0 && acting > 0 {
		e := c.Entropy * total.Tokens / b.Of.Tokens / acting // so that it is the mean over what is learned from
		for i, mask := range b.Mask {
			dEntropy = append(dEntropy, make([]float32, len(mask)))
			for t, in := range mask {
				if in && (learned == nil || learned[i][t]) {
					value -= e * float64(b.Entropy[i][t])
					dEntropy[i][t] = -float32(e)
				}
			}
		}
	}
	return value, dLogProbs, dEntropy, m
}

func count(mask []bool) (n int) {
	for _, in := range mask {
		if in {
			n++
		}
	}
	return n
}

func diff(a, b [][]float32, i, t int) float64 { return float64(a[i][t]) - float64(b[i][t]) }

// ratio is exp(log) within bounds, and the slope of the bounded log.
func ratio(log float64) (w, slope float64) {
	const bound = 20
	if log > bound || log < -bound {
		return math.Exp(max(min(log, bound), -bound)), 0
	}
	return math.Exp(log), 1
}

// weight is what a token's loss counts, in a sequence of n tokens.
func (c Config) weight(mean string, n float64, of Size) float64 {
	switch mean {
	case "sequences": // the mean over sequences of their means
		return 1 / (of.Sequences * max(n, 1))
	case "length": // of their sums, each divided by the same number
		return 1 / (of.Sequences * float64(c.Length))
	case "sums": // of their sums
		return 1 / of.Sequences
	}
	return 1 / max(of.Tokens, 1) // tokens, batch: the mean over tokens
}

// surrogate is what of a token's loss the policy gradient comes from, for the ratio w and the log-probability l, and its derivatives.
func (c Config) surrogate(kind string, w, a, l float64) (p, dw, dl float64) {
	switch kind {
	case "log":
		return -a * l, 0, -a
	case "cispo": // the bounded ratio is a constant
		w = min(w, c.EpsilonHigh)
		return -w * a * l, 0, -w * a
	case "sapo": // a soft bound, which is tighter where a is negative
		tau := 1.0
		if a <= 0 {
			tau = 1.05
		}
		s := 1 / (1 + math.Exp(-tau*(w-1)))
		return -a * s * 4 / tau, -a * 4 * s * (1 - s), 0
	}
	// PPO (1707.06347), eq. 7; DAPO's higher bound; INTELLECT-2's delta (2505.07291).
	free, dFree := w*a, a
	if c.Delta > 0 && w > c.Delta {
		free, dFree = c.Delta*a, 0
	}
	bound, dBound := w*a, a
	if low, high := 1-c.EpsilonLow, 1+c.EpsilonHigh; w < low || w > high {
		bound, dBound = min(max(w, low), high)*a, 0
	}
	switch {
	case free < bound:
		return -free, -dFree, 0
	case bound < free:
		return -bound, -dBound, 0
	}
	return -free, -(dFree + dBound) / 2, 0
}

// clipped counts a ratio.
func (c Config) clipped(parts loss, w, a float64, m *Metrics) {
	m.Ratio.Add(w, 1)
	low, high := 0.0, 0.0
	switch parts.surrogate {
	case "clip":
		if w < 1-c.EpsilonLow && a < 0 {
			low = 1
		}
		if w > 1+c.EpsilonHigh && a > 0 {
			high = 1
		}
		m.ClipLow.Add(low, 1)
		m.ClipHigh.Add(high, 1)
	case "cispo":
		if w > c.EpsilonHigh && a > 0 {
			high = 1
		}
		m.ClipHigh.Add(high, 1)
	}
}

// divergence estimates that of the policy from the reference, for x = log(policy/reference), with its derivative (Schulman, Approximating
// KL Divergence).
func divergence(estimator string, x float64) (k, dk float64) {
	switch estimator {
	case "k1":
		return x, 1
	case "k2":
		return x * x / 2, x
	}
	r, slope := ratio(-x)
	return r + x - 1, 1 - r*slope
}

// topEntropy has the tokens that are learned from, nil for all, and how many there are (Beyond the 80/20 Rule, 2506.01939).
func (c Config) topEntropy(b Batch) (learned [][]bool, n float64) {
	var all []float64
	for i, mask := range b.Mask {
		for t, in := range mask {
			if in {
				all = append(all, float64(b.Entropy[i][t]))
			}
		}
	}
	if c.TopEntropy == 0 || len(all) == 0 {
		return nil, float64(len(all))
	}
	slices.Sort(all)
	at := (1 - c.TopEntropy) * float64(len(all)-1)
	below, part := math.Modf(at)
	least := all[int(below)]
	if part > 0 {
		least += part * (all[int(below)+1] - least)
	}
	for i, mask := range b.Mask {
		learned = append(learned, make([]bool, len(mask)))
		for t, in := range mask {
			if in && float64(b.Entropy[i][t]) >= least {
				learned[i][t] = true
				n++
			}
		}
	}
	return learned, n
}

// keep is 0 for a sequence that is left out as it failed and the policy has gone away from it since (DeepSeek-V3.2, eq. 9), else 1.
func (b Batch) keep(c Config, i int, tokens []int, m *Metrics) float64 {
	if c.OffPolicy == 0 {
		return 1
	}
	gone := 0.0
	for _, t := range tokens {
		if d := diff(b.Sampler, b.LogProbs, i, t); !math.IsNaN(d) {
			gone += d
		}
	}
	if b.Advantages[i] < 0 && gone/max(float64(len(tokens)), 1) > c.OffPolicy {
		m.OffPolicy.Add(1, 1)
		return 0
	}
	m.OffPolicy.Add(0, 1)
	return 1
}

// correction is what the policy's loss of each token is multiplied by (truncated importance sampling, Yao et al. 2025, and its masked and
// sequence-level forms). A token that the sampler gave no probability counts as one that both agree on.
func (b Batch) correction(c Config, i int, tokens []int) []float64 {
	out := make([]float64, len(b.Mask[i]))
	sum := 0.0
	for _, t := range tokens {
		if d := diff(b.Old, b.Sampler, i, t); !math.IsNaN(d) {
			out[t] = d
			sum += d
		}
	}
	for _, t := range tokens {
		d := out[t]
		if c.Correction.Mode == "sequence_truncate" || c.Correction.Mode == "sequence_mask" {
			d = sum
		}
		out[t] = c.Correction.of(d)
	}
	return out
}

func (c Correction) of(log float64) float64 {
	r, _ := ratio(log)
	switch c.Mode {
	case "":
		return 1
	case "token_truncate", "sequence_truncate":
		return min(max(r, c.Min), c.Max)
	}
	if r < c.Min || r > c.Max {
		return 0
	}
	return r
}

var errNotTrainable = errors.New("no trainable turn: none was sampled")
