package lint

import (
	"regexp"
	"strings"
)

// statement is a part of a file, without the semicolon that ends it.
type statement struct {
	sql   string
	line  int    // where it begins, from 1
	words string // the words that it begins with, in capitals, a space after each
}

// lexeme finds what semicolons may hide in, and words (PostgreSQL manual, "Lexical Structure"). Comments in comments and
// strings between dollars are beyond a regular expression: only their beginning is found.
var lexeme = regexp.MustCompile(`(?s)^(--[^\n]*|'[^']*(?:'|$)|"[^"]*(?:"|$)|[eE]'(?:[^'\\]|\\.|'')*(?:'|$)|/\*|\$(?:[\pL_][\pL_0-9]*)?\$|[\pL_0-9][\pL_0-9$]*|\s+|.)`)

// statements cuts SQL text into its statements. What comes before their first word is no part of them.
func statements(text string) []statement {
	var all []statement
	start, words, begun := -1, "", false // begun: something else than a word was seen
	flush := func(end int) {
		if start >= 0 {
			all = append(all, statement{text[start:end], 1 + strings.Count(text[:start], "\n"), words})
		}
		start, words, begun = -1, "", false
	}
	for i := 0; i < len(text); {
		l := lexeme.FindString(text[i:])
		at := i
		i += len(l)
		switch {
		case l == ";":
			flush(at)
			continue
		case strings.HasPrefix(l, "--") || strings.TrimSpace(l) == "":
			continue
		case l == "/*":
			i = at + comment(text[at:])
			continue
		case strings.HasPrefix(l, "$") && len(l) > 1:
			if end := strings.Index(text[i:], l); end >= 0 {
				i += end + len(l)
			} else {
				i = len(text)
			}
		}
		if start < 0 {
			start = at
		}
		if begun = begun || !word.MatchString(l); !begun {
			words += strings.ToUpper(l) + " "
		}
	}
	flush(len(text))
	return all
}

var word = regexp.MustCompile(`^[\pL_][\pL_0-9$]*$`)

// comment is the length of the comment that a text begins with; comments may lie within comments.
func comment(text string) int {
	depth := 0
	for _, at := range commentMark.FindAllStringIndex(text, -1) {
		if depth++; text[at[0]] == '*' {
			depth -= 2
		}
		if depth == 0 {
			return at[1]
		}
	}
	return len(text)
}

var commentMark = regexp.MustCompile(`/\*|\*/`)

// head shows the beginning of a statement.
func (s statement) head() string {
	line, _, more := strings.Cut(s.sql, "\n")
	if r := []rune(line); len(r) > 60 {
		line, more = string(r[:60]), true
	}
	if more {
		line += "..."
	}
	return line
}
