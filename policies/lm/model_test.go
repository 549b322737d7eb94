package lm

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/mcpgym/mcpgym/policies/lm/internal/checkpoint"
)

// read gives a weight as an open folder does.
func (e *Engine) read(name string) (checkpoint.Tensor, error) {
	for _, t := range e.merged(e.config.DType) {
		if t.Name == name {
			return t, nil
		}
	}
	panic(name)
}

// The frequencies of Llama 3.1, by the formula of its publishers: kept, between, and an eighth.
func TestRope(t *testing.T) {
	alone(t)
	c := Config{HeadDim: 128, Theta: 5e5, RopeScaling: &checkpoint.RopeScaling{Factor: 8, LowFreq: 1, HighFreq: 4, OriginalPositions: 8192}}
	r := newRope(c)
	for i, want := range map[int]float64{0: 1, 27: 0.003942276030116656, 29: 0.002166570763503359, 30: 0.0013718935677611381,
		32: 0.0005248461609929547, 34: 0.00017850781276799638, 35: 9.556212353964683e-05, 40: 3.428102195952591e-05, 63: 3.068925988914511e-07} {
		require.InEpsilon(t, want, r.inverse[i], 1e-6, "%d", i)
	}
	sin, cos := r.table(3)
	more, _ := r.table(5)
	require.Len(t, sin, 3*64)
	require.Equal(t, sin, more[:3*64])
	require.InDelta(t, math.Sin(2*0.003942276030116656), sin[2*64+27], 1e-7)
	require.InDelta(t, math.Cos(2), cos[2*64], 1e-7)
	require.Zero(t, sin[5])
}
