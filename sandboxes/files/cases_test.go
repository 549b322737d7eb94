package files

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/mcpgym/mcpgym/sandboxes"
	"github.com/mcpgym/mcpgym/sandboxes/casetest"
)

// {ROOT} is the root as the agent knows it, and as the host does; what a path would lead to exists in both readings.
func TestCasesPath(t *testing.T) { onDrivers(t, testCasesPath) }

func testCasesPath(t *testing.T, d driver) {
	casetest.Run(t, "path", func(t *testing.T, c casetest.Case) {
		for _, virtual := range []bool{true, false} {
			o := d.fresh(t, desk())
			check := canary(t, o)
			root := o.dir
			if virtual {
				root = ""
			}
			where := strings.NewReplacer("{ROOT}", root, "{OUT}", filepath.Join(filepath.Dir(o.dir), "out"))
			var in struct {
				Op, Path string
				Links    map[string]string
			}
			c.In(t, &in)
			for name, target := range in.Links {
				require.NoError(t, os.Symlink(where.Replace(target), filepath.Join(o.dir, name)))
			}
			calls, known := map[string]string{"read": "read_text_file", "write": "write_file", "list": "list_directory", "delete": "delete_file", "edit": "edit_file",
				"info": "get_file_info", "mkdir": "create_directory", "move": "move_file", "search": "search_files"}[in.Op]
			require.True(t, known, "operation %q", in.Op)
			for _, a := range uses(where.Replace(in.Path))[calls] {
				r := call(t, o.Sandbox, calls, a)
				require.NotContains(t, r.Text, secret)
				c.Check(t, map[string]bool{"refused": r.IsError})
			}
			check()
		}
	})

	t.Run("C121", func(t *testing.T) {
		o := d.fresh(t, desk())
		check := canary(t, o)
		outside := filepath.Join(filepath.Dir(o.dir), "secret.txt")
		tools, err := o.Session().Tools(t.Context())
		require.NoError(t, err)
		for _, tool := range tools {
			require.NotContains(t, tool.Name, "link", "the agent cannot make one")
		}
		require.NoError(t, os.Link(outside, filepath.Join(o.dir, "notes", "hard"))) // somebody else can
		for tool, calls := range uses("notes/hard") {
			for _, a := range calls {
				r := call(t, o.Sandbox, tool, a)
				require.True(t, refused(r), "%s: %s", tool, r.Text)
				require.NotContains(t, r.Text, secret)
			}
		}
		require.Contains(t, o.ok("list_directory", args{"path": "notes"}), `{"path":"/notes/hard","type":"hard link"}`)
		check()
	})

	t.Run("C122", func(t *testing.T) {
		o := d.fresh(t, desk())
		check := canary(t, o)
		outside := filepath.Dir(o.dir)
		require.NoError(t, os.Symlink(outside, filepath.Join(o.dir, "notes", "up")))
		for _, p := range []string{"notes/up/secret.txt", "notes/up", "notes/up/", "notes/up/root/readme.md"} {
			for tool, calls := range uses(p) {
				for _, a := range calls {
					r := call(t, o.Sandbox, tool, a)
					require.True(t, refused(r), "%s %s: %s", tool, p, r.Text)
					require.NotContains(t, r.Text, secret)
				}
			}
		}
		// And at the open itself, were there no look before it.
		for _, p := range []string{"notes/up/secret.txt", "notes/up"} {
			_, _, err := open(o.root, p)
			require.ErrorContains(t, err, "escapes")
		}
		require.NotContains(t, o.ok("directory_tree", args{}), "secret.txt")
		require.Contains(t, o.state().Diff, "added /notes/up (link)")
		check()
	})
}

func TestCasesEdit(t *testing.T) { onDrivers(t, testCasesEdit) }

func testCasesEdit(t *testing.T, d driver) {
	casetest.Run(t, "edit", func(t *testing.T, c casetest.Case) {
		var in struct{ Content, Old, New string }
		c.In(t, &in)
		o := d.fresh(t, Setup{Files: map[string]File{"a.txt": {Text: in.Content}}})
		r := call(t, o.Sandbox, "edit_file", args{"path": "a.txt", "edits": []edit{{in.Old, in.New}}})
		got := map[string]string{}
		if r.IsError {
			for _, class := range []string{"0 matches", "2 matches"} {
				if strings.Contains(r.Text, class) {
					got["error"] = class
				}
			}
			require.Empty(t, o.state().Diff)
		} else {
			data, err := os.ReadFile(filepath.Join(o.dir, "a.txt"))
			require.NoError(t, err)
			got["content"] = string(data)
		}
		c.Check(t, got)
	})
}

func TestCases(t *testing.T) { onDrivers(t, testCases) }

func testCases(t *testing.T, d driver) {
	t.Run("C127", func(t *testing.T) {
		o := d.fresh(t, Setup{Files: map[string]File{"a.txt": {Base64: []byte{0xff, 0xfe, 0x80}}}})
		o.fails("/a.txt is binary, 3 bytes", "read_text_file", args{"path": "a.txt"})
	})
	t.Run("C128", func(t *testing.T) {
		data := make([]byte, 2000)
		for i := range data {
			data[i] = byte(i * 7 % 251)
		}
		o := d.fresh(t, Setup{Files: map[string]File{"blob.bin": {Base64: data}}})
		for _, tool := range []string{"read_text_file", "read_multiple_files", "edit_file"} {
			r := call(t, o.Sandbox, tool, uses("blob.bin")[tool][0])
			require.Contains(t, r.Text, "binary, 2000 bytes")
			require.NotContains(t, r.Text, "\ufffd")
			require.Less(t, len(r.Text), 200)
		}
	})
	t.Run("C129", func(t *testing.T) {
		text := strings.Repeat("語", 40_000)
		o := d.fresh(t, Setup{Files: map[string]File{"a.txt": {Text: text}}, Limits: Limits{Result: 100_001}})
		var out content
		require.NoError(t, json.Unmarshal([]byte(o.ok("read_text_file", args{"path": "a.txt"})), &out))
		require.Equal(t, text[:99_999], out.Content)
		require.Equal(t, "99999", out.Next)
		require.NoError(t, json.Unmarshal([]byte(o.ok("read_text_file", args{"path": "a.txt", "cursor": out.Next})), &out))
		require.Equal(t, text[99_999:], out.Content)
	})
	t.Run("C130", func(t *testing.T) {
		p := d.provider(t, 2)
		w := world(t, desk())
		a, err := p.Lease(t.Context(), w)
		require.NoError(t, err)
		template := state(t, a)
		call(t, a, "write_file", args{"path": "left.txt", "content": "for you"})
		call(t, a, "write_file", args{"path": "notes/may.txt", "content": "for you"})
		require.NotEqual(t, template, state(t, a))
		require.NoError(t, a.Close())
		b, err := p.Lease(t.Context(), w)
		require.NoError(t, err)
		require.NotContains(t, call(t, b, "directory_tree", args{}).Text, "left.txt")
		require.Equal(t, template, state(t, b))
	})
	t.Run("C131", func(t *testing.T) {
		p := d.provider(t, 1)
		w := world(t, desk())
		a, err := p.Lease(t.Context(), w)
		require.NoError(t, err)
		template := state(t, a)
		homes, err := filepath.Glob(filepath.Join(p.home, "*", "readme.md"))
		require.NoError(t, err)
		require.Len(t, homes, 1)
		f, err := os.OpenFile(homes[0], os.O_RDWR, 0)
		require.NoError(t, err)
		defer f.Close()
		folder, err := os.OpenRoot(filepath.Dir(homes[0]))
		require.NoError(t, err)
		defer folder.Close()
		require.NoError(t, a.Close())
		b, err := p.Lease(t.Context(), w)
		require.NoError(t, err)
		_, err = f.WriteString("still here")
		require.NoError(t, err)
		require.Error(t, folder.WriteFile("new.txt", nil, 0o644), "the folder is gone")
		require.Equal(t, template, state(t, b))
	})
	// There are no processes to start; what an agent can use up is room.
	t.Run("C132", func(t *testing.T) {
		p := d.provider(t, 2)
		a, err := p.Lease(t.Context(), world(t, Setup{Limits: Limits{Bytes: 1 << 20, Entries: 100}}))
		require.NoError(t, err)
		other, err := p.Lease(t.Context(), world(t, desk()))
		require.NoError(t, err)
		start := state(t, other)
		failed := 0
		for i := range 150 {
			r := call(t, a, "write_file", args{"path": fmt.Sprint(i), "content": strings.Repeat("x", 20_000)})
			if r.IsError {
				failed++
				require.Contains(t, r.Text, "the limit is 1048576")
			}
		}
		require.Equal(t, 150-52, failed)
		require.Equal(t, start, state(t, other))
		_, err = sandboxes.StateOf(t.Context(), a)
		require.NoError(t, err)
	})
}
