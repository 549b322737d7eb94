// Package files leases file trees: each agent works in a folder of its own, through tools named after those of the reference
// MCP file system server.
//
// A tree holds files and folders, and its root is "/" to the agent. Everything reaches it through os.Root, so that no path
// and no link leads out of it, whenever it was put there. No tool makes a link, and none follows one. Results do not depend
// on the machine: lists are sorted, and times, inode numbers and paths of the host are in none.
package files

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/mcpgym/mcpgym/sandboxes"
)

// Version changes whenever the tools, their results or the reading of states do.
const Version = "1"

// Limits bound what an agent can make of a tree and be shown of it. What is zero gets the default.
type Limits struct {
	Bytes   int64 `json:"bytes,omitempty"`   // of all files together; 8 MiB unless given
	Entries int   `json:"entries,omitempty"` // files and folders; 2,000 unless given
	Result  int   `json:"result,omitempty"`  // bytes of JSON that one result shows of a text or a list; 16 KiB unless given. What is around them takes up to 1 KiB more
}

// minResult lets every page show something, and maxResult every message hold one.
const (
	minResult = 256
	maxResult = 2 << 20
)

func (l Limits) withDefaults() Limits {
	return Limits{cmp.Or(l.Bytes, 8<<20), cmp.Or(l.Entries, 2000), cmp.Or(l.Result, 16<<10)}
}

// Setup is what a tree is made from. Paths are spelt as agents spell them: "/notes/a.txt" or "notes/a.txt". The folders of a
// file come with it.
type Setup struct {
	Files   map[string]File `json:"files,omitempty"`
	Folders []string        `json:"folders,omitempty"` // needed only for those that hold no file
	Limits  Limits          `json:"limits,omitzero"`
}

// File is one file of a Setup: Text, or Base64 for bytes that are no text.
type File struct {
	Text   string `json:"text,omitempty"`
	Base64 []byte `json:"base64,omitempty"`
	Mode   string `json:"mode,omitempty"` // octal, "0644" unless given. The tools refuse to change a file that its owner may not write
}

// Decode reads a Setup from a world's setup. A world without one is an empty tree.
func Decode(w sandboxes.World) (Setup, error) {
	var s Setup
	if len(w.Setup) == 0 {
		return s, nil
	}
	d := json.NewDecoder(bytes.NewReader(w.Setup))
	d.DisallowUnknownFields()
	err := d.Decode(&s)
	if err == nil {
		if _, err = d.Token(); err == io.EOF {
			return s, nil
		}
		err = errors.New("text after it")
	}
	return s, fmt.Errorf("read the setup of a file tree: %w", err)
}

const (
	fileMode   = fs.FileMode(0o644)
	folderMode = fs.FileMode(0o755)
)

// node is a file or a folder of a Setup.
type node struct {
	name string // as os.Root takes it
	mode fs.FileMode
	data []byte
}

// nodes lists what a Setup describes, sorted, so that each folder comes before what is in it.
func (s Setup) nodes() ([]node, error) {
	all := map[string]node{}
	folder := func(name string) error {
		for ; name != "."; name = parent(name) {
			if n, ok := all[name]; ok && !n.mode.IsDir() {
				return fmt.Errorf("%s is a file and a folder", show(name))
			}
			all[name] = node{name: name, mode: fs.ModeDir | folderMode}
		}
		return nil
	}
	for _, p := range slices.Sorted(maps.Keys(s.Files)) {
		f := s.Files[p]
		name, isFolder, err := clean(p)
		if err == nil && isFolder {
			err = errors.New("a file's name does not end in a slash")
		}
		if err != nil {
			return nil, fmt.Errorf("file %.60q: %w", p, err)
		}
		n := node{name: name, mode: fileMode, data: []byte(f.Text)}
		if len(f.Base64) > 0 {
			if f.Text != "" {
				return nil, fmt.Errorf("file %s has text and base64", p)
			}
			n.data = f.Base64
		}
		if f.Mode != "" {
			m, err := strconv.ParseUint(f.Mode, 8, 32)
			if err != nil || m&^0o777 != 0 || m&0o400 == 0 {
				return nil, fmt.Errorf("file %s has mode %q, want octal permissions that let its owner read it", p, f.Mode)
			}
			n.mode = fs.FileMode(m)
		}
		if _, twice := all[name]; twice {
			return nil, fmt.Errorf("%s comes twice", show(name))
		}
		if err := folder(parent(name)); err != nil {
			return nil, err
		}
		all[name] = n
	}
	for _, p := range s.Folders {
		name, _, err := clean(p)
		if err != nil {
			return nil, fmt.Errorf("folder %.60q: %w", p, err)
		}
		if err := folder(name); err != nil {
			return nil, err
		}
	}
	return slices.SortedFunc(maps.Values(all), func(a, b node) int { return strings.Compare(a.name, b.name) }), nil
}

// picture describes all that is in a tree, by name.
type picture map[string]string

func (p picture) hash() string {
	h := sha256.New()
	for _, name := range slices.Sorted(maps.Keys(p)) {
		line := name + " " + p[name]
		fmt.Fprintf(h, "%d %s\n", len(line), line)
	}
	return fmt.Sprintf("%x", h.Sum(nil))
}

// describe gives what counts of a file or a folder.
func describe(mode fs.FileMode, size int64, sum []byte) string {
	if mode.IsDir() {
		return fmt.Sprintf("directory %#o", mode.Perm())
	}
	return fmt.Sprintf("file %#o, %d bytes, sha256 %x", mode.Perm(), size, sum[:16])
}

func pictureOf(nodes []node) picture {
	p := picture{}
	for _, n := range nodes {
		sum := sha256.Sum256(n.data)
		p[n.name] = describe(n.mode, int64(len(n.data)), sum[:])
	}
	return p
}

// difference lists what it takes to get from one picture to another.
func difference(from, to picture) []string {
	var diff []string
	for name, is := range to {
		if was, ok := from[name]; !ok {
			diff = append(diff, fmt.Sprintf("added %s (%s)", show(name), is))
		} else if was != is {
			diff = append(diff, fmt.Sprintf("changed %s (%s)", show(name), is))
		}
	}
	for name := range from {
		if _, ok := to[name]; !ok {
			diff = append(diff, "removed "+show(name))
		}
	}
	slices.Sort(diff)
	return diff
}

// Difference lists, sorted, the differences that a state shows where an agent has made one tree of another: lines such as
//
//	added /a/b.txt (file 0644, 12 bytes, sha256 a948904f2f0f479b8f8197694b30184b)
//	changed /c.txt (file 0644, 0 bytes, sha256 e3b0c44298fc1c149afbf4c8996fb924)
//	removed /d
//
// What was moved is removed and added. The error says what is wrong with a Setup.
func Difference(from, to Setup) ([]string, error) {
	var p [2]picture
	for i, s := range []Setup{from, to} {
		nodes, err := s.nodes()
		if err != nil {
			return nil, err
		}
		p[i] = pictureOf(nodes)
	}
	return difference(p[0], p[1]), nil
}
