package toolcall

import (
	"regexp"
	"strings"
)

var (
	newlines   = strings.NewReplacer("\r\n", "\n", "\r", "\n") // as Jinja reads templates
	jsonFilter = regexp.MustCompile(`\|\s*tojson\b`)
	literal    = strings.NewReplacer(`\`, `\\`, `"`, `\"`)
)

// prepare rewrites the source of a template so that the engine reads it as Jinja does with trim_blocks and lstrip_blocks, which
// transformers sets. The engine trims white space across neighbouring tags; so here all of it is trimmed, and what remains
// between tags becomes strings. The engine's tojson sorts keys where it indents, rounds numbers and escapes more than Python
// does: python_json takes its place. Only that is done where there are raw blocks or tags without an end.
func prepare(source string) string {
	source = strings.TrimSuffix(newlines.Replace(source), "\n")
	asItIs := jsonFilter.ReplaceAllString(source, "| python_json")
	var out strings.Builder
	lineStart := true // the text begins a line
	for text := source; text != ""; {
		at := tagStart(text)
		if at < 0 {
			at = len(text)
		}
		said, tag := text[:at], text[at:]
		if tag == "" {
			write(&out, said)
			break
		}
		n := tagLen(tag)
		if n < 0 {
			return asItIs
		}
		inner := tag[2 : n-2]
		text = tag[n:]
		kind := tag[1]
		switch {
		case strings.HasPrefix(inner, "-"):
			inner, said = inner[1:], strings.TrimRight(said, whitespace)
		case strings.HasPrefix(inner, "+"):
			inner = inner[1:]
		case kind != '{':
			if line := strings.LastIndexByte(said, '\n') + 1; (line > 0 || lineStart) && strings.Trim(said[line:], whitespace) == "" {
				said = said[:line]
			}
		}
		write(&out, said)
		lineStart = false
		switch {
		case strings.HasSuffix(inner, "-"):
			rest := strings.TrimLeft(text, whitespace)
			lineStart = strings.HasSuffix(text[:len(text)-len(rest)], "\n")
			inner, text = inner[:len(inner)-1], rest
		case strings.HasSuffix(inner, "+"):
			inner = inner[:len(inner)-1]
		case kind != '{':
			text, lineStart = strings.CutPrefix(text, "\n")
		}
		switch kind {
		case '{':
			out.WriteString("{{ " + jsonFilter.ReplaceAllString(inner, "| python_json") + " }}")
		case '%':
			if strings.TrimSpace(inner) == "raw" {
				return asItIs
			}
			out.WriteString("{% " + jsonFilter.ReplaceAllString(inner, "| python_json") + " %}")
		}
	}
	return out.String()
}

// whitespace is Python's, but for characters that no template has.
const whitespace = " \t\n\v\f\r"

func write(out *strings.Builder, text string) {
	if text != "" {
		out.WriteString(`{{ "` + literal.Replace(text) + `" }}`)
	}
}

// tagStart finds the next tag, or gives -1.
func tagStart(text string) int {
	for i := 0; i+1 < len(text); i++ {
		if text[i] == '{' && strings.IndexByte("{%#", text[i+1]) >= 0 {
			return i
		}
	}
	return -1
}

// tagLen is the length of the tag that a text begins with, or -1. Its end may stand in a string, but not in that of a comment.
func tagLen(text string) int {
	end := "}}"
	if text[1] != '{' {
		end = text[1:2] + "}"
	}
	if text[1] == '#' {
		if n := strings.Index(text[2:], end); n >= 0 {
			return 2 + n + 2
		}
		return -1
	}
	for i := 2; i < len(text); i++ {
		switch c := text[i]; {
		case c == '\'' || c == '"':
			for i++; i < len(text) && text[i] != c; i++ {
				if text[i] == '\\' {
					i++
				}
			}
		case strings.HasPrefix(text[i:], end):
			return i + 2
		}
	}
	return -1
}
