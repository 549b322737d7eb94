package grpo

import (
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/mcpgym/mcpgym/sandboxes/casetest"
)

// random is a batch of ragged sequences in three groups. Its numbers are such that small steps from them are exact.
func random(seed uint64) Batch {
	r := rand.New(rand.NewPCG(seed, 0))
	exact := func(x float64) float32 { return float32(math.Round(x*1024) / 1024) }
	var b Batch
	for i := range 9 {
		n := 2 + r.IntN(6)
		if i == 4 {
			n = 0 // nothing of it is learned
		}
		mask := make([]bool, 8)
		lp, old, ref, smp, ent := make([]float32, 8), make([]float32, 8), make([]float32, 8), make([]float32, 8), make([]float32, 8)
		for t := range mask {
			mask[t] = t > 0 && t <= n && t != 3
			x := -2 * r.Float64()
			lp[t], old[t], ref[t] = exact(x), exact(x+0.3*r.NormFloat64()), exact(x+0.3*r.NormFloat64())
			smp[t], ent[t] = old[t]+exact(0.1*r.NormFloat64()), exact(2*r.Float64())
		}
		b.Mask = append(b.Mask, mask)
		b.LogProbs, b.Old, b.Reference, b.Sampler, b.Entropy = append(b.LogProbs, lp), append(b.Old, old), append(b.Reference, ref), append(b.Sampler, smp), append(b.Entropy, ent)
		b.Advantages = append(b.Advantages, r.NormFloat64())
	}
	return b
}

// variants are configs of each loss, with and without other terms.
func variants() map[string]Config {
	out := map[string]Config{}
	for _, name := range slices.Sorted(maps.Keys(losses)) {
		c := of(name)
		out[name] = c
		for _, estimator := range []string{"k1", "k2", "k3"} {
			if name == "rloo" || name == "reinforce" {
				continue
			}
			c.KL, c.Estimator, c.KLRatio = 0.3, estimator, true
			out[name+" "+estimator+" with ratio"] = c
			if estimator != "k1" {
				c.KLRatio = false
				out[name+" "+estimator] = c
			}
		}
		c = of(name)
		c.Entropy = 0.2
		out[name+" entropy"] = c
		c.TopEntropy = 0.5
		out[name+" top entropy"] = c
		c = of(name)
		c.OffPolicy = 0.01
		out[name+" off policy"] = c
		for _, mode := range []string{"token_truncate", "token_mask", "sequence_truncate", "sequence_mask"} {
			c = of(name)
			c.Correction = Correction{Mode: mode, Min: 0.9, Max: 1.05}
			out[name+" "+mode] = c
		}
		if losses[name].surrogate == "clip" {
			c = of(name)
			c.Delta = 1.3
			out[name+" delta"] = c
		}
	}
	c := Art()
	c.Steps = 1
	out["art"] = c
	c = of("dapo")
	c.Level = "sequence"
	out["dapo sequence"] = c
	return out
}

// of is a config of a loss.
func of(name string) Config {
	c := Trl()
	c.Steps, c.Loss, c.Correction = 1, name, Correction{}
	c.EpsilonLow, c.EpsilonHigh = 0.2, 0.28
	switch name {
	case "cispo":
		c.EpsilonLow, c.EpsilonHigh = 0, 5
	case "sapo", "reinforce":
		c.EpsilonLow, c.EpsilonHigh = 0, 0
	case "dr_grpo":
		c.Length = 10
	case "gspo":
		c.EpsilonLow, c.EpsilonHigh = 0.05, 0.06
	case "rloo":
		c.Baseline, c.KLRatio = "leave-one-out", false
	}
	return c
}

// Gradients are differences of the loss, of all losses but cispo, whose ratio is a constant.
func TestGradients(t *testing.T) {
	all := variants()
	checked := 0
	for _, name := range slices.Sorted(maps.Keys(all)) {
		c := all[name]
		require.NoError(t, c.Validate(), name)
		if c.Loss == "cispo" {
			continue
		}
		b := random(7)
		_, dLogProbs, dEntropy, _ := Loss(c, b)
		near := func(what string, x *float32, want float32) {
			const h = 1.0 / 4096
			was := *x
			*x = was + h
			more, _, _, _ := Loss(c, b)
			*x = was - h
			less, _, _, _ := Loss(c, b)
			*x = was
			require.InDelta(t, (more-less)/(2*h), want, 2e-6, "%s: %s", name, what)
			if want != 0 {
				checked++
			}
		}
		for i, mask := range b.Mask {
			for k, in := range mask {
				if !in {
					require.Zero(t, dLogProbs[i][k])
				}
				near(fmt.Sprintf("log-probability %d of row %d", k, i), &b.LogProbs[i][k], dLogProbs[i][k])
				if c.Entropy > 0 && c.TopEntropy == 0 {
					near(fmt.Sprintf("entropy %d of row %d", k, i), &b.Entropy[i][k], dEntropy[i][k])
				}
			}
		}
	}
	require.Greater(t, checked, 2000)
}

// An update that is computed in parts is the same as one in one pass, its metrics too.
func TestParts(t *testing.T) {
	all := variants()
	for _, name := range slices.Sorted(maps.Keys(all)) {
		c := all[name]
		if c.TopEntropy > 0 {
			continue // looks at each pass by itself
		}
		b := random(3)
		size := Size{Sequences: float64(len(b.Mask))}
		for _, m := range b.Mask {
			size.Tokens += float64(count(m))
		}
		want, grad, dEntropy, metrics := Loss(c, b)
		got := 0.0
		var pooled Metrics
		for _, cut := range [][2]int{{0, 1}, {1, 5}, {5, 9}} {
			i, j := cut[0], cut[1]
			value, d, de, m := Loss(c, Batch{b.Mask[i:j], b.LogProbs[i:j], b.Old[i:j], b.Reference[i:j], b.Sampler[i:j], b.Entropy[i:j], b.Advantages[i:j], size})
			got += value
			pooled.add(m)
			require.Equal(t, grad[i:j], d, name)
			if c.Entropy > 0 {
				require.Equal(t, dEntropy[i:j], de, name)
			}
		}
		require.InDelta(t, want, got, 1e-12, name)
		for key, m := range metrics.all() {
			require.InDelta(t, m.Sum, pooled.all()[key].Sum, 1e-12, "%s: %s", name, key)
			require.Equal(t, m.Weight, pooled.all()[key].Weight, "%s: %s", name, key)
		}
	}
}

// At the weights that sampled, ratios are 1, nothing is clipped, and the gradient is that of the policy gradient, by each loss but sapo
// whose bound is as steep there.
func TestOnPolicy(t *testing.T) {
	for _, name := range slices.Sorted(maps.Keys(losses)) {
		c := of(name)
		b := random(5)
		b.Old, b.Sampler = nil, nil
		_, grad, _, m := Loss(c, b)
		if name != "reinforce" {
			ratio, ok := m.Ratio.Value()
			require.True(t, ok)
			require.Equal(t, 1.0, ratio, name)
		}
		require.Zero(t, m.ClipLow.Sum+m.ClipHigh.Sum, name)
		for i, mask := range b.Mask {
			n := float64(count(mask))
			for k, in := range mask {
				if !in {
					continue
				}
				want := map[string]float64{"sequences": 1 / (9 * n), "tokens": 1 / total(b), "batch": 1 / total(b), "length": 1.0 / (9 * 10), "sums": 1.0 / 9}[losses[name].mean]
				if name == "rloo" {
					want = 1.0 / 9 // the mean of what the ratio of the whole sequence multiplies
				}
				require.InDelta(t, -b.Advantages[i]*want, grad[i][k], 1e-6, "%s: row %d", name, i)
			}
		}
	}
}

func total(b Batch) (n float64) {
	for _, m := range b.Mask {
		n += float64(count(m))
	}
	return n
}

// The order of sequences, and of groups, changes nothing.
func TestOrder(t *testing.T) {
	all := variants()
	order := rand.New(rand.NewPCG(1, 1)).Perm(9)
	permuted := func(x [][]float32) (out [][]float32) {
		for _, i := range order {
			out = append(out, x[i])
		}
		return out
	}
	for _, name := range slices.Sorted(maps.Keys(all)) {
		b := random(3)
		want, grad, _, _ := Loss(all[name], b)
		p := Batch{LogProbs: permuted(b.LogProbs), Old: permuted(b.Old), Reference: permuted(b.Reference), Sampler: permuted(b.Sampler), Entropy: permuted(b.Entropy)}
		for _, i := range order {
			p.Mask, p.Advantages = append(p.Mask, b.Mask[i]), append(p.Advantages, b.Advantages[i])
		}
		got, d, _, _ := Loss(all[name], p)
		require.InDelta(t, want, got, 1e-12, name)
		require.Equal(t, permuted(grad), d, name)
	}
	groups, values := []string{"a", "a", "a", "b", "b", "b", "c", "c", "c"}, []float64{1, 0, 0.5, 0.1, 0.1, 0.1, -1, 2, 0.3}
	for _, std := range []string{"group", "batch", "none"} {
		c := Trl()
		c.Std, c.Whiten = std, std == "none"
		var g, pg []string
		var r, pr []*float64
		for i := range groups {
			g, r = append(g, groups[i]), append(r, &values[i])
			pg, pr = append(pg, groups[order[i]]), append(pr, &values[order[i]])
		}
		want, err := Advantages(c, g, r)
		require.NoError(t, err)
		got, err := Advantages(c, pg, pr)
		require.NoError(t, err)
		for i, at := range order {
			require.InDelta(t, want[at], got[i], 1e-12)
		}
		require.Equal(t, []float64{0, 0, 0}, want[3:6], "exactly")
	}
}

// Leave-one-out compares with the mean of the others, of those that were scored.
func TestLeaveOneOut(t *testing.T) {
	c := of("rloo")
	c.Std = "none"
	x := []float64{1, 0, 0.5, 0.25}
	got, err := Advantages(c, []string{"a", "a", "a", "a", "a"}, []*float64{&x[0], &x[1], nil, &x[2], &x[3]})
	require.NoError(t, err)
	for i, want := range []float64{1 - 0.25, 0 - 1.75/3, 0, 0.5 - 1.25/3, 0.25 - 0.5} {
		require.InDelta(t, want, got[i], 1e-12)
	}
	c.Whiten = true
	white, err := Advantages(c, []string{"a", "a", "a", "a", "a"}, []*float64{&x[0], &x[1], nil, &x[2], &x[3]})
	require.NoError(t, err)
	d := c.deviation([]float64{got[0], got[1], got[3], got[4]}) + c.Eps
	for i := range got {
		require.InDelta(t, got[i]/d, white[i], 1e-12)
	}
}

// No gap between log-probabilities makes a number that is not finite.
func TestExtremes(t *testing.T) {
	all := variants()
	for _, name := range slices.Sorted(maps.Keys(all)) {
		for _, gap := range []float32{800, -800, 3e5} {
			b := random(3)
			for i := range b.LogProbs {
				b.Old[i][2] += gap
				b.Reference[i][1] -= gap
				b.Sampler[i][4] += gap
			}
			value, grad, _, _ := Loss(all[name], b)
			require.False(t, math.IsNaN(value) || math.IsInf(value, 0), name)
			for _, row := range grad {
				for _, g := range row {
					require.False(t, math.IsNaN(float64(g)) || math.IsInf(float64(g), 0), name)
				}
			}
		}
	}
}

// The presets are of use as they are, but for the number of steps.
func TestPresets(t *testing.T) {
	for _, c := range []Config{Trl(), Art()} {
		require.Error(t, c.Validate())
		c.Steps = 1
		require.NoError(t, c.Validate())
	}
	f := Founding(40)
	require.NoError(t, f.Validate())
	require.Equal(t, 60, f.Steps, "three times 40 tasks, two a step")
	require.Equal(t, 1e-5, f.Optim.Rate)
	require.Equal(t, 16, f.Groups*f.Group)
}

func TestValidate(t *testing.T) {
	for name, x := range map[string]struct {
		loss   string
		change func(*Config)
	}{
		"no loss":                       {"ppo", nil},
		"no level":                      {"grpo", func(c *Config) { c.Level = "turn" }},
		"gspo has no level":             {"gspo", func(c *Config) { c.Level = "token" }},
		"rloo has no level":             {"rloo", func(c *Config) { c.Level = "sequence" }},
		"no mean":                       {"grpo", func(c *Config) { c.Mean = "turns" }},
		"length needed":                 {"dr_grpo", func(c *Config) { c.Length = 0 }},
		"length is of no use":           {"grpo", func(c *Config) { c.Length = 8 }},
		"epsilon_low needed":            {"dapo", func(c *Config) { c.EpsilonLow = 0 }},
		"grpo: epsilon_high needed":     {"grpo", func(c *Config) { c.EpsilonHigh = math.NaN() }},
		"would cut a ratio of 1":        {"cispo", func(c *Config) { c.EpsilonHigh = 0.28 }},
		"epsilon_low is of no use":      {"cispo", func(c *Config) { c.EpsilonLow = 0.2 }},
		"nothing is clipped":            {"sapo", func(c *Config) { c.EpsilonHigh = 0.2 }},
		"delta is of no use":            {"cispo", func(c *Config) { c.Delta = 4 }},
		"delta of 1.2":                  {"grpo", func(c *Config) { c.Delta = 1.2 }},
		"only the first is right":       {"reinforce", func(c *Config) { c.Epochs = 2 }},
		"kl of -1":                      {"grpo", func(c *Config) { c.KL = -1 }},
		"entropy of -1":                 {"grpo", func(c *Config) { c.Entropy = -1 }},
		"no estimator":                  {"grpo", func(c *Config) { c.Estimator = "k4" }},
		"only the estimator k1":         {"rloo", func(c *Config) { c.KL, c.Estimator = 0.1, "k3" }},
		"without kl_ratio makes sense":  {"rloo", func(c *Config) { c.KL, c.KLRatio = 0.1, true }},
		"its gradient is 0 on average":  {"grpo", func(c *Config) { c.KL, c.Estimator, c.KLRatio = 0.1, "k1", false }},
		"top_entropy of 1":              {"grpo", func(c *Config) { c.TopEntropy = 1 }},
		"off_policy of -1":              {"grpo", func(c *Config) { c.OffPolicy = -1 }},
		"overlong of":                   {"grpo", func(c *Config) { c.Overlong = Overlong{20, 20} }},
		"bypass with a correction":      {"grpo", func(c *Config) { c.Bypass, c.Correction = true, Correction{"token_mask", 0, 2} }},
		"bypass is of no use":           {"rloo", func(c *Config) { c.Bypass, c.KL = true, 0.1 }},
		"correction: mode needed":       {"grpo", func(c *Config) { c.Correction.Max = 2 }},
		"correction: no mode":           {"grpo", func(c *Config) { c.Correction = Correction{"mask", 0, 2} }},
		"ratios from 0 to 0.5":          {"grpo", func(c *Config) { c.Correction = Correction{"token_mask", 0, 0.5} }},
		"no baseline":                   {"grpo", func(c *Config) { c.Baseline = "" }},
		"the baseline is leave-one-out": {"rloo", func(c *Config) { c.Baseline = "mean" }},
		"no std":                        {"grpo", func(c *Config) { c.Std = "" }},
		"eps of 0":                      {"grpo", func(c *Config) { c.Eps = 0 }},
		"divided by twice":              {"grpo", func(c *Config) { c.Std, c.Whiten = "batch", true }},
		"0 steps":                       {"grpo", func(c *Config) { c.Steps = 0 }},
		"group of 1":                    {"grpo", func(c *Config) { c.Group = 1 }},
		"updates of 9":                  {"grpo", func(c *Config) { c.Updates = 9 }},
		"tasks of 3":                    {"grpo", func(c *Config) { c.Tasks, c.Groups = 3, 4 }},
		"dynamic of -1":                 {"grpo", func(c *Config) { c.Dynamic = -1 }},
		"temperature of 0":              {"grpo", func(c *Config) { c.Temperature = 0 }},
		"schedule of":                   {"grpo", func(c *Config) { c.Schedule.Decay = "step" }},
	} {
		c := of(x.loss)
		if x.change != nil {
			require.NoError(t, c.Validate(), name)
			x.change(&c)
		}
		require.ErrorContains(t, c.Validate(), name)
	}
}

func TestCases(t *testing.T) {
	advantages := func(t *testing.T, c casetest.Case) {
		text := strings.ReplaceAll(c.Input, "NaN", `"NaN"`)
		var raw struct {
			Rewards []any
			Tasks   []string
			Std     string
			Eps     float64
		}
		require.NoError(t, json.Unmarshal([]byte(text), &raw))
		cfg := Trl()
		cfg.Eps = raw.Eps
		switch raw.Std {
		case "population":
			cfg.Population = true
		case "none":
			cfg.Std = "none"
		}
		var rewards []*float64
		for _, r := range raw.Rewards {
			var at *float64
			switch r := r.(type) {
			case float64:
				at = &r
			case string:
				v, err := strconv.ParseFloat(r, 64)
				require.NoError(t, err)
				at = &v
			}
			rewards = append(rewards, at)
		}
		groups := raw.Tasks
		if groups == nil {
			groups = make([]string, len(rewards))
		}
		got, err := Advantages(cfg, groups, rewards)
		if err != nil {
			c.Check(t, map[string]any{"error": true})
			return
		}
		none := !differ(rewards)
		c.Check(t, map[string]any{"advantages": got, "no_signal": none})
		if none {
			require.Equal(t, make([]float64, len(got)), got, "exactly 0")
		}
	}
	casetest.Run(t, "advantage", advantages)
	casetest.Run(t, "groups", advantages)
	casetest.Run(t, "signal", func(t *testing.T, c casetest.Case) {
		var in struct {
			P     float64
			Group int
		}
		c.In(t, &in)
		c.Check(t, map[string]any{"useful_share": math.Round(Signal(in.P, in.Group)*1e4) / 1e4})
	})
	casetest.Run(t, "ratio", func(t *testing.T, c casetest.Case) {
		var in struct {
			Old, New, Sampler []*float32
			Mask              []int
			Cap               float64
		}
		c.In(t, &in)
		row := func(x []*float32) [][]float32 {
			out := make([]float32, len(in.Mask))
			for i, v := range x {
				out[i] = float32(math.NaN())
				if v != nil {
					out[i] = *v
				}
			}
			return [][]float32{out}
		}
		b := Batch{Mask: [][]bool{make([]bool, len(in.Mask))}, Old: row(in.Old), LogProbs: row(in.Old), Entropy: row(nil), Advantages: []float64{1}}
		for i := range in.Mask {
			b.Mask[0][i] = in.Mask[i] == 1
		}
		var got []float64
		cfg := of("dapo")
		if in.Sampler != nil {
			b.Sampler = row(in.Sampler)
			cfg.Correction = Correction{Mode: "token_truncate", Max: 3}
			var tokens []int
			for i := range in.Mask {
				tokens = append(tokens, i)
			}
			got = b.correction(cfg, 0, tokens)
		} else { // what the loss makes of one token's gradient is its bounded ratio
			b.LogProbs = row(in.New)
			cfg = of("cispo")
			cfg.EpsilonHigh = in.Cap
			_, d, _, _ := Loss(cfg, b)
			for i := range in.Mask {
				got = append(got, -float64(d[0][i])*total(b))
			}
		}
		value, _, _, _ := Loss(cfg, b)
		c.Check(t, map[string]any{"ratio": got, "finite": !math.IsNaN(value) && !math.IsInf(value, 0)})
	})
	casetest.Run(t, "ratio-sequence", func(t *testing.T, c casetest.Case) {
		var in struct {
			Gap    float64 `json:"gap_per_token"`
			Tokens int
			Mode   string
			Cap    float64
		}
		c.In(t, &in)
		b := Batch{Mask: [][]bool{make([]bool, in.Tokens)}, Old: [][]float32{make([]float32, in.Tokens)}, Sampler: [][]float32{make([]float32, in.Tokens)}}
		var tokens []int
		for i := range in.Tokens {
			tokens = append(tokens, i)
			b.Sampler[0][i] = -float32(in.Gap)
		}
		cfg := of("dapo")
		cfg.Correction = Correction{Mode: in.Mode, Max: in.Cap}
		got := b.correction(cfg, 0, tokens)
		require.Len(t, slices.Compact(slices.Clone(got)), 1, "one ratio for all")
		c.Check(t, map[string]any{"ratio": math.Round(got[0]*1e4) / 1e4, "kept": got[0] > 0})
	})
	casetest.Run(t, "overlong", func(t *testing.T, c casetest.Case) {
		var in struct{ Max, Cache, Length int }
		c.In(t, &in)
		c.Check(t, map[string]any{"reward": SoftOverlong(Overlong{in.Max, in.Cache}, in.Length)})
	})
	casetest.Run(t, "loss-config", func(t *testing.T, c casetest.Case) {
		var in struct {
			Loss        string
			EpsilonHigh *float64 `json:"epsilon_high"`
		}
		c.In(t, &in)
		cfg := of(in.Loss)
		cfg.EpsilonHigh = 0
		if in.EpsilonHigh != nil {
			cfg.EpsilonHigh = *in.EpsilonHigh
		}
		var want struct{ Error string }
		require.NoError(t, json.Unmarshal([]byte(c.Want), &want))
		err := cfg.Validate()
		require.Error(t, err)
		require.ErrorContains(t, err, want.Error)
	})
	casetest.Run(t, "pool-mean", func(t *testing.T, c casetest.Case) {
		var in struct {
			Shards []struct{ Sum, Count float64 }
		}
		c.In(t, &in)
		var m Mean
		for _, s := range in.Shards {
			m.Add(s.Sum, s.Count)
		}
		mean, _ := m.Value()
		c.Check(t, map[string]any{"mean": mean})
	})
	casetest.Run(t, "metric-mean", func(t *testing.T, c casetest.Case) {
		var in struct{ Rows []map[string]float64 }
		c.In(t, &in)
		var m Mean
		for _, row := range in.Rows {
			if v, ok := row["m"]; ok {
				m.Add(v, 1)
			}
		}
		mean, _ := m.Value()
		c.Check(t, map[string]any{"mean": mean, "count": int(m.Weight)})
	})
	_, ok := Mean{}.Value()
	require.False(t, ok)
	require.Equal(t, []float64{0, 0, -0.05, -1, -1}, []float64{SoftOverlong(Overlong{}, 1000), SoftOverlong(Overlong{100, 20}, 3), SoftOverlong(Overlong{100, 20}, 81),
		SoftOverlong(Overlong{100, 20}, 100), SoftOverlong(Overlong{100, 20}, 400)})
}
