package serve

import (
	"strings"
	"unicode"

	"github.com/mcpgym/mcpgym/policies/engine"
	"github.com/mcpgym/mcpgym/policies/toolcall"
)

const (
	thinkStart, thinkEnd = "<think>", "</think>"
	callStart, callEnd   = "<tool_call>", "</tool_call>"
)

// turn is what a model said, as a client is told of it.
type turn struct {
	reasoning, content string
	calls              []engine.Call // without ids
}

// read reads a whole turn. Calls that cannot be read are shown, behind the text; where calls is false all of them are text.
func read(text string, tools []engine.Tool, thinking, calls bool) turn {
	if !calls {
		p := preview{thinking: thinking}
		p.add(text)
		p.end()
		return turn{reasoning: p.reasoning.String(), content: p.content.String()}
	}
	found := toolcall.Reader{Thinking: thinking, Tools: tools}.Read(text)
	t := turn{reasoning: found.Reasoning}
	shown := []string{}
	if found.Text != "" {
		shown = append(shown, found.Text)
	}
	for _, c := range found.Calls {
		switch {
		case c.Malformed == "":
			t.calls = append(t.calls, engine.Call{Name: c.Name, Arguments: c.Arguments})
		case strings.HasPrefix(c.Malformed, callStart): // it has no end
			shown = append(shown, c.Malformed)
		default:
			shown = append(shown, callStart+c.Malformed+callEnd)
		}
	}
	t.content = strings.Join(shown, "\n")
	return t
}

// reading follows a turn while it is sampled: its text, up to the first of the stop strings to be complete (of those that become so
// with the same character, the longest), and how much of what read will make of it is certain already.
type reading struct {
	codec engine.Codec
	stop  []string

	tokens  int     // read so far, up to the one that completed a stop string
	pending []int32 // tokens whose text may end within a character
	told    int     // bytes of their text that were read
	text    strings.Builder
	end     int // of the text, before a stop string
	stopped bool
	preview preview
}

// add reads the next token. After a stop string it does nothing.
func (r *reading) add(token int32) {
	if r.stopped {
		return
	}
	r.tokens++
	r.pending = append(r.pending, token)
	text := r.codec.Decode(r.pending)
	whole, cut := strings.CutSuffix(text, "\uFFFD") // a part of a character, if the next token has the rest
	r.write(whole[min(r.told, len(whole)):])
	r.told = len(whole)
	if !cut {
		r.pending, r.told = r.pending[:0], 0
	}
}

// finish reads what was held back, as no token follows.
func (r *reading) finish() {
	if !r.stopped && len(r.pending) > 0 {
		text := r.codec.Decode(r.pending)
		r.write(text[min(r.told, len(text)):])
	}
}

func (r *reading) write(piece string) {
	old := r.text.Len()
	r.text.WriteString(piece)
	text := r.text.String()
	shown := r.end
	r.end = len(text)
	first := len(text) + 1 // where the first stop string ends
	for _, s := range r.stop {
		from := max(0, old-len(s)+1)
		if i := strings.Index(text[from:], s); i >= 0 {
			i += from
			if done := i + len(s); done < first || done == first && i < r.end {
				first, r.end, r.stopped = done, i, true
			}
		}
	}
	if !r.stopped {
		for _, s := range r.stop {
			r.end = min(r.end, len(text)-overlap(text, s))
		}
	}
	r.preview.add(text[shown:r.end])
}

// turnText is the text, once it is whole.
func (r *reading) turnText() string {
	if r.stopped {
		return r.text.String()[:r.end]
	}
	return r.text.String()
}

// overlap is the length of the longest beginning of mark, but not of all of it, that a text ends with.
func overlap(text, mark string) int {
	for n := min(len(mark)-1, len(text)); n > 0; n-- {
		if strings.HasSuffix(text, mark[:n]) {
			return n
		}
	}
	return 0
}

// preview finds out what read will say of a turn, as far as that is certain before its end: up to the first call. What it has found
// is at each time the beginning of what read gives.
type preview struct {
	thinking bool   // within a thinking block
	calls    bool   // a call ends what is certain
	halted   bool   // by one
	rest     string // that may be the beginning of a tag

	reasoning, content trimmed
}

func (p *preview) add(text string) {
	p.rest += text
	for !p.halted {
		marks := []string{thinkStart}
		if p.thinking {
			marks = []string{thinkEnd}
		} else if p.calls {
			marks = append(marks, callStart)
		}
		at, mark := len(p.rest), ""
		for _, m := range marks {
			if i := strings.Index(p.rest, m); i >= 0 && i < at {
				at, mark = i, m
			}
		}
		if mark == "" {
			for _, m := range marks {
				at = min(at, len(p.rest)-overlap(p.rest, m))
			}
		}
		p.say(p.rest[:at])
		p.rest = p.rest[at+len(mark):]
		switch mark {
		case "":
			return
		case callStart:
			p.halted, p.rest = true, ""
		case thinkStart:
			p.thinking = true
		case thinkEnd:
			p.thinking = false
			p.reasoning.next()
		}
	}
}

// end says that no more text follows.
func (p *preview) end() { p.say(p.rest) }

func (p *preview) say(text string) {
	if p.thinking {
		p.reasoning.add(text)
	} else {
		p.content.add(text)
	}
}

// trimmed is a text without white space around it. It consists of blocks, each of which is trimmed and is a line of its own.
type trimmed struct {
	strings.Builder
	blank string // white space that may be the last of the block
	began bool   // the block has text
}

func (t *trimmed) add(text string) {
	text = t.blank + text
	if !t.began {
		text = strings.TrimLeftFunc(text, unicode.IsSpace)
	}
	said := strings.TrimRightFunc(text, unicode.IsSpace)
	t.blank = text[len(said):]
	if said == "" {
		return
	}
	if !t.began && t.Len() > 0 {
		t.WriteByte('\n')
	}
	t.began = true
	t.WriteString(said)
}

func (t *trimmed) next() { t.blank, t.began = "", false }
