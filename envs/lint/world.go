package lint

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"

	"github.com/mcpgym/mcpgym/sandboxes"
	"github.com/mcpgym/mcpgym/sandboxes/files"
)

// project is the code of an invented project with its faults, and what tasks need to know of it.
type project struct {
	*rand.Rand
	sources []*source
	other   map[string]string // the other files, which nobody may change
	faults  []injected
}

// source is a module or a script.
type source struct {
	path    string
	name    string // of the module, empty for a script
	doc     string // what comes first
	imports []string
	unused  string  // one import more
	parts   []*part // its functions; of a script the one that is all of it
}

// part is a function, or the whole of a script but for its first line.
type part struct {
	name          string
	clean, now    string
	uses          string // a module of Python's that it needs
	faults        []fault
	shown, hidden []check
}

// fault is a thing that can be wrong with a part. One without a rule is found by tests alone.
type fault struct {
	rule   string
	broken string // the part with it
	mark   string // stands on the line of the finding, nowhere before it in the part
	gone   string // a name that a mended part does not have
}

// injected is a fault that a project has.
type injected struct {
	rule     string
	in       *source
	part     *part // nil for an import
	old, new string
	mark     string
	gone     string
}

// check is a call of the hidden tests, and what must come of it.
type check struct {
	Module string            `json:"m,omitempty"`
	Script string            `json:"s,omitempty"`
	Func   string            `json:"f,omitempty"`
	Args   []any             `json:"a,omitempty"`
	Gone   string            `json:"g,omitempty"` // instead of a call: says whether the name is still there
	Files  map[string]string `json:"d,omitempty"` // beside a script
	want   any
}

// interrupts is an argument that int cannot read, since somebody interrupts it.
var interrupts = map[string]any{"$": 1}

func (s *source) isPython() bool { return s.name != "" }

func (s *source) text(clean bool) string {
	var b strings.Builder
	b.WriteString(s.doc)
	imports := s.imports
	if s.unused != "" && !clean {
		imports = append(slices.Clone(imports), s.unused)
	}
	if len(imports) > 0 {
		b.WriteString("\n")
	}
	for _, m := range imports {
		b.WriteString("import " + m + "\n")
	}
	for _, p := range s.parts {
		if s.isPython() {
			b.WriteString("\n\n")
		}
		if clean {
			b.WriteString(p.clean)
		} else {
			b.WriteString(p.now)
		}
	}
	return b.String()
}

// line is where the linter finds a fault.
func (f injected) line() int {
	text := f.in.text(false)
	at := strings.Index(text, f.old)
	return 1 + strings.Count(text[:at+strings.Index(f.old, f.mark)], "\n")
}

// options make a project from its seed: they are a world's setup.
type options struct {
	Rules []string `json:"rules"` // faults that a linter finds are of these
	Files int      `json:"files"` // with faults
	Most  int      `json:"most"`  // faults in the first of them
	Logic bool     `json:"logic"` // and one that only tests find
}

var (
	towns   = []string{"Brenholm", "Ostermoor", "Calder Vale", "Lindquay", "Marrowby", "Tarnwick", "Yarrowdale", "Vexmouth", "Hollin Fell", "Quillsea", "Dunmere"}
	modules = []string{"ferries", "orchards", "tramlines", "saltworks", "millponds", "seedbank", "quarries", "lamps", "granary", "weighing", "lockgates", "kilns", "barges", "hedges", "moorings", "cellars",
		"trolleys", "beehives", "wagons", "turnstiles", "postbags", "windlass", "sluices", "towpath"}
	nouns = []string{"crates", "ropes", "lanterns", "benches", "valves", "charts", "ladders", "nets", "signs", "gauges", "sacks", "radios", "anchors", "barrels", "keys", "planks", "tickets", "tiles", "wheels", "stamps"}
	words = []string{"amber", "birch", "cobalt", "dune", "ember", "fjord", "garnet", "heron", "iris", "juniper", "kelp", "larch", "maple", "nettle", "osier", "poplar", "quartz", "rowan", "sorrel", "teal"}
	spare = []string{"json", "os", "re", "shutil", "string", "time", "random", "textwrap"}
)

func pick[T any](r *rand.Rand, from []T) T { return from[r.IntN(len(from))] }

// draw takes n of some, in random order.
func draw[T any](r *rand.Rand, n int, from []T) []T {
	all := make([]T, n)
	for i, at := range r.Perm(len(from))[:n] {
		all[i] = from[at]
	}
	return all
}

// between draws a number from lo to hi.
func (p *project) between(lo, hi int) int { return lo + p.IntN(hi-lo+1) }

// setup makes the tree of a world.
func setup(w sandboxes.World) (files.Setup, error) {
	var o options
	if err := json.Unmarshal(w.Setup, &o); err != nil {
		return files.Setup{}, fmt.Errorf("read the setup of a project: %w", err)
	}
	p := newProject(w.Seed, o)
	if p == nil {
		return files.Setup{}, fmt.Errorf("there is no project of seed %d with the faults %+v", w.Seed, o)
	}
	s := files.Setup{Files: map[string]files.File{}, Limits: files.Limits{Bytes: 1 << 20, Entries: 200, Result: 10000}}
	for name, text := range p.texts() {
		s.Files[name] = files.File{Text: text}
	}
	return s, nil
}

func (p *project) texts() map[string]string {
	all := map[string]string{}
	for name, text := range p.other {
		all[name] = text
	}
	for _, s := range p.sources {
		all[s.path] = s.text(false)
	}
	return all
}

// newProject makes the project of a seed, nil where it has no place for the faults.
func newProject(seed uint64, o options) *project {
	p := &project{Rand: rand.New(rand.NewPCG(seed, 0x6c696e74)), other: map[string]string{}}
	things := draw(p.Rand, len(nouns), nouns)
	next := func() string {
		n := things[0]
		things = things[1:]
		return n
	}
	for _, name := range draw(p.Rand, 3, modules) {
		s := &source{path: "/lib/" + name + ".py", name: name, doc: fmt.Sprintf("\"\"\"Functions about %s.\"\"\"\n", name)}
		for _, newFunction := range draw(p.Rand, p.between(3, 4), functions) {
			f := newFunction(p, next())
			if f.uses != "" {
				s.imports = append(s.imports, f.uses)
			}
			s.parts = append(s.parts, f)
		}
		p.sources = append(p.sources, s)
		p.other["/tests/test_"+name+".py"] = s.examples()
	}
	for _, newScript := range draw(p.Rand, 3, scripts) {
		f := newScript(p, next())
		p.sources = append(p.sources, &source{path: "/bin/" + f.name + ".sh", doc: "#!/bin/sh\n", parts: []*part{f}})
	}
	p.other["/README.md"] = fmt.Sprintf("# %s\n\nModules are in /lib, scripts in /bin, examples in /tests.\n", pick(p.Rand, towns))
	if !p.inject(o) {
		return nil
	}
	return p
}

// examples is a file of tests with what the functions do.
func (s *source) examples() string {
	var b strings.Builder
	fmt.Fprintf(&b, "\"\"\"Examples for %s.\"\"\"\n\nimport unittest\n\nimport %s\n\n\nclass Examples(unittest.TestCase):\n", s.name, s.name)
	for i, f := range s.parts {
		if i > 0 {
			b.WriteString("\n")
		}
		fmt.Fprintf(&b, "    def test_%s(self):\n", f.name)
		for _, c := range f.shown {
			args := make([]string, len(c.Args))
			for i, a := range c.Args {
				args[i] = string(encode(a))
			}
			fmt.Fprintf(&b, "        self.assertEqual(%s.%s(%s), %s)\n", s.name, f.name, strings.Join(args, ", "), encode(c.want))
		}
	}
	return b.String()
}

// inject puts faults into a project and says whether there was place for all.
func (p *project) inject(o options) bool {
	allowed := map[string]bool{}
	for _, r := range o.Rules {
		allowed[r] = true
	}
	broken := map[*part]bool{}
	left := draw(p.Rand, len(p.sources), p.sources)
	for n := range o.Files {
		most := 1
		if n == 0 {
			most = o.Most
		}
		done := false
		for i, s := range left {
			if all := s.choices(allowed); len(all) >= most {
				p.spoil(s, most, all, broken)
				left, done = append(left[:i:i], left[i+1:]...), true
				break
			}
		}
		if !done {
			return false
		}
	}
	if !o.Logic {
		return true
	}
	first := p.faults[0].in // of the language of the other faults
	for _, s := range append([]*source{first}, left...) {
		for _, f := range s.parts {
			for _, l := range f.faults {
				if l.rule == "" && !broken[f] && s.isPython() == first.isPython() {
					f.now = l.broken
					p.faults = append(p.faults, injected{in: s, part: f, old: f.now, new: f.clean})
					return true
				}
			}
		}
	}
	return false
}

// choice is a part of a source, nil for its imports, with the faults that it may have.
type choice struct {
	part   *part
	faults []fault
}

func (s *source) choices(allowed map[string]bool) (all []choice) {
	for _, f := range s.parts {
		c := choice{part: f}
		for _, x := range f.faults {
			if x.rule != "" && allowed[x.rule] {
				c.faults = append(c.faults, x)
			}
		}
		if len(c.faults) > 0 {
			all = append(all, c)
		}
	}
	if s.isPython() && allowed["F401"] {
		all = append(all, choice{})
	}
	return all
}

// spoil gives a source some faults, each in a part of its own.
func (p *project) spoil(s *source, n int, all []choice, broken map[*part]bool) {
	for _, c := range draw(p.Rand, n, all) {
		if c.part == nil {
			m := pick(p.Rand, spare)
			s.unused = m
			line := "import " + m + "\n"
			p.faults = append(p.faults, injected{rule: "F401", in: s, old: line, new: "", mark: line, gone: m})
			continue
		}
		f := pick(p.Rand, c.faults)
		c.part.now, broken[c.part] = f.broken, true
		p.faults = append(p.faults, injected{rule: f.rule, in: s, part: c.part, old: f.broken, new: c.part.clean, mark: f.mark, gone: f.gone})
	}
}

// touched are the sources that are to be mended, in order: what becomes of others the state shows.
func (p *project) touched() (all []*source) {
	for _, s := range p.sources {
		if slices.ContainsFunc(p.faults, func(f injected) bool { return f.in == s }) {
			all = append(all, s)
		}
	}
	return all
}

// checks are those of the hidden tests.
func (p *project) checks() (all []check) {
	for _, s := range p.touched() {
		for _, f := range s.parts {
			for _, c := range append(append([]check{}, f.shown...), f.hidden...) {
				if c.Module, c.Func = s.name, f.name; !s.isPython() {
					c.Module, c.Func, c.Script = "", "", s.path
				}
				all = append(all, c)
			}
		}
	}
	for _, f := range p.faults {
		if f.gone == "" {
			continue
		}
		c := check{Gone: f.gone, Module: f.in.name, Func: f.in.parts[0].name, want: false}
		if f.part != nil {
			c.Func = f.part.name
		}
		if !f.in.isPython() {
			c.Module, c.Func, c.Script = "", "", f.in.path
		}
		all = append(all, c)
	}
	return all
}

func replace(text string, pairs ...any) string {
	said := make([]string, len(pairs))
	for i, p := range pairs {
		if n, ok := p.(int); ok {
			said[i] = strconv.Itoa(n)
			continue
		}
		said[i] = p.(string)
	}
	return strings.NewReplacer(said...).Replace(text)
}
