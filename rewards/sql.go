package rewards

import "strings"

// scanSQL splits a statement into its words (names and keywords, in lower case) and its literals (strings and numbers,
// without quotes). Comments are neither (PostgreSQL manual, "Lexical Structure").
func scanSQL(sql string) (words, literals []string) {
	for i := 0; i < len(sql); {
		rest := sql[i:]
		switch c := rest[0]; {
		case strings.HasPrefix(rest, "--"):
			i += lineEnd(rest)
		case strings.HasPrefix(rest, "/*"):
			i += commentEnd(rest)
		case c == '\'':
			text, n := quoted(rest, '\'', false)
			literals = append(literals, text)
			i += n
		case (c == 'e' || c == 'E') && len(rest) > 1 && rest[1] == '\'':
			text, n := quoted(rest[1:], '\'', true)
			literals = append(literals, text)
			i += 1 + n
		case c == '"':
			text, n := quoted(rest, '"', false)
			words = append(words, text)
			i += n
		case c == '$':
			text, n := dollar(rest)
			if n > 1 {
				literals = append(literals, text)
			}
			i += n
		case c >= '0' && c <= '9' || c == '.' && len(rest) > 1 && rest[1] >= '0' && rest[1] <= '9':
			n := 1
			for n < len(rest) && (inWord(rest[n]) || rest[n] == '.') {
				n++
			}
			literals = append(literals, rest[:n])
			i += n
		case inWord(c):
			n := 1
			for n < len(rest) && inWord(rest[n]) {
				n++
			}
			words = append(words, strings.ToLower(rest[:n]))
			i += n
		default:
			i++
		}
	}
	return words, literals
}

func inWord(c byte) bool {
	return c == '_' || c == '$' || c >= 0x80 || c >= '0' && c <= '9' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z'
}

func lineEnd(s string) int {
	if n := strings.IndexByte(s, '\n'); n >= 0 {
		return n
	}
	return len(s)
}

// commentEnd gives the length of a comment, which may hold others.
func commentEnd(s string) int {
	depth := 0
	for i := 0; i < len(s); {
		switch {
		case strings.HasPrefix(s[i:], "/*"):
			depth++
			i += 2
		case strings.HasPrefix(s[i:], "*/"):
			i += 2
			if depth--; depth == 0 {
				return i
			}
		default:
			i++
		}
	}
	return len(s)
}

// quoted reads a quoted text from its first quote on, and gives the length that it takes.
func quoted(s string, quote byte, backslash bool) (string, int) {
	var b strings.Builder
	for i := 1; i < len(s); i++ {
		switch {
		case backslash && s[i] == '\\' && i+1 < len(s):
			i++
			b.WriteByte(s[i])
		case s[i] != quote:
			b.WriteByte(s[i])
		case i+1 < len(s) && s[i+1] == quote:
			b.WriteByte(quote)
			i++
		default:
			return b.String(), i + 1
		}
	}
	return b.String(), len(s)
}

// dollar reads a text between two equal tags such as $$ or $a$; a lone dollar has length 1.
func dollar(s string) (string, int) {
	n := 1
	for n < len(s) && inWord(s[n]) && s[n] != '$' {
		n++
	}
	if n == len(s) || s[n] != '$' || n > 1 && s[1] >= '0' && s[1] <= '9' {
		return "", 1
	}
	tag := s[:n+1]
	if end := strings.Index(s[len(tag):], tag); end >= 0 {
		return s[len(tag) : len(tag)+end], end + 2*len(tag)
	}
	return s[len(tag):], len(s)
}
