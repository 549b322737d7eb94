package bpe

import (
	"slices"
	"strings"
	"unicode/utf8"

	"golang.org/x/text/unicode/norm"
)

// nfc is the composed form of s. Package norm interrupts what has more than thirty marks on one letter, which a tokenizer does not.
// The tokenizers library composes as of Unicode 9: a hundred rare marks that are younger it leaves where they stand in a sequence whose
// order is not the canonical one, and this does not.
func nfc(s string) string {
	if norm.NFC.IsNormalString(s) {
		return s
	}
	const joiner = "\u034f"
	out := norm.NFC.String(s)
	if strings.Count(out, joiner) == strings.Count(s, joiner) {
		return out
	}
	return compose(decompose(s))
}

func marking(r rune) uint8 { return norm.NFD.PropertiesString(string(r)).CCC() }

// decompose is the decomposed form, marks in their order.
func decompose(s string) []rune {
	var out []rune
	for _, r := range s {
		out = append(out, []rune(norm.NFD.String(string(r)))...)
	}
	for i := 0; i < len(out); i++ {
		from := i
		for i < len(out) && marking(out[i]) > 0 {
			i++
		}
		slices.SortStableFunc(out[from:i], func(a, b rune) int { return int(marking(a)) - int(marking(b)) })
	}
	return out
}

// compose joins each character with the last letter before it where the two have a composed form and nothing stands between that
// keeps them apart.
func compose(rs []rune) string {
	out := rs[:0]
	letter, before := -1, uint8(0) // the place of the last letter, and the class of what was left after it
	for _, r := range rs {
		class := marking(r)
		if letter >= 0 && (before < class || before == 0 && len(out) == letter+1) {
			if c := norm.NFC.String(string([]rune{out[letter], r})); utf8.RuneCountInString(c) == 1 {
				out[letter], _ = utf8.DecodeRuneInString(c)
				continue
			}
		}
		if class == 0 {
			letter = len(out)
		}
		before = class
		out = append(out, r)
	}
	return string(out)
}
