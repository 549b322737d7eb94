package bpe

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"
)

// tiny is a tokenizer.json with two rules and a special token.
func tiny(tb testing.TB) string {
	dir := tb.TempDir()
	require.NoError(tb, trained(tb, 259, []string{"<e>"}, "ab ab ab").Write(dir))
	data, err := os.ReadFile(filepath.Join(dir, "tokenizer.json"))
	require.NoError(tb, err)
	return string(data)
}

const (
	bytesPart = `{"type":"ByteLevel","add_prefix_space":false,"trim_offsets":false,"use_regex":true}`
	gpt2Part  = `{"type":"Split","pattern":{"Regex":"'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+"},"behavior":"Isolated","invert":false}`
	trainPart = `{"type":"Sequence","pretokenizers":[{"type":"Split","pattern":{"Regex":"\\p{Lu}+\\p{Ll}*|\\p{N}+|[^\\p{Lu}\\p{N}]+"},"behavior":"Isolated","invert":false},{"type":"ByteLevel","add_prefix_space":false,"trim_offsets":false,"use_regex":false}]}`
	bosPart   = `{"type":"TemplateProcessing","single":[{"SpecialToken":{"id":"<e>","type_id":0}},{"Sequence":{"id":"A","type_id":0}}],"pair":[],"special_tokens":{"<e>":{"id":"<e>","ids":[258],"tokens":["<e>"]}}}`
	addedPart = `{"id":258,"content":"<e>","single_word":false,"lstrip":false,"rstrip":false,"normalized":false,"special":true}`
)

func TestRefused(t *testing.T) {
	file := tiny(t)
	pre, dec := `"pre_tokenizer":`+trainPart, `"decoder":`+bytesPart
	for _, c := range []struct{ old, new, err string }{
		{"", "", ""},
		{`"version":"1.0"`, `"version":"2.0"`, `version: "2.0" is not known`},
		{`"version":"1.0"`, `"version":1`, `version: it is a number that does not fit`},
		{`"version":"1.0"`, `"version":"1.0","more":1`, `more: unknown object member name`},
		{`"version":"1.0"`, `"version":"1.0","version":"1.0"`, `version: duplicate object member name`},
		{`{"version"`, `["version"`, `the whole: `},
		{file, `[]`, `the whole: it is a list`},

		{`"normalizer":null`, `"normalizer":{"type":"NFKC"}`, `normalizer.type: "NFKC" is not known`},
		{`"normalizer":null`, `"normalizer":{"type":"NFC","x":1}`, `normalizer.x: unknown object member name`},
		{`"normalizer":null`, `"normalizer":{}`, `normalizer: no type`},
		{`"normalizer":null`, `"normalizer":{"type":"Sequence","normalizers":[{"type":"NFC"},{"type":"Lowercase"}]}`, `normalizer.normalizers.1.type: "Lowercase" is not known`},
		{`"normalizer":null`, `"normalizer":{"type":"Sequence","normalizers":[{"type":"NFC"}]}`, ``},

		{pre, `"pre_tokenizer":null`, `pre_tokenizer: only tokenizers of bytes, with ByteLevel, are known`},
		{pre, `"pre_tokenizer":{"type":"Metaspace"}`, `pre_tokenizer.type: "Metaspace" is not known`},
		{pre, `"pre_tokenizer":{"type":"ByteLevel","trim_offsets":false}`, `pre_tokenizer.add_prefix_space: it is missing`},
		{pre, `"pre_tokenizer":{"type":"ByteLevel","add_prefix_space":1}`, `pre_tokenizer.add_prefix_space: it is a number that does not fit`},
		{pre, `"pre_tokenizer":{"type":"Sequence","pretokenizers":[` + bytesPart + `,{"type":"Digits","individual_digits":true}]}`, `pre_tokenizer.pretokenizers.1: nothing may follow ByteLevel`},
		{pre, `"pre_tokenizer":{"type":"Sequence","pretokenizers":[` + gpt2Part + `]}`, `pre_tokenizer: only tokenizers of bytes, with ByteLevel, are known`},
		{pre, `"pre_tokenizer":{"type":"Sequence","pretokenizers":[` + gpt2Part + `,` + bytesPart + `]}`, ``},
		{pre, `"pre_tokenizer":{"type":"Sequence","pretokenizers":[{"type":"Digits","individual_digits":false,"x":0},` + bytesPart + `]}`, `pre_tokenizer.pretokenizers.0.x: unknown object member name`},
		{pre, `"pre_tokenizer":` + strings.Replace(gpt2Part, `'s|`, ``, 1), `pre_tokenizer.pattern: "'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+" is not known`},
		{pre, `"pre_tokenizer":` + strings.Replace(gpt2Part, `Isolated`, `Removed`, 1), `pre_tokenizer.behavior: "Removed" is not supported, only Isolated`},
		{pre, `"pre_tokenizer":` + strings.Replace(gpt2Part, `"invert":false`, `"invert":true`, 1), `pre_tokenizer.invert: it is not supported`},
		{pre, `"pre_tokenizer":{"type":"Split","pattern":{"String":" "},"behavior":"Isolated","invert":false}`, `pre_tokenizer.pattern.String: unknown object member name`},

		{`"post_processor":null`, `"post_processor":{"type":"RobertaProcessing"}`, `post_processor.type: "RobertaProcessing" is not known`},
		{`"post_processor":null`, `"post_processor":` + bytesPart, ``},
		{`"post_processor":null`, `"post_processor":` + bosPart, ``},
		{`"post_processor":null`, `"post_processor":` + strings.Replace(bosPart, `[258]`, `[259]`, 1), `post_processor.special_tokens: "<e>" is not one token of the vocabulary`},
		{`"post_processor":null`, `"post_processor":{"type":"Sequence","processors":[` + bosPart + `,` + bosPart + `]}`, `post_processor.processors.1.special_tokens: "<e>" is not one token of the vocabulary`},
		{`"post_processor":null`, `"post_processor":` + strings.Replace(bosPart, `"single":[`, `"single":[{"Sequence":{"id":"A","type_id":0}},`, 1), `post_processor.single: only a text, or one token before a text, is supported`},
		{`"post_processor":null`, `"post_processor":{"type":"TemplateProcessing","single":[],"pair":[],"special_tokens":{}}`, `post_processor.single: only a text, or one token before a text, is supported`},

		{dec, `"decoder":null`, `decoder: only ByteLevel is known`},
		{dec, `"decoder":{"type":"Fuse"}`, `decoder: only ByteLevel is known`},
		{dec, `"decoder":{"type":"Sequence","decoders":[` + bytesPart + `]}`, ``},
		{dec, `"decoder":{"type":"Sequence","decoders":[` + bytesPart + `,{"type":"Fuse"}]}`, `decoder.decoders: only one is supported`},

		{`"type":"BPE"`, `"type":"Unigram"`, `model.type: "Unigram" is not known, only BPE`},
		{`"dropout":null`, `"dropout":0.1`, `model.dropout: 0.1 is not supported`},
		{`"continuing_subword_prefix":null`, `"continuing_subword_prefix":"##"`, `model.continuing_subword_prefix: "##" is not supported`},
		{`"end_of_word_suffix":null`, `"end_of_word_suffix":"</w>"`, `model.end_of_word_suffix: "</w>" is not supported`},
		{`"byte_fallback":false`, `"byte_fallback":true`, `model.byte_fallback: it is not supported`},
		{`"a":97,`, ``, `model.merges: "a" with "b" needs a token that the vocabulary has not`},
		{`"x":120,`, ``, ``},
		{`"unk_token":null`, `"unk_token":"<u>"`, ``},
		{`"a":97,`, `"a":-1,`, `model.vocab: "a" has the id -1, which is not between 0 and 1048576`},
		{`"a":97,`, `"a":1048576,`, `model.vocab: "a" has the id 1048576, which is not between 0 and 1048576`},
		{`"a":97,`, `"a":5000000000,`, `model.vocab.a: value out of range`},
		{`"a":97,`, `"a":98,`, `model.vocab: "a" and "b" both have the id 98`},
		{`"a":97,`, `"a":97,"":300,`, `model.vocab: a token is empty`},
		{`["a","b"]`, `["a","b"],["a","b"]`, `model.merges: "a" with "b" stands there twice`},
		{`["a","b"]`, `"a b"`, ``},
		{`["a","b"]`, `"ab"`, `model.merges.0: "ab" is not two tokens`},
		{`["a","b"]`, `"a b c"`, `model.merges.0: "a b c" is not two tokens`},
		{`["a","b"]`, `["a"]`, `model.merges.0: too few array elements`},
		{`["a","b"]`, `["a","z"]`, `model.merges: "a" with "z" needs a token that the vocabulary has not`},

		{`"single_word":false`, `"single_word":true`, `added_tokens.0.single_word: it is not supported (of "<e>")`},
		{`"lstrip":false`, `"lstrip":true`, `added_tokens.0.lstrip: it is not supported (of "<e>")`},
		{`"rstrip":false`, `"rstrip":true`, `added_tokens.0.rstrip: it is not supported (of "<e>")`},
		{`"special":true`, `"special":true,"color":"red"`, `added_tokens.0.color: unknown object member name`},
		{`"content":"<e>"`, `"content":""`, `added_tokens.0: a token is empty`},
		{`"content":"<e>"`, `"content":"a"`, `added_tokens.0.id: "a" is 258, but 97 in the vocabulary`},
		{`"id":258`, `"id":97`, `added_tokens.0: "a" and "<e>" both have the id 97`},
		{addedPart, addedPart + `,` + addedPart, `added_tokens.1.content: "<e>" stands there twice`},
		{`"id":258,"content":"<e>"`, `"id":256,"content":"ab"`, `added_tokens.0.special: "ab" is what ordinary text gives as well`},
	} {
		require.Contains(t, file, c.old)
		_, err := Read([]byte(strings.Replace(file, c.old, c.new, 1)))
		if c.err == "" {
			require.NoError(t, err, c.new)
			continue
		}
		require.ErrorContains(t, err, c.err, "%s", c.new)
		require.NotContains(t, err.Error(), "\n")
	}

	for more, want := range map[string]string{
		`"<u>"`: `model.unk_token: "<u>" is not in the vocabulary`,
		`"y"`:   `model.unk_token: "y" is what ordinary text gives as well`,
		`"Ġab"`: `model.unk_token: "Ġab" is what ordinary text gives as well`,
	} {
		s := strings.Replace(file, `"x":120,`, ``, 1)
		_, err := Read([]byte(strings.Replace(s, `"unk_token":null`, `"unk_token":`+more, 1)))
		require.EqualError(t, err, want)
	}
	s := strings.Replace(file, `"x":120,`, `"<u>":120,`, 1)
	s = strings.Replace(s, `"unk_token":null,"continuing`, `"unk_token":"<u>","continuing`, 1)
	_, err := Read([]byte(s))
	require.NoError(t, err)
	_, err = Read([]byte(strings.Replace(s, `"fuse_unk":false`, `"fuse_unk":true`, 1)))
	require.EqualError(t, err, `model.fuse_unk: it is not supported, and byte 0x78 has no token`)

	path := filepath.Join(t.TempDir(), "tokenizer.json")
	_, err = Open(path)
	require.ErrorIs(t, err, os.ErrNotExist)
	require.NoError(t, os.WriteFile(path, []byte(`{"version":"0"}`), 0o666))
	_, err = Open(path)
	require.EqualError(t, err, "read "+path+`: version: "0" is not known`)
}

// What a file may ask for that the published ones here do not.
func TestOptions(t *testing.T) {
	file := tiny(t)
	read := func(old, new string) *Tokenizer {
		require.Contains(t, file, old)
		tok, err := Read([]byte(strings.Replace(file, old, new, 1)))
		require.NoError(t, err)
		return tok
	}
	require.Equal(t, []int32{257, 'c'}, read("", "").Encode(" abc"))
	tok := read(`"add_prefix_space":false`, `"add_prefix_space":true`)
	require.Equal(t, []int32{257, 'c', 258, 257}, tok.Encode("abc<e> ab"))
	require.Empty(t, tok.Encode(""))
	tok = read(`"use_regex":true`, `"use_regex":false`)
	require.Equal(t, []int32{256, 257, '!'}, tok.Encode("ab ab!"))
	tok = read(`"ignore_merges":false`, `"ignore_merges":true`)
	require.Equal(t, []int32{256}, tok.Encode("ab"))
	tok = read(`"post_processor":null`, `"post_processor":`+bosPart)
	bos, ok := tok.BOS()
	require.True(t, ok)
	require.EqualValues(t, 258, bos)
	require.Equal(t, []int32{'x'}, tok.Encode("x"))
}

// FuzzRead has the parts of a file say anything.
func FuzzRead(f *testing.F) {
	file := tiny(f)
	list := func(kind, name string, parts ...string) string {
		return `{"type":"` + kind + `","` + name + `":[` + strings.Join(parts, ",") + `]}`
	}
	bos := list("Sequence", "processors", bytesPart, bosPart)
	f.Add("null", bytesPart, "null", bytesPart, addedPart, `["a","b"],["Ġ","ab"]`, "{", "abc <e> é")
	f.Add(list("Sequence", "normalizers", `{"type":"NFC"}`), list("Sequence", "pretokenizers", gpt2Part, bytesPart), bos, list("Sequence", "decoders", bytesPart), addedPart, `"a b"`, "{", "e\u0301")
	f.Add(`{"type":"NFC"}`, list("Sequence", "pretokenizers", `{"type":"Digits","individual_digits":true}`, bytesPart), bosPart, bytesPart, "", "", `{"<u>":300,`, "a1 22")
	f.Add("", "", "", "", "", "", "{\xff", "")
	for _, part := range []string{`"normalizer":null`, `"pre_tokenizer":` + trainPart, `"post_processor":null`, `"decoder":` + bytesPart, addedPart, `["a","b"],["Ġ","ab"]`, `"vocab":{`} {
		require.Contains(f, file, part)
	}
	f.Fuzz(func(t *testing.T, normalizer, pre, post, decoder, added, merges, vocab, text string) {
		data := strings.NewReplacer(`"normalizer":null`, `"normalizer":`+normalizer, `"pre_tokenizer":`+trainPart, `"pre_tokenizer":`+pre,
			`"post_processor":null`, `"post_processor":`+post, `"decoder":`+bytesPart, `"decoder":`+decoder, addedPart, added,
			`["a","b"],["Ġ","ab"]`, merges, `"vocab":{`, `"vocab":`+vocab).Replace(file)
		tok, err := Read([]byte(data))
		if err != nil {
			require.NotContains(t, err.Error(), "\n")
			return
		}
		ids := tok.Encode(text)
		tok.EncodeOrdinary(text)
		require.True(t, utf8.ValidString(tok.Decode(ids)))
		dir := t.TempDir()
		require.NoError(t, tok.Write(dir))
		again, err := Open(filepath.Join(dir, "tokenizer.json"))
		require.NoError(t, err)
		same(t, tok, again)
		require.Equal(t, ids, again.Encode(text))
	})
}

func FuzzRoundTrip(f *testing.F) {
	var toks []*Tokenizer
	for _, t := range []*Tokenizer{small(f, "llama3_1"), small(f, "qwen3"), trained(f, 512, []string{"<e>"}, some(f, "english"))} {
		file := t.asFile()
		file.Normalizer = nil
		t, err := build(file)
		require.NoError(f, err)
		toks = append(toks, t)
	}
	for _, g := range goldens(f) {
		f.Add(g["text"].(string))
	}
	f.Add("\xff\xe4\xb8")
	f.Fuzz(func(t *testing.T, text string) {
		want := valid(text)
		require.Equal(t, []rune(want), []rune(strings.ToValidUTF8(want, "")))
		for _, tok := range toks {
			require.Equal(t, want, tok.Decode(tok.Encode(text)))
			ids := tok.EncodeOrdinary(text)
			require.Equal(t, want, tok.Decode(ids))
			for _, id := range ids {
				require.False(t, tok.Added(id))
			}
		}
	})
}
