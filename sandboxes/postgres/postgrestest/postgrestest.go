// Package postgrestest gives the tests of a package one Postgres server. Only tests import it.
package postgrestest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/mcpgym/mcpgym/sandboxes/postgres"
)

var shared struct {
	once   sync.Once
	server *postgres.Server
	err    error
}

// Main is the TestMain of a package that uses Local: it runs the tests and ends the server.
func Main(m *testing.M) {
	code := m.Run()
	if shared.server != nil {
		if err := shared.server.Close(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}
	os.Exit(code)
}

// Local returns the server of all tests, which the first one starts. Where Postgres is not installed the test is skipped, or
// fails if MCPGYM_REQUIRE names postgres.
func Local(t testing.TB) *postgres.Server {
	t.Helper()
	shared.once.Do(func() { shared.server, shared.err = postgres.Local(context.Background()) })
	if errors.Is(shared.err, postgres.ErrNotInstalled) && !slices.Contains(strings.Split(os.Getenv("MCPGYM_REQUIRE"), ","), "postgres") {
		t.Skip(shared.err)
	}
	if shared.err != nil {
		t.Fatal(shared.err)
	}
	return shared.server
}
