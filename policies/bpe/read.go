package bpe

import (
	"cmp"
	"errors"
	"fmt"
	"hash/maphash"
	"maps"
	"os"
	"slices"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

// file is a tokenizer.json. What depends on its own type is read by part.
type file struct {
	Version       string         `json:"version"`
	Truncation    jsontext.Value `json:"truncation"` // left to the caller, as transformers does
	Padding       jsontext.Value `json:"padding"`    // the same
	AddedTokens   []added        `json:"added_tokens"`
	Normalizer    jsontext.Value `json:"normalizer"`
	PreTokenizer  jsontext.Value `json:"pre_tokenizer"`
	PostProcessor jsontext.Value `json:"post_processor"`
	Decoder       jsontext.Value `json:"decoder"`
	Model         model          `json:"model"`
}

type model struct {
	Type                    string     `json:"type"`
	Dropout                 *float64   `json:"dropout"`
	UnkToken                *string    `json:"unk_token"` // for bytes that have no token
	ContinuingSubwordPrefix *string    `json:"continuing_subword_prefix"`
	EndOfWordSuffix         *string    `json:"end_of_word_suffix"`
	FuseUnk                 bool       `json:"fuse_unk"`
	ByteFallback            bool       `json:"byte_fallback"`
	IgnoreMerges            bool       `json:"ignore_merges"`
	Vocab                   vocabulary `json:"vocab"`
	Merges                  []spelling `json:"merges"` // of a Tokenizer: nil, its rules say the same
}

type vocabulary map[string]int32

// spelling is the two tokens that a rule joins: a list of them, or in older files a text with a space between.
type spelling [2]string

func (s *spelling) UnmarshalJSONFrom(d *jsontext.Decoder) error {
	if d.PeekKind() != '"' {
		return json.UnmarshalDecode(d, (*[2]string)(s))
	}
	v, err := d.ReadToken()
	if err != nil {
		return err
	}
	both := v.String()
	left, right, ok := strings.Cut(both, " ")
	if !ok || strings.Contains(right, " ") {
		return fmt.Errorf("%q is not two tokens", both)
	}
	*s = spelling{left, right}
	return nil
}

// maxID bounds what a file makes Read allocate: the largest vocabularies have a quarter of it.
const maxID = 1 << 20

// Open reads a tokenizer.json. Its errors name the file and the field.
func Open(path string) (*Tokenizer, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read a tokenizer: %w", err)
	}
	t, err := Read(data)
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", path, err)
	}
	return t, nil
}

// Read is Open of a file's contents; its errors name the field. It refuses whatever would change tokens and is not known here. What
// the file says of truncation and padding is for batches, and ignored.
func Read(data []byte) (*Tokenizer, error) {
	var f file
	if err := strict(data, "", &f); err != nil {
		return nil, err
	}
	return build(f)
}

// strict unmarshals what has no other fields than into.
func strict(data []byte, field string, into any) error {
	err := json.Unmarshal(data, into, json.RejectUnknownMembers(true))
	var semantic *json.SemanticError
	var syntactic *jsontext.SyntacticError
	at := ""
	switch {
	case err == nil:
		return nil
	case errors.As(err, &semantic):
		at = string(semantic.JSONPointer)
		if semantic.Err != nil {
			err = semantic.Err
		} else {
			err = fmt.Errorf("it is %s", map[jsontext.Kind]string{'n': "null", 'f': "false", 't': "true", '"': "a string",
				'0': "a number that does not fit", '{': "an object", '[': "a list"}[semantic.JSONKind])
		}
	case errors.As(err, &syntactic):
		at, err = string(syntactic.JSONPointer), syntactic.Err
	}
	for token := range jsontext.Pointer(at).Tokens() {
		field = join(field, token)
	}
	return fmt.Errorf("%s: %w", cmp.Or(field, "the whole"), err)
}

func join(field, name string) string {
	if field == "" {
		return name
	}
	return field + "." + name
}

// kind is the type of a part, "" for null.
func kind(part jsontext.Value, field string) (string, error) {
	if len(part) == 0 || part.Kind() == 'n' {
		return "", nil
	}
	var p struct {
		Type string `json:"type"`
	}
	if err := json.Unmarshal(part, &p); err != nil || p.Type == "" {
		return "", fmt.Errorf("%s: no type", field)
	}
	return p.Type, nil
}

func build(f file) (*Tokenizer, error) {
	t := &Tokenizer{bos: none, unknown: none, seed: maphash.MakeSeed(), added: map[string]added{}, ranks: make(map[uint64]int32, len(f.Model.Merges))}
	if f.Version != "" && f.Version != "1.0" {
		return nil, fmt.Errorf("version: %q is not known", f.Version)
	}
	if err := t.readModel(f.Model); err != nil {
		return nil, err
	}
	if err := t.readNormalizer(f.Normalizer, "normalizer"); err != nil {
		return nil, err
	}
	if err := t.readAdded(f); err != nil {
		return nil, err
	}
	if f.Model.IgnoreMerges {
		t.whole = make(map[string]int32, len(f.Model.Vocab))
		for s, id := range f.Model.Vocab {
			if _, ok := t.added[s]; !ok {
				t.whole[t.bytes[id]] = id
			}
		}
	}
	if ok, err := t.readPreTokenizer(f.PreTokenizer, "pre_tokenizer"); err != nil {
		return nil, err
	} else if !ok {
		return nil, errors.New("pre_tokenizer: only tokenizers of bytes, with ByteLevel, are known")
	}
	if err := t.readPostProcessor(f.PostProcessor, "post_processor"); err != nil {
		return nil, err
	}
	if ok, err := readDecoder(f.Decoder, "decoder"); err != nil {
		return nil, err
	} else if !ok {
		return nil, errors.New("decoder: only ByteLevel is known")
	}
	f.Model.Merges = nil
	t.file = f
	return t, nil
}

func (t *Tokenizer) readModel(m model) error {
	empty := func(s *string) bool { return s == nil || *s == "" }
	switch {
	case m.Type != "" && m.Type != "BPE":
		return fmt.Errorf("model.type: %q is not known, only BPE", m.Type)
	case m.Dropout != nil && *m.Dropout != 0:
		return fmt.Errorf("model.dropout: %v is not supported", *m.Dropout)
	case !empty(m.ContinuingSubwordPrefix):
		return fmt.Errorf("model.continuing_subword_prefix: %q is not supported", *m.ContinuingSubwordPrefix)
	case !empty(m.EndOfWordSuffix):
		return fmt.Errorf("model.end_of_word_suffix: %q is not supported", *m.EndOfWordSuffix)
	case m.ByteFallback:
		return errors.New("model.byte_fallback: it is not supported")
	}
	for _, s := range slices.Sorted(maps.Keys(m.Vocab)) {
		b, ok := unspell(s)
		if !ok {
			b = s
		}
		if err := t.put(m.Vocab[s], s, b); err != nil {
			return fmt.Errorf("model.vocab: %w", err)
		}
	}
	for b := range 256 {
		id, ok := m.Vocab[string(alphabet[b])]
		switch {
		case ok:
		case m.UnkToken == nil:
			id = none
		case m.FuseUnk:
			return fmt.Errorf("model.fuse_unk: it is not supported, and byte %#02x has no token", b)
		default:
			if id, ok = m.Vocab[*m.UnkToken]; !ok {
				return fmt.Errorf("model.unk_token: %q is not in the vocabulary", *m.UnkToken)
			}
			t.unknown = id
		}
		t.bytesID[b] = id
	}
	for rank, s := range m.Merges {
		refuse := func(why string, a ...any) error {
			return fmt.Errorf("model.merges: %q with %q %s", s[0], s[1], fmt.Sprintf(why, a...))
		}
		left, ok := m.Vocab[s[0]]
		right, ok2 := m.Vocab[s[1]]
		made, ok3 := m.Vocab[s[0]+s[1]]
		if !ok || !ok2 || !ok3 {
			return refuse("needs a token that the vocabulary has not")
		}
		if _, twice := t.ranks[pair(left, right)]; twice {
			return refuse("stands there twice")
		}
		t.ranks[pair(left, right)] = int32(rank)
		t.rules = append(t.rules, rule{left, right, made})
	}
	return nil
}

// put gives a token its id.
func (t *Tokenizer) put(id int32, spelled, bytes string) error {
	switch {
	case spelled == "":
		return errors.New("a token is empty")
	case id < 0 || id >= maxID:
		return fmt.Errorf("%q has the id %d, which is not between 0 and %d", spelled, id, maxID)
	}
	if more := int(id) + 1 - len(t.spelled); more > 0 {
		t.spelled = append(t.spelled, make([]string, more)...)
		t.bytes = append(t.bytes, make([]string, more)...)
	}
	if t.spelled[id] != "" {
		return fmt.Errorf("%q and %q both have the id %d", t.spelled[id], spelled, id)
	}
	t.spelled[id], t.bytes[id] = spelled, bytes
	return nil
}

func (t *Tokenizer) readAdded(f file) error {
	ordinary := map[int32]bool{} // what a text without added tokens may give
	for _, r := range alphabet {
		if id, ok := f.Model.Vocab[string(r)]; ok {
			ordinary[id] = true
		}
	}
	for _, r := range t.rules {
		ordinary[r.made] = true
	}
	if ordinary[t.unknown] {
		return fmt.Errorf("model.unk_token: %q is what ordinary text gives as well", *f.Model.UnkToken)
	}
	for i, a := range f.AddedTokens {
		field := fmt.Sprintf("added_tokens.%d", i)
		for _, flag := range []struct {
			name string
			on   bool
		}{{"single_word", a.SingleWord}, {"lstrip", a.LStrip}, {"rstrip", a.RStrip}} {
			if flag.on {
				return fmt.Errorf("%s.%s: it is not supported (of %q)", field, flag.name, a.Content)
			}
		}
		if _, twice := t.added[a.Content]; twice {
			return fmt.Errorf("%s.content: %q stands there twice", field, a.Content)
		}
		if id, ok := f.Model.Vocab[a.Content]; !ok {
			if err := t.put(a.ID, a.Content, a.Content); err != nil {
				return fmt.Errorf("%s: %w", field, err)
			}
		} else if id != a.ID {
			return fmt.Errorf("%s.id: %q is %d, but %d in the vocabulary", field, a.Content, a.ID, id)
		}
		if a.Special && ordinary[a.ID] {
			return fmt.Errorf("%s.special: %q is what ordinary text gives as well", field, a.Content)
		}
		t.bytes[a.ID] = a.Content
		t.added[a.Content] = a
		if a.Normalized {
			t.normal.add(t.normalize(a.Content), a.ID)
		} else {
			t.raw.add(a.Content, a.ID)
		}
	}
	return nil
}

func (t *Tokenizer) readNormalizer(v jsontext.Value, field string) error {
	k, err := kind(v, field)
	if err != nil {
		return err
	}
	switch k {
	case "":
	case "NFC":
		t.nfc = true
		return strict(v, field, &struct {
			Type string `json:"type"`
		}{})
	case "Sequence":
		var s struct {
			Type        string           `json:"type"`
			Normalizers []jsontext.Value `json:"normalizers"`
		}
		if err := strict(v, field, &s); err != nil {
			return err
		}
		for i, n := range s.Normalizers {
			if err := t.readNormalizer(n, fmt.Sprintf("%s.normalizers.%d", field, i)); err != nil {
				return err
			}
		}
	default:
		return fmt.Errorf("%s.type: %q is not known", field, k)
	}
	return nil
}

type byteLevel struct {
	Type           string `json:"type"`
	AddPrefixSpace *bool  `json:"add_prefix_space"`
	TrimOffsets    bool   `json:"trim_offsets"`
	UseRegex       *bool  `json:"use_regex"`
}

// readPreTokenizer also says whether it ends with bytes.
func (t *Tokenizer) readPreTokenizer(v jsontext.Value, field string) (bool, error) {
	k, err := kind(v, field)
	if err != nil {
		return false, err
	}
	switch k {
	case "":
		return false, nil
	case "Sequence":
		var s struct {
			Type          string           `json:"type"`
			PreTokenizers []jsontext.Value `json:"pretokenizers"`
		}
		if err := strict(v, field, &s); err != nil {
			return false, err
		}
		done := false
		for i, p := range s.PreTokenizers {
			field := fmt.Sprintf("%s.pretokenizers.%d", field, i)
			if done {
				return false, fmt.Errorf("%s: nothing may follow ByteLevel", field)
			}
			if done, err = t.readPreTokenizer(p, field); err != nil {
				return false, err
			}
		}
		return done, nil
	case "Split":
		var s struct {
			Type     string         `json:"type"`
			Pattern  jsontext.Value `json:"pattern"`
			Behavior string         `json:"behavior"`
			Invert   bool           `json:"invert"`
		}
		if err := strict(v, field, &s); err != nil {
			return false, err
		}
		var p struct{ Regex string }
		if err := strict(s.Pattern, field+".pattern", &p); err != nil {
			return false, err
		}
		by, ok := patterns[p.Regex]
		switch {
		case !ok:
			return false, fmt.Errorf("%s.pattern: %q is not known", field, p.Regex)
		case s.Behavior != "Isolated":
			return false, fmt.Errorf("%s.behavior: %q is not supported, only Isolated", field, s.Behavior)
		case s.Invert:
			return false, fmt.Errorf("%s.invert: it is not supported", field)
		}
		t.splits = append(t.splits, by)
		return false, nil
	case "Digits":
		var d struct {
			Type       string `json:"type"`
			Individual bool   `json:"individual_digits"`
		}
		if err := strict(v, field, &d); err != nil {
			return false, err
		}
		if d.Individual {
			t.splits = append(t.splits, digitsApart)
		} else {
			t.splits = append(t.splits, digitsTogether)
		}
		return false, nil
	case "ByteLevel":
		var b byteLevel
		if err := strict(v, field, &b); err != nil {
			return false, err
		}
		if b.AddPrefixSpace == nil {
			return false, fmt.Errorf("%s.add_prefix_space: it is missing", field)
		}
		t.prefixSpace = *b.AddPrefixSpace
		t.gpt2 = b.UseRegex == nil || *b.UseRegex
		return true, nil
	}
	return false, fmt.Errorf("%s.type: %q is not known", field, k)
}

// readPostProcessor takes at most one token before the text: that of ByteLevel concerns offsets alone.
func (t *Tokenizer) readPostProcessor(v jsontext.Value, field string) error {
	k, err := kind(v, field)
	if err != nil {
		return err
	}
	switch k {
	case "":
		return nil
	case "ByteLevel":
		return strict(v, field, &byteLevel{})
	case "Sequence":
		var s struct {
			Type       string           `json:"type"`
			Processors []jsontext.Value `json:"processors"`
		}
		if err := strict(v, field, &s); err != nil {
			return err
		}
		for i, p := range s.Processors {
			if err := t.readPostProcessor(p, fmt.Sprintf("%s.processors.%d", field, i)); err != nil {
				return err
			}
		}
		return nil
	case "TemplateProcessing":
		return t.readTemplate(v, field)
	}
	return fmt.Errorf("%s.type: %q is not known", field, k)
}

func (t *Tokenizer) readTemplate(v jsontext.Value, field string) error {
	type named struct {
		ID     string `json:"id"`
		TypeID int    `json:"type_id"`
	}
	var s struct {
		Type   string `json:"type"`
		Single []struct {
			SpecialToken *named
			Sequence     *named
		} `json:"single"`
		Pair          jsontext.Value `json:"pair"` // of two texts, which no language model is given
		SpecialTokens map[string]struct {
			ID     string   `json:"id"`
			IDs    []int32  `json:"ids"`
			Tokens []string `json:"tokens"`
		} `json:"special_tokens"`
	}
	if err := strict(v, field, &s); err != nil {
		return err
	}
	n := len(s.Single)
	if n == 0 || n > 2 || s.Single[n-1].Sequence == nil || n == 2 && s.Single[0].SpecialToken == nil {
		return fmt.Errorf("%s.single: only a text, or one token before a text, is supported", field)
	}
	if n == 1 {
		return nil
	}
	name := s.Single[0].SpecialToken.ID
	ids := s.SpecialTokens[name].IDs
	if len(ids) != 1 || t.Token(ids[0]) == "" || t.bos >= 0 {
		return fmt.Errorf("%s.special_tokens: %q is not one token of the vocabulary", field, name)
	}
	t.bos = ids[0]
	return nil
}

// readDecoder says whether it is of bytes.
func readDecoder(v jsontext.Value, field string) (bool, error) {
	k, err := kind(v, field)
	if err != nil {
		return false, err
	}
	switch k {
	case "ByteLevel":
		return true, strict(v, field, &byteLevel{})
	case "Sequence":
		var s struct {
			Type     string           `json:"type"`
			Decoders []jsontext.Value `json:"decoders"`
		}
		if err := strict(v, field, &s); err != nil {
			return false, err
		}
		if len(s.Decoders) != 1 {
			return false, fmt.Errorf("%s.decoders: only one is supported", field)
		}
		return readDecoder(s.Decoders[0], field+".decoders.0")
	}
	return false, nil
}

// alphabet spells bytes: those that can be printed as themselves, the others in order by what follows U+00FF.
var alphabet = func() (a [256]rune) {
	next := rune(256)
	for b := range rune(256) {
		if b >= '!' && b <= '~' || b >= '¡' && b <= '¬' || b >= '®' {
			a[b] = b
		} else {
			a[b] = next
			next++
		}
	}
	return a
}()

var spelledByte = func() map[rune]byte {
	m := make(map[rune]byte, len(alphabet))
	for b, r := range alphabet {
		m[r] = byte(b)
	}
	return m
}()

// unspell gives the bytes that a token spells, or false for one that has other characters.
func unspell(s string) (string, bool) {
	b := make([]byte, 0, len(s))
	for _, r := range s {
		c, ok := spelledByte[r]
		if !ok {
			return "", false
		}
		b = append(b, c)
	}
	return string(b), true
}
