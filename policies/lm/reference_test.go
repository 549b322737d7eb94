package lm

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/mcpgym/mcpgym/policies/engine"
)

// reference64 is the model written as plainly as can be, in float64, one sequence at a time.
type reference64 struct {
	c     Config
	w     map[string][]float64
	scale float64 // of the adapter
}

func newReference64(e *Engine) reference64 {
	r := reference64{c: e.config, w: map[string][]float64{}}
	widen := func(t *tensor) {
		for _, x := range t.floats() {
			r.w[t.name] = append(r.w[t.name], float64(x))
		}
	}
	for _, t := range e.weights {
		widen(t)
	}
	if e.adapter != nil {
		r.scale = e.adapter.Scale()
		for _, t := range e.trained {
			widen(t)
		}
	}
	return r
}

func (r reference64) linear(name string, x []float64) []float64 {
	mul := func(w, x []float64) []float64 {
		y := make([]float64, len(w)/len(x))
		for i := range y {
			for j := range x {
				y[i] += w[i*len(x)+j] * x[j]
			}
		}
		return y
	}
	y := mul(r.w[name+".weight"], x)
	for i, b := range r.w[name+".bias"] {
		y[i] += b
	}
	if a := r.w[name+".lora_A.weight"]; a != nil {
		for i, d := range mul(r.w[name+".lora_B.weight"], mul(a, x)) {
			y[i] += r.scale * d
		}
	}
	return y
}

func (r reference64) rmsNorm(name string, x []float64) []float64 {
	w := r.w[name+".weight"]
	if w == nil {
		return x
	}
	var s float64
	for _, v := range x {
		s += v * v
	}
	y := make([]float64, len(x))
	for i := range y {
		y[i] = w[i] * x[i] / math.Sqrt(s/float64(len(x))+r.c.Eps)
	}
	return y
}

func (r reference64) head(name string, x []float64, at, position int) []float64 {
	d := r.c.HeadDim
	x = r.rmsNorm(name, x[at*d:(at+1)*d])
	y := make([]float64, d)
	for i := range d / 2 {
		s, c := math.Sincos(float64(position) / math.Pow(r.c.Theta, float64(2*i)/float64(d)))
		y[i], y[i+d/2] = x[i]*c-x[i+d/2]*s, x[i+d/2]*c+x[i]*s
	}
	return y
}

// forward gives the log-probability of each token after the first, and the entropy of what it was drawn from.
func (r reference64) forward(tokens []int32, temperature float64) (logProbs, entropy []float64) {
	c := r.c
	x := make([][]float64, len(tokens))
	for i, token := range tokens {
		x[i] = slices.Clone(r.w["model.embed_tokens.weight"][int(token)*c.Hidden:][:c.Hidden])
	}
	add := func(x, y []float64) {
		for i := range x {
			x[i] += y[i]
		}
	}
	for l := range c.Layers {
		prefix := fmt.Sprintf("model.layers.%d.", l)
		var ks [][][]float64 // by position and head
		var vs [][]float64
		for i := range x {
			h := r.rmsNorm(prefix+"input_layernorm", x[i])
			q := r.linear(prefix+"self_attn.q_proj", h)
			k := r.linear(prefix+"self_attn.k_proj", h)
			var rotated [][]float64
			for head := range c.KVHeads {
				rotated = append(rotated, r.head(prefix+"self_attn.k_norm", k, head, i))
			}
			ks, vs = append(ks, rotated), append(vs, r.linear(prefix+"self_attn.v_proj", h))
			var out []float64
			for head := range c.Heads {
				kv := head / (c.Heads / c.KVHeads)
				query := r.head(prefix+"self_attn.q_norm", q, head, i)
				p, sum := make([]float64, i+1), 0.0
				for j := range p {
					for t, v := range ks[j][kv] {
						p[j] += query[t] * v / math.Sqrt(float64(c.HeadDim))
					}
					p[j] = math.Exp(p[j])
					sum += p[j]
				}
				o := make([]float64, c.HeadDim)
				for j := range p {
					for t := range o {
						o[t] += p[j] / sum * vs[j][kv*c.HeadDim+t]
					}
				}
				out = append(out, o...)
			}
			add(x[i], r.linear(prefix+"self_attn.o_proj", out))
			h = r.rmsNorm(prefix+"post_attention_layernorm", x[i])
			gate, up := r.linear(prefix+"mlp.gate_proj", h), r.linear(prefix+"mlp.up_proj", h)
			for j, g := range gate {
				up[j] *= g / (1 + math.Exp(-g))
			}
			add(x[i], r.linear(prefix+"mlp.down_proj", up))
		}
	}
	head := "lm_head"
	if c.Tied {
		head = "model.embed_tokens"
	}
	for i := range len(tokens) - 1 {
		logits, sum, mean := r.linear(head, r.rmsNorm("model.norm", x[i])), 0.0, 0.0
		for j := range logits {
			logits[j] /= temperature
			sum += math.Exp(logits[j])
		}
		for _, v := range logits {
			mean += math.Exp(v) / sum * v
		}
		logProbs = append(logProbs, logits[tokens[i+1]]-math.Log(sum))
		entropy = append(entropy, math.Log(sum)-mean)
	}
	return logProbs, entropy
}

// small is a model in which every part can be told from the others.
func small(change func(*Config)) Config {
	c := Config{Kind: "llama", Hidden: 16, Intermediate: 20, Layers: 2, Heads: 4, KVHeads: 2, HeadDim: 6, Vocab: 23,
		MaxPositions: 256, Eps: 1e-5, Theta: 100, DType: F32}
	if change != nil {
		change(&c)
	}
	return c
}

// scramble makes weights large enough that nothing is nearly linear, and what starts as 0 or 1 something else.
func scramble(e *Engine) {
	r := rand.New(rand.NewPCG(3, 4))
	for _, t := range e.trained {
		for i := range t.w {
			if len(t.shape) == 1 {
				t.w[i] += float32(0.3 * r.NormFloat64())
			} else {
				t.w[i] = float32(0.3 * r.NormFloat64())
			}
		}
	}
}

// scrambledAdapter makes a model whose frozen weights are as large as scramble's, with an adapter of some size.
func scrambledAdapter(t testing.TB, c Config, l LoRA) *Engine {
	t.Helper()
	base, err := New(c, 1, Options{Full: true})
	require.NoError(t, err)
	scramble(base)
	e, err := build(c, Options{LoRA: &l}, base.read)
	require.NoError(t, err)
	scramble(e)
	return e
}

// TestGradients compares, for each tensor that is trained, the derivative in a random direction with the central difference of the
// model in float64. The loss weighs log-probabilities and entropies at random, so that all of a pass's gradients count.
func TestGradients(t *testing.T) {
	alone(t)
	qwen2 := func(c *Config) { c.Kind, c.QKVBias, c.Tied = "qwen2", true, true }
	qwen3 := func(c *Config) { c.Kind, c.QKNorm, c.KVHeads = "qwen3", true, 4 }
	for _, c := range []struct {
		name        string
		config      Config
		lora        *LoRA
		temperature float64
	}{
		{"llama", small(nil), nil, 1},
		{"llama, all biases, one key head", small(func(c *Config) { c.OutBias, c.QKVBias, c.MLPBias, c.KVHeads = true, true, true, 1 }), nil, 0.7},
		{"qwen2", small(qwen2), nil, 1.5},
		{"qwen3", small(qwen3), nil, 0.7},
		{"qwen3 of one layer, tied", small(func(c *Config) { qwen3(c); c.Layers = 1; c.Tied = true }), nil, 1},
		{"lora", small(qwen2), &LoRA{Rank: 3, Alpha: 5}, 0.7},
		{"lora on two", small(qwen3), &LoRA{Rank: 2, Alpha: 2, Targets: []string{"v_proj", "down_proj"}}, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			var e *Engine
			if c.lora != nil {
				e = scrambledAdapter(t, c.config, *c.lora)
			} else {
				var err error
				e, err = New(c.config, 1, Options{Full: true})
				require.NoError(t, err)
				scramble(e)
			}
			rows := [][]int32{randomRows(23, 1, 70)[0], {4, 5, 6}, {1, 1}, {7, 2, 3, 9, 9, 1}, {7, 2, 3, 9, 4}}
			r := rand.New(rand.NewPCG(5, 6))
			mask, dLog, dEnt := make([][]bool, len(rows)), make([][]float32, len(rows)), make([][]float32, len(rows))
			for i, row := range rows {
				mask[i], dLog[i], dEnt[i] = make([]bool, len(row)), make([]float32, len(row)), make([]float32, len(row))
				for j := 1; j < len(row); j++ {
					if mask[i][j] = r.IntN(3) > 0; !mask[i][j] {
						continue
					}
					dLog[i][j], dEnt[i][j] = float32(r.NormFloat64()), float32(r.NormFloat64())
					switch r.IntN(5) {
					case 0:
						dLog[i][j] = 0
					case 1:
						dEnt[i][j] = 0
					}
				}
			}
			ref := newReference64(e)
			loss := func(check engine.Pass) float64 {
				var sum float64
				for i, row := range rows {
					lp, ent := ref.forward(row, c.temperature)
					for j := range lp {
						if !mask[i][j+1] {
							continue
						}
						sum += float64(dLog[i][j+1])*lp[j] + float64(dEnt[i][j+1])*ent[j]
						if check != nil {
							require.InDelta(t, lp[j], check.LogProbs()[i][j+1], 2e-5)
							require.InDelta(t, ent[j], check.Entropy()[i][j+1], 2e-5)
						}
					}
				}
				return sum
			}
			p := forward(t, e, engine.Batch{Tokens: rows, Mask: mask, Temperature: c.temperature})
			loss(p)
			backward(t, p, dLog, dEnt)
			const eps = 1e-6
			for _, x := range e.trained {
				values := ref.w[x.name]
				before, direction := slices.Clone(values), make([]float64, len(values))
				var got, norm float64
				for i, g := range x.g {
					direction[i] = r.NormFloat64()
					got += float64(g) * direction[i]
					norm += float64(g) * float64(g)
				}
				at := func(step float64) float64 {
					for i := range values {
						values[i] = before[i] + step*direction[i]
					}
					return loss(nil)
				}
				want := (at(eps) - at(-eps)) / (2 * eps)
				copy(values, before)
				require.NotZero(t, norm, x.name)
				require.InDelta(t, want, got, 3e-5*math.Sqrt(norm)+1e-6, x.name)
			}
		})
	}
}
