package envs

import (
	"encoding/json"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"

	"github.com/mcpgym/mcpgym/sandboxes"
	"github.com/mcpgym/mcpgym/sandboxes/casetest"
)

// compile makes a toolset of one tool.
func compile(t *testing.T, input, output string) *compiledTool {
	t.Helper()
	tool := sandboxes.Tool{Name: "tool", InputSchema: json.RawMessage(input)}
	if output != "" {
		tool.OutputSchema = json.RawMessage(output)
	}
	ts, err := compileTools([]sandboxes.Tool{tool})
	require.NoError(t, err)
	return ts.byName["tool"]
}

func TestCompileToolsRefuses(t *testing.T) {
	ok := json.RawMessage(`{"type":"object"}`)
	for _, c := range []struct {
		name, want string
		tools      []sandboxes.Tool
	}{
		{"a tool without a name", "without a name", []sandboxes.Tool{{InputSchema: ok}}},
		{"a name twice", "two tools named get", []sandboxes.Tool{{Name: "get", InputSchema: ok}, {Name: "get", InputSchema: ok}}},
		{"no schema", "input schema of get", []sandboxes.Tool{{Name: "get"}}},
		{"a schema that is no schema", "input schema of get", []sandboxes.Tool{{Name: "get", InputSchema: json.RawMessage(`{"type":"objekt"}`)}}},
		{"an output schema that is no schema", "output schema of get", []sandboxes.Tool{{Name: "get", InputSchema: ok, OutputSchema: json.RawMessage(`[]`)}}},
		{"a reference to a file", "is not followed", []sandboxes.Tool{{Name: "get", InputSchema: json.RawMessage(`{"$ref":"file:///etc/passwd"}`)}}},
		{"a reference to an address", "is not followed", []sandboxes.Tool{{Name: "get", InputSchema: json.RawMessage(`{"$ref":"http://localhost/x.json"}`)}}},
		{"a reference to nothing", "input schema of get", []sandboxes.Tool{{Name: "get", InputSchema: json.RawMessage(`{"$ref":"#/$defs/none"}`)}}},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := compileTools(c.tools)
			require.ErrorContains(t, err, c.want)
		})
	}
}

func TestUnknownToolNamesTheNearestFirst(t *testing.T) {
	var list []sandboxes.Tool
	for _, name := range []string{"add", "get_weather", "zap", "get_whether"} {
		list = append(list, sandboxes.Tool{Name: name, InputSchema: json.RawMessage(`{}`)})
	}
	ts, err := compileTools(list)
	require.NoError(t, err)
	require.Equal(t, `there is no tool "get_whethr"; the tools are: get_whether, get_weather, add, zap`, ts.unknownTool("get_whethr"))
	long := ts.unknownTool(strings.Repeat("é", 1e6))
	require.Less(t, len(long), 1000)
	require.True(t, utf8.ValidString(long))
}

func TestCheckArguments(t *testing.T) {
	const city = `{"type":"object","properties":{"city":{"type":"string","minLength":1},"days":{"type":"integer","maximum":7}},"required":["city"],"additionalProperties":false}`
	const open = `{"type":"object","properties":{"city":{"type":"string"}}}`
	for _, c := range []struct {
		name, schema, args string
		status             Status
		text               string // part of what the agent is told
		unknown, missing   []string
	}{
		{"fitting", city, `{"city":"Oslo","days":3}`, StatusOK, "", nil, nil},
		{"whole number with a point", city, `{"city":"Oslo","days":3.0}`, StatusOK, "", nil, nil},
		{"a list", city, `["Oslo"]`, StatusMalformed, "must be one JSON object", nil, nil},
		{"null", city, `null`, StatusMalformed, "must be one JSON object", nil, nil},
		{"a text that holds an object", city, `"{\"city\":\"Oslo\"}"`, StatusMalformed, "must be one JSON object", nil, nil},
		{"nothing that is required", city, `{}`, StatusInvalid, "at the top: missing property 'city'", nil, []string{"city"}},
		{"wrong types", city, `{"city":5,"days":"3"}`, StatusInvalid, "at /city: got number, want string; at /days: got string, want integer", nil, nil},
		{"over a bound", city, `{"city":"Oslo","days":8}`, StatusInvalid, "at /days: maximum: got 8, want 7", nil, nil},
		{"over a bound, immensely", city, `{"city":"Oslo","days":1e999}`, StatusInvalid, "at /days", nil, nil},
		{"invented parameters", city, `{"city":"Oslo","unit":"C","limit":5}`, StatusInvalid, "it takes: city, days", []string{"limit", "unit"}, nil},
		{"invented parameters where extras are legal", open, `{"city":"Oslo","unit":"C","limit":5}`, StatusOK, "", []string{"limit", "unit"}, nil},
		{"invented, wrong and missing", city, `{"unit":"C","days":"x"}`, StatusInvalid, "at /days", []string{"unit"}, []string{"city"}},
		{"missing in every form", `{"anyOf":[{"required":["a"]},{"required":["a","b"]}]}`, `{}`, StatusInvalid, "invalid arguments of tool: at the top: missing properties 'a', 'b'; at the top: missing property 'a'", nil, []string{"a", "b"}},
		{"missing in two forms alike", `{"anyOf":[{"required":["a"]},{"required":["a"],"minProperties":0}]}`, `{}`, StatusInvalid, "invalid arguments of tool: at the top: missing property 'a'", nil, []string{"a"}},
		{"named by a reference", `{"$ref":"#/$defs/q","$defs":{"q":{"properties":{"city":{}}}}}`, `{"city":1,"x":2}`, StatusOK, "", []string{"x"}, nil},
		{"named by one of several forms", `{"anyOf":[{"properties":{"a":{}},"required":["a"]},{"allOf":[{"properties":{"b":{}}}]}],"oneOf":[{"properties":{"c":{}}}]}`,
			`{"a":1,"b":2,"c":3,"d":4}`, StatusOK, "", []string{"d"}, nil},
		{"named by a condition", `{"if":{"properties":{"a":{}}},"then":{"properties":{"b":{}}},"else":{"properties":{"c":{}}},"dependentSchemas":{"a":{"properties":{"d":{}}}}}`,
			`{"a":1,"b":2,"c":3,"d":4,"e":5}`, StatusOK, "", []string{"e"}, nil},
		{"named by its form", `{"patternProperties":{"^x_":{"type":"string"}}}`, `{"x_1":"a","y":"b"}`, StatusOK, "", []string{"y"}, nil},
		{"a schema that refers to itself", `{"properties":{"and":{"$ref":"#"},"a":{}},"anyOf":[{"$ref":"#/$defs/q"}],"$defs":{"q":{"anyOf":[true,{"$ref":"#/$defs/q"}]}}}`, `{"and":{"a":1},"b":1}`, StatusOK, "", []string{"b"}, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := compile(t, c.schema, "").check(decode(t, c.args))
			require.Equal(t, c.status, got.status, got.text)
			require.Contains(t, got.text, c.text)
			require.Equal(t, c.text == "", got.text == "", got.text)
			require.Equal(t, c.unknown, got.unknown)
			require.Equal(t, c.missing, got.missing)
		})
	}
}

func decode(t *testing.T, text string) any {
	t.Helper()
	v, err := DecodeJSON([]byte(text))
	require.NoError(t, err)
	return v
}

// What an agent is told must not depend on the order of a map.
func TestCheckArgumentsIsDeterministic(t *testing.T) {
	tool := compile(t, `{"properties":{"a":{"type":"string"},"b":{"type":"string"},"c":{"type":"string"}},"required":["x","y"],"additionalProperties":false}`, "")
	args := decode(t, `{"a":1,"b":2,"c":3,"q":4,"p":5}`)
	want := tool.check(args)
	for range 50 {
		require.Equal(t, want, tool.check(args))
	}
}

func TestCheckResult(t *testing.T) {
	const schema = `{"type":"object","properties":{"n":{"type":"integer"}},"required":["n"]}`
	for _, c := range []struct {
		name, output string
		result       sandboxes.Result
		status       Status
		defect       string // part of it
	}{
		{"text", "", sandboxes.Result{Text: "ok"}, StatusOK, ""},
		{"an error of the tool", schema, sandboxes.Result{Text: "no", IsError: true}, StatusToolError, ""},
		{"a defect of the server", "", sandboxes.Result{Text: "", IsError: true, Defect: "item without type"}, StatusDefect, "item without type"},
		{"a defect that leaves a result", "", sandboxes.Result{Text: "a\ufffd", Defect: "text is not UTF-8"}, StatusOK, "text is not UTF-8"},
		{"fitting structure", schema, sandboxes.Result{Text: `{"n":1}`, Structured: json.RawMessage(`{"n":1.0}`)}, StatusOK, ""},
		{"prose beside it", schema, sandboxes.Result{Text: `n is one`, Structured: json.RawMessage(`{"n":1}`)}, StatusOK, ""},
		{"a single value written out bare", schema, sandboxes.Result{Text: `1`, Structured: json.RawMessage(`{"n":1}`)}, StatusOK, ""},
		{"a single value, another", schema, sandboxes.Result{Text: `2`, Structured: json.RawMessage(`{"n":1}`)}, StatusOK, "differ"},
		{"structure that differs", "", sandboxes.Result{Text: `{"n":2}`, Structured: json.RawMessage(`{"n":1}`)}, StatusOK, "differ"},
		{"structure that does not fit", schema, sandboxes.Result{Text: `{"n":"1"}`, Structured: json.RawMessage(`{"n":"1"}`)}, StatusOK, "violates the output schema: at /n: got string, want integer"},
		{"structure that cannot be read", "", sandboxes.Result{Text: `x`, Structured: json.RawMessage(`{"n":1,"n":1}`)}, StatusOK, "structured content: "},
		{"no structure", schema, sandboxes.Result{Text: `1`}, StatusOK, "no structured content"},
		{"volatile", "", sandboxes.Result{Text: "12:00", Volatile: true}, StatusOK, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := compile(t, `{}`, c.output).checkResult(c.result, 1000)
			require.Equal(t, c.status, got.Status)
			require.Contains(t, got.Defect, c.defect)
			require.Equal(t, c.defect == "", got.Defect == "", got.Defect)
			require.Equal(t, c.result.Text, got.Text)
			require.Equal(t, c.result.IsError, got.IsError)
			require.Equal(t, c.result.Volatile, got.Volatile)
			require.Zero(t, got.Bytes)
		})
	}
}

func TestCasesArgsValidate(t *testing.T) {
	casetest.Run(t, "args-validate", func(t *testing.T, c casetest.Case) {
		var in struct{ Schema, Arguments json.RawMessage }
		c.In(t, &in)
		tool := compile(t, string(in.Schema), "")
		args := decode(t, string(in.Arguments))
		check := tool.check(args)
		got := map[string]any{"valid": check.status == StatusOK, "unknown": append([]string{}, check.unknown...), "missing": append([]string{}, check.missing...)}

		// The same call in an episode.
		e := Env{spec: Spec{Limits: Limits{Calls: 1, ResultBytes: 1000}}, ts: &toolset{byName: map[string]*compiledTool{"tool": tool}}}
		r, sent := e.prepare(Call{Name: "tool", Arguments: in.Arguments}, args)
		require.Equal(t, check.status == StatusOK, sent != nil)
		if sent == nil && r.IsError {
			got["as"] = "isError result"
		}
		c.Check(t, got)
	})
}

func TestCasesToolResult(t *testing.T) {
	casetest.Run(t, "tool-result", func(t *testing.T, c casetest.Case) {
		var context struct{ OutputSchema json.RawMessage }
		if c.Context != "" {
			require.NoError(t, json.Unmarshal([]byte(c.Context), &context))
		}
		r := compile(t, `{}`, string(context.OutputSchema)).checkResult(sandboxes.DecodeResult(json.RawMessage(c.Input)), 1<<30)
		got := map[string]any{"tool_failed": r.IsError, "fault": "", "text": r.Text, "mismatch": strings.Contains(r.Defect, "differ")}
		switch {
		case r.Defect != "":
			got["fault"] = "server"
		case r.IsError:
			got["fault"] = "tool"
		}
		var want struct {
			Contains []string `json:"text_contains"`
		}
		require.NoError(t, json.Unmarshal([]byte(c.Want), &want))
		found := []string{}
		for _, part := range want.Contains {
			if strings.Contains(r.Text, part) {
				found = append(found, part)
			}
		}
		got["text_contains"] = found
		c.Check(t, got)
	})
}

func TestCasesToolResultSize(t *testing.T) {
	marked := regexp.MustCompile(`\n\[cut: the result has (\d+) bytes, .*\]$`)
	casetest.Run(t, "tool-result-size", func(t *testing.T, c casetest.Case) {
		var in struct {
			TextBytes int `json:"text_bytes"`
			Limit     int
		}
		c.In(t, &in)
		var want struct {
			AtMost int `json:"text_bytes_at_most"`
		}
		require.NoError(t, json.Unmarshal([]byte(c.Want), &want))
		for _, letter := range []string{"x", "é", "€", "😀"} { // a cut must not halve one
			text := strings.Repeat(letter, in.TextBytes/len(letter)) + strings.Repeat("x", in.TextBytes%len(letter))
			raw, err := json.Marshal(map[string]any{"content": []any{map[string]any{"type": "text", "text": text}}})
			require.NoError(t, err)
			r := compile(t, `{}`, "").checkResult(sandboxes.DecodeResult(raw), in.Limit)
			require.True(t, utf8.ValidString(r.Text))
			require.Equal(t, StatusOK, r.Status)
			got := map[string]any{"text_bytes_at_most": max(len(r.Text), want.AtMost), "marked_truncated": r.Bytes > 0}
			if m := marked.FindStringSubmatch(r.Text); m != nil {
				stated, err := strconv.Atoi(m[1])
				require.NoError(t, err)
				got["original_size_stated"] = stated
				require.Equal(t, stated, r.Bytes)
				require.Greater(t, len(r.Text), in.Limit-4, "no more is cut than need be")
			} else {
				require.Equal(t, text, r.Text)
			}
			c.Check(t, got)
		}
	})
}

func TestResultAtTheLimit(t *testing.T) {
	tool := compile(t, `{}`, "")
	whole := strings.Repeat("x", 200)
	require.Equal(t, whole, tool.checkResult(sandboxes.Result{Text: whole}, 200).Text)
	cut := tool.checkResult(sandboxes.Result{Text: whole + "x"}, 200)
	require.Len(t, cut.Text, 200)
	require.Equal(t, 201, cut.Bytes)
	// The smallest limit that a Spec may have still holds the mark of the largest result.
	cut = tool.checkResult(sandboxes.Result{Text: strings.Repeat("x", 1e7)}, 100)
	require.LessOrEqual(t, len(cut.Text), 100)
	require.Contains(t, cut.Text, fmt.Sprint(int(1e7)))
}

// FuzzDecodeResult holds that no result of a server can make the agent's view of it invalid.
func FuzzDecodeResult(f *testing.F) {
	for _, seed := range []string{`{"content":[{"type":"text","text":"hi"}]}`, `{"content":[{"type":"image"}],"isError":true}`, `null`, `{"content":[{"type":"resource","resource":{"uri":"a"}}],"structuredContent":{"a":1}}`} {
		f.Add([]byte(seed))
	}
	ts, err := compileTools([]sandboxes.Tool{{Name: "tool", InputSchema: json.RawMessage(`{}`), OutputSchema: json.RawMessage(`{"type":"object"}`)}})
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		r := ts.byName["tool"].checkResult(sandboxes.DecodeResult(data), 100)
		if !utf8.ValidString(r.Text) || len(r.Text) > 100 {
			t.Fatalf("%q is shown as %q", data, r.Text)
		}
	})
}
