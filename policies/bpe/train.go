package bpe

import (
	"cmp"
	"errors"
	"fmt"
	"iter"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/go-json-experiment/json/jsontext"
)

// longest bounds, in bytes, the stretches of a piece that training looks at, so that no run without a space decides how long it takes.
const longest = 128

// Train makes a tokenizer of at most size tokens from texts: the 256 bytes, whose ids they are, then what joining the most frequent
// pairs makes, of equally frequent ones that of the lower ids first, and last the special tokens, in their order. It is smaller than size
// where no pair occurs twice any more. Texts are split into names, which begin with capitals, whole numbers, and what stands between these, and
// at special tokens: of texts that say the same over and over, such as the JSON of tools, a phrase becomes a token, which makes them several
// times shorter than words do. The same texts, in any order, give the same tokenizer.
func Train(texts iter.Seq[string], size int, special []string) (*Tokenizer, error) {
	if size < 256+len(special) || size > maxID {
		return nil, fmt.Errorf("train a tokenizer of %d tokens: it takes 256 for bytes and %d special ones, and has at most %d", size, len(special), maxID)
	}
	var m matcher
	for _, s := range special {
		if s == "" {
			return nil, errors.New("train a tokenizer: a special token is empty")
		}
		m.add(s, 0)
	}
	counts := map[string]int{}
	for text := range texts {
		text = valid(text)
		for {
			start, end, id := m.find(text)
			for segment := text[:start]; segment != ""; {
				piece := segment[:min(phrase(segment), longest)]
				if _, ok := counts[piece]; !ok {
					piece = strings.Clone(piece) // not to keep the text
				}
				counts[piece]++
				segment = segment[len(piece):]
			}
			if id == none {
				break
			}
			text = text[end:]
		}
	}

	f := file{
		Version: "1.0",
		PreTokenizer: jsontext.Value(`{"type":"Sequence","pretokenizers":[{"type":"Split","pattern":{"Regex":` + strconv.Quote(phrasePattern) +
			`},"behavior":"Isolated","invert":false},{"type":"ByteLevel","add_prefix_space":false,"trim_offsets":false,"use_regex":false}]}`),
		Decoder: jsontext.Value(`{"type":"ByteLevel","add_prefix_space":false,"trim_offsets":false,"use_regex":true}`),
		Model:   model{Type: "BPE", Vocab: vocabulary{}},
	}
	tokens := make([]string, 256, size)
	for b := range tokens {
		tokens[b] = string(alphabet[b])
		f.Model.Vocab[tokens[b]] = int32(b)
	}
	c := newCorpus(counts)
	for len(tokens) < size-len(special) {
		left, right, ok := c.best()
		if !ok {
			break
		}
		// Two pairs may make one token, as a+bc and ab+c do.
		made := tokens[left] + tokens[right]
		id, ok := f.Model.Vocab[made]
		if !ok {
			id = int32(len(tokens))
			tokens = append(tokens, made)
			f.Model.Vocab[made] = id
		}
		f.Model.Merges = append(f.Model.Merges, spelling{tokens[left], tokens[right]})
		c.join(left, right, id)
	}
	for _, s := range special {
		f.AddedTokens = append(f.AddedTokens, added{ID: int32(len(tokens) + len(f.AddedTokens)), Content: s, Special: true})
	}
	t, err := build(f)
	if err != nil {
		return nil, fmt.Errorf("train a tokenizer: %w", err)
	}
	return t, nil
}

// corpus is the different pieces of some texts, as tokens, with how often each pair of tokens occurs.
type corpus struct {
	words []word
	pairs map[uint64]*occurrence
	heap  []candidate
}

type word struct {
	tokens []int32
	count  int
}

type occurrence struct {
	count int
	words []int32 // in which it is or was, some more than once
}

// candidate is a pair with how often it occurred at some time: it is out of date if that has changed.
type candidate struct {
	count int
	pair  uint64
}

// compare orders candidates, the next to be joined first.
func (a candidate) compare(b candidate) int {
	return cmp.Or(cmp.Compare(b.count, a.count), cmp.Compare(a.pair, b.pair))
}

func newCorpus(counts map[string]int) *corpus {
	c := &corpus{pairs: map[uint64]*occurrence{}}
	for _, s := range slices.Sorted(maps.Keys(counts)) {
		w := word{make([]int32, len(s)), counts[s]}
		for i := range len(s) {
			w.tokens[i] = int32(s[i])
		}
		c.words = append(c.words, w)
		for i := range len(s) - 1 {
			c.change(w.tokens[i], w.tokens[i+1], w.count, len(c.words)-1)
		}
	}
	for p, o := range c.pairs {
		c.heap = append(c.heap, candidate{o.count, p})
	}
	slices.SortFunc(c.heap, candidate.compare)
	return c
}

func (c *corpus) change(left, right int32, by, in int) {
	p := pair(left, right)
	o := c.pairs[p]
	if o == nil {
		o = new(occurrence)
		c.pairs[p] = o
	}
	o.count += by
	if by > 0 && (len(o.words) == 0 || o.words[len(o.words)-1] != int32(in)) {
		o.words = append(o.words, int32(in))
	}
}

// best is the pair to join next, or false if none occurs twice.
func (c *corpus) best() (left, right int32, ok bool) {
	for len(c.heap) > 0 {
		top := c.heap[0]
		o := c.pairs[top.pair]
		if o != nil && o.count == top.count {
			return int32(top.pair >> 32), int32(top.pair & math.MaxUint32), top.count > 1
		}
		c.heap[0].count = 0
		if o != nil {
			c.heap[0].count = o.count
		}
		if c.heap[0].count == 0 {
			c.heap[0] = c.heap[len(c.heap)-1]
			c.heap = c.heap[:len(c.heap)-1]
		}
		c.down()
	}
	return 0, 0, false
}

// join puts a token for each pair of two.
func (c *corpus) join(left, right, made int32) {
	p := pair(left, right)
	words := c.pairs[p].words
	grown := map[uint64]bool{}
	slices.Sort(words)
	for _, i := range slices.Compact(words) {
		w := &c.words[i]
		out := w.tokens[:0]
		for j := 0; j < len(w.tokens); j++ {
			if j+1 == len(w.tokens) || w.tokens[j] != left || w.tokens[j+1] != right {
				out = append(out, w.tokens[j])
				continue
			}
			if n := len(out); n > 0 {
				c.change(out[n-1], left, -w.count, int(i))
				c.change(out[n-1], made, w.count, int(i))
				grown[pair(out[n-1], made)] = true
			}
			if j+2 < len(w.tokens) {
				c.change(right, w.tokens[j+2], -w.count, int(i))
				c.change(made, w.tokens[j+2], w.count, int(i))
				grown[pair(made, w.tokens[j+2])] = true
			}
			out = append(out, made)
			j++
		}
		w.tokens = out
	}
	delete(c.pairs, p)
	for _, p := range slices.Sorted(maps.Keys(grown)) {
		if o := c.pairs[p]; o != nil && o.count > 0 {
			c.push(candidate{o.count, p})
		}
	}
}

func (c *corpus) push(n candidate) {
	c.heap = append(c.heap, n)
	for i := len(c.heap) - 1; i > 0; {
		up := (i - 1) / 2
		if c.heap[i].compare(c.heap[up]) >= 0 {
			return
		}
		c.heap[i], c.heap[up] = c.heap[up], c.heap[i]
		i = up
	}
}

func (c *corpus) down() {
	for i := 0; ; {
		next := 2*i + 1
		if next >= len(c.heap) {
			return
		}
		if next+1 < len(c.heap) && c.heap[next+1].compare(c.heap[next]) < 0 {
			next++
		}
		if c.heap[next].compare(c.heap[i]) >= 0 {
			return
		}
		c.heap[i], c.heap[next] = c.heap[next], c.heap[i]
		i = next
	}
}
