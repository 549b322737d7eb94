package toolcall

import (
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mcpgym/mcpgym/envs"
	"github.com/mcpgym/mcpgym/policies/engine"
	"github.com/mcpgym/mcpgym/sandboxes/casetest"
)

func TestCases(t *testing.T) {
	for _, kind := range []string{"hermes", "qwen-xml"} {
		t.Run(kind, func(t *testing.T) {
			casetest.Run(t, kind, func(t *testing.T, c casetest.Case) {
				var context struct {
					Open  bool `json:"thinking_open"`
					Tools []engine.Tool
				}
				if c.Context != "" {
					require.NoError(t, json.Unmarshal([]byte(c.Context), &context))
				}
				turn := Reader{context.Open, context.Tools}.Read(c.Input)
				calls := []map[string]any{}
				for _, call := range turn.Calls {
					require.True(t, (call.Malformed == "") == (call.Arguments != nil), "%+v", call)
					if call.Malformed == "" {
						calls = append(calls, map[string]any{"name": call.Name, "arguments": call.Arguments})
					}
				}
				c.Check(t, map[string]any{"calls": calls, "malformed": turn.Malformed, "in_reasoning": turn.InReasoning,
					"unclosed": turn.Unclosed, "bare_json": len(turn.Bare)})
			})
		})
	}
}

func call(name, args string) envs.Call {
	return envs.Call{Name: name, Arguments: json.RawMessage(args)}
}

func broken(name, text string) envs.Call { return envs.Call{Name: name, Malformed: text} }

func TestRead(t *testing.T) {
	for _, c := range []struct {
		text   string
		reader Reader
		want   Turn
	}{
		{text: "", want: Turn{}},
		{text: " plain <b>text</b> a<b ", want: Turn{Action: envs.Action{Text: "plain <b>text</b> a<b"}}},
		{text: "<think>\nwhy\n</think>\n\nso\n<tool_call>\n{\"name\": \"f\", \"arguments\": {\"b\": 1, \"a\": 2}}\n</tool_call>\nthen",
			want: Turn{Action: envs.Action{Text: "so\n\nthen", Reasoning: "why", Calls: []envs.Call{call("f", `{"b": 1, "a": 2}`)}}}},
		{text: `<tool_call>f{"a":"</tool_call>"}</tool_call><tool_call>g {}</tool_call>`,
			want: Turn{Action: envs.Action{Calls: []envs.Call{call("f", `{"a":"</tool_call>"}`), call("g", "{}")}}}},
		{text: "<tool_call>f{a}</tool_call>", want: Turn{Action: envs.Action{Calls: []envs.Call{broken("f", "f{a}")}}, Malformed: 1}},
		{text: `<tool_call>f{"a":1,"A":2}</tool_call>`, want: Turn{Action: envs.Action{Calls: []envs.Call{broken("f", `f{"a":1,"A":2}`)}}, Malformed: 1}},
		{text: "<tool_call> </tool_call>", want: Turn{Action: envs.Action{Calls: []envs.Call{broken("", "<tool_call></tool_call>")}}, Malformed: 1}},
		{text: `<tool_call>{"name":"f"} and more</tool_call>x`, want: Turn{Malformed: 1,
			Action: envs.Action{Text: "x", Calls: []envs.Call{broken("f", `{"name":"f"} and more`)}}}},
		{text: `<tool_call>{"name":"f","arguments":[]}</tool_call>`, want: Turn{Malformed: 1,
			Action: envs.Action{Calls: []envs.Call{broken("f", `{"name":"f","arguments":[]}`)}}}},
		{text: `<tool_call>{"name":"f","arguments":"[]"}</tool_call>`, want: Turn{Malformed: 1,
			Action: envs.Action{Calls: []envs.Call{broken("f", `{"name":"f","arguments":"[]"}`)}}}},
		{text: `<tool_call>{"name":"f"}<tool_call>{"name":"g"}</tool_call>`, want: Turn{Unclosed: 1,
			Action: envs.Action{Calls: []envs.Call{broken("f", `<tool_call>{"name":"f"}`), call("g", "{}")}}}},
		{text: "<tool_call>{'name': 'f', 'arguments': '<tool_call>{\"name\":\"g\"}</tool_call>'}", want: Turn{Malformed: 1,
			Action: envs.Action{Text: "'}", Calls: []envs.Call{broken("f", "{'name': 'f', 'arguments': '<tool_call>{\"name\":\"g\"}")}}}},
		{text: `<tool_call>{"name":"f","name":"</tool_call><tool_call>{\"name\":\"g\"}</tool_call>"}</tool_call>`, want: Turn{Malformed: 1, // g is text
			Action: envs.Action{Calls: []envs.Call{broken("f", `{"name":"f","name":"</tool_call><tool_call>{\"name\":\"g\"}</tool_call>"}`)}}}},
		{text: `<tool_call>{"name":"f","arguments":{"x":"</tool_call><tool_call>g{}</tool_call>"}} so</tool_call>`, want: Turn{Malformed: 1, // g is text
			Action: envs.Action{Calls: []envs.Call{broken("f", `{"name":"f","arguments":{"x":"</tool_call><tool_call>g{}</tool_call>"}} so`)}}}},
		{text: "<think>cut <tool_call>{}</tool_call>", want: Turn{Action: envs.Action{Reasoning: "cut <tool_call>{}</tool_call>"}, InReasoning: 1}},
		{text: "cut", reader: Reader{Thinking: true}, want: Turn{Action: envs.Action{Reasoning: "cut"}}},
		{text: "<think>a</think>b<think>c</think>", want: Turn{Action: envs.Action{Text: "b", Reasoning: "a\nc"}}},
		{text: `{"name": "Ada"}`, want: Turn{Action: envs.Action{Text: `{"name": "Ada"}`}}}, // an answer
		{text: `{"name":"f","parameters":{"a":1}} {"name":"g","arguments":{}}`, want: Turn{Bare: []envs.Call{call("f", `{"a":1}`), call("g", "{}")},
			Action: envs.Action{Text: `{"name":"f","parameters":{"a":1}} {"name":"g","arguments":{}}`}}},
		{text: "<tool_call><function=f><parameter=a>x</parameter><parameter=a>y</parameter></function></tool_call>", want: Turn{Malformed: 1,
			Action: envs.Action{Calls: []envs.Call{broken("f", "<function=f><parameter=a>x</parameter><parameter=a>y</parameter></function>")}}}},
		{text: "<tool_call><function=f><parameter=a></tool_call></parameter>", want: Turn{Unclosed: 1,
			Action: envs.Action{Calls: []envs.Call{broken("f", "<tool_call><function=f><parameter=a></tool_call></parameter>")}}}},
	} {
		require.Equal(t, c.want, c.reader.Read(c.text), "%q", c.text)
	}
}

func TestXMLTypes(t *testing.T) {
	r := Reader{Tools: []engine.Tool{{Name: "f", Parameters: json.RawMessage(`{"properties":{"v":{"anyOf":[{"type":"integer"},{"type":"null"}]},
		"b":{"type":"boolean"},"o":{"type":"object"},"l":{"type":"array"},"n":{"type":"number"},"s":{"type":["string","null"]}}}`)}}}
	for _, c := range [][3]string{
		{"v", "7", "7"}, {"v", "null", "null"}, {"v", "7.5", `"7.5"`}, {"v", "seven", `"seven"`}, {"b", "True", "true"}, {"b", "1", `"1"`},
		{"o", `{"z":1,"a":2}`, `{"z":1,"a":2}`}, {"o", `{"z":1,"z":2}`, `"{\"z\":1,\"z\":2}"`}, {"l", "[1]", "[1]"}, {"n", "1e400", "1e400"},
		{"s", "1", `"1"`}, {"s", "null", "null"}, {"other", "1", `"1"`}, {"n", "2033735037361704962", "2033735037361704962"},
	} {
		turn := r.Read(fmt.Sprintf("<tool_call>\n<function=f>\n<parameter=%s>\n%s\n</parameter>\n</function>\n</tool_call>", c[0], c[1]))
		require.Len(t, turn.Calls, 1)
		require.Equal(t, fmt.Sprintf(`{%q:%s}`, c[0], c[2]), string(turn.Calls[0].Arguments), "%v", c)
	}
}

// What real models wrote when they were given two tools.
func TestModelOutputs(t *testing.T) {
	data, err := os.ReadFile("testdata/model_outputs.json")
	require.NoError(t, err)
	var f struct {
		Coder struct{ Rows []struct{ Content string } } `json:"qwen2_5_coder_0_5b"`
		Smol  struct{ Rows []struct{ Content string } } `json:"smollm2_135m"`
		Shots struct {
			Rows []struct {
				Text  string
				Shots int
			}
		} `json:"smollm2_135m_few_shot"`
	}
	require.NoError(t, json.Unmarshal(data, &f))
	bare := 0
	for _, r := range f.Coder.Rows { // never tags, mostly JSON
		turn := Reader{}.Read(r.Content)
		require.Empty(t, turn.Calls, r.Content)
		if len(turn.Bare) > 0 {
			bare++
			require.NotEmpty(t, turn.Lenient().Calls)
			require.Empty(t, turn.Lenient().Text)
		}
	}
	require.Equal(t, 16, bare)
	for _, r := range f.Smol.Rows { // prose
		turn := Reader{}.Read(r.Content)
		require.Equal(t, strings.TrimSpace(r.Content), turn.Lenient().Text)
	}
	good, malformed, unclosed := map[int]int{}, 0, 0
	for _, r := range f.Shots.Rows {
		turn := Reader{}.Read(r.Text)
		for _, c := range turn.Calls {
			if c.Malformed == "" {
				good[r.Shots]++
			}
		}
		malformed += turn.Malformed
		unclosed += turn.Unclosed
	}
	require.Equal(t, map[int]int{1: 11, 2: 11, 4: 17}, good)
	require.Equal(t, [2]int{0, 3}, [2]int{malformed, unclosed})
}

func TestHostileText(t *testing.T) {
	const size = 1 << 20
	for _, unit := range []string{callStart, callEnd, thinkStart, "<", callStart + callEnd, callStart + `{"`, callStart + `{"a":"`, callStart + `[",","`,
		callStart + `{"a":"` + callEnd, callStart + "{" + callEnd, "{", "[", callStart + "f{", callStart + "<function=f><parameter=a>" + callEnd,
		callStart + "<function=f>", "```json\n{\"name\":\"f\",", "```\n", thinkStart + callStart + thinkEnd, callStart + `{"a":[`, "a"} {
		for _, text := range []string{strings.Repeat(unit, size/len(unit)), callStart + `{"a":` + strings.Repeat(unit, size/len(unit)) + `"}` + callEnd + parameterEnd} {
			start := time.Now()
			turn := Reader{}.Read(text)
			require.Less(t, time.Since(start), 15*time.Second, "%q", unit)
			written := len(turn.Text) + len(turn.Reasoning)
			for _, c := range turn.Calls {
				written += len(c.Malformed) + len(c.Arguments)
			}
			require.LessOrEqual(t, written, len(text)+len(turn.Calls)*len(callStart+callEnd))
		}
	}
}

func FuzzRead(f *testing.F) {
	cases, err := casetest.Load()
	require.NoError(f, err)
	for _, c := range cases {
		if c.Kind == "hermes" || c.Kind == "qwen-xml" {
			f.Add(c.Input, false)
		}
	}
	tools := []engine.Tool{{Name: "f", Parameters: json.RawMessage(`{"properties":{"a":{"type":["integer","object"]}}}`)}}
	f.Fuzz(func(t *testing.T, text string, thinking bool) {
		turn := Reader{thinking, tools}.Read(text)
		bad := 0
		for _, c := range append(turn.Calls, turn.Bare...) {
			if c.Malformed != "" {
				require.Nil(t, c.Arguments)
				bad++
				continue
			}
			require.NotEmpty(t, c.Name)
			v, err := envs.DecodeJSON(c.Arguments)
			require.NoError(t, err)
			require.IsType(t, map[string]any{}, v)
		}
		require.Equal(t, bad, turn.Malformed+turn.Unclosed)
	})
}
