package lm

import (
	"container/list"
	"slices"
)

// pageSize is the number of tokens in a page.
const pageSize = 16

// page holds what the model has made of consecutive tokens: their keys and values in all layers, and what comes out of the last one.
// Tokens are added, and never change: all that begin with the same ones share the page, whatever else is in it.
type page struct {
	id     uint64
	key    pageKey
	tokens [pageSize]int32
	n      int // tokens that it has
	ready  int // of these, those that have been through the model; the others are in this round
	users  int // streams that hold it
	data   []float32
	unused *list.Element
}

// pageKey is what pages are looked for by: what they come after, and how they begin.
type pageKey struct {
	after uint64 // 0: none
	first int32
}

// pages are those of all streams, and of streams that have ended, for whoever goes on with the same tokens. They are those of one
// version of the weights.
type pages struct {
	size   int // floats in a page
	last   uint64
	known  map[pageKey][]*page
	unused *list.List // of known pages that nobody holds, the longest so first
}

// maxUnused bounds the bytes in pages that nobody holds.
const maxUnused = 256 << 20

func (p *pages) clear() {
	p.known, p.unused = map[pageKey][]*page{}, list.New()
}

// find returns the page, and holds it, that has most of the tokens that come after another page, and more than so many. It may be nil.
func (p *pages) find(after uint64, tokens []int32, more int) (best *page) {
	for _, g := range p.known[pageKey{after, tokens[0]}] {
		n := 0
		for n < min(g.n, len(tokens)) && g.tokens[n] == tokens[n] {
			n++
		}
		if n > more {
			best, more = g, n
		}
	}
	if best != nil {
		if best.users++; best.unused != nil {
			p.unused.Remove(best.unused)
			best.unused = nil
		}
	}
	return best
}

// begin returns a new page that a token will be added to, after the first n of another.
func (p *pages) begin(k pageKey, from *page, n int) *page {
	g := &page{key: k, users: 1, n: n, ready: n}
	p.last++
	g.id = p.last
	if p.unused.Len()*p.size*4 >= maxUnused {
		g.data = p.forget()
	} else {
		g.data = make([]float32, p.size)
	}
	if n > 0 {
		copy(g.tokens[:n], from.tokens[:n])
		copy(g.data, from.data)
	}
	p.known[k] = append(p.known[k], g)
	return g
}

// forget drops the page that nobody has held for longest, and returns its memory.
func (p *pages) forget() []float32 {
	g := p.unused.Remove(p.unused.Front()).(*page)
	all := p.known[g.key]
	i := slices.Index(all, g)
	if all = slices.Delete(all, i, i+1); len(all) > 0 {
		p.known[g.key] = all
	} else {
		delete(p.known, g.key)
	}
	return g.data
}

// drop lets go of a stream's pages, the last first: what others may begin with stays longest.
func (p *pages) drop(held ...*page) {
	for _, g := range slices.Backward(held) {
		// A page of weights that have changed is no longer among those that are known.
		if g.users--; g.users == 0 && slices.Contains(p.known[g.key], g) {
			g.unused = p.unused.PushBack(g)
		}
	}
	for p.unused.Len()*p.size*4 > maxUnused {
		p.forget()
	}
}
