package files

import (
	"encoding/json"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/mcpgym/mcpgym/envs"
	"github.com/mcpgym/mcpgym/envs/envtest"
	"github.com/mcpgym/mcpgym/policies"
	"github.com/mcpgym/mcpgym/rewards"
	"github.com/mcpgym/mcpgym/sandboxes/files"
)

func newSpec(t testing.TB) envs.Spec {
	t.Helper()
	spec, err := Spec(files.New)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, spec.Sandboxes.Close()) })
	return spec
}

func TestEnv(t *testing.T) { envtest.Check(t, newSpec(t)) }

func TestSplitsAreDisjoint(t *testing.T) {
	spec, seen := Rules(), map[uint64]string{}
	for _, name := range spec.SplitNames() {
		for i := range 300 {
			task := spec.Splits[name].Task(i)
			require.Empty(t, seen[task.World.Seed], task.ID)
			seen[task.World.Seed] = task.ID
		}
	}
}

// The trees have what makes the work hard, and nothing that the tools would refuse.
func TestProjects(t *testing.T) {
	var crlf, open, long, foreign, alike int
	for seed := range uint64(40) {
		p := newProject(seed)
		require.Equal(t, p.texts, newProject(seed).texts, "equal seeds, equal trees")
		require.NotEqual(t, p.texts, newProject(seed+1).texts)
		total := 0
		for name, text := range p.texts {
			total += len(text)
			require.NotContains(t, path.Dir(name), " ", "the verifier asks for folders, which may not look like a question")
			if ends := strings.Count(text, "\r\n"); ends > 0 {
				require.Equal(t, strings.Count(text, "\n"), ends, "%s has two kinds of line ends", name)
				crlf++
			}
			if !strings.HasSuffix(text, "\n") {
				open++
			}
			if len(text) > resultBytes {
				long++
			}
			if strings.ContainsFunc(name, func(r rune) bool { return r > 127 }) {
				foreign++
			}
		}
		for _, a := range p.in(p.received) {
			for _, b := range p.in(p.store) {
				if len(p.texts[a]) == len(p.texts[b]) && p.texts[a] != p.texts[b] {
					alike++
				}
			}
		}
		require.Less(t, total, 200<<10)
	}
	for what, n := range map[string]int{"CRLF": crlf, "no last line end": open, "more than a page": long, "letters beyond ASCII in names": foreign, "of a size and not alike": alike} {
		require.GreaterOrEqual(t, n, 20, what)
	}
}

// firstOf gives the first tasks of a family, train's or else ood's.
func firstOf(t *testing.T, family string, n int) (all []envs.Task) {
	spec := Rules()
	for _, split := range []string{"train", "ood"} {
		for i := 0; len(all) < n && i < 20*n; i++ {
			if task := spec.Splits[split].Task(i); task.Family == family {
				all = append(all, task)
			}
		}
	}
	require.Len(t, all, n, family)
	return all
}

func answers(t *testing.T, task envs.Task) (all []string) {
	want, err := rewards.DecodeWant(task.Want)
	require.NoError(t, err)
	for _, v := range want.Answer {
		all = append(all, v.Value)
	}
	return all
}

var inQuotes = regexp.MustCompile(`"([^"]+)"`)

// settings reads a file of settings by its lines alone: section and key, and each value that they have.
func settings(text string) map[[2]string][]string {
	all, section := map[[2]string][]string{}, ""
	for line := range strings.Lines(text) {
		line = strings.Trim(line, " \r\n,")
		key, value, isSetting := strings.Cut(line, "=")
		if !isSetting {
			key, value, _ = strings.Cut(line, ":")
		}
		key, value = strings.Trim(key, ` "`), strings.Trim(value, ` "`)
		switch {
		case strings.HasPrefix(line, "[") || value == "" || value == "{":
			section = strings.Trim(key, "[]")
		case !strings.HasPrefix(line, ";") && !strings.HasPrefix(line, "#"):
			all[[2]string{section, key}] = append(all[[2]string{section, key}], value)
		}
	}
	return all
}

// What tasks ask for is found again by other means, and is one thing: no ties, no second place where it stands.
func TestAnswers(t *testing.T) {
	for _, task := range firstOf(t, "count", 20) {
		p, q := newProject(task.World.Seed), inQuotes.FindAllStringSubmatch(task.Prompt, -1)
		var found []string
		for name := range p.texts {
			if strings.HasPrefix(name, q[0][1]+"/") && strings.HasSuffix(name, q[1][1]) {
				found = append(found, name)
			}
		}
		slices.SortFunc(found, func(a, b string) int { return len(p.texts[b]) - len(p.texts[a]) })
		require.Equal(t, []string{strconv.Itoa(len(found)), found[0]}, answers(t, task))
		require.Less(t, len(p.texts[found[1]]), len(p.texts[found[0]]), task.ID)
	}
	for _, task := range firstOf(t, "row", 20) {
		p, q := newProject(task.World.Seed), inQuotes.FindStringSubmatch(task.Prompt)
		code := regexp.MustCompile(`[A-Z]{2}-\d{4}`).FindString(task.Prompt)
		text := strings.ReplaceAll(p.texts[q[1]], "\r", "")
		require.Equal(t, 1, strings.Count(text, "\n"+code+";"), task.ID)
		_, line, _ := strings.Cut(text, "\n"+code+";")
		line, _, _ = strings.Cut(line, "\n")
		for _, a := range answers(t, task) {
			require.Contains(t, strings.Split(line, ";"), a)
		}
	}
	for _, task := range firstOf(t, "last-error", 20) {
		p, q := newProject(task.World.Seed), inQuotes.FindStringSubmatch(task.Prompt)
		log := p.texts[q[1]]
		line, _, _ := strings.Cut(log[strings.LastIndex(log, " ERROR "):], "\n")
		a := answers(t, task)
		require.Contains(t, line, "job "+a[0]+" failed with code "+a[1])
		require.Less(t, strings.Count(log[strings.LastIndex(log, " ERROR "):], "\n"), 40)
	}
	for _, family := range []string{"setting", "edit", "differs", "follow"} {
		for _, task := range firstOf(t, family, 20) {
			p := newProject(task.World.Seed)
			want, err := rewards.DecodeWant(task.Want)
			require.NoError(t, err)
			file := want.Evidence[0][0].File
			found := 0
			for at, values := range settings(p.texts[file]) {
				require.Len(t, values, 1, "%s: %s has %v twice", task.ID, file, at)
				named := strings.Contains(task.Prompt, at[0]) && strings.Contains(task.Prompt, at[1])
				if family == "differs" {
					named = slices.Equal(answers(t, task), []string{at[0], at[1], values[0]})
					require.Equal(t, named, values[0] != settings(p.texts[file+".bak"])[at][0], "%s: %v", task.ID, at)
				}
				if named && (family == "follow" || values[0] == answers(t, task)[len(want.Answer)-1]) {
					found++
				}
			}
			require.GreaterOrEqual(t, found, 1, "%s: %s\n%s", task.ID, task.Prompt, p.texts[file])
			require.Regexp(t, `/(\w+/main|\w+)\.(ini|toml|yaml|json)$`, file, "not a copy")
		}
	}
	for _, task := range firstOf(t, "duplicates", 20) {
		p := newProject(task.World.Seed)
		var gone []string
		for _, name := range p.in(p.received) {
			if slices.ContainsFunc(p.in(p.store), func(o string) bool { return p.texts[o] == p.texts[name] }) {
				gone = append(gone, regexp.QuoteMeta("removed "+name))
			}
		}
		require.Equal(t, gone, task.Allow)
	}
}

// Work that is done in another way than gold does it is as good, but for the calls that it takes.
func TestOtherWays(t *testing.T) {
	spec := newSpec(t)
	e, err := envs.New(spec)
	require.NoError(t, err)
	defer e.Close()
	play := func(t *testing.T, task envs.Task, turns ...envs.Action) {
		t.Helper()
		steps := make([]envs.Step, len(turns))
		for i, a := range turns {
			steps[i].Action = a
		}
		tr, err := policies.Rollout(t.Context(), e, task, policies.Replay{Steps: steps}, 1)
		require.NoError(t, err)
		require.True(t, tr.Score.Success, "%s: %+v", task.ID, tr.Score)
		require.GreaterOrEqual(t, tr.Score.Value, 0.9, "%s: %+v", task.ID, tr.Score.Parts)
	}
	turn := func(calls ...envs.Call) envs.Action { return envs.Action{Calls: calls} }
	for _, task := range firstOf(t, "count", 3) {
		top := inQuotes.FindStringSubmatch(task.Prompt)[1]
		list := func(folder string) envs.Call { return call("list_directory", map[string]string{"path": top + folder}) }
		play(t, task, turn(list("")), turn(list("/raw")), turn(list("/raw/spring"), list("/raw/autumn")), task.Solution[len(task.Solution)-1])
	}
	for _, task := range firstOf(t, "setting", 3) {
		want, err := rewards.DecodeWant(task.Want)
		require.NoError(t, err)
		play(t, task, task.Solution[0], turn(call("read_multiple_files", map[string]any{"paths": []string{want.Evidence[0][0].File[1:]}})), envs.Action{Text: "It says so.\nANSWER: " + answers(t, task)[0]})
	}
	for _, task := range firstOf(t, "edit", 3) {
		var text, file string
		for _, a := range task.Assertions {
			file = a.Ask.Text
			require.NoError(t, json.Unmarshal(a.Want, &text))
		}
		play(t, task, task.Solution[0], task.Solution[1], turn(write(file, text)), task.Solution[3])
	}
	for _, task := range firstOf(t, "fuller", 3) { // by lists
		q := inQuotes.FindAllStringSubmatch(task.Prompt, -1)
		play(t, task, turn(call("list_directory", map[string]any{"path": q[0][1]}), call("list_directory", map[string]any{"path": q[1][1]})), task.Solution[1])
	}
	for _, family := range []string{"rename", "duplicates", "by-list"} {
		for _, task := range firstOf(t, family, 3) {
			turns := slices.Clone(task.Solution)
			at := len(turns) - 2
			turns[at].Calls = slices.Clone(turns[at].Calls)
			slices.Reverse(turns[at].Calls)
			play(t, task, turns...)
		}
	}
}
