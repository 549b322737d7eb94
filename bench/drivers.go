package bench

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/mcpgym/mcpgym/envs"
	"github.com/mcpgym/mcpgym/envs/files"
	"github.com/mcpgym/mcpgym/envs/lint"
	"github.com/mcpgym/mcpgym/sandboxes"
	"github.com/mcpgym/mcpgym/sandboxes/confine"
	"github.com/mcpgym/mcpgym/sandboxes/container"
	trees "github.com/mcpgym/mcpgym/sandboxes/files"
	"github.com/mcpgym/mcpgym/sandboxes/postgres"
)

// onPostgres opens an environment on a database server of its own, which ends with the environment's sandboxes.
func onPostgres(open func(context.Context, *postgres.Server) (envs.Spec, error)) func(context.Context, string) (envs.Spec, error) {
	return func(ctx context.Context, driver string) (envs.Spec, error) {
		start := postgres.Local
		if driver == "container" {
			start = containerPostgres
		}
		server, err := start(ctx)
		if err != nil {
			return envs.Spec{}, fmt.Errorf("open the driver %s: %w", driver, err)
		}
		spec, err := open(ctx, server)
		if err != nil {
			return envs.Spec{}, errors.Join(err, server.Close())
		}
		spec.Sandboxes = served{spec.Sandboxes, server}
		return spec, nil
	}
}

// served is a provider that ends what serves it when it is closed.
type served struct {
	sandboxes.Provider
	server io.Closer
}

func (s served) Close() error { return errors.Join(s.Provider.Close(), s.server.Close()) }

func containerPostgres(ctx context.Context) (*postgres.Server, error) {
	return postgres.Start(ctx, func(ctx context.Context) (i postgres.Instance, err error) {
		i.Dir, i.Ended, i.Stop, err = container.Postgres(ctx, container.PostgresImage, postgres.Settings()...)
		return i, err
	})
}

// treesOn opens providers of file trees, which are served by this process, or by a program in a container.
func treesOn(ctx context.Context, driver string) trees.Driver {
	if driver == "local" {
		return trees.New
	}
	return func(id sandboxes.Identity, setup func(sandboxes.World) (trees.Setup, error), size int) (*trees.Provider, error) {
		p, err := trees.Remote(ctx, id, setup, size, func(ctx context.Context, home string, stderr io.Writer) (io.ReadWriteCloser, error) {
			return container.Files(ctx, container.FilesImage, home, stderr)
		})
		if err != nil {
			return nil, fmt.Errorf("open the driver %s: %w", driver, err)
		}
		return p, nil
	}
}

func onFiles(ctx context.Context, driver string) (envs.Spec, error) {
	return files.Spec(treesOn(ctx, driver))
}

// confined opens an environment that runs programs confined, by bubblewrap or each in a container. Closing the environment's
// sandboxes ends what runs them.
func confined(ctx context.Context, driver string, open func(confine.Runner) (envs.Spec, error)) (envs.Spec, error) {
	start := confine.Local
	if driver == "container" {
		start = func(ctx context.Context) (confine.Runner, error) {
			return container.Programs(ctx, container.ToolsImage)
		}
	}
	run, err := start(ctx)
	if err != nil {
		return envs.Spec{}, fmt.Errorf("open the driver %s: %w", driver, err)
	}
	spec, err := open(run)
	if err != nil {
		return envs.Spec{}, errors.Join(err, run.Close())
	}
	spec.Sandboxes = served{spec.Sandboxes, run}
	return spec, nil
}

func onLint(ctx context.Context, driver string) (envs.Spec, error) {
	return confined(ctx, driver, func(run confine.Runner) (envs.Spec, error) { return lint.Spec(ctx, treesOn(ctx, driver), run) })
}

// onAll opens an environment of databases with trees whose code is linted.
func onAll(open func(context.Context, *postgres.Server, trees.Driver, confine.Runner) (envs.Spec, error)) func(context.Context, string) (envs.Spec, error) {
	return func(ctx context.Context, driver string) (envs.Spec, error) {
		return confined(ctx, driver, func(run confine.Runner) (envs.Spec, error) {
			return onPostgres(func(ctx context.Context, s *postgres.Server) (envs.Spec, error) {
				return open(ctx, s, treesOn(ctx, driver), run)
			})(ctx, driver)
		})
	}
}
