// Package container runs programs in hardened containers of any Docker engine.
//
// A container has no network, a read-only root, no capability, no way to gain one, an ordinary user, and limits on
// processes, memory, processor time and the size of its files. It is held by its standard input: it ends when the process
// that started it closes that or dies, however it dies. What an engine or a hostile program leaves behind nevertheless is
// found by its label and removed by the next Open.
//
// It is the only package that imports testcontainers-go.
package container

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/containerd/errdefs"
	"github.com/moby/moby/api/pkg/stdcopy"
	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/client"
	"github.com/testcontainers/testcontainers-go"
	"github.com/testcontainers/testcontainers-go/log"

	"github.com/mcpgym/mcpgym/sandboxes/internal/owner"
)

const (
	ownerLabel = "mcpgym.owner"
	// How long a program may take to end by itself once its input is closed.
	grace = 2 * time.Second
	// No single request to an engine takes longer, on a busy machine either.
	patience = 30 * time.Second
)

var (
	// ErrNoEngine is wrapped by the errors of Open where no engine answers.
	ErrNoEngine = errors.New("no Docker engine answers")
	// ErrNoImage is wrapped by the errors of Run where the engine lacks the image.
	ErrNoImage = errors.New("the engine does not have the image")
)

// Engine is a Docker engine that answers. Its methods may be called concurrently.
type Engine struct {
	cli *testcontainers.DockerClient
}

// Open connects to the engine that DOCKER_HOST, or else the machine's default, names, and removes what dead owners left
// there. The error says in one line how to get an engine.
func Open(ctx context.Context) (*Engine, error) {
	configure()
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	// testcontainers remembers for ever what its first call met, so that call must not end with the caller's context.
	ctx, cancel := fresh(ctx)
	defer cancel()
	cli, err := testcontainers.NewDockerClientWithOpts(ctx)
	if err == nil {
		_, err = cli.Ping(ctx, client.PingOptions{})
	}
	if err != nil {
		return nil, fmt.Errorf("%w (%s): make deps installs and starts one", ErrNoEngine, strings.Join(strings.Fields(err.Error()), " "))
	}
	e := &Engine{cli}
	if _, err := e.Sweep(ctx); err != nil {
		return nil, errors.Join(err, e.Close())
	}
	return e, nil
}

// configure sets what testcontainers reads once, at its first call, unless the user has.
var configure = sync.OnceFunc(func() {
	set := func(name, value string) {
		if _, ok := os.LookupEnv(name); !ok {
			_ = os.Setenv(name, value) // fails only for names that no system accepts
		}
	}
	// Its reaper is one more image to pull; held containers need none.
	set("TESTCONTAINERS_RYUK_DISABLED", "true")
	// It takes a machine with this file for a container, and the default gateway for the engine's address.
	if _, err := os.Stat("/.dockerenv"); err == nil && local(os.Getenv("DOCKER_HOST")) {
		set("TESTCONTAINERS_HOST_OVERRIDE", "127.0.0.1")
	}
	log.SetDefault(log.NewNoopLogger())
})

// local says whether an engine at this address runs on this machine.
func local(host string) bool { return host == "" || strings.HasPrefix(host, "unix://") }

// fresh is a context that the caller's end does not cancel: half-made containers would be left, and clean-up not done.
func fresh(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(ctx), patience)
}

// Close ends the connections to the engine. Containers live on.
func (e *Engine) Close() error { return e.cli.Close() }

// Sweep removes the containers and folders whose owner, a process on this machine, is gone, and returns how many it removed.
func (e *Engine) Sweep(ctx context.Context) (int, error) {
	list, err := e.cli.ContainerList(ctx, client.ContainerListOptions{All: true, Filters: make(client.Filters).Add("label", ownerLabel)})
	if err != nil {
		return 0, fmt.Errorf("list the engine's containers: %w", err)
	}
	n := 0
	var errs []error
	for _, c := range list.Items {
		if o := c.Labels[ownerLabel]; owner.Gone(o, local(e.cli.DaemonHost())) {
			n++
			errs = append(errs, e.remove(ctx, c.ID))
		}
	}
	dirs, _ := filepath.Glob(filepath.Join(os.TempDir(), dirPrefix+"*")) // fails only on a bad pattern
	for _, d := range dirs {
		if o, err := os.ReadFile(filepath.Join(d, "owner")); err == nil && owner.Gone(string(o), true) {
			n++
			errs = append(errs, os.RemoveAll(d))
		}
	}
	return n, errors.Join(errs...)
}

// remove removes a container at once, running or not. One that is gone or going is fine.
func (e *Engine) remove(ctx context.Context, id string) error {
	_, err := e.cli.ContainerRemove(ctx, id, client.ContainerRemoveOptions{Force: true, RemoveVolumes: true})
	if err != nil && !errdefs.IsNotFound(err) && !errdefs.IsConflict(err) {
		return fmt.Errorf("remove container %.12s: %w", id, err)
	}
	return nil
}

// Config says what to run. Limits that are zero get the default: there is no container without limits.
type Config struct {
	Image      string           // must be on the engine: Run pulls nothing
	Entrypoint []string         // in place of the image's, unless empty
	Args       []string         // follow the entrypoint, in place of the image's, unless empty
	User       string           // "uid:gid", not root; nobody's unless given
	Memory     int64            // bytes, files in Tmpfs included; 256 MiB unless given
	PIDs       int64            // processes and threads; 64 unless given
	CPUs       float64          // processors' worth of time; 1 unless given
	Tmpfs      map[string]int64 // folders in memory that the user may write to, and their sizes in bytes; /tmp of 16 MiB unless given
	Binds      []string         // folders of the engine's machine, "/there:/here" or "/there:/here:ro"
	Stderr     io.Writer        // gets the standard error; dropped if nil. It must not block
}

// Container is a running container, and the standard input and output of its main process. Whoever runs one reads from it:
// a program that nobody reads from blocks. Read, Write and Close may be called concurrently, each Read and Write by one caller.
type Container struct {
	e     *Engine
	id    string
	in    client.HijackedResponse
	out   *io.PipeReader
	ended chan struct{} // closed when the output has ended
	close func() error
}

// Run starts a container and holds it until Close. Its errors name the image. Cancelling ctx ends the start, and leaves nothing.
func (e *Engine) Run(ctx context.Context, cfg Config) (*Container, error) {
	c, err := e.run(ctx, cfg)
	if err != nil {
		return nil, fmt.Errorf("run a container of %s: %w", cfg.Image, err)
	}
	return c, nil
}

func (e *Engine) run(caller context.Context, cfg Config) (*Container, error) {
	user := cmp.Or(cfg.User, "65534:65534")
	uid, gid, _ := strings.Cut(user, ":")
	for _, id := range []string{uid, gid} {
		if n, err := strconv.ParseUint(id, 10, 32); err != nil || n == 0 {
			return nil, fmt.Errorf("user %q is not the uid:gid of an ordinary user", user)
		}
	}
	if caller.Err() != nil {
		return nil, caller.Err()
	}
	ctx, cancel := fresh(caller)
	defer cancel()
	if _, err := e.cli.ImageInspect(ctx, cfg.Image); errdefs.IsNotFound(err) {
		return nil, fmt.Errorf("%w: make images builds ours", ErrNoImage)
	} else if err != nil {
		return nil, err
	}

	opts := []testcontainers.ContainerCustomizer{
		testcontainers.WithNoStart(),
		testcontainers.WithLabels(map[string]string{ownerLabel: owner.Self()}),
		testcontainers.WithConfigModifier(func(c *container.Config) {
			c.User, c.NetworkDisabled = user, true
			c.OpenStdin, c.StdinOnce, c.AttachStdin, c.AttachStdout, c.AttachStderr = true, true, true, true, true
		}),
		testcontainers.WithHostConfigModifier(func(h *container.HostConfig) { harden(h, cfg, uid, gid) }),
	}
	if len(cfg.Entrypoint) > 0 {
		opts = append(opts, testcontainers.WithEntrypoint(cfg.Entrypoint...))
	}
	if len(cfg.Args) > 0 {
		opts = append(opts, testcontainers.WithCmd(cfg.Args...))
	}
	made, err := testcontainers.Run(ctx, cfg.Image, opts...)
	if err != nil {
		if made != nil { // it failed on the way, and exists
			err = errors.Join(err, e.remove(ctx, made.GetContainerID()))
		}
		return nil, err
	}
	id := made.GetContainerID()
	in, err := e.cli.ContainerAttach(ctx, id, client.ContainerAttachOptions{Stream: true, Stdin: true, Stdout: true, Stderr: true})
	if err != nil {
		return nil, errors.Join(err, e.remove(ctx, id))
	}
	r, w := io.Pipe()
	c := &Container{e: e, id: id, in: in.HijackedResponse, out: r, ended: make(chan struct{})}
	c.close = sync.OnceValue(c.end)
	if cfg.Stderr == nil {
		cfg.Stderr = io.Discard
	}
	go func() {
		_, err := stdcopy.StdCopy(w, cfg.Stderr, c.in.Reader)
		w.CloseWithError(err) // nil is the end of the file
		close(c.ended)
	}()
	if err = made.Start(ctx); err == nil {
		err = caller.Err()
	}
	if err != nil {
		_ = e.remove(ctx, id) // else close waits for a program that has not begun
		return nil, errors.Join(err, c.Close())
	}
	return c, nil
}

// harden takes away everything that a program does not need. Where it grants something it says how much.
func harden(h *container.HostConfig, cfg Config, uid, gid string) {
	h.NetworkMode = "none"
	h.ReadonlyRootfs = true
	h.CapDrop = []string{"ALL"}
	h.SecurityOpt = []string{"no-new-privileges"}
	h.AutoRemove = true
	h.LogConfig = container.LogConfig{Type: "none"} // the output is ours; the engine would keep it on the disk, without a limit
	init := true
	h.Init = &init // reaps orphans, which count as processes
	pids := cmp.Or(cfg.PIDs, 64)
	h.PidsLimit = &pids
	h.Memory = cmp.Or(cfg.Memory, 256<<20)
	h.MemorySwap = h.Memory // in all: no swap
	h.CPUPeriod = 100_000   // unlike a count of processors, a quota may exceed what the machine has
	h.CPUQuota = int64(cmp.Or(cfg.CPUs, 1) * 100_000)
	h.Binds = cfg.Binds
	sizes := cfg.Tmpfs
	if sizes == nil {
		sizes = map[string]int64{"/tmp": 16 << 20}
	}
	h.Tmpfs = map[string]string{}
	for dir, size := range sizes {
		h.Tmpfs[dir] = fmt.Sprintf("rw,nosuid,nodev,noexec,mode=700,uid=%s,gid=%s,size=%d", uid, gid, size)
	}
}

// Read reads the standard output. io.EOF is its end, which comes with the container's.
func (c *Container) Read(b []byte) (int, error) { return c.out.Read(b) }

// Write writes to the standard input.
func (c *Container) Write(b []byte) (int, error) { return c.in.Conn.Write(b) }

// Close ends the input, and with it the container, by force if the program ignores that for two seconds. It returns when
// the container is gone. It may be called twice.
func (c *Container) Close() error { return c.close() }

func (c *Container) end() error {
	ctx, cancel := fresh(context.Background())
	defer cancel()
	wait := c.e.cli.ContainerWait(ctx, c.id, client.ContainerWaitOptions{Condition: container.WaitConditionRemoved})
	c.in.Close()
	c.out.Close()
	<-c.ended
	force := time.NewTimer(grace)
	defer force.Stop()
	for {
		select {
		case <-wait.Result:
			return nil
		case err := <-wait.Error:
			if errdefs.IsNotFound(err) {
				return nil
			}
			return errors.Join(fmt.Errorf("wait for the end of container %.12s: %w", c.id, err), c.e.remove(ctx, c.id))
		case <-force.C:
			if err := c.e.remove(ctx, c.id); err != nil {
				return err
			}
		}
	}
}
