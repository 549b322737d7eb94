package files

import (
	"bufio"
	"bytes"
	"context"
	"debug/elf"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/mcpgym/mcpgym/sandboxes"
)

// piped is a program that is none: a server in this process.
type piped struct {
	io.Reader
	io.Writer
	close func() error
}

func (p piped) Close() error { return p.close() }

func bootHere(_ context.Context, home string, _ io.Writer) (io.ReadWriteCloser, error) {
	toServer, in := io.Pipe()
	out, fromServer := io.Pipe()
	done := make(chan error, 1)
	go func() {
		err := Serve(home, toServer, fromServer)
		fromServer.Close()
		done <- err
	}()
	return piped{out, in, func() error {
		in.Close()
		out.Close()
		if err := <-done; !errors.Is(err, io.ErrClosedPipe) { // an answer that nobody waits for
			return err
		}
		return nil
	}}, nil
}

// script is a session's calls, good ones and bad ones.
var script = []struct {
	tool string
	in   args
}{
	{"directory_tree", args{}}, {"read_text_file", args{"path": "readme.md"}}, {"edit_file", args{"path": "readme.md", "edits": []edit{{"Desk", "Table <&>"}}}},
	{"edit_file", args{"path": "readme.md", "edits": []edit{{"nothing", ""}}}}, {"move_file", args{"source": "notes/old", "destination": "archive"}},
	{"write_file", args{"path": "x/y", "content": ""}}, {"create_directory", args{"path": "x"}}, {"write_file", args{"path": "x/y", "content": "é\n"}},
	{"write_file", args{"path": "big", "content": strings.Repeat("x", 2000)}}, {"read_text_file", args{"path": "../readme.md"}}, {"get_file_info", args{"path": "/"}},
	{"delete_file", args{"path": "notes/may.txt"}}, {"search_files", args{"pattern": "**/*.txt"}}, {"no_such_tool", args{}}, {"read_text_file", args{"lines": 3}},
}

func limitedDesk() Setup {
	s := desk()
	s.Limits = Limits{Bytes: 1500}
	return s
}

// said sends lines to a server and gives those that it answers, sorted, and its end.
func said(home string, lines ...string) ([]string, error) {
	var out bytes.Buffer
	err := Serve(home, strings.NewReader(strings.Join(lines, "\n")), &out)
	all := strings.Split(strings.TrimSpace(out.String()), "\n")
	slices.Sort(all)
	return all, err
}

// What no host of ours sends.
func TestServe(t *testing.T) {
	_, err := said(filepath.Join(t.TempDir(), "none"))
	require.ErrorContains(t, err, "no such file")
	home := t.TempDir()
	require.NoError(t, os.Mkdir(filepath.Join(home, "a"), 0o755))
	require.NoError(t, os.Symlink("..", filepath.Join(home, "up")))
	call := func(name, args string) string {
		return `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"` + name + `","arguments":` + args + `}}`
	}
	for _, c := range []struct{ line, says string }{
		{"{broken", "-32700"},
		{"[]", "-32700"},
		{`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":7}`, `"error"`},
		{`{"jsonrpc":"2.0","id":1,"method":"tools/call"}`, `"error"`},
		{`{"jsonrpc":"2.0","id":1,"method":"no/such"}`, "-32601"},
		{`{"jsonrpc":"2.0","method":"notifications/initialized"}`, ""},
		{call("version", "{}"), `"text":"` + Version + `"`},
		{call("version", `{"folders":["a"]}`), `"isError":false`},
		{call("version", `{"folders":["none"]}`), `"isError":true`},
		{call("version", `{"folders":7}`), `"isError":true`},
		{call("no_such", "{}"), `"isError":true`},
		{call("close", `{"folders":["none"]}`), `"isError":false`},
		{call("forget", `{"folders":["none"]}`), `"isError":false`},
		{call("a 1 1 999 0 0:list_directory", "{}"), `\"entries\":[]`},
		{call("a 1 1 999 0:list_directory", "{}"), `\"kind\":\"died\"`},
		{call("none 1 1 999 0 0:list_directory", "{}"), "no such file"},
		{call("../"+filepath.Base(home)+"/a 1 1 999 0 0:list_directory", "{}"), "escapes"},
		{call("up 1 1 999 0 0:list_directory", "{}"), "escapes"},
	} {
		lines, err := said(home, c.line)
		require.NoError(t, err, c.line)
		require.Len(t, lines, 1, c.line)
		require.Contains(t, lines[0], c.says, c.line)
		if c.says == "" {
			require.Empty(t, lines[0])
		}
	}
	// What comes for a tree after its end does not begin it anew.
	s := &trees{root: nil, open: map[string]*tree{}, srv: newServer()}
	_, err = s.answer([]byte(call("close", `{"folders":["a"]}`)))
	require.NoError(t, err)
	late, err := s.answer([]byte(call("a 1 1 999 0 0:list_directory", "{}")))
	require.NoError(t, err)
	require.Contains(t, string(late), `\"kind\":\"closed\"`)

	_, err = said(home, strings.Repeat("x", maxLine+1))
	require.ErrorIs(t, err, bufio.ErrTooLong)

	broken, w := io.Pipe()
	require.NoError(t, broken.Close())
	err = Serve(home, strings.NewReader(call("version", "{}")), w)
	require.ErrorIs(t, err, io.ErrClosedPipe)
}

// The program is one file, and serves as this process does.
func TestProgram(t *testing.T) {
	if testing.Short() {
		t.Skip("builds a program")
	}
	bin := filepath.Join(t.TempDir(), "filesd")
	build := exec.Command("go", "build", "-o", bin, "./filesd")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	out, err := build.CombinedOutput()
	require.NoError(t, err, "%s", out)
	if runtime.GOOS == "linux" {
		f, err := elf.Open(bin)
		require.NoError(t, err)
		defer f.Close()
		require.False(t, slices.ContainsFunc(f.Progs, func(p *elf.Prog) bool { return p.Type == elf.PT_INTERP }), "it needs no loader")
	}
	run := func(args ...string) Boot {
		return func(_ context.Context, home string, stderr io.Writer) (io.ReadWriteCloser, error) {
			cmd := exec.Command(bin, append(args, home)...)
			cmd.Stderr = stderr
			in, err := cmd.StdinPipe()
			require.NoError(t, err)
			out, err := cmd.StdoutPipe()
			require.NoError(t, err)
			require.NoError(t, cmd.Start())
			return piped{out, in, func() error {
				in.Close()
				return cmd.Wait()
			}}, nil
		}
	}
	p, err := Remote(t.Context(), nil, Decode, 1, run())
	require.NoError(t, err)
	box, err := p.Lease(t.Context(), world(t, desk()))
	require.NoError(t, err)
	require.Contains(t, call(t, box, "read_text_file", args{"path": "readme.md"}).Text, "All notes.")
	require.NoError(t, p.Close(), "it ends with its input")

	_, err = Remote(t.Context(), nil, Decode, 1, run("and another"))
	f, ok := errors.AsType[*sandboxes.Fault](err)
	require.True(t, ok, "%v", err)
	require.Contains(t, f.Msg, "filesd: want one folder, have 2")
	out, err = exec.Command(bin, "/none").CombinedOutput()
	require.Error(t, err)
	require.Contains(t, string(out), "filesd: ")
}
