package process

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mcpgym/mcpgym/sandboxes"
	"github.com/mcpgym/mcpgym/sandboxes/casetest"
)

// stdio is the input and output of a server that is a function of this test.
type stdio struct {
	*io.PipeReader
	*io.PipeWriter
}

func (p stdio) Close() error {
	p.PipeReader.Close()
	return p.PipeWriter.Close()
}

// serve begins a session with a server that answers requests, but for those of notify's own affair. What answer returns is
// written as it is.
func serve(t testing.TB, answer func(r request) string) (s *Session, out io.Writer) {
	t.Helper()
	s, out, err := tryServe(t, nil, answer)
	require.NoError(t, err)
	return s, out
}

func tryServe(t testing.TB, notify func(string, json.RawMessage), answer func(r request) string) (*Session, io.Writer, error) {
	t.Helper()
	in, toServer := io.Pipe()
	fromServer, out := io.Pipe()
	var served sync.WaitGroup
	served.Go(func() {
		defer out.Close()
		lines := bufio.NewReader(in)
		for {
			line, err := lines.ReadString('\n')
			if err != nil {
				return
			}
			var r request
			if err := json.Unmarshal([]byte(line), &r); err != nil {
				t.Errorf("the server got %q: %v", line, err)
			}
			said := answer(r)
			if r.Method == "initialize" && said == "" {
				said = response(r, hello)
			}
			if _, err := io.WriteString(out, said); err != nil {
				return
			}
		}
	})
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	s, err := Connect(ctx, Server{Name: "the fake", Stdio: stdio{fromServer, toServer}, Notify: notify})
	t.Cleanup(func() {
		if s != nil {
			require.NoError(t, s.Close())
		}
		in.Close()
		served.Wait()
	})
	return s, out, err
}

func response(r request, result string) string {
	return `{"jsonrpc":"2.0","id":` + string(r.ID) + `,"result":` + result + "}\n"
}

// echo answers calls with the text that they bring, and nothing else.
func echo(r request) string {
	if r.Method == "tools/call" {
		return response(r, text(r.Params.Arguments.Text))
	}
	return ""
}

// counts gives the messages and the lines of noise that came. A line that was written has come when the call after it is answered.
func counts(t testing.TB, s *Session) (messages, noise int) {
	t.Helper()
	usable(t, s)
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.messages, s.noise
}

// The text comes from a server in mid-session.
func TestCasesStdout(t *testing.T) {
	casetest.Run(t, "stdout", func(t *testing.T, c casetest.Case) {
		s, out := serve(t, echo)
		messages, noise := counts(t, s)
		_, err := io.WriteString(out, c.Input)
		require.NoError(t, err)
		if !strings.HasSuffix(c.Input, "\n") {
			_, err = io.WriteString(out, "\n")
			require.NoError(t, err)
		}
		m, n := counts(t, s)
		c.Check(t, map[string]any{"messages": m - messages - 1, "noise_lines": n - noise, "fatal": !s.Alive(), "reconnects": 0})
	})
}

func TestCasesStdoutSize(t *testing.T) {
	casetest.Run(t, "stdout-size", func(t *testing.T, c casetest.Case) {
		var in struct {
			ReplyBytes int `json:"reply_bytes"`
		}
		c.In(t, &in)
		s := start(t, command(t, "good"))
		before, _ := counts(t, s)
		r := call(t, s, "big", fmt.Sprintf(`{"n":%d}`, in.ReplyBytes))
		require.Len(t, r.Text, in.ReplyBytes)
		after, _ := counts(t, s)
		c.Check(t, map[string]any{"messages": after - before - 1, "fatal": !s.Alive()})
	})
}

func TestCasesFrame(t *testing.T) {
	casetest.Run(t, "frame", func(t *testing.T, c casetest.Case) {
		got := map[string]any{}
		m, err := sandboxes.DecodeMessage([]byte(c.Input))
		if err != nil {
			got["error"], _, _ = strings.Cut(err.Error(), ":")
		} else {
			got["method"] = m.Method
		}
		s, out := serve(t, echo)
		_, before := counts(t, s)
		_, werr := io.WriteString(out, c.Input+"\n")
		require.NoError(t, werr)
		_, after := counts(t, s)
		require.Equal(t, err != nil, after > before, "the session sees what the decoder says")
		got["fatal"] = !s.Alive()
		c.Check(t, got)
	})
}

// The case's ids stand for those of a session, which are its own choice.
func TestCasesIDMatch(t *testing.T) {
	casetest.Run(t, "id-match", func(t *testing.T, c casetest.Case) {
		var in struct{ Sent, Got json.RawMessage }
		c.In(t, &in)
		var sent int64
		if json.Unmarshal(in.Sent, &sent) != nil {
			t.Skip("a session sends no such id")
		}
		s, _ := serve(t, func(r request) string {
			if r.Method == "tools/call" {
				require.JSONEq(t, string(in.Sent), string(r.ID))
				r.ID = in.Got
			}
			return echo(r)
		})
		s.mu.Lock()
		s.last = sent - 1
		s.mu.Unlock()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err := s.Call(ctx, "echo", nil)
		c.Check(t, map[string]any{"matched": err == nil})
	})
}

func TestCasesPagination(t *testing.T) {
	casetest.Run(t, "pagination", func(t *testing.T, c casetest.Case) {
		var in struct {
			Pages []struct {
				Tools []string
				Next  *string
			}
			RepeatLast bool `json:"repeat_last"`
		}
		c.In(t, &in)
		var want struct {
			Error          string
			RequestsAtMost int `json:"requests_at_most"`
		}
		require.NoError(t, json.Unmarshal([]byte(c.Want), &want))
		requests := 0
		s, _ := serve(t, func(r request) string {
			if r.Method != "tools/list" {
				return ""
			}
			page := in.Pages[min(requests, len(in.Pages)-1)]
			requests++
			tools := []map[string]any{}
			for _, name := range page.Tools {
				tools = append(tools, map[string]any{"name": name, "inputSchema": map[string]any{}})
			}
			list := map[string]any{"tools": tools}
			if page.Next != nil {
				list["nextCursor"] = page.Next
			}
			data, err := json.Marshal(list)
			require.NoError(t, err)
			return response(r, string(data))
		})
		tools, err := s.Tools(t.Context())
		got := map[string]any{"requests_at_most": max(requests, want.RequestsAtMost)}
		if err != nil {
			requireFault(t, sandboxes.FaultProtocol, err)
			require.ErrorContains(t, err, "the fake")
			if want.Error != "" && strings.Contains(err.Error(), want.Error) {
				got["error"] = want.Error
			}
		} else {
			names := []string{}
			for _, tool := range tools {
				names = append(names, tool.Name)
			}
			got["tools"] = names
		}
		c.Check(t, got)
	})
}

func TestCasesProgress(t *testing.T) {
	casetest.Run(t, "progress", func(t *testing.T, c casetest.Case) {
		var in struct{ Tokens []json.RawMessage }
		c.In(t, &in)
		delivered := []json.RawMessage{}
		s, out, err := tryServe(t, func(method string, params json.RawMessage) {
			var p struct{ ProgressToken json.RawMessage }
			require.NoError(t, json.Unmarshal(params, &p))
			require.Equal(t, "notifications/progress", method)
			delivered = append(delivered, p.ProgressToken)
		}, echo)
		require.NoError(t, err)
		for _, token := range in.Tokens {
			fmt.Fprintf(out, `{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":%s,"progress":1}}`+"\n", token)
		}
		usable(t, s)
		c.Check(t, map[string]any{"delivered": delivered})
	})
}

// limited is a context of the given seconds.
func limited(t testing.TB, d time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), d)
	t.Cleanup(cancel)
	return ctx
}

func TestCases(t *testing.T) {
	t.Run("C050", func(t *testing.T) { // bytes that are not UTF-8
		t.Parallel()
		s := start(t, command(t, "good"))
		r := call(t, s, "not UTF-8", "{}")
		require.NotEmpty(t, r.Defect)
		require.True(t, strings.ContainsRune(r.Text, '�'), r.Text)
		usable(t, s)
	})
	t.Run("C051", func(t *testing.T) { // never answers initialize
		t.Parallel()
		begin := time.Now()
		_, err := Start(limited(t, 2*time.Second), command(t, "mute"))
		require.Less(t, time.Since(begin), 2500*time.Millisecond)
		requireFault(t, sandboxes.FaultHung, err)
		require.EqualError(t, err, "initialize of the mute server: sandbox fault (hung): no answer within 2.0 s")
		require.ErrorIs(t, err, context.DeadlineExceeded)
	})
	t.Run("C052", func(t *testing.T) { // never answers tools/list
		t.Parallel()
		stalls, other := start(t, command(t, "stalls")), start(t, command(t, "good"))
		begin := time.Now()
		_, err := stalls.Tools(limited(t, 2*time.Second))
		require.Less(t, time.Since(begin), 2500*time.Millisecond)
		requireFault(t, sandboxes.FaultHung, err)
		require.EqualError(t, err, "tools/list of the stalls server: sandbox fault (hung): no answer within 2.0 s")
		usable(t, other)
	})
	t.Run("C053", func(t *testing.T) { // dies at once
		t.Parallel()
		begin := time.Now()
		_, err := Start(limited(t, 30*time.Second), command(t, "dead"))
		require.Less(t, time.Since(begin), time.Second)
		requireFault(t, sandboxes.FaultDied, err)
		require.EqualError(t, err, "initialize of the dead server: sandbox fault (died): it has ended: exit status 3; it said: no database")
	})
	t.Run("C072", func(t *testing.T) { // an error of the protocol is an answer
		t.Parallel()
		s := start(t, command(t, "good"))
		require.Equal(t, sandboxes.Result{IsError: true, Code: -32602, Text: "unknown tool"}, call(t, s, "no such tool", "{}"))
		usable(t, s)
	})
	t.Run("C078", func(t *testing.T) { // progress before the result
		t.Parallel()
		var seen []float64
		c := command(t, "good")
		c.Notify = func(method string, params json.RawMessage) {
			var p struct{ Progress float64 }
			require.NoError(t, json.Unmarshal(params, &p))
			seen = append(seen, p.Progress)
		}
		s := start(t, c)
		for i := range 50 {
			seen = nil
			require.Equal(t, "done", call(t, s, "progress", "{}").Text)
			require.Equal(t, []float64{1, 2, 3}, seen, "call %d", i)
		}
	})
	t.Run("C080", func(t *testing.T) { // a call that is cancelled
		t.Parallel()
		s := start(t, command(t, "good"))
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(100*time.Millisecond, cancel)
		begin := time.Now()
		_, err := s.Call(ctx, "sleep", nil)
		require.Less(t, time.Since(begin), 500*time.Millisecond)
		require.EqualError(t, err, "call sleep of the good server: context canceled")
		require.ErrorIs(t, err, context.Canceled)
		require.Eventually(t, func() bool { return s.server.Stderr.String() == "stopped working" }, 5*time.Second, time.Millisecond)
		usable(t, s)
		require.NoError(t, s.Close())
		require.False(t, alive(pidOf(s)))
	})
	t.Run("C081", func(t *testing.T) { // a write whose answer comes too late is made once
		t.Parallel()
		s := start(t, command(t, "good"))
		file := filepath.Join(t.TempDir(), "rows")
		args, err := json.Marshal(map[string]any{"text": file, "n": 400})
		require.NoError(t, err)
		_, err = s.Call(limited(t, 200*time.Millisecond), "write", args)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		time.Sleep(400 * time.Millisecond) // until the answer has come
		usable(t, s)
		rows, err := os.ReadFile(file)
		require.NoError(t, err)
		require.Equal(t, "written\n", string(rows))
	})
	t.Run("C082", func(t *testing.T) { // a write whose answer is lost is made once
		t.Parallel()
		s := start(t, command(t, "good"))
		file := filepath.Join(t.TempDir(), "rows")
		args, err := json.Marshal(map[string]any{"text": file})
		require.NoError(t, err)
		for range 2 {
			_, err = s.Call(limited(t, 20*time.Second), "write", args)
			requireFault(t, sandboxes.FaultDied, err)
		}
		rows, err := os.ReadFile(file)
		require.NoError(t, err)
		require.Equal(t, "written\n", string(rows))
	})
	t.Run("C084", func(t *testing.T) { // replies in reverse order
		t.Parallel()
		var all sync.WaitGroup
		for range 8 {
			s := start(t, command(t, "good"))
			for i := range 8 {
				all.Go(func() {
					said := fmt.Sprintf("%p %d", s, i)
					r, err := s.Call(limited(t, 20*time.Second), "reverse", fmt.Appendf(nil, `{"text":%q,"n":8}`, said))
					if err != nil || r.Text != said {
						t.Errorf("caller %s got %+v, %v", said, r, err)
					}
				})
			}
		}
		all.Wait()
	})
	t.Run("C087", func(t *testing.T) { // one of many never answers
		t.Parallel()
		s := start(t, command(t, "good"))
		var all sync.WaitGroup
		for i := range 16 {
			all.Go(func() {
				if i == 7 {
					if _, err := s.Call(limited(t, time.Second), "sleep", nil); err == nil {
						t.Error("a call that is never answered returns nil")
					}
					return
				}
				r, err := s.Call(limited(t, 20*time.Second), "echo", fmt.Appendf(nil, `{"text":"%d"}`, i))
				if err != nil || r.Text != fmt.Sprint(i) {
					t.Errorf("caller %d got %+v, %v", i, r, err)
				}
			})
		}
		all.Wait()
		usable(t, s)
	})
}
