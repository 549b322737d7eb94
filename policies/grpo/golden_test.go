package grpo

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/mcpgym/mcpgym/policies/engine"
	"github.com/mcpgym/mcpgym/policies/lm"
)

// golden has what TRL 1.16 computed: see testdata/README.md.
type golden struct {
	Inputs struct {
		NumGenerations   int         `json:"num_generations"`
		CompletionMask   [][]int     `json:"completion_mask"`
		ToolMask         [][]int     `json:"tool_mask"`
		LogProbs         [][]float32 `json:"logprobs"`
		Old              [][]float32 `json:"old_logprobs"`
		Ref              [][]float32 `json:"ref_logprobs"`
		Sampler          [][]float32 `json:"sampler_logprobs"`
		Entropy          [][]float32
		MaxLength        int       `json:"max_completion_length"`
		Tokens           float64   `json:"num_items_in_batch"`
		Advantages       []float64 `json:"advantages_scale_group"`
		TotalRewardsUsed []float64 `json:"rewards"`
	}
	Losses map[string]struct {
		Config  trlConfig
		Loss    float64
		Grad    [][]float64
		Metrics map[string]float64
	}
	Advantages map[string]struct {
		Config struct {
			Scale       string    `json:"scale_rewards"`
			Weights     []float64 `json:"reward_weights"`
			Aggregation string    `json:"multi_objective_aggregation"`
		}
		Rewards    [][]*float64
		Advantages []float64
		Zero       float64 `json:"frac_reward_zero_std"`
	}
	EndToEnd struct {
		Prompts     [][]int32 `json:"prompt_ids"`
		Completions [][]int32 `json:"completion_ids"`
		Advantages  []float64
		Cases       []struct {
			Loss        string `json:"loss_type"`
			Beta        float64
			Temperature float64
			Epsilon     float64
			EpsilonHigh float64 `json:"epsilon_high"`
			Value       float64 `json:"loss"`
			LogProbs    [][]float32
			Ref         [][]float32 `json:"ref_logprobs"`
			Old         [][]float32 `json:"old_logprobs"`
			Entropy     [][]float32
			GradNorm    float64              `json:"grad_global_norm"`
			GradL2      map[string]float64   `json:"grad_l2"`
			GradFirst   map[string][]float64 `json:"grad_first4"`
		}
	} `json:"end_to_end"`
}

type trlConfig struct {
	Loss         string   `json:"loss_type"`
	Beta         float64  `json:"beta"`
	Epsilon      *float64 `json:"epsilon"`
	EpsilonHigh  *float64 `json:"epsilon_high"`
	Level        string   `json:"importance_sampling_level"`
	Delta        float64  `json:"delta"`
	KLRatio      *bool    `json:"use_bias_correction_kl"`
	OffPolicy    float64  `json:"off_policy_mask_threshold"`
	TopEntropy   float64  `json:"top_entropy_quantile"`
	Accumulation int      `json:"gradient_accumulation_steps"`
	Mode         string   `json:"vllm_importance_sampling_mode"`
	Max          float64  `json:"vllm_importance_sampling_clip_max"`
}

func readGolden(t *testing.T) golden {
	t.Helper()
	data, err := os.ReadFile("testdata/trl_golden.json")
	require.NoError(t, err)
	var g golden
	require.NoError(t, json.Unmarshal(data, &g))
	require.Len(t, g.Losses, 33)
	require.Len(t, g.Advantages, 7)
	require.Len(t, g.EndToEnd.Cases, 2)
	return g
}

// config translates.
func (x trlConfig) config(length int) Config {
	c := Trl()
	c.Loss, c.Level, c.KL, c.Delta, c.OffPolicy, c.TopEntropy = x.Loss, x.Level, x.Beta, x.Delta, x.OffPolicy, x.TopEntropy
	c.Steps, c.Correction = 1, Correction{Mode: x.Mode, Max: x.Max}
	if x.Level == "sequence" && x.Loss == "grpo" {
		c.Loss, c.Level = "gspo", "" // the same by its name
	}
	if x.Epsilon != nil {
		c.EpsilonLow, c.EpsilonHigh = *x.Epsilon, *x.Epsilon
	}
	if x.EpsilonHigh != nil {
		c.EpsilonHigh = *x.EpsilonHigh
	}
	if x.KLRatio != nil {
		c.KLRatio = *x.KLRatio
	}
	switch x.Loss {
	case "cispo":
		c.EpsilonLow = 0
	case "sapo":
		c.EpsilonLow, c.EpsilonHigh = 0, 0
	case "dr_grpo":
		c.Length = length
	}
	return c
}

func (g golden) mask() [][]bool {
	var mask [][]bool
	for i, row := range g.Inputs.CompletionMask {
		mask = append(mask, make([]bool, len(row)))
		for t := range row {
			mask[i][t] = row[t]*g.Inputs.ToolMask[i][t] == 1
		}
	}
	return mask
}

// Losses, gradients and metrics are those of TRL.
func TestGoldenLoss(t *testing.T) {
	g := readGolden(t)
	worst := map[string][2]float64{}
	for _, name := range slices.Sorted(maps.Keys(g.Losses)) {
		t.Run(name, func(t *testing.T) {
			want := g.Losses[name]
			c := want.Config.config(g.Inputs.MaxLength)
			require.NoError(t, c.Validate())
			b := Batch{Mask: g.mask(), LogProbs: g.Inputs.LogProbs, Old: g.Inputs.Old, Reference: g.Inputs.Ref, Sampler: g.Inputs.Sampler, Entropy: g.Inputs.Entropy,
				Advantages: g.Inputs.Advantages}
			if n := want.Config.Accumulation; n > 0 { // it is half of an update; of dapo, the batch is as large as this
				b.Of = Size{float64(n * len(b.Mask)), float64(n) * g.Inputs.Tokens}
				if c.Loss == "dapo" {
					b.Of.Tokens = g.Inputs.Tokens
				}
			}
			loss, grad, dEntropy, m := Loss(c, b)
			require.Nil(t, dEntropy)
			errLoss, errGrad := math.Abs(loss-want.Loss), 0.0
			for i := range want.Grad {
				for k := range want.Grad[i] {
					errGrad = max(errGrad, math.Abs(float64(grad[i][k])-want.Grad[i][k]))
				}
			}
			require.LessOrEqual(t, errLoss, 1e-6, "%v instead of %v", loss, want.Loss)
			require.LessOrEqual(t, errGrad, 1e-6)
			kind, _, _ := strings.Cut(name, " ")
			was := worst[kind]
			worst[kind] = [2]float64{max(was[0], errLoss), max(was[1], errGrad)}
			for key, of := range map[string]Mean{"entropy": m.Entropy, "kl": m.KL, "clip_ratio/low_mean": m.ClipLow, "clip_ratio/high_mean": m.ClipHigh, "cispo_clip_ratio": m.ClipHigh} {
				if v, ok := want.Metrics[key]; ok {
					got, ok := of.Value()
					require.True(t, ok, key)
					require.InDelta(t, v, got, 1e-6, key)
				}
			}
		})
	}
	for _, kind := range slices.Sorted(maps.Keys(worst)) {
		t.Logf("%-8s loss within %.1e, gradients within %.1e", kind, worst[kind][0], worst[kind][1])
	}
}

// Advantages are those of TRL, several rewards included, which the loop has no use for.
func TestGoldenAdvantages(t *testing.T) {
	g := readGolden(t)
	for _, name := range slices.Sorted(maps.Keys(g.Advantages)) {
		t.Run(name, func(t *testing.T) {
			want := g.Advantages[name]
			c := Trl()
			if want.Config.Scale != "" {
				c.Std = want.Config.Scale
			}
			var groups []string
			for i := range want.Rewards {
				groups = append(groups, fmt.Sprint(i/g.Inputs.NumGenerations))
			}
			weights := want.Config.Weights
			if weights == nil {
				weights = []float64{1}
			}
			sum := func(part func(k int) []*float64) []*float64 {
				out := make([]*float64, len(groups))
				for k, w := range weights {
					for i, r := range part(k) {
						if r != nil {
							v := w * *r
							if out[i] != nil {
								v += *out[i]
							}
							out[i] = &v
						}
					}
				}
				return out
			}
			one := func(k int) (out []*float64) {
				for _, r := range want.Rewards {
					out = append(out, r[k])
				}
				return out
			}
			var got []float64
			var err error
			if want.Config.Aggregation == "normalize_then_sum" { // GDPO
				all := sum(func(k int) (out []*float64) {
					a, err := Advantages(c, groups, one(k))
					require.NoError(t, err)
					for i := range a {
						out = append(out, &a[i])
					}
					return out
				})
				for _, a := range all {
					got = append(got, *a)
				}
				c.whiten(got, all)
			} else {
				got, err = Advantages(c, groups, sum(one))
				require.NoError(t, err)
			}
			worst := 0.0
			for i, a := range want.Advantages {
				require.InDelta(t, a, got[i], 1e-6, "%d", i)
				worst = max(worst, math.Abs(a-got[i]))
			}
			t.Logf("within %.1e", worst)
		})
	}
}

const model = "../lm/testdata/models/qwen3-tied"

// A model's log-probabilities, the loss and the gradients of its adapter are those of torch, peft and TRL.
func TestGoldenEndToEnd(t *testing.T) {
	all := readGolden(t)
	g, own := all.EndToEnd, all.mask()
	for _, want := range g.Cases {
		t.Run(want.Loss, func(t *testing.T) {
			e, err := lm.Open(model, lm.Options{Adapter: filepath.Join(model, "lora")})
			require.NoError(t, err)
			c := Trl()
			c.Loss, c.KL, c.EpsilonLow, c.EpsilonHigh, c.Correction = want.Loss, want.Beta, want.Epsilon, want.EpsilonHigh, Correction{}
			var b engine.Batch
			var old [][]float32
			worst := map[string]float64{}
			near := func(what string, want, got, tolerance float64) {
				worst[what] = max(worst[what], math.Abs(want-got))
				require.InDelta(t, want, got, tolerance, what)
			}
			for i, prompt := range g.Prompts {
				row := slices.Concat(prompt, g.Completions[i])
				mask := make([]bool, len(row))
				for k := range g.Completions[i] {
					mask[len(prompt)+k] = own[i][k]
				}
				b.Tokens, b.Mask = append(b.Tokens, row), append(b.Mask, mask)
				old = append(old, slices.Concat(make([]float32, len(prompt)), want.Old[i][:len(g.Completions[i])]))
			}
			b.Temperature = want.Temperature
			b.Reference = true
			ref, err := e.Forward(t.Context(), b)
			require.NoError(t, err)
			ref.Discard()
			b.Reference = false
			p, err := e.Forward(t.Context(), b)
			require.NoError(t, err)
			for i, prompt := range g.Prompts {
				for k := range g.Completions[i] {
					if at := len(prompt) + k; b.Mask[i][at] {
						near("log-probs", float64(want.LogProbs[i][k]), float64(p.LogProbs()[i][at]), 1e-5)
						near("reference", float64(want.Ref[i][k]), float64(ref.LogProbs()[i][at]), 1e-5)
						near("entropy", float64(want.Entropy[i][k]), float64(p.Entropy()[i][at]), 1e-5)
					}
				}
			}
			loss, d, _, _ := Loss(c, Batch{Mask: b.Mask, LogProbs: p.LogProbs(), Old: old, Reference: ref.LogProbs(), Entropy: p.Entropy(), Advantages: g.Advantages})
			near("loss", want.Value, loss, 1e-5)
			require.NoError(t, p.Backward(t.Context(), d, nil))
			// With an epsilon that is large beside the gradients, Adam's first step goes along them: w - g/epsilon.
			before := adapter(t, e)
			const epsilon = 1e6
			norm, err := e.Step(t.Context(), engine.Optim{Rate: epsilon, Beta1: 0.9, Beta2: 0.999, Epsilon: epsilon})
			require.NoError(t, err)
			near("norm", want.GradNorm, norm, 1e-5)
			after := adapter(t, e)
			require.Len(t, after, len(want.GradL2))
			for name := range want.GradL2 {
				sum := 0.0
				for i, w := range after[name] {
					grad := float64(before[name][i] - w)
					sum += grad * grad
					if i < len(want.GradFirst[name]) {
						near("gradient entries", want.GradFirst[name][i], grad, 1e-5)
					}
				}
				near("gradient l2", want.GradL2[name], math.Sqrt(sum), 1e-5)
			}
			for _, what := range slices.Sorted(maps.Keys(worst)) {
				t.Logf("%-16s within %.1e", what, worst[what])
			}
		})
	}
}

// adapter gives the weights of an engine's adapter.
func adapter(t *testing.T, e *lm.Engine) map[string][]float32 {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "adapter")
	require.NoError(t, e.Export(dir))
	data, err := os.ReadFile(filepath.Join(dir, "adapter_model.safetensors"))
	require.NoError(t, err)
	n := binary.LittleEndian.Uint64(data)
	var header map[string]json.RawMessage
	require.NoError(t, json.Unmarshal(data[8:8+n], &header))
	delete(header, "__metadata__")
	out := map[string][]float32{}
	for name, raw := range header {
		var at struct {
			Offsets [2]int `json:"data_offsets"`
		}
		require.NoError(t, json.Unmarshal(raw, &at))
		for bits := range slices.Chunk(data[8+int(n)+at.Offsets[0]:8+int(n)+at.Offsets[1]], 4) {
			out[name] = append(out[name], math.Float32frombits(binary.LittleEndian.Uint32(bits)))
		}
	}
	return out
}
