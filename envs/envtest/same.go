package envtest

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"
	_ "time/tzdata" // without a zone database the locale rule could not fail

	"github.com/mcpgym/mcpgym/envs"
	"github.com/mcpgym/mcpgym/policies"
)

func (c *checker) same(what string, task envs.Task, a, b *envs.Trajectory) {
	if a != nil && b != nil {
		c.sameRecord(what, task, encode(a), encode(b))
	}
}

func (c *checker) sameRecord(what string, task envs.Task, a, b []byte) {
	if bytes.Equal(a, b) {
		return
	}
	at := 0
	for at < min(len(a), len(b)) && a[at] == b[at] {
		at++
	}
	from := max(0, at-60)
	c.Errorf("%s: %s gives another record, from\n  ...%s\nto\n  ...%s", task.ID, what, a[from:min(len(a), at+60)], b[from:min(len(b), at+60)])
}

func (c *checker) deterministic() {
	e := c.env()
	c.visit(c.tasks, 1, func(task envs.Task) {
		c.same("playing in another environment", task, c.gold(task), c.play(e, task, policies.Oracle{}))
	})
	c.visit(c.each, 1, func(task envs.Task) {
		c.same("playing again", task, c.gold(task), c.play(e, task, policies.Oracle{}))
	})
}

func (c *checker) cleanReset() {
	e := c.env()
	c.visit(c.each, 2, func(task envs.Task) {
		want := c.gold(task) // first, so that no other episode runs beside the one that is broken off
		if _, err := e.Reset(c.ctx, task); err != nil {
			c.Fatalf("%s: %v", task.ID, err)
		}
		for _, a := range task.Solution[:len(task.Solution)-1] {
			if _, err := e.Step(c.ctx, a); err != nil {
				c.Fatalf("%s: %v", task.ID, err)
			}
		}
		c.same("playing after a reset in mid-episode", task, want, c.play(e, task, policies.Oracle{}))
	})
}

// isolation plays three episodes turn by turn: one of the task, and before each of its turns one of the same task and one of
// the next, so that these write, and end, while it goes on.
func (c *checker) isolation() {
	e, twin, other := c.env(), c.env(), c.env()
	for i, task := range c.each {
		next := c.each[(i+1)%len(c.each)]
		want := c.gold(task)
		c.announce(task, 2)
		c.announce(next, 1)
		type episode struct {
			*envs.Env
			task envs.Task
			turn int
		}
		episodes := []*episode{{twin, task, 0}, {other, next, 0}, {e, task, 0}}
		for _, p := range episodes {
			if _, err := p.Reset(c.ctx, p.task); err != nil {
				c.Fatalf("%s: %v", p.task.ID, err)
			}
		}
		for range task.Solution {
			for _, p := range episodes {
				if p.turn == len(p.task.Solution) {
					continue
				}
				if _, err := p.Step(c.ctx, p.task.Solution[p.turn]); err != nil {
					c.Fatalf("%s: %v", p.task.ID, err)
				}
				if p.turn++; p.turn == len(p.task.Solution) && p.Env != e {
					if err := p.Close(); err != nil { // its world goes while that of the task is used
						c.Fatalf("%s: %v", p.task.ID, err)
					}
				}
			}
		}
		c.same("playing beside another episode", task, want, e.Trajectory())
		if err := other.Close(); err != nil { // it may be longer
			c.Fatalf("%s: %v", next.ID, err)
		}
	}
}

func (c *checker) parallel() {
	got := make([][4]*envs.Trajectory, len(c.each)) // a group of four members each
	var wg sync.WaitGroup
	for w := range 8 {
		wg.Go(func() {
			e := c.env()
			for i := range c.each {
				for m := range 4 {
					if (i*4+m)%8 == w {
						got[i][m] = c.play(e, c.each[i], policies.Oracle{})
					}
				}
			}
		})
	}
	wg.Wait()
	for i, task := range c.each {
		want := c.gold(task)
		for _, t := range got[i] {
			c.same("playing in parallel", task, want, t)
		}
	}
}

// childVar makes Check print the gold records and do nothing else: how the locale rule looks at itself from a process with
// another time zone and language.
const childVar = "MCPGYM_ENVTEST_RECORDS"

var recordLine = regexp.MustCompile(`(?m)^envtest record (.*)$`)

func printRecords(t *testing.T, spec envs.Spec) {
	c := &checker{spec: spec, T: t, ctx: t.Context()}
	e := c.env()
	_, each := sample(spec, scan(spec, true)) // another order than in the first process
	for _, task := range each {
		fmt.Printf("\nenvtest record %s", encode(c.play(e, task, policies.Oracle{})))
	}
}

func (c *checker) locale() {
	exe, err := os.Executable()
	if err != nil {
		c.Fatal(err)
	}
	path := strings.Split(c.Name(), "/")
	for i := range path {
		path[i] = "^" + regexp.QuoteMeta(path[i]) + "$"
	}
	zone, language := elsewhere()
	cmd := exec.CommandContext(c.ctx, exe, "-test.run", strings.Join(path[:len(path)-1], "/"), "-test.count=1")
	cmd.Env = append(os.Environ(), childVar+"=1", "TZ="+zone, "LANG="+language, "LC_ALL="+language)
	out, err := cmd.CombinedOutput()
	records := recordLine.FindAllSubmatch(out, -1)
	if err != nil || len(records) != len(c.each) {
		c.Fatalf("play with TZ=%s LANG=%s: %d records of %d tasks, %v\n%s", zone, language, len(records), len(c.each), err, bytes.TrimSpace(recordLine.ReplaceAll(out, nil)))
	}
	for k, task := range c.each {
		if t := c.gold(task); t != nil {
			c.sameRecord(fmt.Sprintf("another process, with TZ=%s LANG=%s,", zone, language), task, bytes.TrimSpace(encode(t)), bytes.TrimSpace(records[k][1]))
		}
	}
}

// elsewhere names a time zone in which it is another day than here, and a language that is not that of this machine, with a
// decimal comma and, mostly, letters i of its own.
func elsewhere() (zone, language string) {
	language = "tr_TR.UTF-8"
	if os.Getenv("LANG") == language || os.Getenv("LC_ALL") == language {
		language = "de_DE.UTF-8"
	}
	now := time.Now()
	for _, zone = range []string{"Pacific/Kiritimati", "Pacific/Pago_Pago"} { // 25 hours apart
		place, err := time.LoadLocation(zone)
		if err != nil {
			panic(err) // the zone database is compiled in
		}
		if now.In(place).Day() != now.Day() {
			break
		}
	}
	return zone, language
}

func (c *checker) rescore() {
	for _, task := range c.tasks {
		for _, t := range []*envs.Trajectory{c.gold(task), c.idle(task)} {
			if t == nil {
				continue
			}
			line := encode(t)
			var back envs.Trajectory
			if err := json.Unmarshal(line, &back); err != nil {
				c.Fatalf("%s: read the record back: %v", task.ID, err)
			}
			if !bytes.Equal(encode(&back), line) {
				c.Errorf("%s: the record does not read back as it was written", task.ID)
			}
			back.Score = nil
			s, err := c.spec.Reward.Score(&back)
			if err != nil || !bytes.Equal(encode(s), encode(t.Score)) {
				c.Errorf("%s: the record read back scores %s (%v), live it was %s", task.ID, encode(s), err, encode(t.Score))
			}
		}
	}
}
