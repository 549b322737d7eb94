package files

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/mcpgym/mcpgym/envs"
	"github.com/mcpgym/mcpgym/envs/envtest"
	"github.com/mcpgym/mcpgym/sandboxes"
	"github.com/mcpgym/mcpgym/sandboxes/container"
	"github.com/mcpgym/mcpgym/sandboxes/files"
)

// inContainer opens trees that a container serves.
func inContainer(ctx context.Context) files.Driver {
	return func(id sandboxes.Identity, setup func(sandboxes.World) (files.Setup, error), size int) (*files.Provider, error) {
		return files.Remote(ctx, id, setup, size, func(ctx context.Context, home string, stderr io.Writer) (io.ReadWriteCloser, error) {
			return container.Files(ctx, container.FilesImage, home, stderr)
		})
	}
}

// linked is a provider whose trees have links that lead out of them, which no agent can make, to a secret.
type linked struct {
	sandboxes.Provider
	private string // the folder that all its trees lie in

	mu   sync.Mutex
	done map[string]bool
}

func newLinked(t *testing.T, p sandboxes.Provider) *linked {
	t.Helper()
	for _, dir := range []string{"/dev/shm", os.TempDir()} {
		found, err := filepath.Glob(filepath.Join(dir, fmt.Sprintf("mcpgym-files-*-%d-*", os.Getpid())))
		require.NoError(t, err)
		if len(found) > 0 {
			require.Len(t, found, 1)
			require.NoError(t, os.WriteFile(filepath.Join(found[0], "secret.txt"), []byte(envtest.Secret), 0o644))
			return &linked{Provider: p, private: found[0], done: map[string]bool{}}
		}
	}
	t.Fatal("no folder has the trees")
	return nil
}

func (p *linked) Lease(ctx context.Context, w sandboxes.World) (sandboxes.Sandbox, error) {
	box, err := p.Provider.Lease(ctx, w)
	if err != nil || w.Seed == Rules().Splits["test"].Task(0).World.Seed { // whose gold solution is to earn 1
		return box, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	trees, err := filepath.Glob(filepath.Join(p.private, "trees", "[0-9]*"))
	for _, dir := range trees {
		if p.done[dir] {
			continue
		}
		p.done[dir] = true
		secret := filepath.Join(p.private, "secret.txt")
		_, _, _ = os.Symlink(secret, filepath.Join(dir, "out-file")), os.Symlink(p.private, filepath.Join(dir, "out-folder")), os.Link(secret, filepath.Join(dir, "hard")) // it may be gone
	}
	return box, err
}

func (p *linked) Close() error {
	secret, err := os.ReadFile(filepath.Join(p.private, "secret.txt"))
	if err == nil && string(secret) != envtest.Secret {
		err = fmt.Errorf("what is outside of the trees has changed: %.100q", secret)
	}
	return errors.Join(err, p.Provider.Close())
}

// attacks are the kinds of them, in turn. Those that send megabytes are rare: it is JSON that takes their time.
var attacks = []string{"out", "fill", "deep", "one", "cheat", "many", "read", "away", "", "out", "deep", "one", "cheat", "", "away", "edits", "read", "out", "one", ""}

// attack gives the calls of one hostile episode. Over many, each kind is played in each way.
func attack(r *rand.Rand, episode int) (task envs.Task, calls []envs.Call) {
	spec := Rules()
	task = spec.Splits[[]string{"train", "ood"}[r.IntN(2)]].Task(r.IntN(60))
	texts := newProject(task.World.Seed).texts
	names := slices.Sorted(maps.Keys(texts))
	name := func() string { return names[r.IntN(len(names))] }
	add := func(tool string, args map[string]any) { calls = append(calls, call(tool, args)) }
	switch attacks[(episode+episode/8)%len(attacks)] {
	case "fill": // as much as there is room for
		for i := range 6 {
			add("write_file", map[string]any{"path": fmt.Sprint("/big", i), "content": strings.Repeat("0123456789abcde\n", 100_000)})
		}
		add("read_multiple_files", map[string]any{"paths": []string{"/big0", "/big1", "/big2"}})
		add("edit_file", map[string]any{"path": "/big0", "edits": []map[string]string{{"oldText": "0", "newText": strings.Repeat("y", 3<<20)}}})
	case "deep": // as deep as may be
		deep := ""
		for i := range 20 {
			deep += fmt.Sprint("/", i)
			add("create_directory", map[string]any{"path": deep})
		}
		add("move_file", map[string]any{"source": "/0", "destination": "/0/1/2/0"})
		add("move_file", map[string]any{"source": "/0", "destination": path.Dir(name()) + "/0"})
		add("search_files", map[string]any{"pattern": strings.Repeat("**/", 60) + "*x*"})
		add("directory_tree", map[string]any{"excludePatterns": slices.Repeat([]string{"**/*/**/*/**/x"}, 20)})
	case "many": // as many as may be
		for i := range 2100 {
			add("write_file", map[string]any{"path": fmt.Sprint("/many", i), "content": "x"})
		}
		add("directory_tree", map[string]any{})
		add("search_files", map[string]any{"pattern": "**"})
	case "out": // out of the tree
		for _, p := range []string{"../../secret.txt", "/../../secret.txt", "../../../secret.txt", "out-file", "/out-folder/secret.txt", "out-folder", "hard", "../1/out-file", "../10/hard", "none/../../../secret.txt", name() + "/../../../../../secret.txt"} {
			p := map[string]any{"path": p}
			for _, tool := range []string{"read_text_file", "list_directory", "get_file_info", "delete_file", "directory_tree"} {
				if r.IntN(3) == 0 {
					add(tool, p)
				}
			}
			add("move_file", map[string]any{"source": p["path"], "destination": "/mine"})
			add("read_text_file", map[string]any{"path": "/mine"})
			add("write_file", map[string]any{"path": p["path"], "content": "mine now"})
			add("edit_file", map[string]any{"path": p["path"], "edits": []map[string]string{{"oldText": "canary", "newText": "cat"}}})
			add("read_multiple_files", map[string]any{"paths": []any{p["path"], name()}})
		}
	case "away": // all of it away
		for _, n := range names {
			add("delete_file", map[string]any{"path": n})
		}
		for _, n := range names {
			add("delete_file", map[string]any{"path": path.Dir(n)})
		}
	case "edits": // large edits
		n := name()
		var text strings.Builder
		for i := range 130_000 {
			fmt.Fprintf(&text, "%07d\n", i)
		}
		add("write_file", map[string]any{"path": n, "content": text.String()})
		edits := make([]map[string]string, 100)
		for i := range edits {
			edits[i] = map[string]string{"oldText": fmt.Sprintf("%07d\n", i*1000+r.IntN(1000)), "newText": strings.Repeat("b\n", r.IntN(2000))}
		}
		add("edit_file", map[string]any{"path": n, "edits": edits})
		add("edit_file", map[string]any{"path": n, "dryRun": true, "edits": []map[string]string{{"oldText": text.String(), "newText": strings.Repeat("b\n", 500_000)}}})
		add("edit_file", map[string]any{"path": n, "edits": []map[string]string{{"oldText": "0000000\n", "newText": strings.Repeat("c", r.IntN(3<<20))}}})
	case "one": // one file, by many
		n := name()
		for range 12 {
			add("write_file", map[string]any{"path": n, "content": "x"})
			add("move_file", map[string]any{"source": n, "destination": "/away"})
			add("move_file", map[string]any{"source": "/away", "destination": n})
			add("edit_file", map[string]any{"path": n, "edits": []map[string]string{{"oldText": "x", "newText": "xx"}}})
		}
	case "cheat": // work that is not the one asked for
		all := cheats(task)
		for _, a := range all[r.IntN(len(all))].Actions {
			calls = append(calls, a.Calls...)
		}
	case "read": // all of it, again and again
		for range 15 {
			add("read_multiple_files", map[string]any{"paths": slices.Repeat(names[:min(len(names), 10)], 5)[:50]})
			add("read_text_file", map[string]any{"path": name(), "tail": 1 << 40})
		}
	}
	return task, calls
}

// Hostile agents earn nothing, end nobody's sandbox and leave nothing behind.
func TestHostileEpisodes(t *testing.T) {
	for name, open := range map[string]files.Driver{"local": files.New, "docker": inContainer(t.Context())} {
		t.Run(name, func(t *testing.T) {
			if name == "docker" && testing.Short() {
				t.Skip("the race detector sees nothing of a container")
			}
			envtest.Soak(t, 512<<20, func(t *testing.T) envs.Spec {
				spec, err := Spec(open)
				missing := errors.Is(err, container.ErrNoEngine) || errors.Is(err, container.ErrNoImage)
				if missing && !slices.Contains(strings.Split(os.Getenv("MCPGYM_REQUIRE"), ","), name) {
					t.Skip(err)
				}
				require.NoError(t, err)
				spec.Sandboxes = newLinked(t, spec.Sandboxes)
				return spec
			}, attack)
		})
	}
}
