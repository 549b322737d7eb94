// Package bpe is byte-level byte-pair encoding (Sennrich et al. 2016, over bytes as in GPT-2) as Hugging Face's tokenizer.json
// describes it: that of the Llama 3, Qwen and SmolLM families, and small vocabularies trained here. It gives the ids that the
// tokenizers library gives; what it would not do alike it refuses to read. (Two exceptions: a hundred rare marks, see nfc, and files
// whose ids have gaps before added tokens, which the library numbers anew.)
package bpe

import (
	"hash/maphash"
	"sync"
	"sync/atomic"
	"unicode/utf8"
)

// Tokenizer turns text into tokens and back. It may be used concurrently.
type Tokenizer struct {
	file    file
	spelled []string // by id, as the file spells them; "" where there is no such token
	bytes   []string // by id: what they stand for
	added   map[string]added
	bos     int32 // or none

	bytesID [256]int32       // none: it gives nothing
	unknown int32            // what bytes give that have no token; none: nothing
	rules   []rule           // by rank
	ranks   map[uint64]int32 // of pairs
	whole   map[string]int32 // pieces that are tokens whatever the rules make of them, by their bytes

	nfc         bool
	raw         matcher // added tokens, looked for in the text as it is
	normal      matcher // and after it was normalized
	splits      []splitter
	prefixSpace bool
	gpt2        bool

	seed  maphash.Seed
	cache [cacheSlots]atomic.Pointer[cached]
	pool  sync.Pool // of *merging
}

// none is no token.
const none = -1

// rule joins two tokens.
type rule struct{ left, right, made int32 }

func pair(left, right int32) uint64 { return uint64(uint32(left))<<32 | uint64(uint32(right)) }

// Size is one more than the largest id.
func (t *Tokenizer) Size() int { return len(t.spelled) }

// Token spells a token as tokenizer.json does, where a space is Ġ. It is empty for an id that there is not.
func (t *Tokenizer) Token(id int32) string {
	if id < 0 || int(id) >= len(t.spelled) {
		return ""
	}
	return t.spelled[id]
}

// ID finds a token by its spelling.
func (t *Tokenizer) ID(token string) (int32, bool) {
	if a, ok := t.added[token]; ok {
		return a.ID, true
	}
	id, ok := t.file.Model.Vocab[token]
	return id, ok
}

// Special says whether a token is one of the special ones. Others may be added tokens too, such as Qwen's <tool_call>: see Added.
func (t *Tokenizer) Special(id int32) bool {
	a, ok := t.added[t.Token(id)]
	return ok && a.Special
}

// Added says whether a token is found in a text as it stands, special or not, rather than made by merging bytes.
func (t *Tokenizer) Added(id int32) bool {
	_, ok := t.added[t.Token(id)]
	return ok
}

// BOS is the token that the post-processor puts before a text, which Encode does not.
func (t *Tokenizer) BOS() (int32, bool) { return t.bos, t.bos >= 0 }

// Decode gives the text of tokens, special ones included. Ids that there are not give nothing, and what is not UTF-8, such as a
// character whose last bytes are missing, becomes U+FFFD. An added token gives what it is found by, where the library would take its é
// for a byte.
func (t *Tokenizer) Decode(ids []int32) string {
	var b []byte
	for _, id := range ids {
		if id >= 0 && int(id) < len(t.bytes) {
			b = append(b, t.bytes[id]...)
		}
	}
	return valid(string(b))
}

// valid puts U+FFFD for each longest part of a character, and each other byte, that is not UTF-8, as WHATWG, Rust and Python do.
// (strings.ToValidUTF8 puts one for a run of them.)
func valid(s string) string {
	if utf8.ValidString(s) {
		return s
	}
	b := make([]byte, 0, len(s)+len(s)/2)
	for len(s) > 0 {
		r, n := utf8.DecodeRuneInString(s)
		if r == utf8.RuneError && n == 1 {
			n = truncated(s)
		}
		b = utf8.AppendRune(b, r)
		s = s[n:]
	}
	return string(b)
}

// truncated is the length of the beginning of a character with which s, which begins with no whole one, begins, or 1.
func truncated(s string) int {
	need, low, high := 0, byte(0x80), byte(0xBF)
	switch c := s[0]; {
	case c >= 0xC2 && c <= 0xDF:
		need = 1
	case c >= 0xE0 && c <= 0xEF:
		need = 2
		if c == 0xE0 {
			low = 0xA0
		} else if c == 0xED {
			high = 0x9F
		}
	case c >= 0xF0 && c <= 0xF4:
		need = 3
		if c == 0xF0 {
			low = 0x90
		} else if c == 0xF4 {
			high = 0x8F
		}
	}
	n := 1
	for n <= need && n < len(s) && low <= s[n] && s[n] <= high {
		n++
		low, high = 0x80, 0xBF
	}
	return n
}
