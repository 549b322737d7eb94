package rewards

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/mcpgym/mcpgym/envs"
)

// The short ways through a text, which most take, must lead where the long ones do.

func FuzzSameNumber(f *testing.F) {
	for _, s := range []string{"0", "-0", "0.0", "-0.00", "5", "5.0", "50", "5e1", "5E+0", "-5", "-0.5", "-0.50", "0.05"} {
		f.Add(s, "5")
		f.Add(s, "0")
		f.Add(s, "-0.5")
	}
	f.Fuzz(func(t *testing.T, a, b string) {
		x, errX := envs.DecodeJSON([]byte(a))
		y, errY := envs.DecodeJSON([]byte(b))
		m, isM := x.(json.Number)
		n, isN := y.(json.Number)
		if errX != nil || errY != nil || !isM || !isN {
			return
		}
		require.Equal(t, string(envs.Canonical(m)) == string(envs.Canonical(n)), sameNumber(m.String(), n.String()))
	})
}

func FuzzNormal(f *testing.F) {
	for _, s := range []string{"", " ", "a", "A b", "A  b", "*x_ .", "x.", ".", "a\tb", "\x00", "K", "x ."} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		if isPlain(s) {
			const end = "\u00e9" // keeps off what is trimmed, and sends the text the long way
			require.Equal(t, normal(end+s+end), end+strings.ToLower(s)+end)
		}
	})
}

func FuzzAnswerIn(f *testing.F) {
	for _, s := range []string{"ANSWER:", "ANSWER: 5", "ANSWER:_* a: b *_ ", "**ANSWER: 5**", "answer: 5", "ANSWER:\xff\f", "ANSWER : 5"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, line string) {
		if strings.ContainsAny(line, "\r\n") {
			return
		}
		answer, ok := answerIn(line)
		m := answerLine.FindStringSubmatch(line)
		if require.Equal(t, m != nil, ok); ok {
			require.Equal(t, m[1], answer)
		}
	})
}

func FuzzIsDecimal(f *testing.F) {
	for _, s := range []string{"", "-", "5", "-5.25", "5.", ".5", "+5", "1,234", "5 c", "5.2.1", "\u0665"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		if isDecimal(s) {
			require.Equal(t, []string{s, s, ""}, number.FindStringSubmatch(s))
		}
	})
}
