package toolcall

import (
	"encoding/json"
	"fmt"

	"github.com/mcpgym/mcpgym/envs"
	"github.com/mcpgym/mcpgym/policies/engine"
	"github.com/mcpgym/mcpgym/sandboxes"
)

// Tools are the tools of an episode as an engine shows them to a model. What the gym alone reads is left out.
func Tools(list []sandboxes.Tool) []engine.Tool {
	out := make([]engine.Tool, len(list))
	for i, t := range list {
		out[i] = engine.Tool{Name: t.Name, Description: t.Description, Parameters: t.InputSchema}
	}
	return out
}

// Prompt is how the conversation of an episode begins.
func Prompt(system, prompt string) []engine.Message {
	user := engine.Message{Role: "user", Text: prompt}
	if system == "" {
		return []engine.Message{user}
	}
	return []engine.Message{{Role: "system", Text: system}, user}
}

// Replies are what the model is told of an observation: the results of its calls, errors marked as such.
func Replies(o envs.Observation) []engine.Message {
	var out []engine.Message
	for _, r := range o.Results {
		text := r.Text
		if r.IsError {
			text = "error: " + text
		}
		out = append(out, engine.Message{Role: "tool", Text: text, CallID: r.ID, Name: r.Name})
	}
	if o.Text != "" {
		out = append(out, engine.Message{Role: "user", Text: o.Text})
	}
	return out
}

// Message is an action as a turn of a conversation, to show it or to train on it. A malformed call is an error: a template can
// only write calls that can be read.
func Message(a envs.Action) (engine.Message, error) {
	m := engine.Message{Role: "assistant", Text: a.Text, Reasoning: a.Reasoning}
	for i, c := range a.Calls {
		if c.Malformed != "" {
			return engine.Message{}, fmt.Errorf("call %d of the turn is malformed: %.80s", i, c.Malformed)
		}
		args := c.Arguments
		if len(args) == 0 {
			args = json.RawMessage("{}")
		}
		m.Calls = append(m.Calls, engine.Call{ID: c.ID, Name: c.Name, Arguments: args})
	}
	return m, nil
}
