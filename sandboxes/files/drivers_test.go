package files

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/mcpgym/mcpgym/sandboxes"
	"github.com/mcpgym/mcpgym/sandboxes/container"
)

// driver is a way to serve trees. Its name is what MCPGYM_REQUIRE calls what it needs.
type driver struct {
	name   string
	open   func(context.Context, sandboxes.Identity, func(sandboxes.World) (Setup, error), int) (*Provider, error)
	shared func() (*Provider, error) // the provider of all tests that do not harm it
	at     string                    // what its server calls the folder of trees, empty for its own name
}

func newDriver(name, at string, open func(context.Context, sandboxes.Identity, func(sandboxes.World) (Setup, error), int) (*Provider, error)) driver {
	return driver{name, open, sync.OnceValues(func() (*Provider, error) {
		p, err := open(context.Background(), nil, Decode, 1)
		if err == nil {
			closing.Lock()
			defer closing.Unlock()
			closing.providers = append(closing.providers, p)
		}
		return p, err
	}), at}
}

// closing are the providers that TestMain closes.
var closing struct {
	sync.Mutex
	providers []*Provider
}

var drivers = []driver{
	newDriver("local", "", func(_ context.Context, id sandboxes.Identity, setup func(sandboxes.World) (Setup, error), size int) (*Provider, error) {
		return New(id, setup, size)
	}),
	newDriver("pipe", "", func(ctx context.Context, id sandboxes.Identity, setup func(sandboxes.World) (Setup, error), size int) (*Provider, error) {
		return Remote(ctx, id, setup, size, bootHere)
	}),
	newDriver("docker", "/trees", func(ctx context.Context, id sandboxes.Identity, setup func(sandboxes.World) (Setup, error), size int) (*Provider, error) {
		return Remote(ctx, id, setup, size, boot)
	}),
}

func boot(ctx context.Context, home string, stderr io.Writer) (io.ReadWriteCloser, error) {
	return container.Files(ctx, container.FilesImage, home, stderr)
}

func TestMain(m *testing.M) {
	flag.Parse()
	code := m.Run()
	for _, p := range closing.providers {
		if err := p.Close(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}
	os.Exit(code)
}

// there skips the test where what the driver needs is missing, or fails it where that is required.
func (d driver) there(t testing.TB, err error) {
	t.Helper()
	missing := errors.Is(err, container.ErrNoEngine) || errors.Is(err, container.ErrNoImage)
	if missing && !slices.Contains(strings.Split(os.Getenv("MCPGYM_REQUIRE"), ","), d.name) {
		t.Skip(err)
	}
	require.NoError(t, err)
}

// onDrivers runs a test on each driver, with -short on those of this process alone: what the race detector sees are they.
func onDrivers(t *testing.T, test func(t *testing.T, d driver)) {
	for _, d := range drivers {
		if d.name == "docker" && testing.Short() {
			break
		}
		t.Run(d.name, func(t *testing.T) {
			_, err := d.shared()
			d.there(t, err)
			test(t, d)
		})
	}
}

func (d driver) provider(t testing.TB, size int) *Provider {
	t.Helper()
	p, err := d.open(t.Context(), sandboxes.Identity{"sandbox": "files"}, Decode, size)
	d.there(t, err)
	t.Cleanup(func() { require.NoError(t, p.Close()) })
	return p
}

// opened is a tree whose folder of the host is known, with its tools.
type opened struct {
	t testing.TB
	*tree
	dir string // of the tree, the only one that its parent holds
	out string // what the server calls the folder "out" beside it
	sandboxes.Sandbox
	owner int
}

var made atomic.Int64

// fresh makes a tree on the shared provider, in a folder of its own that holds what else a test needs.
func (d driver) fresh(t testing.TB, s Setup) *opened {
	t.Helper()
	p, err := d.shared()
	d.there(t, err)
	name := fmt.Sprintf("test%d", made.Add(1))
	up := filepath.Join(p.home, name)
	require.NoError(t, makeFolder(up, p.owner))
	dir := filepath.Join(up, "root")
	tr, err := newTree(dir, s, p.owner)
	require.NoError(t, err)
	box, err := p.serve(t.Context(), tr)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, errors.Join(box.Close(), os.RemoveAll(up))) })
	at := p.home
	if d.at != "" {
		at = d.at
	}
	return &opened{t, tr, dir, filepath.Join(at, name, "out"), box, p.owner}
}

// give gives what a test has made to the user that trees belong to.
func (o *opened) give(top string) {
	o.t.Helper()
	if o.owner >= 0 {
		require.NoError(o.t, filepath.Walk(top, func(p string, _ os.FileInfo, _ error) error { return os.Lchown(p, o.owner, o.owner) }))
	}
}

// fresh makes a tree of this process, for what has to do with no driver.
func fresh(t testing.TB, s Setup) *opened { return drivers[0].fresh(t, s) }

func provider(t testing.TB, size int) *Provider { return drivers[0].provider(t, size) }

// What an agent sees, and what it leaves, is the same whoever serves it.
func TestDriversAgree(t *testing.T) {
	type call struct {
		tool, in string
	}
	var calls []call
	for _, s := range script {
		calls = append(calls, call{s.tool, string(asJSON(t, s.in))})
	}
	calls = append(calls,
		call{"read_text_file", ""}, call{"read_text_file", "{"}, call{"read_text_file", "[]"}, call{"read_text_file", `"x"`}, call{"read_text_file", "null"},
		call{"read_text_file", "{\"path\":\n \"readme.md\"\t}"}, call{"read_text_file", `{"Path":"readme.md","path":"x/y"}`}, call{"read_text_file", `{"path":7}`},
		call{"read_text_file", `{"path":"readme.md","head":1e400}`}, call{"read_text_file", `{"path":"readme.md","head":9007199254740993}`},
		call{"write_file", `{"path":"u","content":"\ud800 \u2028 <&> \u0000"}`}, call{"write_file", `{"path":"u","content":"\u2028 <&> \ud83d\ude00"}`}, call{"read_text_file", `{"path":"u"}`},
		call{"", "{}"}, call{"1:read_text_file", `{"path":"readme.md"}`}, call{":", "{}"}, call{"open", `{"folder":"1"}`}, call{"version", "{}"}, call{"close", `{"folder":"1"}`},
		call{"../1:read_text_file", `{"path":"readme.md"}`}, call{"\"},\x00\n\xff", "{}"}, call{strings.Repeat("x", 100_000), "{}"},
		call{"write_file", `{"path":"u","content":"` + strings.Repeat("x", maxCall-100) + `"}`}, call{"write_file", `{"path":"u","content":"` + strings.Repeat("x", maxCall) + `"}`},
		call{"directory_tree", "{}"}, call{"search_files", `{"pattern":"**"}`},
	)
	var first []string
	for i, d := range drivers {
		if d.name == "docker" && testing.Short() {
			break
		}
		p := d.provider(t, 1)
		box, err := p.Lease(t.Context(), world(t, limitedDesk()))
		require.NoError(t, err)
		tools, err := box.Session().Tools(t.Context())
		require.NoError(t, err)
		seen := []string{string(asJSON(t, p.Identity())), string(asJSON(t, tools)), string(asJSON(t, state(t, box)))}
		for _, c := range calls {
			r, err := box.Session().Call(t.Context(), c.tool, []byte(c.in))
			require.NoError(t, err, "%.100q %.100q", c.tool, c.in)
			seen = append(seen, fmt.Sprintf("%.100q %.100q: %+v", c.tool, c.in, r))
		}
		seen = append(seen, string(asJSON(t, state(t, box))))
		for _, kind := range []string{"text", "type", "list", "sql"} {
			for _, path := range []string{"readme.md", "x", "/", "none", "../x", "bin/blob.bin"} {
				a, err := sandboxes.ProbeOf(t.Context(), box, []sandboxes.Question{{Kind: kind, Text: path}})
				require.NoError(t, err)
				seen = append(seen, fmt.Sprintf("%s %s: %s %s", kind, path, a[0].Value, a[0].Err))
			}
		}
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		_, err = box.Session().Call(ended, "read_text_file", nil)
		seen = append(seen, fmt.Sprint(err))
		require.NoError(t, os.RemoveAll(filepath.Join(p.home, "1")))
		for range 2 {
			_, err = box.Session().Call(t.Context(), "read_text_file", []byte(`{"path":"readme.md"}`))
			seen = append(seen, fmt.Sprintf("%T %v", err, err))
		}
		box, err = p.Lease(t.Context(), world(t, desk()))
		require.NoError(t, err)
		require.NoError(t, box.Close())
		_, err = box.Session().Call(t.Context(), "read_text_file", []byte(`{"path":"readme.md"}`))
		seen = append(seen, fmt.Sprintf("%T %v", err, err))
		_, err = sandboxes.StateOf(t.Context(), box)
		seen = append(seen, fmt.Sprintf("%T %v", err, err))
		_, err = p.Lease(t.Context(), sandboxes.World{Seed: 4, Setup: []byte("{")})
		seen = append(seen, fmt.Sprintf("%T %v", err, err))
		if i == 0 {
			first = seen
		}
		require.Len(t, seen, len(first))
		for k := range first {
			require.True(t, first[k] == seen[k], "%s: %.500s\nwant %.500s", d.name, seen[k], first[k]) // some are long
		}
	}
}

func asJSON(t testing.TB, v any) []byte {
	t.Helper()
	data, err := json.Marshal(v)
	require.NoError(t, err)
	return data
}
