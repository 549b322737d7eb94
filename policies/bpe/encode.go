package bpe

import (
	"hash/maphash"
	"math"
	"slices"
	"strings"
)

// Encode gives the tokens of a text. Added tokens, special ones too, are recognised in it; none is put before or after. Where the
// text is not UTF-8 it is read as with U+FFFD in these places. Use EncodeOrdinary for what a user or a tool wrote.
func (t *Tokenizer) Encode(text string) []int32 {
	text = valid(text)
	out := make([]int32, 0, len(text)/3+1)
	for {
		start, end, id := t.raw.find(text)
		segment := t.normalize(text[:start])
		for {
			from, to, id := t.normal.find(segment)
			out = t.split(out, segment[:from], t.splits)
			if id == none {
				break
			}
			out = append(out, id)
			segment = segment[to:]
		}
		if id == none {
			return out
		}
		out = append(out, id)
		text = text[end:]
	}
}

// EncodeOrdinary is Encode but for added tokens: a text that spells one gives the tokens of its letters, so nothing in it can pass
// for the end of a turn or a tool call.
//
// Bytes that have no token, which few vocabularies leave out, give nothing; in Encode they give the unknown token if there is one.
func (t *Tokenizer) EncodeOrdinary(text string) []int32 {
	text = t.normalize(valid(text))
	out := t.split(make([]int32, 0, len(text)/3+1), text, t.splits)
	if t.unknown == none {
		return out
	}
	return slices.DeleteFunc(out, func(id int32) bool { return id == t.unknown }) // it is often that which ends a text
}

func (t *Tokenizer) normalize(s string) string {
	if t.nfc {
		return nfc(s)
	}
	return s
}

// split cuts s into pieces by each splitter in turn and appends their tokens.
func (t *Tokenizer) split(out []int32, s string, by []splitter) []int32 {
	if len(by) == 0 {
		return t.byteLevel(out, s)
	}
	for len(s) > 0 {
		n := by[0](s)
		out = t.split(out, s[:n], by[1:])
		s = s[n:]
	}
	return out
}

func (t *Tokenizer) byteLevel(out []int32, s string) []int32 {
	if s == "" {
		return out
	}
	if t.prefixSpace && s[0] != ' ' {
		s = " " + s
	}
	if !t.gpt2 {
		return t.piece(out, s)
	}
	for len(s) > 0 {
		n := gpt2(s)
		out = t.piece(out, s[:n])
		s = s[n:]
	}
	return out
}

const (
	cacheSlots = 1 << 15
	cacheBytes = 48 // of a piece that is kept
)

// cached is a piece and its tokens. Which of two pieces with one slot stays is chance, and changes only how long an encoding takes.
type cached struct {
	piece string
	ids   []int32
}

// piece appends the tokens of a piece, which is not empty.
func (t *Tokenizer) piece(out []int32, s string) []int32 {
	if len(s) == 1 {
		id, ok := t.whole[s]
		if !ok {
			id = t.bytesID[s[0]]
		}
		if id == none {
			return out
		}
		return append(out, id)
	}
	if len(s) > cacheBytes {
		return t.merge(out, s)
	}
	slot := &t.cache[maphash.String(t.seed, s)%cacheSlots]
	if c := slot.Load(); c != nil && c.piece == s {
		return append(out, c.ids...)
	}
	from := len(out)
	out = t.merge(out, s)
	slot.Store(&cached{strings.Clone(s), append([]int32(nil), out[from:]...)})
	return out
}

// merging is a piece while its tokens are joined: a list of tokens, and a heap of the pairs in it that a rule joins.
type merging struct {
	tokens []node
	heap   []uint64 // rank of the rule, and position of its left token
}

type node struct{ id, prev, next, rank int32 } // rank of the rule that joins it with the next; noRank if none does

const noRank = math.MaxInt32

// merge appends the tokens of a piece: of all pairs the one whose rule comes first is joined, of equal ones the leftmost, until no
// rule applies.
func (t *Tokenizer) merge(out []int32, s string) []int32 {
	if id, ok := t.whole[s]; ok {
		return append(out, id)
	}
	m, _ := t.pool.Get().(*merging)
	if m == nil {
		m = new(merging)
	}
	m.tokens, m.heap = m.tokens[:0], m.heap[:0]
	last := int32(0)
	for i := range len(s) {
		if id := t.bytesID[s[i]]; id != none {
			m.tokens = append(m.tokens, node{id, last - 1, last + 1, noRank})
			last++
		}
	}
	for i := range last - 1 {
		if r := t.rank(m.tokens[i].id, m.tokens[i+1].id); r != noRank {
			m.tokens[i].rank = r
			m.heap = append(m.heap, uint64(r)<<32|uint64(i))
		}
	}
	for i := len(m.heap)/2 - 1; i >= 0; i-- {
		m.down(i)
	}
	for len(m.heap) > 0 {
		top := m.pop()
		at, rank := int32(top&math.MaxUint32), int32(top>>32)
		left := &m.tokens[at]
		if left.rank != rank {
			continue // one of the two has since been joined with another
		}
		right := &m.tokens[left.next]
		left.id, left.next, right.rank = t.rules[rank].made, right.next, noRank
		left.rank = noRank
		if left.next < last {
			m.tokens[left.next].prev = at
			m.push(left, at, t.rank(left.id, m.tokens[left.next].id))
		}
		if left.prev >= 0 {
			before := &m.tokens[left.prev]
			m.push(before, left.prev, t.rank(before.id, left.id))
		}
	}
	for i := int32(0); i < last; i = m.tokens[i].next {
		out = append(out, m.tokens[i].id)
	}
	if len(s) <= 1<<16 {
		t.pool.Put(m)
	}
	return out
}

func (t *Tokenizer) rank(left, right int32) int32 {
	if r, ok := t.ranks[pair(left, right)]; ok {
		return r
	}
	return noRank
}

func (m *merging) push(n *node, at, rank int32) {
	n.rank = rank
	if rank == noRank {
		return
	}
	m.heap = append(m.heap, uint64(rank)<<32|uint64(at))
	for i := len(m.heap) - 1; i > 0; {
		up := (i - 1) / 2
		if m.heap[up] <= m.heap[i] {
			return
		}
		m.heap[up], m.heap[i] = m.heap[i], m.heap[up]
		i = up
	}
}

func (m *merging) pop() uint64 {
	top, n := m.heap[0], len(m.heap)-1
	m.heap[0] = m.heap[n]
	m.heap = m.heap[:n]
	m.down(0)
	return top
}

func (m *merging) down(i int) {
	for {
		c := 2*i + 1
		if c >= len(m.heap) {
			return
		}
		if c+1 < len(m.heap) && m.heap[c+1] < m.heap[c] {
			c++
		}
		if m.heap[i] <= m.heap[c] {
			return
		}
		m.heap[i], m.heap[c] = m.heap[c], m.heap[i]
		i = c
	}
}
