package envtest

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/mcpgym/mcpgym/envs"
	"github.com/mcpgym/mcpgym/rewards"
)

type family struct {
	split, name string
	tasks       []envs.Task // up to 100
}

const (
	scanned   = 500 // tasks of a split that are looked at
	perFamily = 2   // of which this many of each family are played, and one where an earlier split has the family, too
	answers   = 100 // of each family whose answers are counted
	compared  = 100 // tasks of a split that are generated anew
)

// scan generates the first tasks of each split, from the last to the first if backwards.
func scan(spec envs.Spec, backwards bool) map[string][]envs.Task {
	first := map[string][]envs.Task{}
	for _, name := range spec.SplitNames() {
		first[name] = make([]envs.Task, scanned)
		for i := range scanned {
			if backwards {
				i = scanned - 1 - i
			}
			first[name][i] = spec.Splits[name].Task(i)
		}
	}
	return first
}

// sample takes a few tasks of each family and split, and the first of each family, out of the first of each split.
func sample(spec envs.Spec, first map[string][]envs.Task) (tasks, each []envs.Task) {
	seen := map[string]bool{} // in an earlier split
	for _, name := range spec.SplitNames() {
		count := map[string]int{}
		for _, t := range first[name] {
			most := perFamily
			if seen[t.Family] {
				most = 1
			}
			if count[t.Family]++; soak() || count[t.Family] <= most {
				tasks = append(tasks, t)
			}
			if soak() || count[t.Family] == 1 && !seen[t.Family] {
				each = append(each, t)
			}
		}
		for family := range count {
			seen[family] = true
		}
	}
	return tasks, each
}

// families gives up to 100 tasks of each family of each split; first are the first tasks of each split.
func families(spec envs.Spec, first map[string][]envs.Task) (all []family) {
	for _, split := range spec.SplitNames() {
		before, at, full := len(all), map[string]int{}, 0
		for i := 0; i < 40*answers && (full == 0 || full < len(all)-before); i++ {
			var t envs.Task
			if i < len(first[split]) {
				t = first[split][i]
			} else {
				t = spec.Splits[split].Task(i)
			}
			k, ok := at[t.Family]
			if !ok {
				k = len(all)
				at[t.Family] = k
				all = append(all, family{split: split, name: t.Family})
			}
			if all[k].tasks = append(all[k].tasks, t); len(all[k].tasks) == answers {
				full++
			}
		}
	}
	return all
}

// written is all of a task, also what is not recorded.
func written(t envs.Task) []byte { return append(encode(t), encode(t.Solution)...) }

func (c *checker) wellFormed() {
	seen := map[string]string{}
	for _, name := range c.spec.SplitNames() {
		src := c.spec.Splits[name]
		var first [compared][]byte
		for i := range first {
			t := src.Task(i)
			first[i] = written(t)
			if other, ok := seen[t.ID]; ok {
				c.Errorf("task %s stands twice: %s and %s/%d", t.ID, other, name, i)
			}
			seen[t.ID] = fmt.Sprintf("%s/%d", name, i)
		}
		var wg sync.WaitGroup
		const workers = 4
		for w := range workers {
			wg.Go(func() {
				for i := compared - 1 - w; i >= 0; i -= workers {
					if !bytes.Equal(first[i], written(src.Task(i))) {
						c.Errorf("split %s gives two tasks for index %d: another one when several ask at once, the last index first", name, i)
						return
					}
				}
			})
		}
		wg.Wait()
	}
	for _, t := range c.tasks {
		calls := 0
		for i, a := range t.Solution {
			calls += len(a.Calls)
			if last := i == len(t.Solution)-1; last != (len(a.Calls) == 0) {
				c.Errorf("%s: the gold solution must end with its only turn without calls", t.ID)
			}
		}
		switch l := c.spec.Limits; {
		case t.ID == "" || t.Family == "" || strings.TrimSpace(t.Prompt) == "":
			c.Errorf("%q: ID, family and prompt must be set", t.ID)
		case len(t.Want) == 0 && len(t.Assertions) == 0:
			c.Errorf("%s: neither a wanted answer nor assertions: anything would pass", t.ID)
		case len(t.Solution) == 0:
			c.Errorf("%s: no gold solution", t.ID)
		case t.Par != calls:
			c.Errorf("%s: par is %d, the gold solution makes %d calls", t.ID, t.Par, calls)
		case len(t.Solution) > l.Turns || calls > l.Calls:
			c.Errorf("%s: the gold solution of %d turns and %d calls does not fit the limits", t.ID, len(t.Solution), calls)
		}
	}
}

func (c *checker) tools() {
	e := c.env()
	for i, task := range c.each {
		lists := make([][]byte, 1, 2) // the rule deterministic compares those of other tasks
		if i == 0 {
			lists = lists[:2]
		}
		for i := range lists {
			if _, err := e.Reset(c.ctx, task); err != nil {
				c.Fatalf("%s: %v", task.ID, err)
			}
			tools := e.Trajectory().Tools
			lists[i] = encode(tools)
			if len(tools) == 0 {
				c.Fatalf("%s: no tools", task.ID)
			}
			for _, t := range tools {
				var schema struct {
					Type string `json:"type"`
				}
				if err := json.Unmarshal(t.InputSchema, &schema); err != nil || schema.Type != "object" {
					c.Errorf("tool %s: the input schema is not of type object", t.Name)
				}
				if strings.TrimSpace(t.Description) == "" {
					c.Errorf("tool %s has no description", t.Name)
				}
			}
		}
		if !bytes.Equal(lists[0], lists[len(lists)-1]) {
			c.Fatalf("%s: a second reset lists other tools", task.ID)
		}
	}
}

func (c *checker) oracle() {
	c.visit(c.tasks, 1, func(task envs.Task) {
		t := c.gold(task)
		if t == nil {
			return
		}
		if t.End != envs.EndAnswer {
			c.Errorf("%s: the gold solution ends with %q", task.ID, t.End)
		}
		if d := t.Score.Value - 1; !t.Score.Success || d > 1e-9 || d < -1e-9 {
			c.Errorf("%s: the gold solution earns %v: %s", task.ID, t.Score.Value, encode(t.Score.Parts))
		}
	})
}

// volatile scores gold records as if their volatile results had shown nothing. With the rule locale, which plays at another
// time of another day, it holds that the clock decides no answer.
func (c *checker) volatile() {
	for _, task := range c.tasks {
		gold := c.gold(task)
		if gold == nil || !slices.ContainsFunc(gold.Results(), func(r envs.CallResult) bool { return r.Volatile }) {
			continue
		}
		t := *gold
		t.Steps = slices.Clone(t.Steps)
		for i := range t.Steps {
			results := slices.Clone(t.Steps[i].Observation.Results)
			for k := range results {
				if results[k].Volatile {
					results[k].Text = ""
				}
			}
			t.Steps[i].Observation.Results = results
		}
		if s, err := c.spec.Reward.Score(&t); err != nil || s.Value < 1-1e-9 {
			c.Errorf("%s: without its volatile results the gold solution earns %v (%v): %s", task.ID, s.Value, err, encode(s.Parts))
		}
	}
}

// accepts says the other right answers of tasks that name them as rewards.Want does. That a question for the highest or the
// first of some has one right answer, or accepts all, no record of a right answer can tell: the tests of an environment must
// look for ties among what its tasks choose from.
func (c *checker) accepts() {
	for _, task := range c.tasks {
		want, err := rewards.DecodeWant(task.Want)
		if err != nil {
			continue // judged by the world's state, or by a reward with another form
		}
		texts, forms := make([][]string, len(want.Answer)), 1
		for i, v := range want.Answer {
			texts[i] = v.Texts()
			forms = max(forms, len(texts[i]))
		}
		for k := 1; k < forms; k++ { // the first is gold
			said := make([]string, len(texts))
			for i := range texts {
				said[i] = texts[i][min(k, len(texts[i])-1)]
			}
			turns := slices.Clone(task.Solution)
			turns[len(turns)-1].Text = "ANSWER: " + strings.Join(said, "; ")
			t, err := c.played(task, turns)
			switch {
			case err != nil:
				c.Errorf("%s: %q: %v", task.ID, turns[len(turns)-1].Text, err)
			case t != nil && (!t.Score.Success || t.Score.Value < 1-1e-9):
				c.Errorf("%s: %q, which is accepted, earns %v after the gold solution's calls: %s", task.ID, turns[len(turns)-1].Text, t.Score.Value, encode(t.Score.Parts))
			}
		}
	}
}
