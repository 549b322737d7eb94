package files

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/mcpgym/mcpgym/sandboxes"
)

// Results word for word: agents read them, and rewards find facts in them.
func TestResults(t *testing.T) { onDrivers(t, testResults) }

func testResults(t *testing.T, d driver) {
	o := d.fresh(t, desk())
	for _, c := range []struct {
		tool string
		in   args
		want string
	}{
		{"list_directory", args{}, `{"path":"/","entries":[{"path":"/bin","type":"directory"},{"path":"/empty","type":"directory"},{"path":"/notes","type":"directory"},{"path":"/readme.md","type":"file","size":19},{"path":"/ünïcode","type":"directory"}]}`},
		{"list_directory", args{"path": "/notes/"}, `{"path":"/notes","entries":[{"path":"/notes/june.txt","type":"file","size":5},{"path":"/notes/may.txt","type":"file","size":10},{"path":"/notes/old","type":"directory"}]}`},
		{"list_directory", args{"path": "empty/inner"}, `{"path":"/empty/inner","entries":[]}`},
		{"directory_tree", args{"path": "notes"}, `{"path":"/notes","entries":["/notes/june.txt","/notes/may.txt","/notes/old/","/notes/old/a.txt","/notes/old/plan.md"]}`},
		{"directory_tree", args{"path": "empty/inner"}, `{"path":"/empty/inner","entries":[]}`},
		{"directory_tree", args{"excludePatterns": []string{"notes/old", "*.bin", "ü*", "empty/**"}}, `{"path":"/","entries":["/bin/","/bin/fixed.txt","/bin/run.sh","/empty/","/notes/","/notes/june.txt","/notes/may.txt","/readme.md"]}`},
		{"search_files", args{"pattern": "*.md"}, `{"matches":[{"path":"/readme.md","type":"file","size":19}]}`},
		{"search_files", args{"pattern": "**/*.md"}, `{"matches":[{"path":"/notes/old/plan.md","type":"file","size":18},{"path":"/readme.md","type":"file","size":19}]}`},
		{"search_files", args{"pattern": "*.md", "path": "notes/old"}, `{"matches":[{"path":"/notes/old/plan.md","type":"file","size":18}]}`},
		{"search_files", args{"pattern": "old", "path": "notes"}, `{"matches":[{"path":"/notes/old","type":"directory"}]}`},
		{"search_files", args{"pattern": "*.pdf"}, `{"matches":[]}`},
		{"read_text_file", args{"path": "readme.md"}, `{"path":"/readme.md","size":19,"content":"# Desk\n\nAll notes.\n"}`},
		{"read_text_file", args{"path": "bin/run.sh"}, `{"path":"/bin/run.sh","size":17,"content":"echo <hi> & done\n"}`},
		{"read_text_file", args{"path": "notes/old/plan.md"}, `{"path":"/notes/old/plan.md","size":18,"content":"1. sleep\r\n2. eat\r\n"}`},
		{"read_text_file", args{"path": "readme.md", "head": 2}, `{"path":"/readme.md","size":19,"content":"# Desk\n\n"}`},
		{"read_text_file", args{"path": "readme.md", "head": 99}, `{"path":"/readme.md","size":19,"content":"# Desk\n\nAll notes.\n"}`},
		{"read_text_file", args{"path": "readme.md", "tail": 1}, `{"path":"/readme.md","size":19,"content":"All notes.\n"}`},
		{"read_text_file", args{"path": "readme.md", "tail": 2}, `{"path":"/readme.md","size":19,"content":"\nAll notes.\n"}`},
		{"read_text_file", args{"path": "readme.md", "tail": 99}, `{"path":"/readme.md","size":19,"content":"# Desk\n\nAll notes.\n"}`},
		{"read_text_file", args{"path": "notes/june.txt", "tail": 1}, `{"path":"/notes/june.txt","size":5,"content":"bread"}`},
		{"read_multiple_files", args{"paths": []string{"notes/june.txt", "none", "/bin/blob.bin", "../x"}}, `{"files":[{"path":"/notes/june.txt","content":"bread"},{"path":"/none","error":"there is no /none"},` +
			`{"path":"/bin/blob.bin","error":"/bin/blob.bin is binary, 3 bytes: only text can be read and edited"},{"path":"../x","error":"path \"../x\" leads out of the tree; a path is relative to the root of the tree or begins there, for example \"/notes/a.txt\""}]}`},
		{"get_file_info", args{"path": "bin/run.sh"}, `{"path":"/bin/run.sh","type":"file","permissions":"0755","size":17}`},
		{"get_file_info", args{"path": "/"}, `{"path":"/","type":"directory","permissions":"0755","entries":5}`},
		{"create_directory", args{"path": "x/y"}, `{"path":"/x/y","created":true}`},
		{"create_directory", args{"path": "x"}, `{"path":"/x","created":false}`},
		{"write_file", args{"path": "x/y/z", "content": ""}, `{"path":"/x/y/z","size":0,"created":true}`},
		{"read_text_file", args{"path": "x/y/z"}, `{"path":"/x/y/z","size":0,"content":""}`},
		{"write_file", args{"path": "x/y/z", "content": "é\n"}, `{"path":"/x/y/z","size":3,"created":false}`},
		{"edit_file", args{"path": "x/y/z", "edits": []edit{{"é", "è"}}, "dryRun": true}, `{"path":"/x/y/z","dry_run":true,"diff":"--- a/x/y/z\n+++ b/x/y/z\n@@ -1 +1 @@\n-é\n+è\n"}`},
		{"edit_file", args{"path": "x/y/z", "edits": []edit{{"é", "è"}}}, `{"path":"/x/y/z","diff":"--- a/x/y/z\n+++ b/x/y/z\n@@ -1 +1 @@\n-é\n+è\n"}`},
		{"read_text_file", args{"path": "x/y/z"}, `{"path":"/x/y/z","size":3,"content":"è\n"}`},
		{"move_file", args{"source": "x/y/z", "destination": "/a"}, `{"source":"/x/y/z","destination":"/a"}`},
		{"delete_file", args{"path": "x/y"}, `{"path":"/x/y","deleted":"directory"}`},
		{"delete_file", args{"path": "a"}, `{"path":"/a","deleted":"file"}`},
	} {
		require.Equal(t, c.want, o.ok(c.tool, c.in), "%s %v", c.tool, c.in)
	}
}

func TestErrors(t *testing.T) { onDrivers(t, testErrors) }

func testErrors(t *testing.T, d driver) {
	o := d.fresh(t, desk())
	start := o.state()
	for _, c := range []struct {
		tool string
		in   args
		says string
	}{
		{"read_text_file", args{"path": "none.txt"}, "there is no /none.txt"},
		{"read_text_file", args{"path": "none/a/b.txt"}, "there is no folder /none"},
		{"read_text_file", args{"path": "notes"}, "list_directory"},
		{"read_text_file", args{"path": ""}, "the path is empty"},
		{"read_text_file", args{"path": "bin/blob.bin"}, "binary, 3 bytes"},
		{"read_text_file", args{"path": "readme.md", "head": 1, "tail": 1}, "not both"},
		{"read_text_file", args{"path": "readme.md", "head": -1}, "1 or more"},
		{"read_text_file", args{"path": "readme.md", "cursor": "5000"}, "not one that this call gave"},
		{"read_text_file", args{"path": "readme.md", "lines": 1}, "unknown field"},
		{"read_multiple_files", args{"paths": []string{}}, "1 to 50"},
		{"write_file", args{"path": "none/a.txt", "content": ""}, "there is no folder /none"},
		{"write_file", args{"path": "notes", "content": ""}, "is a folder"},
		{"write_file", args{"path": "/", "content": ""}, "a file is needed"},
		{"write_file", args{"path": "readme.md/a", "content": ""}, "not a folder"},
		{"write_file", args{"path": "a", "content": "x\x00"}, "binary"},
		{"write_file", args{"path": "bin/fixed.txt", "content": ""}, "read-only (mode 0444)"},
		{"edit_file", args{"path": "bin/fixed.txt", "edits": []edit{{"do", "no"}}}, "read-only"},
		{"edit_file", args{"path": "bin/fixed.txt", "edits": []edit{{"do", "no"}}, "dryRun": true}, "read-only"},
		{"edit_file", args{"path": "bin/blob.bin", "edits": []edit{{"do", "no"}}}, "binary"},
		{"edit_file", args{"path": "readme.md", "edits": []edit{{"Desk", "\x00"}}}, "binary"},
		{"edit_file", args{"path": "readme.md", "edits": []edit{}}, "no edits"},
		{"create_directory", args{"path": "readme.md"}, "is a file"},
		{"create_directory", args{"path": "readme.md/a/b"}, "is a file"},
		{"list_directory", args{"path": "readme.md"}, "is a file"},
		{"list_directory", args{"path": "notez"}, "there is no /notez"},
		{"list_directory", args{"cursor": "5"}, "not one that this call gave"},
		{"list_directory", args{"cursor": "0"}, "not one that this call gave"},
		{"list_directory", args{"cursor": "x"}, "not one that this call gave"},
		{"search_files", args{"pattern": "*.{md,txt}"}, "make a call for each"},
		{"search_files", args{"pattern": "[a"}, "without its ]"},
		{"search_files", args{"pattern": ""}, "1 to 255 bytes"},
		{"search_files", args{"pattern": "*", "excludePatterns": []string{"{"}}, "alternatives"},
		{"move_file", args{"source": "readme.md", "destination": "notes/may.txt"}, "exists already"},
		{"move_file", args{"source": "readme.md", "destination": "readme.md"}, "exists already"},
		{"move_file", args{"source": "readme.md", "destination": "notes"}, "exists already"},
		{"move_file", args{"source": "readme.md", "destination": "none/a"}, "there is no folder /none"},
		{"move_file", args{"source": "notes", "destination": "notes/old/notes"}, "into itself"},
		{"move_file", args{"source": "/", "destination": "a"}, "root"},
		{"move_file", args{"source": "bin/fixed.txt", "destination": "a"}, "read-only"},
		{"delete_file", args{"path": "notes"}, "not empty: it holds 3"},
		{"delete_file", args{"path": "/"}, "root"},
		{"delete_file", args{"path": "bin/fixed.txt"}, "read-only"},
		{"delete_file", args{"path": "none"}, "there is no"},
	} {
		o.fails(c.says, c.tool, c.in)
	}
	require.Equal(t, start, o.state())
}

// pages reads all pages of a result that has its list under a key.
func pages(t *testing.T, o *opened, tool, key string, in args) (all []json.RawMessage, n int) {
	for n = 1; ; n++ {
		var out map[string]json.RawMessage
		text := o.ok(tool, in)
		require.NoError(t, json.Unmarshal([]byte(text), &out))
		require.LessOrEqual(t, len(out[key]), max(o.limits.Result, MaxPath+60))
		if out[key][0] == '[' {
			var part []json.RawMessage
			require.NoError(t, json.Unmarshal(out[key], &part))
			require.NotEmpty(t, part)
			all = append(all, part...)
		} else {
			all = append(all, out[key])
		}
		if out["next_cursor"] == nil {
			return all, n
		}
		var cursor string
		require.NoError(t, json.Unmarshal(out["next_cursor"], &cursor))
		in["cursor"] = cursor
	}
}

func TestPaging(t *testing.T) { onDrivers(t, testPaging) }

func testPaging(t *testing.T, d driver) {
	small, large := desk(), desk()
	small.Limits.Result = minResult
	text := strings.Repeat("\"ö\\\t\u2028x\x01\n", 300)
	for i := range 60 {
		for _, s := range []Setup{small, large} {
			s.Files[fmt.Sprintf("many/%02d.txt", i)] = File{Text: fmt.Sprint(i)}
			s.Files["long.txt"] = File{Text: text}
		}
	}
	for _, s := range []Setup{small, large} {
		s.Files["many/"+strings.Repeat("n", MaxPath-len("/many/"))] = File{} // more than a page by itself
	}
	a, b := d.fresh(t, small), d.fresh(t, large)
	for _, c := range []struct {
		tool, key string
		in        args
	}{
		{"list_directory", "entries", args{"path": "many"}},
		{"directory_tree", "entries", args{}},
		{"search_files", "matches", args{"pattern": "**"}},
		{"read_multiple_files", "files", args{"paths": strings.Fields(strings.Repeat("many/01.txt readme.md ", 10))}},
	} {
		got, n := pages(t, a, c.tool, c.key, c.in)
		delete(c.in, "cursor")
		want, one := pages(t, b, c.tool, c.key, c.in)
		require.Greater(t, n, 2, c.tool)
		require.Equal(t, 1, one, c.tool)
		require.Equal(t, want, got, c.tool)
	}
	for _, in := range []args{{}, {"head": 100}, {"tail": 100}} {
		in["path"] = "long.txt"
		parts, n := pages(t, a, "read_text_file", "content", in)
		require.Greater(t, n, 5)
		var all string
		for _, p := range parts {
			var s string
			require.NoError(t, json.Unmarshal(p, &s))
			require.NotContains(t, s, "\ufffd")
			all += s
		}
		want := text
		if in["head"] != nil {
			want = text[:len(text)/3]
		} else if in["tail"] != nil {
			want = text[len(text)/3*2:]
		}
		require.Equal(t, want, all)
	}
	require.Contains(t, a.ok("read_multiple_files", args{"paths": []string{"long.txt"}}), "more than a result shows: use read_text_file")
	a.fails("not one that this call gave", "read_text_file", args{"path": "long.txt", "cursor": "2"}) // within a letter
}

// An agent that breaks a limit is told which, and nothing has happened.
func TestLimits(t *testing.T) { onDrivers(t, testLimits) }

func testLimits(t *testing.T, d driver) {
	s := Setup{Files: map[string]File{"a.txt": {Text: strings.Repeat("a", 90)}, "b.txt": {Text: "12345"}}, Limits: Limits{Bytes: 100, Entries: 4}}
	o := d.fresh(t, s)
	start := o.state()
	o.fails("would hold 101 bytes, the limit is 100", "write_file", args{"path": "c.txt", "content": "123456"})
	o.fails("would hold 101 bytes, the limit is 100", "write_file", args{"path": "b.txt", "content": "12345678901"})
	o.fails("the limit is 100", "edit_file", args{"path": "b.txt", "edits": []edit{{"3", "1234567"}}})
	o.fails("the limit is 100", "edit_file", args{"path": "b.txt", "edits": []edit{{"3", "1234567"}}, "dryRun": true})
	o.fails("would hold 5 files and folders, the limit is 4", "create_directory", args{"path": "x/y/z"})
	require.Equal(t, start, o.state())
	o.ok("write_file", args{"path": "b.txt", "content": "1234567890"})
	o.ok("create_directory", args{"path": "x/y"})
	o.fails("would hold 5", "write_file", args{"path": "c.txt", "content": ""})
	o.fails("would hold 5", "create_directory", args{"path": "z"})
	o.ok("delete_file", args{"path": "a.txt"})
	o.ok("move_file", args{"source": "b.txt", "destination": "x/y/c.txt"})
	o.ok("write_file", args{"path": "d.txt", "content": strings.Repeat("d", 90)})
	o.fails("would hold 101 bytes", "write_file", args{"path": "x/y/c.txt", "content": strings.Repeat("c", 11)})

	deep := d.fresh(t, Setup{Folders: []string{"a/b/c/d/e/f/g/h", "1/2/3/4/5/6/7/8", "long"}})
	deep.ok("move_file", args{"source": "a", "destination": "1/2/3/4/5/6/7/8/a"})
	deep.fails("17 parts, the limit is 16", "move_file", args{"source": "1", "destination": "long/1"})
	name := strings.Repeat("n", 100)
	deep.ok("create_directory", args{"path": "n/" + name + "/" + name})
	deep.fails("the limit is 255", "move_file", args{"source": "n", "destination": "long/" + strings.Repeat("m", 60)})
}

// Tools that only read run at once; the race detector looks on.
func TestAtOnce(t *testing.T) { onDrivers(t, testAtOnce) }

func testAtOnce(t *testing.T, d driver) {
	o := d.fresh(t, desk())
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			for range 20 {
				o.ok("read_text_file", args{"path": "readme.md"})
				o.ok("directory_tree", args{})
				o.ok("write_file", args{"path": fmt.Sprint(i), "content": "x"})
				_, err := sandboxes.StateOf(t.Context(), o.Sandbox)
				require.NoError(t, err)
			}
		})
	}
	wg.Wait()
	require.Len(t, o.state().Diff, 8)
}

// A write is all or nothing, and what a crash leaves of one is nobody's file.
func TestWriteIsAtomic(t *testing.T) { onDrivers(t, testWriteIsAtomic) }

func testWriteIsAtomic(t *testing.T, d driver) {
	o := d.fresh(t, desk())
	start := o.state()
	left := filepath.Join(o.dir, temporary)
	require.NoError(t, os.WriteFile(left, []byte("half a fi"), 0o600))
	require.Equal(t, start, o.state())
	require.NotContains(t, o.ok("list_directory", args{}), "mcpgym")
	require.NotContains(t, o.ok("directory_tree", args{}), "mcpgym")
	o.fails("reserved", "read_text_file", args{"path": temporary})
	o.ok("write_file", args{"path": "a", "content": "whole"})
	require.NoFileExists(t, left)

	// A reader sees the old file or the new one, and who has it open keeps the old one.
	f, err := os.Open(filepath.Join(o.dir, "a"))
	require.NoError(t, err)
	defer f.Close()
	o.ok("write_file", args{"path": "a", "content": "other"})
	old := make([]byte, 5)
	_, err = f.Read(old)
	require.NoError(t, err)
	require.Equal(t, "whole", string(old))

	// Even a folder or a link in its place is cleared away.
	require.NoError(t, os.MkdirAll(filepath.Join(left, "x"), 0o755))
	o.give(left)
	o.ok("write_file", args{"path": "a", "content": "again"})
	require.NoError(t, os.Symlink(filepath.Join(o.dir, "readme.md"), left))
	o.ok("write_file", args{"path": "a", "content": "and again"})
	diff, err := Difference(Setup{}, Setup{Files: map[string]File{"a": {Text: "and again"}}})
	require.NoError(t, err)
	require.Equal(t, diff, o.state().Diff)
}

// Permissions are those of the setup whatever the user's umask, and edits keep them.
func TestPermissions(t *testing.T) { onDrivers(t, testPermissions) }

func testPermissions(t *testing.T, d driver) {
	o := d.fresh(t, desk())
	o.ok("edit_file", args{"path": "bin/run.sh", "edits": []edit{{"hi", "you"}}})
	require.Contains(t, o.ok("get_file_info", args{"path": "bin/run.sh"}), `"0755"`)
	o.ok("move_file", args{"source": "bin", "destination": "sbin"})
	require.Contains(t, o.ok("get_file_info", args{"path": "sbin/fixed.txt"}), `"0444"`)
}

func TestGlob(t *testing.T) {
	for _, c := range []struct {
		pattern, name string
		want          bool
	}{
		{"*", "a", true}, {"*", "a/b", false}, {"**", "a/b", true}, {"**/*", "a", true}, {"**/b", "b", true}, {"**/b", "a/x/b", true}, {"a/**", "a", false}, {"a/**", "a/b/c", true}, {"a/**/c", "a/c", true},
		{"a/**/**/c", "a/b/c", true}, {"a/**/c", "a/b/d", false}, {"/a", "a", true}, {"a?c", "abc", true}, {"a?c", "a/c", false}, {"[a-c]*", "cat", true}, {"[^a-c]*", "cat", false}, {"*.md", ".md", true},
		{".*", ".env", true}, {"*", ".env", true}, {"A", "a", false}, {`\*`, "*", true}, {"é", "é", true}, {"a/", "a", false}, {"**/**", "a", true},
	} {
		g, err := newGlob(c.pattern)
		require.NoError(t, err)
		require.Equal(t, c.want, g.match(c.name), "%q %q", c.pattern, c.name)
	}
	g, err := newGlob(strings.Repeat("**/*a*/", 30) + "x")
	require.NoError(t, err)
	require.False(t, g.match(strings.Repeat("aaaaaaaaaaaa/", 15)+"y"), "and that at once")
}

func TestApply(t *testing.T) {
	for _, c := range []struct {
		content string
		edits   []edit
		want    string
		err     string
	}{
		{"a\nb\nc\n", []edit{{"b\n", ""}}, "a\nc\n", ""},
		{"a\nb", []edit{{"b", "b\n"}}, "a\nb\n", ""},
		{"a b c", []edit{{"a", "b"}, {"c", "d"}}, "b b d", ""},
		{"one two", []edit{{"one", "1"}, {"1 two", "3"}}, "3", ""},
		{"one two", []edit{{"one two", "x"}, {"two", "y"}}, "", "edit 2: 0 matches of oldText, since an edit before it"},
		{"one two", []edit{{"one", "two"}, {"two", "y"}}, "", "edit 2: 2 matches"},
		{"one", []edit{{"one", "x"}, {"nine", "y"}}, "", "edit 2: 0 matches of oldText, which must be"},
		{"aaa", []edit{{"aa", "b"}}, "", "2 matches"},
		{strings.Repeat("a", 500), []edit{{"a", "b"}}, "", "at least 100 matches"},
		{"a", []edit{{"", "b"}}, "", "oldText is empty"},
		{"a", []edit{{"a", "a"}}, "", "changes nothing"},
		{"a  b", []edit{{"a b", "c"}}, "", "0 matches"},
		{"a\r\nb\r\n", []edit{{"a\nb", "x\ny\nz"}}, "x\r\ny\r\nz\r\n", ""},
		{"a\r\nb\r\n", []edit{{"a\r\nb", "x\r\ny"}}, "x\r\ny\r\n", ""},
		{"a\r\nb\r\n", []edit{{"b", "b\nc"}}, "a\r\nb\r\nc\r\n", ""},
		{"a\r\nb\nc\r\n", []edit{{"b\nc", "x\ny"}}, "a\r\nx\ny\r\n", ""},
		{"a\r\nb\nc\r\n", []edit{{"a\nb", "x"}}, "", "0 matches"},
		{"x $1 \\n {}", []edit{{"$1 \\n", "$& \\1 ${x}"}}, "x $& \\1 ${x} {}", ""},
		{"é", []edit{{"e\u0301", "e"}}, "", "0 matches"},
	} {
		got, err := apply(c.content, c.edits)
		require.Equal(t, c.want, got, "%q %q", c.content, c.edits)
		if c.err == "" {
			require.NoError(t, err, "%q %q", c.content, c.edits)
		} else {
			require.ErrorContains(t, err, c.err)
		}
	}
}

func TestUnified(t *testing.T) {
	ten := "1\n2\n3\n4\n5\n6\n7\n8\n9\n10\n"
	for _, c := range []struct{ before, after, want string }{
		{"a\n", "a\n", ""},
		{"", "a\n", "@@ -0,0 +1 @@\n+a\n"},
		{"a\n", "", "@@ -1 +0,0 @@\n-a\n"},
		{"a", "a\n", "@@ -1 +1 @@\n-a\n\\ No newline at end of file\n+a\n"},
		{ten, strings.Replace(ten, "5", "five", 1), "@@ -2,7 +2,7 @@\n 2\n 3\n 4\n-5\n+five\n 6\n 7\n 8\n"},
		{ten, "0\n" + ten, "@@ -1,3 +1,4 @@\n+0\n 1\n 2\n 3\n"},
		{ten, ten + "11", "@@ -8,3 +8,4 @@\n 8\n 9\n 10\n+11\n\\ No newline at end of file\n"},
		{ten, strings.Replace(strings.Replace(ten, "1\n", "one\n", 1), "8", "eight", 1), "@@ -1,10 +1,10 @@\n-1\n+one\n 2\n 3\n 4\n 5\n 6\n 7\n-8\n+eight\n 9\n 10\n"},
		{ten, strings.Replace(strings.Replace(ten, "1\n", "one\n", 1), "9", "nine", 1), "@@ -1,4 +1,4 @@\n-1\n+one\n 2\n 3\n 4\n@@ -6,5 +6,5 @@\n 6\n 7\n 8\n-9\n+nine\n 10\n"},
	} {
		want := c.want
		if want != "" {
			want = "--- a/x\n+++ b/x\n" + want
		}
		require.Equal(t, want, unified("x", c.before, c.after))
	}
}

// patched applies a unified diff, and demands that everything in it is true of the text.
func patched(t *testing.T, before, diff string) string {
	if diff == "" {
		return before
	}
	text, hunks := lines(before), strings.Split(diff, "\n@@ ")
	require.Equal(t, "--- a/x\n+++ b/x", hunks[0])
	var out strings.Builder
	done := 0 // lines of the text
	for _, h := range hunks[1:] {
		header, body, _ := strings.Cut(h, "\n")
		numbers := regexp.MustCompile(`^-(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@$`).FindStringSubmatch(header)
		require.NotNil(t, numbers, header)
		number := func(i, without int) int {
			if numbers[i] == "" {
				return without
			}
			n, err := strconv.Atoi(numbers[i])
			require.NoError(t, err)
			return n
		}
		from, old, at, young := number(1, 0), number(2, 1), number(3, 0), number(4, 1)
		if old > 0 {
			from--
		}
		if young > 0 {
			at--
		}
		require.LessOrEqual(t, done, from)
		out.WriteString(strings.Join(text[done:from], ""))
		require.Len(t, lines(out.String()), at, "a hunk begins where it says")
		done = from
		all := lines(strings.TrimSuffix(body, "\n") + "\n")
		for i, l := range all {
			mark, l := l[0], l[1:]
			if i+1 < len(all) && strings.HasPrefix(all[i+1], "\\ No newline") {
				l = strings.TrimSuffix(l, "\n")
			}
			if mark == ' ' || mark == '-' {
				require.Equal(t, text[done], l)
				done++
				old--
			}
			if mark == ' ' || mark == '+' {
				out.WriteString(l)
				young--
			}
		}
		require.Zero(t, old, header)
		require.Zero(t, young, header)
	}
	return out.String() + strings.Join(text[done:], "")
}

// Every diff makes after of before.
func FuzzUnified(f *testing.F) {
	f.Add("a\nb\nc\n", "a\nc\nd", uint8(0))
	f.Add(strings.Repeat("a\nb\n", 30), strings.Repeat("b\nc\n", 20), uint8(3))
	f.Add("", "x", uint8(1))
	f.Add("0123456789abcdefghijklmnop", "0x23456789abcdefgh!jklmnopq", uint8(9))
	f.Add(strings.Repeat("x\n", 900), strings.Repeat("y\n", 900)+"x\n", uint8(0))
	f.Fuzz(func(t *testing.T, before, after string, few uint8) {
		// A line of each byte, and of few different ones, so that many are the same.
		fold := func(s string) string {
			if few == 0 {
				return s
			}
			var b strings.Builder
			for i := range len(s) {
				fmt.Fprintf(&b, "%d\n", s[i]%few)
			}
			return b.String()
		}
		before, after = fold(before), fold(after)
		if !strings.Contains(before+after, "@@") { // which patched would take for a hunk
			require.Equal(t, after, patched(t, before, unified("x", before, after)))
		}
	})
}
