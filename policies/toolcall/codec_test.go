package toolcall

import (
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/mcpgym/mcpgym/envs"
	"github.com/mcpgym/mcpgym/policies/bpe"
	"github.com/mcpgym/mcpgym/policies/engine"
	"github.com/mcpgym/mcpgym/sandboxes"
)

// control are tokens of the families whose templates are tried here.
var control = slices.Concat(SmallTokens, []string{"<|im_start|>", "<|im_end|>", "<|endoftext|>", "<tool_response>", "</tool_response>",
	"<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>", "<|startoftext|>", "<|tool_list_start|>", "<|tool_list_end|>",
	"<|tool_call_start|>", "<|tool_call_end|>", "<|tool_response_start|>", "<|tool_response_end|>"})

func tokenizer(tb testing.TB) *bpe.Tokenizer {
	f := readGolden(tb)
	tok, err := bpe.Train(func(yield func(string) bool) {
		for _, name := range []string{"qwen3", "llama3_1"} {
			for _, text := range f.Templates[name].Renderings {
				if text != nil && !yield(*text) {
					return
				}
			}
		}
	}, 600, control)
	require.NoError(tb, err)
	return tok
}

// chatML is a template with several ways to break the promise of a prefix.
const chatML = `{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' }}
{%- if m.reasoning_content and (keep or loop.last) %}{{ '<think>' + m.reasoning_content + '</think>' }}{% endif %}
{{- m.content }}
{%- for c in m.tool_calls or [] %}{{ '<tool_call>' + c.function.name + (c.function.arguments | tojson) + '</tool_call>' }}{% endfor %}
{{- '<|im_end|>\n' }}{% endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\n' + opening }}{% endif %}
{%- if count %}{{ messages | length }}{% endif %}`

func ownTemplate(tb testing.TB, vars map[string]any) *Template {
	t, err := NewTemplate(chatML, Config{EOS: "<|endoftext|>", Vars: vars})
	require.NoError(tb, err)
	return t
}

// word makes texts that are hard to keep apart: control tokens, white space at the ends, what JSON and templates look at.
func word(r *rand.Rand) string {
	parts := []string{"a", "word", " ", "\n", "\n\n", "é", "日本", "😀", "{\"a\": 1}", "'", "\\", "<", "|im_end|>", "</", "{{ x }}", "12", "\ufdd0", "e\u0301"}
	var b strings.Builder
	for range 1 + r.IntN(6) {
		if r.IntN(5) == 0 {
			b.WriteString(control[r.IntN(len(control))])
		} else {
			b.WriteString(parts[r.IntN(len(parts))])
		}
	}
	return b.String()
}

func quote(s string) string {
	b, _ := json.Marshal(s)
	return string(b)
}

// conversation makes turns of the model, each with the replies to it.
func conversation(r *rand.Rand, c *Codec) (open []engine.Message, turns []engine.Message, replies [][]engine.Message) {
	if r.IntN(2) == 0 {
		open = append(open, engine.Message{Role: "system", Text: word(r)})
	}
	open = append(open, engine.Message{Role: "user", Text: word(r)})
	for range 1 + r.IntN(5) {
		m := engine.Message{Role: "assistant", Text: word(r)}
		if r.IntN(2) == 0 {
			m.Reasoning = word(r)
		}
		n := 0
		if c.calls {
			n = r.IntN(3)
		}
		if !c.parallel {
			n = min(n, 1)
		}
		var after []engine.Message
		for i := range n {
			name := fmt.Sprintf("f%d", r.IntN(3))
			m.Calls = append(m.Calls, engine.Call{ID: fmt.Sprintf("call_%d", i), Name: name,
				Arguments: json.RawMessage(fmt.Sprintf(`{"z": %s, "a": [1.50, {%s: null}]}`, quote(word(r)), quote(word(r))))})
			after = append(after, engine.Message{Role: "tool", Text: word(r), CallID: fmt.Sprintf("call_%d", i), Name: name})
		}
		if n == 0 {
			after = []engine.Message{{Role: "user", Text: word(r)}}
		}
		turns, replies = append(turns, m), append(replies, after)
	}
	return open, turns, replies
}

// checkPrefix plays random conversations: the tokens so far are always the beginning of the next prompt's.
func checkPrefix(t *testing.T, c *Codec, tools []engine.Tool) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 100 {
		chat, turns, replies := conversation(r, c)
		ids, err := c.Open(tools, chat)
		require.NoError(t, err)
		for i, m := range turns {
			turn, err := c.Turn(m)
			require.NoError(t, err)
			require.True(t, slices.Contains(c.Stops(), turn[len(turn)-1]))
			require.Equal(t, 1, count(turn, c.stop))
			next, err := c.Next(true, replies[i])
			require.NoError(t, err)
			cut, err := c.Next(false, replies[i])
			require.NoError(t, err)
			require.Equal(t, append([]int32{c.stop}, next...), cut)
			ids = slices.Concat(ids, turn, next)
			chat = append(append(chat, m), replies[i]...)
			whole, err := c.Open(tools, chat)
			require.NoError(t, err)
			require.Equal(t, whole, ids)
			text, err := c.render(tools, chat, true) // and it is what the template makes of the whole
			require.NoError(t, err)
			require.Equal(t, strings.ReplaceAll(text, mark, ""), c.tok.Decode(ids))
		}
	}
}

func count(ids []int32, id int32) int {
	n := 0
	for _, i := range ids {
		if i == id {
			n++
		}
	}
	return n
}

var someTools = []engine.Tool{{Name: "f0", Description: "d", Parameters: json.RawMessage(`{"type":"object"}`)}, {Name: "f1"}}

func TestCodecPrefix(t *testing.T) {
	tok := tokenizer(t)
	for name, tpl := range map[string]*Template{"small": Small(), "chatml": ownTemplate(t, map[string]any{"keep": true, "opening": ""}),
		"thinking": ownTemplate(t, map[string]any{"keep": true, "opening": "<think>"})} {
		t.Run(name, func(t *testing.T) {
			c, err := NewCodec(tpl, tok)
			if name == "thinking" { // a turn without a thought would not begin so
				require.ErrorIs(t, err, ErrNotPrefix)
				return
			}
			require.NoError(t, err)
			require.True(t, c.calls && c.parallel)
			if name == "small" {
				checkPrefix(t, c, someTools)
			}
			checkPrefix(t, c, nil)
		})
	}
}

// What each published template promises is in the golden file.
func TestPublishedPrefix(t *testing.T) {
	f, tok := readGolden(t), tokenizer(t)
	for name, tpl := range f.Templates {
		t.Run(name, func(t *testing.T) {
			c, err := NewCodec(published(t, f, name, nil), tok)
			if p := tpl.Prefix; !p.Result || !p.Next || !p.Generate {
				require.ErrorIs(t, err, ErrNotPrefix)
				t.Log(err)
				return
			}
			require.NoError(t, err)
			require.Equal(t, name != "smollm2", c.tools && c.calls)
			require.Equal(t, name != "llama3_1", c.parallel)
			var tools []engine.Tool
			if c.tools {
				tools = someTools
			}
			checkPrefix(t, c, tools)
			if !c.parallel { // a model may still write two calls
				_, err = c.Next(true, []engine.Message{{Role: "tool", Text: "1"}, {Role: "tool", Text: "2"}})
				require.NoError(t, err)
				_, err = c.Turn(engine.Message{Role: "assistant", Calls: []engine.Call{{Name: "f0"}, {Name: "f1"}}})
				require.Error(t, err)
			}
			if !c.tools {
				_, err = c.Open(someTools, Prompt("", "x"))
				require.ErrorContains(t, err, "no tools")
				_, err = c.Turn(engine.Message{Role: "assistant", Calls: []engine.Call{{Name: "f0"}}})
				require.ErrorContains(t, err, "no calls")
			}
		})
	}
}

func TestPrefixCases(t *testing.T) {
	tok := tokenizer(t)
	t.Run("C228", func(t *testing.T) { // old thinking is dropped
		_, err := NewCodec(ownTemplate(t, map[string]any{"keep": false, "opening": ""}), tok)
		require.ErrorIs(t, err, ErrNotPrefix)
		require.ErrorContains(t, err, "<think>t</think>")
	})
	t.Run("C229", func(t *testing.T) { // sampled tokens whose text has a shorter encoding stay as they are
		c, err := NewCodec(Small(), tok)
		require.NoError(t, err)
		text := "the function"
		sampled := []int32{}
		for _, b := range []byte(text) {
			sampled = append(sampled, int32(b)) // the first 256 tokens are the bytes
		}
		require.Equal(t, text, c.Decode(append(slices.Clone(sampled), c.stop)))
		require.Less(t, len(tok.Encode(text)), len(sampled))
		open, err := c.Open(nil, Prompt("", "x"))
		require.NoError(t, err)
		next, err := c.Next(false, []engine.Message{{Role: "user", Text: "y"}})
		require.NoError(t, err)
		require.Equal(t, "<|user|>x<|end|><|assistant|>the function<|end|><|user|>y<|end|><|assistant|>", tok.Decode(slices.Concat(open, sampled, next)))
	})
	_, err := NewCodec(ownTemplate(t, map[string]any{"keep": true, "opening": "", "count": true}), tok)
	require.ErrorIs(t, err, ErrNotPrefix)
	plain, err := bpe.Train(slices.Values([]string{"no control tokens"}), 300, nil)
	require.NoError(t, err)
	_, err = NewCodec(Small(), plain)
	require.ErrorContains(t, err, "no control token")
}

// Whoever writes a text, no control token of it becomes one.
func TestControlTokens(t *testing.T) {
	tok := tokenizer(t)
	c, err := NewCodec(Small(), tok)
	require.NoError(t, err)
	added := func(ids []int32) (out []int32) {
		for _, id := range ids {
			if tok.Added(id) {
				out = append(out, id)
			}
		}
		return out
	}
	chat := func(w string) ([]int32, error) {
		q := quote(w)
		return c.Open([]engine.Tool{{Name: "f" + w, Description: w, Parameters: json.RawMessage(`{"properties":{` + q + `:{"enum":[` + q + `]}}}`)}}, []engine.Message{
			{Role: "system", Text: w}, {Role: "user", Text: w},
			{Role: "assistant", Text: w, Reasoning: w, Calls: []engine.Call{{ID: w, Name: "f" + w, Arguments: json.RawMessage(`{` + q + `:` + q + `}`)}}},
			{Role: "tool", Text: w, Name: "f" + w, CallID: w}})
	}
	harmless, err := chat("w")
	require.NoError(t, err)
	for _, w := range append(slices.Clone(control), "<|end<|end|>|>", "<<|end|>", "<|end|><|end|>", "<|e\ufdd0nd|>", strings.Join(control, "")) {
		ids, err := chat(w)
		require.NoError(t, err)
		require.Equal(t, added(harmless), added(ids), w)
		require.Contains(t, tok.Decode(ids), "<|tool|>"+strings.ReplaceAll(w, mark, "\ufffd")+"<|end|><|assistant|>")
	}
	turn, err := c.Turn(engine.Message{Role: "assistant", Text: "<|end|></think>"})
	require.NoError(t, err)
	require.Equal(t, "<|end|></think>", c.Decode(turn))
	require.Equal(t, []int32{c.stop}, added(turn))
}

// A tokenizer that normalizes finds tokens in texts that do not spell them.
func TestControlTokensNormalized(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, tokenizer(t).Write(dir))
	data, err := os.ReadFile(filepath.Join(dir, "tokenizer.json"))
	require.NoError(t, err)
	var f map[string]any
	require.NoError(t, json.Unmarshal(data, &f))
	f["normalizer"] = map[string]any{"type": "NFC"}
	list := f["added_tokens"].([]any)
	last := maps.Clone(list[len(list)-1].(map[string]any))
	last["id"], last["content"], last["normalized"], last["special"] = last["id"].(float64)+1, "<\u00e9>", true, false
	f["added_tokens"] = append(list, last)
	data, err = json.Marshal(f)
	require.NoError(t, err)
	tok, err := bpe.Read(data)
	require.NoError(t, err)
	c, err := NewCodec(Small(), tok)
	require.NoError(t, err)
	id := int32(last["id"].(float64))
	require.Equal(t, []int32{id}, tok.Encode("<e\u0301>"))
	for _, text := range []string{"<\u00e9>", "<e\u0301>", "a <e\u0301> b"} {
		ids, err := c.Next(true, []engine.Message{{Role: "tool", Text: text}})
		require.NoError(t, err)
		require.NotContains(t, ids, id, "%q", text)
	}
}

func TestCodecErrors(t *testing.T) {
	c, err := NewCodec(Small(), tokenizer(t))
	require.NoError(t, err)
	_, err = c.Open(nil, []engine.Message{{Role: "critic"}})
	require.ErrorContains(t, err, `no role "critic"`)
	_, err = c.Turn(engine.Message{Role: "user"})
	require.ErrorContains(t, err, "assistant")
	_, err = c.Next(true, []engine.Message{{Role: "assistant"}})
	require.ErrorContains(t, err, "reply")
	require.Equal(t, "", c.Decode(nil))
}

func TestChat(t *testing.T) {
	require.Equal(t, []engine.Tool{{Name: "f", Description: "d", Parameters: json.RawMessage(`{}`)}},
		Tools([]sandboxes.Tool{{Name: "f", Description: "d", InputSchema: json.RawMessage(`{}`), ReadOnly: true}}))
	require.Equal(t, []engine.Message{{Role: "system", Text: "s"}, {Role: "user", Text: "p"}}, Prompt("s", "p"))
	require.Equal(t, []engine.Message{{Role: "user", Text: "p"}}, Prompt("", "p"))
	require.Equal(t, []engine.Message{{Role: "tool", Text: "1", CallID: "a", Name: "f"}, {Role: "tool", Text: "error: no", CallID: "b", Name: "g"}},
		Replies(envs.Observation{Results: []envs.CallResult{{ID: "a", Name: "f", Text: "1"}, {ID: "b", Name: "g", Text: "no", IsError: true}}}))
	require.Equal(t, []engine.Message{{Role: "user", Text: "more"}}, Replies(envs.Observation{Text: "more"}))
	m, err := Message(envs.Action{Text: "t", Reasoning: "r", Calls: []envs.Call{{ID: "a", Name: "f"}}})
	require.NoError(t, err)
	require.Equal(t, engine.Message{Role: "assistant", Text: "t", Reasoning: "r", Calls: []engine.Call{{ID: "a", Name: "f", Arguments: json.RawMessage("{}")}}}, m)
	_, err = Message(envs.Action{Calls: []envs.Call{broken("f", "{")}})
	require.ErrorContains(t, err, "malformed")
}
