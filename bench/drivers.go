package bench

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/mcpgym/mcpgym/envs"
	"github.com/mcpgym/mcpgym/envs/files"
	"github.com/mcpgym/mcpgym/sandboxes"
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

// served is a provider that ends its server when it is closed.
type served struct {
	sandboxes.Provider
	server *postgres.Server
}

func (s served) Close() error { return errors.Join(s.Provider.Close(), s.server.Close()) }

func containerPostgres(ctx context.Context) (*postgres.Server, error) {
	return postgres.Start(ctx, func(ctx context.Context) (i postgres.Instance, err error) {
		i.Dir, i.Ended, i.Stop, err = container.Postgres(ctx, container.PostgresImage, postgres.Settings()...)
		return i, err
	})
}

// onFiles opens the environment of file trees: they are served by this process, or by a program in a container.
func onFiles(ctx context.Context, driver string) (envs.Spec, error) {
	if driver == "local" {
		return files.Spec(trees.New)
	}
	return files.Spec(func(id sandboxes.Identity, setup func(sandboxes.World) (trees.Setup, error), size int) (*trees.Provider, error) {
		p, err := trees.Remote(ctx, id, setup, size, func(ctx context.Context, home string, stderr io.Writer) (io.ReadWriteCloser, error) {
			return container.Files(ctx, container.FilesImage, home, stderr)
		})
		if err != nil {
			return nil, fmt.Errorf("open the driver %s: %w", driver, err)
		}
		return p, nil
	})
}
