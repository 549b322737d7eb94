package container

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/mcpgym/mcpgym/sandboxes/confine"
)

// ToolsImage is what sandboxes/images makes: a shell, Python, and the tools of package confine.
const ToolsImage = "mcpgym/tools"

// hold is what a container does. It begins in confine.Work, as the image says. It reads a line, the number of bytes of an archive,
// and the archive, which has the program's files and its arguments; then it runs the program for as long as that takes, or until
// its standard input ends. Lines of the standard error say that the program begins, which nobody can forge, and with which exit
// code it has ended: who forges that has a program that could exit so.
const hold = `ulimit -v %d; ulimit -n %d; ulimit -f %d; ulimit -c 0
read -r n || exit
head -c "$n" | tar -x -f - -C / --no-same-owner || exit
. /tmp/.program && rm /tmp/.program || exit
exec 3<&0
echo %s >&2
"$@" </dev/null 3<&- &
p=$!
(cat <&3 >/dev/null; kill -9 -1) 2>/dev/null &
wait $p 2>/dev/null
printf '\n%s%%d\n' $? >&2`

const (
	beginMark = "mcpgym-begin"
	exitMark  = "mcpgym-exit "
)

var exited = regexp.MustCompile("\n" + exitMark + "([0-9]{1,3})\n")

// held is a container that waits for its program.
type held struct {
	c        *Container
	stderr   *errorOutput
	full     chan struct{} // closed when there is more output than is kept
	overflow func()        // closes it
	err      error
}

// errorOutput is the standard error of a container. It keeps what is written to it once the program has begun.
type errorOutput struct {
	confine.Capped
	begun, exited chan struct{} // closed when a line says that the program has begun, and that it has ended

	last []byte // what was written before it has begun, and then the end of what was written
}

func (o *errorOutput) Write(b []byte) (int, error) {
	n := len(b)
	o.last = append(o.last, b...)
	if !closed(o.begun) {
		_, after, ok := bytes.Cut(o.last, []byte(beginMark+"\n"))
		if !ok {
			return n, nil
		}
		o.last, b = after, after
		close(o.begun)
	}
	_, err := o.Capped.Write(b)
	if !closed(o.exited) && exited.Match(o.last) {
		close(o.exited)
	}
	o.last = slices.Clone(o.last[max(0, len(o.last)-len("\n"+exitMark+"255\n")):])
	return n, err
}

func closed(c chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

var errClosed = errors.New("the runner is closed")

type programs struct {
	e     *Engine
	image string
	bound time.Duration // on what an engine does before a program begins, and on what it does after its end
	ready chan held     // one that has been started, or is being
	close func() error
}

// Programs runs programs in containers of an image made by sandboxes/images, each in one of its own, which is started while
// nobody waits for it. All processes of a program have twice confine.Memory together. Runs at the same time wait for each
// other's start. What the engine takes to begin a program and to end its container is no part of the program's time: it is an
// error where that is too long.
func Programs(ctx context.Context, image string) (confine.Runner, error) {
	e, err := Open(ctx)
	if err != nil {
		return nil, err
	}
	p := &programs{e: e, image: image, bound: patience, ready: make(chan held, 1)}
	p.close = sync.OnceValue(func() error {
		h := <-p.ready
		p.ready <- held{err: errClosed}
		if h.c == nil {
			return e.Close()
		}
		return errors.Join(h.c.Close(), e.Close())
	})
	h := p.start(ctx)
	if h.err != nil {
		return nil, errors.Join(h.err, e.Close())
	}
	p.ready <- h
	return p, nil
}

func (p *programs) start(ctx context.Context) held {
	h := held{full: make(chan struct{})}
	h.overflow = sync.OnceFunc(func() { close(h.full) })
	h.stderr = &errorOutput{Capped: confine.Capped{Full: h.overflow}, begun: make(chan struct{}), exited: make(chan struct{})}
	script := fmt.Sprintf(hold, confine.Memory>>10, confine.OpenFiles, confine.FileSize>>9, beginMark, exitMark)
	args := append([]string{"-i"}, confine.Env()...)
	h.c, h.err = p.e.Run(ctx, Config{
		Image: p.image, Entrypoint: []string{"/usr/bin/env"}, Args: append(args, "/bin/sh", "-c", script), Stderr: h.stderr,
		Memory: 2 * confine.Memory, PIDs: confine.Processes + 4, // its init, its shell and what that holds it by
		Tmpfs: map[string]int64{"/tmp": confine.Space, confine.Work: confine.Space, "/dev/shm": 1 << 20},
	})
	return h
}

func (p *programs) Close() error { return p.close() }

func (p *programs) Run(ctx context.Context, prog confine.Program) (confine.Output, error) {
	out, err := p.run(ctx, prog)
	if ctx.Err() != nil {
		return confine.Output{}, ctx.Err()
	}
	if err != nil {
		return confine.Output{}, fmt.Errorf("run %s in a container: %w", strings.Join(prog.Args[:min(1, len(prog.Args))], ""), err)
	}
	return out, nil
}

func (p *programs) run(ctx context.Context, prog confine.Program) (out confine.Output, err error) {
	archive, err := pack(prog)
	if err != nil {
		return out, err
	}
	var h held
	select {
	case h = <-p.ready:
	case <-ctx.Done():
		return out, ctx.Err()
	}
	if errors.Is(h.err, errClosed) {
		p.ready <- h
		return out, h.err
	}
	go func() { p.ready <- p.start(context.Background()) }() // it is no part of this run
	if h.err != nil {
		return out, h.err
	}
	stdout := &confine.Capped{Full: h.overflow}
	ended := make(chan struct{})
	var copied error
	go func() {
		defer close(ended)
		if _, copied = h.c.Write(archive); copied == nil {
			_, copied = io.Copy(stdout, h.c)
		}
	}()
	out.Over, err = p.watch(ctx, prog, h, ended)
	if closed(ended) {
		_ = h.c.Close() // the program has ended by itself, and what it wrote is here: a busy engine removes it later
		if out.Over == "" {
			err = errors.Join(err, copied)
		}
	} else {
		err = errors.Join(err, h.c.Close())
		<-ended
	}
	if !closed(h.stderr.begun) {
		err = errors.Join(fmt.Errorf("it has not begun: %.500s", bytes.TrimSpace(h.stderr.last)), err)
	}
	if err != nil {
		return out, err
	}
	out.Stdout, out.Stderr, out.Exit = stdout.String(), h.stderr.String(), killed
	if out.Over != "" {
		return out, nil
	}
	// What else of the program was running may have written after it.
	if at := exited.FindAllStringSubmatchIndex(out.Stderr, -1); at != nil {
		m := at[len(at)-1]
		out.Exit, err = strconv.Atoi(out.Stderr[m[2]:m[3]])
		out.Stderr = out.Stderr[:m[0]] + out.Stderr[m[1]:]
	}
	return out, err
}

// watch waits until a program has ended and with it the container, whose output ends then, or until it is over a limit, which it
// names. The program's time is from its begin to its exit, as far as it does not forge that.
func (p *programs) watch(ctx context.Context, prog confine.Program, h held, ended chan struct{}) (over string, err error) {
	select {
	case <-h.stderr.begun:
	case <-ended:
	case <-ctx.Done():
		return "", nil
	case <-time.After(p.bound):
		return "", fmt.Errorf("waited %v for it", p.bound)
	}
	limited, _, stop := prog.Limit(ctx)
	defer stop()
	select {
	case <-ended:
	case <-h.full:
	case <-h.stderr.exited:
	case <-limited.Done():
		if !closed(h.stderr.exited) {
			return confine.Over(limited), nil
		}
	}
	select {
	case <-ended:
	case <-h.full:
	case <-ctx.Done():
	case <-time.After(p.bound):
		return "", fmt.Errorf("its container has not ended within %v of its exit", p.bound)
	}
	if closed(h.full) {
		over = "output"
	}
	return over, nil
}

// killed is the exit code of what was killed together with the shell that waits for it.
const killed = 137

// pack makes what a waiting container reads.
func pack(p confine.Program) ([]byte, error) {
	files, err := p.Check()
	if err != nil {
		return nil, err
	}
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	add := func(name, text string) error {
		if err := w.WriteHeader(&tar.Header{Name: name, Mode: 0o644, Size: int64(len(text))}); err != nil {
			return err
		}
		_, err := io.WriteString(w, text)
		return err
	}
	quoted := "set --"
	for _, a := range p.Args {
		quoted += " '" + strings.ReplaceAll(a, "'", `'\''`) + "'"
	}
	err = add("tmp/.program", quoted)
	for _, f := range files {
		err = errors.Join(err, add(path.Join(confine.Work, f)[1:], p.Files[f]))
	}
	if err = errors.Join(err, w.Close()); err != nil {
		return nil, err
	}
	return append([]byte(strconv.Itoa(b.Len())+"\n"), b.Bytes()...), nil
}
