package rewards

import (
	"strings"

	"github.com/mcpgym/mcpgym/envs"
)

// Format credits a final text of the right form: one line with an answer, the last, with as many values as the task asks for,
// none of them empty. Where the task asks for no value it credits the end of the episode by the agent itself.
//
// Beside Answer it says little, since that gate demands the form already and only takes the same line twice. It is for
// rewards that find the outcome otherwise. No more than another credit does it change success.
func Format(weight float64) Component {
	return Component{"format", envs.Credit, weight, func(t *envs.Trajectory) (envs.Part, error) {
		text, ok := t.Answer()
		if !ok {
			return scored(0, "no final answer")
		}
		if len(t.Task.Want) == 0 {
			return scored(1, "no value is asked for")
		}
		want, err := DecodeWant(t.Task.Want)
		if err != nil {
			return envs.Part{}, err
		}
		answer, err := FinalAnswer(text)
		if err != nil {
			return scored(0, "%v", err)
		}
		if n := countAnswers(text); n > 1 {
			return scored(0, "%d lines with an answer", n)
		}
		values := strings.Split(answer, ";")
		if len(values) != len(want.Answer) {
			return scored(0, "%d values given, %d asked for", len(values), len(want.Answer))
		}
		for i, v := range values {
			if normal(v) == "" {
				return scored(0, "value %d is empty", i+1)
			}
		}
		return scored(1, "as asked for")
	}}
}
