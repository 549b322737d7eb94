package files

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/mcpgym/mcpgym/sandboxes"
	"github.com/mcpgym/mcpgym/sandboxes/internal/owner"
	"github.com/mcpgym/mcpgym/sandboxes/join"
	"github.com/mcpgym/mcpgym/sandboxes/sandboxtest"
)

func world(t testing.TB, s Setup) sandboxes.World {
	t.Helper()
	data, err := json.Marshal(s)
	require.NoError(t, err)
	return sandboxes.World{Seed: 1, Setup: data}
}

// desk is a small tree.
func desk() Setup {
	return Setup{
		Files: map[string]File{
			"readme.md":         {Text: "# Desk\n\nAll notes.\n"},
			"notes/may.txt":     {Text: "milk\neggs\n"},
			"notes/june.txt":    {Text: "bread"},
			"notes/old/a.txt":   {Text: "milk\neggs\n"},
			"notes/old/plan.md": {Text: "1. sleep\r\n2. eat\r\n"},
			"bin/run.sh":        {Text: "echo <hi> & done\n", Mode: "0755"},
			"bin/fixed.txt":     {Text: "do not touch\n", Mode: "0444"},
			"bin/blob.bin":      {Base64: []byte{0xff, 0xfe, 0x80}},
			"ünïcode/ナ イ フ.txt": {Text: "ok\n"},
		},
		Folders: []string{"empty/inner"},
	}
}

// folder is where trees lie: in memory things happen faster, so that more of them happen at once.
func folder(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp(memory(), prefix+owner.Self()+"-") // so that it is swept where a test is killed
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(dir)) })
	return dir
}

type args map[string]any

func call(t testing.TB, box sandboxes.Sandbox, tool string, in args) sandboxes.Result {
	t.Helper()
	data, err := json.Marshal(in)
	require.NoError(t, err)
	r, err := box.Session().Call(t.Context(), tool, data)
	require.NoError(t, err)
	require.Empty(t, r.Defect)
	require.Zero(t, r.Code, r.Text)
	return r
}

// ok calls a tool that must succeed, fails one that must not.
func (o *opened) ok(tool string, in args) string {
	o.t.Helper()
	r := call(o.t, o.Sandbox, tool, in)
	require.False(o.t, r.IsError, r.Text)
	return r.Text
}

func (o *opened) fails(says, tool string, in args) {
	o.t.Helper()
	r := call(o.t, o.Sandbox, tool, in)
	require.True(o.t, r.IsError, r.Text)
	require.Contains(o.t, r.Text, says)
}

func state(t testing.TB, box sandboxes.Sandbox) sandboxes.State {
	t.Helper()
	s, err := sandboxes.StateOf(t.Context(), box)
	require.NoError(t, err)
	return s
}

func (o *opened) state() sandboxes.State {
	o.t.Helper()
	return state(o.t, o.Sandbox)
}

func TestContract(t *testing.T) { onDrivers(t, testContract) }

func testContract(t *testing.T, d driver) {
	limited := desk()
	limited.Limits.Result = 300
	worlds := []sandboxes.World{world(t, desk()), {Seed: 2}, world(t, limited)}
	for _, size := range []int{4, 1} {
		if d.name == "docker" && size == 1 {
			break // the pool is the same
		}
		t.Run(fmt.Sprint(size), func(t *testing.T) {
			sandboxtest.Check(t, func(t *testing.T) sandboxes.Provider {
				p, err := d.open(t.Context(), nil, Decode, size)
				require.NoError(t, err)
				return p
			}, worlds...)
		})
	}
}

func TestProvider(t *testing.T) { onDrivers(t, testProvider) }

func testProvider(t *testing.T, d driver) {
	p := d.provider(t, 1)
	require.Equal(t, sandboxes.Identity{"sandbox": "files", "files tools": Version}, p.Identity())
	_, err := p.Lease(t.Context(), sandboxes.World{Setup: json.RawMessage(`{"file":{}}`)})
	require.ErrorContains(t, err, "unknown field")
	f, ok := errors.AsType[*sandboxes.Fault](err)
	require.True(t, ok)
	require.Equal(t, sandboxes.FaultLease, f.Kind)
	left, err := os.ReadDir(p.home)
	require.NoError(t, err)
	require.Empty(t, left)

	box, err := p.Lease(t.Context(), world(t, desk()))
	require.NoError(t, err)
	_, err = p.Lease(t.Context(), world(t, desk()))
	require.NoError(t, err)
	left, err = os.ReadDir(p.home)
	require.NoError(t, err)
	require.Len(t, left, 2)
	require.NoError(t, box.Close())
	left, err = os.ReadDir(p.home)
	require.NoError(t, err)
	require.Len(t, left, 1, "a closed tree is gone")
	require.NoError(t, p.Close())
	require.NoDirExists(t, p.home)
}

// When this test fails, tools or states have changed: give Version another value, then the values below.
func TestGolden(t *testing.T) { onDrivers(t, testGolden) }

func testGolden(t *testing.T, d driver) {
	require.Equal(t, "1", Version)
	o := d.fresh(t, desk())
	require.Equal(t, sandboxes.State{Hash: "63f6b694f7ca06b2653039b5f095901aebd5b4b9f6c6390c6a533e6500dad904"}, o.state())
	tools, err := o.Session().Tools(t.Context())
	require.NoError(t, err)
	data, err := json.Marshal(tools)
	require.NoError(t, err)
	sum := sha256.Sum256(data)
	require.Equal(t, "5610114436af4daa", hex.EncodeToString(sum[:8]), "the list of tools")
}

func TestSetup(t *testing.T) {
	for _, c := range []struct {
		says string
		s    Setup
	}{
		{"is a file and a folder", Setup{Files: map[string]File{"a": {}, "a/b": {}}}},
		{"is a file and a folder", Setup{Files: map[string]File{"a": {}}, Folders: []string{"/a/"}}},
		{"comes twice", Setup{Files: map[string]File{"a": {}, "/a": {}}}},
		{"comes twice", Setup{Files: map[string]File{"/a/b": {}, "a": {}}}},
		{"leads out of the tree", Setup{Files: map[string]File{"../a": {}}}},
		{"does not end in a slash", Setup{Files: map[string]File{"a/": {}}}},
		{"leads out of the tree", Setup{Folders: []string{"a/../.."}}},
		{"reserved", Setup{Files: map[string]File{"a/.MCPgym-write": {}}}},
		{"text and base64", Setup{Files: map[string]File{"a": {Text: "x", Base64: []byte("y")}}}},
		{"octal", Setup{Files: map[string]File{"a": {Mode: "0200"}}}},
		{"octal", Setup{Files: map[string]File{"a": {Mode: "04755"}}}},
		{"octal", Setup{Files: map[string]File{"a": {Mode: "rw"}}}},
		{"the limit is 3", Setup{Files: map[string]File{"a": {Text: "four"}}, Limits: Limits{Bytes: 3}}},
		{"the limit is 2", Setup{Files: map[string]File{"a/b/c": {}}, Limits: Limits{Entries: 2}}},
		{"negative", Setup{Limits: Limits{Bytes: -1}}},
		{"or more", Setup{Limits: Limits{Result: 10}}},
	} {
		_, err := newTree(filepath.Join(t.TempDir(), "x"), c.s, -1)
		require.ErrorContains(t, err, c.says, "%+v", c.s)
	}
	_, err := Decode(sandboxes.World{Setup: json.RawMessage(`{} {}`)})
	require.ErrorContains(t, err, "text after it")
}

// What a state says of the start is computed from the setup, what it says later is read from the folder: they must agree.
func TestState(t *testing.T) { onDrivers(t, testState) }

func testState(t *testing.T, d driver) {
	o := d.fresh(t, desk())
	start := o.state()
	require.Empty(t, start.Diff)
	require.Len(t, start.Hash, 64)

	o.ok("write_file", args{"path": "notes/may.txt", "content": "milk\n"})
	o.ok("write_file", args{"path": "new.txt", "content": "hello world\n"})
	o.ok("create_directory", args{"path": "later/on"})
	o.ok("move_file", args{"source": "notes/old", "destination": "archive"})
	o.ok("delete_file", args{"path": "readme.md"})
	got := o.state()
	require.Equal(t, []string{
		"added /archive (directory 0755)",
		"added /archive/a.txt (file 0644, 10 bytes, sha256 b9d1f6402d74f2f000a8ef3e74864b07)",
		"added /archive/plan.md (file 0644, 18 bytes, sha256 83b4c26d8eb896feb0b64e84da6424ef)",
		"added /later (directory 0755)",
		"added /later/on (directory 0755)",
		"added /new.txt (file 0644, 12 bytes, sha256 a948904f2f0f479b8f8197694b30184b)",
		"changed /notes/may.txt (file 0644, 5 bytes, sha256 28b3e2baaf822711e28e8abc0228b697)",
		"removed /notes/old",
		"removed /notes/old/a.txt",
		"removed /notes/old/plan.md",
		"removed /readme.md",
	}, got.Diff)

	want := desk()
	want.Files["archive/a.txt"], want.Files["archive/plan.md"] = want.Files["notes/old/a.txt"], want.Files["notes/old/plan.md"]
	for _, p := range []string{"notes/old/a.txt", "notes/old/plan.md", "readme.md"} {
		delete(want.Files, p)
	}
	want.Files["notes/may.txt"], want.Files["new.txt"] = File{Text: "milk\n"}, File{Text: "hello world\n"}
	want.Folders = append(want.Folders, "later/on")
	diff, err := Difference(desk(), want)
	require.NoError(t, err)
	require.Equal(t, got.Diff, diff)
	require.Equal(t, got.Hash, d.fresh(t, want).state().Hash, "equal trees have equal states, whatever led to them")

	// And all the way back.
	o.ok("write_file", args{"path": "notes/may.txt", "content": "milk\neggs\n"})
	o.ok("write_file", args{"path": "readme.md", "content": "# Desk\n\nAll notes.\n"})
	o.ok("move_file", args{"source": "archive", "destination": "notes/old"})
	for _, p := range []string{"later/on", "later/", "new.txt"} {
		o.ok("delete_file", args{"path": p})
	}
	require.Equal(t, start, o.state())

	// What no tool does is seen as well.
	require.NoError(t, os.Chmod(filepath.Join(o.dir, "bin/run.sh"), 0o600))
	require.NoError(t, os.Symlink("run.sh", filepath.Join(o.dir, "bin/link")))
	require.NoError(t, os.Link(filepath.Join(o.dir, "readme.md"), filepath.Join(o.dir, "copy")))
	got = o.state()
	require.NotEqual(t, start.Hash, got.Hash)
	require.Equal(t, []string{"added /bin/link (link)", "added /copy (hard link)", "changed /bin/run.sh (file 0600, 17 bytes, sha256 c566ba55e92cb6c18ec3c47036bf2acb)", "changed /readme.md (hard link)"}, got.Diff)
}

func TestStateBounded(t *testing.T) { onDrivers(t, testStateBounded) }

func testStateBounded(t *testing.T, d driver) {
	o := d.fresh(t, Setup{})
	for i := range maxDiff + 7 {
		o.ok("write_file", args{"path": fmt.Sprintf("%03d", i), "content": ""})
	}
	s := o.state()
	require.Len(t, s.Diff, maxDiff)
	require.Equal(t, 7, s.More)
	require.True(t, strings.HasPrefix(s.Diff[0], "added /000 "))
}

func TestProbe(t *testing.T) { onDrivers(t, testProbe) }

func testProbe(t *testing.T, d driver) {
	parts, err := join.New(join.Part{Name: "files", Provider: d.provider(t, 1)})
	require.NoError(t, err)
	data, err := json.Marshal(map[string]any{"files": desk()})
	require.NoError(t, err)
	box, err := parts.Lease(t.Context(), sandboxes.World{Setup: data})
	require.NoError(t, err)
	call(t, box, "write_file", args{"path": "notes/may.txt", "content": "a < b & c\n"})
	for _, c := range []struct{ kind, text, value, err string }{
		{"text", "/notes/may.txt", `"a < b & c\n"`, ""},
		{"text", "notes/none.txt", `null`, ""},
		{"text", "notes/may.txt/x", `null`, ""},
		{"text", "notes", ``, "is a folder"},
		{"text", "bin/blob.bin", ``, "binary, 3 bytes"},
		{"text", "../x", ``, "leads out"},
		{"type", "notes", `"directory"`, ""},
		{"type", "/", `"directory"`, ""},
		{"type", "readme.md", `"file"`, ""},
		{"type", "README.md", `null`, ""},
		{"list", "notes", `["/notes/june.txt","/notes/may.txt","/notes/old/","/notes/old/a.txt","/notes/old/plan.md"]`, ""},
		{"list", "empty/inner/", `[]`, ""},
		{"list", "nowhere", `null`, ""},
		{"list", "readme.md", ``, "not a folder"},
		{"sql", "readme.md", ``, "kind text, type and list"},
	} {
		a, err := sandboxes.ProbeOf(t.Context(), box, []sandboxes.Question{{Kind: "files/" + c.kind, Text: c.text}})
		require.NoError(t, err)
		require.Equal(t, c.value, string(a[0].Value), "%+v", c)
		require.Contains(t, a[0].Err, c.err)
		require.Equal(t, c.err == "", a[0].Err == "", "%+v: %s", c, a[0].Err)
	}
}

// A folder that somebody else removes is the sandbox's fault, and no deed of the agent's.
func TestFolderRemoved(t *testing.T) { onDrivers(t, testFolderRemoved) }

func testFolderRemoved(t *testing.T, d driver) {
	o := d.fresh(t, desk())
	require.True(t, sandboxes.AliveOf(o.Sandbox))
	require.NoError(t, os.RemoveAll(o.dir))
	require.False(t, sandboxes.AliveOf(o.Sandbox))
	_, err := sandboxes.StateOf(t.Context(), o.Sandbox)
	f, ok := errors.AsType[*sandboxes.Fault](err)
	require.True(t, ok, "%v", err)
	require.Contains(t, f.Msg, "removed")
	_, err = sandboxes.ProbeOf(t.Context(), o.Sandbox, []sandboxes.Question{{Kind: "type", Text: "readme.md"}})
	_, ok = errors.AsType[*sandboxes.Fault](err)
	require.True(t, ok, "%v", err)
	_, err = o.Session().Call(t.Context(), "read_text_file", json.RawMessage(`{"path":"readme.md"}`))
	_, ok = errors.AsType[*sandboxes.Fault](err)
	require.True(t, ok, "%v", err)
}
