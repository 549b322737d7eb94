package files

import (
	"cmp"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"golang.org/x/text/unicode/norm"
)

// MaxPath bounds the bytes of a path, MaxDepth its parts.
const (
	MaxPath  = 255
	MaxDepth = 16
)

// reserved begins the names that are not the agent's.
const reserved = ".mcpgym"

const allowed = `; a path is relative to the root of the tree or begins there, for example "/notes/a.txt"`

// clean reads a path as an agent spells it: relative to the root of the tree, or absolute with the root as "/". The name is
// what os.Root takes, "." or "a/b"; folder says that the path can only mean a folder, since it ends in a slash. The error
// says why a path is refused, and what is allowed.
//
// Case counts. Names that look alike because they are the same but for Unicode's form, or for what cannot be seen, are
// refused, so that there are no two of them.
func clean(p string) (name string, folder bool, err error) {
	switch {
	case p == "":
		return "", false, errors.New("the path is empty" + allowed)
	case len(p) > MaxPath:
		return "", false, fmt.Errorf("the path is %d bytes long, the limit is %d", len(p), MaxPath)
	case !utf8.ValidString(p) || strings.ContainsRune(p, utf8.RuneError):
		return "", false, fmt.Errorf("path %q is not UTF-8", p)
	}
	for _, r := range p {
		switch {
		case r == 0:
			return "", false, fmt.Errorf("path %q holds a NUL byte%s", p, allowed)
		case r == '\\':
			return "", false, fmt.Errorf("path %q holds a backslash: the parts of a path are divided by /", p)
		case !unicode.IsPrint(r):
			return "", false, fmt.Errorf("path %q holds %U, which cannot be seen: names are of letters, digits, marks and plain spaces", p, r)
		}
	}
	if !norm.NFKC.IsNormalString(p) {
		return "", false, fmt.Errorf("path %q is not in Unicode's form NFKC: write %q", p, norm.NFKC.String(p))
	}
	var parts []string
	all := strings.Split(p, "/")
	for _, part := range all {
		switch {
		case part == "" || part == ".":
		case part == ".." && len(parts) == 0:
			return "", false, fmt.Errorf("path %q leads out of the tree%s", p, allowed)
		case part == "..":
			parts = parts[:len(parts)-1]
		case strings.HasPrefix(strings.ToLower(part), reserved):
			return "", false, fmt.Errorf("path %q: names that begin with %s are reserved", p, reserved)
		default:
			parts = append(parts, part)
		}
	}
	if len(parts) > MaxDepth {
		return "", false, fmt.Errorf("path %q has %d parts, the limit is %d", p, len(parts), MaxDepth)
	}
	folder = slices.Contains([]string{"", ".", ".."}, all[len(all)-1])
	return cmp.Or(strings.Join(parts, "/"), "."), folder, nil
}

// show gives a name as the agent sees it.
func show(name string) string {
	if name == "." {
		return "/"
	}
	return "/" + name
}

// parent gives the name of the folder that a name is in. The root is in itself.
func parent(name string) string { return path.Dir(name) }
