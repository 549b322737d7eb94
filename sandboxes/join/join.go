// Package join makes one sandbox out of several: an agent sees the tools of all of them in one session.
package join

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/mcpgym/mcpgym/sandboxes"
)

// Part is a sandbox of the joined one. Its name says which part of a World's setup, of a question, and of a state is meant.
type Part struct {
	Name     string
	Provider sandboxes.Provider
}

// Box is an open sandbox of the joined one, with its part's name.
type Box struct {
	Name    string
	Sandbox sandboxes.Sandbox
}

// Boxes joins sandboxes that are open. The joined one owns them: its Close closes all. It is an error if one has no name, or
// two have the same; then they stay the caller's.
func Boxes(boxes ...Box) (sandboxes.Sandbox, error) {
	names := make([]string, len(boxes))
	for i, b := range boxes {
		names[i] = b.Name
	}
	if err := distinct(names); err != nil {
		return nil, err
	}
	return &sandbox{boxes: boxes}, nil
}

// distinct says what is wrong with the names of parts.
func distinct(names []string) error {
	seen := map[string]bool{}
	for _, n := range names {
		if n == "" || strings.Contains(n, "/") || seen[n] {
			return fmt.Errorf("join sandboxes: part %q needs a name of its own without a slash", n)
		}
		seen[n] = true
	}
	if len(names) == 0 {
		return errors.New("join sandboxes: there are none")
	}
	return nil
}

// Provider leases one sandbox of every part. World.Setup is a JSON object with a member for each part that needs a setup;
// all parts get the seed.
//
// Tools keep their names. Where two parts have a tool of one name, both are listed as part_tool, never one for the other.
type Provider struct {
	parts []Part
}

// New joins parts. It is an error if one has no name, or two have the same.
func New(parts ...Part) (*Provider, error) {
	names := make([]string, len(parts))
	for i, p := range parts {
		if names[i] = p.Name; p.Provider == nil {
			return nil, fmt.Errorf("join sandboxes: part %q needs a provider", p.Name)
		}
	}
	if err := distinct(names); err != nil {
		return nil, err
	}
	return &Provider{parts: parts}, nil
}

// Lease leases all parts at once. If one fails, the others are closed again.
func (p *Provider) Lease(ctx context.Context, w sandboxes.World) (sandboxes.Sandbox, error) {
	worlds, err := p.worlds(w)
	if err != nil {
		return nil, &sandboxes.Fault{Kind: sandboxes.FaultLease, Op: "join sandboxes", Msg: err.Error(), Err: err}
	}
	s := &sandbox{boxes: make([]Box, len(p.parts))}
	for i, part := range p.parts {
		s.boxes[i].Name = part.Name
	}
	err = s.each(func(i int) (err error) {
		s.boxes[i].Sandbox, err = p.parts[i].Provider.Lease(ctx, worlds[i])
		return err
	})
	if err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

// worlds splits a world into those of the parts.
func (p *Provider) worlds(w sandboxes.World) ([]sandboxes.World, error) {
	setup := map[string]json.RawMessage{}
	if len(w.Setup) > 0 {
		if err := json.Unmarshal(w.Setup, &setup); err != nil {
			return nil, fmt.Errorf("setup of the joined world: %w", err)
		}
	}
	out := make([]sandboxes.World, len(p.parts))
	for i, part := range p.parts {
		out[i] = sandboxes.World{Seed: w.Seed, Setup: setup[part.Name]}
		delete(setup, part.Name)
	}
	if len(setup) > 0 {
		return nil, fmt.Errorf("setup of the joined world: no part named %s", strings.Join(slices.Sorted(maps.Keys(setup)), ", "))
	}
	return out, nil
}

// Prefetch announces the parts' worlds to them.
func (p *Provider) Prefetch(worlds ...sandboxes.World) {
	for _, w := range worlds {
		split, err := p.worlds(w)
		if err != nil {
			continue // Lease will say so
		}
		for i, part := range p.parts {
			part.Provider.Prefetch(split[i])
		}
	}
}

// Identity holds the identities of all parts, as part/key.
func (p *Provider) Identity() sandboxes.Identity {
	out := sandboxes.Identity{}
	for _, part := range p.parts {
		for k, v := range part.Provider.Identity() {
			out[part.Name+"/"+k] = v
		}
	}
	return out
}

// Close closes all parts.
func (p *Provider) Close() error {
	var errs []error
	for _, part := range p.parts {
		errs = append(errs, part.Provider.Close())
	}
	return errors.Join(errs...)
}

// sandbox is sandbox and session in one.
type sandbox struct {
	boxes []Box

	mu    sync.Mutex
	seen  [][]sandboxes.Tool // the lists that tools and owner were made from
	tools []sandboxes.Tool
	owner map[string]call // by the name under which a tool is listed
}

// call is where a tool is, and its name there.
type call struct {
	part int
	name string
}

// each runs f for every part at once and names the part in what fails.
func (s *sandbox) each(f func(i int) error) error {
	errs := make([]error, len(s.boxes))
	var wg sync.WaitGroup
	for i := range s.boxes {
		wg.Go(func() {
			if err := f(i); err != nil {
				errs[i] = fmt.Errorf("%s: %w", s.boxes[i].Name, err)
			}
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

func (s *sandbox) Session() sandboxes.Session { return s }

func (s *sandbox) Close() error {
	return s.each(func(i int) error {
		if s.boxes[i].Sandbox == nil {
			return nil
		}
		return s.boxes[i].Sandbox.Close()
	})
}

// Tools lists the tools of all parts, in the order of the parts.
func (s *sandbox) Tools(ctx context.Context) ([]sandboxes.Tool, error) {
	lists := make([][]sandboxes.Tool, len(s.boxes))
	err := s.each(func(i int) (err error) {
		lists[i], err = s.boxes[i].Sandbox.Session().Tools(ctx)
		return err
	})
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if slices.EqualFunc(lists, s.seen, sameList) {
		return s.tools, nil
	}
	parts := map[string]int{} // that have a tool of this name
	for _, list := range lists {
		for _, t := range list {
			parts[t.Name]++
		}
	}
	s.seen, s.tools, s.owner = lists, nil, map[string]call{}
	for i, list := range lists {
		for _, t := range list {
			at := call{i, t.Name}
			if parts[t.Name] > 1 {
				t.Name = s.boxes[i].Name + "_" + t.Name
			}
			if _, taken := s.owner[t.Name]; taken {
				s.seen = nil
				return nil, &sandboxes.Fault{Kind: sandboxes.FaultProtocol, Op: "tools/list", Msg: fmt.Sprintf("two tools would be named %s", t.Name)}
			}
			s.owner[t.Name] = at
			s.tools = append(s.tools, t)
		}
	}
	return s.tools, nil
}

// sameList says whether two lists are one: sessions give the same slice as long as nothing has changed.
func sameList(a, b []sandboxes.Tool) bool {
	return len(a) == len(b) && (len(a) == 0 || &a[0] == &b[0])
}

// Call calls the tool in the part that has it.
func (s *sandbox) Call(ctx context.Context, name string, args json.RawMessage) (sandboxes.Result, error) {
	s.mu.Lock()
	listed := s.owner != nil
	at, ok := s.owner[name]
	s.mu.Unlock()
	if !listed {
		if _, err := s.Tools(ctx); err != nil {
			return sandboxes.Result{}, err
		}
		return s.Call(ctx, name, args)
	}
	if !ok {
		return sandboxes.Result{IsError: true, Code: -32602, Text: fmt.Sprintf("there is no tool %q", name)}, nil
	}
	return s.boxes[at.part].Sandbox.Session().Call(ctx, at.name, args)
}

// Probe asks each question of the part that its kind names: part/kind.
func (s *sandbox) Probe(ctx context.Context, ask []sandboxes.Question) ([]sandboxes.Answer, error) {
	out := make([]sandboxes.Answer, len(ask))
	for k, q := range ask {
		name, kind, _ := strings.Cut(q.Kind, "/")
		i := slices.IndexFunc(s.boxes, func(b Box) bool { return b.Name == name })
		if i < 0 {
			return nil, fmt.Errorf("probe %s: no part named %q", q.Kind, name)
		}
		answers, err := sandboxes.ProbeOf(ctx, s.boxes[i].Sandbox, []sandboxes.Question{{Kind: kind, Text: q.Text}})
		if err != nil {
			return nil, fmt.Errorf("probe %s: %w", q.Kind, err)
		}
		if len(answers) != 1 {
			return nil, fmt.Errorf("probe %s: %d answers", q.Kind, len(answers))
		}
		out[k] = answers[0]
	}
	return out, nil
}

// State joins the states of the parts that show one; the lines of their differences begin with the part's name. Where none
// shows one the error wraps errors.ErrUnsupported.
func (s *sandbox) State(ctx context.Context) (sandboxes.State, error) {
	states := make([]*sandboxes.State, len(s.boxes))
	err := s.each(func(i int) error {
		st, err := sandboxes.StateOf(ctx, s.boxes[i].Sandbox)
		if errors.Is(err, errors.ErrUnsupported) {
			return nil
		}
		states[i] = &st
		return err
	})
	if err != nil {
		return sandboxes.State{}, err
	}
	var out sandboxes.State
	order := make([]int, len(s.boxes))
	for i := range order {
		order[i] = i
	}
	slices.SortFunc(order, func(a, b int) int { return cmp.Compare(s.boxes[a].Name, s.boxes[b].Name) })
	h := sha256.New()
	shown := false
	for _, i := range order {
		st := states[i]
		if st == nil {
			continue
		}
		shown = true
		fmt.Fprintf(h, "%s %s\n", s.boxes[i].Name, st.Hash)
		for _, d := range st.Diff {
			out.Diff = append(out.Diff, s.boxes[i].Name+": "+d)
		}
		out.More += st.More
	}
	if !shown {
		return out, fmt.Errorf("read the state of joined worlds that show none: %w", errors.ErrUnsupported)
	}
	out.Hash = hex.EncodeToString(h.Sum(nil)[:16])
	return out, nil
}
