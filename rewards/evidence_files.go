package rewards

import (
	"slices"
	"strings"

	"github.com/mcpgym/mcpgym/envs"
)

// showsFile says whether a result shows a fact about a file, and where.
func (f Fact) showsFile(r *result) (at int32, ok bool) {
	if !strings.Contains(r.text, `\`) && !strings.Contains(r.text, f.File) || !r.readBody() {
		return 0, false
	}
	d, said := &r.body, f.File
	for at = range int32(len(d.items)) {
		if f.Says == "" {
			ok = d.kind(at) == '"' && d.str(at) == f.File
		} else if name := d.member(at, "path"); name >= 0 && d.kind(name) == '"' && d.str(name) == f.File {
			said, at = f.Says, d.member(at, "content")
			ok = at >= 0 && d.kind(at) == '"' && hasPhrase(d.str(at), f.Says)
		}
		if ok {
			return at, !slices.ContainsFunc(r.written, func(args string) bool { return spells(args, said) })
		}
	}
	return 0, false
}

// spells says whether the arguments of a call hold a phrase, in any case.
func spells(args, phrase string) bool {
	s := said{text: args}
	return hasPhrase(s.fold(), normal(phrase))
}

// mayWrite says whether a tool may write, as one that is not known may.
func mayWrite(t *envs.Trajectory, tool string) bool {
	for i := range t.Tools {
		if t.Tools[i].Name == tool {
			return !t.Tools[i].ReadOnly
		}
	}
	return true
}
