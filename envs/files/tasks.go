package files

import (
	"encoding/json"
	"fmt"
	"hash/fnv"
	"maps"
	"math/rand/v2"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/mcpgym/mcpgym/envs"
	"github.com/mcpgym/mcpgym/rewards"
	"github.com/mcpgym/mcpgym/sandboxes"
	"github.com/mcpgym/mcpgym/sandboxes/files"
)

// family makes tasks of one kind. make returns false where the project at hand has no such task.
type family struct {
	name string
	make func(d *draft) bool
}

// split generates tasks: families take turns, each task has a project of its own, and no two splits share a seed stream.
func split(name string, families []family) envs.Source {
	h := fnv.New64a()
	h.Write([]byte("files " + name))
	salt := h.Sum64()
	return envs.Generator(func(index int) envs.Task {
		f := families[index%len(families)]
		for try := uint64(0); ; try++ {
			r := rand.New(rand.NewPCG(salt^try<<40, uint64(index)))
			seed := r.Uint64() >> 11 // stays exact in readers that know only doubles
			d := &draft{Rand: r, project: newProject(seed)}
			d.after = maps.Clone(d.texts)
			if f.make(d) && len(d.after) > 0 {
				return d.task(fmt.Sprintf("%s/%s/%d", name, f.name, index), f.name, seed)
			}
		}
	})
}

// draft collects a task while its family makes it: the prompt, the gold calls and what they do, the evidence and the answer.
type draft struct {
	*rand.Rand // hides that of the project, which must not go on
	*project
	after    map[string]string // the texts as the gold solution leaves them
	made     []string          // folders
	wrote    []string          // files whose text it has changed
	prompt   string
	turns    []envs.Action
	calls    int
	evidence [][]rewards.Fact
	answer   []rewards.Value
}

func (d *draft) task(id, family string, seed uint64) envs.Task {
	t := envs.Task{ID: id, Family: family, Prompt: d.prompt, World: sandboxes.World{Seed: seed}, Par: d.calls, Solution: d.turns, Assertions: d.asserts()}
	final := "Done."
	if len(d.answer) > 0 {
		t.Want = encode(rewards.Want{Answer: d.answer, Evidence: d.evidence})
		final = rewards.AnswerLine(d.answer)
	}
	t.Solution = append(t.Solution, envs.Action{Text: final})
	for _, line := range d.difference() {
		t.Allow = append(t.Allow, regexp.QuoteMeta(line))
	}
	return t
}

// encode gives the JSON of what is made of plain strings and numbers.
func encode(v any) json.RawMessage {
	raw, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return raw
}

// ask words the prompt in one of several ways; pairs are placeholders and what stands for them.
func (d *draft) ask(wordings []string, pairs ...string) bool {
	d.prompt = strings.NewReplacer(pairs...).Replace(pick(d.Rand, wordings))
	return true
}

// Gold calls. Those between two calls of turn are one turn.

func (d *draft) turn() { d.turns = append(d.turns, envs.Action{}) }

func (d *draft) call(tool string, args map[string]any) {
	last := &d.turns[len(d.turns)-1]
	last.Calls = append(last.Calls, envs.Call{ID: fmt.Sprintf("call_%d", d.calls), Name: tool, Arguments: encode(args)})
	d.calls++
}

func (d *draft) list(folder string) { d.call("list_directory", map[string]any{"path": folder}) }
func (d *draft) tree(folder string) { d.call("directory_tree", map[string]any{"path": folder}) }

// search finds files; those that match are known. Each page is a turn.
func (d *draft) search(folder, pattern string, matches []string) {
	left := resultBytes
	args := map[string]any{"path": folder, "pattern": pattern}
	d.turn()
	d.call("search_files", args)
	for i, m := range matches {
		size := len(encode(struct {
			Path string `json:"path"`
			Type string `json:"type"`
			Size int    `json:"size"`
		}{m, "file", len(d.texts[m])})) + 1
		if left -= size; left < 0 {
			args["cursor"], left = strconv.Itoa(i), resultBytes-size
			d.turn()
			d.call("search_files", args)
		}
	}
}

// readTo reads a file from its beginning until a place in it was seen. Each page is a turn.
func (d *draft) readTo(name string, place int) {
	text, at := d.texts[name], 0
	for args := map[string]any{"path": name}; ; args["cursor"] = strconv.Itoa(at) {
		d.turn()
		d.call("read_text_file", args)
		if at += page(text[at:]); at > place || at >= len(text) {
			return
		}
	}
}

// page is the length of the first page of a text.
func page(text string) int {
	n := 0
	for i, r := range text {
		size := utf8.RuneLen(r)
		if r == '"' || r == '\\' || r == '\n' || r == '\r' {
			size = 2
		}
		if n += size; n > resultBytes {
			return strings.LastIndexByte(text[:i], '\n') + 1
		}
	}
	return len(text)
}

// readAll reads small files, in one turn.
func (d *draft) readAll(names []string) {
	var part []string
	size := 0
	d.turn()
	for i, name := range names {
		size += len(encode(map[string]string{"path": name, "content": d.texts[name]})) + 1
		if size > resultBytes && len(part) > 0 {
			d.call("read_multiple_files", map[string]any{"paths": part})
			part, size = nil, len(encode(map[string]string{"path": name, "content": d.texts[name]}))+1
		}
		if part = append(part, name); i == len(names)-1 {
			d.call("read_multiple_files", map[string]any{"paths": part})
		}
	}
}

// edit replaces a piece of a file, whose lines end in "\n" for those who quote it.
func (d *draft) edit(name, old, by string) {
	d.call("edit_file", map[string]any{"path": name, "edits": []map[string]string{{"oldText": old, "newText": by}}})
	text := d.after[name]
	crlf := strings.Contains(text, "\r\n")
	d.after[name] = lineEnds(strings.Replace(strings.ReplaceAll(text, "\r\n", "\n"), old, by, 1), crlf, false)
	d.wrote = append(d.wrote, name)
}

func (d *draft) write(name, text string) {
	d.call("write_file", map[string]any{"path": name, "content": text})
	d.after[name] = text
	d.wrote = append(d.wrote, name)
}

func (d *draft) move(from, to string) {
	d.call("move_file", map[string]any{"source": from, "destination": to})
	d.after[to] = d.after[from]
	delete(d.after, from)
}

func (d *draft) remove(name string) {
	d.call("delete_file", map[string]any{"path": name})
	delete(d.after, name)
}

func (d *draft) mkdir(name string) {
	d.call("create_directory", map[string]any{"path": name})
	d.made = append(d.made, name)
}

// What the gold solution leaves.

// difference lists what has changed. Files that are as they were are left out, since to describe them all takes its time.
func (d *draft) difference() []string {
	before, after := map[string]string{}, map[string]string{}
	for name, text := range d.texts {
		if now, ok := d.after[name]; !ok || now != text {
			before[name] = text
		}
	}
	for name, text := range d.after {
		if was, ok := d.texts[name]; !ok || was != text {
			after[name] = text
		}
	}
	if len(before)+len(after) == 0 {
		return nil
	}
	diff, err := files.Difference(setupOf(before, foldersOf(d.texts)), setupOf(after, d.folders()))
	if err != nil {
		panic(err) // trees of this package
	}
	return diff
}

// foldersOf lists the folders of files.
func foldersOf(texts map[string]string) []string {
	all := map[string]bool{}
	for name := range texts {
		for up := path.Dir(name); !all[up] && up != "/"; up = path.Dir(up) {
			all[up] = true
		}
	}
	return slices.Sorted(maps.Keys(all))
}

// folders are those that there are in the end: none is removed.
func (d *draft) folders() []string {
	all := slices.Concat(foldersOf(d.texts), foldersOf(d.after), d.made)
	slices.Sort(all)
	return slices.Compact(all)
}

// asserts asks for the files that were written, and for what is in each folder that has gained or lost something.
func (d *draft) asserts() (all []envs.Assertion) {
	touched := map[string]bool{}
	for name := range d.texts {
		if _, ok := d.after[name]; !ok {
			touched[path.Dir(name)] = true
		}
	}
	for name := range d.after {
		if _, ok := d.texts[name]; !ok {
			touched[path.Dir(name)] = true
		}
	}
	for _, name := range d.wrote {
		all = append(all, envs.Assertion{Ask: sandboxes.Question{Kind: "text", Text: name}, Want: encode(d.after[name])})
	}
	for _, folder := range slices.Sorted(maps.Keys(touched)) {
		all = append(all, envs.Assertion{Ask: sandboxes.Question{Kind: "list", Text: folder}, Want: encode(d.listing(folder))})
	}
	return all
}

// listing lists what is under a folder in the end, as directory_tree does.
func (d *draft) listing(folder string) []string {
	all := []string{}
	for name := range d.after {
		if strings.HasPrefix(name, folder+"/") {
			all = append(all, name)
		}
	}
	for _, name := range d.folders() {
		if strings.HasPrefix(name, folder+"/") {
			all = append(all, name+"/")
		}
	}
	slices.SortFunc(all, byParts)
	return all
}

// Answers and evidence.

func number(n int) rewards.Value  { return rewards.Value{Kind: "number", Value: strconv.Itoa(n)} }
func text(s string) rewards.Value { return rewards.Value{Kind: "text", Value: s} }
func date(s string) rewards.Value { return rewards.Value{Kind: "date", Value: s} }
func pathOf(s string) rewards.Value {
	return rewards.Value{Kind: "text", Value: s, Accept: []string{s[1:]}}
}

// valueOf is a setting or a cell: a number, a date or a text.
func valueOf(s string) rewards.Value {
	if n, err := strconv.Atoi(s); err == nil {
		return number(n)
	}
	if len(s) == len("2031-01-02") && s[4] == '-' {
		return date(s)
	}
	return text(s)
}

func (d *draft) say(values ...rewards.Value) { d.answer = append(d.answer, values...) }

// need asks for a fact that one result must show; alternatives are as good.
func (d *draft) need(facts ...rewards.Fact) { d.evidence = append(d.evidence, facts) }

// needSize asks for the size of a file.
func (d *draft) needSize(name string) {
	d.need(rewards.Fact{Has: map[string]any{"path": name, "size": len(d.texts[name])}})
}

// needListed asks that a file was seen in a list.
func (d *draft) needListed(name string) { d.need(rewards.Fact{File: name}) }

// needText asks that a file was read where it has a text.
func (d *draft) needText(name, says string) { d.need(rewards.Fact{File: name, Says: says}) }
