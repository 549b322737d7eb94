package rewards

import (
	"iter"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/mcpgym/mcpgym/envs"
)

// document is a JSON text and where each of its values stands, so that reading it makes no maps: they would take most of the
// time of scoring. Values are in the order of the text, and so come before those within them; the first is the whole.
type document struct {
	text    string
	escapes bool // some string may be written with escapes
	items   []item
}

// item is one value of a document.
type item struct {
	key, keyEnd int32 // the member's name, without quotes; both 0 where the value is no member
	from, to    int32
	next        int32 // the first item behind those within this one
}

// readJSON reads what envs.DecodeJSON reads, and refuses what it refuses.
func readJSON(text string) (d document, ok bool) {
	if !jsontext.Value(text).IsValid() {
		return document{}, false
	}
	// A value follows a comma, or is the first one of an array, of an object or of all.
	most := 1 + strings.Count(text, ",") + strings.Count(text, "[") + strings.Count(text, "{")
	r := documentReader{document: document{text, strings.Contains(text, `\`), make([]item, 0, most)}, scanner: scanner{s: text}}
	r.value(0, 0, 0)
	if r.doubtful {
		if _, err := envs.DecodeJSON([]byte(text)); err != nil {
			return document{}, false
		}
	}
	return r.document, true
}

// documentReader reads JSON that is known to be valid. What envs.DecodeJSON refuses beyond that is rare and costs time to look
// for, so it only notes whether there may be some.
type documentReader struct {
	document
	scanner
	doubtful bool
}

// value reads a value at some depth, with the place of its name.
func (r *documentReader) value(key, keyEnd, depth int) {
	c, me := r.peek(), int32(len(r.items))
	r.items = append(r.items, item{key: int32(key), keyEnd: int32(keyEnd), from: int32(r.i)})
	switch c {
	case '{':
		lower := true
		for r.i++; !r.next('}'); {
			r.next(',')
			r.next('"')
			key := r.i
			r.skipString()
			keyEnd := r.i - 1
			lower = lower && isLower(r.s[key:keyEnd])
			r.next(':')
			r.value(key, keyEnd, depth+1)
		}
		r.items[me].next = int32(len(r.items)) // for alike
		r.doubtful = r.doubtful || !lower && r.alike(me)
	case '[':
		for r.i++; !r.next(']'); {
			r.next(',')
			r.value(0, 0, depth+1)
		}
	case '"':
		r.i++
		r.skipString()
	default:
		text := r.literal()
		r.doubtful = r.doubtful || len(text) > 100 || c <= '9' && strings.ContainsAny(text, "eE") // letters come after digits
	}
	r.items[me].to, r.items[me].next = int32(r.i), int32(len(r.items))
	r.doubtful = r.doubtful || depth > 100
}

// alike says whether two members of an object may have one name, but for the case. Of many members they always may.
func (r *documentReader) alike(object int32) bool {
	var names []string
	for m := range r.within(object) {
		name := r.key(m)
		if len(names) == 32 || slices.ContainsFunc(names, func(o string) bool { return strings.EqualFold(name, o) }) {
			return true
		}
		names = append(names, name)
	}
	return false
}

// isLower says that no other lower case ASCII text is this one in another case.
func isLower(s string) bool {
	for _, c := range []byte(s) {
		if 'A' <= c && c <= 'Z' || c == '\\' || c >= utf8.RuneSelf {
			return false
		}
	}
	return true
}

// raw is a value as it is written.
func (d *document) raw(at int32) string { return d.text[d.items[at].from:d.items[at].to] }

// kind is the first character of a value, which tells its type.
func (d *document) kind(at int32) byte { return d.text[d.items[at].from] }

func (d *document) isNumber(at int32) bool { return d.kind(at) == '-' || isDigit(d.kind(at)) }

// key is the name of a member.
func (d *document) key(at int32) string {
	s := d.text[d.items[at].key:d.items[at].keyEnd]
	if !d.escapes {
		return s
	}
	return unescaped(s)
}

// str is the text of a string.
func (d *document) str(at int32) string {
	s := d.text[d.items[at].from+1 : d.items[at].to-1]
	if !d.escapes {
		return s
	}
	return unescaped(s)
}

// member finds a member of an object. It gives -1 where there is none, or no object.
func (d *document) member(at int32, name string) int32 {
	if at < 0 || d.kind(at) != '{' {
		return -1
	}
	for m := range d.within(at) {
		if d.key(m) == name {
			return m
		}
	}
	return -1
}

// within gives the elements of an array or the members of an object, in order.
func (d *document) within(at int32) iter.Seq[int32] {
	return func(yield func(int32) bool) {
		for c := at + 1; c < d.items[at].next && yield(c); c = d.items[c].next {
		}
	}
}

// path is the way from the whole document to a value.
func (d *document) path(to int32) jsontext.Pointer {
	var p jsontext.Pointer
	for at := int32(0); at != to; {
		n, c := 0, at+1
		for ; d.items[c].next <= to; c = d.items[c].next {
			n++
		}
		if d.kind(at) == '[' {
			p = p.AppendToken(strconv.Itoa(n))
		} else {
			p = p.AppendToken(d.key(c))
		}
		at = c
	}
	return p
}

// scanner goes through JSON that is known to be valid.
type scanner struct {
	s string
	i int
}

// peek skips white space and gives the character after it.
func (r *scanner) peek() byte {
	for r.s[r.i] == ' ' || r.s[r.i] == '\n' || r.s[r.i] == '\t' || r.s[r.i] == '\r' {
		r.i++
	}
	return r.s[r.i]
}

// next skips white space and takes one character, if it is that one.
func (r *scanner) next(c byte) bool {
	if r.peek() != c {
		return false
	}
	r.i++
	return true
}

// skipString goes behind the end of a string that has begun.
func (r *scanner) skipString() {
	for ; r.s[r.i] != '"'; r.i++ {
		if r.s[r.i] == '\\' {
			r.i++
		}
	}
	r.i++
}

// str reads the rest of a string.
func (r *scanner) str() string {
	start := r.i
	r.skipString()
	return unescaped(r.s[start : r.i-1])
}

// literal reads a number, true, false or null.
func (r *scanner) literal() string {
	start := r.i
	for ; r.i < len(r.s); r.i++ {
		switch r.s[r.i] {
		case ',', ']', '}', ' ', '\n', '\t', '\r':
			return r.s[start:r.i]
		}
	}
	return r.s[start:]
}

// unescaped is what stands between the quotes of a valid JSON string.
func unescaped(s string) string {
	if strings.IndexByte(s, '\\') < 0 {
		return s
	}
	b, _ := jsontext.AppendUnquote(nil, `"`+s+`"`)
	return string(b)
}
