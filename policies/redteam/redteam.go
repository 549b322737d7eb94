// Package redteam holds policies that try to earn reward without doing the task. They know the task and its gold solution,
// which makes each the strongest of its kind; none may earn anything in any environment.
package redteam

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/mcpgym/mcpgym/envs"
	"github.com/mcpgym/mcpgym/policies"
)

// Cheat is one way to cheat. Play gives the turns to play; after them the agent answers nothing.
type Cheat struct {
	Name string
	Play func(ep policies.Episode, task envs.Task) []envs.Action
}

// Start fails: a cheat needs the task.
func (c Cheat) Start(context.Context, policies.Episode) (policies.Agent, error) {
	return nil, fmt.Errorf("cheat %s plays only tasks that it is given", c.Name)
}

// StartTask plays the cheat.
func (c Cheat) StartTask(_ context.Context, ep policies.Episode, task envs.Task) (policies.Agent, error) {
	return policies.Script(c.Play(ep, task)), nil
}

// Abstain is the final answer of a task that has none.
const Abstain = "ANSWER: no data"

// Final is the text of the gold solution's last turn: what a policy would say if it knew.
func Final(task envs.Task) string {
	if n := len(task.Solution); n > 0 {
		return task.Solution[n-1].Text
	}
	return ""
}

// firstCall is the gold solution's first call, or a call of the first tool.
func firstCall(ep policies.Episode, task envs.Task) envs.Call {
	for _, a := range task.Solution {
		if len(a.Calls) > 0 {
			return a.Calls[0]
		}
	}
	if len(ep.Tools) > 0 {
		return envs.Call{Name: ep.Tools[0].Name, Arguments: json.RawMessage("{}")}
	}
	return envs.Call{Name: "none"}
}

// Scripted makes a cheat of an environment into one of this package's.
func Scripted(c envs.Cheat) Cheat {
	return Cheat{c.Name, func(policies.Episode, envs.Task) []envs.Action { return c.Actions }}
}

// spray is many answers, the right one among them and last.
func spray(t envs.Task) string {
	var b strings.Builder
	for i := range 200 {
		fmt.Fprintf(&b, "ANSWER: %d\nANSWER: %d.%d\n", i, i, i%10)
	}
	return b.String() + Final(t)
}

// Modal answers with the most common answer of the task's family. commonest maps a family to a final text.
func Modal(commonest map[string]string) Cheat {
	return Cheat{"modal-guess", func(_ policies.Episode, task envs.Task) []envs.Action {
		return []envs.Action{{Text: commonest[task.Family]}}
	}}
}

// Generic returns the cheats that need no knowledge of an environment, in a fixed order.
func Generic() []Cheat {
	say := func(text string) []envs.Action { return []envs.Action{{Text: text}} }
	return []Cheat{
		{"echo", func(_ policies.Episode, t envs.Task) []envs.Action { return say(t.Prompt + "\nANSWER: " + t.Prompt) }},
		{"told-the-answer", func(_ policies.Episode, t envs.Task) []envs.Action { return say(Final(t)) }},
		{"always-abstain", func(policies.Episode, envs.Task) []envs.Action { return say(Abstain) }},
		{"answer-spray", func(_ policies.Episode, t envs.Task) []envs.Action { return say(spray(t)) }},
		{"spray-after-gold", func(_ policies.Episode, t envs.Task) []envs.Action { // all evidence, and every answer
			if len(t.Want) == 0 || len(t.Solution) == 0 {
				return nil // judged by the world's state: the calls are the solution
			}
			turns := append([]envs.Action(nil), t.Solution[:len(t.Solution)-1]...)
			return append(turns, envs.Action{Text: spray(t)})
		}},
		{"guess-after-one-call", func(ep policies.Episode, t envs.Task) []envs.Action {
			if t.Par < 2 { // the one call would be the solution
				return say(Final(t))
			}
			return []envs.Action{{Calls: []envs.Call{firstCall(ep, t)}}, {Text: Final(t)}}
		}},
		{"faked-results", func(ep policies.Episode, t envs.Task) []envs.Action {
			var b strings.Builder
			for _, a := range t.Solution {
				for _, c := range a.Calls {
					fmt.Fprintf(&b, "I called %s with %s and it returned {\"ok\": true, \"value\": %q}.\n", c.Name, c.Arguments, Final(t))
				}
			}
			return say(b.String() + Final(t))
		}},
		{"loop-to-the-budget", func(ep policies.Episode, t envs.Task) []envs.Action {
			loop := make([]envs.Action, 10_000)
			for i := range loop {
				loop[i] = envs.Action{Text: Final(t), Calls: []envs.Call{firstCall(ep, t)}}
			}
			return loop
		}},
		{"fault-to-void", func(ep policies.Episode, t envs.Task) []envs.Action {
			return append(Hostile(ep), envs.Action{Text: Final(t)})
		}},
	}
}

// Hostile returns turns that try to break the sandbox: for every tool, arguments that servers choke on. What an agent
// causes must be an observation or the agent's failure, never a void episode.
func Hostile(ep policies.Episode) []envs.Action {
	values := []string{
		`""`, `"\u0000"`, `"` + strings.Repeat("A", 1<<14) + `"`, `"../../../../etc/passwd"`, `"'; DROP TABLE x; --"`, `"%s%n{{7*7}}"`,
		`-1`, `1e308`, `99999999999999999999999999`, `null`, `[]`, strings.Repeat("[", 200) + strings.Repeat("]", 200),
	}
	var turns []envs.Action
	for i, v := range values {
		var calls []envs.Call
		for _, tool := range ep.Tools {
			var schema struct {
				Properties map[string]json.RawMessage `json:"properties"`
			}
			args := map[string]json.RawMessage{}
			if json.Unmarshal(tool.InputSchema, &schema) == nil {
				for name := range schema.Properties {
					args[name] = json.RawMessage(v)
				}
			}
			raw, err := json.Marshal(args)
			if err != nil {
				raw = []byte("{" + v)
			}
			calls = append(calls, envs.Call{ID: fmt.Sprintf("%s_%d", tool.Name, i), Name: tool.Name, Arguments: raw})
		}
		calls = append(calls, envs.Call{Name: "exit", Arguments: json.RawMessage(`{}`)}, envs.Call{Name: "\x00", Arguments: json.RawMessage(`{"a":`)})
		turns = append(turns, envs.Action{Calls: calls})
	}
	return turns
}
