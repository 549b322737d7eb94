package bpe

import (
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func trained(tb testing.TB, size int, special []string, texts ...string) *Tokenizer {
	t, err := Train(slices.Values(texts), size, special)
	require.NoError(tb, err)
	return t
}

func made(t *Tokenizer) []string {
	var out []string
	for _, r := range t.rules {
		out = append(out, t.Token(r.left)+"+"+t.Token(r.right))
	}
	return out
}

func TestTrain(t *testing.T) {
	// a+b 7 times, then Ġ+ab, x+y and ab+c 5: of these that of the lower ids first.
	tok := trained(t, 260, []string{"<e>"}, "abc abc xy", "xy xy abc ab", "xy xy<e>abc ab abc")
	require.Equal(t, []string{"a+b", "Ġ+ab", "x+y"}, made(tok))
	require.Equal(t, 260, tok.Size())
	require.Equal(t, "<e>", tok.Token(259))
	require.Equal(t, []int32{256, 'd', 259, '>'}, tok.Encode("abd<e>>"))
	require.Equal(t, []int32{'<', 'e', '>'}, tok.EncodeOrdinary("<e>"))
	for b := range 256 {
		require.EqualValues(t, b, tok.bytesID[b])
	}

	// A number, a name and what stands between them are one piece each, and what occurs once is not learned.
	tok = trained(t, 4096, nil, strings.Repeat(`{"at":"Ost","in":2026}`, 3)+"Once")
	require.Len(t, tok.Encode(`{"at":"Ost","in":2026}`), 5)
	require.Len(t, tok.Encode("Once"), 4)
	require.Less(t, tok.Size(), 290)

	for _, c := range []struct {
		size    int
		special []string
		err     string
	}{
		{255, nil, "train a tokenizer of 255 tokens: it takes 256 for bytes and 0 special ones, and has at most 1048576"},
		{256, []string{"<e>"}, "train a tokenizer of 256 tokens: it takes 256 for bytes and 1 special ones, and has at most 1048576"},
		{1 << 21, nil, "train a tokenizer of 2097152 tokens: it takes 256 for bytes and 0 special ones, and has at most 1048576"},
		{300, []string{""}, "train a tokenizer: a special token is empty"},
		{300, []string{"<e>", "<e>"}, `train a tokenizer: added_tokens.1.content: "<e>" stands there twice`},
		{300, []string{"!"}, `train a tokenizer: added_tokens.0.id: "!" is 256, but 33 in the vocabulary`},
	} {
		_, err := Train(slices.Values([]string{"text"}), c.size, c.special)
		require.EqualError(t, err, c.err)
	}
}

// Training by changed counts gives what counting all pairs anew for each rule gives.
func TestTrainAsSaid(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	for range 60 {
		var texts []string
		for range 1 + r.IntN(12) {
			var b []byte
			for range r.IntN(60) {
				b = append(b, "aaabbc   1"[r.IntN(10)])
			}
			texts = append(texts, string(b))
		}
		tok := trained(t, 256+r.IntN(60), nil, texts...)
		r.Shuffle(len(texts), func(i, j int) { texts[i], texts[j] = texts[j], texts[i] })
		require.Equal(t, made(tok), made(trained(t, tok.Size(), nil, texts...)), "in another order")

		var words [][]int32
		for _, s := range texts {
			for s != "" {
				n := phrase(s)
				var w []int32
				for i := range n {
					w = append(w, int32(s[i]))
				}
				words, s = append(words, w), s[n:]
			}
		}
		for _, rule := range tok.rules {
			counts := map[uint64]int{}
			for _, w := range words {
				for i := range len(w) - 1 {
					counts[pair(w[i], w[i+1])]++
				}
			}
			best := uint64(0)
			for p, n := range counts {
				if m := counts[best]; n > m || n == m && p < best {
					best = p
				}
			}
			require.Greater(t, counts[best], 1)
			require.Equal(t, best, pair(rule.left, rule.right))
			for i, w := range words {
				for j := 0; j < len(w)-1; j++ {
					if w[j] == rule.left && w[j+1] == rule.right {
						w = slices.Replace(w, j, j+2, rule.made)
					}
				}
				words[i] = w
			}
		}
	}
}

func TestTrainedIsRead(t *testing.T) {
	tok := trained(t, 600, []string{"<|im_start|>", "<|im_end|>"}, some(t, "code"))
	require.Equal(t, 600, tok.Size())
	dir := t.TempDir()
	require.NoError(t, tok.Write(dir))
	again, err := Open(filepath.Join(dir, "tokenizer.json"))
	require.NoError(t, err)
	same(t, tok, again)
	for _, g := range goldens(t) {
		text := g["text"].(string)
		require.Equal(t, tok.Encode(text), again.Encode(text))
		require.Equal(t, text, again.Decode(again.Encode(text)))
	}
}
