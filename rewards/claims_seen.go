package rewards

import (
	"encoding/json"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/mcpgym/mcpgym/envs"
)

// said is a text that an agent has seen.
type said struct {
	text, folded string
	given        string // folded: what the call itself spelt does not count; empty where all counts
}

// fold gives the text in the form of normal. A text inside JSON may be written with escapes.
func (s *said) fold() string {
	if s.folded == "" {
		s.folded = s.text
		if strings.Contains(s.text, `\`) {
			if v, err := envs.DecodeJSON([]byte(s.text)); err == nil {
				s.folded += "\n" + strings.Join(texts(nil, v), "\n")
			}
		}
		s.folded = normal(s.folded)
	}
	return s.folded
}

// anySays tells whether a phrase stands in one of the texts as whole words, in any case.
func anySays(all []said, phrase string) bool {
	for i := range all {
		if all[i].given == "" && hasPhrase(all[i].text, phrase) {
			return true
		}
	}
	phrase = normal(phrase)
	for i := range all {
		if hasPhrase(all[i].fold(), phrase) && !hasPhrase(all[i].given, phrase) {
			return true
		}
	}
	return false
}

func texts(dst []string, v any) []string {
	switch v := v.(type) {
	case string:
		dst = append(dst, v)
	case []any:
		for _, e := range v {
			dst = texts(dst, e)
		}
	case map[string]any:
		for k, e := range v {
			dst = texts(append(dst, k), e)
		}
	}
	return dst
}

// hasPhrase says whether a phrase stands in a text with no letter or digit next to it.
func hasPhrase(text, phrase string) bool {
	if phrase == "" {
		return false
	}
	for at := 0; ; {
		i := strings.Index(text[at:], phrase)
		if i < 0 {
			return false
		}
		i += at
		before, _ := utf8.DecodeLastRuneInString(text[:i])
		after, _ := utf8.DecodeRuneInString(text[i+len(phrase):])
		if !isWordRune(before) && !isWordRune(after) {
			return true
		}
		at = i + 1
	}
}

func isWordRune(r rune) bool {
	return r == '_' || r != utf8.RuneError && (unicode.IsLetter(r) || unicode.IsDigit(r))
}

// kind is what a datum is.
type kind uint8

const (
	words    kind = iota
	numeral       // num is its value
	day           // num is its midnight, in Unix seconds
	moment        // num is its time, in Unix seconds
	yearless      // num is 100 * month + day
	clock         // num is minutes after midnight
	monthly       // num is monthOf
)

// datum is one value that was seen, or that an answer claims.
type datum struct {
	kind     kind
	given    bool  // the call itself spelt it
	node     int32 // the field, or -1
	row      int32 // the object or inner array, or -1
	from, to int   // where it stands in its text
	num      float64
	text     string
	unit     string // as written after it
}

func (d datum) isMoment() bool  { return d.kind == day || d.kind == moment }
func (d datum) time() time.Time { return time.Unix(int64(d.num), 0).UTC() }
func (d datum) said() string {
	if d.unit != "" {
		return d.text + " " + d.unit
	}
	return d.text
}

// node is a place in results: a field by its path, alike for all elements of a list and for all pages of a result.
type node struct {
	parent, child, next int32 // -1 is none
	key                 string
	name                string // the key, or the column's
	list                bool   // an array
	within              bool   // some array is around it, or it is one
	asked               int8   // whether the prompt names it: 1, -1, or 0 where that is not known yet
	size                int32  // elements of the array
}

// row is an object, or an array within an array.
type row struct {
	parent   int32
	index    int32 // in its list, -1 where it stands in none
	source   int32 // the result
	from, to int32 // its data, and those of the rows within, in view.data
}

// view is what an agent saw in an episode. Its last data are those of the prompt, which have no node and no row.
type view struct {
	said  []said
	data  []datum
	nodes []node
	rows  []row
	asked []datum  // of the prompt
	named []string // units that the prompt names
	want  []byte   // what the task asks for

	sources []source

	listed map[int32][]*datum // what columns gives, once it is known
}

const none = int32(-1)

func look(t *envs.Trajectory) *view {
	results, values := countResults(t), 0 // values: about so many
	for _, s := range t.Steps {
		for _, r := range s.Observation.Results {
			values += 1 + strings.Count(r.Text, ",")
		}
	}
	v := &view{said: make([]said, 0, results+1), data: make([]datum, 0, values+values/4+8), nodes: make([]node, 0, values),
		rows: make([]row, 0, values/2), sources: make([]source, 0, results)}
	paged := false
	for _, s := range t.Steps {
		for _, c := range s.Action.Calls {
			paged = paged || strings.Contains(string(c.Arguments), cursorName)
		}
	}
	var written spelt // to the world, or to a session
	for _, s := range t.Steps {
		for i, r := range s.Observation.Results {
			now := source{tool: r.Name, text: r.Text}
			if i < len(s.Action.Calls) {
				now.whole = string(s.Action.Calls[i].Arguments)
			}
			if now.args = now.whole; paged {
				now.args = withoutCursor(now.whole)
			}
			now.root = none
			repeated := false
			for _, o := range v.sources {
				if o.tool == now.tool && o.args == now.args {
					now.root = o.root
					if o.whole == now.whole { // asked again: the same, or another state of the world
						repeated = repeated || o.text == now.text
						now.root = none
					}
				}
			}
			if repeated {
				continue
			}
			if now.root == none {
				now.root = v.node(none, "", true)
			}
			var given spelt
			sql := ""
			if strings.Contains(now.whole, `"sql"`) {
				sql = sqlOf(now.whole)
			}
			if sql != "" {
				words, literals := scanSQL(sql)
				now.catalog = slices.ContainsFunc(words, func(w string) bool { return w == "information_schema" || strings.HasPrefix(w, "pg_") })
				given = spell(sql, literals)
				if writes(words) {
					written.add(given)
				}
				given.add(written)
			} else if r.Status != envs.StatusOK {
				args := said{text: now.whole}
				given = spell(args.fold(), []string{args.fold()})
			}
			v.said = append(v.said, said{text: r.Text, given: given.text})
			v.read(r.Text, now.root, int32(len(v.sources)), given)
			v.sources = append(v.sources, now)
		}
	}
	v.want = t.Task.Want
	v.said = append(v.said, said{text: t.Task.Prompt})
	from := len(v.data)
	v.text(plain.Replace(t.Task.Prompt), none, none, false)
	v.asked = v.data[from:]
	return v
}

const cursorName = "cursor"

// withoutCursor is a call's arguments in one form, without those that only turn the page.
func withoutCursor(args string) string {
	v, err := envs.DecodeJSON([]byte(args))
	m, ok := v.(map[string]any)
	if err != nil || !ok {
		return args
	}
	for k := range m {
		if strings.Contains(k, cursorName) {
			delete(m, k)
		}
	}
	return string(envs.Canonical(m))
}

// source is a result.
type source struct {
	tool, args, whole, text string
	root                    int32 // its node
	catalog                 bool  // a query of the database's own tables
}

// spelt is what calls have spelt themselves, so that it is not seen when it comes back.
type spelt struct {
	text string  // in the form of normal
	data []datum // in its literals
}

func spell(text string, literals []string) spelt {
	s := spelt{text: normal(text)}
	for _, l := range literals {
		s.data = spans(s.data, plain.Replace(l))
	}
	return s
}

func (s *spelt) add(o spelt) {
	if o.text != "" {
		s.text, s.data = s.text+"\n"+o.text, append(s.data, o.data...)
	}
}

// has says whether a datum is among what was spelt, in whatever form.
func (s *spelt) has(d *datum) bool {
	return slices.ContainsFunc(s.data, func(o datum) bool {
		return o.num == d.num && (o.kind == d.kind || o.isMoment() && d.isMoment())
	}) || hasPhrase(s.text, normal(d.text))
}

func sqlOf(args string) string {
	var in struct{ SQL string }
	if json.Unmarshal([]byte(args), &in) != nil {
		return ""
	}
	return in.SQL
}

// writes says whether a statement may keep values that it spells for later ones to show.
func writes(words []string) bool {
	return len(words) > 0 && words[0] == "set" || slices.ContainsFunc(words, func(w string) bool { return slices.Contains(keepers, w) })
}

var keepers = strings.Fields("create declare do insert merge prepare set_config")

func (v *view) says(phrase string) bool { return anySays(v.said, phrase) }

// writes says whether a value was seen that differs from a text only in what is neither letter nor digit.
func (v *view) writes(text string) bool {
	bare := letters(text)
	return len(bare) > 3 && slices.ContainsFunc(v.data, func(d datum) bool { return d.kind == words && !d.given && letters(d.text) == bare })
}

// letters are the letters and digits of a text, in one case.
func letters(s string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsLetter(r) || unicode.IsDigit(r) {
			return unicode.ToLower(r)
		}
		return -1
	}, s)
}

// node finds or makes a child of a node; a fresh one is made always.
func (v *view) node(parent int32, key string, fresh bool) int32 {
	if parent != none && !fresh {
		for c := v.nodes[parent].child; c != none; c = v.nodes[c].next {
			if v.nodes[c].key == key {
				return c
			}
		}
	}
	id := int32(len(v.nodes))
	n := node{parent: parent, child: none, next: none, key: key, name: key}
	if parent != none {
		n.next, n.within = v.nodes[parent].child, v.nodes[parent].within
		v.nodes[parent].child = id
	}
	v.nodes = append(v.nodes, n)
	return id
}

// read takes in one result: JSON by its structure, any other text by the numbers and dates in it.
func (v *view) read(text string, root, source int32, given spelt) {
	from := len(v.data)
	if jsontext.Value([]byte(text)).IsValid() {
		r := reader{scanner: scanner{s: text}, v: v, source: source}
		r.value(root, none)
	} else {
		v.text(plain.Replace(text), none, none, false)
	}
	if given.text != "" {
		for i := from; i < len(v.data); i++ {
			v.data[i].given = given.has(&v.data[i])
		}
	}
}

// text takes in the numbers, dates and times in a text. whole says that the text is a value, which counts as words where it
// is none of these itself.
func (v *view) text(s string, node, row int32, whole bool) {
	from := len(v.data)
	if strings.ContainsAny(s, "0123456789") {
		v.data = spans(v.data, s)
	}
	found := v.data[from:]
	if whole && !(len(found) > 0 && found[0].from == 0 && found[0].to == len(s)) {
		v.data = slices.Insert(v.data, from, datum{kind: words, text: s})
		v.data[from].node, v.data[from].row = node, row
		found, node = v.data[from+1:], none
	}
	for i := range found {
		found[i].node, found[i].row = node, row
	}
}

// reader takes in JSON that is known to be valid.
type reader struct {
	scanner
	v      *view
	source int32
}

func (r *reader) value(at, in int32) {
	switch {
	case r.next('"'):
		r.v.text(r.str(), at, in, true)
	case r.next('{'):
		me := r.row(in, none)
		r.object(at, me)
		r.v.rows[me].to = int32(len(r.v.data))
	case r.next('['):
		r.array(at, in)
	default:
		text := r.literal()
		if f, err := strconv.ParseFloat(text, 64); err == nil { // else null, true, false, or more than a double holds
			r.v.data = append(r.v.data, datum{kind: numeral, node: at, row: in, num: f, text: text})
		}
	}
}

func (r *reader) row(in, index int32) int32 {
	r.v.rows = append(r.v.rows, row{in, index, r.source, int32(len(r.v.data)), 0})
	return int32(len(r.v.rows) - 1)
}

// object reads the rest of an object, which is a row.
func (r *reader) object(at, me int32) {
	columns, table := -1, none
	for !r.next('}') {
		r.next(',')
		r.next('"')
		key := r.str()
		r.next(':')
		child := r.v.node(at, key, false)
		switch key {
		case "columns":
			columns = len(r.v.data)
		case "rows":
			table = child
		}
		r.value(child, me)
	}
	if columns >= 0 && table != none {
		r.v.nameColumns(columns, table)
	}
}

// nameColumns gives the columns of a table the names in the array whose data begin at from.
func (v *view) nameColumns(from int, table int32) {
	i := 0
	for _, d := range v.data[from:] {
		switch {
		case d.node == none: // a number within a name
		case v.nodes[d.node].key != "columns":
			return
		default:
			v.nodes[d.node].size = none // names are not counted
			v.nodes[v.node(table, strconv.Itoa(i), false)].name = d.text
			i++
		}
	}
}

// array reads the rest of an array. It continues the one at the same place of an earlier page, unless it is itself in an
// element of an array.
func (r *reader) array(at, in int32) {
	if p := r.v.nodes[at].parent; p != none && r.v.nodes[p].within {
		at = r.v.node(p, r.v.nodes[at].key, true)
	}
	r.v.nodes[at].list, r.v.nodes[at].within = true, true
	for !r.next(']') {
		r.next(',')
		me := r.row(in, r.v.nodes[at].size)
		r.v.nodes[at].size++
		switch {
		case r.next('{'):
			r.object(at, me)
		case r.next('['): // the row of a table: its columns are those of the other rows
			for j := 0; !r.next(']'); j++ {
				r.next(',')
				r.value(r.v.node(at, strconv.Itoa(j), false), me)
			}
		default:
			r.value(at, me)
		}
		r.v.rows[me].to = int32(len(r.v.data))
	}
}
