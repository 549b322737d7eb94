package rewards_test

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/mcpgym/mcpgym/envs"
	"github.com/mcpgym/mcpgym/rewards"
)

func TestFormat(t *testing.T) {
	const two = `{"answer":[{"kind":"text","value":"Oslo"},{"kind":"set","items":[{"kind":"number","value":"2"},{"kind":"number","value":"5"}]}],"evidence":[[{"has":{"t":1}}]]}`
	for _, c := range []struct {
		name, want, text string
		score            float64
		reason           string
	}{
		{"one line", two, "ANSWER: Oslo; 2, 5", 1, "as asked for"},
		{"the last line", two, "I have looked.\r\nANSWER: Oslo; 2, 5\r\n\r\n", 1, ""},
		{"markup", two, "**Answer:** Oslo; 2, 5", 1, ""},
		{"wrong, in the right form", two, "ANSWER: Rome; no data", 1, ""},
		{"the same line twice", two, "ANSWER: Oslo; 2, 5\nANSWER: Oslo; 2, 5", 0, "2 lines with an answer"},
		{"the same line twice, by a lone carriage return", two, "ANSWER: Oslo; 2, 5\ranswer: Oslo; 2, 5", 0, "2 lines with an answer"},
		{"several answers", two, "ANSWER: Oslo; 2\nANSWER: Oslo; 5", 0, "several different answers"},
		{"text after it", two, "ANSWER: Oslo; 2, 5\nThat is all.", 0, "text after"},
		{"no such line", two, "Oslo; 2, 5", 0, "last line"},
		{"nothing", two, "", 0, "last line"},
		{"a value too few", two, "ANSWER: Oslo", 0, "1 values given, 2 asked for"},
		{"a value too many", two, "ANSWER: Oslo; 2; 5", 0, "3 values given, 2 asked for"},
		{"a value that is empty", two, "ANSWER: Oslo; \u00a0", 0, "value 2 is empty"},
		{"a value of markup", two, "ANSWER: **; 2, 5", 0, "value 1 is empty"},
		{"a value of markup, the last", two, "ANSWER: Oslo; ** .", 0, "value 2 is empty"},
		{"no value is asked for", "", "done", 1, "no value is asked for"},
		{"no value is asked for, and nothing said", "", "", 1, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			score, reason := one(t, rewards.Format(0.1), record(c.want, c.text))
			require.Equal(t, c.score, score, reason)
			require.Contains(t, reason, c.reason)
		})
	}
	for _, want := range []string{two, ""} {
		cut := record(want, "ANSWER: Oslo; 2, 5")
		cut.End = envs.EndTurns
		score, reason := one(t, rewards.Format(0.1), cut)
		require.Zero(t, score, reason)
	}
	_, _, err := scoreOf(rewards.Format(0.1), record(`{"answer":[]}`, "ANSWER: Oslo"))
	require.ErrorContains(t, err, "wanted answer")
}

// The form pays only with success, and never makes or unmakes it.
func TestFormatIsNoSuccess(t *testing.T) {
	want := json.RawMessage(`{"answer":[{"kind":"text","value":"Oslo"}],"evidence":[[{"has":{"t":1}}]]}`)
	sum := rewards.Sum{rewards.Answer(0.9), rewards.Format(0.1)}
	require.NoError(t, sum.Validate())
	for text, c := range map[string]struct {
		success bool
		value   float64
	}{
		"ANSWER: Oslo":               {true, 1},
		"ANSWER: Oslo\nANSWER: Oslo": {true, 0.9},
		"ANSWER: Rome":               {false, 0},
		"Oslo":                       {false, 0},
	} {
		s, err := sum.Score(record(string(want), text, ok("get", `{"t":1}`)))
		require.NoError(t, err)
		require.Equal(t, c.success, s.Success, text)
		require.Equal(t, c.value, s.Value, text)
	}
}
