package files

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/mark3labs/mcp-go/mcp"
	"github.com/mark3labs/mcp-go/server"

	"github.com/mcpgym/mcpgym/sandboxes"
	"github.com/mcpgym/mcpgym/sandboxes/mcpmem"
)

// maxPaths bounds the files of one read_multiple_files, maxEdits the edits of one edit_file, maxExcludes the patterns.
const (
	maxPaths    = 50
	maxEdits    = 100
	maxExcludes = 20
)

func newServer() *server.MCPServer {
	readOnly := mcp.WithReadOnlyHintAnnotation(true)
	file := mcp.WithString("path", mcp.Required(), mcpmem.Entity, mcp.Description("Path of a file as other tools return it, for example /notes/a.txt"))
	folder := mcp.WithString("path", mcpmem.Entity, mcp.Description("Path of a folder; leave out for the root of the tree"))
	cursor := mcp.WithString("cursor", mcp.Description("The next_cursor of the previous page; leave out for the first page"))
	exclude := mcp.WithArray("excludePatterns", mcp.WithStringItems(), mcp.MaxItems(maxExcludes),
		mcp.Description("Patterns of what to leave out with all that is in it. A pattern without a slash is about names at any depth, another one about paths relative to the folder"))
	s := server.NewMCPServer("files", Version)
	s.AddTools(
		mcpmem.Tool("read_text_file", "Read a text file, whole or only its first or last lines. Ends of lines are shown as they are. Of what is too large for one result a part is returned with next_cursor. Binary files are refused.",
			reading(readTextFile), readOnly, file, cursor,
			mcp.WithInteger("head", mcp.Min(1), mcp.Description("Only the first lines, this many")),
			mcp.WithInteger("tail", mcp.Min(1), mcp.Description("Only the last lines, this many"))),
		mcpmem.Tool("read_multiple_files", "Read several text files at once. A file that cannot be read has an error in its place. Files that no longer fit in the result come with next_cursor.",
			reading(readMultipleFiles), readOnly, cursor,
			mcp.WithArray("paths", mcp.Required(), mcpmem.Entity, mcp.WithStringItems(), mcp.MinItems(1), mcp.MaxItems(maxPaths), mcp.Description("Paths of files"))),
		mcpmem.Tool("write_file", "Make a text file, or give one other content: all of it is replaced. The folder must be there.",
			writing(writeFile),
			mcp.WithString("path", mcp.Required(), mcp.Description("Path of the file, for example /notes/a.txt")),
			mcp.WithString("content", mcp.Required(), mcp.Description("The whole content, which ends in a line end unless the last line shall have none"))),
		mcpmem.Tool("edit_file", "Replace pieces of a text file. Each oldText must be in the file in exactly one place, character for character; edits are made one after the other, all of them or none. Returns a diff.",
			writing(editFile), file,
			mcp.WithArray("edits", mcp.Required(), mcp.MinItems(1), mcp.MaxItems(maxEdits), mcp.Description("The replacements, in order"), mcp.Items(map[string]any{
				"type": "object", "required": []string{"oldText", "newText"}, "additionalProperties": false,
				"properties": map[string]any{
					"oldText": map[string]any{"type": "string", "description": "Text to replace"},
					"newText": map[string]any{"type": "string", "description": "Text to put in its place"},
				}})),
			mcp.WithBoolean("dryRun", mcp.DefaultBool(false), mcp.Description("Only show the diff and change nothing"))),
		mcpmem.Tool("create_directory", "Make a folder, and those that it is in. One that is there already is fine.",
			writing(createDirectory), mcp.WithString("path", mcp.Required(), mcp.Description("Path of the folder"))),
		mcpmem.Tool("list_directory", "List what is in a folder, sorted by name: the path and type of each, and the size of files in bytes.",
			reading(listDirectory), readOnly, folder, cursor),
		mcpmem.Tool("directory_tree", "List all that is under a folder, at any depth, as paths. Each folder, which ends in a slash, comes before what is in it.",
			reading(directoryTree), readOnly, folder, cursor, exclude),
		mcpmem.Tool("move_file", "Move or rename a file, or a folder with all that is in it. Nothing is overwritten. The folder it moves to must be there.",
			writing(moveFile),
			mcp.WithString("source", mcp.Required(), mcpmem.Entity, mcp.Description("Path of what to move")),
			mcp.WithString("destination", mcp.Required(), mcp.Description("Its new path, name included"))),
		mcpmem.Tool("search_files", "Find files and folders by their paths, at any depth. The pattern is matched with the path relative to the folder: * and ? stand for characters of one name, [a-z] for one of several, ** for any number of folders, at the end for everything inside. So *.md finds only what is directly in the folder, **/*.md everything.",
			reading(searchFiles), readOnly, folder, cursor, exclude,
			mcp.WithString("pattern", mcp.Required(), mcp.Description("For example **/*.md"))),
		mcpmem.Tool("get_file_info", "Tell what is at a path: type, permissions, and the size of a file in bytes or the number of entries of a folder.",
			reading(getFileInfo), readOnly, mcp.WithString("path", mcp.Required(), mcpmem.Entity, mcp.Description("Path of a file or folder"))),
		mcpmem.Tool("delete_file", "Delete a file, or a folder that is empty.",
			writing(deleteFile), mcp.WithString("path", mcp.Required(), mcpmem.Entity, mcp.Description("Path of a file or an empty folder"))),
	)
	return s
}

// reading makes a handler of a function that only reads: several run at once.
func reading[In any](f func(*tree, In) (any, error)) func(context.Context, *tree, In) (any, error) {
	return func(_ context.Context, t *tree, in In) (any, error) {
		t.mu.RLock()
		defer t.mu.RUnlock()
		return answer(t, f, in)
	}
}

// writing makes a handler of a function that may write: it runs alone.
func writing[In any](f func(*tree, In) (any, error)) func(context.Context, *tree, In) (any, error) {
	return func(_ context.Context, t *tree, in In) (any, error) {
		t.mu.Lock()
		defer t.mu.Unlock()
		return answer(t, f, in)
	}
}

// answer gives a result as JSON, without the escapes that are for HTML.
func answer[In any](t *tree, f func(*tree, In) (any, error), in In) (any, error) {
	if err := t.usable(); err != nil {
		return nil, err
	}
	out, err := f(t, in)
	if err != nil {
		return nil, err
	}
	text, err := encode(out)
	return string(text), err
}

func encode(v any) ([]byte, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	err := e.Encode(v)
	return bytes.TrimSuffix(b.Bytes(), []byte("\n")), err
}

// nameFor reads a path that must be one of a file.
func nameFor(p string) (string, error) {
	name, folder, err := clean(p)
	if err == nil && folder {
		err = fmt.Errorf("path %q is one of a folder, by its end: a file is needed", p)
	}
	return name, err
}

// nameOf reads a path of what may be a file or a folder.
func (t *tree) nameOf(p string) (string, error) {
	name, folder, err := clean(p)
	if err != nil || !folder {
		return name, err
	}
	fi, err := t.at(name)
	if err == nil && fi != nil && !fi.IsDir() {
		err = fmt.Errorf("%s is a file: its path does not end in a slash", show(name))
	}
	return name, err
}

// folderAt reads a path of a folder that must be there. None is the root.
func (t *tree) folderAt(p string) (string, error) {
	if p == "" {
		return ".", nil
	}
	name, _, err := clean(p)
	if err != nil {
		return "", err
	}
	fi, err := t.find(name)
	if err == nil && !fi.IsDir() {
		err = fmt.Errorf("%s is a file, not a folder", show(name))
	}
	return name, err
}

// fit says how much of a text, in whole letters, takes up to limit bytes as JSON.
func fit(s string, limit int) int {
	for i, r := range s {
		switch {
		case r == '"' || r == '\\' || r == '\n' || r == '\r' || r == '\t':
			limit -= 2
		case r < ' ' || r == '\u2028' || r == '\u2029':
			limit -= 6
		default:
			limit -= utf8.RuneLen(r)
		}
		if limit < 0 {
			return i
		}
	}
	return len(s)
}

// page cuts one page out of a list, up to limit bytes of JSON but something, and says where the next begins.
func page[T any](all []T, cursor string, limit int) (part []T, next string, err error) {
	start := 0
	if cursor != "" {
		if start, err = strconv.Atoi(cursor); err != nil || start < 1 || start >= len(all) {
			return nil, "", noCursor(cursor)
		}
	}
	part = []T{} // none, not null
	for i, v := range all[start:] {
		text, err := encode(v)
		if err != nil {
			return nil, "", err
		}
		if limit -= len(text) + 1; limit < 0 && i > 0 {
			return part, strconv.Itoa(start + i), nil
		}
		part = append(part, v)
	}
	return part, "", nil
}

func noCursor(cursor string) error {
	return fmt.Errorf("cursor %.40q is not one that this call gave", cursor)
}

type content struct {
	Path    string `json:"path"`
	Size    int    `json:"size"` // of the whole file
	Content string `json:"content"`
	Next    string `json:"next_cursor,omitempty"`
}

func readTextFile(t *tree, in struct {
	Path, Cursor string
	Head, Tail   int
}) (any, error) {
	name, err := nameFor(in.Path)
	if err != nil {
		return nil, err
	}
	if in.Head > 0 && in.Tail > 0 {
		return nil, errors.New("give head or tail, not both")
	}
	if in.Head < 0 || in.Tail < 0 {
		return nil, errors.New("head and tail are numbers of lines, 1 or more")
	}
	text, err := t.text(name)
	if err != nil {
		return nil, err
	}
	from, to := 0, len(text)
	if in.Head > 0 {
		to = 0
		for n := 0; n < in.Head && to < len(text); n++ {
			to += lineEnd(text[to:])
		}
	}
	if in.Tail > 0 {
		from = len(text)
		for n := 0; n < in.Tail && from > 0; n++ {
			from = strings.LastIndexByte(text[:from-1], '\n') + 1
		}
	}
	if in.Cursor != "" {
		at, err := strconv.Atoi(in.Cursor)
		if err != nil || at <= from || at >= to || !utf8.RuneStart(text[at]) {
			return nil, noCursor(in.Cursor)
		}
		from = at
	}
	out := content{Path: show(name), Size: len(text)}
	n := fit(text[from:to], t.limits.Result)
	if from+n < to { // a page ends with a line, unless that is longer than a page
		if end := strings.LastIndexByte(text[from:from+n], '\n'); end >= 0 {
			n = end + 1
		}
	}
	if out.Content = text[from : from+n]; from+n < to {
		out.Next = strconv.Itoa(from + n)
	}
	return out, nil
}

// lineEnd gives the bytes of the first line, its end included.
func lineEnd(s string) int {
	if i := strings.IndexByte(s, '\n'); i >= 0 {
		return i + 1
	}
	return len(s)
}

type readFile struct {
	Path    string  `json:"path"`
	Content *string `json:"content,omitempty"`
	Err     string  `json:"error,omitempty"`
}

func readMultipleFiles(t *tree, in struct {
	Paths  []string
	Cursor string
}) (any, error) {
	if len(in.Paths) == 0 || len(in.Paths) > maxPaths {
		return nil, fmt.Errorf("give 1 to %d paths", maxPaths)
	}
	all := make([]readFile, len(in.Paths))
	for i, p := range in.Paths {
		all[i].Path = p
		name, err := nameFor(p)
		if err == nil {
			all[i].Path = show(name)
			var text string
			if text, err = t.text(name); err == nil && fit(text, t.limits.Result) < len(text) {
				err = fmt.Errorf("it has %d bytes, more than a result shows: use read_text_file", len(text))
			}
			all[i].Content = &text
		}
		if f, ok := errors.AsType[*sandboxes.Fault](err); ok {
			return nil, f
		}
		if err != nil {
			all[i].Content, all[i].Err = nil, err.Error()
		}
	}
	part, next, err := page(all, in.Cursor, t.limits.Result)
	return struct {
		Files []readFile `json:"files"`
		Next  string     `json:"next_cursor,omitempty"`
	}{part, next}, err
}

func writeFile(t *tree, in struct{ Path, Content string }) (any, error) {
	name, err := nameFor(in.Path)
	if err != nil {
		return nil, err
	}
	created, err := t.write(name, in.Content, false)
	return struct {
		Path    string `json:"path"`
		Size    int    `json:"size"`
		Created bool   `json:"created"`
	}{show(name), len(in.Content), created}, err
}

func editFile(t *tree, in struct {
	Path   string
	Edits  []edit
	DryRun bool
}) (any, error) {
	name, err := nameFor(in.Path)
	if err != nil {
		return nil, err
	}
	before, err := t.text(name)
	if err != nil {
		return nil, err
	}
	after, err := apply(before, in.Edits)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", show(name), err)
	}
	if _, err := t.write(name, after, in.DryRun); err != nil {
		return nil, err
	}
	out := struct {
		Path   string `json:"path"`
		DryRun bool   `json:"dry_run,omitempty"`
		Diff   string `json:"diff"`
		Size   int    `json:"diff_size,omitempty"` // where the diff is cut
	}{show(name), in.DryRun, unified(name, before, after), 0}
	if n := fit(out.Diff, t.limits.Result); n < len(out.Diff) {
		out.Diff, out.Size = out.Diff[:n], len(out.Diff)
	}
	return out, nil
}

func createDirectory(t *tree, in struct{ Path string }) (any, error) {
	name, _, err := clean(in.Path)
	if err != nil {
		return nil, err
	}
	created, err := t.mkdirs(name)
	return struct {
		Path    string `json:"path"`
		Created bool   `json:"created"`
	}{show(name), created}, err
}

type listed struct {
	Path string `json:"path"`
	Type string `json:"type"`
	Size *int64 `json:"size,omitempty"`
}

func listing(name string, fi fs.FileInfo) listed {
	l := listed{Path: show(name), Type: kind(fi)}
	if l.Type == "file" {
		size := fi.Size()
		l.Size = &size
	}
	return l
}

type list[T any] struct {
	Path    string `json:"path"`
	Entries []T    `json:"entries"`
	Next    string `json:"next_cursor,omitempty"`
}

func listDirectory(t *tree, in struct{ Path, Cursor string }) (any, error) {
	name, err := t.folderAt(in.Path)
	if err != nil {
		return nil, err
	}
	infos, err := t.list(name)
	if err != nil {
		return nil, err
	}
	all := make([]listed, len(infos))
	for i, fi := range infos {
		all[i] = listing(path.Join(name, fi.Name()), fi)
	}
	part, next, err := page(all, in.Cursor, t.limits.Result)
	return list[listed]{show(name), part, next}, err
}

func directoryTree(t *tree, in struct {
	Path, Cursor    string
	ExcludePatterns []string
}) (any, error) {
	name, err := t.folderAt(in.Path)
	if err != nil {
		return nil, err
	}
	names, err := t.paths(name, in.ExcludePatterns)
	if err != nil {
		return nil, err
	}
	part, next, err := page(names, in.Cursor, t.limits.Result)
	return list[string]{show(name), part, next}, err
}

func searchFiles(t *tree, in struct {
	Path, Cursor, Pattern string
	ExcludePatterns       []string
}) (any, error) {
	name, err := t.folderAt(in.Path)
	if err != nil {
		return nil, err
	}
	pattern, err := newGlob(in.Pattern)
	if err != nil {
		return nil, err
	}
	all, err := t.under(name, pattern, in.ExcludePatterns)
	if err != nil {
		return nil, err
	}
	part, next, err := page(all, in.Cursor, t.limits.Result)
	return struct {
		Matches []listed `json:"matches"`
		Next    string   `json:"next_cursor,omitempty"`
	}{part, next}, err
}

// under lists what is under a folder and fits a pattern, everything where there is none.
func (t *tree) under(name string, pattern glob, exclude []string) ([]listed, error) {
	if len(exclude) > maxExcludes {
		return nil, fmt.Errorf("give at most %d patterns to exclude", maxExcludes)
	}
	without, err := newGlobs(exclude)
	if err != nil {
		return nil, err
	}
	var all []listed
	err = t.walk(name, func(_ *os.Root, full string, fi fs.FileInfo) (bool, error) {
		rel := full
		if name != "." {
			rel = full[len(name)+1:]
		}
		if without.match(rel) {
			return false, nil
		}
		if pattern == nil || pattern.match(rel) {
			all = append(all, listing(full, fi))
		}
		return true, nil
	})
	return all, err
}

// paths lists the paths of what is under a folder, those of folders with a slash at the end.
func (t *tree) paths(name string, exclude []string) ([]string, error) {
	all, err := t.under(name, nil, exclude)
	names := make([]string, len(all))
	for i, l := range all {
		if names[i] = l.Path; l.Type == "directory" {
			names[i] += "/"
		}
	}
	return names, err
}

func moveFile(t *tree, in struct{ Source, Destination string }) (any, error) {
	from, err := t.nameOf(in.Source)
	if err != nil {
		return nil, err
	}
	to, folder, err := clean(in.Destination)
	if err != nil {
		return nil, err
	}
	if folder {
		if fi, err := t.find(from); err != nil {
			return nil, err
		} else if !fi.IsDir() {
			return nil, fmt.Errorf("destination %q is one of a folder, by its end: give the file's new name with it", in.Destination)
		}
	}
	return struct {
		Source      string `json:"source"`
		Destination string `json:"destination"`
	}{show(from), show(to)}, t.move(from, to)
}

func getFileInfo(t *tree, in struct{ Path string }) (any, error) {
	name, err := t.nameOf(in.Path)
	if err != nil {
		return nil, err
	}
	fi, err := t.find(name)
	if err != nil {
		return nil, err
	}
	out := struct {
		Path        string `json:"path"`
		Type        string `json:"type"`
		Permissions string `json:"permissions"`
		Size        *int64 `json:"size,omitempty"`
		Entries     *int   `json:"entries,omitempty"`
	}{Path: show(name), Type: kind(fi), Permissions: fmt.Sprintf("%#o", fi.Mode().Perm()), Size: listing(name, fi).Size}
	if fi.IsDir() {
		all, err := t.list(name)
		if err != nil {
			return nil, err
		}
		n := len(all)
		out.Entries = &n
	}
	return out, nil
}

func deleteFile(t *tree, in struct{ Path string }) (any, error) {
	name, err := t.nameOf(in.Path)
	if err != nil {
		return nil, err
	}
	was, err := t.remove(name)
	return struct {
		Path    string `json:"path"`
		Deleted string `json:"deleted"`
	}{show(name), was}, err
}
