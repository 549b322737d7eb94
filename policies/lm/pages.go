package lm

import "container/list"

// pageSize is the number of tokens whose keys and values are in a page.
const pageSize = 16

// page holds the keys and values of consecutive tokens in all layers. A full one never changes, and whatever begins with the same
// tokens shares it.
type page struct {
	id     uint64
	key    pageKey
	shared bool      // it is found by its key
	users  int       // streams that hold it
	data   []float32 // for each layer and head of keys: keys as [headDim,pageSize], values as panels of [pageSize,16]
	unused *list.Element
}

// pageKey says which tokens a page is of: its own, after those of another and all before that.
type pageKey struct {
	after  uint64 // 0: none
	tokens [pageSize]int32
}

// pages are those of all streams, and of streams that have ended, for whoever goes on with the same tokens. They are those of one
// version of the weights.
type pages struct {
	size   int // floats in a page
	last   uint64
	known  map[pageKey]*page
	unused *list.List // of known pages that nobody holds, the longest so first
	free   [][]float32
}

// maxUnused bounds the bytes in pages that nobody holds.
const maxUnused = 256 << 20

func (p *pages) clear() {
	p.known, p.unused, p.free = map[pageKey]*page{}, list.New(), nil
}

// find returns the page of a key and holds it, or nil.
func (p *pages) find(k pageKey) *page {
	g := p.known[k]
	if g == nil {
		return nil
	}
	if g.users == 0 {
		p.unused.Remove(g.unused)
		g.unused = nil
	}
	g.users++
	return g
}

// empty returns a page that nobody else holds.
func (p *pages) empty() *page {
	p.last++
	g := &page{id: p.last, users: 1}
	switch {
	case len(p.free) > 0:
		g.data, p.free = p.free[len(p.free)-1], p.free[:len(p.free)-1]
	case p.unused.Len()*p.size*4 >= maxUnused:
		g.data = p.forget()
	default:
		g.data = make([]float32, p.size)
	}
	return g
}

// forget drops the page that nobody has held for longest, and returns its memory.
func (p *pages) forget() []float32 {
	g := p.unused.Remove(p.unused.Front()).(*page)
	delete(p.known, g.key)
	return g.data
}

// full makes a page known that has its last token now.
func (p *pages) full(g *page, k pageKey) {
	if p.known[k] == nil {
		g.key, g.shared = k, true
		p.known[k] = g
	}
}

// drop lets go of a stream's pages, the last first: what others may begin with stays longest.
func (p *pages) drop(held []*page) {
	for i := len(held) - 1; i >= 0; i-- {
		g := held[i]
		if g.users--; g.users > 0 {
			continue
		}
		// A page of weights that have changed is no longer among those that are known.
		if g.shared && p.known[g.key] == g {
			g.unused = p.unused.PushBack(g)
		} else if len(g.data) == p.size {
			p.free = append(p.free, g.data)
		}
	}
	for (p.unused.Len()+len(p.free))*p.size*4 > maxUnused {
		if n := len(p.free); n > 0 {
			p.free[n-1] = nil
			p.free = p.free[:n-1]
		} else {
			p.forget()
		}
	}
}
