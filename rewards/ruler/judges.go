package ruler

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/mcpgym/mcpgym/envs"
	"github.com/mcpgym/mcpgym/policies/llm"
)

// Chat is a judge behind a chat endpoint. Temperature should be 0; nil is for models that refuse to be given one.
func Chat(c *llm.Client, temperature *float64) Judge {
	return Judge{Model: c.Model(), Temperature: temperature, Ask: func(ctx context.Context, p Prompt) (Reply, error) {
		messages := []llm.Message{{Role: llm.System, Text: p.System}, {Role: llm.User, Text: p.User}}
		if p.Fault != "" {
			messages = append(messages, llm.Message{Role: llm.Assistant, Text: p.Reply}, llm.Message{Role: llm.User, Text: fmt.Sprintf(
				"That reply cannot be used. What is wrong with it: %s\nSend the whole JSON object again, with one entry for each of %s.",
				p.Fault, strings.Join(p.ids(), ", "))})
		}
		r, err := c.Chat(ctx, llm.Request{Messages: messages, Temperature: temperature, Format: &llm.Format{Name: "scores", Schema: schema(p.ids())}})
		if r.Text == "" {
			r.Text = r.Refusal
		}
		return Reply{r.Text, r.Model, r.Usage, r.Cost}, err
	}}
}

func schema(ids []string) json.RawMessage {
	list, _ := json.Marshal(ids) // strings always encode
	return fmt.Appendf(nil, `{"type":"object","additionalProperties":false,"required":["scores"],"properties":{"scores":{"type":"array","items":{`+
		`"type":"object","additionalProperties":false,"required":["trajectory_id","explanation","score"],"properties":{`+
		`"trajectory_id":{"type":"string","enum":%s},"explanation":{"type":"string"},"score":{"type":"number"}}}}}}`, list)
}

// Truth is a judge that knows the verifiable reward of each trajectory, its Score, for tests of trainers and of judges. With
// probability noise it gives a trajectory a random score instead. A trajectory without a Score is an error.
func Truth(noise float64, seed uint64) Judge {
	return offline(fmt.Sprintf("truth(noise=%v, seed=%d)", noise, seed), func(p Prompt) ([]float64, error) {
		rng := newRand(seed, p.ids()...)
		scores := make([]float64, len(p.Shown))
		for i, s := range p.Shown {
			if s.Trajectory.Score == nil {
				return nil, fmt.Errorf("a trajectory of %s has no verifiable reward", s.Trajectory.Task.ID)
			}
			scores[i] = (s.Trajectory.Score.Value + 1) / 2
			if random := rng.Float64(); rng.Float64() < noise {
				scores[i] = random
			}
		}
		return scores, nil
	})
}

// Heuristic is a judge without a model or truth: half for a final answer, three tenths for calls without errors, two tenths
// for few calls. Who calls nothing gets nothing for its calls. It is a baseline that says what a judge adds.
func Heuristic() Judge {
	return offline("heuristic", func(p Prompt) ([]float64, error) {
		scores := make([]float64, len(p.Shown))
		for i, s := range p.Shown {
			if _, ok := s.Trajectory.Answer(); ok {
				scores[i] = 0.5
			}
			results, good := s.Trajectory.Results(), 0
			for _, r := range results {
				if r.Status == envs.StatusOK {
					good++
				}
			}
			if n := float64(len(results)); n > 0 {
				scores[i] += 0.3*float64(good)/n + 0.2/n
			}
		}
		return scores, nil
	})
}

// offline makes a judge of a function that scores what is shown, in order. It costs nothing.
func offline(name string, score func(p Prompt) ([]float64, error)) Judge {
	return Judge{Model: name, Ask: func(_ context.Context, p Prompt) (Reply, error) {
		type entry struct {
			ID    string  `json:"trajectory_id"`
			Score float64 `json:"score"`
		}
		scores, err := score(p)
		list := make([]entry, len(scores))
		for i, s := range scores {
			list[i] = entry{p.Shown[i].ID, s}
		}
		text, _ := json.Marshal(map[string]any{"scores": list}) // NaN gives no text, and that no score
		return Reply{Text: string(text), Cost: new(float64)}, err
	}}
}
