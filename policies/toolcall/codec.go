package toolcall

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/mcpgym/mcpgym/policies/bpe"
	"github.com/mcpgym/mcpgym/policies/engine"
)

var _ engine.Codec = (*Codec)(nil)

// Codec makes tokens of conversations, by a template and a tokenizer, in a way that training can rely on: what Open, Turn and
// Next give, one after the other, is what the template makes of the whole conversation, and is only ever added to. The boundaries
// of the model's turns are boundaries of tokens, as they are when it is sampled.
//
// Control tokens come from the template alone. Where a text that somebody wrote spells one, a mark is set within it before the
// template sees it; the text is split there before it is encoded, and so gives ordinary tokens that spell the same.
type Codec struct {
	template *Template
	tok      *bpe.Tokenizer
	guards   *strings.Replacer
	stop     int32 // that the template writes behind a turn
	stopText string
	stops    []int32
	tools    bool // the template shows tools
	calls    bool // and calls
	parallel bool // several in one turn
}

// mark splits texts that spell control tokens. Unicode has set the character aside for the inside of programs.
const mark = "\uFDD0"

// ErrNotPrefix is wrapped by the error of NewCodec for a template that writes earlier turns differently once there are later ones,
// such as without their thinking: its conversations cannot be trained on as they were sampled.
var ErrNotPrefix = errors.New("the chat template is not prefix-preserving")

// ErrNoTemplate is wrapped by the error of OpenCodec, and of ReadTemplate, for a folder without a chat template.
var ErrNoTemplate = errors.New("no chat template")

// OpenCodec opens the tokenizer and the chat template of a model's folder. See NewCodec.
func OpenCodec(dir string) (*Codec, error) {
	tok, err := bpe.Open(filepath.Join(dir, "tokenizer.json"))
	if err != nil {
		return nil, err
	}
	t, err := ReadTemplate(dir, Config{})
	if err != nil {
		return nil, err
	}
	c, err := NewCodec(t, tok)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", dir, err)
	}
	return c, nil
}

// WriteSmall writes a tokenizer, which has SmallTokens, and the template Small into a folder, for OpenCodec.
func WriteSmall(dir string, tok *bpe.Tokenizer) error {
	if _, err := NewCodec(Small(), tok); err != nil {
		return err
	}
	if err := tok.Write(dir); err != nil {
		return err
	}
	name := filepath.Join(dir, "tokenizer_config.json")
	data, err := os.ReadFile(name)
	if err != nil {
		return fmt.Errorf("write a chat template: %w", err)
	}
	var config map[string]any
	if err := json.Unmarshal(data, &config); err != nil {
		return fmt.Errorf("write a chat template: %w", err)
	}
	config["eos_token"], config["chat_template"] = SmallTokens[0], small
	if data, err = json.MarshalIndent(config, "", "  "); err != nil {
		return fmt.Errorf("write a chat template: %w", err)
	}
	if err := os.WriteFile(name, append(data, '\n'), 0o666); err != nil {
		return fmt.Errorf("write a chat template: %w", err)
	}
	return nil
}

// Size is the number of ids that the tokenizer has.
func (c *Codec) Size() int { return c.tok.Size() }

// NewCodec joins a template and a tokenizer. It tries the template on several conversations: an error wraps ErrNotPrefix, or says
// why no turn can be told from the next.
func NewCodec(t *Template, tok *bpe.Tokenizer) (*Codec, error) {
	c := &Codec{template: t, tok: tok, parallel: true}
	added := []string{thinkStart, thinkEnd} // in what was said, templates would take them for their own
	for id := range int32(tok.Size()) {
		if s := tok.Decode([]int32{id}); tok.Added(id) && len([]rune(s)) > 1 { // a letter or a line break is no control token
			added = append(added, s)
		}
	}
	slices.SortFunc(added, func(a, b string) int { return len(b) - len(a) }) // of several at one place, the longest
	var pairs []string
	for _, s := range added {
		first := len(string([]rune(s)[:1]))
		pairs = append(pairs, s, s[:first]+mark+s[first:])
	}
	c.guards = strings.NewReplacer(pairs...)
	if err := c.findStop(); err != nil {
		return nil, fmt.Errorf("make a codec: %w", err)
	}
	if err := c.probe(); err != nil {
		return nil, fmt.Errorf("make a codec: %w", err)
	}
	return c, nil
}

// findStop learns which token ends a turn.
func (c *Codec) findStop() error {
	const word = "Zq7"
	ask := engine.Message{Role: "user", Text: "u"}
	said, err := c.render(nil, []engine.Message{ask, {Role: "assistant", Text: word}}, false)
	if err != nil {
		return err
	}
	_, after, ok := strings.Cut(said, word)
	ids := c.tok.Encode(after)
	if !ok || len(ids) == 0 || !c.tok.Added(ids[0]) {
		return errors.New("the chat template ends a turn with no control token of the tokenizer")
	}
	c.stop, c.stopText = ids[0], c.tok.Decode(ids[:1])
	c.stops = []int32{c.stop}
	if id, ok := c.tok.ID(c.template.eos); ok && c.template.eos != "" && id != c.stop {
		c.stops = append(c.stops, id)
	}
	return nil
}

// probe tries what conversations may hold. A conversation that the template refuses says nothing.
func (c *Codec) probe() error {
	const name = "Zq8"
	user := engine.Message{Role: "user", Text: "u"}
	say := func(reasoning string, calls int) engine.Message {
		m := engine.Message{Role: "assistant", Text: "x", Reasoning: reasoning}
		for range calls {
			m.Calls = append(m.Calls, engine.Call{Name: name, Arguments: []byte(`{"a": 1}`)})
		}
		return m
	}
	result := engine.Message{Role: "tool", Text: "r", Name: name}
	tools := []engine.Tool{{Name: name, Description: "d"}}
	shows := func(tools []engine.Tool, messages ...engine.Message) bool {
		text, err := c.render(tools, messages, true)
		return err == nil && strings.Contains(text, name)
	}
	c.tools = shows(tools, user)
	c.calls = shows(nil, user, say("", 1))
	_, err := c.render(nil, []engine.Message{user, say("", 2), result, result}, true)
	c.parallel = err == nil
	system := engine.Message{Role: "system", Text: "s"}
	for _, chat := range [][]engine.Message{
		{user, say("", 0), user, say("", 0), user},
		{system, user, say("", 0), user},
		{user, say("t", 0), user, say("", 0), user, say("t", 0), user},
		{user, say("", 1), result, say("", 0), user},
		{user, say("t", 1), result, say("t", 1), result, say("t", 0), user, say("", 1), result},
		{user, say("", 2), result, result, say("t", 2), result, result},
	} {
		if !c.calls && slices.ContainsFunc(chat, func(m engine.Message) bool { return m.Calls != nil }) {
			continue
		}
		for _, offered := range [][]engine.Tool{nil, tools} {
			want, err := c.render(offered, chat, true)
			if err != nil {
				continue
			}
			var got strings.Builder
			err = c.walk(offered, chat, func(text string) { got.WriteString(text) })
			if err != nil {
				return err
			}
			if i := commonPrefix(got.String(), want); i < len(want) || i < got.Len() {
				return fmt.Errorf("%w: what was %.40q becomes %.40q once the conversation goes on", ErrNotPrefix, got.String()[i:], want[i:])
			}
		}
	}
	return nil
}

func commonPrefix(a, b string) int {
	n := 0
	for n < len(a) && n < len(b) && a[n] == b[n] {
		n++
	}
	return n
}

// Open implements engine.Codec. A conversation that holds turns of the model is theirs in turn, as if they had been sampled.
func (c *Codec) Open(tools []engine.Tool, messages []engine.Message) ([]int32, error) {
	if len(tools) > 0 && !c.tools {
		return nil, errors.New("open a conversation: the chat template shows no tools")
	}
	var ids []int32
	err := c.walk(tools, messages, func(text string) { ids = c.encode(ids, text) })
	if err != nil {
		return nil, fmt.Errorf("open a conversation: %w", err)
	}
	return ids, nil
}

// Next implements engine.Codec.
func (c *Codec) Next(stopped bool, replies []engine.Message) ([]int32, error) {
	text, err := c.next(replies)
	if err != nil {
		return nil, fmt.Errorf("go on with a conversation: %w", err)
	}
	var ids []int32
	if !stopped {
		ids = append(ids, c.stop)
	}
	return c.encode(ids, text), nil
}

// Turn implements engine.Codec. What the template leaves out of its own accord, such as thinking where it knows none, is left out.
func (c *Codec) Turn(m engine.Message) ([]int32, error) {
	text, err := c.turn(m)
	if err != nil {
		return nil, fmt.Errorf("write a turn: %w", err)
	}
	return c.encode(nil, text), nil
}

// Decode implements engine.Codec.
func (c *Codec) Decode(tokens []int32) string {
	if n := len(tokens); n > 0 && slices.Contains(c.stops, tokens[n-1]) {
		tokens = tokens[:n-1]
	}
	return c.tok.Decode(tokens)
}

// Stops implements engine.Codec: the token that the template writes behind a turn, and the model's EOS where that is another.
func (c *Codec) Stops() []int32 { return slices.Clone(c.stops) }

// walk gives the parts of a conversation, each of which is encoded by itself.
func (c *Codec) walk(tools []engine.Tool, messages []engine.Message, part func(text string)) error {
	for i, m := range messages {
		if !slices.Contains([]string{"system", "user", "assistant", "tool"}, m.Role) {
			return fmt.Errorf("message %d: no role %q", i, m.Role)
		}
	}
	said := func(m engine.Message) bool { return m.Role == "assistant" }
	upTo := func(from int) int {
		if n := slices.IndexFunc(messages[from:], said); n >= 0 {
			return from + n
		}
		return len(messages)
	}
	end := upTo(0)
	text, err := c.render(tools, messages[:end], true)
	if err != nil {
		return err
	}
	part(text)
	for end < len(messages) {
		if text, err = c.turn(messages[end]); err != nil {
			return err
		}
		part(text)
		from := end + 1
		end = upTo(from)
		if text, err = c.next(messages[from:end]); err != nil {
			return err
		}
		part(text)
	}
	return nil
}

// turn is the text of a turn of the model, its stop token included.
func (c *Codec) turn(m engine.Message) (string, error) {
	if m.Role != "assistant" {
		return "", fmt.Errorf("a turn of the model has the role assistant, not %q", m.Role)
	}
	if len(m.Calls) > 0 && !c.calls {
		return "", errors.New("the chat template writes no calls")
	}
	ask := engine.Message{Role: "user", Text: "u"}
	open, err := c.render(nil, []engine.Message{ask}, true)
	if err != nil {
		return "", err
	}
	text, err := c.render(nil, []engine.Message{ask, m}, false)
	if err != nil {
		return "", err
	}
	text, ok := strings.CutPrefix(text, open)
	if !ok {
		return "", fmt.Errorf("%w: a turn does not begin as the prompt for it ends, %.40q", ErrNotPrefix, open[max(0, len(open)-40):])
	}
	end := strings.LastIndex(text, c.stopText) // the template's own: in what was said there is a mark
	if end < 0 {
		return "", errors.New("the chat template does not end this turn")
	}
	return text[:end+len(c.stopText)], nil
}

// next is the text from behind a turn's stop token to the model's next turn. It is taken from a conversation in which the turn
// was another, which the template, being prefix-preserving, does not look at.
func (c *Codec) next(replies []engine.Message) (string, error) {
	turn := engine.Message{Role: "assistant", Text: "x"}
	for _, r := range replies {
		switch r.Role {
		case "tool":
			if c.calls && (c.parallel || len(turn.Calls) == 0) {
				turn.Calls = append(turn.Calls, engine.Call{ID: r.CallID, Name: r.Name})
			}
		case "system", "user":
		default:
			return "", fmt.Errorf("a reply has the role system, user or tool, not %q", r.Role)
		}
	}
	chat := []engine.Message{{Role: "user", Text: "u"}, turn}
	before, err := c.render(nil, chat, false)
	if err != nil {
		return "", err
	}
	end := strings.LastIndex(before, c.stopText)
	if end < 0 {
		return "", errors.New("the chat template does not end a turn")
	}
	before = before[:end+len(c.stopText)]
	text, err := c.render(nil, append(chat, replies...), true)
	if err != nil {
		return "", err
	}
	text, ok := strings.CutPrefix(text, before)
	if !ok {
		return "", fmt.Errorf("%w: these replies change what was said before", ErrNotPrefix)
	}
	return text, nil
}

func (c *Codec) render(tools []engine.Tool, messages []engine.Message, generate bool) (string, error) {
	return c.template.render(tools, messages, generate, c.guard)
}

// guard sets marks so that no piece of a text between marks spells an added token.
func (c *Codec) guard(s string) string {
	s = strings.ReplaceAll(s, mark, "\uFFFD")
	for {
		marked := c.guards.Replace(s)
		if marked == s {
			break
		}
		s = marked // once more: two spellings may overlap
	}
	for _, r := range s {
		if r > 127 && string(r) != mark { // what is not ASCII may be one only once it is normalized
			if slices.ContainsFunc(c.encode(nil, s), func(id int32) bool { return c.tok.Added(id) && len([]rune(c.tok.Decode([]int32{id}))) > 1 }) {
				return strings.Join(strings.Split(s, ""), mark)
			}
			break
		}
	}
	return s
}

// encode adds the tokens of a rendered text.
func (c *Codec) encode(ids []int32, text string) []int32 {
	for piece := range strings.SplitSeq(text, mark) {
		ids = append(ids, c.tok.Encode(piece)...)
	}
	return ids
}
