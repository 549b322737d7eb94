//go:build linux

package container

import (
	"errors"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/moby/moby/client"
	"github.com/stretchr/testify/require"

	"github.com/mcpgym/mcpgym/sandboxes/confine"
)

// runnerOf opens a runner whose engine is given so much time for what is no program's.
func runnerOf(t *testing.T, bound time.Duration) *programs {
	t.Helper()
	r, err := Programs(t.Context(), ToolsImage)
	missing := errors.Is(err, ErrNoEngine) || errors.Is(err, ErrNoImage)
	if missing && !slices.Contains(strings.Split(os.Getenv("MCPGYM_REQUIRE"), ","), "docker") {
		t.Skip(err)
	}
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, r.Close()) })
	p := r.(*programs)
	p.bound = bound
	return p
}

// stop stops the container that waits, for a while or until it is removed.
func stop(t *testing.T, p *programs, d time.Duration) {
	t.Helper()
	h := <-p.ready
	require.NoError(t, h.err)
	_, err := p.e.cli.ContainerPause(t.Context(), h.c.id, client.ContainerPauseOptions{})
	require.NoError(t, err)
	p.ready <- h
	if d > 0 {
		time.AfterFunc(d, func() {
			if _, err := p.e.cli.ContainerUnpause(t.Context(), h.c.id, client.ContainerUnpauseOptions{}); err != nil {
				t.Error(err)
			}
		})
	}
}

func timed(d time.Duration, script string) confine.Program {
	return confine.Program{Args: []string{"sh", "-c", script}, Time: d}
}

// What an engine takes before a program begins is no part of its time.
func TestSlowBegin(t *testing.T) {
	p := runnerOf(t, 20*time.Second)
	stop(t, p, 1500*time.Millisecond)
	start := time.Now()
	out, err := p.Run(t.Context(), timed(time.Second, "echo on"))
	require.NoError(t, err)
	require.Equal(t, confine.Output{Stdout: "on\n"}, out)
	require.Greater(t, time.Since(start), time.Second)
	out, err = p.Run(t.Context(), timed(300*time.Millisecond, "echo mcpgym-begin >&2; sleep 9")) // has begun already
	require.NoError(t, err)
	require.Equal(t, confine.Output{Exit: killed, Stderr: "mcpgym-begin\n", Over: "time"}, out)
}

// A program that does not begin is no program's fault.
func TestNotBegun(t *testing.T) {
	p := runnerOf(t, 500*time.Millisecond)
	stop(t, p, 0)
	_, err := p.Run(t.Context(), timed(time.Second, "echo on"))
	require.ErrorContains(t, err, "it has not begun")
	require.ErrorContains(t, err, "waited 500ms")
	p.bound = patience
	prog := timed(time.Second, "echo on")
	prog.Files = map[string]string{strings.Repeat("x", 300): ""}
	_, err = p.Run(t.Context(), prog)
	require.ErrorContains(t, err, "it has not begun")
	require.ErrorContains(t, err, "File name too long")
	out, err := p.Run(t.Context(), timed(0, "echo on"))
	require.NoError(t, err)
	require.Equal(t, confine.Output{Stdout: "on\n"}, out)
}

// What comes after a program's exit is not its time either, but who forges that does not go on for ever.
func TestSlowEnd(t *testing.T) {
	p := runnerOf(t, patience)
	const forged = `printf '\nmcpgym-exit 3\n' >&2; `
	out, err := p.Run(t.Context(), timed(300*time.Millisecond, forged+"sleep .6; echo on; exit 4"))
	require.NoError(t, err)
	require.Equal(t, confine.Output{Exit: 4, Stdout: "on\n", Stderr: "\nmcpgym-exit 3\n"}, out)
	out, err = p.Run(t.Context(), timed(300*time.Millisecond, forged+"sleep .1; while :; do echo 0123456789012345678901234567890123456789; done"))
	require.NoError(t, err)
	require.Equal(t, "output", out.Over)
	p.bound = 500 * time.Millisecond
	start := time.Now()
	_, err = p.Run(t.Context(), timed(300*time.Millisecond, forged+"sleep 99"))
	require.ErrorContains(t, err, "has not ended within 500ms of its exit")
	require.Less(t, time.Since(start), 10*time.Second)
}

func TestMarks(t *testing.T) {
	const all = "tar: a\nmcpgym-beginmcpgym-begin\nsome\nmcpgym-exit \nmcpgym-exit 1000\nmcpgym-begin\n\nmcpgym-exit 12\n"
	for n := 1; n <= len(all); n++ {
		o := &errorOutput{begun: make(chan struct{}), exited: make(chan struct{})}
		for i := 0; i < len(all); i += n {
			require.Equal(t, i >= len("tar: a\nmcpgym-beginmcpgym-begin\n"), closed(o.begun))
			require.False(t, closed(o.exited))
			piece := all[i:min(len(all), i+n)]
			k, err := o.Write([]byte(piece))
			require.NoError(t, err)
			require.Equal(t, len(piece), k)
		}
		require.True(t, closed(o.exited), "in pieces of %d", n)
		require.Equal(t, "some\nmcpgym-exit \nmcpgym-exit 1000\nmcpgym-begin\n\nmcpgym-exit 12\n", o.String())
		require.Less(t, len(o.last), 30)
	}
}
