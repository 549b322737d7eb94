package files

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/mcpgym/mcpgym/sandboxes"
)

// maxDiff bounds the differences that a state names.
const maxDiff = 50

// State is over the paths, types, permissions and contents of all that is in the tree, read from the folder itself: what a
// tool has answered does not count. Its differences are those of Difference.
func (t *tree) State(ctx context.Context) (sandboxes.State, error) {
	if err := ctx.Err(); err != nil {
		return sandboxes.State{}, err
	}
	t.mu.RLock()
	defer t.mu.RUnlock()
	now, err := t.look()
	if err := errors.Join(t.usable(), err); err != nil {
		return sandboxes.State{}, sandboxes.NewFault(sandboxes.FaultVerifier, "read the state", err)
	}
	diff := difference(t.start, now)
	return sandboxes.State{Hash: now.hash(), Diff: diff[:min(len(diff), maxDiff)], More: max(0, len(diff)-maxDiff)}, nil
}

// Probe answers questions about a path:
//
//	text  the content of the file; null where there is none. An error for what is no text
//	type  "file" or "directory"; null where there is nothing
//	list  the paths of all that is under the folder, as directory_tree lists them; null where there is none
//
// A part of a joined sandbox is asked by its name as well: files/text where it is named files.
func (t *tree) Probe(ctx context.Context, ask []sandboxes.Question) ([]sandboxes.Answer, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	t.mu.RLock()
	defer t.mu.RUnlock()
	out := make([]sandboxes.Answer, len(ask))
	for i, q := range ask {
		v, err := t.probe(q)
		if f, ok := errors.AsType[*sandboxes.Fault](errors.Join(t.usable(), err)); ok {
			return nil, f
		}
		if err != nil {
			out[i].Err = err.Error()
			continue
		}
		if out[i].Value, err = encode(v); err != nil {
			return nil, err
		}
	}
	return out, nil
}

func (t *tree) probe(q sandboxes.Question) (any, error) {
	if q.Kind != "text" && q.Kind != "type" && q.Kind != "list" {
		return nil, fmt.Errorf("a file tree answers questions of kind text, type and list, not %q", q.Kind)
	}
	name, err := t.nameOf(q.Text)
	if err != nil {
		return nil, err
	}
	if !t.exists(name) {
		return json.RawMessage("null"), nil
	}
	fi, err := t.find(name)
	switch {
	case err != nil:
		return nil, err
	case q.Kind == "type":
		return kind(fi), nil
	case q.Kind == "text":
		return t.text(name)
	case !fi.IsDir():
		return nil, fmt.Errorf("%s is a file, not a folder", show(name))
	}
	return t.paths(name, nil)
}
