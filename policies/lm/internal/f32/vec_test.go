package f32

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
)

var (
	inf = float32(math.Inf(1))
	nan = float32(math.NaN())
)

// lengths are those with and without remainders.
var lengths = []int{0, 1, 2, 7, 8, 9, 31, 32, 33, 63, 64, 71, 100, 1000}

// ulps is how many float32 lie between got and want.
func ulps(got float32, want float64) float64 {
	switch w := float32(want); {
	case math.IsNaN(want) && got != got, got == w:
		return 0
	case math.IsInf(want, 0), math.IsNaN(want), got != got, math.IsInf(float64(got), 0):
		return math.Inf(1)
	default:
		a := math.Abs(float64(w))
		unit := float64(math.Nextafter32(float32(a), inf)) - a
		return math.Abs(float64(got)-want) / unit
	}
}

// within runs f on slices cut out of longer ones and fails if it writes outside of them.
func within(t *testing.T, r *rand.Rand, n, count int, f func(x [][]float32)) {
	const edge = 9
	var whole, before [][]float32
	cut := make([][]float32, count)
	for i := range count {
		w := random(r, n+2*edge)
		whole, before = append(whole, w), append(before, append([]float32(nil), w...))
		cut[i] = w[edge : edge+n]
	}
	f(cut)
	for i := range whole {
		require.Equal(t, before[i][:edge], whole[i][:edge])
		require.Equal(t, before[i][edge+n:], whole[i][edge+n:])
	}
}

func TestVectors(t *testing.T) {
	// Each writes its first slice from all of them: got by the function, want in float64.
	tests := []struct {
		name  string
		count int
		got   func(x [][]float32)
		want  func(x []float64) float64
	}{
		{"Axpy", 2, func(x [][]float32) { Axpy(x[0], 0.3, x[1]) }, func(x []float64) float64 { return x[0] + float64(float32(0.3))*x[1] }},
		{"Scale", 1, func(x [][]float32) { Scale(x[0], 0.3) }, func(x []float64) float64 { return float64(float32(0.3)) * x[0] }},
		{"Add", 2, func(x [][]float32) { Add(x[0], x[1]) }, func(x []float64) float64 { return x[0] + x[1] }},
		{"Mul", 3, func(x [][]float32) { Mul(x[0], x[1], x[2]) }, func(x []float64) float64 { return x[1] * x[2] }},
		{"MulAdd", 3, func(x [][]float32) { MulAdd(x[0], x[1], x[2]) }, func(x []float64) float64 { return x[0] + x[1]*x[2] }},
		{"Exp", 2, func(x [][]float32) { Exp(x[0], x[1]) }, func(x []float64) float64 { return math.Exp(x[1]) }},
		{"Exp in place", 1, func(x [][]float32) { Exp(x[0], x[0]) }, func(x []float64) float64 { return math.Exp(x[0]) }},
		{"SiLU", 2, func(x [][]float32) { SiLU(x[0], x[1]) }, func(x []float64) float64 { return x[1] / (1 + math.Exp(-x[1])) }},
		{"SiLUBackward", 3, func(x [][]float32) { SiLUBackward(x[0], x[1], x[2]) }, func(x []float64) float64 {
			const h = 1e-6
			silu := func(x float64) float64 { return x / (1 + math.Exp(-x)) }
			return x[1] * (silu(x[2]+h) - silu(x[2]-h)) / (2 * h)
		}},
	}
	kernels(t, func(t *testing.T) {
		r := rand.New(rand.NewPCG(1, 2))
		for _, test := range tests {
			for _, n := range lengths {
				within(t, r, n, test.count, func(x [][]float32) {
					want := make([]float64, n)
					for i := range n {
						var at []float64
						for _, s := range x {
							at = append(at, float64(s[i]))
						}
						want[i] = test.want(at)
					}
					test.got(x)
					for i := range n {
						require.InDelta(t, want[i], x[0][i], 4e-7*(1+math.Abs(want[i])), "%s, element %d of %d", test.name, i, n)
					}
				})
			}
		}
	})
}

func TestSums(t *testing.T) {
	kernels(t, func(t *testing.T) {
		r := rand.New(rand.NewPCG(3, 4))
		for _, n := range lengths {
			within(t, r, n, 2, func(x [][]float32) {
				var dot, sum, squares, magnitude float64
				largest := math.Inf(-1)
				for i, v := range x[0] {
					w := float64(v)
					dot += w * float64(x[1][i])
					magnitude += math.Abs(w * float64(x[1][i]))
					sum += w
					squares += w * w
					largest = max(largest, w)
				}
				require.InDelta(t, dot, Dot(x[0], x[1]), 1e-6*(1+magnitude))
				require.InDelta(t, sum, Sum(x[0]), 1e-12*(1+magnitude))
				require.InDelta(t, squares, SumSquares(x[0]), 1e-12*(1+squares))
				require.Equal(t, float32(largest), Max(x[0]))
				for i := range x[0] { // the largest, and a NaN, at every place
					was := x[0][i]
					x[0][i] = 100
					require.Equal(t, float32(100), Max(x[0]))
					x[0][i] = nan
					require.True(t, Max(x[0]) != Max(x[0]))
					x[0][i] = was
				}
			})
		}
		require.Equal(t, -inf, Max([]float32{-inf, -inf, -inf, -inf, -inf, -inf, -inf, -inf, -inf}))
	})
}

func TestExp(t *testing.T) {
	x := []float32{0, float32(math.Copysign(0, -1)), 1, -1, 88.72283, 88.722839, 88.73, 89, 90, 1000, math.MaxFloat32, inf, -87.3, -87.4, -100, -103.27,
		-103.9, -104, -105, -1000, -math.MaxFloat32, -inf, nan, 1e-30, -1e-30, 5e-39, 0.34657359, 0.3465736, -0.34657359}
	for v := float32(-105); v < 90; v += 0.00173 {
		x = append(x, v)
	}
	kernels(t, func(t *testing.T) {
		y := make([]float32, len(x))
		Exp(y, x)
		worst := 0.0
		for i, v := range x {
			u := ulps(y[i], math.Exp(float64(v)))
			one := []float32{v}
			Exp(one, one)
			if u > 1.5 || math.Float32bits(y[i]) != math.Float32bits(one[0]) {
				t.Fatalf("exp(%v) = %v, alone %v", v, y[i], one[0])
			}
			worst = max(worst, u)
		}
		t.Logf("at most %.2f ulp off", worst)
	})
}

func TestSiLULimits(t *testing.T) {
	kernels(t, func(t *testing.T) {
		x := []float32{-1000, -104, -90, -88, -20, 0, 20, 90, 1000, nan}
		y, d, ones := make([]float32, len(x)), make([]float32, len(x)), []float32{1, 1, 1, 1, 1, 1, 1, 1, 1, 1}
		SiLU(y, x)
		SiLUBackward(d, ones, x)
		for i, v := range x[:9] {
			s := 1 / (1 + math.Exp(-float64(v)))
			require.InDelta(t, float64(v)*s, y[i], 1e-6*math.Abs(float64(v)*s)+1e-35, "%v", v)
			require.InDelta(t, s*(1+float64(v)*(1-s)), d[i], 3e-6, "%v", v)
		}
		require.True(t, y[9] != y[9] && d[9] != d[9])
	})
}

func TestSoftmax(t *testing.T) {
	kernels(t, func(t *testing.T) {
		r := rand.New(rand.NewPCG(5, 6))
		for _, n := range append(lengths[1:], 49152) {
			for _, spread := range []float32{1, 20, 1e4} {
				row := random(r, n)
				Scale(row, spread)
				if n > 2 {
					row[n/2] = -inf
				}
				top := float64(Max(row))
				sum := 0.0
				for _, v := range row {
					sum += math.Exp(float64(v) - top)
				}
				require.InEpsilon(t, top+math.Log(sum), LogSumExp(row), 1e-7)
				p := make([]float32, n)
				require.Equal(t, LogSumExp(row), Softmax(p, row))
				for i, v := range row {
					// The difference to the largest is rounded before its exponential is taken.
					want := math.Exp(float64(v)-top) / sum
					require.InDelta(t, want, p[i], want*(3e-7+6e-8*math.Abs(float64(v)-top))+3e-45, "%v of %v", v, top)
				}
				require.InDelta(t, 1, Sum(p), 1e-6)
			}
		}
		require.Equal(t, math.Inf(-1), LogSumExp(nil))
		require.Equal(t, math.Inf(-1), LogSumExp([]float32{-inf, -inf}))
		require.Equal(t, math.Inf(1), LogSumExp([]float32{0, inf}))
		require.True(t, math.IsNaN(LogSumExp([]float32{0, nan})))
		all := []float32{-inf, -inf}
		Softmax(all, all)
		require.True(t, all[0] != all[0])
		require.True(t, math.IsNaN(Softmax(all, []float32{0, inf})))
		Softmax(nil, nil)
	})
}

func TestRMSNorm(t *testing.T) {
	const eps = 1e-5
	loss := func(x, w, g []float64) (s float64) {
		mean := 0.0
		for _, v := range x {
			mean += v * v / float64(len(x))
		}
		for i, v := range x {
			s += g[i] * w[i] * v / math.Sqrt(mean+eps)
		}
		return s
	}
	wide := func(x []float32) (y []float64) {
		for _, v := range x {
			y = append(y, float64(v))
		}
		return y
	}
	kernels(t, func(t *testing.T) {
		r := rand.New(rand.NewPCG(7, 8))
		for _, n := range lengths[1:13] {
			within(t, r, n, 6, func(s [][]float32) {
				x, w, dy, y, dx, dw := s[0], s[1], s[2], s[3], s[4], s[5]
				dx0, dw0 := wide(dx), wide(dw)
				rms := RMSNorm(y, x, w, eps)
				require.InEpsilon(t, 1/math.Sqrt(SumSquares(x)/float64(n)+eps), rms, 1e-6)
				for i := range y {
					require.InDelta(t, float64(x[i]*w[i]*rms), y[i], 1e-5)
				}
				RMSNormBackward(dx, dw, dy, x, w, rms)
				dx1 := wide(dx)
				RMSNormBackward(dx, nil, dy, x, w, rms)
				for i := range x {
					const h = 1e-5
					by := func(v []float64) float64 {
						was := v[i]
						v[i] = was + h
						return was
					}
					x64, w64, g64 := wide(x), wide(w), wide(dy)
					was := by(x64)
					up := loss(x64, w64, g64)
					x64[i] = was - h
					d := (up - loss(x64, w64, g64)) / (2 * h)
					x64[i] = was
					scale := 1e-5 * (1 + float64(rms))
					require.InDelta(t, dx0[i]+d, dx1[i], scale*(1+math.Abs(d)), "dx %d of %d", i, n)
					require.InDelta(t, dx0[i]+2*d, dx[i], 2*scale*(1+math.Abs(d)), "dx %d of %d", i, n)
					was = by(w64)
					up = loss(x64, w64, g64)
					w64[i] = was - h
					d = (up - loss(x64, w64, g64)) / (2 * h)
					require.InDelta(t, dw0[i]+d, dw[i], scale*(1+math.Abs(d)), "dw %d of %d", i, n)
				}
			})
		}
	})
}

func TestAdamW(t *testing.T) {
	kernels(t, func(t *testing.T) {
		r := rand.New(rand.NewPCG(9, 10))
		for _, n := range lengths {
			within(t, r, n, 4, func(x [][]float32) {
				p, g, m, v := x[0], x[1], x[2], x[3]
				clear(m)
				clear(v)
				p64, m64, v64 := make([]float64, n), make([]float64, n), make([]float64, n)
				for i := range p {
					p64[i] = float64(p[i])
				}
				a := Adam{Rate: 0.1, Beta1: 0.9, Beta2: 0.99, Epsilon: 1e-8, Decay: 0.2, Scale: 0.5}
				for a.Step = 1; a.Step <= 3; a.Step++ {
					copy(g, random(r, n))
					AdamW(p, g, m, v, a)
					for i := range p {
						d := float64(g[i]) * 0.5
						m64[i] += (d - m64[i]) * 0.1
						v64[i] += (d*d - v64[i]) * 0.01
						mean, square := m64[i]/(1-math.Pow(0.9, float64(a.Step))), v64[i]/(1-math.Pow(0.99, float64(a.Step)))
						p64[i] -= 0.1*0.2*p64[i] + 0.1*mean/(math.Sqrt(square)+1e-8)
						require.InDelta(t, p64[i], p[i], 1e-5, "p %d of %d, step %d", i, n, a.Step)
						require.InDelta(t, m64[i], m[i], 1e-6)
						require.InDelta(t, v64[i], v[i], 1e-6)
					}
				}
			})
		}
	})
}

func TestBfloat16(t *testing.T) {
	tests := []struct {
		bits uint32
		want uint16
	}{
		{0, 0}, {0x80000000, 0x8000}, {0x3f800000, 0x3f80},
		{0x3f807fff, 0x3f80}, {0x3f808000, 0x3f80}, {0x3f808001, 0x3f81}, // below, at and above the middle, which goes to the even one
		{0x3f818000, 0x3f82}, {0xbf818000, 0xbf82},
		{0x7f7fffff, 0x7f80}, {0x7f7f7fff, 0x7f7f}, // the largest rounds to Inf
		{0x7f800000, 0x7f80}, {0xff800000, 0xff80}, {0x7f800001, 0x7fc0}, {0xffffffff, 0xffff},
		{1, 0}, {0x8000, 0}, {0x8001, 1}, {0x18000, 2},
	}
	kernels(t, func(t *testing.T) {
		for _, test := range tests {
			x, h := make([]float32, 9), make([]uint16, 9) // one by the loop of eights, one by that of the rest
			x[3], x[8] = math.Float32frombits(test.bits), math.Float32frombits(test.bits)
			Round(h, x)
			require.Equal(t, []uint16{0, 0, 0, test.want, 0, 0, 0, 0, test.want}, h, "%x", test.bits)
		}
		all, wide, back := make([]uint16, 1<<16), make([]float32, 1<<16), make([]uint16, 1<<16)
		for i := range all {
			all[i] = uint16(i)
		}
		Widen(wide, all)
		Round(back, wide)
		for i, v := range wide {
			want := all[i]
			if v != v {
				want |= 0x40
			}
			if math.Float32bits(v) != uint32(i)<<16 || back[i] != want {
				t.Fatalf("%x is %v and %x", i, v, back[i])
			}
		}
		for _, n := range lengths {
			x := make([]float32, n)
			h := make([]uint16, n+1)
			h[n] = 7
			Round(h[:n], x)
			require.Equal(t, uint16(7), h[n])
		}
	})
}

func BenchmarkVectors(b *testing.B) {
	const n = 49152
	r := rand.New(rand.NewPCG(1, 2))
	p, g, m, v := random(r, n), random(r, n), random(r, n), make([]float32, n)
	h := make([]uint16, n)
	for _, bench := range []struct {
		name string
		f    func()
	}{
		{"Dot", func() { Dot(p, g) }},
		{"Axpy", func() { Axpy(m, 1e-9, p) }},
		{"Max", func() { Max(p) }},
		{"SumSquares", func() { SumSquares(p) }},
		{"Exp", func() { Exp(v, p) }},
		{"Softmax", func() { Softmax(v, v) }},
		{"LogSumExp", func() { LogSumExp(p) }},
		{"SiLU", func() { SiLU(v, p) }},
		{"SiLUBackward", func() { SiLUBackward(v, g, p) }},
		{"AdamW", func() { AdamW(p, g, m, v, Adam{Step: 1, Rate: 1e-9, Beta1: 0.9, Beta2: 0.99, Epsilon: 1e-8, Scale: 1}) }},
		{"RMSNorm", func() { RMSNorm(v, p, g, 1e-5) }},
		{"RMSNormBackward", func() { RMSNormBackward(m, v, g, p, g, 1e-9) }},
		{"Widen", func() { Widen(v, h) }},
		{"Round", func() { Round(h, p) }},
	} {
		b.Run(bench.name, func(b *testing.B) {
			for i := range v {
				v[i] = 1
			}
			for b.Loop() {
				bench.f()
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/n, "ns/element")
		})
	}
}
