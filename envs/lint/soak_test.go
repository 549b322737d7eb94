package lint

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/mcpgym/mcpgym/envs"
	"github.com/mcpgym/mcpgym/envs/envtest"
	"github.com/mcpgym/mcpgym/sandboxes"
	"github.com/mcpgym/mcpgym/sandboxes/confine"
	"github.com/mcpgym/mcpgym/sandboxes/container"
	"github.com/mcpgym/mcpgym/sandboxes/files"
	"github.com/mcpgym/mcpgym/sandboxes/lint"
)

// harmful are programs that an agent may leave for the hidden tests to run, in Python and for sh. The first take all their time,
// and are rarer.
var harmful = [2][]string{{
	"import os\n\nwhile True:\n    try:\n        os.fork()\n    except OSError:\n        pass\n",
	"import time\n\ntime.sleep(99)\n",
	"while True:\n    pass\n",
	"import os\n\nwhile True:\n    os.write(2, b'x' * 4096)\n",
	"import os\n\nfor fd in range(1, 9):\n    try:\n        while True:\n            os.write(fd, b'[true]' * 4096)\n    except OSError:\n        pass\n",
	"kept = []\nwhile True:\n    kept.append(bytearray(1 << 20))\n",
	"import threading\nimport time\n\nfor _ in range(1000):\n    threading.Thread(target=time.sleep, args=(99,), daemon=True).start()\n",
	"import os\n\nfor top in '/tmp', '/work', '/dev/shm', '/', '/usr', '/tools', '/proc/self':\n    for i in range(100):\n        try:\n            with open(f'{top}/{i}', 'wb') as f:\n                f.write(bytes(1 << 20))\n        except OSError:\n            break\n",
	"import os\n\nfor d, _, names in os.walk('/work'):\n    for n in names:\n        os.unlink(d + '/' + n)\n        os.symlink('/etc/passwd', d + '/' + n)\n",
	"import os\n\nos.kill(-1, 9)\n",
	"import os\nimport time\n\nfor _ in range(10):\n    if os.fork() == 0:\n        os.setsid()\n        os.closerange(0, 99)\n        time.sleep(99)\n",
	"import os\n\nos._exit(0)\n",
	"import socket\n\nsocket.create_connection(('127.0.0.1', 22), 1)\n",
	"import sys\n\nsys.setrecursionlimit(10 ** 9)\n\n\ndef down(n):\n    return down(n + 1)\n\n\ndown(0)\n",
}, {
	"f() { f | f & }\nf\nsleep 99\n",
	"while :; do :; done\n",
	"cat /dev/zero\n",
	"cat /dev/zero >/tmp/zero\n",
	"rm -rf /work /tmp /\n",
	"kill -9 -1\n",
	"kill -9 $PPID\n",
	"setsid sleep 99 &\nexit 0\n",
}}

const slow = 2 // of harmful, how many take all their time

// large are texts that are hard on linters.
var large = map[string]string{
	"/long.py":    "x = '" + strings.Repeat("x", 1<<20) + "'\n",
	"/deep.py":    "x = " + strings.Repeat("(", 20_000) + "1" + strings.Repeat(")", 20_000) + "\n",
	"/nested.py":  strings.Repeat("[", 100_000),
	"/many.py":    strings.Repeat("import os\n", 50_000),
	"/binary.py":  "\x00\x01\ufffd" + strings.Repeat("\x00", 100_000),
	"/indents.py": indents(),
	"/long.sh":    "#!/bin/sh\necho " + strings.Repeat("x", 1<<20) + "\n",
	"/deep.sh":    "#!/bin/sh\necho " + strings.Repeat("$(", 200) + strings.Repeat(")", 200) + "\n",
}

func indents() string {
	var b strings.Builder
	for i := range 500 {
		b.WriteString(strings.Repeat(" ", i) + "if x:\n")
	}
	return b.String()
}

// attacks are the kinds of them, in turn. Most need no program at their end.
var attacks = []string{"", "code", "away", "", "linter", "read", "", "away", "cheat", "", "read", "large", "", "away", "fill", "", "code", "read", "", "linter"}

// pools are tasks without and with hidden tests.
var pools = sync.OnceValue(func() (pools [2][]envs.Task) {
	spec := Rules()
	for i := range 60 {
		for _, split := range []string{"train", "ood"} {
			task, k := spec.Splits[split].Task(i), 0
			if len(task.Assertions) > 0 {
				k = 1
			}
			pools[k] = append(pools[k], task)
		}
	}
	return pools
})

// attack gives the calls of one hostile episode. Over many, each kind is played in each way.
func attack(r *rand.Rand, episode int) (task envs.Task, calls []envs.Call) {
	kind := attacks[(episode+episode/8)%len(attacks)]
	pool := pools()[0]
	if kind == "code" || kind == "cheat" {
		pool = pools()[1]
	}
	task = pick(r, pool)
	var o options
	if err := json.Unmarshal(task.World.Setup, &o); err != nil {
		panic(err)
	}
	p := newProject(task.World.Seed, o)
	names := slices.Sorted(maps.Keys(p.texts()))
	add := func(tool string, args map[string]any) { calls = append(calls, call(tool, args)) }
	switch kind {
	case "code":
		for _, s := range p.touched() {
			from := harmful[1]
			if s.isPython() {
				from = harmful[0]
			}
			at := r.IntN(len(from))
			if at < slow && r.IntN(3) > 0 {
				at += slow
			}
			calls = append(calls, write(s.path, s.doc+from[at]))
		}
	case "cheat":
		calls = nil
		for _, a := range pick(r, allCheats(task)).Actions {
			calls = append(calls, a.Calls...)
		}
	case "linter":
		for i := range 3 {
			calls = append(calls, write(fmt.Sprintf("/new%d.py", i), fmt.Sprintf("import os\n\nx = %d\n", r.IntN(100))))
			add("run_linter", map[string]any{"path": "/"})
			add("run_linter", map[string]any{"path": pick(r, names)})
		}
	case "large":
		name := pick(r, slices.Sorted(maps.Keys(large)))
		calls = append(calls, write(name, large[name]))
		add("run_linter", map[string]any{"path": name})
	case "fill":
		for i := range 6 {
			calls = append(calls, write(fmt.Sprintf("/lib/big%d.py", i), strings.Repeat("x = 1\n", 250_000)))
		}
		add("run_linter", map[string]any{})
	case "away":
		for _, n := range names {
			add("delete_file", map[string]any{"path": n})
		}
		add("run_linter", map[string]any{"path": "/"})
	case "read":
		for range 10 {
			add("read_multiple_files", map[string]any{"paths": names[:min(50, len(names))]})
			add("search_files", map[string]any{"pattern": strings.Repeat("**/", 50) + "*"})
		}
	}
	return task, calls
}

type served struct {
	sandboxes.Provider
	run confine.Runner
}

func (s served) Close() error { return errors.Join(s.Provider.Close(), s.run.Close()) }

func inContainer(ctx context.Context) files.Driver {
	return func(id sandboxes.Identity, setup func(sandboxes.World) (files.Setup, error), size int) (*files.Provider, error) {
		return files.Remote(ctx, id, setup, size, func(ctx context.Context, home string, stderr io.Writer) (io.ReadWriteCloser, error) {
			return container.Files(ctx, container.FilesImage, home, stderr)
		})
	}
}

// Hostile agents earn nothing, end nobody's sandbox and leave nothing behind, and no code of theirs that is run does.
func TestHostileEpisodes(t *testing.T) {
	for _, d := range []struct {
		name, needs string
		open        files.Driver
		run         func(context.Context) (confine.Runner, error)
	}{
		{"local", "lint", files.New, confine.Local},
		{"docker", "docker", inContainer(t.Context()), func(ctx context.Context) (confine.Runner, error) {
			return container.Programs(ctx, container.ToolsImage)
		}},
	} {
		t.Run(d.name, func(t *testing.T) {
			if d.name == "docker" && testing.Short() {
				t.Skip("the race detector sees nothing of a container")
			}
			envtest.Soak(t, 512<<20, func(t *testing.T) envs.Spec {
				run, err := d.run(t.Context())
				var spec envs.Spec
				if err == nil {
					if spec, err = Spec(t.Context(), d.open, run); err != nil {
						require.NoError(t, run.Close())
					}
				}
				missing := errors.Is(err, confine.ErrUnavailable) || errors.Is(err, lint.ErrNoLinters) || errors.Is(err, container.ErrNoEngine) || errors.Is(err, container.ErrNoImage)
				if missing && !slices.Contains(strings.Split(os.Getenv("MCPGYM_REQUIRE"), ","), d.needs) {
					t.Skip(err)
				}
				require.NoError(t, err)
				spec.Sandboxes = served{spec.Sandboxes, run}
				return spec
			}, attack)
		})
	}
}
