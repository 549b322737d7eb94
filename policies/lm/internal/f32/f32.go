// Package f32 is the arithmetic under the engine: matrix products, and loops over vectors, of float32. On amd64 with AVX2 and FMA it
// runs in assembly, elsewhere and with the build tag purego in Go. Results do not depend on GOMAXPROCS, but differ in the last bits
// between the two.
package f32

import (
	"runtime"
	"sync"
	"unsafe"
)

// MatMul computes C = A·B, or C += A·B where add, of row-major matrices: C is [m,n], A is [m,k] and B is [k,n]. With ta A is stored as
// its transpose [k,m], with tb B as [n,k]. C must not overlap A or B. A row of C has the same bits whatever m and GOMAXPROCS.
func MatMul(c, a, b []float32, m, n, k int, ta, tb, add bool) {
	p := products.Get().(*product)
	p.c, p.a, p.m, p.n, p.k, p.add = c[:m*n], a[:m*k], m, n, k, add
	p.rs, p.ks = k, 1
	if ta {
		p.rs, p.ks = 1, m
	}
	p.src, p.srcT = b[:k*n], tb
	p.sliced()
	p.release()
}

// Matrix is a constant matrix W of shape [out,in], laid out for products. It may be used concurrently.
type Matrix struct {
	out, in int
	// Panels of 16 rows of W, the last filled up with zeros; in a panel the 16 elements of a column lie together, those in h in the order
	// of paired. One is nil.
	w []float32
	h []uint16
}

// paired is where row r of a bfloat16 panel stands, beside row r±8: to widen a pair takes no shuffle.
func paired(r int) int { return r%8*2 + r/8 }

// Pack makes a Matrix of a copy of w.
func Pack(w []float32, out, in int) *Matrix {
	m := &Matrix{out: out, in: in, w: make([]float32, panels(out)*in*Width)}
	m.Repack(w)
	return m
}

// Repack replaces what Pack copied, as after a step of an optimiser, while nothing uses the matrix.
func (m *Matrix) Repack(w []float32) {
	w = w[:m.out*m.in]
	Parallel(panels(m.out), 1+1<<14/(m.in*Width+1), func(lo, hi int) {
		for i := lo; i < hi; i++ {
			packRows(m.w[i*m.in*Width:(i+1)*m.in*Width], w[i*Width*m.in:], m.in, min(Width, m.out-i*Width), m.in)
		}
	})
}

// PackBF16 makes a Matrix of a copy of w, which stays in bfloat16 and so takes half the memory. Products are computed in float32.
func PackBF16(w []uint16, out, in int) *Matrix {
	m := &Matrix{out: out, in: in, h: make([]uint16, panels(out)*in*Width)}
	w = w[:out*in]
	Parallel(panels(out), 1+1<<14/(in*Width+1), func(lo, hi int) {
		for i := lo; i < hi; i++ {
			dst := m.h[i*in*Width : (i+1)*in*Width]
			for r := range min(Width, out-i*Width) {
				for l, v := range w[(i*Width+r)*in:][:in] {
					dst[l*Width+paired(r)] = v
				}
			}
		}
	})
	return m
}

// Out is the number of rows of W.
func (m *Matrix) Out() int { return m.out }

// In is the number of columns of W.
func (m *Matrix) In() int { return m.in }

// Row copies row i of W to dst, as for an embedding.
func (m *Matrix) Row(dst []float32, i int) {
	dst = dst[:m.in]
	at := i/Width*Width*m.in + i%Width
	if m.h != nil {
		at += paired(i%Width) - i%Width
		for l := range dst {
			dst[l] = widen(m.h[at+l*Width])
		}
		return
	}
	for l := range dst {
		dst[l] = m.w[at+l*Width]
	}
}

// Mul computes Y[rows,out] = X[rows,in]·Wᵀ. A row of Y has the same bits whatever rows and GOMAXPROCS.
func (m *Matrix) Mul(y, x []float32, rows int) {
	p := products.Get().(*product)
	p.c, p.a, p.m, p.n, p.k, p.add = y[:rows*m.out], x[:rows*m.in], rows, m.out, m.in, false
	p.rs, p.ks = m.in, 1
	p.b, p.h = m.w, m.h
	p.bn, p.bk = p.n, p.k
	p.multiply()
	p.release()
}

// MulBack computes dX[rows,in] = dY[rows,out]·W, or dX += where add, which is the gradient of Mul. Rows are as those of Mul.
func (m *Matrix) MulBack(dx, dy []float32, rows int, add bool) {
	p := products.Get().(*product)
	p.c, p.a, p.m, p.n, p.k, p.add = dx[:rows*m.in], dy[:rows*m.out], rows, m.in, m.out, add
	p.rs, p.ks = m.out, 1
	p.mat = m
	p.sliced()
	p.release()
}

// Panels computes c = a·b, or c += where add, of a row a and of panels of [len(a),Width], whose columns follow each other in c.
func Panels(c, a []float32, b [][]float32, add bool) {
	k := len(a)
	if k == 0 {
		if !add {
			clear(c[:len(b)*Width])
		}
		return
	}
	if len(b) == 0 {
		return
	}
	_ = c[len(b)*Width-1]
	for i, panel := range b {
		_ = panel[k*Width-1]
		if !avx2 {
			kernelGo(c[i*Width:], Width, a, k, 1, panel, k, 1, add)
		}
	}
	if avx2 {
		rowPanels(&c[0], &a[0], &b[0], k, len(b), add)
	}
}

// Width is the number of columns of a panel of B.
const Width = 16

const (
	height = 6   // rows that a kernel computes at most
	maxK   = 256 // steps that it sums before it adds to C: its panel of B, 16 KiB, stays in the L1 cache
	maxM   = 192 // rows of A that go with a panel before the next: 192 KiB, which stay in the L2 cache

	fewM = 18 // rows at most for which it is better not to copy A, nor to widen a bfloat16 panel first

	sliceK = 16 * maxK // rows of B that MatMul packs at once
	sliceB = 1 << 21   // and about how many elements
)

func panels(n int) int { return (n + Width - 1) / Width }

// steps returns how many blocks k is cut into. It depends on nothing else, for every block ends in a rounding.
func steps(k int) int { return (k + maxK - 1) / maxK }

// product is one matrix product. It lives in a pool, with its scratch memory and the functions that run in parallel, so that a product
// allocates nothing.
type product struct {
	c, a    []float32
	m, n, k int
	rs, ks  int // from row to row of A, and from column to column
	add     bool

	// What is packed: columns n0 to n0+bn and rows k0 to k0+bk of B, of which either b or h holds the panels.
	b              []float32
	h              []uint16
	n0, bn, k0, bk int
	block0         int // the block of steps that begins at k0

	// Where B comes from if it was not packed before: src, transposed with srcT, or mat.
	src    []float32
	srcT   bool
	mat    *Matrix
	packed []float32

	mBlocks, nBlocks int
	tiles, pack      func(lo, hi int)
}

var products = sync.Pool{New: func() any {
	p := new(product)
	p.tiles, p.pack = p.runTiles, p.runPack
	return p
}}

func (p *product) release() {
	*p = product{packed: p.packed, tiles: p.tiles, pack: p.pack}
	products.Put(p)
}

// sliced packs B slice by slice and multiplies by each.
func (p *product) sliced() {
	if p.k == 0 || p.m == 0 || p.n == 0 {
		p.multiply()
		return
	}
	blocks := steps(p.k)
	perSlice := max(1, min(sliceK, sliceB/p.n)/maxK)
	for first := 0; first < blocks; first += perSlice {
		p.block0, p.k0 = first, first*p.k/blocks
		p.bk = min(first+perSlice, blocks)*p.k/blocks - p.k0
		chunks := (p.n*p.bk + sliceB - 1) / sliceB
		step := panels((p.n+chunks-1)/chunks) * Width
		for p.n0 = 0; p.n0 < p.n; p.n0 += step {
			p.bn = min(step, p.n-p.n0)
			size := panels(p.bn) * Width * p.bk
			if cap(p.packed) < size {
				p.packed = make([]float32, size)
			}
			p.b = p.packed[:size]
			if size < 1<<15 {
				p.runPack(0, panels(p.bn))
			} else {
				Parallel(panels(p.bn), 1+1<<13/(Width*p.bk), p.pack)
			}
			p.multiply()
		}
		p.n0 = 0
		p.add = true
	}
}

// runPack packs panels lo to hi of the slice.
func (p *product) runPack(lo, hi int) {
	for i := lo; i < hi; i++ {
		dst := p.b[i*Width*p.bk : (i+1)*Width*p.bk]
		j := p.n0 + i*Width
		w := min(Width, p.n0+p.bn-j)
		switch {
		case p.mat != nil:
			p.packMatrix(dst, j, w)
		case p.srcT:
			packRows(dst, p.src[j*p.k+p.k0:], p.k, w, p.bk)
		default:
			packColumns(dst, p.src[p.k0*p.n+j:], p.n, w, p.bk)
		}
	}
}

// packMatrix packs w columns of a Matrix from column j on. The slice of rows may begin within a panel of it.
func (p *product) packMatrix(dst []float32, j, w int) {
	in := p.mat.in
	s := scratches.Get().(*scratch)
	for l := 0; l < p.bk; {
		o := p.k0 + l
		n := min(Width-o%Width, p.bk-l)
		at := o/Width*Width*in + j*Width
		var block []float32
		if p.mat.h != nil {
			block = s.b[:w*Width]
			widenPanel(block, p.mat.h[at:at+w*Width])
		} else {
			block = p.mat.w[at : at+w*Width]
		}
		packRows(dst[l*Width:(l+n)*Width], block[o%Width:], Width, w, n)
		l += n
	}
	scratches.Put(s)
}

// widenPanel turns a panel's steps into float32.
func widenPanel(dst []float32, src []uint16) {
	src = src[:len(dst)]
	if len(dst) == 0 {
		return
	}
	if avx2 {
		widenSteps(&dst[0], &src[0], len(dst)/Width)
		return
	}
	for l := 0; l < len(dst); l += Width {
		for r := range Width {
			dst[l+r] = widen(src[l+paired(r)])
		}
	}
}

// packRows makes a panel of n rows of k elements that lie ld apart: element l of row r becomes dst[l*Width+r]. The rest is 0.
func packRows(dst, src []float32, ld, n, k int) {
	dst = dst[:k*Width]
	done := 0
	if n == Width && avx2 && k >= 8 {
		_ = src[(n-1)*ld+k-1]
		transpose16(&dst[0], &src[0], ld, k/8)
		done = k / 8 * 8
	}
	if n < Width {
		clear(dst)
	}
	if done == k {
		return
	}
	for r := range n {
		for l, v := range src[r*ld+done : r*ld+k] {
			dst[(done+l)*Width+r] = v
		}
	}
}

// packColumns makes a panel of k rows of n elements that lie ld apart: element r of row l becomes dst[l*Width+r]. The rest is 0.
func packColumns(dst, src []float32, ld, n, k int) {
	if n == Width {
		for l := range k {
			*(*[Width]float32)(dst[l*Width:]) = *(*[Width]float32)(src[l*ld:])
		}
		return
	}
	clear(dst)
	for l := range k {
		copy(dst[l*Width:(l+1)*Width], src[l*ld:l*ld+n])
	}
}

// multiply multiplies A by what is packed of B.
func (p *product) multiply() {
	if p.m == 0 || p.n == 0 {
		return
	}
	if p.k == 0 {
		if !p.add {
			clear(p.c)
		}
		return
	}
	p.mBlocks, p.nBlocks = (p.m+maxM-1)/maxM, 1
	// A few rows cost as much as four: the time goes into reading B.
	if procs := runtime.GOMAXPROCS(0); procs > 1 && max(p.m, 4)*p.bn*p.bk >= 1<<20 {
		p.split(4 * procs)
		Parallel(p.mBlocks*p.nBlocks, 1, p.tiles)
		return
	}
	p.runTiles(0, p.mBlocks)
}

// split cuts C into about want tiles, if it is large enough. Each copies its rows of A, which costs more than to read its panels of B.
func (p *product) split(want int) {
	few, tiles, least := p.mBlocks, 0, 0
	for n := 1; n <= max(1, min(want, panels(p.bn)/4)); n++ {
		m := max(few, min((want+n-1)/n, p.m/24))
		t, cost := min(m*n, want), 2*p.m*n+p.bn*m
		if t > tiles || t == tiles && cost < least {
			tiles, least, p.mBlocks, p.nBlocks = t, cost, m, n
		}
	}
}

// scratch is what one goroutine needs.
type scratch struct {
	a [maxM*maxK + 8]float32 // rows of A
	b [maxK * Width]float32  // a panel of B, widened
	c [height * Width]float32
}

var scratches = sync.Pool{New: func() any { return new(scratch) }}

func (p *product) runTiles(lo, hi int) {
	s := scratches.Get().(*scratch)
	np := panels(p.bn)
	for t := lo; t < hi; t++ {
		i, j := t/p.nBlocks, t%p.nBlocks
		p.tile(s, i*p.m/p.mBlocks, (i+1)*p.m/p.mBlocks, j*np/p.nBlocks, (j+1)*np/p.nBlocks)
	}
	scratches.Put(s)
}

// tile computes rows i0 to i1 of C and panels j0 to j1 of what is packed.
func (p *product) tile(s *scratch, i0, i1, j0, j1 int) {
	if i1-i0 <= fewM {
		// B is read once, and fastest in the order in which it lies.
		for j := j0; j < j1; j++ {
			p.blocks(s, i0, i1, j, j+1)
		}
		return
	}
	p.blocks(s, i0, i1, j0, j1)
}

// blocks is tile without regard to the order.
func (p *product) blocks(s *scratch, i0, i1, j0, j1 int) {
	rows := i1 - i0
	groups := (rows + height - 1) / height // as equal as can be: seven rows are four and three

	blocks := steps(p.k)
	for k, block := p.k0, p.block0; k < p.k0+p.bk; {
		block++
		end := block * p.k / blocks
		kb := end - k
		add := p.add || k > p.k0

		a, rs, ks := p.a[i0*p.rs+k*p.ks:], p.rs, p.ks
		copied := j1-j0 > 2
		if copied {
			p.copyA(s.a[:], i0, rows, k, kb)
		}
		for j := j0; j < j1; j++ {
			at := (j*p.bk + k - p.k0) * Width
			var b []float32
			var h []uint16
			switch {
			case p.h == nil:
				b = p.b[at : at+kb*Width]
			case rows > fewM || !avx2:
				b = s.b[:kb*Width]
				widenPanel(b, p.h[at:at+kb*Width])
			default:
				h = p.h[at : at+kb*Width]
			}
			// The next panel comes from memory piece by piece while this one is in use.
			var next unsafe.Pointer
			piece := 0 // in bytes
			if avx2 && rows > fewM && j+1 < j1 {
				if at += p.bk * Width; p.h == nil {
					next, piece = unsafe.Pointer(&p.b[at]), kb*Width*4/groups
				} else {
					next, piece = unsafe.Pointer(&p.h[at]), kb*Width*2/groups
				}
			}
			col := p.n0 + j*Width
			w := min(Width, p.n0+p.bn-col)
			for g := range groups {
				i := g * rows / groups
				mr := (g+1)*rows/groups - i
				if next != nil {
					prefetch(unsafe.Add(next, g*piece), piece)
				}
				ga, grs, gks := a, rs, ks
				switch {
				case copied && p.ks == 1:
					ga, grs, gks = s.a[i*kb:], kb, 1
				case copied:
					ga, grs, gks = s.a[i*kb:], 1, mr
				default:
					ga = a[i*rs:]
				}
				c := p.c[(i0+i)*p.n+col:]
				if w == Width {
					kernel(c, p.n, ga, grs, gks, b, h, kb, mr, add)
				} else {
					kernel(s.c[:], Width, ga, grs, gks, b, h, kb, mr, false)
					for r := range mr {
						if add {
							Add(c[r*p.n:r*p.n+w], s.c[r*Width:r*Width+w])
						} else {
							copy(c[r*p.n:r*p.n+w], s.c[r*Width:])
						}
					}
				}
			}
		}
		k = end
	}
}

// copyA copies rows of A, from i0 on, and kb of their columns, from k on, close together: row by row if A is stored so, else step by
// step within each group of rows.
func (p *product) copyA(dst []float32, i0, rows, k, kb int) {
	if p.ks == 1 {
		for i := range rows {
			copy(dst[i*kb:(i+1)*kb], p.a[(i0+i)*p.rs+k:])
		}
		return
	}
	groups := (rows + height - 1) / height
	for g := range groups {
		i := g * rows / groups
		mr := (g+1)*rows/groups - i
		src, to := p.a[k*p.ks+i0+i:], dst[i*kb:]
		l := 0
		// Eight are copied for the mr that count: the next step, or group, overwrites the others. They must not lie beyond A.
		if n := min(kb, (len(src)-8)/p.ks+1); avx2 && len(src) >= 8 {
			copy8(&to[0], mr, &src[0], p.ks, n)
			l = n
		}
		for ; l < kb; l++ {
			copy(to[l*mr:(l+1)*mr], src[l*p.ks:])
		}
	}
}

// kernel computes mr rows, ldc apart, of 16 columns of C, from k steps of A and of a panel in b or h, and puts or adds them. An
// element is the sum, from 0 on and step by step, whatever mr is.
func kernel(c []float32, ldc int, a []float32, rs, ks int, b []float32, h []uint16, k, mr int, add bool) {
	_, _ = c[(mr-1)*ldc+Width-1], a[(mr-1)*rs+(k-1)*ks]
	switch {
	case !avx2:
		kernelGo(c, ldc, a, rs, ks, b, k, mr, add)
	case h != nil:
		kernel16(&c[0], ldc, &a[0], rs, ks, &h[0], k, mr, add)
	default:
		kernel32(&c[0], ldc, &a[0], rs, ks, &b[0], k, mr, add)
	}
}

func kernelGo(c []float32, ldc int, a []float32, rs, ks int, b []float32, k, mr int, add bool) {
	for r := range mr {
		for j := 0; j < Width; j += 4 {
			var s0, s1, s2, s3 float32
			at := r * rs
			for l := range k {
				x := a[at]
				at += ks
				y := (*[4]float32)(b[l*Width+j:])
				// The conversions forbid to fuse, so that all processors give the same bits.
				s0 += float32(x * y[0])
				s1 += float32(x * y[1])
				s2 += float32(x * y[2])
				s3 += float32(x * y[3])
			}
			d := (*[4]float32)(c[r*ldc+j:])
			if add {
				s0, s1, s2, s3 = d[0]+s0, d[1]+s1, d[2]+s2, d[3]+s3
			}
			*d = [4]float32{s0, s1, s2, s3}
		}
	}
}
