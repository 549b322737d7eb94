package f32

import (
	"fmt"
	"math"
	"math/rand/v2"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"
)

func random(r *rand.Rand, n int) []float32 {
	x := make([]float32, n)
	for i := range x {
		x[i] = float32(r.NormFloat64())
	}
	return x
}

func integers(r *rand.Rand, n int) []float32 {
	x := make([]float32, n)
	for i := range x {
		x[i] = float32(r.IntN(9) - 4)
	}
	return x
}

func transposed(x []float32, rows, cols int) []float32 {
	t := make([]float32, len(x))
	for i := range rows {
		for j := range cols {
			t[j*rows+i] = x[i*cols+j]
		}
	}
	return t
}

// requireBits is require.Equal for long slices, where NaN equals NaN.
func requireBits(t *testing.T, want, got []float32, name string) {
	t.Helper()
	require.Len(t, got, len(want), name)
	for i := range want {
		if math.Float32bits(want[i]) != math.Float32bits(got[i]) {
			t.Fatalf("%s: element %d is %v, not %v", name, i, got[i], want[i])
		}
	}
}

// product64 is A·B, and the sum of the products' magnitudes, which bounds the rounding errors.
func product64(a, b []float32, m, n, k int) (c, magnitude []float64) {
	c, magnitude = make([]float64, m*n), make([]float64, m*n)
	for i := range m {
		for l := range k {
			for j := range n {
				x := float64(a[i*k+l]) * float64(b[l*n+j])
				c[i*n+j] += x
				magnitude[i*n+j] += math.Abs(x)
			}
		}
	}
	return c, magnitude
}

func rounded(x []float32) (h []uint16, back []float32) {
	h, back = make([]uint16, len(x)), make([]float32, len(x))
	Round(h, x)
	Widen(back, h)
	return h, back
}

func procs(t testing.TB, n int) {
	old := runtime.GOMAXPROCS(n)
	t.Cleanup(func() { runtime.GOMAXPROCS(old) })
}

// sizes has every remainder of the kernels' sizes, products of more than one block in each direction, and nothing.
var sizes = [][3]int{
	{0, 3, 4}, {3, 0, 4}, {3, 4, 0}, {1, 1, 1}, {1, 16, 8}, {2, 17, 3}, {3, 31, 5}, {4, 15, 7}, {5, 33, 9}, {6, 16, 16}, {7, 48, 255}, {8, 1, 256},
	{9, 2, 257}, {10, 100, 31}, {11, 64, 511}, {12, 65, 513}, {13, 20, 300}, {50, 70, 600}, {193, 49, 40}, {200, 130, 70}, {385, 20, 10},
	{5, 40, 4500}, {2, 520, 4100},
}

func TestMatMul(t *testing.T) {
	kernels(t, func(t *testing.T) {
		for _, s := range sizes {
			m, n, k := s[0], s[1], s[2]
			r := rand.New(rand.NewPCG(uint64(m*n), uint64(k)))
			for _, exact := range []bool{false, true} {
				if exact && m*n*k > 1<<20 {
					continue
				}
				fill := random
				if exact {
					fill = integers
				}
				a, b, start := fill(r, m*k), fill(r, k*n), fill(r, m*n)
				want, magnitude := product64(a, b, m, n, k)
				var first [2][]float32
				for _, ta := range []bool{false, true} {
					for _, tb := range []bool{false, true} {
						for add := range 2 {
							name := fmt.Sprintf("%dx%dx%d exact=%v ta=%v tb=%v add=%d", m, n, k, exact, ta, tb, add)
							sa, sb := a, b
							if ta {
								sa = transposed(a, m, k)
							}
							if tb {
								sb = transposed(b, k, n)
							}
							c := append([]float32(nil), start...)
							MatMul(c, sa, sb, m, n, k, ta, tb, add == 1)
							for i := range c {
								w := want[i]
								if add == 1 {
									w += float64(start[i])
								}
								tol := 0.0
								if !exact {
									tol = 1e-6 * (1 + magnitude[i])
								}
								if !(math.Abs(w-float64(c[i])) <= tol) {
									t.Fatalf("%s: element %d is %v, not %v", name, i, c[i], w)
								}
							}
							if first[add] == nil {
								first[add] = c
							}
							requireBits(t, first[add], c, name) // however it is stored
						}
					}
				}
			}
		}
	})
}

func TestMatrix(t *testing.T) {
	kernels(t, func(t *testing.T) {
		for _, s := range sizes {
			rows, out, in := s[0], s[1], s[2]
			r := rand.New(rand.NewPCG(uint64(rows*out), uint64(in)))
			w, x, dy, start := random(r, out*in), random(r, rows*in), random(r, rows*out), random(r, rows*in)
			h, half := rounded(w)
			for _, m := range []*Matrix{Pack(w, out, in), PackBF16(h, out, in)} {
				w := w
				if m.h != nil {
					w = half
				}
				name := fmt.Sprintf("%dx%dx%d bfloat16=%v", rows, out, in, m.h != nil)
				want, y := make([]float32, rows*out), random(r, rows*out)
				MatMul(want, x, w, rows, out, in, false, true, false)
				m.Mul(y, x, rows)
				requireBits(t, want, y, name)

				for _, add := range []bool{false, true} {
					want, dx := append([]float32(nil), start...), append([]float32(nil), start...)
					MatMul(want, dy, w, rows, in, out, false, false, add)
					m.MulBack(dx, dy, rows, add)
					requireBits(t, want, dx, name)
				}

				row := make([]float32, in)
				for i := range out {
					m.Row(row, i)
					requireBits(t, w[i*in:(i+1)*in], row, name)
				}
				if m.w != nil {
					v := random(r, out*in)
					MatMul(want, x, v, rows, out, in, false, true, false)
					m.Repack(v)
					m.Mul(y, x, rows)
					requireBits(t, want, y, name)
				}
			}
		}
	})
}

func TestPanels(t *testing.T) {
	kernels(t, func(t *testing.T) {
		r := rand.New(rand.NewPCG(1, 2))
		for n := range 12 {
			for _, k := range []int{0, 1, 7, 64, 300} {
				a, start := random(r, k), random(r, n*Width+1)
				panels := make([][]float32, n)
				for i := range panels {
					panels[i] = random(r, k*Width)
				}
				for _, add := range []bool{false, true} {
					c := append([]float32(nil), start...)
					Panels(c, a, panels, add)
					require.Equal(t, start[n*Width], c[n*Width], "nothing beyond the last panel")
					for i, got := range c[:n*Width] {
						var want float64
						if add {
							want = float64(start[i])
						}
						for l, x := range a {
							want += float64(x) * float64(panels[i/Width][l*Width+i%Width])
						}
						require.InDelta(t, want, got, 1e-4, "%d panels, k %d", n, k)
					}
					one := append([]float32(nil), start...)
					for i := range panels {
						Panels(one[i*Width:], a, panels[i:i+1], add)
					}
					requireBits(t, c, one, "one by one")
				}
			}
		}
	})
}

// TestBits shows that a row's bits depend neither on the other rows nor on the number of processors.
func TestBits(t *testing.T) {
	kernels(t, func(t *testing.T) {
		const rows, out, in = 200, 260, 270
		r := rand.New(rand.NewPCG(1, 2))
		w, x, dy := random(r, out*in), random(r, rows*in), random(r, rows*out)
		h, _ := rounded(w)
		float, half := Pack(w, out, in), PackBF16(h, out, in)
		products := []struct {
			name  string
			width int
			f     func(y []float32, rows int)
		}{
			{"Mul", out, func(y []float32, rows int) { float.Mul(y, x, rows) }},
			{"Mul bf16", out, func(y []float32, rows int) { half.Mul(y, x, rows) }},
			{"MulBack", in, func(y []float32, rows int) { float.MulBack(y, dy, rows, false) }},
			{"MulBack bf16", in, func(y []float32, rows int) { half.MulBack(y, dy, rows, false) }},
			{"MatMul tb", out, func(y []float32, rows int) { MatMul(y, x, w, rows, out, in, false, true, false) }},
			{"MatMul", in, func(y []float32, rows int) { MatMul(y, dy, w, rows, in, out, false, false, false) }},
			{"MatMul ta", out, func(y []float32, rows int) {
				MatMul(y, transposed(x[:rows*in], rows, in), w, rows, out, in, true, true, false)
			}},
			{"MatMul one column", 1, func(y []float32, rows int) { MatMul(y, x, w, rows, 1, in, false, true, false) }},
		}
		for _, p := range products {
			procs(t, 1)
			want := make([]float32, rows*p.width)
			p.f(want, rows)
			for _, n := range []int{1, 2, 4} {
				procs(t, n)
				for _, some := range []int{1, 2, 3, 4, 5, 6, 7, 8, 13, rows} {
					if some == rows && n == 2 {
						continue // to save time
					}
					y := make([]float32, some*p.width)
					p.f(y, some)
					requireBits(t, want[:len(y)], y, fmt.Sprintf("%s of %d rows on %d processors", p.name, some, n))
				}
			}
		}
	})
}

func TestNotFinite(t *testing.T) {
	kernels(t, func(t *testing.T) {
		for _, v := range []float32{inf, -inf, nan} {
			const m, n, k = 7, 19, 300
			r := rand.New(rand.NewPCG(1, 2))
			a, b, c := random(r, m*k), random(r, k*n), make([]float32, m*n)
			a[3*k+299] = v
			MatMul(c, a, b, m, n, k, false, false, false)
			for i, x := range c {
				require.Equal(t, i/n == 3, math.IsNaN(float64(x)) || math.IsInf(float64(x), 0), "%v, %d", v, i)
			}
			a[3*k+299] = 0
			b[5] = v
			MatMul(c, a, b, m, n, k, false, false, false)
			for i, x := range c {
				require.Equal(t, i%n == 5, math.IsNaN(float64(x)) || math.IsInf(float64(x), 0), "%v, %d", v, i)
			}
		}
	})
}

func TestMatMulAtOnce(t *testing.T) {
	const n = 150
	r := rand.New(rand.NewPCG(1, 2))
	a, b, want := random(r, n*n), random(r, n*n), make([]float32, n*n)
	MatMul(want, a, b, n, n, n, false, false, false)
	procs(t, 4)
	Parallel(40, 1, func(lo, hi int) {
		for range hi - lo {
			c := make([]float32, n*n)
			MatMul(c, a, b, n, n, n, false, false, false)
			requireBits(t, want, c, "nested")
		}
	})
}

func BenchmarkMatMul(b *testing.B) {
	for _, s := range []struct {
		name    string
		m, n, k int
		ta, tb  bool
		add     bool
	}{
		{"512", 512, 512, 512, false, false, false},
		{"1024", 1024, 1024, 1024, false, false, false},
		{"1M/up", 3072, 512, 128, false, true, false},
		{"1M/upBack", 3072, 128, 512, false, false, false},
		{"1M/upGrad", 512, 128, 3072, true, false, true},
		{"1M/logits", 3072, 1024, 128, false, true, false},
		{"1M/logitsBack", 3072, 128, 1024, false, false, false},
		{"1M/logitsGrad", 1024, 128, 3072, true, false, true},
		{"135M/up", 1024, 1536, 576, false, true, false},
		{"135M/upBack", 1024, 576, 1536, false, false, false},
		{"135M/upGrad", 1536, 576, 1024, true, false, true},
		{"head", 192, 192, 32, false, true, false},
		{"lora", 1024, 16, 576, false, true, false},
		{"loraGrad", 16, 576, 1024, true, false, true},
	} {
		b.Run(s.name, func(b *testing.B) {
			r := rand.New(rand.NewPCG(1, 2))
			x, y, c := random(r, s.m*s.k), random(r, s.k*s.n), make([]float32, s.m*s.n)
			for b.Loop() {
				MatMul(c, x, y, s.m, s.n, s.k, s.ta, s.tb, s.add)
			}
			b.ReportMetric(2*float64(s.m)*float64(s.n)*float64(s.k)*float64(b.N)/float64(b.Elapsed().Nanoseconds()), "GFLOP/s")
		})
	}
}

func BenchmarkMul(b *testing.B) {
	for _, s := range []struct {
		name          string
		rows, out, in int
	}{
		{"1M/up", 1, 512, 128}, {"1M/up", 16, 512, 128}, {"1M/up", 3072, 512, 128},
		{"135M/up", 1, 1536, 576}, {"135M/up", 8, 1536, 576}, {"135M/up", 1024, 1536, 576},
		{"135M/down", 1, 576, 1536}, {"135M/down", 8, 576, 1536}, {"135M/down", 1024, 576, 1536},
		{"135M/head", 1, 49152, 576}, {"135M/head", 4, 49152, 576}, {"135M/head", 8, 49152, 576}, {"135M/head", 16, 49152, 576}, {"135M/head", 256, 49152, 576},
	} {
		for _, half := range []bool{false, true} {
			b.Run(fmt.Sprintf("%s/rows=%d/half=%v", s.name, s.rows, half), func(b *testing.B) {
				r := rand.New(rand.NewPCG(1, 2))
				w, x, y := random(r, s.in*s.out), random(r, s.rows*s.in), make([]float32, s.rows*s.out)
				m, size := Pack(w, s.out, s.in), 4
				if half {
					h, _ := rounded(w)
					m, size = PackBF16(h, s.out, s.in), 2
				}
				for b.Loop() {
					m.Mul(y, x, s.rows)
				}
				ns := float64(b.Elapsed().Nanoseconds())
				b.ReportMetric(2*float64(s.rows)*float64(s.in)*float64(s.out)*float64(b.N)/ns, "GFLOP/s")
				b.ReportMetric(float64(size)*float64(s.in)*float64(s.out)*float64(b.N)/ns, "GB/s")
			})
		}
	}
}
