package process

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/mark3labs/mcp-go/mcp"
	"github.com/mark3labs/mcp-go/server"
	"github.com/stretchr/testify/require"

	"github.com/mcpgym/mcpgym/sandboxes"
)

const roleEnv = "MCPGYM_PROCESS_TEST_ROLE"

// quickExit is for the race detector, under which a program else takes a second to end.
const quickExit = "GORACE=atexit_sleep_ms=0"

// The test binary also plays the servers, and an owner of one.
func TestMain(m *testing.M) {
	switch role := os.Getenv(roleEnv); role {
	case "":
		os.Exit(m.Run())
	case "mcp-go":
		serveMCPGo()
	case "owner":
		own()
	case "hold": // keeps its standard output open
		time.Sleep(time.Minute)
	default:
		play(role)
	}
}

// command is a server that the test binary plays.
func command(t testing.TB, role string, args ...string) Command {
	t.Helper()
	self, err := os.Executable()
	require.NoError(t, err)
	return Command{Path: self, Args: args, Env: []string{roleEnv + "=" + role, quickExit}, Name: "the " + role + " server"}
}

// start starts one and closes it after the test.
func start(t testing.TB, c Command) *Session {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	s, err := Start(ctx, c)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	return s
}

// request is what a server gets.
type request struct {
	ID     json.RawMessage
	Method string
	Params struct {
		Cursor    *string
		Name      string
		RequestID json.RawMessage
		Meta      struct{ ProgressToken json.RawMessage } `json:"_meta"`
		Arguments struct {
			Text string
			N    int
		}
	}
}

const (
	hello   = `{"protocolVersion":"2025-11-25","capabilities":{"tools":{}},"serverInfo":{"name":"test","version":"1"}}`
	oneTool = `{"tools":[{"name":"echo","description":"Says it again.","inputSchema":{"type":"object"}}]}`
)

// text makes the result of a tool.
func text(s string) string {
	data, err := json.Marshal(s)
	if err != nil {
		panic(err)
	}
	return `{"content":[{"type":"text","text":` + string(data) + `}]}`
}

// play is a server whose faults are named by its role and by the tools that are called.
func play(role string) {
	out := &answers{w: os.Stdout}
	switch role {
	case "mute":
		io.Copy(io.Discard, os.Stdin)
		return
	case "dead":
		fmt.Fprintln(os.Stderr, "no database")
		os.Exit(3)
	case "deaf": // neither reads nor ends
		signal.Ignore(syscall.SIGTERM)
		time.Sleep(time.Minute)
	case "chatty":
		fmt.Println("Weather server 1.2\n\nlistening")
		fmt.Println(`{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"info"}}`)
		fmt.Println(`{"jsonrpc":"2.0","id":1,"method":"ping"}`)
	case "stubborn":
		signal.Ignore(syscall.SIGTERM)
	}
	var running sync.Map // by the request's id: what cancels it
	in := bufio.NewReader(os.Stdin)
	for {
		line, err := in.ReadString('\n')
		if err != nil {
			break
		}
		var r request
		if err := json.Unmarshal([]byte(line), &r); err != nil {
			out.raw(`{"jsonrpc":"2.0","id":null,"error":{"code":-32700,"message":"parse error"}}`)
			continue
		}
		switch r.Method {
		case "initialize":
			out.result(r.ID, hello)
		case "tools/list":
			if role != "stalls" {
				out.result(r.ID, oneTool)
			}
		case "tools/call":
			ctx, cancel := context.WithCancel(context.Background())
			running.Store(string(r.ID), cancel)
			go func() {
				defer running.Delete(string(r.ID))
				tool(ctx, out, r)
			}()
		case "notifications/cancelled":
			if cancel, ok := running.Load(string(r.Params.RequestID)); ok {
				cancel.(context.CancelFunc)()
			}
		}
	}
	switch role {
	case "lingers": // ends when it is told to
		time.Sleep(time.Minute)
	case "stubborn":
		time.Sleep(time.Minute)
	}
}

func tool(ctx context.Context, out *answers, r request) {
	in := r.Params.Arguments
	switch r.Params.Name {
	case "echo":
		out.result(r.ID, text(in.Text))
	case "big":
		out.result(r.ID, text(strings.Repeat("x", in.N)))
	case "environment":
		out.result(r.ID, text(strings.Join(os.Environ(), "\n")))
	case "sleep": // says beside when it is stopped
		select {
		case <-ctx.Done():
			fmt.Fprintln(os.Stderr, "stopped working")
			out.result(r.ID, text("too late"))
		case <-time.After(time.Minute):
		}
	case "write": // into a file, and then answers late or never
		f, err := os.OpenFile(in.Text, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
		if err == nil {
			fmt.Fprintln(f, "written")
			f.Close()
		}
		if in.N == 0 {
			os.Exit(1)
		}
		time.Sleep(time.Duration(in.N) * time.Millisecond)
		out.result(r.ID, text("done"))
	case "die":
		fmt.Fprintln(os.Stderr, "out of cheese")
		os.Exit(in.N)
	case "last words":
		out.result(r.ID, text("the end"))
		os.Exit(0)
	case "close":
		os.Stdout.Close()
	case "fork": // leaves a process that holds the pipes, in the group or out of it, and then maybe dies
		self, _ := os.Executable()
		cmd := exec.Command(self)
		cmd.Env = []string{roleEnv + "=hold"}
		cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
		cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: in.Text == "away"}
		if err := cmd.Start(); err != nil {
			panic(err)
		}
		out.result(r.ID, text(fmt.Sprint(cmd.Process.Pid)))
	case "progress":
		for i := range 3 {
			out.raw(fmt.Sprintf(`{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":%s,"progress":%d}}`, r.Params.Meta.ProgressToken, i+1))
		}
		out.result(r.ID, text("done"))
	case "not UTF-8":
		out.result(r.ID, "{\"content\":[{\"type\":\"text\",\"text\":\"\xc7\xd1\"}]}")
	case "reverse": // answers when there are N, the last first
		out.later(r.ID, text(in.Text), in.N)
	case "partial": // the line comes in pieces
		msg := `{"jsonrpc":"2.0","id":` + string(r.ID) + `,"result":` + text(in.Text) + "}\n"
		for _, b := range []byte(msg) {
			os.Stdout.Write([]byte{b})
			time.Sleep(100 * time.Microsecond)
		}
	case "garbage":
		out.raw("panic: \x00\xff{{{\n\n[1,2\n\"\nnull\n{}\n[]\n17")
		out.result(r.ID, text(in.Text))
	default:
		out.raw(`{"jsonrpc":"2.0","id":` + string(r.ID) + `,"error":{"code":-32602,"message":"unknown tool"}}`)
	}
}

// answers writes whole lines.
type answers struct {
	mu   sync.Mutex
	w    io.Writer
	held []string
}

func (a *answers) raw(line string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	io.WriteString(a.w, line+"\n")
}

func (a *answers) result(id json.RawMessage, result string) {
	a.raw(`{"jsonrpc":"2.0","id":` + string(id) + `,"result":` + result + `}`)
}

// later holds answers back until there are n.
func (a *answers) later(id json.RawMessage, result string, n int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.held = append(a.held, `{"jsonrpc":"2.0","id":`+string(id)+`,"result":`+result+"}\n")
	if len(a.held) == n {
		for i := range a.held {
			io.WriteString(a.w, a.held[n-1-i])
		}
		a.held = nil
	}
}

// serveMCPGo is an ordinary server, of a world of one number.
func serveMCPGo() {
	srv := server.NewMCPServer("counter", "1")
	n := 0
	fmt.Sscan(os.Args[1], &n)
	var mu sync.Mutex
	reply := func(step int) server.ToolHandlerFunc {
		return func(context.Context, mcp.CallToolRequest) (*mcp.CallToolResult, error) {
			mu.Lock()
			defer mu.Unlock()
			n += step
			return mcp.NewToolResultText(fmt.Sprint(n)), nil
		}
	}
	srv.AddTool(mcp.NewTool("get", mcp.WithDescription("Reads the counter."), mcp.WithReadOnlyHintAnnotation(true)), reply(0))
	srv.AddTool(mcp.NewTool("next", mcp.WithDescription("Adds one to the counter.")), reply(1))
	if err := server.ServeStdio(srv); err != nil {
		os.Exit(1)
	}
}

// own starts a server that does not end by itself, says which process it is, and waits to be killed.
func own() {
	self, err := os.Executable()
	if err == nil {
		var s *Session
		if s, err = Start(context.Background(), Command{Path: self, Env: []string{roleEnv + "=stubborn"}}); err == nil {
			fmt.Println(s.server.Stdio.(*child).cmd.Process.Pid)
			time.Sleep(time.Minute)
		}
	}
	fmt.Println(err)
}

// alive says whether a process exists that is no zombie.
func alive(pid int) bool {
	stat, err := os.ReadFile(filepath.Join("/proc", fmt.Sprint(pid), "stat"))
	if os.IsNotExist(err) && syscall.Kill(pid, 0) != nil {
		return false
	}
	_, rest, _ := strings.Cut(string(stat), ") ")
	return !strings.HasPrefix(rest, "Z")
}

// pidOf gives the process of a session's server.
func pidOf(s *Session) int { return s.server.Stdio.(*child).cmd.Process.Pid }

func call(t testing.TB, s sandboxes.Session, name, args string) sandboxes.Result {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	r, err := s.Call(ctx, name, json.RawMessage(args))
	require.NoError(t, err)
	return r
}

// usable requires that a session goes on.
func usable(t testing.TB, s sandboxes.Session) {
	t.Helper()
	require.Equal(t, sandboxes.Result{Text: "still here"}, call(t, s, "echo", `{"text":"still here"}`))
}

func requireFault(t testing.TB, kind sandboxes.FaultKind, err error) *sandboxes.Fault {
	t.Helper()
	var f *sandboxes.Fault
	require.ErrorAs(t, err, &f)
	require.Equal(t, kind, f.Kind, "%v", err)
	return f
}
