// Package postgres leases live Postgres databases.
//
// All leases of a process share one Server. A world that its agent may change is a database of its own, cloned from a
// template and owned by a role of its own, and is dropped afterwards. Worlds that their agents may only read share one
// database, under roles that can do nothing but read. Verifiers look through a login of their own: it reads everything but
// is no superuser, because a view that an agent has rigged runs with the rights of whoever looks.
package postgres

import (
	"context"
	"errors"
	"fmt"
)

// Settings are the server settings that worlds rely on, each as name=value. A database lives for one episode, so nothing is
// kept safe from a crash. What leases would share and an agent could use up is turned off.
func Settings() []string {
	return []string{
		"fsync=off", "full_page_writes=off", "synchronous_commit=off", "wal_level=minimal", "max_wal_senders=0",
		"jit=off", "autovacuum=off", "max_prepared_transactions=0", "max_connections=200", "shared_buffers=64MB",
		"max_parallel_workers=0", "max_wal_size=64MB", "temp_file_limit=256MB", "dynamic_shared_memory_type=mmap",
		"timezone=UTC", "datestyle=ISO", "lc_messages=C",
	}
}

// Instance is one run of a Postgres server that nobody else uses. It was made by initdb with the user postgres, trusts local
// connections and runs with Settings. Where its data has a folder named worlds, databases of worlds are kept there: agents
// may fill that disk, and only that.
type Instance struct {
	Dir   string          // folder of its Unix socket
	Ended <-chan struct{} // closed when it has ended, however that came
	Stop  func() error    // ends it, whatever state it is in, and frees what it had
}

// Server is a Postgres server that is started anew when it has died or does not answer. What was leased of the old one is
// lost then. Its methods may be called concurrently.
type Server struct {
	boot func(context.Context) (Instance, error)

	busy    chan struct{} // held by whoever uses the fields below, and while an instance starts
	now     *cluster      // nil where one has failed and no other could be started yet
	unfreed error         // what could not be freed of those before
	closed  bool
}

// Start starts a server by boot, which returns when it takes connections, and is called again for every new one. A boot
// whose context ends must leave nothing.
func Start(ctx context.Context, boot func(context.Context) (Instance, error)) (*Server, error) {
	s := &Server{boot: boot, busy: make(chan struct{}, 1)}
	if _, err := s.live(ctx); err != nil {
		return nil, err
	}
	return s, nil
}

// live returns the cluster that runs. Where the last one has failed, it starts another; one caller does, the others wait.
func (s *Server) live(ctx context.Context) (*cluster, error) {
	select {
	case s.busy <- struct{}{}:
		defer func() { <-s.busy }()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	switch {
	case s.closed:
		return nil, errors.New("the Postgres server is closed")
	case s.now != nil && s.now.alive():
		return s.now, nil
	case s.now != nil:
		s.unfreed = errors.Join(s.unfreed, s.now.stop())
		s.now = nil
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	i, err := s.boot(ctx)
	if err != nil {
		return nil, fmt.Errorf("start a Postgres server: %w", cause(ctx, err))
	}
	c := newCluster(i)
	if err := c.prepare(ctx); err != nil {
		return nil, errors.Join(fmt.Errorf("set up a Postgres server: %w", cause(ctx, err)), c.stop())
	}
	s.now = c
	return c, nil
}

// open makes a lease. It is tried once more where the server turns out to have failed before.
func (s *Server) open(ctx context.Context, setup string, readOnly bool) (*lease, error) {
	for again := false; ; again = true {
		c, err := s.live(ctx)
		if err != nil {
			return nil, err
		}
		l, err := c.open(ctx, setup, readOnly)
		if err == nil || again || c.alive() || ctx.Err() != nil {
			return l, err
		}
	}
}

// Close stops the server. It may be called twice.
func (s *Server) Close() error {
	s.busy <- struct{}{}
	defer func() { <-s.busy }()
	err := s.unfreed
	if s.now != nil {
		err = errors.Join(err, s.now.stop())
	}
	s.now, s.unfreed, s.closed = nil, nil, true
	return err
}
