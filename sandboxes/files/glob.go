package files

import (
	"fmt"
	"path"
	"strings"
)

// glob is a pattern of paths, by their parts. "**" stands for any number of parts, none too; at the end for one or more.
type glob []string

func newGlob(pattern string) (glob, error) {
	switch {
	case pattern == "" || len(pattern) > MaxPath:
		return nil, fmt.Errorf("a pattern has 1 to %d bytes, this one has %d", MaxPath, len(pattern))
	case strings.ContainsAny(pattern, "{}"):
		return nil, fmt.Errorf("pattern %q: there are no alternatives {a,b}, make a call for each", pattern)
	}
	var g glob
	for part := range strings.SplitSeq(strings.TrimPrefix(pattern, "/"), "/") {
		if _, err := path.Match(part, ""); err != nil {
			return nil, fmt.Errorf("pattern %q: a [ without its ], or a \\ at an end", pattern)
		}
		if part == "**" && len(g) > 0 && g[len(g)-1] == "**" {
			continue
		}
		g = append(g, part)
	}
	return g, nil
}

// match says whether a whole path fits.
func (g glob) match(name string) bool {
	parts := strings.Split(name, "/")
	fits := make([]bool, len(parts)+1) // by number of parts: whether the pattern so far fits them
	fits[0] = true
	for n, p := range g {
		next := make([]bool, len(fits))
		for i := range fits {
			switch {
			case p == "**" && n == len(g)-1:
				next[i] = i > 0 && (fits[i-1] || next[i-1])
			case p == "**":
				next[i] = fits[i] || i > 0 && next[i-1]
			case i > 0 && fits[i-1]:
				next[i], _ = path.Match(p, parts[i-1]) // the pattern is a good one
			}
		}
		fits = next
	}
	return fits[len(parts)]
}

// globs are patterns of what to leave out. One without a slash is about names, at any depth.
type globs []glob

func newGlobs(patterns []string) (globs, error) {
	var all globs
	for _, p := range patterns {
		g, err := newGlob(p)
		if err != nil {
			return nil, err
		}
		if !strings.Contains(p, "/") {
			g = append(glob{"**"}, g...)
		}
		all = append(all, g)
	}
	return all, nil
}

func (gs globs) match(name string) bool {
	for _, g := range gs {
		if g.match(name) {
			return true
		}
	}
	return false
}
