// Package lm is a language model in pure Go: a decoder of the Llama, Qwen2 or Qwen3 kind that is trained whole or by a low-rank
// adapter. It computes in float32. Weights that are trained are float32 too; those that are not may stay in bfloat16.
package lm

import (
	"cmp"
	"errors"
	"fmt"
	"hash/fnv"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"

	"github.com/mcpgym/mcpgym/policies/engine"
	"github.com/mcpgym/mcpgym/policies/lm/internal/checkpoint"
	"github.com/mcpgym/mcpgym/policies/lm/internal/f32"
)

// Config is the shape of a model.
type Config = checkpoint.Config

// DType is how numbers are stored.
type DType = checkpoint.DType

// The types that weights are stored as.
const (
	F32  = checkpoint.F32
	BF16 = checkpoint.BF16
)

// Options say what of a model is trained. At most one of Full, LoRA and Adapter is set; with none the model only answers.
type Options struct {
	Full    bool   // every weight
	LoRA    *LoRA  // a new adapter
	Adapter string // the adapter in this folder, of PEFT's layout
	DType   DType  // of the weights that are not trained; "": as the model stores them

	// Tokenizer is a folder with a tokenizer.json and a chat template; "": the model's own.
	Tokenizer string
}

// LoRA is a low-rank adapter (Hu et al. 2021): the weight W of a target is used as W + Alpha/Rank·B·A. B starts as 0.
type LoRA struct {
	Rank    int
	Alpha   float64
	Targets []string // of q_proj, k_proj, v_proj, o_proj, gate_proj, up_proj and down_proj; nil: all
	Seed    uint64   // of A
}

// Engine is a model. See engine.Engine for which methods may be called at the same time.
type Engine struct {
	config     Config
	generation checkpoint.Generation
	full       bool
	adapter    *checkpoint.Adapter // its Layers are nil: they are in the linear layers; nil without one

	embed  *tensor
	blocks []block
	norm   *tensor
	head   *tensor // embed where tied
	rope   *rope

	weights []*tensor // of the model, in the order of Config.Weights
	trained []*tensor
	values  optimState
	version int
	changes int // of the weights: a pass is of one state of them
	work    workspace
	sampler sampler

	engine.Codec
	tokenizer string // the folder that it is from
}

// tensor is a weight. One that is trained has values and gradients; one that is not has values if it is a vector, and is packed if
// it is a matrix.
type tensor struct {
	name   string
	shape  []int
	w, g   []float32
	packed *f32.Matrix
	decay  bool
}

func (t *tensor) size() int {
	n := 1
	for _, d := range t.shape {
		n *= d
	}
	return n
}

// row copies a row of a matrix.
func (t *tensor) row(dst []float32, i int) {
	if t.packed != nil {
		t.packed.Row(dst, i)
		return
	}
	copy(dst, t.w[i*len(dst):])
}

// mul computes y[rows,out] = x[rows,in]·wᵀ.
func (t *tensor) mul(y, x []float32, rows int) {
	if t.packed != nil {
		t.packed.Mul(y, x, rows)
		return
	}
	f32.MatMul(y, x, t.w, rows, t.shape[0], t.shape[1], false, true, false)
}

// mulBack computes dx = dy·w, or dx += where add, and adds to the gradient of w where that is trained.
func (t *tensor) mulBack(dx, dy, x []float32, rows int, add bool) {
	out, in := t.shape[0], t.shape[1]
	if t.g != nil {
		f32.MatMul(t.g, dy, x, out, in, rows, true, false, true)
	}
	if dx == nil {
		return
	}
	if t.packed != nil {
		t.packed.MulBack(dx, dy, rows, add)
		return
	}
	f32.MatMul(dx, dy, t.w, rows, in, out, false, false, add)
}

// block is a layer of the decoder.
type block struct {
	norm1, norm2   *tensor
	q, k, v, o     linear
	qNorm, kNorm   *tensor // nil without
	gate, up, down linear
	all            [7]*linear
}

// Open opens a folder of the Hugging Face layout.
func Open(dir string, o Options) (_ *Engine, err error) {
	m, err := checkpoint.OpenModel(dir)
	if err != nil {
		return nil, fmt.Errorf("open the model %s: %w", dir, err)
	}
	defer func() { err = errors.Join(err, m.Close()) }()
	e, err := build(m.Config, o, m.Read)
	if err != nil {
		return nil, fmt.Errorf("open the model %s: %w", dir, err)
	}
	e.generation = m.Generation
	if err := e.speak(cmp.Or(o.Tokenizer, dir)); err != nil {
		return nil, fmt.Errorf("open the model %s: %w", dir, err)
	}
	return e, nil
}

// New makes a model of random weights, as they are before training: normal, of matrices with the deviation that keeps the size of what they
// are multiplied with (LeCun et al. 1998, Efficient BackProp), and less by the root of twice the number of layers where a layer adds to its
// input (Radford et al. 2019). Embeddings have a deviation of 0.3: the usual 0.02, which is made for thousands of dimensions, tells the
// tokens of a small model apart too little, and it learns later to copy. So that all tokens are about as likely at first, the last norm
// begins at 0.1. Equal seeds give equal weights.
func New(c Config, seed uint64, o Options) (*Engine, error) {
	if err := c.Validate(); err != nil {
		return nil, fmt.Errorf("make a model: %w", err)
	}
	shapes := map[string][]int{}
	for _, w := range c.Weights() {
		shapes[w.Name] = w.Shape
	}
	read := func(name string) (checkpoint.Tensor, error) {
		t := checkpoint.Tensor{Name: name, Shape: shapes[name]}
		n := 1
		for _, d := range t.Shape {
			n *= d
		}
		t.F32 = make([]float32, n)
		switch {
		case name == "model.norm.weight":
			t.F32 = slices.Repeat([]float32{0.1}, n)
		case strings.HasSuffix(name, "norm.weight"):
			t.F32 = slices.Repeat([]float32{1}, n)
		case !strings.HasSuffix(name, ".bias"):
			deviation := 0.3
			if !strings.Contains(name, "embed") {
				deviation = 1 / math.Sqrt(float64(t.Shape[1]))
			}
			if strings.HasSuffix(name, "o_proj.weight") || strings.HasSuffix(name, "down_proj.weight") {
				deviation /= math.Sqrt(2 * float64(c.Layers))
			}
			r := random(seed, name)
			for i := range t.F32 {
				t.F32[i] = float32(deviation * r.NormFloat64())
			}
		}
		if c.DType == BF16 {
			t.BF16 = make([]uint16, n)
			f32.Round(t.BF16, t.F32)
			t.F32 = nil
		}
		return t, nil
	}
	e, err := build(c, o, read)
	if err != nil {
		return nil, fmt.Errorf("make a model: %w", err)
	}
	if err := e.speak(o.Tokenizer); err != nil {
		return nil, fmt.Errorf("make a model: %w", err)
	}
	return e, nil
}

// random is a tensor's own stream, so that its values do not depend on what else a model has.
func random(seed uint64, name string) *rand.Rand {
	h := fnv.New64a()
	h.Write([]byte(name)) // which never fails
	return rand.New(rand.NewPCG(seed, h.Sum64()))
}

func build(c Config, o Options, read func(string) (checkpoint.Tensor, error)) (*Engine, error) {
	ways := 0
	for _, set := range []bool{o.Full, o.LoRA != nil, o.Adapter != ""} {
		if set {
			ways++
		}
	}
	if ways > 1 {
		return nil, errors.New("a model is trained in one way: Full, LoRA or Adapter")
	}
	if o.DType != "" && o.DType != F32 && o.DType != BF16 {
		return nil, fmt.Errorf("weights are stored as F32 or BF16, not %q", o.DType)
	}
	e := &Engine{config: c, full: o.Full, rope: newRope(c)}
	tensors := map[string]*tensor{}
	for _, w := range c.Weights() {
		t := &tensor{name: w.Name, shape: w.Shape, decay: len(w.Shape) > 1}
		e.weights = append(e.weights, t)
		tensors[w.Name] = t
	}
	if err := e.link(tensors); err != nil {
		return nil, err
	}
	if err := e.addAdapter(o); err != nil {
		return nil, err
	}
	if o.Full {
		e.trained = e.weights
	}
	e.values.place(e.trained)
	e.initAdapter(o)
	for _, t := range e.weights {
		from, err := read(t.name)
		if err != nil {
			return nil, err
		}
		if !slices.Equal(from.Shape, t.shape) {
			return nil, fmt.Errorf("%s has the shape %v, not %v", t.name, from.Shape, t.shape)
		}
		t.load(from, o.DType)
	}
	return e, nil
}

// load takes a tensor's values.
func (t *tensor) load(from checkpoint.Tensor, d DType) {
	switch {
	case t.g != nil:
		copy(t.w, from.Floats())
	case len(t.shape) == 1:
		t.w = from.Floats()
	case d == F32 || d == "" && from.BF16 == nil:
		t.packed = f32.Pack(from.Floats(), t.shape[0], t.shape[1])
	default:
		half := from.BF16
		if half == nil {
			half = make([]uint16, len(from.F32))
			f32.Round(half, from.F32)
		}
		t.packed = f32.PackBF16(half, t.shape[0], t.shape[1])
	}
}

// link gives the tensors their places.
func (e *Engine) link(tensors map[string]*tensor) error {
	var missing []string
	get := func(name string) *tensor {
		t := tensors[name]
		if t == nil {
			missing = append(missing, name)
		}
		return t
	}
	c := e.config
	e.embed = get("model.embed_tokens.weight")
	e.norm = get("model.norm.weight")
	e.head = e.embed
	if !c.Tied {
		e.head = get("lm_head.weight")
	}
	linears := c.Linears()
	if len(linears) != 7*c.Layers {
		return fmt.Errorf("%d linear layers in %d blocks", len(linears), c.Layers)
	}
	e.blocks = make([]block, c.Layers)
	for i := range e.blocks {
		b := &e.blocks[i]
		prefix := fmt.Sprintf("model.layers.%d.", i)
		b.norm1 = get(prefix + "input_layernorm.weight")
		b.norm2 = get(prefix + "post_attention_layernorm.weight")
		if c.QKNorm {
			b.qNorm = get(prefix + "self_attn.q_norm.weight")
			b.kNorm = get(prefix + "self_attn.k_norm.weight")
		}
		b.all = [7]*linear{&b.q, &b.k, &b.v, &b.o, &b.gate, &b.up, &b.down}
		for j, l := range linears[7*i : 7*i+7] {
			b.all[j].name = l.Name
			b.all[j].weight = get(l.Name + ".weight")
			if l.Bias {
				b.all[j].bias = get(l.Name + ".bias")
			}
		}
	}
	if len(missing) > 0 {
		return fmt.Errorf("no tensor of the name %s", strings.Join(missing, ", "))
	}
	return nil
}

// Config is the model's shape.
func (e *Engine) Config() Config { return e.config }

// Version is the number of steps that the weights have seen.
func (e *Engine) Version() int { return e.version }

// rope holds the rotary positions' angles.
type rope struct {
	inverse  []float32 // frequencies, of half a head
	mu       sync.Mutex
	sin, cos []float32 // half a head for each position so far
}

func newRope(c Config) *rope {
	r := &rope{inverse: make([]float32, c.HeadDim/2)}
	for i := range r.inverse {
		f := 1 / math.Pow(c.Theta, float64(2*i)/float64(c.HeadDim))
		if s := c.RopeScaling; s != nil {
			turns := float64(s.OriginalPositions) * f / (2 * math.Pi)
			switch {
			case turns < s.LowFreq:
				f /= s.Factor
			case turns <= s.HighFreq:
				smooth := (turns - s.LowFreq) / (s.HighFreq - s.LowFreq)
				f = (1-smooth)*f/s.Factor + smooth*f
			}
		}
		r.inverse[i] = float32(f)
	}
	return r
}

// table gives the sines and cosines of the first n positions. It may be called concurrently.
func (r *rope) table(n int) (sin, cos []float32) {
	r.mu.Lock()
	defer r.mu.Unlock()
	half := len(r.inverse)
	for p := len(r.sin) / half; p < n; p++ {
		for _, f := range r.inverse {
			// The product is rounded to float32, as the models were trained with.
			s, c := math.Sincos(float64(float32(p) * f))
			r.sin, r.cos = append(r.sin, float32(s)), append(r.cos, float32(c))
		}
	}
	return r.sin[:n*half], r.cos[:n*half]
}
