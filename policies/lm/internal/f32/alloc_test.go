//go:build !race

package f32

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
)

// The race detector makes pools forget on purpose.
func TestAllocations(t *testing.T) {
	const n = 256
	r := rand.New(rand.NewPCG(1, 2))
	a, b, c := random(r, n*n), random(r, n*n), make([]float32, n*n)
	m := Pack(b, n, n)
	procs(t, 2)
	// A collection may empty the pools in between, which is no allocation per call.
	require.Less(t, testing.AllocsPerRun(50, func() {
		MatMul(c, a, b, n, n, n, true, true, true)
		m.Mul(c, a, n)
		m.Mul(c, a, 1)
		m.MulBack(c, a, n, true)
		AdamW(c, a, b, c, Adam{Step: 1, Scale: 1})
		Softmax(c, c)
	}), 1.0)
}
