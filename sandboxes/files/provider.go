package files

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strconv"
	"sync/atomic"

	"github.com/mcpgym/mcpgym/sandboxes"
	"github.com/mcpgym/mcpgym/sandboxes/mcpmem"
)

// Provider leases file trees: each lease is a fresh folder of this machine. It is a sandboxes.Provider.
type Provider struct {
	*sandboxes.Pool
	id     sandboxes.Identity
	setup  func(sandboxes.World) (Setup, error)
	served *mcpmem.Provider[*tree]
	home   string // holds the trees; it is in a folder that is open to this process's user alone
	owner  int    // user that they belong to, -1 for this process's
	link   *link  // to what serves them, nil where this process does
}

// Driver opens a provider: New, or what serves the trees elsewhere. The parameters are New's.
type Driver func(id sandboxes.Identity, setup func(sandboxes.World) (Setup, error), size int) (*Provider, error)

// New returns a provider of the trees that setup describes, which this process serves; Decode is the setup of worlds that hold
// their tree themselves. Equal worlds must have equal setups. Where a lease must take less than a tenth of a millisecond, a large
// tree is better made from the seed: setups are compared as a whole. It keeps up to size of those that were announced ready. The
// version of the tools is added to id.
//
// The trees lie in memory where that is a folder with room, and go with Close. What a process leaves that was killed is
// removed by the next New, on Linux.
func New(id sandboxes.Identity, setup func(sandboxes.World) (Setup, error), size int) (*Provider, error) {
	p, err := newProvider(id, setup)
	if err != nil {
		return nil, err
	}
	p.start(size)
	return p, nil
}

// newProvider returns a provider that has not started.
func newProvider(id sandboxes.Identity, setup func(sandboxes.World) (Setup, error)) (*Provider, error) {
	p := &Provider{id: sandboxes.Identity{"files tools": Version}, setup: setup, owner: -1}
	maps.Copy(p.id, id)
	var err error
	p.served, err = mcpmem.New(newServer(), p.id, func(sandboxes.World) (*tree, error) {
		return nil, errors.New("file trees are served, not opened")
	})
	if err != nil {
		return nil, err
	}
	if p.home, err = newHome(); err != nil {
		return nil, errors.Join(err, p.served.Close())
	}
	return p, nil
}

// serve makes a sandbox of a tree.
func (p *Provider) serve(ctx context.Context, t *tree) (sandboxes.Sandbox, error) {
	if p.link != nil {
		return p.link.open(ctx, t)
	}
	s := p.served.Serve(t)
	return &box{s.Session(), t, s.Close}, nil
}

// start begins to lease trees.
func (p *Provider) start(size int) {
	var count atomic.Int64
	p.Pool = sandboxes.NewPool(p.id, size, func(ctx context.Context, w sandboxes.World) (sandboxes.Sandbox, error) {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		s, err := p.setup(w)
		if err != nil {
			return nil, fmt.Errorf("setup of world %d: %w", w.Seed, err)
		}
		t, err := newTree(filepath.Join(p.home, strconv.FormatInt(count.Add(1), 10)), s, p.owner)
		if err != nil {
			return nil, fmt.Errorf("make the tree of world %d: %w", w.Seed, err)
		}
		box, err := p.serve(ctx, t)
		if err != nil {
			return nil, errors.Join(err, t.Close())
		}
		return box, nil
	})
}

// Close removes every tree.
func (p *Provider) Close() error { return errors.Join(p.Pool.Close(), p.end()) }

// end frees what is not the pool's.
func (p *Provider) end() error {
	var err error
	if p.link != nil {
		err = p.link.close()
	}
	return errors.Join(err, p.served.Close(), os.RemoveAll(filepath.Dir(p.home)))
}

// newTree makes the tree of a setup in a folder that does not exist yet, and that the tree owns. Its files belong to a user, -1
// for this process's.
func newTree(dir string, s Setup, owner int) (*tree, error) {
	nodes, err := s.nodes()
	if err != nil {
		return nil, err
	}
	if err := makeFolder(dir, owner); err != nil {
		return nil, err
	}
	t, err := openTree(dir, s.Limits)
	if err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	t.folder, t.start = dir, pictureOf(nodes)
	for _, n := range nodes {
		t.entries++
		t.bytes += int64(len(n.data))
	}
	if err := errors.Join(t.grow(0, 0), build(dir, nodes, owner)); err != nil {
		return nil, errors.Join(err, t.Close())
	}
	return t, nil
}

// build makes what is in a fresh folder. It goes by paths of the host, which is three times as fast as by a root: nobody else
// has been there yet.
func build(dir string, nodes []node, owner int) error {
	for _, n := range nodes {
		p := filepath.Join(dir, n.name)
		if n.mode.IsDir() {
			if err := makeFolder(p, owner); err != nil {
				return err
			}
			continue
		}
		f, err := os.OpenFile(p, os.O_WRONLY|os.O_CREATE|os.O_EXCL, n.mode)
		if err != nil {
			return err
		}
		_, err = f.Write(n.data)
		if owner >= 0 {
			err = errors.Join(err, f.Chown(owner, owner))
		}
		if err := errors.Join(err, f.Chmod(n.mode), f.Close()); err != nil { // no umask
			return err
		}
	}
	return nil
}

func makeFolder(p string, owner int) error {
	if err := os.Mkdir(p, folderMode); err != nil {
		return err
	}
	if owner >= 0 {
		if err := os.Chown(p, owner, owner); err != nil {
			return err
		}
	}
	return os.Chmod(p, folderMode) // no umask
}

// openTree opens a folder as a tree.
func openTree(dir string, l Limits) (*tree, error) {
	l = l.withDefaults()
	if l.Bytes < 0 || l.Entries < 0 || l.Result < minResult || l.Result > maxResult {
		return nil, fmt.Errorf("limits %+v: none may be negative, and a result shows %d bytes or more, and up to %d", l, minResult, maxResult)
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, err
	}
	return &tree{root: root, limits: l}, nil
}
