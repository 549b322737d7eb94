package process

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mcpgym/mcpgym/sandboxes"
	"github.com/mcpgym/mcpgym/sandboxes/sandboxtest"
)

// box is a sandbox that is a server and no more.
type box struct{ s *Session }

func (b box) Session() sandboxes.Session { return b.s }
func (b box) Close() error               { return b.s.Close() }

// An ordinary MCP server, each lease with a process of its own, keeps the contract of sandboxes.
func TestContract(t *testing.T) {
	sandboxtest.Check(t, func(t *testing.T) sandboxes.Provider {
		return sandboxes.NewPool(nil, 2, func(ctx context.Context, w sandboxes.World) (sandboxes.Sandbox, error) {
			s, err := Start(ctx, command(t, "mcp-go", fmt.Sprint(w.Seed)))
			if err != nil {
				return nil, err
			}
			return box{s}, nil
		})
	}, sandboxes.World{Seed: 1}, sandboxes.World{Seed: 2})
}

func TestTools(t *testing.T) {
	s := start(t, command(t, "mcp-go", "7"))
	tools, err := s.Tools(t.Context())
	require.NoError(t, err)
	require.Len(t, tools, 2)
	require.Equal(t, "get", tools[0].Name)
	require.True(t, tools[0].ReadOnly)
	require.Equal(t, "7", call(t, s, "get", "").Text)
}

func TestResults(t *testing.T) {
	s := start(t, command(t, "good"))
	for _, c := range []struct {
		name, tool, args string
		want             sandboxes.Result
	}{
		{"a text", "echo", `{"text":"hi"}`, sandboxes.Result{Text: "hi"}},
		{"arguments over several lines", "echo", "{\n\t\"text\":\r\n\"a\\nb\"\r}", sandboxes.Result{Text: "a\nb"}},
		{"arguments that are not JSON", "echo", `{"text":`, sandboxes.Result{IsError: true, Code: -32700, Text: "arguments are not JSON"}},
		{"arguments that are not UTF-8", "echo", "{\"text\":\"\xff\"}", sandboxes.Result{IsError: true, Code: -32700, Text: "arguments are not JSON"}},
		{"an answer in pieces", "partial", `{"text":"whole"}`, sandboxes.Result{Text: "whole"}},
		{"an answer after garbage", "garbage", `{"text":"here"}`, sandboxes.Result{Text: "here"}},
	} {
		t.Run(c.name, func(t *testing.T) { require.Equal(t, c.want, call(t, s, c.tool, c.args)) })
	}
	_, noise := counts(t, s)
	require.Equal(t, 7, noise, "blank lines are no noise")
}

func TestLongLines(t *testing.T) {
	s := start(t, command(t, "good"))
	require.Len(t, call(t, s, "big", `{"n":10485760}`).Text, 10<<20)
	long := strings.Repeat("y", 1<<20)
	require.True(t, long == call(t, s, "echo", `{"text":"`+long+`"}`).Text)
	usable(t, s)

	s, out := serve(t, func(r request) string { return "" })
	waiting := make(chan error)
	go func() {
		_, err := s.Call(limited(t, 20*time.Second), "echo", nil)
		waiting <- err
	}()
	go io.Copy(out, io.LimitReader(endless{}, maxLine+1<<20))
	err := <-waiting
	requireFault(t, sandboxes.FaultProtocol, err)
	require.ErrorContains(t, err, "a line of over 32 MiB")
	_, err = s.Tools(t.Context())
	requireFault(t, sandboxes.FaultProtocol, err)
}

// endless is a line without an end.
type endless struct{}

func (endless) Read(b []byte) (int, error) { return copy(b, bytes.Repeat([]byte("z"), len(b))), nil }

func TestWritesBeforeInitialize(t *testing.T) {
	s := start(t, command(t, "chatty"))
	messages, noise := counts(t, s)
	require.Equal(t, 2, noise)
	require.Equal(t, 4, messages, "a notification, a request, two responses")
}

func TestHandshake(t *testing.T) {
	for _, c := range []struct{ name, answer, want string }{
		{"of an old version", `"result":{"protocolVersion":"2024-11-05"}`, ""},
		{"of a version that is not known", `"result":{"protocolVersion":"1999-01-01"}`, `the server speaks version "1999-01-01" of MCP`},
		{"of no version", `"result":{}`, `version ""`},
		{"that is no object", `"result":"hello"`, "cannot unmarshal string"},
		{"refused", `"error":{"code":-32022,"message":"no longer"}`, "no longer"},
		{"with an error of its own kind", `"error":"no"`, "none of JSON-RPC"},
		{"that is empty", `"x":0`, "neither result nor error"},
	} {
		t.Run(c.name, func(t *testing.T) {
			var got []string
			s, _, err := tryServe(t, nil, func(r request) string {
				got = append(got, r.Method)
				if r.Method == "initialize" {
					return `{"jsonrpc":"2.0","id":` + string(r.ID) + "," + c.answer + "}\n"
				}
				return echo(r)
			})
			if c.want != "" {
				requireFault(t, sandboxes.FaultProtocol, err)
				require.ErrorContains(t, err, c.want)
				require.ErrorContains(t, err, "initialize of the fake")
				return
			}
			require.NoError(t, err)
			usable(t, s)
			require.Equal(t, []string{"initialize", "notifications/initialized", "tools/call"}, got)
		})
	}
}

// What a server asks of a client is answered, whatever this one can do.
func TestServerRequests(t *testing.T) {
	var mu sync.Mutex
	var got []string
	s, out := serve(t, func(r request) string {
		if r.Method == "" {
			mu.Lock()
			defer mu.Unlock()
			got = append(got, string(r.ID))
		}
		return echo(r)
	})
	_, err := io.WriteString(out, `{"jsonrpc":"2.0","id":"a","method":"ping"}
{"jsonrpc":"2.0","id":7,"method":"sampling/createMessage","params":{}}
`)
	require.NoError(t, err)
	require.Eventually(t, func() bool {
		mu.Lock()
		defer mu.Unlock()
		return slices.Equal(got, []string{`"a"`, "7"})
	}, 5*time.Second, time.Millisecond)
	usable(t, s)
}

func TestAnswersToRequests(t *testing.T) {
	read, toServer := io.Pipe()
	s := &Session{server: Server{Stdio: stdio{nil, toServer}}, wake: make(chan struct{}, 1), ended: make(chan struct{})}
	go s.write()
	defer close(s.ended)
	for _, c := range []struct{ request, want string }{
		{`{"jsonrpc":"2.0","id":"a b","method":"ping"}`, `{"jsonrpc":"2.0","id":"a b","result":{}}` + "\n"},
		{`{"jsonrpc":"2.0","id":1,"method":"elicitation/create"}`, `{"jsonrpc":"2.0","id":1,"error":{"code":-32601,"message":"method not found"}}` + "\n"},
	} {
		s.take([]byte(c.request))
		buf := make([]byte, 200)
		n, err := read.Read(buf)
		require.NoError(t, err)
		require.Equal(t, c.want, string(buf[:n]))
	}
}

// What was to be sent before a call is sent before it: the end of the handshake, for one.
func TestNotesFirst(t *testing.T) {
	for range 50 {
		read, toServer := io.Pipe()
		s := &Session{server: Server{Stdio: stdio{nil, toServer}}, calls: make(chan []byte, 1), wake: make(chan struct{}, 1), ended: make(chan struct{})}
		s.note([]byte("note"))
		s.calls <- []byte("call\n")
		go s.write()
		got := make([]byte, 10)
		_, err := io.ReadFull(read, got)
		require.NoError(t, err)
		require.Equal(t, "note\ncall\n", string(got))
		close(s.ended)
	}
}

// A server that asks without end and does not read makes nothing grow, and nothing wait.
func TestRequestsWithoutEnd(t *testing.T) {
	s := &Session{wake: make(chan struct{}, 1)}
	for range 10_000 {
		s.take([]byte(`{"jsonrpc":"2.0","id":1,"method":"ping"}`))
	}
	require.Len(t, s.notes, maxAnswers)
}

// A server that reads nothing holds no caller longer than its context.
func TestServerThatDoesNotRead(t *testing.T) {
	begin := time.Now()
	_, err := Start(limited(t, 300*time.Millisecond), command(t, "deaf"))
	requireFault(t, sandboxes.FaultHung, err)
	require.Less(t, time.Since(begin), time.Second, "what has not begun is not waited for")

	s := start(t, command(t, "good"))
	require.NoError(t, syscall.Kill(pidOf(s), syscall.SIGSTOP))
	args := []byte(`{"text":"` + strings.Repeat("x", 1<<20) + `"}`) // more than a pipe holds
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			begin := time.Now()
			if _, err := s.Call(limited(t, 300*time.Millisecond), "echo", args); !errors.Is(err, context.DeadlineExceeded) || time.Since(begin) > 2*time.Second {
				t.Errorf("after %v: %v", time.Since(begin), err)
			}
		})
	}
	all.Wait()
	_, err = s.Tools(limited(t, 300*time.Millisecond))
	requireFault(t, sandboxes.FaultHung, err)
	require.True(t, s.Alive())

	require.NoError(t, syscall.Kill(pidOf(s), syscall.SIGCONT))
	usable(t, s) // half a message was sent when its caller left
}

// A server that is stopped cannot be told from a slow one by its calls, but it lists no tools either.
func TestStopped(t *testing.T) {
	s := start(t, command(t, "good"))
	pid := pidOf(s)
	require.NoError(t, syscall.Kill(pid, syscall.SIGSTOP))
	_, err := s.Call(limited(t, 200*time.Millisecond), "echo", nil)
	require.ErrorIs(t, err, context.DeadlineExceeded)
	_, isFault := errors.AsType[*sandboxes.Fault](err)
	require.False(t, isFault)
	_, err = s.Tools(limited(t, 200*time.Millisecond))
	requireFault(t, sandboxes.FaultHung, err)
	require.ErrorIs(t, err, context.DeadlineExceeded)
	begin := time.Now()
	require.NoError(t, s.Close())
	require.Less(t, time.Since(begin), 2*grace+time.Second)
	require.False(t, alive(pid))
}

// However a server ends, who waits hears of it at once, and so does everybody after.
func TestServerEnds(t *testing.T) {
	for _, c := range []struct {
		name, want string
		end        func(t *testing.T, s *Session)
	}{
		{"kill -9", "it has ended: signal: killed", func(t *testing.T, s *Session) { require.NoError(t, syscall.Kill(pidOf(s), syscall.SIGKILL)) }},
		{"exit", "it has ended: exit status 4; it said: out of cheese", func(t *testing.T, s *Session) { s.Call(limited(t, 20*time.Second), "die", []byte(`{"n":4}`)) }},
		{"exit in good order", "it has ended: exit status 0; it said: out of cheese", func(t *testing.T, s *Session) { s.Call(limited(t, 20*time.Second), "die", nil) }},
		{"closed output", "it closed its output", func(t *testing.T, s *Session) { s.Call(limited(t, 20*time.Second), "close", nil) }},
		{"killed, and a child of it holds the pipes", "it has ended: signal: killed", func(t *testing.T, s *Session) {
			left := call(t, s, "fork", "{}").Text
			require.NoError(t, syscall.Kill(pidOf(s), syscall.SIGKILL))
			pid, err := strconv.Atoi(left)
			require.NoError(t, err)
			require.Eventually(t, func() bool { return !alive(pid) }, 5*time.Second, time.Millisecond, "it goes with its parent")
		}},
		{"killed, and a child of it holds the pipes and has left the group", "it has ended: signal: killed", func(t *testing.T, s *Session) {
			left := call(t, s, "fork", `{"text":"away"}`).Text
			require.NoError(t, syscall.Kill(pidOf(s), syscall.SIGKILL))
			pid, err := strconv.Atoi(left)
			require.NoError(t, err)
			t.Cleanup(func() { require.NoError(t, syscall.Kill(pid, syscall.SIGKILL)) })
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := start(t, command(t, "good"))
			const waiting = 4
			errs := make(chan error, waiting)
			for range waiting {
				go func() {
					_, err := s.Call(limited(t, 20*time.Second), "sleep", nil)
					errs <- err
				}()
			}
			usable(t, s)
			begin := time.Now()
			c.end(t, s)
			for range waiting {
				err := <-errs
				requireFault(t, sandboxes.FaultDied, err)
				require.EqualError(t, err, "call sleep of the good server: sandbox fault (died): "+c.want)
			}
			require.Less(t, time.Since(begin), 2*time.Second)
			require.False(t, s.Alive())
			begin = time.Now()
			_, err := s.Call(t.Context(), "echo", nil)
			requireFault(t, sandboxes.FaultDied, err)
			_, err = s.Tools(t.Context())
			requireFault(t, sandboxes.FaultDied, err)
			require.Less(t, time.Since(begin), time.Second)
		})
	}
}

// The answer of a server that ends right after it is an answer.
func TestLastWords(t *testing.T) {
	for range 20 {
		s := start(t, command(t, "good"))
		require.Equal(t, "the end", call(t, s, "last words", "{}").Text)
		require.Eventually(t, func() bool { return !s.Alive() }, 5*time.Second, time.Millisecond)
	}
}

// slow is a context whose Done, when it is asked for the second time, waits.
type slow struct {
	context.Context
	asked int
	wait  chan struct{}
}

func (s *slow) Done() <-chan struct{} {
	if s.asked++; s.asked == 2 {
		<-s.wait
	}
	return s.Context.Done()
}

// A caller who finds both the answer and the end of the session gets the answer.
func TestAnswerBeforeTheEnd(t *testing.T) {
	for range 50 {
		s := &Session{calls: make(chan []byte), ended: make(chan struct{}), waiting: map[string]chan sandboxes.Message{}}
		ctx := &slow{Context: t.Context(), wait: make(chan struct{})}
		go func() {
			<-s.calls
			s.take([]byte(`{"jsonrpc":"2.0","id":1,"result":{}}`))
			s.end(sandboxes.FaultDied, "it has ended")
			close(ctx.wait)
		}()
		_, err := s.Call(ctx, "echo", nil)
		require.NoError(t, err)
	}
}

// What a server has said beside its messages is in its fault.
func TestNoiseIsShown(t *testing.T) {
	s := start(t, command(t, "good"))
	call(t, s, "garbage", `{"text":"x"}`)
	_, err := s.Call(t.Context(), "die", []byte(`{"n":1}`))
	require.ErrorContains(t, err, `exit status 1; it said: out of cheese; 7 lines of its output were no messages, the last begins "17"`)
}

func TestClose(t *testing.T) {
	for _, c := range []struct {
		role string
		most time.Duration
	}{{"good", grace}, {"lingers", 2 * grace}, {"stubborn", 3 * grace}} {
		t.Run(c.role, func(t *testing.T) {
			t.Parallel()
			s := start(t, command(t, c.role))
			left, err := strconv.Atoi(call(t, s, "fork", "{}").Text)
			require.NoError(t, err)
			waiting := make(chan error)
			go func() {
				_, err := s.Call(limited(t, 20*time.Second), "sleep", nil)
				waiting <- err
			}()
			usable(t, s)
			begin := time.Now()
			require.NoError(t, s.Close())
			require.Less(t, time.Since(begin), c.most)
			requireFault(t, sandboxes.FaultClosed, <-waiting)
			require.NoError(t, s.Close())
			_, err = s.Call(t.Context(), "echo", nil)
			requireFault(t, sandboxes.FaultClosed, err)
			require.False(t, alive(pidOf(s)))
			require.ErrorIs(t, syscall.Kill(pidOf(s), 0), syscall.ESRCH, "no zombie")
			require.Eventually(t, func() bool { return !alive(left) }, 5*time.Second, time.Millisecond, "what it has started goes, too")
		})
	}
}

func TestStartFails(t *testing.T) {
	before := runtime.NumGoroutine()
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	good, missing, nowhere := command(t, "good"), command(t, "good"), command(t, "good")
	missing.Path = "/no/such/program"
	nowhere.Dir = "/no/such/folder"
	_, err := Start(t.Context(), missing)
	requireFault(t, sandboxes.FaultLease, err)
	require.ErrorIs(t, err, os.ErrNotExist)
	require.ErrorContains(t, err, "start the good server")
	_, err = Start(t.Context(), nowhere)
	requireFault(t, sandboxes.FaultLease, err)
	_, err = Start(ended, good)
	require.ErrorIs(t, err, context.Canceled)
	soon, cancel := context.WithCancel(t.Context())
	time.AfterFunc(100*time.Millisecond, cancel)
	_, err = Start(soon, command(t, "mute"))
	require.ErrorIs(t, err, context.Canceled)
	_, isFault := errors.AsType[*sandboxes.Fault](err)
	require.False(t, isFault, "it was not the server's")
	_, err = Start(t.Context(), command(t, "dead"))
	requireFault(t, sandboxes.FaultDied, err)
	for end := time.Now().Add(5 * time.Second); runtime.NumGoroutine() > before && time.Now().Before(end); {
		time.Sleep(5 * time.Millisecond)
	}
	require.LessOrEqual(t, runtime.NumGoroutine(), before)
}

func TestEnvironment(t *testing.T) {
	t.Setenv("MCPGYM_TEST_SECRET", "inherited")
	c := command(t, "good")
	c.Env = append(c.Env, "A=b")
	require.Equal(t, roleEnv+"=good\n"+quickExit+"\nA=b", call(t, start(t, c), "environment", "{}").Text)
}

func TestTail(t *testing.T) {
	var tail Tail
	require.Empty(t, tail.String())
	for i := range 1000 {
		fmt.Fprintf(&tail, "line %d\n", i)
	}
	require.True(t, strings.HasSuffix(tail.String(), "line 998\nline 999"), tail.String())
	require.LessOrEqual(t, len(tail.data), tailBytes)
	n, err := tail.Write(bytes.Repeat([]byte("\xff"), 3*tailBytes))
	require.NoError(t, err)
	require.Equal(t, 3*tailBytes, n)
	require.Len(t, tail.data, tailBytes)
	require.Equal(t, "\uFFFD", tail.String())
}

// A server whose owner is killed goes, even one that ignores that its input ends.
func TestDiesWithItsOwner(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("only Linux tells a process of its parent's end")
	}
	self, err := os.Executable()
	require.NoError(t, err)
	owner := exec.Command(self)
	owner.Env = []string{roleEnv + "=owner"}
	out, err := owner.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, owner.Start())
	var pid int
	_, err = fmt.Fscan(out, &pid)
	require.NoError(t, err)
	require.True(t, alive(pid))
	require.NoError(t, owner.Process.Kill())
	_ = owner.Wait() // it was killed
	require.Eventually(t, func() bool { return !alive(pid) }, 5*time.Second, time.Millisecond)
}

// Everything at once has something to say under the race detector, and when a server dies in the middle of it.
func TestManyCalls(t *testing.T) {
	s := start(t, command(t, "good"))
	var all sync.WaitGroup
	for g := range 8 {
		all.Go(func() {
			for i := range 200 {
				ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
				if i%10 == 9 {
					ctx, cancel = context.WithTimeout(t.Context(), time.Duration(i)*time.Microsecond)
				}
				said := fmt.Sprint(g, " ", i)
				r, err := s.Call(ctx, "echo", fmt.Appendf(nil, `{"text":%q}`, said))
				if err == nil && r.Text != said || err != nil && !errors.Is(err, context.DeadlineExceeded) {
					t.Errorf("%s got %+v, %v", said, r, err)
				}
				cancel()
			}
		})
	}
	all.Wait()
	usable(t, s)
	s.mu.Lock()
	require.Empty(t, s.waiting)
	s.mu.Unlock()
	for range 8 {
		all.Go(func() {
			for {
				r, err := s.Call(t.Context(), "echo", []byte(`{"text":"x"}`))
				if f, ok := errors.AsType[*sandboxes.Fault](err); ok && f.Kind == sandboxes.FaultDied {
					return
				} else if err != nil || r.Text != "x" {
					t.Errorf("%+v, %v", r, err)
					return
				}
			}
		})
	}
	time.Sleep(20 * time.Millisecond)
	require.NoError(t, syscall.Kill(pidOf(s), syscall.SIGKILL))
	all.Wait()
}

// FuzzReader: whatever a server writes, in whatever pieces, each line is a message, noise or blank, and the session goes on.
func FuzzReader(f *testing.F) {
	for _, s := range []string{"", "\n\n", "hello\n", `{"jsonrpc":"2.0","id":9,"result":{}}`, "[1]\r\n{}\n", `{"jsonrpc":"2.0","id":1.0,"method":"ping"}` + "\n\xff\x00\n",
		`{"jsonrpc":"2.0","method":"a","Method":"b","id":null}` + "\n  \n", `{"jsonrpc":"2.0","id":[],"error":7}` + "\n{\"jsonrpc\"\n"} {
		f.Add([]byte(s), uint8(3))
	}
	f.Fuzz(func(t *testing.T, data []byte, piece uint8) {
		in, out := io.Pipe()
		s := &Session{server: Server{Stdio: stdio{in, nil}, Notify: func(string, json.RawMessage) {}}, why: closed, wake: make(chan struct{}, 1), ended: make(chan struct{})}
		mine := make(chan sandboxes.Message, 1)
		s.waiting = map[string]chan sandboxes.Message{`"mine"`: mine}
		go func() {
			for p := range slices.Chunk(data, int(piece)+1) {
				out.Write(p)
			}
			out.Write([]byte("\n" + `{"jsonrpc":"2.0","id":"mine","result":"last"}` + "\n"))
			out.Close()
		}()
		s.read()
		lines, messages := 0, 1
		for line := range bytes.SplitSeq(data, []byte("\n")) {
			if line = bytes.TrimSpace(line); len(line) > 0 {
				lines++
				if _, err := sandboxes.DecodeMessage(line); err == nil {
					messages++
				}
			}
		}
		require.Equal(t, messages, s.messages)
		require.Equal(t, lines+1-messages, s.noise)
		require.Equal(t, sandboxes.FaultDied, s.fault.Kind)
		require.Len(t, mine, 1)
	})
}

// BenchmarkCall measures a tool call to a server in Go in a process of its own.
func BenchmarkCall(b *testing.B) {
	for _, role := range []string{"good", "mcp-go"} {
		b.Run(role, func(b *testing.B) {
			s := start(b, command(b, role, "1"))
			name, args := "echo", json.RawMessage(`{"text":"a line of some length, as tools have"}`)
			if role == "mcp-go" {
				name, args = "get", json.RawMessage(`{}`)
			}
			var took []time.Duration
			b.ReportAllocs()
			for b.Loop() {
				begin := time.Now()
				if r, err := s.Call(b.Context(), name, args); err != nil || r.IsError {
					b.Fatal(r, err)
				}
				took = append(took, time.Since(begin))
			}
			slices.Sort(took)
			b.ReportMetric(float64(took[len(took)/2].Nanoseconds()), "p50-ns")
			b.ReportMetric(float64(took[len(took)*99/100].Nanoseconds()), "p99-ns")
		})
	}
}

// BenchmarkStart measures a server's way from nothing to its first answer, and back.
func BenchmarkStart(b *testing.B) {
	c := command(b, "good")
	for b.Loop() {
		s, err := Start(b.Context(), c)
		if err != nil {
			b.Fatal(err)
		}
		if err := s.Close(); err != nil {
			b.Fatal(err)
		}
	}
}
