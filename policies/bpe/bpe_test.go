package bpe

import (
	"encoding/json"
	"errors"
	"flag"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

var update = flag.Bool("update", false, "cut the vocabularies in testdata anew out of the published ones")

var names = []string{"qwen3", "llama3_1", "smollm2"}

func load(tb testing.TB, name string, into any) {
	data, err := os.ReadFile(filepath.Join("testdata", name))
	require.NoError(tb, err)
	require.NoError(tb, json.Unmarshal(data, into))
}

// goldens are texts with the ids that the tokenizers library gives for each name, and under name_decoded what it decodes to where that
// is not the text.
func goldens(tb testing.TB) []map[string]any {
	var f struct{ Texts []map[string]any }
	load(tb, "token_ids.json", &f)
	require.Len(tb, f.Texts, 73)
	return f.Texts
}

// small opens a published tokenizer of which only what concerns the goldens is left.
func small(tb testing.TB, name string) *Tokenizer {
	t, err := Open(filepath.Join("testdata", name+".json"))
	require.NoError(tb, err)
	return t
}

// publishedFile is where testdata/fetch.sh has put a published tokenizer. It skips the test where that did not run, or fails it where
// MCPGYM_REQUIRE names tokenizers.
func publishedFile(tb testing.TB, name string) string {
	dir := os.Getenv("MCPGYM_TOKENIZERS")
	if dir == "" {
		cache, err := os.UserCacheDir()
		require.NoError(tb, err)
		dir = filepath.Join(cache, "mcpgym", "tokenizers")
	}
	path := filepath.Join(dir, name, "tokenizer.json")
	_, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) && !slices.Contains(strings.Split(os.Getenv("MCPGYM_REQUIRE"), ","), "tokenizers") {
		tb.Skipf("policies/bpe/testdata/fetch.sh was not run: %v", err)
	}
	require.NoError(tb, err)
	return path
}

func published(tb testing.TB, name string) *Tokenizer {
	t, err := Open(publishedFile(tb, name))
	require.NoError(tb, err)
	return t
}

func checkGoldens(t *testing.T, name string, tok *Tokenizer) {
	for _, g := range goldens(t) {
		text := g["text"].(string)
		want := []int32{}
		for _, id := range g[name].([]any) {
			want = append(want, int32(id.(float64)))
		}
		require.Equal(t, want, tok.Encode(text), "%q", text)
		decoded, ok := g[name+"_decoded"].(string)
		if !ok {
			decoded = text
		}
		require.Equal(t, decoded, tok.Decode(want))
	}
}

func TestGoldens(t *testing.T) {
	for _, name := range names {
		t.Run(name, func(t *testing.T) { checkGoldens(t, name, small(t, name)) })
	}
}

func TestPublished(t *testing.T) {
	for _, name := range names {
		t.Run(name, func(t *testing.T) {
			tok := published(t, name)
			checkGoldens(t, name, tok)
			dir := t.TempDir()
			require.NoError(t, cut(t, tok).Write(dir))
			made, err := os.ReadFile(filepath.Join(dir, "tokenizer.json"))
			require.NoError(t, err)
			stored := filepath.Join("testdata", name+".json")
			if *update {
				require.NoError(t, os.WriteFile(stored, made, 0o666))
			}
			want, err := os.ReadFile(stored)
			require.NoError(t, err)
			require.Equal(t, string(want), string(made), "go test ./policies/bpe -update")
		})
	}
}

// cut leaves of a tokenizer what the goldens can need: the tokens, under their ids, and the rules whose bytes occur in one of the texts.
// Two tokens that are looked up in the encoding of a text stand side by side in it, so each look-up finds what it found.
func cut(tb testing.TB, tok *Tokenizer) *Tokenizer {
	var texts []string
	for _, g := range goldens(tb) {
		texts = append(texts, tok.normalize(g["text"].(string)))
	}
	occurs := func(bytes string) bool {
		return slices.ContainsFunc(texts, func(s string) bool { return strings.Contains(s, bytes) })
	}
	f := tok.file
	f.Model.Vocab = vocabulary{}
	for s, id := range tok.file.Model.Vocab {
		if b := tok.bytes[id]; len(b) == 1 || tok.Added(id) || occurs(b) {
			f.Model.Vocab[s] = id
		}
	}
	for _, r := range tok.rules {
		if occurs(tok.bytes[r.made]) {
			f.Model.Merges = append(f.Model.Merges, spelling{tok.spelled[r.left], tok.spelled[r.right]})
		}
	}
	small, err := build(f)
	require.NoError(tb, err)
	return small
}

// What the tokenizers library cuts texts into, by each pattern that is known, and how it composes and repairs.
func TestAsTheLibrary(t *testing.T) {
	var f struct {
		Texts    []string
		Patterns []struct {
			Regex  string
			Pieces [][]string
		}
		Digits         [][]string
		DigitsTogether [][]string `json:"digits_together"`
		NFC            [][2]string
		UTF8           [][2]json.RawMessage
	}
	load(t, "pieces.json", &f)
	require.Len(t, f.Patterns, len(patterns))
	check := func(by splitter, want [][]string) {
		require.NotNil(t, by)
		for i, s := range f.Texts {
			var got []string
			for s != "" {
				n := by(s)
				got, s = append(got, s[:n]), s[n:]
			}
			require.Equal(t, want[i], got, "%q", f.Texts[i])
		}
	}
	for _, p := range f.Patterns {
		check(patterns[p.Regex], p.Pieces)
	}
	check(digitsApart, f.Digits)
	check(digitsTogether, f.DigitsTogether)
	require.Len(t, f.NFC, 13)
	for _, c := range f.NFC {
		require.Equal(t, c[1], nfc(c[0]), "%+q", c[0])
	}
	require.Len(t, f.UTF8, 18)
	for _, c := range f.UTF8 {
		var in []int
		var want string
		require.NoError(t, json.Unmarshal(c[0], &in))
		require.NoError(t, json.Unmarshal(c[1], &want))
		var b []byte
		for _, x := range in {
			b = append(b, byte(x))
		}
		require.Equal(t, want, valid(string(b)), "%q", b)
	}
}

func TestLookup(t *testing.T) {
	tok := small(t, "llama3_1")
	require.Equal(t, 128256, tok.Size())
	id, ok := tok.ID("<|eot_id|>")
	require.True(t, ok)
	require.EqualValues(t, 128009, id)
	require.Equal(t, "<|eot_id|>", tok.Token(id))
	require.True(t, tok.Special(id))
	require.True(t, tok.Added(id))
	bos, ok := tok.BOS()
	require.True(t, ok)
	require.Equal(t, "<|begin_of_text|>", tok.Token(bos))

	id, ok = tok.ID("Ġworld")
	require.True(t, ok)
	require.Equal(t, "Ġworld", tok.Token(id))
	require.Equal(t, " world", tok.Decode([]int32{id}))
	require.False(t, tok.Special(id))
	require.False(t, tok.Added(id))
	_, ok = tok.ID(" world")
	require.False(t, ok)
	for _, id := range []int32{-1, 1 << 30, int32(tok.Size())} {
		require.Empty(t, tok.Token(id))
		require.False(t, tok.Special(id))
		require.Equal(t, "!!", tok.Decode([]int32{0, id, 0}))
	}

	tok = small(t, "qwen3")
	_, ok = tok.BOS()
	require.False(t, ok)
	id, ok = tok.ID("<tool_call>")
	require.True(t, ok)
	require.False(t, tok.Special(id))
	require.True(t, tok.Added(id))
	// Half of a character is one mark, and whole with the other half.
	halves := tok.Encode("😀")
	require.Len(t, halves, 1)
	halves = []int32{tok.bytesID[0xF0], tok.bytesID[0x9F], tok.bytesID[0x98], tok.bytesID[0x80]}
	require.Equal(t, "\ufffd", tok.Decode(halves[:3]))
	require.Equal(t, "😀", tok.Decode(halves))
}

// No text that is encoded as ordinary gives an added token, and all of it is there.
func TestEncodeOrdinary(t *testing.T) {
	for _, name := range names {
		tok := small(t, name)
		all := []string{"</s>"}
		for _, a := range tok.file.AddedTokens {
			all = append(all, a.Content, a.Content+a.Content, "x"+a.Content+" ")
		}
		all = append(all, strings.Join(all, ""))
		for _, s := range all {
			ids := tok.EncodeOrdinary(s)
			require.False(t, slices.ContainsFunc(ids, tok.Added), "%s: %q", name, s)
			require.Equal(t, s, tok.Decode(ids))
		}
		require.Equal(t, tok.Encode("Hello, world!"), tok.EncodeOrdinary("Hello, world!"))
		require.Empty(t, tok.EncodeOrdinary(""))
	}
}

// What is a token as a whole when rules are ignored is none of the added ones.
func TestWholeAndAdded(t *testing.T) {
	f := trained(t, 300, nil, strings.Repeat("{} {}", 9)).file
	f.Model.IgnoreMerges = true
	f.Model.Vocab["{}"], f.Model.Vocab["zz"] = 400, 401
	f.Model.Merges = nil
	f.AddedTokens = []added{{ID: 400, Content: "{}", Special: true}}
	tok, err := build(f)
	require.NoError(t, err)
	require.Equal(t, []int32{400, 401}, tok.Encode("{}zz"))
	require.Equal(t, []int32{'{', '}', '1', 401}, tok.EncodeOrdinary("{}1zz"))
}

func TestMissingBytes(t *testing.T) {
	tok := small(t, "smollm2") // has no byte 4, and no unknown token
	require.Len(t, tok.Encode("--"), 1)
	require.Equal(t, tok.Encode("--"), tok.Encode("-\x04-"))
	end, ok := tok.ID("<|endoftext|>")
	require.True(t, ok)
	f := tok.asFile()
	unk := "<|endoftext|>"
	f.Model.UnkToken = &unk
	tok, err := build(f)
	require.NoError(t, err)
	a, b := tok.bytesID['a'], tok.bytesID['b']
	require.Equal(t, []int32{a, end, end, b}, tok.Encode("a\x04\x04b"))
	require.Equal(t, []int32{a, b}, tok.EncodeOrdinary("a\x04\x04b"))
}

// Added tokens: the longest of the leftmost, those of the text as it is before those of the normalized text.
func TestAddedTokens(t *testing.T) {
	f := small(t, "qwen3").asFile()
	for i, s := range []string{"<|a", "<|a|>", "<|a|>b", "|>", "cafe\u0301"} {
		f.AddedTokens = append(f.AddedTokens, added{ID: int32(200000 + i), Content: s, Normalized: i == 4})
	}
	f.AddedTokens = append(f.AddedTokens, added{ID: 200005, Content: "é|", Normalized: true})
	tok, err := build(f)
	require.NoError(t, err)
	for text, want := range map[string][]int32{
		"<|a|>":            {200001},
		"<|a|>b":           {200002},
		"<|a|":             {200000, tok.bytesID['|']},
		"<|a<|a|>|>":       {200000, 200001, 200003},
		"caf\u00e9":        {200004},
		"cafe\u0301":       {200004},
		"e\u0301|>":        {tok.Encode("é")[0], 200003},
		"e\u0301|":         {200005},
		"<|im_end|>\u00e9": {151645, tok.Encode("é")[0]},
	} {
		require.Equal(t, want, tok.Encode(text), text)
	}
}

// Joining by a heap gives what joining by looking at all pairs gives, whatever the rules are.
func TestMergeAsSaid(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 100 {
		f := trained(t, 300, nil, "").file
		tokens := []string{"a", "b", "c"}
		for range 40 {
			s := spelling{tokens[r.IntN(len(tokens))], tokens[r.IntN(len(tokens))]}
			if slices.Contains(f.Model.Merges, s) || len(s[0]+s[1]) > 12 {
				continue
			}
			f.Model.Merges = append(f.Model.Merges, s)
			if made := s[0] + s[1]; !slices.Contains(tokens, made) {
				f.Model.Vocab[made] = int32(256 + len(tokens))
				tokens = append(tokens, made)
			}
		}
		tok, err := build(f)
		require.NoError(t, err)
		for range 20 {
			var text []byte
			for range 1 + r.IntN(70) {
				text = append(text, "abc"[r.IntN(3)])
			}
			var ids []int32
			for _, b := range text {
				ids = append(ids, tok.bytesID[b])
			}
			for {
				at, rank := -1, int32(noRank)
				for i := range len(ids) - 1 {
					if r := tok.rank(ids[i], ids[i+1]); r < rank {
						at, rank = i, r
					}
				}
				if at < 0 {
					break
				}
				ids = slices.Replace(ids, at, at+2, tok.rules[rank].made)
			}
			require.Equal(t, ids, tok.Encode(string(text)), "%s", text)
			require.Equal(t, ids, tok.Encode(string(text)), "from the cache")
		}
	}
}

// A long run takes not much longer than many short ones: if the time grew with the square of its length, this would not end.
func TestLongPiece(t *testing.T) {
	tok := small(t, "llama3_1")
	for _, unit := range []string{"a", "ab", " ", "\n", "=", "é", "x1"} {
		text := strings.Repeat(unit, 1<<18/len(unit))
		require.Equal(t, text, tok.Decode(tok.Encode(text)))
	}
}

func TestConcurrent(t *testing.T) {
	tok := small(t, "qwen3")
	all := goldens(t)
	var want [][]int32
	for _, g := range all {
		want = append(want, small(t, "qwen3").Encode(g["text"].(string)))
	}
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for i, g := range all {
				if !slices.Equal(want[i], tok.Encode(g["text"].(string))) {
					t.Errorf("%q", g["text"])
				}
			}
		})
	}
	wg.Wait()
}

func TestWrite(t *testing.T) {
	for _, name := range names {
		dir := t.TempDir()
		tok := small(t, name)
		require.NoError(t, tok.Write(dir))
		again, err := Open(filepath.Join(dir, "tokenizer.json"))
		require.NoError(t, err)
		same(t, tok, again)
		checkGoldens(t, name, again)
		config, err := os.ReadFile(filepath.Join(dir, "tokenizer_config.json"))
		require.NoError(t, err)
		require.JSONEq(t, `{"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": false}`, string(config))
	}
	require.ErrorContains(t, small(t, "qwen3").Write(filepath.Join(t.TempDir(), "no")), "write a tokenizer: open ")
}

func same(tb testing.TB, a, b *Tokenizer) {
	require.Equal(tb, a.spelled, b.spelled)
	require.Equal(tb, a.bytes, b.bytes)
	require.Equal(tb, a.rules, b.rules)
	require.Equal(tb, a.added, b.added)
	require.Equal(tb, a.bos, b.bos)
	require.Equal(tb, []bool{a.nfc, a.prefixSpace, a.gpt2}, []bool{b.nfc, b.prefixSpace, b.gpt2})
	require.Len(tb, b.splits, len(a.splits))
}
