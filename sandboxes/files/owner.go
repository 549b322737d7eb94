package files

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/mcpgym/mcpgym/sandboxes/internal/owner"
)

// prefix begins the name of the folder that a provider keeps its trees in; the name of its process follows.
const prefix = "mcpgym-files-"

// newHome makes a folder for trees, in memory where there is room, and removes those of processes that are no more. The folder
// that it lies in belongs to it, and is closed to other users.
func newHome() (string, error) {
	dir := memory()
	if dir == "" {
		dir = os.TempDir()
	}
	sweep(dir)
	private, err := os.MkdirTemp(dir, prefix+owner.Self()+"-")
	if err != nil {
		return "", fmt.Errorf("make a folder for file trees: %w", err)
	}
	home := filepath.Join(private, "trees")
	if err := os.Mkdir(home, 0o700); err != nil {
		return "", errors.Join(fmt.Errorf("make a folder for file trees: %w", err), os.RemoveAll(private))
	}
	return home, nil
}

// sweep removes what dead processes have left.
func sweep(dir string) {
	all, _ := filepath.Glob(filepath.Join(dir, prefix+"*")) // fails only on a bad pattern
	for _, home := range all {
		name := strings.TrimPrefix(filepath.Base(home), prefix)
		if i := strings.LastIndexByte(name, '-'); i > 0 && owner.Gone(name[:i], true) {
			os.RemoveAll(home) // another process may be at it, too
		}
	}
}
