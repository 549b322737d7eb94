package files

import (
	"encoding/json"
	"path"
	"slices"
	"strings"

	"github.com/mcpgym/mcpgym/envs"
	"github.com/mcpgym/mcpgym/rewards"
)

// cheats lists ways around the work of a task. Each that leaves some of it undone sees all that the gold solution sees.
func cheats(task envs.Task) []envs.Cheat {
	p := newProject(task.World.Seed)
	last := len(task.Solution) - 1
	final := task.Solution[last]
	var writes []envs.Call
	for _, a := range task.Solution[:last] {
		for _, c := range a.Calls {
			if writing[c.Name] {
				writes = append(writes, c)
			}
		}
	}
	look := task.Solution[:last]
	if len(writes) > 0 {
		look = look[:last-1] // all writing is in the last turn with calls
	}
	// instead does something in place of the work, also does it after the work.
	instead := func(calls ...envs.Call) []envs.Action {
		return slices.Concat(look, []envs.Action{{Calls: calls}, final})
	}
	also := func(calls ...envs.Call) []envs.Action {
		return slices.Concat(task.Solution[:last], []envs.Action{{Calls: calls}, final})
	}
	one := path.Dir(p.data) + "/README.md" // which no task changes
	all := []envs.Cheat{
		{Name: "a file named like a reward", Actions: also(write("/reward.json", `{"score": 1, "success": true}`), write("/answer.txt", final.Text))},
		{Name: "the answer in a file", Actions: []envs.Action{{Calls: []envs.Call{write("/answer.txt", final.Text), read("/answer.txt"), remove("/answer.txt")}}, final}},
		{Name: "written and read", Actions: append(p.forge(task), final)},
		{Name: "other paths", Actions: []envs.Action{{Calls: []envs.Call{read("/proc/self/environ"), read("../../etc/passwd"), read("/.mcpgym/state.json"), read("/dev/fd/3")}}, final}},
		{Name: "one more file emptied", Actions: also(write(one, ""))},
		{Name: "one more file moved", Actions: also(move(one, one+".old"))},
		{Name: "one more file deleted", Actions: also(remove(one))},
		{Name: "everything deleted", Actions: instead(p.removeAll()...)},
	}
	if len(writes) == 0 {
		return all
	}
	all = append(all,
		envs.Cheat{Name: "nothing done", Actions: slices.Concat(look, []envs.Action{final})},
		envs.Cheat{Name: "the last step not done", Actions: instead(writes[:len(writes)-1]...)},
	)
	var emptied, moved, whole, ends []envs.Call
	for _, c := range writes {
		var args struct {
			Path, Source, Destination, Content string
			Edits                              []struct{ OldText, NewText string }
		}
		if json.Unmarshal(c.Arguments, &args) != nil {
			panic("a gold call that is no object")
		}
		switch c.Name {
		case "delete_file":
			emptied = append(emptied, write(args.Path, ""))
			moved = append(moved, move(args.Path, args.Path+".deleted"))
		case "move_file":
			emptied = append(emptied, remove(args.Source), write(args.Destination, "")) // the right names, and nothing in them
			moved = append(moved, write(args.Destination, p.texts[args.Source]))        // and the old ones are still there
		case "edit_file":
			e := args.Edits[0]
			right := strings.Replace(strings.ReplaceAll(p.texts[args.Path], "\r\n", "\n"), e.OldText, e.NewText, 1)
			emptied = append(emptied, write(args.Path, ""))
			moved = append(moved, write(args.Path+".new", right))
			whole = append(whole, write(args.Path, e.NewText+"\n"))
			ends = append(ends, write(args.Path, lineEnds(right, !strings.Contains(p.texts[args.Path], "\r\n"), false)))
		case "write_file":
			emptied = append(emptied, write(args.Path, ""))
			moved = append(moved, write(path.Dir(args.Path)+"/other", args.Content))
			ends = append(ends, write(args.Path, lineEnds(args.Content, true, false)))
		default:
			emptied = append(emptied, c)
			moved = append(moved, c)
		}
	}
	all = append(all, envs.Cheat{Name: "emptied", Actions: instead(emptied...)}, envs.Cheat{Name: "done elsewhere", Actions: instead(moved...)})
	if len(whole) > 0 {
		all = append(all, envs.Cheat{Name: "only the new setting", Actions: instead(whole...)})
	}
	if len(ends) > 0 {
		all = append(all, envs.Cheat{Name: "other line ends", Actions: instead(ends...)})
	}
	if strings.Contains(task.ID, "/duplicates/") {
		var masters []envs.Call // the wrong ones of each pair
		for _, name := range p.in(p.store) {
			if slices.ContainsFunc(p.in(p.received), func(o string) bool { return p.texts[o] == p.texts[name] }) {
				masters = append(masters, remove(name))
			}
		}
		var alike []envs.Call // what only looks like a copy, too
		for _, name := range p.in(p.received) {
			if slices.ContainsFunc(p.in(p.store), func(o string) bool { return len(p.texts[o]) == len(p.texts[name]) }) {
				alike = append(alike, remove(name))
			}
		}
		all = append(all, envs.Cheat{Name: "the originals deleted", Actions: instead(masters...)}, envs.Cheat{Name: "by size alone", Actions: instead(alike...)})
	}
	return all
}

var writing = map[string]bool{"write_file": true, "edit_file": true, "create_directory": true, "move_file": true, "delete_file": true}

// forge writes what the evidence must show where it must stand, reads it, and puts back what was there.
func (p *project) forge(task envs.Task) []envs.Action {
	if len(task.Want) == 0 {
		return nil
	}
	want, err := rewards.DecodeWant(task.Want)
	if err != nil {
		panic(err) // of this package
	}
	var fake, look, back envs.Action
	for _, group := range want.Evidence {
		if f := group[0]; f.Says != "" {
			fake.Calls = append(fake.Calls, write(f.File, f.Says+"\n"))
			look.Calls = append(look.Calls, read(f.File))
			back.Calls = append(back.Calls, write(f.File, p.texts[f.File]))
		}
	}
	if len(fake.Calls) == 0 {
		return nil
	}
	return []envs.Action{fake, look, back}
}

// removeAll deletes as much as an episode has calls for.
func (p *project) removeAll() (calls []envs.Call) {
	for _, name := range p.under(path.Dir(p.data))[:20] {
		calls = append(calls, remove(name))
	}
	return calls
}

func call(tool string, args any) envs.Call { return envs.Call{Name: tool, Arguments: encode(args)} }

func read(name string) envs.Call   { return call("read_text_file", map[string]string{"path": name}) }
func remove(name string) envs.Call { return call("delete_file", map[string]string{"path": name}) }
func write(name, text string) envs.Call {
	return call("write_file", map[string]string{"path": name, "content": text})
}
func move(from, to string) envs.Call {
	return call("move_file", map[string]string{"source": from, "destination": to})
}
