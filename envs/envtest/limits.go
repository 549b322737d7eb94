package envtest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"time"

	"github.com/mcpgym/mcpgym/envs"
	"github.com/mcpgym/mcpgym/policies"
	"github.com/mcpgym/mcpgym/policies/redteam"
	"github.com/mcpgym/mcpgym/sandboxes"
)

func (c *checker) badCalls() {
	e := c.env()
	c.visit(c.each, 1, func(task envs.Task) {
		if _, err := e.Reset(c.ctx, task); err != nil {
			c.Fatalf("%s: %v", task.ID, err)
		}
		tools := e.Trajectory().Tools
		name := tools[0].Name
		bad := []struct {
			tool, args string
			want       envs.Status
		}{
			{name + "_x", `{}`, envs.StatusUnknown},
			{name, `{"a`, envs.StatusMalformed},
			{name, `[1]`, envs.StatusMalformed},
			{name, `{"a":1,"a":2}`, envs.StatusMalformed},
		}
		if tool, param := scalarParam(tools); tool != "" {
			bad = append(bad, []struct {
				tool, args string
				want       envs.Status
			}{
				{tool, `{}`, envs.StatusInvalid},                                // missing
				{tool, fmt.Sprintf(`{%q:{"a":[]}}`, param), envs.StatusInvalid}, // mistyped
			}...)
		}
		for len(bad) > 0 { // as many a turn as leave one for the answer
			now := bad[:min(len(bad), max(1, len(bad)/max(1, c.spec.Limits.Turns-2)+1))]
			bad = bad[len(now):]
			var a envs.Action
			for _, b := range now {
				a.Calls = append(a.Calls, envs.Call{Name: b.tool, Arguments: json.RawMessage(b.args)})
			}
			s, err := e.Step(c.ctx, a)
			if err != nil {
				c.Fatalf("%s: calls %s: %v", task.ID, encode(a.Calls), err)
			}
			if s.Terminated || s.Truncated {
				c.Fatalf("%s: calls %s end the episode (%s)", task.ID, encode(a.Calls), e.Trajectory().End)
			}
			for i, b := range now {
				if r := s.Observation.Results[i]; !r.IsError || r.Status != b.want || r.Text == "" {
					c.Errorf("%s: call %s %s gives %s, want an error of status %v", task.ID, b.tool, b.args, encode(r), b.want)
				}
			}
		}
		if _, err := e.Step(c.ctx, envs.Action{Text: "x"}); err != nil {
			c.Fatalf("%s: %v", task.ID, err)
		}
		if s := e.Trajectory().Score; s.Value >= 0 {
			c.Errorf("%s: an episode that calls an invented tool and answers x earns %v, want less than 0, as by a hallucination penalty: %s", task.ID, s.Value, encode(s.Parts))
		}
	})
}

// scalarParam finds a required parameter that takes one plain value.
func scalarParam(tools []sandboxes.Tool) (tool, param string) {
	for _, t := range tools {
		var schema struct {
			Required   []string `json:"required"`
			Properties map[string]struct {
				Type any `json:"type"`
			} `json:"properties"`
		}
		if json.Unmarshal(t.InputSchema, &schema) != nil {
			continue
		}
		for _, name := range schema.Required {
			switch schema.Properties[name].Type {
			case "string", "integer", "number", "boolean":
				return t.Name, name
			}
		}
	}
	return "", ""
}

func (c *checker) budget() {
	e := c.env()
	c.visit(c.each, 1, func(task envs.Task) {
		if _, err := e.Reset(c.ctx, task); err != nil {
			c.Fatalf("%s: %v", task.ID, err)
		}
		var s envs.Step
		for i := 0; !s.Terminated && !s.Truncated; i++ {
			if i >= c.spec.Limits.Turns {
				c.Fatalf("%s: the episode goes on after %d turns", task.ID, i)
			}
			var err error
			if s, err = e.Step(c.ctx, task.Solution[0]); err != nil {
				c.Fatalf("%s: %v", task.ID, err)
			}
		}
		if len(task.Solution[0].Calls) > 0 && (s.Terminated || !s.Truncated) {
			c.Errorf("%s: repeating a call terminates the episode", task.ID)
		}
		if _, err := e.Step(c.ctx, task.Solution[0]); !errors.Is(err, envs.ErrDone) {
			c.Errorf("%s: a step after the end returns %v, want ErrDone", task.ID, err)
		}
		if len(task.Solution[0].Calls) > 0 && e.Trajectory().Score.Value > 0 {
			c.Errorf("%s: repeating a call earns %v", task.ID, e.Trajectory().Score.Value)
		}
	})
	// All is done and known, and then there is no time to say so.
	hurried := c.spec
	hurried.Limits.Episode = 1
	late, err := envs.New(hurried)
	if err != nil {
		c.Fatal(err)
	}
	defer late.Close()
	c.visit(c.each, 1, func(task envs.Task) {
		all := envs.Action{Text: redteam.Final(task)}
		for _, a := range task.Solution {
			all.Calls = append(all.Calls, a.Calls...)
		}
		t, err := policies.Rollout(c.ctx, late, task, policies.Replay{Steps: steps([]envs.Action{all, {Text: all.Text}})}, 1)
		if t = c.unpaid(task, "running out of time after all calls", t, err); t != nil && len(all.Calls) > 0 && t.End != envs.EndTime && t.End != envs.EndTurns {
			c.Errorf("%s: the episode has no time left and ends with %q", task.ID, t.End)
		}
	})
}

func (c *checker) agentFault() {
	e := c.env()
	for i, task := range c.each {
		idle := c.idle(task)
		if idle == nil {
			continue
		}
		for k, a := range redteam.Hostile(policies.Episode{Tools: idle.Tools}) {
			if len(c.each) > 4 && !soak() && (i+k)%4 != 0 { // with many tasks each meets a part of them
				continue
			}
			if _, err := e.Reset(c.ctx, task); err != nil { // each in an episode of its own, before the calls run out
				c.Fatalf("%s: %v", task.ID, err)
			}
			if _, err := e.Step(c.ctx, a); err != nil {
				var calls []string
				for _, call := range a.Calls {
					calls = append(calls, fmt.Sprintf("%q %.60s", call.Name, call.Arguments))
				}
				c.Fatalf("%s: void by the calls %s: %v", task.ID, strings.Join(calls, "; "), err)
			}
		}
	}
}

func (c *checker) cancel() {
	e := c.env()
	ctx, cancel := context.WithCancel(c.ctx)
	task := c.tasks[0]
	if _, err := e.Reset(ctx, task); err != nil {
		c.Fatal(err)
	}
	cancel()
	for what, f := range map[string]func() error{
		"Step":  func() error { _, err := e.Step(ctx, task.Solution[0]); return err },
		"Reset": func() error { _, err := c.env().Reset(ctx, task); return err },
	} {
		start := time.Now()
		if err := f(); !errors.Is(err, context.Canceled) {
			c.Errorf("%s under a cancelled context returns %v", what, err)
		}
		if d := time.Since(start); d > 2*time.Second {
			c.Errorf("%s under a cancelled context takes %v, want less than 2s", what, d)
		}
	}
}

func (c *checker) close() {
	before := runtime.NumGoroutine()
	for range 5 {
		e, err := envs.New(c.spec)
		if err != nil {
			c.Fatal(err)
		}
		if _, err := e.Reset(c.ctx, c.tasks[0]); err != nil {
			c.Fatal(err)
		}
		for range 2 {
			if err := e.Close(); err != nil {
				c.Errorf("close: %v", err)
			}
		}
		if v := e.Trajectory().Void; v == nil {
			c.Errorf("an episode closed before its end is not void")
		}
	}
	for end := time.Now().Add(2 * time.Second); runtime.NumGoroutine() > before; {
		if time.Now().After(end) {
			stacks := make([]byte, 1<<16)
			c.Fatalf("%d goroutines before, %d after closing\n%s", before, runtime.NumGoroutine(), stacks[:runtime.Stack(stacks, true)])
		}
		runtime.Gosched()
		time.Sleep(time.Millisecond)
	}
}
