package rewards

import (
	"encoding/json"
	"slices"
	"strings"

	"golang.org/x/text/cases"
	"golang.org/x/text/language"

	"github.com/mcpgym/mcpgym/envs"
)

// The values of the founding note's formula.
const (
	foundingBroken       = 0.1  // a call that is not JSON
	foundingInvented     = -0.5 // a tool that does not exist; replaces all else
	foundingCall         = 0.6  // 0.3 for the syntax and 0.3 for a known tool
	foundingWithExpected = 1.0  // and 0.4 for the expected word in the query
)

// FoundingText is the reward of the project's founding note for one completion. It looks at the first
// <tool_call>{json}</tool_call> of the text and at nothing after it:
//
//	no closed call                                        0
//	what stands between the tags is not JSON              0.1
//	the member name is absent or none of tools           -0.5
//	a known tool                                          0.6
//	and arguments.sql holds expected, in any case         1
//
// Names of members and tools are compared exactly, and of members that are repeated the last counts.
//
// It is a column to compare with, never a reward of the board: it pays for a word in a query that need not have run.
//
// The note's own program raises an exception on four forms, which score here:
//
//	a call that is JSON but no object     0.1, as what cannot be read as a call
//	arguments is null                     0.6, as without arguments
//	arguments is no object (text, say)    0.6, as without arguments
//	sql is no text (a number, say)        0.6, as without sql
//
// The words NaN and Infinity, which that program's reader takes for numbers, are not JSON here.
func FoundingText(completion string, tools []string, expected string) float64 {
	_, rest, _ := strings.Cut(completion, "<tool_call>")
	body, _, closed := strings.Cut(rest, "</tool_call>")
	if !closed {
		return 0
	}
	return foundingBody(body, tools, expected)
}

// Founding is FoundingText for a trajectory: the score of the first call of its first turn, 0 where that turn makes none.
// Later turns do not count, since the note scores one completion. What the calls have shown, and how they ended, does not
// count either.
func Founding(t *envs.Trajectory, tools []string, expected string) float64 {
	if len(t.Steps) == 0 || len(t.Steps[0].Action.Calls) == 0 {
		return 0
	}
	c := t.Steps[0].Action.Calls[0]
	args := c.Arguments
	if c.Malformed != "" {
		if c.Name == "" { // the text of the whole call
			return foundingBody(c.Malformed, tools, expected)
		}
		if args = []byte(c.Malformed); !json.Valid(args) { // envs refuses more than JSON does
			return foundingBroken
		}
	}
	return foundingNamed(c.Name, args, tools, expected)
}

// foundingBody scores what stands between the tags.
func foundingBody(body string, tools []string, expected string) float64 {
	call := members([]byte(body)) // a map, since fields of a struct match names in any case
	if call == nil {
		return foundingBroken
	}
	name, _ := jsonText(call["name"])
	return foundingNamed(name, call["arguments"], tools, expected)
}

func foundingNamed(name string, args json.RawMessage, tools []string, expected string) float64 {
	if !slices.Contains(tools, name) {
		return foundingInvented
	}
	// Lower case as the Unicode standard has it: package strings maps a dotted capital I to a plain i.
	lower := cases.Lower(language.Und)
	if sql, ok := jsonText(members(args)["sql"]); ok && strings.Contains(lower.String(sql), lower.String(expected)) {
		return foundingWithExpected
	}
	return foundingCall
}

// members reads an object, of repeated members the last. Anything else gives nil.
func members(data []byte) map[string]json.RawMessage {
	var m map[string]json.RawMessage
	if json.Unmarshal(data, &m) != nil {
		return nil
	}
	return m
}

// jsonText reads a text; ok is false where the value is absent, null or of another kind.
func jsonText(data json.RawMessage) (text string, ok bool) {
	var s *string
	if json.Unmarshal(data, &s) != nil || s == nil {
		return "", false
	}
	return *s, true
}
