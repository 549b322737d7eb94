package envtest

import (
	"maps"
	"slices"
	"strings"

	"github.com/mcpgym/mcpgym/envs"
	"github.com/mcpgym/mcpgym/policies/redteam"
)

func (c *checker) secret() {
	type count struct{ told, of int }
	inTools := map[string]*count{}
	for _, task := range c.tasks {
		t := c.gold(task)
		if t == nil {
			continue
		}
		shown := c.spec.System + "\n" + task.System + "\n" + task.Prompt + "\n"
		for _, r := range t.Results() {
			shown += r.Text + "\n"
		}
		if len(task.Want) > 8 && strings.Contains(shown, string(task.Want)) {
			c.Errorf("%s: the agent is shown the wanted answer as it is stored", task.ID)
		}
		if t.State != nil && t.State.Hash != "" && strings.Contains(shown, t.State.Hash) {
			c.Errorf("%s: the agent is shown the state's hash", task.ID)
		}
		if inTools[task.Family] == nil {
			inTools[task.Family] = &count{}
		}
		n := inTools[task.Family]
		n.of++
		if redteam.Final(task) != redteam.Abstain && answered(string(encode(t.Tools)), task) {
			n.told++
		}
	}
	// A text may hold an answer by chance, and names that are part of one; it may not do so as a rule.
	for _, name := range slices.Sorted(maps.Keys(inTools)) {
		if n := inTools[name]; 2*n.told > n.of {
			c.Errorf("%s: the tools hold the answers of %d of %d tasks", name, n.told, n.of)
		}
	}
	for _, f := range c.known.families() {
		for what, text := range map[string]func(envs.Task) string{
			"prompts": func(t envs.Task) string { return t.Prompt + " " + t.System },
			"IDs":     func(t envs.Task) string { return t.ID },
		} {
			var given []string
			for _, t := range f.tasks {
				if answered(text(t), t) {
					given = append(given, t.ID)
				}
			}
			if len(given) > len(f.tasks)/4 {
				c.Errorf("%s of %s: %d of %d %s hold their answer, the first is that of %s", f.name, f.split, len(given), len(f.tasks), what, given[0])
			}
		}
	}
}

func (c *checker) probes() {
	for _, task := range c.tasks {
		if len(task.Assertions) == 0 {
			continue
		}
		t := c.gold(task)
		if t == nil {
			continue
		}
		shown := c.spec.System + task.System + task.Prompt + string(encode(t.Tools))
		for _, r := range t.Results() {
			shown += r.Text
		}
		for _, a := range task.Assertions {
			const bare = 20 // a name of a file or a table is no secret
			if len(a.Ask.Text) > bare && strings.Contains(a.Ask.Text, " ") && strings.Contains(shown, a.Ask.Text) {
				c.Errorf("%s: the agent is shown the verifier's question %q", task.ID, a.Ask.Text)
			}
		}
	}
}

func (c *checker) evidence() {
	e := c.env()
	for _, task := range c.tasks {
		c.nothing(e, task, "the right answer without any call", []envs.Action{{Text: redteam.Final(task)}})
	}
}

func (c *checker) guess() {
	for _, f := range c.known.families() {
		count := map[string]int{}
		most := 0
		for _, t := range f.tasks {
			if a := strings.Join(values(t), "; "); a != "" {
				count[a]++
				most = max(most, count[a])
			}
		}
		if len(count) == 0 || len(count) == 1 && redteam.Final(f.tasks[0]) == redteam.Abstain {
			continue // judged by the world's state, or a family of abstentions, which the evidence rule holds
		}
		if need := min(20, len(f.tasks)); len(count) < need {
			c.Errorf("%s of %s: %d different answers in %d tasks, want %d or more", f.name, f.split, len(count), len(f.tasks), need)
		}
		if len(f.tasks) == answers && most > answers/6 {
			c.Errorf("%s of %s: one answer is right in %d of %d tasks", f.name, f.split, most, len(f.tasks))
		}
	}
}

// values splits the gold answer of a task into its values: what stands after the colon, or the whole text. There are none
// where the task is judged by the world's state alone.
func values(task envs.Task) []string {
	if len(task.Want) == 0 {
		return nil
	}
	answer := redteam.Final(task)
	if _, after, ok := strings.Cut(answer, ":"); ok {
		answer = after
	}
	var out []string
	for _, v := range strings.Split(answer, ";") {
		if v = strings.TrimSpace(v); v != "" {
			out = append(out, v)
		}
	}
	return out
}

// answered says whether a text holds all values of a task's answer.
func answered(text string, task envs.Task) bool {
	all := values(task)
	return len(all) > 0 && !slices.ContainsFunc(all, func(v string) bool { return !holds(text, v) })
}

// holds says whether text has value as a word of its own.
func holds(text, value string) bool {
	at := 0
	for {
		i := strings.Index(text[at:], value)
		if i < 0 {
			return false
		}
		i += at
		rest := strings.TrimPrefix(text[i+len(value):], ".") // a full stop; "4" is not in "4.5" all the same
		if (i == 0 || !wordy(text[i-1])) && (rest == "" || !wordy(rest[0])) {
			return true
		}
		at = i + 1
	}
}

func wordy(b byte) bool {
	return b >= '0' && b <= '9' || b >= 'a' && b <= 'z' || b >= 'A' && b <= 'Z' || b >= 0x80 || b == '.'
}
