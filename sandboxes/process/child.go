package process

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/mcpgym/mcpgym/sandboxes"
)

// grace is how long a child may take to end once its input is closed, and again once it was asked to by a signal.
const grace = time.Second

// Command is a server to run.
type Command struct {
	Path   string                                      // of the program, as it is found on PATH
	Args   []string                                    // without the program's name
	Env    []string                                    // all of the environment, "NAME=value": nothing is inherited
	Dir    string                                      // where it runs; here if empty
	Name   string                                      // for errors; Path if empty
	Notify func(method string, params json.RawMessage) // as in Server
}

// Start runs a server in a process group of its own and begins a session with it, which ends with the server and ends it: Close
// closes its input, and a server that does not end by itself within a second is told to, and killed after another one. Nothing
// of its process group is left. On Linux the server also dies with this process, however that ends.
//
// ctx is for the start alone, which takes a minute at most. Where it fails the error is a *sandboxes.Fault, or wraps
// context.Canceled, and nothing is left.
func Start(ctx context.Context, c Command) (*Session, error) {
	server := Server{Name: cmp.Or(c.Name, c.Path), Stderr: &Tail{}, Notify: c.Notify}
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("start %s: %w", server.Name, err)
	}
	p, err := launch(c, server.Stderr)
	if err != nil {
		return nil, &sandboxes.Fault{Kind: sandboxes.FaultLease, Op: "start " + server.Name, Msg: err.Error(), Err: err}
	}
	server.Stdio = p
	s, err := connect(ctx, server, p.why)
	if err != nil {
		p.signal(syscall.SIGKILL)
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

// child is a running program and the ends of its pipes that are ours.
type child struct {
	cmd           *exec.Cmd
	stdin, stdout *os.File
	reaped        atomic.Bool   // its number may be another's now
	exited        chan struct{} // closed when it has ended, and all that it said beside was heard
	close         func() error
}

// launch runs a program. Its standard error goes to said.
func launch(c Command, said *Tail) (*child, error) {
	var files []*os.File
	pipe := func() (r, w *os.File, err error) {
		if r, w, err = os.Pipe(); err == nil {
			files = append(files, r, w)
		}
		return r, w, err
	}
	stdin, toStdin, err1 := pipe()
	stdout, toStdout, err2 := pipe()
	stderr, toStderr, err3 := pipe()
	p := &child{stdin: toStdin, stdout: stdout, exited: make(chan struct{})}
	p.close = sync.OnceValue(p.end)
	p.cmd = exec.Command(c.Path, c.Args...)
	p.cmd.Env, p.cmd.Dir, p.cmd.SysProcAttr = append([]string{}, c.Env...), c.Dir, grouped()
	p.cmd.Stdin, p.cmd.Stdout, p.cmd.Stderr = stdin, toStdout, toStderr
	err := errors.Join(err1, err2, err3)
	if err == nil {
		started := make(chan error, 1)
		go p.run(started, stderr, said)
		err = <-started
	}
	if err != nil {
		for _, f := range files {
			f.Close()
		}
		return nil, err
	}
	for _, f := range []*os.File{stdin, toStdout, toStderr} {
		f.Close()
	}
	return p, nil
}

// run starts the program, waits for its end and cleans up after it.
func (p *child) run(started chan<- error, stderr *os.File, said *Tail) {
	runtime.LockOSThread() // the program dies with the thread that has started it: keep it for the program's life
	defer runtime.UnlockOSThread()
	err := p.cmd.Start()
	if started <- err; err != nil {
		return
	}
	var heard sync.WaitGroup
	heard.Go(func() { _, _ = io.Copy(said, stderr) }) // however it ends
	_ = p.cmd.Wait()                                  // its state says how it has ended
	p.reaped.Store(true)
	_ = syscall.Kill(-p.cmd.Process.Pid, syscall.SIGKILL) // what it has left running, which may hold the pipes; mostly nothing
	last := time.Now().Add(drain)                         // for a process that has left the group and holds the pipes
	_ = p.stdout.SetReadDeadline(last)
	_ = stderr.SetReadDeadline(last)
	heard.Wait()
	stderr.Close()
	close(p.exited)
}

func (p *child) Read(b []byte) (int, error)  { return p.stdout.Read(b) }
func (p *child) Write(b []byte) (int, error) { return p.stdin.Write(b) }

// Close ends the program and returns when it has ended.
func (p *child) Close() error { return p.close() }

func (p *child) end() error {
	p.stdin.Close()
	for _, sig := range []syscall.Signal{syscall.SIGTERM, syscall.SIGKILL} {
		select {
		case <-p.exited:
		case <-time.After(grace):
			p.signal(sig)
		}
	}
	<-p.exited
	return p.stdout.Close()
}

// signal sends a signal to the program and all that it has started.
func (p *child) signal(sig syscall.Signal) {
	if !p.reaped.Load() {
		_ = syscall.Kill(-p.cmd.Process.Pid, sig) // fails only where it has ended
	}
}

// why says how the program has ended. Its output ends a little before it does.
func (p *child) why(err error) string {
	select {
	case <-p.exited:
		return "it has ended: " + p.cmd.ProcessState.String()
	case <-time.After(drain / 4):
		return closed(err)
	}
}
