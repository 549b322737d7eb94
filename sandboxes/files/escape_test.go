package files

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mcpgym/mcpgym/sandboxes"
)

const secret = "the canary sings"

// canary puts things beside a tree that must neither be read nor changed.
func canary(t testing.TB, o *opened) (check func()) {
	t.Helper()
	up := filepath.Dir(o.dir)
	for _, dir := range []string{"out", "root-evil", "out/notes"} {
		require.NoError(t, os.Mkdir(filepath.Join(up, dir), 0o755))
	}
	for _, f := range []string{"secret.txt", "out/secret.txt", "out/gem.txt", "out/notes/may.txt", "root-evil/secret.txt"} {
		require.NoError(t, os.WriteFile(filepath.Join(up, f), []byte(secret), 0o644))
	}
	o.give(up) // so that no permission is what keeps it
	look := func() string {
		var all []string
		require.NoError(t, filepath.Walk(up, func(p string, fi os.FileInfo, err error) error {
			if p == o.dir {
				return filepath.SkipDir
			}
			all = append(all, fmt.Sprint(p, fi.Mode(), err))
			if fi.Mode().IsRegular() {
				data, err := os.ReadFile(p)
				all = append(all, fmt.Sprint(string(data), err))
			}
			return nil
		}))
		return strings.Join(all, "\n")
	}
	before := look()
	return func() {
		t.Helper()
		require.Equal(t, before, look(), "what is outside of the tree has changed")
	}
}

// uses are calls that read or change what is at a path.
func uses(p string) map[string][]args {
	return map[string][]args{
		"read_text_file":      {{"path": p}},
		"read_multiple_files": {{"paths": []string{p}}},
		"write_file":          {{"path": p, "content": "mine now"}},
		"edit_file":           {{"path": p, "edits": []edit{{"canary", "cat"}}}},
		"create_directory":    {{"path": p}},
		"list_directory":      {{"path": p}},
		"directory_tree":      {{"path": p}},
		"search_files":        {{"path": p, "pattern": "**"}},
		"get_file_info":       {{"path": p}},
		"delete_file":         {{"path": p}},
		"move_file":           {{"source": p, "destination": "moved"}, {"source": "readme.md", "destination": p}},
	}
}

// refused says whether a result refuses a path. read_multiple_files does so file by file.
func refused(r sandboxes.Result) bool {
	return r.IsError || strings.HasPrefix(r.Text, `{"files":[{"path":`) && strings.Contains(r.Text, `"error":`)
}

func TestEscapes(t *testing.T) { onDrivers(t, testEscapes) }

func testEscapes(t *testing.T, d driver) {
	long := strings.Repeat("x", MaxPath)
	for _, c := range []struct{ name, path, says string }{
		{"dot-dot", "../secret.txt", "leads out of the tree"},
		{"dot-dot from the root", "/../secret.txt", "leads out of the tree"},
		{"dot-dot after a legal start", "notes/../../secret.txt", "leads out of the tree"},
		{"dot-dot after what does not exist", "none/../../secret.txt", "leads out of the tree"},
		{"dot-dot to a sibling with the root's name", "../root-evil/secret.txt", "leads out of the tree"},
		{"dot-dot and back in", "../root/readme.md", "leads out of the tree"},
		{"many slashes", "////..////secret.txt", "leads out of the tree"},
		{"dots and slashes", "./.././secret.txt/.", "leads out of the tree"},
		{"NUL", "readme.md\x00/../../secret.txt", "NUL"},
		{"NUL at the end", "readme.md\x00", "NUL"},
		{"not UTF-8", "readme\ufffd.md", "not UTF-8"},
		{"backslashes", `..\secret.txt`, "backslash"},
		{"drive", `C:\readme.md`, "backslash"},
		{"line end", "readme.md\n", "U+000A"},
		{"zero width", "readme\u200b.md", "U+200B"},
		{"right to left", "readme\u202edm.", "U+202E"},
		{"no-break space", "ünïcode/ナ\u00a0イ フ.txt", "U+00A0"},
		{"full-width dots", "．．/secret.txt", "NFKC"},
		{"full-width slash", "notes／may.txt", "NFKC"},
		{"two dots in one", "‥/secret.txt", "NFKC"},
		{"decomposed", "u\u0308ni\u0308code", "NFKC"},
		{"long path", long + "x", "the limit is 255"},
		{"long name", "notes/" + long, "the limit is 255"},
		{"deep path", strings.Repeat("a/", MaxDepth) + "a", "the limit is 16"},
		{"reserved", ".mcpgym-write", "reserved"},
		{"reserved, in capitals", "notes/.MCPGYM-x/a", "reserved"},
		{"host's file", "/etc/passwd", ""},
		{"host's file, by a URL", "file:///etc/passwd", ""},
		{"home", "~/secret.txt", ""},
		{"variable", "$HOME/secret.txt", ""},
		{"percent", "%2e%2e/secret.txt", ""},
		{"look-alike", "re\u0430dme.md/x", ""}, // a Cyrillic letter
		{"through a file", "readme.md/../../secret.txt", "leads out"},
		{"in a file", "readme.md/x", "not a folder"},
		{"link to a file outside", "out-file", "link"},
		{"link to a file outside, as a folder", "out-file/", ""},
		{"link to a folder outside", "out-folder", "link"},
		{"through a link to a folder outside", "out-folder/secret.txt", "link"},
		{"through two links", "chain/secret.txt", "link"},
		{"relative link", "relative", "link"},
		{"link to a file that is not there", "dangling", "link"},
		{"link to itself", "loop", "link"},
		{"through a link to itself", "loop/x", "link"},
		{"link that stays inside", "inner", "link"},
		{"link to the root", "top/readme.md", "link"},
		{"link to /proc", "proc/self/environ", "link"},
		{"hard link to a file outside", "hard", "hard link"},
		{"pipe", "pipe", "pipe"},
		{"socket", "socket", "special file"},
	} {
		t.Run(c.name, func(t *testing.T) {
			o := d.fresh(t, desk())
			check := canary(t, o)
			out := filepath.Join(filepath.Dir(o.dir), "out")
			in := func(name string) string { return filepath.Join(o.dir, name) }
			for name, target := range map[string]string{"out-file": o.out + "/secret.txt", "out-folder": o.out, "chain": "out-folder", "relative": "../secret.txt",
				"dangling": o.out + "/new", "loop": "loop", "inner": "readme.md", "top": ".", "proc": "/proc"} {
				require.NoError(t, os.Symlink(target, in(name)))
			}
			require.NoError(t, os.Link(out+"/secret.txt", in("hard")))
			require.NoError(t, syscall.Mkfifo(in("pipe"), 0o644))
			fd, err := syscall.Socket(syscall.AF_UNIX, syscall.SOCK_STREAM, 0)
			require.NoError(t, err)
			defer syscall.Close(fd)
			root, err := os.Open(o.dir)
			require.NoError(t, err)
			defer root.Close()
			require.NoError(t, syscall.Bind(fd, &syscall.SockaddrUnix{Name: fmt.Sprintf("/proc/self/fd/%d/socket", root.Fd())})) // longer names are no addresses

			before := o.state()
			for tool, calls := range uses(c.path) {
				if c.says == "" && tool == "create_directory" {
					continue // a name like any other
				}
				for _, a := range calls {
					r := call(t, o.Sandbox, tool, a)
					require.True(t, refused(r), "%s %v: %s", tool, a, r.Text)
					require.Contains(t, r.Text, c.says, "%s %v", tool, a)
					require.NotContains(t, r.Text, secret)
					require.NotContains(t, r.Text, filepath.Dir(o.out), "a path of the host")
				}
			}
			require.Equal(t, before, o.state())
			check()
		})
	}
}

// Spellings of one path, and names that look dangerous and are not.
func TestPaths(t *testing.T) {
	for p, want := range map[string]string{"a": "a", "/a": "a", "//a//b/": "a/b", "./a/.": "a", "a/../b": "b", "/": ".", ".": ".", "a/..": ".", "...": "...", "..a/b..": "..a/b..",
		" a ": " a ", "-rf *": "-rf *", "日本/é": "日本/é", "a/b/../../c": "c"} {
		got, _, err := clean(p)
		require.NoError(t, err, "%q", p)
		require.Equal(t, want, got, "%q", p)
		again, _, err := clean(show(got))
		require.NoError(t, err)
		require.Equal(t, got, again)
	}
	fresh(t, desk()).fails("case counts, and there is /readme.md", "read_text_file", args{"path": "README.md"})
	o := fresh(t, Setup{})
	for _, p := range []string{"...", "..a", "-rf *", "日本", "$(id)", "a;b|c", `"`, "'", "%00", "con", "a.lnk"} {
		o.ok("write_file", args{"path": p, "content": p})
		require.Contains(t, o.ok("read_text_file", args{"path": "/" + p}), `"path":`)
	}
}

func TestSlashAtTheEnd(t *testing.T) { onDrivers(t, testSlashAtTheEnd) }

func testSlashAtTheEnd(t *testing.T, d driver) {
	o := d.fresh(t, desk())
	for _, tool := range []string{"read_text_file", "write_file", "edit_file"} {
		for _, p := range []string{"readme.md/", "readme.md/.", "new/"} {
			o.fails("a file is needed", tool, uses(p)[tool][0])
		}
	}
	for _, tool := range []string{"get_file_info", "delete_file", "move_file"} {
		o.fails("does not end in a slash", tool, uses("readme.md/")[tool][0])
	}
	o.fails("give the file's new name", "move_file", args{"source": "readme.md", "destination": "notes/"})
	o.ok("list_directory", args{"path": "notes/"})
	o.ok("get_file_info", args{"path": "/notes/."})
	o.ok("create_directory", args{"path": "new/"})
	o.ok("move_file", args{"source": "new/", "destination": "newer/"})
	o.ok("delete_file", args{"path": "newer/"})
	require.Empty(t, o.state().Diff)
}

// race does a deed again and again while somebody outside changes what the names f and d stand for. os.Root holds where the look
// before it was too early: it goes on until that has happened a few times, or for the limit.
func race(t *testing.T, o *opened, limit time.Duration, deed func(*opened) (seen string, err error)) {
	check := canary(t, o)
	out := o.out
	spare := folder(t)
	x, away := filepath.Join(o.dir, "d"), func(name string) string { return filepath.Join(spare, name) }
	require.NoError(t, os.Mkdir(x, 0o755))
	o.give(x)
	require.NoError(t, os.Symlink(out, away("link")))
	stop := make(chan struct{})
	var swapping sync.WaitGroup
	swapping.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
			}
			_ = os.Rename(x, away("folder")) // what a deed has done to it, it keeps
			_ = os.Rename(away("link"), x)
			_ = os.Rename(x, away("link"))
			_ = os.Rename(away("folder"), x)
			_ = os.WriteFile(away("f"), []byte("harmless"), 0o644)
			_ = os.Rename(away("f"), filepath.Join(o.dir, "f"))
			_ = os.Symlink(out+"/secret.txt", away("f"))
			_ = os.Rename(away("f"), filepath.Join(o.dir, "f"))
		}
	})
	held := 0
	if testing.Short() {
		limit /= 4
	}
	for end := time.Now().Add(limit); held < 5 && time.Now().Before(end); {
		seen, err := deed(o)
		if !strings.Contains(seen, secret) && !strings.Contains(seen, "gem.txt") {
			if err == nil {
				continue
			}
			_, fault := errors.AsType[*sandboxes.Fault](err)
			if !fault {
				require.NotContains(t, err.Error(), filepath.Dir(o.out))
				if strings.Contains(err.Error(), "on the way leads out") {
					held++
				}
				continue
			}
		}
		close(stop)
		swapping.Wait()
		t.Fatalf("saw %q, error %v", seen, err)
	}
	close(stop)
	swapping.Wait()
	check()
	t.Logf("held %d times", held)
}

func TestRaces(t *testing.T) {
	for name, deed := range map[string]func(*opened) (seen string, err error){
		"read": func(o *opened) (string, error) {
			data, err := o.read("f")
			return string(data), err
		},
		"list": func(o *opened) (seen string, err error) {
			all, err := o.list("d")
			for _, fi := range all {
				seen += fi.Name()
			}
			return seen, err
		},
		"write": func(o *opened) (string, error) {
			_, err := o.write("d/new", "mine now", false)
			return "", err
		},
		"over": func(o *opened) (string, error) {
			_, err := o.write("f", "mine now", false)
			return "", err
		},
		"make": func(o *opened) (string, error) {
			_, err := o.mkdirs("d/x")
			if err == nil {
				_, err = o.remove("d/x")
			}
			return "", err
		},
		"move": func(o *opened) (string, error) {
			err := o.move("readme.md", "d/mine")
			if err == nil {
				err = o.move("d/mine", "readme.md")
			}
			return "", err
		},
		"delete": func(o *opened) (string, error) {
			_, err := o.remove("d/gem.txt")
			return "", err
		},
		"walk": func(o *opened) (string, error) {
			all, err := o.paths(".", nil)
			return strings.Join(all, " "), err
		},
		"look": func(o *opened) (string, error) {
			p, err := o.look()
			return fmt.Sprint(p), err
		},
	} {
		t.Run(name, func(t *testing.T) { race(t, fresh(t, desk()), time.Second, deed) })
	}
}

// The same, as agents do it.
func TestRacesOfCalls(t *testing.T) { onDrivers(t, testRacesOfCalls) }

func testRacesOfCalls(t *testing.T, d driver) {
	for _, c := range []struct {
		tool string
		in   args
	}{
		{"read_text_file", args{"path": "f"}}, {"list_directory", args{"path": "d"}}, {"write_file", args{"path": "d/new", "content": "mine now"}}, {"directory_tree", args{}},
	} {
		t.Run(c.tool, func(t *testing.T) {
			race(t, d.fresh(t, desk()), time.Second/3, func(o *opened) (string, error) {
				r, err := o.Session().Call(t.Context(), c.tool, asJSON(t, c.in))
				if err == nil && r.IsError {
					err = errors.New(r.Text)
				}
				return r.Text, err
			})
		})
	}
}

// Nobody waits for the other end of a pipe, also not where one is put in a file's place at the last moment.
func TestPipe(t *testing.T) {
	o := fresh(t, desk())
	require.NoError(t, syscall.Mkfifo(filepath.Join(o.dir, "pipe"), 0o644))
	done := make(chan error, 1)
	go func() {
		f, _, err := open(o.root, "pipe")
		f.Close()
		done <- err
	}()
	select {
	case err := <-done:
		require.NoError(t, err)
	case <-time.After(10 * time.Second):
		t.Fatal("open waits")
	}
}

// Whatever a path is, no tool reads or changes what is beside the tree.
func FuzzPaths(f *testing.F) {
	for _, p := range []string{"readme.md", "../secret.txt", "/a/../../out/secret.txt", "link/secret.txt", "hard", "notes/\x00", "ünïcode/x", "．．/out", "root-evil", "a\xff"} {
		f.Add(p, uint8(0))
		f.Add(p, uint8(2))
	}
	tools := slices.Sorted(maps.Keys(uses("")))
	f.Fuzz(func(t *testing.T, p string, n uint8) {
		o := fresh(t, desk())
		check := canary(t, o)
		out := filepath.Join(filepath.Dir(o.dir), "out")
		require.NoError(t, os.Symlink(out, filepath.Join(o.dir, "link")))
		require.NoError(t, os.Link(out+"/secret.txt", filepath.Join(o.dir, "hard")))
		tool := tools[int(n)%len(tools)]
		for _, a := range uses(p)[tool] {
			r := call(t, o.Sandbox, tool, a)
			require.NotContains(t, r.Text, secret)
		}
		check()
		s := o.state()
		require.LessOrEqual(t, len(s.Diff), len(desk().Files)+maxDiff)
		var bytes, entries int64
		require.NoError(t, filepath.Walk(o.dir, func(_ string, fi os.FileInfo, err error) error {
			if entries++; fi.Mode().IsRegular() && links(fi) == 1 {
				bytes += fi.Size()
			}
			return err
		}))
		require.Equal(t, bytes, o.bytes, "the tree knows its size")
		require.Equal(t, entries-3, int64(o.entries), "the root and the two links do not count")
	})
}
