package files

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/mark3labs/mcp-go/server"

	"github.com/mcpgym/mcpgym/sandboxes"
	"github.com/mcpgym/mcpgym/sandboxes/mcpmem"
)

const (
	// maxLine bounds a message in bytes. A name or a text may take six times as much as JSON.
	maxLine = 8 * maxCall
	// workers bounds the messages that are worked on at once, and with them what they take of memory.
	workers = 8
	// codeFault is the code of an error that is a *sandboxes.Fault, whose JSON is the message. It is not one of JSON-RPC or MCP.
	codeFault = -32050
)

// Serve serves the trees in the folder home over in and out, a JSON-RPC message of MCP on each line, until in ends. The tools and
// their results are those of a Provider's sandboxes, but a tool's name has before it what the host says of the tree, as in
// "7 8388608 2000 16384 120 4:read_text_file": see service. Names without that are the host's own tools: "version" tells the
// Version, where it sees a folder that the host has made, "forget" ends the service of trees that no call comes for any more, and
// "close" that of trees where one may be on its way: it waits for those that run, and the others are refused.
//
// It is the agents' side of trees in a container, and only that: home belongs to the host, which binds it into the container as
// the one place that can be written to. The host makes a tree before and reads State and probes from the folder itself, by the
// code that does so for trees of its own process. So nothing that runs inside can forge what a verifier sees, and both drivers
// share everything but the way of a call. An agent reaches its own tree alone, as there: each has an os.Root of its own, and
// the host says which it is.
//
// Messages are answered as they are done, several at once. An error is the server's own failure, so a program that serves must
// end with it; a tree's failure is told to its agent's session.
func Serve(home string, in io.Reader, out io.Writer) error {
	root, err := os.OpenRoot(home)
	if err != nil {
		return fmt.Errorf("serve file trees: %w", err)
	}
	defer root.Close()
	s := &trees{root: root, srv: newServer(), open: map[string]*tree{}}
	defer func() {
		for _, t := range s.open {
			t.Close()
		}
	}()
	lines := bufio.NewScanner(in)
	lines.Buffer(nil, maxLine)
	var reading, writing sync.Mutex
	var failed atomic.Pointer[error] // the first
	fail := func(doing string, err error) {
		err = fmt.Errorf("%s: %w", doing, err)
		failed.CompareAndSwap(nil, &err)
	}
	next := func() []byte {
		reading.Lock()
		defer reading.Unlock()
		if failed.Load() != nil {
			return nil
		}
		if lines.Scan() {
			return append([]byte{}, lines.Bytes()...)
		}
		if err := lines.Err(); err != nil {
			fail("read a message", err)
		}
		return nil
	}
	var work sync.WaitGroup
	for range workers {
		work.Go(func() {
			for line := next(); line != nil; line = next() {
				reply, err := s.answer(line)
				if err == nil && reply != nil {
					writing.Lock()
					_, err = out.Write(append(reply, '\n'))
					writing.Unlock()
				}
				if err != nil {
					fail("answer a message", err)
				}
			}
		})
	}
	work.Wait()
	if err := failed.Load(); err != nil {
		return *err
	}
	return nil
}

// trees are those that a server serves.
type trees struct {
	root *os.Root // of the folder that they are in
	srv  *server.MCPServer

	mu   sync.Mutex
	open map[string]*tree // by name
}

// answer gives the response to a message, nil where there is none.
func (s *trees) answer(line []byte) ([]byte, error) {
	m, err := sandboxes.DecodeMessage(line)
	if err != nil || m.Method != "tools/call" {
		return s.handle(context.Background(), line)
	}
	var call struct {
		Name      string          `json:"name"`
		Arguments json.RawMessage `json:"arguments"`
	}
	if err := json.Unmarshal(m.Params, &call); err != nil {
		return s.handle(context.Background(), line)
	}
	about, tool, found := strings.Cut(call.Name, ":")
	if !found {
		return s.control(m.ID, call.Name, call.Arguments)
	}
	t, err := s.tree(about)
	if err != nil {
		return failure(m.ID, sandboxes.NewFault(sandboxes.FaultDied, "open a file tree", err))
	}
	quoted, err := json.Marshal(tool)
	if err != nil {
		return nil, err
	}
	params := slices.Concat([]byte(`{"name":`), quoted, []byte(`,"arguments":`), call.Arguments, []byte("}"))
	data, err := s.serve(t, sandboxes.EncodeRequest(m.ID, m.Method, params))
	if f, ok := errors.AsType[*sandboxes.Fault](err); ok {
		return failure(m.ID, f)
	}
	return data, err
}

// serve has the tools of a tree handle a message. An error is a fault, where it is the tree's.
func (s *trees) serve(t *tree, msg []byte) (data []byte, err error) {
	defer func() {
		if r := recover(); r != nil {
			f, ok := r.(*sandboxes.Fault)
			if !ok {
				f = &sandboxes.Fault{Kind: sandboxes.FaultDied, Op: "tools/call", Msg: fmt.Sprintf("the server panicked: %v", r)}
			}
			err = f
		}
	}()
	return s.handle(mcpmem.WithWorld(context.Background(), t), msg)
}

func (s *trees) handle(ctx context.Context, msg []byte) ([]byte, error) {
	out := s.srv.HandleMessage(ctx, msg)
	if out == nil { // to a notification
		return nil, nil
	}
	return json.Marshal(out)
}

// service is what the host says of a tree that it has made: the folder in home, its limits, what it held at the start.
func service(folder string, t *tree) string {
	return fmt.Sprint(folder, " ", t.limits.Bytes, " ", t.limits.Entries, " ", t.limits.Result, " ", t.bytes, " ", t.entries)
}

// tree finds a tree, which it opens for the first call.
func (s *trees) tree(about string) (*tree, error) {
	folder, _, _ := strings.Cut(about, " ")
	s.mu.Lock()
	defer s.mu.Unlock()
	if t := s.open[folder]; t != nil {
		return t, nil
	}
	t := &tree{}
	if _, err := fmt.Sscan(about, &folder, &t.limits.Bytes, &t.limits.Entries, &t.limits.Result, &t.bytes, &t.entries); err != nil {
		return nil, fmt.Errorf("read %q: %w", about, err)
	}
	var err error
	if t.root, err = s.root.OpenRoot(folder); err != nil {
		return nil, err
	}
	s.open[folder] = t
	return t, nil
}

// control does what the host asks for.
func (s *trees) control(id json.RawMessage, name string, args json.RawMessage) ([]byte, error) {
	var in struct {
		Folders []string `json:"folders"`
	}
	err := json.Unmarshal(args, &in)
	said := Version
	switch {
	case err != nil:
	case name == "version":
		for _, f := range in.Folders {
			_, e := s.root.Stat(f)
			err = errors.Join(err, e)
		}
	case name == "close" || name == "forget":
		for _, f := range in.Folders {
			s.mu.Lock()
			t := s.open[f]
			delete(s.open, f)
			if name == "close" {
				s.open[f] = &tree{closed: true}
			}
			s.mu.Unlock()
			if t != nil {
				err = errors.Join(err, t.Close())
			}
		}
	default:
		err = fmt.Errorf("there is no tool %q of the host", name)
	}
	if err != nil {
		said = err.Error()
	}
	return json.Marshal(message{"jsonrpc": "2.0", "id": id, "result": message{"isError": err != nil, "content": []message{{"type": "text", "text": said}}}})
}

type message map[string]any

// failure makes a response of a fault.
func failure(id json.RawMessage, f *sandboxes.Fault) ([]byte, error) {
	text, err := json.Marshal(f)
	if err != nil {
		return nil, err
	}
	return json.Marshal(message{"jsonrpc": "2.0", "id": id, "error": message{"code": codeFault, "message": string(text)}})
}
