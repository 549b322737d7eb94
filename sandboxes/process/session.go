// Package process reaches MCP servers that are programs: it speaks to them over their standard input and output.
//
// Start runs a server as a child of this process. Connect takes the input and output of one that runs already, in a container
// for instance.
package process

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/mcpgym/mcpgym/sandboxes"
)

const (
	// maxLine is the longest message that a server may send, in bytes.
	maxLine = 32 << 20
	// maxAnswers bounds the answers to a server's own requests that wait to be sent. One that asks and does not read gets none.
	maxAnswers = 64
	// drain is how long what a server wrote before its end may take to arrive. Mostly its end follows at once.
	drain = time.Second
	// patience is how long a session may take to begin: whoever makes servers ahead has no deadline.
	patience = time.Minute
)

// Server is a running MCP server.
type Server struct {
	Name string // for errors
	// Stdio reads the server's standard output and writes to its standard input. Read, Write and Close are called
	// concurrently, each by one caller, and Close must end the others.
	Stdio  io.ReadWriteCloser
	Stderr *Tail // what the server says beside, for errors; may be nil
	// Notify, where set, gets the server's notifications, in order, and before the response to the call that they belong to.
	// It must neither block nor use the session. The progress of a call has the call's own progressToken.
	Notify func(method string, params json.RawMessage)
}

// Session is a sandboxes.Session with a server over its standard input and output: one JSON-RPC message a line. What is no
// message is skipped. Once the server has ended, closed its output or sent a line over 32 MiB, every call, also one that
// waits, returns a *sandboxes.Fault that says so.
//
// A call whose context ends is cancelled at the server and never sent again; the session goes on.
type Session struct {
	server Server
	why    func(error) string // what is known of the end of a server whose output has ended with this error
	calls  chan []byte        // requests, to the writer
	wake   chan struct{}      // wakes the writer when there are notes
	ended  chan struct{}      // closed when fault is set
	close  func() error

	mu        sync.Mutex
	last      int64                             // id of a request
	waiting   map[string]chan sandboxes.Message // by id
	notes     [][]byte                          // what the writer sends besides requests
	fault     *sandboxes.Fault                  // why the session has ended
	messages  int                               // that came
	noise     int                               // lines that were none
	lastNoise string                            // the begin of the last of them
}

// Connect begins a session with a server, within a minute. It owns the server's Stdio, also where it fails. An error is a
// *sandboxes.Fault, or wraps context.Canceled.
func Connect(ctx context.Context, server Server) (*Session, error) {
	s, err := connect(ctx, server, closed)
	if err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

// closed is all that is known of a server that has closed its output.
func closed(err error) string {
	if errors.Is(err, io.EOF) {
		return "it closed its output"
	}
	return "its output ended: " + err.Error()
}

// connect returns a session in any case: it must be closed.
func connect(ctx context.Context, server Server, why func(error) string) (*Session, error) {
	s := &Session{server: server, why: why, calls: make(chan []byte), wake: make(chan struct{}, 1), ended: make(chan struct{}),
		waiting: map[string]chan sandboxes.Message{}}
	var loops sync.WaitGroup
	loops.Go(s.read)
	loops.Go(s.write)
	s.close = sync.OnceValue(func() error {
		s.end(sandboxes.FaultClosed, "the session is closed")
		err := s.server.Stdio.Close()
		loops.Wait()
		return err
	})
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	start := time.Now()
	if _, err := sandboxes.Initialize(ctx, s.send); err != nil {
		return s, s.hung(ctx, start, initialize, err)
	}
	s.note([]byte(`{"jsonrpc":"2.0","method":"notifications/initialized"}`))
	return s, nil
}

const initialize = "initialize"

// Close ends the session and the server. It may be called twice.
func (s *Session) Close() error { return s.close() }

// Alive says whether the session can still be used, as far as is known.
func (s *Session) Alive() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.fault == nil
}

// Tools asks the server for its tools. A server that does not answer within ctx's time is hung: the error is a fault, too.
func (s *Session) Tools(ctx context.Context) ([]sandboxes.Tool, error) {
	start := time.Now()
	tools, err := sandboxes.ListTools(ctx, s.send)
	if err != nil {
		return nil, s.hung(ctx, start, "tools/list", err)
	}
	return tools, nil
}

// Call calls a tool.
func (s *Session) Call(ctx context.Context, name string, args json.RawMessage) (sandboxes.Result, error) {
	r, err := sandboxes.CallTool(ctx, s.send, name, args)
	if err != nil {
		return r, s.named("call "+name, err)
	}
	return r, nil
}

// named says in an error what was done to which server.
func (s *Session) named(op string, err error) error {
	op += " of " + s.server.Name
	if f, ok := errors.AsType[*sandboxes.Fault](err); ok {
		return &sandboxes.Fault{Kind: f.Kind, Op: op, Msg: f.Msg, Err: f.Err}
	}
	return fmt.Errorf("%s: %w", op, err)
}

// hung makes a fault of an answer that has not come in time.
func (s *Session) hung(ctx context.Context, start time.Time, op string, err error) error {
	limit, ok := ctx.Deadline()
	if ok && limit.After(start) && errors.Is(err, context.DeadlineExceeded) {
		msg := fmt.Sprintf("no answer within %.1f s%s", limit.Sub(start).Seconds(), s.said())
		err = &sandboxes.Fault{Kind: sandboxes.FaultHung, Msg: msg, Err: err}
	}
	return s.named(op, err)
}

// said is what the server has said that was no message, for an error.
func (s *Session) said() string {
	var said string
	if s.server.Stderr != nil {
		if tail := s.server.Stderr.String(); tail != "" {
			said = "; it said: " + tail
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.noise > 0 {
		said += fmt.Sprintf("; %d lines of its output were no messages, the last begins %q", s.noise, s.lastNoise)
	}
	return said
}

// end ends the session, for the first reason that is given.
func (s *Session) end(kind sandboxes.FaultKind, why string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.fault == nil {
		s.fault = &sandboxes.Fault{Kind: kind, Msg: why}
		close(s.ended)
	}
}

// send exchanges a request for its response.
func (s *Session) send(ctx context.Context, method string, params json.RawMessage) (sandboxes.Reply, error) {
	if err := ctx.Err(); err != nil {
		return sandboxes.Reply{}, err
	}
	answer := make(chan sandboxes.Message, 1)
	s.mu.Lock()
	if f := s.fault; f != nil {
		s.mu.Unlock()
		return sandboxes.Reply{}, f
	}
	s.last++
	id := strconv.AppendInt(nil, s.last, 10)
	s.waiting[string(id)] = answer
	s.mu.Unlock()

	if s.server.Notify != nil && method == "tools/call" {
		params = append(params[:len(params)-1:len(params)-1], `,"_meta":{"progressToken":`+string(id)+`}}`...)
	}
	msg := append(oneLine(sandboxes.EncodeRequest(id, method, params)), '\n')
	select {
	case s.calls <- msg:
	case <-ctx.Done():
		s.forget(id)
		return sandboxes.Reply{}, ctx.Err()
	case <-s.ended:
		return sandboxes.Reply{}, s.fault
	}
	var m sandboxes.Message
	select {
	case m = <-answer:
	case <-ctx.Done():
	case <-s.ended:
		select {
		case m = <-answer: // it came before the end
		default:
			if ctx.Err() == nil {
				return sandboxes.Reply{}, s.fault
			}
		}
	}
	if err := ctx.Err(); err != nil { // an answer that is too late is none: one outcome, whoever is first
		if s.forget(id) && method != initialize {
			s.note([]byte(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":` + string(id) + `,"reason":"` + err.Error() + `"}}`))
		}
		return sandboxes.Reply{}, err
	}
	return m.Reply(method, id)
}

// oneLine takes the line breaks out of a JSON text that is the caller's own. Between its tokens they mean as much as spaces, and
// elsewhere there can be none.
func oneLine(msg []byte) []byte {
	for i, c := range msg {
		if c == '\n' || c == '\r' {
			msg[i] = ' '
		}
	}
	return msg
}

// forget stops waiting for a response, and says whether one was still waited for.
func (s *Session) forget(id []byte) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, waits := s.waiting[string(id)]
	delete(s.waiting, string(id))
	return waits
}

// note has the writer send a message for which nobody waits.
func (s *Session) note(msg []byte) {
	s.mu.Lock()
	s.notes = append(s.notes, append(msg, '\n'))
	s.mu.Unlock()
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// write sends what there is to send. It has a goroutine of its own: a server that does not read holds nobody else.
func (s *Session) write() {
	for {
		var msg []byte
		select {
		case msg = <-s.calls:
		case <-s.wake:
		case <-s.ended:
			return
		}
		s.mu.Lock()
		notes := s.notes
		s.notes = nil
		s.mu.Unlock()
		if len(notes) > 0 { // they were there first
			msg = bytes.Join(append(notes, msg), nil)
		}
		if len(msg) == 0 {
			continue
		}
		if _, err := s.server.Stdio.Write(msg); err != nil {
			select {
			case <-s.ended: // the reader knows better what has happened, and first takes what has come
			case <-time.After(drain):
				s.end(sandboxes.FaultDied, "it takes no input: "+err.Error()+s.said())
			}
			return
		}
	}
}

// read takes what comes, until the end of the output.
func (s *Session) read() {
	in := bufio.NewReaderSize(s.server.Stdio, 64<<10)
	for {
		line, err := readLine(in)
		if errors.Is(err, errLongLine) {
			s.end(sandboxes.FaultProtocol, err.Error()+s.said())
			return
		}
		if line = bytes.TrimSpace(line); len(line) > 0 {
			s.take(line)
		}
		if err != nil {
			s.end(sandboxes.FaultDied, s.why(err)+s.said())
			return
		}
	}
}

var errLongLine = fmt.Errorf("it sent a line of over %d MiB", maxLine>>20)

// readLine returns the next line, which is the caller's own. The last one may come with the error that ended it.
func readLine(in *bufio.Reader) ([]byte, error) {
	var line []byte
	for {
		part, err := in.ReadSlice('\n')
		if len(line)+len(part) > maxLine {
			return nil, errLongLine
		}
		line = append(line, part...)
		if !errors.Is(err, bufio.ErrBufferFull) {
			return line, err
		}
	}
}

// take handles one line of the server.
func (s *Session) take(line []byte) {
	m, err := sandboxes.DecodeMessage(line)
	s.mu.Lock()
	if err != nil {
		s.noise++
		s.lastNoise = strings.ToValidUTF8(string(line[:min(len(line), 100)]), "�")
		s.mu.Unlock()
		return
	}
	s.messages++
	var answer chan sandboxes.Message
	if m.Method == "" {
		answer = s.claim(m.ID)
	}
	crowd := len(s.notes) >= maxAnswers
	s.mu.Unlock()
	switch {
	case answer != nil:
		answer <- m
	case m.Method == "": // it comes too late, or twice
	case m.ID == nil:
		if s.server.Notify != nil {
			s.server.Notify(m.Method, m.Params)
		}
	case crowd:
	case m.Method == "ping":
		s.note([]byte(`{"jsonrpc":"2.0","id":` + string(m.ID) + `,"result":{}}`))
	default: // sampling, elicitation and the like: this client has promised none of them
		s.note([]byte(`{"jsonrpc":"2.0","id":` + string(m.ID) + `,"error":{"code":-32601,"message":"method not found"}}`))
	}
}

// claim finds who waits for the response with the given id, who then waits no more. The caller holds the lock.
func (s *Session) claim(id json.RawMessage) chan sandboxes.Message {
	key := string(id)
	answer, ok := s.waiting[key]
	if !ok { // its server spells numbers otherwise
		for sent, a := range s.waiting {
			if sandboxes.SameID(json.RawMessage(sent), id) {
				key, answer = sent, a
				break
			}
		}
	}
	delete(s.waiting, key)
	return answer
}
