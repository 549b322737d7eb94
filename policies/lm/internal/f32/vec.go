package f32

import "math"

// Dot is the sum of a[i]*b[i]. The slices have one length, as those of all functions here.
func Dot(a, b []float32) float32 {
	b = b[:len(a)]
	if avx2 {
		return dot(a, b)
	}
	var s float32
	for i, x := range a {
		s += float32(x * b[i])
	}
	return s
}

// Axpy computes y += a*x.
func Axpy(y []float32, a float32, x []float32) {
	x = x[:len(y)]
	if avx2 {
		axpy(y, a, x)
		return
	}
	for i := range y {
		y[i] += float32(a * x[i])
	}
}

// Scale computes x *= a.
func Scale(x []float32, a float32) {
	if avx2 {
		scale(x, a)
		return
	}
	for i := range x {
		x[i] *= a
	}
}

// Add computes y += x.
func Add(y, x []float32) {
	x = x[:len(y)]
	if avx2 {
		add(y, x)
		return
	}
	for i := range y {
		y[i] += x[i]
	}
}

// Mul computes y = a*b by element. y may be a or b.
func Mul(y, a, b []float32) {
	a, b = a[:len(y)], b[:len(y)]
	if avx2 {
		mul(y, a, b)
		return
	}
	for i := range y {
		y[i] = a[i] * b[i]
	}
}

// MulAdd computes y += a*b by element.
func MulAdd(y, a, b []float32) {
	a, b = a[:len(y)], b[:len(y)]
	if avx2 {
		mulAdd(y, a, b)
		return
	}
	for i := range y {
		y[i] += float32(a[i] * b[i])
	}
}

// Sum is the sum of x, added up in float64.
func Sum(x []float32) float64 {
	if avx2 {
		return sum(x)
	}
	var s float64
	for _, v := range x {
		s += float64(v)
	}
	return s
}

// SumSquares is the sum of the squares of x, added up in float64.
func SumSquares(x []float32) float64 {
	if avx2 {
		return sumSquares(x)
	}
	var s float64
	for _, v := range x {
		s += float64(v) * float64(v)
	}
	return s
}

// Max is the largest of x: NaN where one is, and -Inf where there is none.
func Max(x []float32) float32 {
	m := float32(math.Inf(-1))
	if avx2 {
		m = maximum(x)
		x = x[len(x)&^7:]
	}
	for _, v := range x {
		m = max(m, v)
	}
	return m
}

// Exp computes y = exp(x) by element, to about 2 units in the last place. y may be x.
func Exp(y, x []float32) {
	x = x[:len(y)]
	if avx2 {
		expSum(y, x, 0)
		return
	}
	for i, v := range x {
		y[i] = float32(math.Exp(float64(v)))
	}
}

// Softmax computes y = exp(x) over the sum of it, and returns the logarithm of that sum as LogSumExp does. y may be x. Where all are
// -Inf, or one is Inf or NaN, y and the result are NaN.
func Softmax(y, x []float32) (logSumExp float64) {
	m := Max(x)
	sum := expShift(y[:len(x)], x, m)
	Scale(y, float32(1/sum))
	return float64(m) + math.Log(sum)
}

// LogSumExp is the logarithm of the sum of exp(row), in float64 so that log-probabilities keep their last digits. It is -Inf where all
// are or there is none.
func LogSumExp(row []float32) float64 {
	m := Max(row)
	if math.IsInf(float64(m), 0) {
		return float64(m)
	}
	return float64(m) + math.Log(expShift(nil, row, m))
}

// expShift computes y = exp(x-shift), unless y is nil, and returns its sum.
func expShift(y, x []float32, shift float32) float64 {
	if avx2 {
		return expSum(y, x, shift)
	}
	var s float64
	for i, v := range x {
		e := math.Exp(float64(v - shift))
		s += e
		if y != nil {
			y[i] = float32(e)
		}
	}
	return s
}

// SiLU computes y = x*sigmoid(x) by element. y may be x.
func SiLU(y, x []float32) {
	x = x[:len(y)]
	if avx2 {
		silu(y, x)
		return
	}
	for i, v := range x {
		y[i] = float32(float64(v) / (1 + math.Exp(-float64(v))))
	}
}

// SiLUBackward computes dx = dy*silu'(x) by element. dx may be dy or x.
func SiLUBackward(dx, dy, x []float32) {
	dy, x = dy[:len(dx)], x[:len(dx)]
	if avx2 {
		siluBack(dx, dy, x)
		return
	}
	for i, v := range x {
		s := 1 / (1 + math.Exp(-float64(v)))
		dx[i] = float32(float64(dy[i]) * s * (1 + float64(v)*(1-s)))
	}
}

// RMSNorm computes y = x*r*w by element and returns r = 1/sqrt(mean(x²)+eps). y may be x.
func RMSNorm(y, x, w []float32, eps float32) (r float32) {
	x, w = x[:len(y)], w[:len(y)]
	r = float32(1 / math.Sqrt(SumSquares(x)/float64(len(x))+float64(eps)))
	if avx2 {
		norm(y, x, w, r)
		return r
	}
	for i := range y {
		y[i] = x[i] * r * w[i]
	}
	return r
}

// RMSNormBackward adds RMSNorm's gradients with respect to x and w to dx and dw, given that with respect to y, and r as RMSNorm
// returned it. A nil dw leaves w's out.
func RMSNormBackward(dx, dw, dy, x, w []float32, r float32) {
	dy, x, w = dy[:len(dx)], x[:len(dx)], w[:len(dx)]
	over := float64(r) * float64(r) * float64(r) / float64(len(dx))
	if avx2 {
		normBack(dx, dy, x, w, r, float32(dot3(dy, x, w)*over))
		if dw != nil {
			normGrad(dw[:len(dx)], dy, x, r)
		}
		return
	}
	var s float64
	for i := range dx {
		s += float64(dy[i] * x[i] * w[i])
	}
	t := float32(s * over)
	for i := range dx {
		dx[i] += dy[i]*r*w[i] - x[i]*t
		if dw != nil {
			dw[i] += dy[i] * x[i] * r
		}
	}
}

// Adam are the scalars of a step of AdamW.
type Adam struct {
	Step                               int // that this is, counted from 1
	Rate, Beta1, Beta2, Epsilon, Decay float64
	Scale                              float64 // that gradients are multiplied by first
}

// AdamW updates the weights p and their moments m and v by the gradients g, as torch.optim.AdamW does.
func AdamW(p, g, m, v []float32, a Adam) {
	g, m, v = g[:len(p)], m[:len(p)], v[:len(p)]
	s := scalars{
		keep:  float32(1 - a.Rate*a.Decay),
		rate:  float32(a.Rate / (1 - math.Pow(a.Beta1, float64(a.Step)))),
		root:  float32(1 / math.Sqrt(1-math.Pow(a.Beta2, float64(a.Step)))),
		b1:    float32(a.Beta1),
		c1:    float32(1 - a.Beta1),
		b2:    float32(a.Beta2),
		c2:    float32(1 - a.Beta2),
		eps:   float32(a.Epsilon),
		scale: float32(a.Scale),
	}
	if avx2 {
		adam(p, g, m, v, &s)
		return
	}
	for i := range p {
		d := g[i] * s.scale
		m[i] = m[i]*s.b1 + d*s.c1
		v[i] = v[i]*s.b2 + d*d*s.c2
		p[i] = p[i]*s.keep - m[i]*s.rate/(float32(math.Sqrt(float64(v[i])))*s.root+s.eps)
	}
}

// scalars are those of Adam as the loop needs them: root and rate correct the moments for having begun at 0.
type scalars struct{ keep, rate, b1, c1, b2, c2, root, eps, scale float32 }

// Widen turns bfloat16 into float32, exactly.
func Widen(dst []float32, src []uint16) {
	src = src[:len(dst)]
	if avx2 {
		widenEights(dst, src)
		done := len(dst) &^ 7
		dst, src = dst[done:], src[done:]
	}
	for i, v := range src {
		dst[i] = widen(v)
	}
}

func widen(v uint16) float32 { return math.Float32frombits(uint32(v) << 16) }

// Round turns float32 into the nearest bfloat16, of two as near the even one. NaN stays NaN.
func Round(dst []uint16, src []float32) {
	src = src[:len(dst)]
	if avx2 {
		roundEights(dst, src)
		done := len(dst) &^ 7
		dst, src = dst[done:], src[done:]
	}
	for i, v := range src {
		u := math.Float32bits(v)
		if v != v {
			dst[i] = uint16(u>>16) | 0x40 // a quiet one, so that cutting its low bits off makes no Inf
			continue
		}
		dst[i] = uint16((u + 0x7fff + u>>16&1) >> 16)
	}
}
