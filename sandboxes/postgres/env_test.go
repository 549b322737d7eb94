package postgres

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"

	"github.com/mcpgym/mcpgym/envs"
	"github.com/mcpgym/mcpgym/sandboxes"
)

// wire stands between a server and its clients. When a client has sent the mark it loses what the server answers: the
// connection is cut, or the answer never comes.
type wire struct {
	boot func(context.Context) (Instance, error)
	mark []byte
	cut  bool
	sent atomic.Int32 // marks
}

func (w *wire) start(ctx context.Context) (Instance, error) {
	real, err := w.boot(ctx)
	if err != nil {
		return real, err
	}
	dir, err := os.MkdirTemp("", "mcpgym-wire-")
	if err != nil {
		return real, errors.Join(err, real.Stop())
	}
	l, err := net.Listen("unix", filepath.Join(dir, ".s.PGSQL.5432"))
	if err != nil {
		return real, errors.Join(err, os.RemoveAll(dir), real.Stop())
	}
	var clients sync.WaitGroup
	clients.Go(func() {
		for {
			client, err := l.Accept()
			if err != nil {
				return
			}
			server, err := net.Dial("unix", filepath.Join(real.Dir, ".s.PGSQL.5432"))
			if err != nil {
				client.Close()
				continue
			}
			clients.Go(func() { w.join(client, server) })
		}
	})
	return Instance{dir, real.Ended, func() error {
		l.Close()
		err := real.Stop()
		clients.Wait()
		return errors.Join(err, os.RemoveAll(dir))
	}}, nil
}

func (w *wire) join(client, server net.Conn) {
	defer client.Close()
	defer server.Close()
	var struck atomic.Bool
	go func() {
		defer client.Close()
		defer server.Close()
		for buf := make([]byte, 1<<16); ; {
			n, err := server.Read(buf)
			if err != nil || struck.Load() && w.cut {
				return
			}
			if !struck.Load() {
				client.Write(buf[:n]) // a client that is gone, the other side notices
			}
		}
	}()
	for buf := make([]byte, 1<<16); ; {
		n, err := client.Read(buf)
		if err != nil {
			return
		}
		if bytes.Contains(buf[:n], w.mark) && w.sent.Add(1) == 1 {
			struck.Store(true)
		}
		if _, err := server.Write(buf[:n]); err != nil {
			return
		}
	}
}

const lostWrite = "INSERT INTO customers (name) VALUES ('lost write')"

// lostWrites counts the rows of lostWrite in every database that is leased.
func lostWrites(t *testing.T, s *Server) (counts []string) {
	t.Helper()
	c := current(t, s)
	for _, name := range left(t, s) {
		var database string
		if n, _ := fmt.Sscanf(name, "database %s", &database); n == 1 {
			require.NoError(t, c.as(t.Context(), superuser, database, func(su *pgconn.PgConn) error {
				rows, err := query(t.Context(), su, "SELECT count(*) FROM customers WHERE name = 'lost write'")
				if err == nil {
					counts = append(counts, string(rows[0][0]))
				}
				return err
			}))
		}
	}
	return counts
}

// A write whose answer is lost was made once, and is not sent again.
func TestCasesLostAnswer(t *testing.T) {
	for _, d := range tested() {
		t.Run("C082/"+d.name, func(t *testing.T) {
			w := &wire{boot: d.boot, mark: []byte("lost write"), cut: true}
			s := driver{name: d.name, boot: w.start}.start(t)
			p := provider(t, s, false, 1)
			box := leased(t, p, 1)
			sibling := leased(t, provider(t, s, true, 1), 1)
			for range 2 {
				_, err := box.Session().Call(t.Context(), "query_database", sqlArgs(lostWrite))
				f, ok := errors.AsType[*sandboxes.Fault](err)
				require.True(t, ok, "%v", err)
				require.Equal(t, sandboxes.FaultLost, f.Kind)
			}
			require.EqualValues(t, 1, w.sent.Load())
			require.Equal(t, []string{"1"}, lostWrites(t, s))
			require.False(t, ask(t, sibling, "SELECT 1").IsError, "the server is well")
			require.NoError(t, box.Close())
			require.NoError(t, works(t.Context(), p, stateOf(t, leased(t, p, 1))))
		})
		t.Run("C081/"+d.name, func(t *testing.T) {
			t.Parallel()
			w := &wire{boot: d.boot, mark: []byte("lost write")}
			s := driver{name: d.name, boot: w.start}.start(t)
			e := env(t, provider(t, s, false, 1), 2*time.Second)
			first := play(t, e, lostWrite)
			require.Equal(t, envs.StatusLimit, first.Status)
			require.Contains(t, first.Text, "unknown, and it is not sent again")
			second := play(t, e, "SELECT 1")
			require.Contains(t, second.Text, "was not run")
			require.Contains(t, play(t, e, "SELECT count(*) FROM customers WHERE name = 'lost write'").Text, "[[1]]")
			require.EqualValues(t, 2, w.sent.Load(), "the write, and the question")
		})
	}
}

// env begins an episode in a world of the provider.
func env(t *testing.T, p *Provider, call time.Duration) *envs.Env {
	t.Helper()
	e, err := envs.New(envs.Spec{Name: "Shop-v0", Splits: map[string]envs.Source{"test": source{}}, Sandboxes: p, Reward: noReward{},
		Limits: envs.Limits{Turns: 20, Calls: 20, ResultBytes: 1000, Call: call, Episode: time.Hour}})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, e.Close()) })
	_, err = e.Reset(t.Context(), source{}.Task(1))
	require.NoError(t, err)
	return e
}

type source struct{}

func (source) Task(i int) envs.Task {
	return envs.Task{ID: "shop", Prompt: "go on", World: sandboxes.World{Seed: uint64(i)}}
}

type noReward struct{}

func (noReward) Score(*envs.Trajectory) (envs.Score, error) { return envs.Score{}, nil }

func turn(sql string) envs.Action {
	return envs.Action{Calls: []envs.Call{{Name: "query_database", Arguments: sqlArgs(sql)}}}
}

// play makes a turn of one call.
func play(t *testing.T, e *envs.Env, sql string) envs.CallResult {
	t.Helper()
	step, err := e.Step(t.Context(), turn(sql))
	require.NoError(t, err)
	return step.Observation.Results[0]
}

// The episode whose server dies is void. The one whose agent ends its session is not.
func TestVoid(t *testing.T) {
	t.Parallel()
	for _, d := range tested() {
		t.Run("server dies/"+d.name, func(t *testing.T) {
			t.Parallel()
			s := d.start(t)
			e := env(t, provider(t, s, false, 1), time.Minute)
			require.False(t, play(t, e, "DELETE FROM items WHERE id = 1").IsError)
			require.NoError(t, current(t, s).Stop())
			_, err := e.Step(t.Context(), turn("SELECT 1"))
			_, ok := errors.AsType[*sandboxes.Fault](err)
			require.True(t, ok, "%v", err)
			require.Equal(t, sandboxes.FaultDied, e.Trajectory().Void.Kind)
			require.Nil(t, e.Trajectory().Score)
		})
		t.Run("answer lost/"+d.name, func(t *testing.T) {
			t.Parallel()
			w := &wire{boot: d.boot, mark: []byte("lost write"), cut: true}
			s := driver{name: d.name, boot: w.start}.start(t)
			e := env(t, provider(t, s, false, 1), time.Minute)
			_, err := e.Step(t.Context(), turn(lostWrite))
			require.Error(t, err)
			require.Equal(t, sandboxes.FaultLost, e.Trajectory().Void.Kind)
			require.EqualValues(t, 2, w.sent.Load(), "once in the episode, and once in a world of its own to find out whose fault it is")
			require.Equal(t, []string{"1"}, lostWrites(t, s))
		})
	}
	onDrivers(t, func(t *testing.T, s *Server) {
		t.Parallel()
		e := env(t, provider(t, s, false, 1), time.Minute)
		for _, q := range []string{"SELECT pg_cancel_backend(pg_backend_pid())", "SELECT pg_sleep(60)", "SELECT repeat('x', 100000000)"} {
			require.Equal(t, envs.StatusToolError, play(t, e, q).Status, q)
		}
		step, err := e.Step(t.Context(), envs.Action{Text: "done"})
		require.NoError(t, err)
		require.NotNil(t, step.Score)
		require.Nil(t, e.Trajectory().Void)
	})
}

// One of 16 episodes waits for an answer that does not come; the limit of a statement ends that, and the others go on.
func TestCasesOneHangs(t *testing.T) {
	t.Parallel()
	onDrivers(t, func(t *testing.T, s *Server) {
		t.Parallel()
		p := provider(t, s, true, 1)
		var ended, wg sync.WaitGroup
		ended.Add(15)
		for i := range 16 {
			box := leased(t, p, 1)
			wg.Go(func() {
				if i > 0 {
					defer ended.Done()
					r, err := box.Session().Call(t.Context(), "query_database", sqlArgs("SELECT count(*) FROM items"))
					if err != nil || r.IsError {
						t.Errorf("number %d: %v %s", i, err, r.Text)
					}
					return
				}
				start := time.Now()
				r, err := box.Session().Call(t.Context(), "query_database", sqlArgs("SELECT pg_sleep(60)"))
				if err != nil || !r.IsError {
					t.Errorf("the one that hangs: %v %s", err, r.Text)
				}
				if took := time.Since(start); took < StatementLimit {
					t.Errorf("the one that hangs has ended after %v", took)
				}
			})
		}
		ended.Wait()
		wg.Wait()
	})
}
