package files

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mcpgym/mcpgym/sandboxes"
	"github.com/mcpgym/mcpgym/sandboxes/container"
)

// homes lists the folders of this process's providers.
func homes(t testing.TB) []string {
	t.Helper()
	dir := memory()
	if dir == "" {
		dir = os.TempDir()
	}
	all, err := filepath.Glob(filepath.Join(dir, prefix+"*"))
	require.NoError(t, err)
	return all
}

func TestRemoteErrors(t *testing.T) {
	// replaced changes what a server says.
	replaced := func(old, new string) Boot {
		return func(ctx context.Context, home string, stderr io.Writer) (io.ReadWriteCloser, error) {
			s, err := bootHere(ctx, home, stderr)
			p := s.(piped)
			r, w := io.Pipe()
			from := p.Reader
			go func() {
				data := make([]byte, 1<<20)
				for {
					n, err := from.Read(data)
					if _, werr := io.WriteString(w, strings.ReplaceAll(string(data[:n]), old, new)); err != nil || werr != nil {
						w.CloseWithError(err)
						return
					}
				}
			}()
			p.Reader = r
			return p, err
		}
	}
	before := homes(t)
	for _, c := range []struct {
		name string
		boot Boot
		says string
	}{
		{"another version", replaced(`"text":"`+Version, `"text":"0`), `version "0", not "` + Version + `": make images`},
		{"no version", replaced(`"isError":false`, `"isError":true`), `make images`},
		{"other tools", replaced("Read a text file", "Read a book"), "other tools of the same version: make images"},
		{"other folders", func(ctx context.Context, _ string, w io.Writer) (io.ReadWriteCloser, error) {
			return bootHere(ctx, t.TempDir(), w)
		}, "does not see the folders"},
		{"no folder", func(ctx context.Context, _ string, w io.Writer) (io.ReadWriteCloser, error) {
			s, _ := bootHere(ctx, "/none", w)
			return piped{s, s, func() error { s.Close(); return nil }}, nil
		}, "closed its output"},
		{"no engine", func(context.Context, string, io.Writer) (io.ReadWriteCloser, error) {
			return nil, container.ErrNoEngine
		}, "start a server of file trees: no Docker engine answers"},
	} {
		_, err := Remote(t.Context(), nil, Decode, 1, c.boot)
		require.ErrorContains(t, err, c.says, c.name)
	}
	require.Equal(t, before, homes(t))
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := Remote(ended, nil, Decode, 1, bootHere)
	require.ErrorIs(t, err, context.Canceled)
	require.Equal(t, before, homes(t))
}

// No name and no argument of one agent reaches another's tree.
func TestNeighbours(t *testing.T) { onDrivers(t, testNeighbours) }

func testNeighbours(t *testing.T, d driver) {
	p := d.provider(t, 1)
	mine, err := p.Lease(t.Context(), world(t, desk()))
	require.NoError(t, err)
	other, err := p.Lease(t.Context(), world(t, Setup{}))
	require.NoError(t, err)
	call(t, mine, "write_file", args{"path": "mine", "content": secret})
	call(t, other, "directory_tree", args{})
	before := state(t, mine)
	read, write := `{"path":"mine"}`, `{"path":"mine","content":"x"}`
	for _, about := range []string{"1", "1 8388608 2000 16384 0 0", "../1", "", "2", "2 8388608 2000 16384 0 0:1"} {
		for _, c := range []struct{ tool, in string }{{"read_text_file", read}, {"write_file", write}, {"delete_file", read}} {
			for _, name := range []string{about + ":" + c.tool, about + "/" + c.tool, "\n" + about + ":" + c.tool, `","name":"` + about + ":" + c.tool} {
				r, err := other.Session().Call(t.Context(), name, []byte(c.in))
				require.NoError(t, err)
				require.True(t, r.IsError, "%q: %s", name, r.Text)
			}
			in := c.in[:len(c.in)-1] + `,"name":"` + about + ":" + c.tool + `"}`
			r, err := other.Session().Call(t.Context(), c.tool, []byte(in))
			require.NoError(t, err)
			require.True(t, r.IsError, "%s: %s", in, r.Text)
		}
	}
	for _, name := range []string{"version", "close", "open"} {
		r, err := other.Session().Call(t.Context(), name, []byte(`{"folders":["1","2"]}`))
		require.NoError(t, err)
		require.True(t, r.IsError, r.Text)
	}
	for _, path := range []string{"../1/mine", "/../1/mine", "../../trees/1/mine"} {
		r := call(t, other, "read_text_file", args{"path": path})
		require.True(t, r.IsError, r.Text)
	}
	require.Equal(t, before, state(t, mine))
	require.Empty(t, state(t, other).Diff)
}

// Calls that are given up, leases that end meanwhile: nothing is left, and the neighbour notices nothing.
func TestGivenUp(t *testing.T) { onDrivers(t, testGivenUp) }

func testGivenUp(t *testing.T, d driver) {
	p := d.provider(t, 4)
	quiet, err := p.Lease(t.Context(), world(t, desk()))
	require.NoError(t, err)
	var wg sync.WaitGroup
	for i := range 4 {
		wg.Go(func() {
			for n := range 25 {
				box, err := p.Lease(t.Context(), world(t, desk()))
				require.NoError(t, err)
				var calls sync.WaitGroup
				for range 2 {
					calls.Go(func() {
						ctx, cancel := context.WithTimeout(t.Context(), time.Duration(n*20)*time.Microsecond)
						defer cancel()
						_, err := box.Session().Call(ctx, "write_file", asJSON(t, args{"path": fmt.Sprint(i), "content": "x"}))
						if _, fault := errors.AsType[*sandboxes.Fault](err); err != nil && !fault {
							require.ErrorIs(t, err, ctx.Err())
						}
					})
				}
				if n%2 == 0 {
					calls.Wait()
				}
				require.NoError(t, box.Close())
				calls.Wait()
			}
		})
	}
	wg.Wait()
	require.False(t, call(t, quiet, "write_file", args{"path": "a", "content": "x"}).IsError)
	left, err := os.ReadDir(p.home)
	require.NoError(t, err)
	require.Len(t, left, 1)
}
