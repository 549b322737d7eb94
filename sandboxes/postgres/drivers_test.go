package postgres

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/mcpgym/mcpgym/sandboxes"
	"github.com/mcpgym/mcpgym/sandboxes/container"
)

// driver is a way to run servers. Its name is what MCPGYM_REQUIRE calls what it needs.
type driver struct {
	name   string
	boot   func(context.Context) (Instance, error)
	shared func() (*Server, error) // the server of all tests that do not harm it
}

func newDriver(name string, boot func(context.Context) (Instance, error)) driver {
	return driver{name, boot, sync.OnceValues(func() (*Server, error) {
		s, err := Start(context.Background(), boot)
		if err == nil {
			closing.Lock()
			defer closing.Unlock()
			closing.servers = append(closing.servers, s)
		}
		return s, err
	})}
}

// closing are the servers that TestMain closes.
var closing struct {
	sync.Mutex
	servers []*Server
}

// drivers are all the ways to run servers.
var drivers = []driver{newDriver("postgres", bootLocal), newDriver("docker", bootContainer)}

func bootContainer(ctx context.Context) (Instance, error) {
	dir, ended, stop, err := container.Postgres(ctx, container.PostgresImage, Settings()...)
	return Instance{dir, ended, stop}, err
}

func TestMain(m *testing.M) {
	flag.Parse()
	_ = flag.Set("test.parallel", "6") // more than there are processors: such tests wait for limits
	code := m.Run()
	for _, s := range closing.servers {
		if err := s.Close(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}
	os.Exit(code)
}

// there skips the test where what the driver needs is missing, or fails it where that is required.
func (d driver) there(t testing.TB, err error) {
	t.Helper()
	missing := errors.Is(err, ErrNotInstalled) || errors.Is(err, container.ErrNoEngine) || errors.Is(err, container.ErrNoImage)
	if missing && !slices.Contains(strings.Split(os.Getenv("MCPGYM_REQUIRE"), ","), d.name) {
		t.Skip(err)
	}
	require.NoError(t, err)
}

// tested are the drivers to run tests on, with -short the first alone: what the race detector looks for is the same on all.
func tested() []driver {
	if testing.Short() {
		return drivers[:1]
	}
	return drivers
}

// inTurn skips a test with -short, which is for the race detector: in this one, one thing happens after the other.
func inTurn(t testing.TB) {
	t.Helper()
	if testing.Short() {
		t.Skip("nothing happens at once")
	}
}

// onDrivers runs a test on the shared server of each driver.
func onDrivers(t *testing.T, test func(t *testing.T, s *Server)) {
	for _, d := range tested() {
		t.Run(d.name, func(t *testing.T) {
			s, err := d.shared()
			d.there(t, err)
			test(t, s)
		})
	}
}

// start starts a server that is closed when the test ends.
func (d driver) start(t testing.TB) *Server {
	t.Helper()
	s, err := Start(t.Context(), d.boot)
	d.there(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	return s
}

// local is the shared server of this machine, for what has to do with no driver.
func local(t testing.TB) *Server {
	t.Helper()
	s, err := drivers[0].shared()
	drivers[0].there(t, err)
	return s
}

// current is what a server runs.
func current(t testing.TB, s *Server) *cluster {
	t.Helper()
	c, err := s.live(t.Context())
	require.NoError(t, err)
	return c
}

// works says what is wrong where a new lease does not work.
func works(ctx context.Context, p *Provider, start sandboxes.State) error {
	box, err := p.Lease(ctx, sandboxes.World{Seed: 1})
	if err != nil {
		return err
	}
	r, err := box.Session().Call(ctx, "query_database", sqlArgs("SELECT 1"))
	if err == nil && r.IsError {
		err = errors.New(r.Text)
	}
	state, stateErr := sandboxes.StateOf(ctx, box)
	if stateErr == nil && state.Hash != start.Hash {
		stateErr = fmt.Errorf("the state differs: %q", state.Diff)
	}
	return errors.Join(err, stateErr, box.Close())
}
