package bpe

import (
	"unicode"
	"unicode/utf8"
)

// splitter is the length of the first piece of a text that is not empty.
type splitter func(string) int

// phrasePattern is what Train splits by: names, numbers, and whatever stands between them.
const phrasePattern = `\p{Lu}+\p{Ll}*|\p{N}+|[^\p{Lu}\p{N}]+`

// The patterns that are known, each by hand: Go's regexp has no lookahead, and what has it is a hundred times as slow.
var patterns = map[string]splitter{
	phrasePattern: phrase,
	// GPT-2
	`'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+`: gpt2,
	// Llama 3
	`(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`: func(s string) int { return cl100k(s, 3, false) },
	// Qwen 2, 2.5 and 3
	`(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`: func(s string) int { return cl100k(s, 1, false) },
	// Qwen 3.5
	`(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`: func(s string) int { return cl100k(s, 1, true) },
}

type class uint8

const (
	other class = iota
	letter
	mark
	number
	space   // white space but
	newline // \r and \n
	end     // of the text
)

var ascii = func() (a [utf8.RuneSelf]class) {
	for r := range rune(utf8.RuneSelf) {
		a[r] = classOf(r)
	}
	return a
}()

func classOf(r rune) class {
	switch {
	case r == '\r' || r == '\n':
		return newline
	case unicode.IsLetter(r) || unicode.Is(letters16, r):
		return letter
	case isNumber(r):
		return number
	case unicode.IsSpace(r):
		return space
	case unicode.IsMark(r) || unicode.Is(marks16, r):
		return mark
	}
	return other
}

// first is the class and length of a text's first character. Marks are what asMark says.
func first(s string, asMark class) (class, int) {
	if s == "" {
		return end, 0
	}
	if s[0] < utf8.RuneSelf {
		return ascii[s[0]], 1
	}
	r, n := utf8.DecodeRuneInString(s)
	c := classOf(r)
	if c == mark {
		c = asMark
	}
	return c, n
}

// run is how far the characters of a class go on from n.
func run(s string, n int, of, asMark class) int {
	for {
		c, k := first(s[n:], asMark)
		if c != of {
			return n
		}
		n += k
	}
}

// blank is the length of \s+(?!\S)|\s+ at the beginning of s: white space, but for its last character if anything follows. How far
// the line ends in it go is the second.
func blank(s string) (n, lines int) {
	last := 0
	for {
		c, k := first(s[n:], other)
		switch c {
		case newline:
			lines = n + k
		case space:
		case end:
			return n, lines
		default:
			if last > 0 {
				n = last
			}
			return n, lines
		}
		last = n
		n += k
	}
}

func gpt2(s string) int {
	if k := contraction(s, false); k > 0 {
		return k
	}
	skip := 0
	if s[0] == ' ' {
		skip = 1
	}
	c, n := first(s[skip:], other)
	if c == letter || c == number || c == other {
		return run(s, skip+n, c, other)
	}
	n, _ = blank(s)
	return n
}

func phrase(s string) int {
	first, n := utf8.DecodeRuneInString(s)
	while := func(is func(rune) bool) {
		for n < len(s) {
			r, k := utf8.DecodeRuneInString(s[n:])
			if !is(r) {
				return
			}
			n += k
		}
	}
	switch {
	case isCapital(first):
		while(isCapital)
		while(isSmall)
	case isNumber(first):
		while(isNumber)
	default:
		while(func(r rune) bool { return !isCapital(r) && !isNumber(r) })
	}
	return n
}

// cl100k is the pattern of OpenAI's encoding of this name, as those after it vary it: of so many digits at once, with marks as parts
// of words or as punctuation.
func cl100k(s string, digits int, marks bool) int {
	asMark := other
	if marks {
		asMark = letter
	}
	c, n := first(s, asMark)
	switch c {
	case letter:
		return run(s, n, letter, asMark)
	case number:
		for range digits - 1 {
			c, k := first(s[n:], asMark)
			if c != number {
				break
			}
			n += k
		}
		return n
	}
	if k := contraction(s, true); k > 0 {
		return k
	}
	if c != newline {
		next, k := first(s[n:], asMark)
		if next == letter {
			return run(s, n+k, letter, asMark)
		}
		if c == other || s[0] == ' ' && next == other {
			n = run(s, n, other, asMark)
			return run(s, n, newline, asMark)
		}
	}
	n, lines := blank(s)
	if lines > 0 {
		return lines
	}
	return n
}

// contraction is the length of an apostrophe and what it abbreviates at the beginning of s, or 0.
func contraction(s string, anyCase bool) int {
	if len(s) < 2 || s[0] != '\'' {
		return 0
	}
	lower := func(i int) byte {
		if i >= len(s) {
			return 0
		}
		if c := s[i]; anyCase && 'A' <= c && c <= 'Z' {
			return c + 'a' - 'A'
		}
		return s[i]
	}
	switch c, d := lower(1), lower(2); {
	case c == 's' || c == 't' || c == 'm' || c == 'd':
		return 2
	case c == 'r' && d == 'e', c == 'v' && d == 'e', c == 'l' && d == 'l':
		return 3
	case anyCase && len(s) > 2 && s[1:3] == "ſ": // folds to s
		return 3
	}
	return 0
}

// digitsApart is the pre-tokenizer Digits with individual_digits, digitsTogether without.
func digitsApart(s string) int {
	if r, n := utf8.DecodeRuneInString(s); isDigit(r) {
		return n
	}
	return digitsTogether(s)
}

func digitsTogether(s string) int {
	r, _ := utf8.DecodeRuneInString(s)
	digits := isDigit(r)
	for i, r := range s {
		if isDigit(r) != digits {
			return i
		}
	}
	return len(s)
}
