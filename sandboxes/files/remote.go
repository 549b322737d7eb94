package files

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"reflect"
	"sync"
	"sync/atomic"
	"time"

	"github.com/mcpgym/mcpgym/sandboxes"
	"github.com/mcpgym/mcpgym/sandboxes/process"
)

// nobody is the user that trees in containers belong to where this process is root, which no container runs as.
const nobody = 65534

// silence is how long a server may take for what is asked of it for us, not for an agent. One that takes longer hangs.
const silence = 10 * time.Second

// shortest is how much of that a caller must have had left for a missing answer to say anything of the server.
const shortest = time.Second

// Boot starts a program that runs Serve for the trees in home, as the user that home belongs to, and returns the way to its input
// and output; its standard error goes to stderr. Read, Write and Close are called concurrently. Close ends the program and what
// it runs in, whatever state they are in, and with them Read and Write. The program ends with this process, too. A Boot whose
// context ends leaves nothing.
type Boot func(ctx context.Context, home string, stderr io.Writer) (io.ReadWriteCloser, error)

// Remote is New, but for the agents' calls: a program that boot starts serves them, one for all trees of the provider. ctx is
// for its start alone. When it has died or does not answer another one is started; what was leased of the old one is lost then.
//
// It is an error if the program is of another version of this package.
func Remote(ctx context.Context, id sandboxes.Identity, setup func(sandboxes.World) (Setup, error), size int, boot Boot) (*Provider, error) {
	p, err := newProvider(id, setup)
	if err != nil {
		return nil, err
	}
	if os.Getuid() == 0 {
		p.owner = nobody
		if err := os.Chown(p.home, nobody, nobody); err != nil {
			return nil, errors.Join(fmt.Errorf("give file trees to an ordinary user: %w", err), p.end())
		}
	}
	if err := p.connect(ctx, boot); err != nil {
		return nil, errors.Join(err, p.end())
	}
	p.start(size)
	return p, nil
}

// link is the way to the server, whichever runs.
type link struct {
	boot  Boot
	home  string
	tools []sandboxes.Tool // that the server must have

	busy    chan struct{} // held by whoever uses the fields below, and while a server starts
	now     *remote       // nil where one has failed and no other could be started yet
	unfreed error         // what could not be freed of those before
	closed  bool
}

// connect starts the server.
func (p *Provider) connect(ctx context.Context, boot Boot) error {
	own := p.served.Serve(&tree{closed: true}) // all trees have the same tools
	defer own.Close()
	tools, err := own.Session().Tools(ctx)
	if err != nil {
		return err
	}
	p.link = &link{boot: boot, home: p.home, tools: tools, busy: make(chan struct{}, 1)}
	_, err = p.link.live(ctx)
	return err
}

// live returns the server that runs. Where the last one has failed, it starts another; one caller does, the others wait.
func (l *link) live(ctx context.Context) (*remote, error) {
	select {
	case l.busy <- struct{}{}:
		defer func() { <-l.busy }()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	switch {
	case l.closed:
		return nil, errors.New("the server of file trees is closed")
	case l.now != nil && l.now.alive():
		return l.now, nil
	case l.now != nil:
		l.unfreed = errors.Join(l.unfreed, l.now.session.Close())
		l.now = nil
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	said := &process.Tail{}
	stdio, err := l.boot(ctx, l.home, said)
	if err != nil {
		return nil, fmt.Errorf("start a server of file trees: %w", err)
	}
	session, err := process.Connect(ctx, process.Server{Name: "the server of file trees", Stdio: stdio, Stderr: said})
	if err != nil {
		return nil, err
	}
	r := &remote{session: session, tools: l.tools}
	if err := r.check(ctx, l.home); err != nil {
		return nil, errors.Join(err, session.Close())
	}
	l.now = r
	return r, nil
}

// open begins a lease of a tree.
func (l *link) open(ctx context.Context, t *tree) (sandboxes.Sandbox, error) {
	folder, err := filepath.Rel(l.home, t.folder)
	if err != nil {
		return nil, err
	}
	r, err := l.live(ctx)
	if err != nil {
		return nil, err
	}
	s := &leased{remote: r, tree: t, folder: folder, about: service(folder, t) + ":"}
	return &box{s, t, sync.OnceValue(s.close)}, nil
}

// close ends the server. It may be called twice.
func (l *link) close() error {
	l.busy <- struct{}{}
	defer func() { <-l.busy }()
	err := l.unfreed
	if l.now != nil {
		err = errors.Join(err, l.now.session.Close())
	}
	l.now, l.unfreed, l.closed = nil, nil, true
	return err
}

// maxClosed is how many trees that are gone a server may still know: one word about many takes less of its time.
const maxClosed = 16

// remote is one run of the server. Once it has failed it is never used again.
type remote struct {
	session *process.Session
	tools   []sandboxes.Tool
	failed  atomic.Bool // it does not answer

	mu     sync.Mutex
	closed []string // folders of trees that are gone
}

func (r *remote) alive() bool { return !r.failed.Load() && r.session.Alive() }

// ask asks for what takes the server no time. It has failed where it does not answer.
func (r *remote) ask(ctx context.Context, what string, folders ...string) (string, error) {
	start := time.Now()
	limited, cancel := context.WithTimeout(ctx, silence)
	defer cancel()
	said, err := r.tell(limited, what, folders...)
	if limit, _ := limited.Deadline(); errors.Is(err, context.DeadlineExceeded) && limit.Sub(start) >= shortest {
		r.failed.Store(true)
		err = &sandboxes.Fault{Kind: sandboxes.FaultHung, Op: what, Msg: fmt.Sprintf("no answer within %.1f s", limit.Sub(start).Seconds()), Err: err}
	}
	if ctx.Err() != nil {
		return "", ctx.Err()
	}
	return said, err
}

// tell calls one of the server's tools for the host.
func (r *remote) tell(ctx context.Context, what string, folders ...string) (string, error) {
	args, err := json.Marshal(map[string][]string{"folders": folders})
	if err != nil {
		return "", err
	}
	said, err := r.session.Call(ctx, what, args)
	if err == nil && said.IsError {
		err = errors.New(said.Text)
	}
	return said.Text, err
}

// check says what is wrong where the server is of another version, or does not see the folder.
func (r *remote) check(ctx context.Context, home string) error {
	seen, err := os.MkdirTemp(home, "seen-")
	if err != nil {
		return err
	}
	defer os.Remove(seen)
	version, err := r.ask(ctx, "version")
	if _, fault := errors.AsType[*sandboxes.Fault](err); fault || ctx.Err() != nil {
		return err
	}
	if err != nil || version != Version {
		return fmt.Errorf("the server of file trees is of version %.40q, not %q: make images", version, Version)
	}
	tools, err := r.session.Tools(ctx)
	if err != nil {
		return err
	}
	if !reflect.DeepEqual(tools, r.tools) {
		return errors.New("the server of file trees has other tools of the same version: make images")
	}
	if _, err := r.ask(ctx, "version", filepath.Base(seen)); err != nil {
		return fmt.Errorf("the server of file trees does not see the folders of this machine, serve trees without it: %w", err)
	}
	return nil
}

// forget tells the server that a tree is gone: where calls may be on their way at once, so that none of them comes to it any
// more, or else when there is something to say of others.
func (r *remote) forget(folder string, calls bool) error {
	what, all := "close", []string{folder}
	if !calls {
		r.mu.Lock()
		r.closed = append(r.closed, folder)
		what, all = "forget", nil
		if len(r.closed) == maxClosed {
			all, r.closed = r.closed, nil
		}
		r.mu.Unlock()
	}
	if all == nil || !r.alive() {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), silence)
	defer cancel()
	_, err := r.tell(ctx, what, all...)
	if ctx.Err() != nil { // perhaps it waits for a long call
		_, err = r.ask(context.Background(), "version")
	}
	if err != nil && r.alive() {
		return fmt.Errorf("close file trees: %w", err)
	}
	return nil // or it has failed, and frees all
}

// leased is the session of a tree, as mcpmem has one for the trees of this process.
type leased struct {
	*remote
	tree    *tree
	folder  string
	about   string                          // what comes before the names of tools
	pending atomic.Int64                    // calls that run, or have been given up: they may run at the server
	dead    atomic.Pointer[sandboxes.Fault] // why the session has ended
}

func (s *leased) usable(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if f := s.dead.Load(); f != nil {
		return f
	}
	return nil
}

// Alive says whether the tree and its server can be used.
func (s *leased) Alive() bool { return s.dead.Load() == nil && s.alive() && s.tree.Alive() }

// Tools lists the tools that all leases have. Where a call was given up, the server must show that it is alive.
func (s *leased) Tools(ctx context.Context) ([]sandboxes.Tool, error) {
	if err := s.usable(ctx); err != nil {
		return nil, err
	}
	if s.pending.Load() > 0 || !s.alive() {
		if _, err := s.ask(ctx, "version"); err != nil {
			return nil, s.named(ctx, "tools/list", err)
		}
	}
	return s.tools, nil
}

func (s *leased) Call(ctx context.Context, name string, args json.RawMessage) (sandboxes.Result, error) {
	s.pending.Add(1) // before the look at what close sets before it looks at this
	if err := s.usable(ctx); err != nil {
		s.pending.Add(-1)
		return sandboxes.Result{}, err
	}
	r, err := s.session.Call(ctx, s.about+name, args)
	if ctx.Err() != nil {
		return sandboxes.Result{}, ctx.Err()
	}
	s.pending.Add(-1)
	if err != nil {
		return sandboxes.Result{}, s.named(ctx, "call "+name, err)
	}
	if r.Code == codeFault {
		f := &sandboxes.Fault{}
		if err := json.Unmarshal([]byte(r.Text), f); err != nil {
			f = &sandboxes.Fault{Kind: sandboxes.FaultProtocol, Op: "call " + name, Msg: err.Error(), Err: err}
		}
		s.dead.CompareAndSwap(nil, f)
		return sandboxes.Result{}, f
	}
	return r, nil
}

// named gives an error of the server's session as one of this.
func (s *leased) named(ctx context.Context, op string, err error) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if f, ok := errors.AsType[*sandboxes.Fault](err); ok {
		return &sandboxes.Fault{Kind: f.Kind, Op: op, Msg: f.Msg, Err: f.Err}
	}
	return err
}

// close frees the tree, at the server and here.
func (s *leased) close() error {
	s.dead.CompareAndSwap(nil, &sandboxes.Fault{Kind: sandboxes.FaultClosed, Op: "call", Msg: "the sandbox is closed"})
	return errors.Join(s.forget(s.folder, s.pending.Load() > 0), s.tree.Close())
}
