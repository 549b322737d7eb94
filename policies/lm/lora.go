package lm

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/mcpgym/mcpgym/policies/lm/internal/checkpoint"
	"github.com/mcpgym/mcpgym/policies/lm/internal/f32"
)

// linear is a linear layer of a block, with the adapter that it may have.
type linear struct {
	name   string
	weight *tensor
	bias   *tensor // nil without
	a, b   *tensor // the adapter, or nil
	scale  float32 // of b·a
}

func (l *linear) out() int { return l.weight.shape[0] }
func (l *linear) in() int  { return l.weight.shape[1] }

// rank is 0 without an adapter.
func (l *linear) rank() int {
	if l.a == nil {
		return 0
	}
	return l.a.shape[0]
}

// forward computes y[rows,out] from x[rows,in]. Where low is not nil the adapter is used, and low[rows,rank] is what backward needs.
func (l *linear) forward(y, x, low []float32, rows int) {
	l.weight.mul(y, x, rows)
	if l.bias != nil {
		f32.Parallel(rows, 64, func(lo, hi int) {
			for i := lo; i < hi; i++ {
				f32.Add(y[i*l.out():(i+1)*l.out()], l.bias.w)
			}
		})
	}
	if l.a != nil && low != nil {
		low = low[:rows*l.rank()]
		f32.MatMul(low, x, l.a.w, rows, l.rank(), l.in(), false, true, false)
		f32.Scale(low, l.scale)
		f32.MatMul(y, low, l.b.w, rows, l.out(), l.rank(), false, true, true)
	}
}

// backward computes dx from dy, or dx += where add, and adds to the gradients of what is trained. A nil dx is left out. spare is of
// the size of low.
func (l *linear) backward(dx, dy, x, low, spare []float32, rows int, add bool) {
	l.weight.mulBack(dx, dy, x, rows, add)
	if l.bias != nil && l.bias.g != nil {
		sumRows(l.bias.g, dy, rows)
	}
	if l.a != nil {
		r := l.rank()
		spare = spare[:rows*r]
		f32.MatMul(l.b.g, dy, low, l.out(), r, rows, true, false, true)
		f32.MatMul(spare, dy, l.b.w, rows, r, l.out(), false, false, false)
		f32.Scale(spare, l.scale)
		f32.MatMul(l.a.g, spare, x, r, l.in(), rows, true, false, true)
		if dx != nil {
			f32.MatMul(dx, spare, l.a.w, rows, l.in(), r, false, false, true)
		}
	}
}

// sumRows adds the rows of x to sum.
func sumRows(sum, x []float32, rows int) {
	n := len(sum)
	f32.Parallel(n, 256, func(lo, hi int) {
		for i := range rows {
			f32.Add(sum[lo:hi], x[i*n+lo:i*n+hi])
		}
	})
}

var targets = []string{"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"}

// addAdapter gives linear layers an adapter, whose values follow.
func (e *Engine) addAdapter(o Options) error {
	has := map[string]bool{}
	switch {
	case o.Adapter != "":
		a, err := checkpoint.ReadAdapter(o.Adapter, e.config)
		if err != nil {
			return fmt.Errorf("read the adapter %s: %w", o.Adapter, err)
		}
		for _, l := range a.Layers {
			has[l.Name] = true
		}
		e.adapter = &a
	case o.LoRA != nil:
		l := *o.LoRA
		if l.Rank < 1 {
			return fmt.Errorf("an adapter of rank %d", l.Rank)
		}
		if !(l.Alpha > 0) || math.IsInf(l.Alpha, 0) {
			return fmt.Errorf("an adapter of alpha %v", l.Alpha)
		}
		if l.Targets == nil {
			l.Targets = targets
		}
		if len(l.Targets) == 0 {
			return errors.New("an adapter without targets")
		}
		for _, t := range l.Targets {
			if !slices.Contains(targets, t) {
				return fmt.Errorf("no linear layer is called %q, only %s", t, strings.Join(targets, ", "))
			}
		}
		for _, layer := range e.config.Linears() {
			has[layer.Name] = slices.ContainsFunc(l.Targets, func(t string) bool { return strings.HasSuffix(layer.Name, "."+t) })
		}
		e.adapter = &checkpoint.Adapter{Rank: l.Rank, Alpha: l.Alpha}
	default:
		return nil
	}
	for i := range e.blocks {
		for _, l := range e.blocks[i].all {
			if !has[l.name] {
				continue
			}
			l.a = &tensor{name: l.name + ".lora_A.weight", shape: []int{e.adapter.Rank, l.in()}, decay: true}
			l.b = &tensor{name: l.name + ".lora_B.weight", shape: []int{l.out(), e.adapter.Rank}, decay: true}
			l.scale = float32(e.adapter.Scale())
			e.trained = append(e.trained, l.a, l.b)
		}
	}
	return nil
}

// initAdapter sets the adapter's values: those that were read, or A uniform as in PEFT, and B 0.
func (e *Engine) initAdapter(o Options) {
	if e.adapter == nil {
		return
	}
	read := map[string]checkpoint.AdapterLayer{}
	for _, l := range e.adapter.Layers {
		read[l.Name] = l
	}
	e.adapter.Layers = nil
	for i := range e.blocks {
		for _, l := range e.blocks[i].all {
			if l.a == nil {
				continue
			}
			if o.LoRA == nil {
				copy(l.a.w, read[l.name].A)
				copy(l.b.w, read[l.name].B)
				continue
			}
			r, bound := random(o.LoRA.Seed, l.a.name), 1/math.Sqrt(float64(l.in()))
			for j := range l.a.w {
				l.a.w[j] = float32(bound * (2*r.Float64() - 1))
			}
		}
	}
}

// merged gives the model's tensors, the adapter added to those that it adapts, as float32, or as bfloat16 for a model of that type.
func (e *Engine) merged(d DType) []checkpoint.Tensor {
	adapted := map[*tensor]*linear{}
	for i := range e.blocks {
		for _, l := range e.blocks[i].all {
			if l.a != nil {
				adapted[l.weight] = l
			}
		}
	}
	var out []checkpoint.Tensor
	for _, t := range e.weights {
		to := checkpoint.Tensor{Name: t.name, Shape: t.shape, F32: t.floats()}
		if l := adapted[t]; l != nil {
			b := slices.Clone(l.b.w)
			f32.Scale(b, l.scale)
			f32.MatMul(to.F32, b, l.a.w, l.out(), l.in(), l.rank(), false, false, true)
		}
		if d == BF16 {
			to.BF16 = make([]uint16, len(to.F32))
			f32.Round(to.BF16, to.F32)
			to.F32 = nil
		}
		out = append(out, to)
	}
	return out
}

// floats gives a copy of the values.
func (t *tensor) floats() []float32 {
	if t.packed == nil {
		return slices.Clone(t.w)
	}
	out, n := make([]float32, t.size()), t.shape[1]
	for i := range t.shape[0] {
		t.packed.Row(out[i*n:(i+1)*n], i)
	}
	return out
}
