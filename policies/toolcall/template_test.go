package toolcall

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mcpgym/mcpgym/policies/engine"
)

type chatTemplates struct {
	Tools      []struct{ Function engine.Tool }
	DateString string            `json:"date_string"`
	BOS        map[string]string `json:"bos_token"`

	Conversations map[string]struct {
		Messages []struct {
			Role, Content, Name string
			Reasoning           string `json:"reasoning_content"`
			Calls               []struct {
				Function struct {
					Name      string
					Arguments json.RawMessage
				}
			} `json:"tool_calls"`
		}
		Tools    bool
		Generate bool `json:"add_generation_prompt"`
		Extra    map[string]any
	}
	Templates map[string]struct {
		SHA256     string
		Renderings map[string]*string
		Prefix     struct {
			Result   bool `json:"tool_result"`
			Next     bool `json:"next_user_turn"`
			Generate bool `json:"generation_prompt"`
		} `json:"prefix_preserving"`
	}
}

func readGolden(tb testing.TB) chatTemplates {
	data, err := os.ReadFile("testdata/chat_templates.json")
	require.NoError(tb, err)
	var f chatTemplates
	require.NoError(tb, json.Unmarshal(data, &f))
	return f
}

// files are the names of templates in the folder that testdata/fetch.sh fills, all but the last two.
var files = map[string]string{"qwen3": "qwen3", "qwen3_training": "qwen3_training", "qwen3_instruct_2507": "qwen3_instruct_2507",
	"qwen2_5": "qwen2_5", "llama3_1": "llama3_1", "lfm2": "lfm2_v2", "smollm2": "smollm2", "hermes3": "hermes3"}

// published gives a published template. It skips the test where it was not fetched, or fails it where MCPGYM_REQUIRE names
// templates.
func published(tb testing.TB, f chatTemplates, name string, vars map[string]any) *Template {
	dir := os.Getenv("MCPGYM_TEMPLATES")
	if dir == "" {
		cache, err := os.UserCacheDir()
		require.NoError(tb, err)
		dir = filepath.Join(cache, "mcpgym", "templates")
	}
	data, err := os.ReadFile(filepath.Join(dir, files[name]+".jinja"))
	optional := name == "hermes3" || name == "smollm2"
	if errors.Is(err, fs.ErrNotExist) && (optional || !slices.Contains(strings.Split(os.Getenv("MCPGYM_REQUIRE"), ","), "templates")) {
		tb.Skipf("not there, see policies/toolcall/testdata/fetch.sh: %v", err)
	}
	require.NoError(tb, err)
	sum := sha256.Sum256(data)
	require.Equal(tb, f.Templates[name].SHA256, hex.EncodeToString(sum[:]))
	all := map[string]any{"date_string": f.DateString}
	maps.Copy(all, vars)
	eos := "<|im_end|>"
	if name == "llama3_1" || name == "hermes3" {
		eos = "<|eot_id|>"
	}
	t, err := NewTemplate(string(data), Config{BOS: f.BOS[name], EOS: eos, Vars: all})
	require.NoError(tb, err)
	return t
}

// lenient are the renderings that Python refuses, for a loop over tools that are none.
var lenient = map[string]bool{"hermes3": true}

func TestPublishedTemplates(t *testing.T) {
	f := readGolden(t)
	require.Len(t, f.Templates, 8)
	for name, tpl := range f.Templates {
		t.Run(name, func(t *testing.T) {
			published(t, f, name, nil)
			require.Len(t, tpl.Renderings, 15)
			for conversation, want := range tpl.Renderings {
				c := f.Conversations[conversation]
				var tools []engine.Tool
				if c.Tools {
					for _, tool := range f.Tools {
						tools = append(tools, tool.Function)
					}
				}
				var messages []engine.Message
				for _, m := range c.Messages {
					out := engine.Message{Role: m.Role, Text: m.Content, Reasoning: m.Reasoning, Name: m.Name}
					for _, call := range m.Calls {
						out.Calls = append(out.Calls, engine.Call{Name: call.Function.Name, Arguments: call.Function.Arguments})
					}
					messages = append(messages, out)
				}
				got, err := published(t, f, name, c.Extra).Render(tools, messages, c.Generate)
				switch {
				case want != nil:
					require.NoError(t, err, conversation)
					require.Equal(t, *want, got, conversation)
				case lenient[name]:
					require.NoError(t, err, conversation)
				default:
					require.Error(t, err, conversation)
				}
			}
		})
	}
}

func render(t *testing.T, text string, c Config, messages ...engine.Message) (string, error) {
	tpl, err := NewTemplate(text, c)
	require.NoError(t, err)
	tools := []engine.Tool{{Name: "f", Description: "Does \"<é>\" & more.", Parameters: json.RawMessage(
		`{"type":"object","required":["z"],"properties":{"z":{"maximum":12345678901234567890,"default":1e5},"a":{"const":0.00001,"x":[]}}}`)}}
	return tpl.Render(tools, messages, true)
}

func TestPythonJSON(t *testing.T) {
	got, err := render(t, "{{ tools[0] | tojson }}", Config{})
	require.NoError(t, err)
	require.Equal(t, `{"type": "function", "function": {"name": "f", "description": "Does \"<é>\" & more.", "parameters": `+
		`{"type": "object", "required": ["z"], "properties": {"z": {"maximum": 12345678901234567890, "default": 100000.0}, "a": {"const": 1e-05, "x": []}}}}}`, got)
	got, err = render(t, "{{ tools[0].function.parameters.properties|tojson(indent=2) }}", Config{})
	require.NoError(t, err)
	require.Equal(t, "{\n  \"z\": {\n    \"maximum\": 12345678901234567890,\n    \"default\": 100000.0\n  },\n  \"a\": {\n    \"const\": 1e-05,\n    \"x\": []\n  }\n}", got)
	got, err = render(t, "{{ messages[0].content | tojson }}", Config{}, engine.Message{Text: "\x01\b\t\n\v\f\r\"\\/\x7f\u2028<é😀"})
	require.NoError(t, err)
	require.Equal(t, "\"\\u0001\\b\\t\\n\\u000b\\f\\r\\\"\\\\/\x7f\u2028<é😀\"", got)
	for text, want := range map[string]string{"{{ nothing | tojson }}": "not defined", "{{ tools | tojson(sort_keys=true) }}": "sort_keys",
		"{{ raise_exception('no ' + 'way') }}": "no way", "{{ strftime_now('%Y') }}": "date"} {
		_, err := render(t, text, Config{})
		require.ErrorContains(t, err, want)
	}
	for f, want := range map[float64]string{0: "0.0", 1: "1.0", 2.5: "2.5", 1e15: "1000000000000000.0", 1e16: "1e+16", 1e-4: "0.0001", 1e-5: "1e-05",
		-1.5e300: "-1.5e+300", 0.1: "0.1", 123456789.125: "123456789.125"} {
		require.Equal(t, want, pythonFloat(f))
	}
}

// White space as Jinja 3.1.6 leaves it with trim_blocks and lstrip_blocks.
func TestWhiteSpace(t *testing.T) {
	for text, want := range map[string]string{
		"a{% if true %}{{ 1 }}\n{% endif %}\n\n  {% if true %}x{% endif %}  \n y":                        "a1\n\nx  \n y",
		"{% for m in messages %}{{ m.role }}\n{% endfor %}end\n":                                         "user\nend",
		"  {%- if true %} z {%- endif -%}  \n {{ \"\\\"\" }}q\\n\"'\n":                                   " z\"q\\n\"'",
		"{# c #}\n  {# d #} x\n  {%+ if true +%}\n  k{% endif %}\t\n":                                    " x\n  \n  k\t",
		"{{ \"%}\" }}{{ messages[0].content -}}   w  {{- 1 }} {% set a %} {{ 2 }} {% endset %}[{{ a }}]": "%}Hi!w1 [ 2 ]",
		"text {{ 1 }}{%- if true -%}{{ 2 }} more{% endif %}":                                             "text 12 more",
		"{% raw %}{{ a }}{% endraw %}":                                                                   "{{ a }}",
	} {
		got, err := render(t, text, Config{}, engine.Message{Role: "user", Text: "Hi!"})
		require.NoError(t, err, "%q", text)
		require.Equal(t, want, got, "%q", text)
	}
	for _, text := range []string{"{{ 'a }}", "{% if x", "{# never"} {
		_, err := NewTemplate(text, Config{})
		require.ErrorContains(t, err, "compile chat template", "%q", text)
	}
}

func TestTemplateContext(t *testing.T) {
	c := Config{BOS: "<s>", EOS: "</s>", Vars: map[string]any{"on": true, "n": 3}, Now: time.Date(2024, 7, 6, 15, 4, 5, 0, time.UTC)}
	got, err := render(t, "{{ bos_token }}{% if on is true %}{{ n + 1 }}{% endif %}\r\n\r\n{{ strftime_now('%d %b %Y %H%% %q') }}{{ eos_token }}"+
		"{% for m in messages %}{{ m.role }}{{ m.reasoning_content is defined }}{{ m.tool_calls is defined }}{{ m.name }}{{ m.tool_call_id }}{% endfor %}",
		c, engine.Message{Role: "tool", Name: "f", CallID: "c1"})
	require.NoError(t, err)
	require.Equal(t, "<s>4\n06 Jul 2024 15% %q</s>toolFalseFalsefc1", got)
	_, err = NewTemplate("{% if %}", c)
	require.ErrorContains(t, err, "chat template")
	_, err = render(t, "x", c, engine.Message{Role: "assistant", Calls: []engine.Call{{Name: "f", Arguments: json.RawMessage(`{"a":1,"a":2}`)}}})
	require.ErrorContains(t, err, "arguments of f")
}

func TestReadTemplate(t *testing.T) {
	for name, c := range map[string]struct{ config, jinja, want string }{
		"text":    {config: `{"chat_template":"{{ bos_token }}1","bos_token":"<s>","eos_token":null}`, want: "<s>1"},
		"list":    {config: `{"chat_template":[{"name":"tool_use","template":"T"},{"name":"default","template":"D"}]}`, want: "T"},
		"default": {config: `{"chat_template":[{"name":"other","template":"O"},{"name":"default","template":"D"}]}`, want: "D"},
		"file":    {config: `{"chat_template":"old","eos_token":{"content":"</s>"}}`, jinja: "{{ eos_token }}", want: "</s>"},
		"none":    {config: `{}`},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			require.NoError(t, os.WriteFile(filepath.Join(dir, "tokenizer_config.json"), []byte(c.config), 0o600))
			if c.jinja != "" {
				require.NoError(t, os.WriteFile(filepath.Join(dir, "chat_template.jinja"), []byte(c.jinja), 0o600))
			}
			tpl, err := ReadTemplate(dir, Config{})
			if c.want == "" {
				require.ErrorContains(t, err, "no chat template")
				return
			}
			require.NoError(t, err)
			got, err := tpl.Render(nil, nil, false)
			require.NoError(t, err)
			require.Equal(t, c.want, got)
		})
	}
	_, err := ReadTemplate(t.TempDir(), Config{})
	require.ErrorIs(t, err, fs.ErrNotExist)
}

func TestSmall(t *testing.T) {
	tools := []engine.Tool{{Name: "f", Description: "Does it.", Parameters: json.RawMessage(`{"type": "object"}`)}, {Name: "g"}}
	chat := []engine.Message{{Role: "system", Text: "Be brief."}, {Role: "user", Text: "Go."},
		{Role: "assistant", Text: "so", Reasoning: "hm", Calls: []engine.Call{{Name: "f", Arguments: json.RawMessage(`{"b": 1, "a": "x"}`)}, {Name: "g"}}},
		{Role: "tool", Text: "1"}, {Role: "tool", Text: "2"}}
	got, err := Small().Render(tools, chat, true)
	require.NoError(t, err)
	said := `<think>hm</think>so<tool_call>f{"b":1,"a":"x"}</tool_call><tool_call>g{}</tool_call>`
	require.Equal(t, `<|system|>f g<|end|><|user|>Go.<|end|><|assistant|>`+
		said+`<|end|><|tool|>1<|end|><|tool|>2<|end|><|assistant|>`, got)
	turn := Reader{}.Read(said)
	require.Equal(t, "so hm 0", strings.Join([]string{turn.Text, turn.Reasoning, "0"}, " "))
	require.Equal(t, `{"b":1,"a":"x"}`, string(turn.Calls[0].Arguments))
	require.Equal(t, "g", turn.Calls[1].Name)
	for from, want := range []string{"<|system|>Be brief.<|end|><|user|>Go.<|end|><|assistant|>", "<|user|>Go.<|end|><|assistant|>"} {
		got, err = Small().Render(nil, chat[from:2], true)
		require.NoError(t, err)
		require.Equal(t, want, got)
	}
	_, err = Small().Render(nil, []engine.Message{{Role: "critic"}}, true)
	require.ErrorContains(t, err, "no role critic")
}
