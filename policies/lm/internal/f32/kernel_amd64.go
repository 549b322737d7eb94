//go:build !purego

package f32

import (
	"math"
	"unsafe"

	"golang.org/x/sys/cpu"
)

// avx2 is whether the assembly can run. Tests turn it off to try what takes its place.
var avx2 = cpu.X86.HasAVX2 && cpu.X86.HasFMA

//go:noescape
func kernel32(c *float32, ldc int, a *float32, rs, ks int, b *float32, k, mr int, add bool)

//go:noescape
func kernel16(c *float32, ldc int, a *float32, rs, ks int, b *uint16, k, mr int, add bool)

//go:noescape
func rowPanels(c, a *float32, b *[]float32, k, n int, add bool)

//go:noescape
func widenSteps(dst *float32, src *uint16, k int)

//go:noescape
func prefetch(p unsafe.Pointer, bytes int)

//go:noescape
func transpose16(dst, src *float32, ld, blocks int)

//go:noescape
func copy8(dst *float32, dstStride int, src *float32, srcStride, n int)

// masks, from 8-n on, are those of n elements.
//
//lint:ignore U1000 the assembly reads it
var masks = [16]int32{-1, -1, -1, -1, -1, -1, -1, -1}

// upper masks the upper halves of pairs of bfloat16.
//
//lint:ignore U1000 the assembly reads it
var upper = [8]uint32{0xffff0000, 0xffff0000, 0xffff0000, 0xffff0000, 0xffff0000, 0xffff0000, 0xffff0000, 0xffff0000}

//lint:ignore U1000 the assembly reads it
var minusInf = float32(math.Inf(-1))

// exps are the constants of the exponential: where it is Inf and 0, log2 e, -ln 2 in two parts, the polynomial p, and 1. Its
// coefficients interpolate (exp(r)-1-r)/r² at the Chebyshev nodes of |r| <= ln 2 / 2, where the exponential is right to 8e-10.
//
//lint:ignore U1000 the assembly reads it
var exps = func() (t [12][8]float32) {
	for i, x := range []float32{
		89, -104, math.Log2E, -0.6931471824645996, 1.904654323148236e-09,
		0.00019891030387952924, 0.0013933685841038823, 0.00833331048488617, 0.041666463017463684, 0.1666666716337204, 0.5, 1,
	} {
		for j := range t[i] {
			t[i][j] = x
		}
	}
	return t
}()

//go:noescape
func dot(a, b []float32) float32

//go:noescape
func axpy(y []float32, a float32, x []float32)

//go:noescape
func scale(x []float32, a float32)

//go:noescape
func add(y, x []float32)

//go:noescape
func mul(y, a, b []float32)

//go:noescape
func mulAdd(y, a, b []float32)

//go:noescape
func sum(x []float32) float64

//go:noescape
func sumSquares(x []float32) float64

//go:noescape
func dot3(a, b, c []float32) float64

//go:noescape
func maximum(x []float32) float32

//go:noescape
func expSum(y, x []float32, shift float32) float64

//go:noescape
func silu(y, x []float32)

//go:noescape
func siluBack(dx, dy, x []float32)

//go:noescape
func norm(y, x, w []float32, r float32)

//go:noescape
func normBack(dx, dy, x, w []float32, r, t float32)

//go:noescape
func normGrad(dw, dy, x []float32, r float32)

//go:noescape
func adam(p, g, m, v []float32, s *scalars)

//go:noescape
func widenEights(dst []float32, src []uint16)

//go:noescape
func roundEights(dst []uint16, src []float32)
