package envtest

import (
	"bytes"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/mcpgym/mcpgym/envs"
	"github.com/mcpgym/mcpgym/policies"
	"github.com/mcpgym/mcpgym/policies/redteam"
	"github.com/mcpgym/mcpgym/rewards"
)

func (c *checker) noop() {
	e := c.env()
	c.visit(c.tasks, 1, func(task envs.Task) { c.nothing(e, task, "doing nothing", []envs.Action{{}}) })
}

// undone scores gold records as if the world had been left as it was. Where gold changes nothing, the rule evidence holds that
// somebody must have looked.
func (c *checker) undone() {
	for _, task := range c.tasks {
		gold, idle := c.gold(task), c.idle(task)
		if gold == nil || idle == nil {
			continue
		}
		t := *gold
		t.Probes, t.State = idle.Probes, idle.State
		if bytes.Equal(encode(t), encode(gold)) {
			continue
		}
		s, err := c.spec.Reward.Score(&t)
		t.Score = &s
		c.unpaid(task, "the gold solution in a world that is left as it was", &t, err)
	}
}

// script is a cheat's episode of one task.
type script struct {
	name  string
	turns []envs.Action
	took  time.Duration
	t     *envs.Trajectory
	err   error
}

func (c *checker) cheats() {
	scripts := c.scripts()
	var next atomic.Int64
	var wg sync.WaitGroup
	for range 2 { // what a world costs is mostly waiting
		e := c.env()
		wg.Go(func() {
			for i := next.Add(1) - 1; i < int64(len(c.tasks)); i = next.Add(1) - 1 {
				task, leases := c.tasks[i], 0
				for _, s := range scripts[i] {
					if !free(task, s.turns) {
						leases++
					}
				}
				c.announce(task, leases)
				for _, s := range scripts[i] {
					start := time.Now()
					s.t, s.err = c.try(e, task, s.turns)
					s.took = time.Since(start)
				}
			}
		})
	}
	wg.Wait()
	type tally struct {
		name   string
		played int
		best   float64 // the highest reward
		took   time.Duration
	}
	var all []*tally
	byName := map[string]*tally{}
	for i, task := range c.tasks {
		for _, s := range scripts[i] {
			t := c.unpaid(task, "cheat "+s.name, s.t, s.err)
			if t == nil {
				continue
			}
			n := byName[s.name]
			if n == nil {
				n = &tally{name: s.name, best: t.Score.Value}
				byName[s.name], all = n, append(all, n)
			}
			n.played, n.best, n.took = n.played+1, max(n.best, t.Score.Value), n.took+s.took
		}
	}
	for _, n := range all {
		c.Logf("%s earns at most %v in %d episodes, %.2fs", n.name, n.best, n.played, n.took.Seconds())
	}
}

// often is how many times one cheat of an environment's own is played, where each time costs a world that is written to.
const often = 3

// scripts gives the cheats to play in each task, none where gold is not known.
func (c *checker) scripts() [][]*script {
	commonest, wrong := c.guesses()
	played := map[string]int{}
	all := make([][]*script, len(c.tasks))
	for i, task := range c.tasks {
		gold := c.gold(task)
		if gold == nil || c.idle(task) == nil {
			continue
		}
		ep := policies.Episode{System: gold.System, Prompt: task.Prompt, Tools: gold.Tools, Seed: 1}
		first := slices.ContainsFunc(c.each, func(t envs.Task) bool { return t.ID == task.ID })
		for _, cheat := range append(redteam.Generic(), redteam.Modal(commonest), redteam.Copied(wrong)) {
			if cheat.Once && i > 0 {
				continue
			}
			turns := cheat.Play(ep, task)
			if len(turns) == 0 {
				continue
			}
			if turns = ended(turns); free(task, turns) || first {
				all[i] = append(all[i], &script{name: cheat.Name, turns: turns})
			}
		}
		if c.spec.Cheats != nil {
			own := task
			own.Solution = slices.Clone(task.Solution) // cheats are made of parts of it, and append to them
			for _, s := range c.spec.Cheats(own) {
				turns := ended(s.Actions)
				if len(task.Assertions) > 0 && !free(task, turns) {
					if played[s.Name]++; played[s.Name] > often && !soak() {
						continue
					}
				}
				all[i] = append(all[i], &script{name: s.Name, turns: turns})
			}
		}
	}
	return all
}

// guesses gives for each family its most common final text, and for each task one that is right in another task of the family
// and wrong in it, where there is one.
func (c *checker) guesses() (commonest, wrong map[string]string) {
	commonest, wrong = map[string]string{}, map[string]string{}
	finals := map[string][]string{}
	for _, f := range c.known.families() {
		count, most := map[string]int{}, 0
		for _, t := range f.tasks {
			final := redteam.Final(t)
			if count[final]++; count[final] > most {
				most, commonest[f.name] = count[final], final
			}
			finals[f.name] = append(finals[f.name], final)
		}
	}
	for _, task := range c.tasks {
		all := finals[task.Family]
		if i := slices.IndexFunc(all, func(final string) bool { return !right(task, final) }); i >= 0 {
			wrong[task.ID] = all[i]
		}
	}
	return commonest, wrong
}

// right says whether a final text gives a task's answer: as rewards.Answer reads it, or else as the gold solution words it.
func right(task envs.Task, final string) bool {
	want, err := rewards.DecodeWant(task.Want)
	if err != nil || final == redteam.Final(task) {
		return final == redteam.Final(task)
	}
	answer, err := rewards.FinalAnswer(final)
	given := strings.Split(answer, ";")
	if err != nil || len(given) != len(want.Answer) {
		return false
	}
	for i, v := range want.Answer {
		if ok, err := v.Match(given[i]); !ok || err != nil {
			return false
		}
	}
	return true
}
