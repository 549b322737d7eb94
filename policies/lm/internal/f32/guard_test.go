//go:build linux

package f32

import (
	"os"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// guarded makes slices of n numbers that end where memory ends: a read or write beyond is a fault, which ends the test.
func guarded[T float32 | uint16](t *testing.T, n int) []T {
	page := os.Getpagesize()
	size := n * int(unsafe.Sizeof(T(0)))
	whole := (size + page - 1) / page * page
	memory, err := unix.Mmap(-1, 0, whole+page, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
	require.NoError(t, err)
	t.Cleanup(func() { _ = unix.Munmap(memory) })
	require.NoError(t, unix.Mprotect(memory[whole:], unix.PROT_NONE))
	return unsafe.Slice((*T)(unsafe.Pointer(unsafe.SliceData(memory[whole-size:]))), n)
}

func TestNothingBeyond(t *testing.T) {
	for _, s := range [][3]int{{1, 1, 1}, {1, 16, 1}, {2, 17, 9}, {5, 40, 8}, {6, 15, 3}, {7, 33, 300}, {11, 64, 31}, {14, 50, 17}, {200, 49, 30}, {203, 130, 70}} {
		m, n, k := s[0], s[1], s[2]
		c, a, b, back := guarded[float32](t, m*n), guarded[float32](t, m*k), guarded[float32](t, k*n), guarded[float32](t, m*k)
		for i := range 8 {
			MatMul(c, a, b, m, n, k, i&1 != 0, i&2 != 0, i&4 != 0)
		}
		h := guarded[uint16](t, k*n)
		Round(h, b)
		for _, w := range []*Matrix{Pack(b, n, k), PackBF16(h, n, k)} {
			w.Mul(c, a, m)
			w.MulBack(back, c, m, false)
			w.Row(guarded[float32](t, k), n-1)
		}
	}
	for n := range 8 {
		panels := make([][]float32, n)
		for i := range panels {
			panels[i] = guarded[float32](t, 13*Width)
		}
		Panels(guarded[float32](t, n*Width), guarded[float32](t, 13), panels, n&1 != 0)
	}
	for n := 1; n < 80; n++ {
		p, g, m, v, h := guarded[float32](t, n), guarded[float32](t, n), guarded[float32](t, n), guarded[float32](t, n), guarded[uint16](t, n)
		Dot(p, g)
		Axpy(p, 1, g)
		Scale(p, 1)
		Add(p, g)
		Mul(p, g, v)
		MulAdd(p, g, v)
		Sum(p)
		SumSquares(p)
		Max(p)
		Exp(p, g)
		Softmax(p, g)
		LogSumExp(p)
		SiLU(p, g)
		SiLUBackward(p, g, v)
		RMSNorm(p, g, v, 1)
		RMSNormBackward(p, m, g, v, v, 1)
		AdamW(p, g, m, v, Adam{Step: 1, Epsilon: 1})
		Round(h, p)
		Widen(p, h)
	}
}
