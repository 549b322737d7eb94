package envs

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/mcpgym/mcpgym/sandboxes"
)

var (
	// ErrNotReset is returned by Step before the first Reset.
	ErrNotReset = errors.New("step before reset")
	// ErrDone is returned by Step after the end of the episode. Nothing is paid twice.
	ErrDone = errors.New("the episode is over")
)

// Env plays the episodes of a Spec, one after the other, each in a sandbox of its own. It is the only environment there is.
// An Env is used by one goroutine at a time; make one per worker.
type Env struct {
	spec Spec
	box  sandboxes.Sandbox
	ts   *toolset
	t    *Trajectory
	sent []sentCall // what was sent to the server in this episode, for the question who is to blame
	turn int        // where in sent the current turn begins
	done bool
	used int  // calls so far
	over bool // a call was asked for when none was left
	last time.Time
}

type sentCall struct {
	name string
	args json.RawMessage
}

// New returns an Env for a spec, or says what is wrong with the spec.
func New(spec Spec) (*Env, error) {
	if err := spec.Validate(); err != nil {
		return nil, err
	}
	return &Env{spec: spec}, nil
}

// Spec returns what New was given.
func (e *Env) Spec() Spec { return e.spec }

// Reset ends the running episode, if any, and starts one in a fresh sandbox. The observation holds the prompt. An error is
// ctx's, or a *sandboxes.Fault; the next Reset starts anew.
func (e *Env) Reset(ctx context.Context, task Task) (Observation, error) {
	if err := e.Close(); err != nil {
		return Observation{}, err
	}
	e.t = &Trajectory{Version: TrajectoryVersion, Env: e.spec.Name, Identity: e.spec.Sandboxes.Identity(), Limits: e.spec.Limits, Task: task, System: cmp.Or(task.System, e.spec.System)}
	e.sent, e.used, e.over, e.done = e.sent[:0], 0, false, true
	op := fmt.Sprintf("reset %s to task %s", e.spec.Name, task.ID)
	if err := e.open(ctx, task.World); err != nil {
		return Observation{}, e.void(ctx, op, sandboxes.FaultLease, err)
	}
	e.t.Tools, e.done = e.ts.list, false
	e.last = time.Now().Add(e.spec.Limits.Episode)
	return Observation{Text: task.Prompt}, nil
}

// open leases a sandbox and reads its tools.
func (e *Env) open(ctx context.Context, w sandboxes.World) error {
	box, err := e.spec.Sandboxes.Lease(ctx, w)
	if err != nil {
		return err
	}
	e.box = box
	cctx, cancel := context.WithTimeout(ctx, e.spec.Limits.Call)
	defer cancel()
	list, err := box.Session().Tools(cctx)
	if err != nil {
		if cctx.Err() != nil && ctx.Err() == nil {
			return &sandboxes.Fault{Kind: sandboxes.FaultHung, Op: "tools/list", Msg: fmt.Sprintf("no answer within %v", e.spec.Limits.Call)}
		}
		return err
	}
	if e.ts != nil && len(list) > 0 && len(list) == len(e.ts.list) && &list[0] == &e.ts.list[0] {
		return nil // the very list that is compiled already
	}
	ts, err := compileTools(list)
	if err != nil {
		return &sandboxes.Fault{Kind: sandboxes.FaultProtocol, Op: "tools/list", Msg: err.Error(), Err: err}
	}
	e.ts = ts
	return nil
}

// void ends the episode without a score and returns the error for the caller.
func (e *Env) void(ctx context.Context, op string, kind sandboxes.FaultKind, err error) error {
	e.done = true
	if ctx.Err() != nil {
		e.t.Void = &sandboxes.Fault{Kind: sandboxes.FaultClosed, Op: op, Msg: ctx.Err().Error()}
		return fmt.Errorf("%s: %w", op, ctx.Err())
	}
	f := sandboxes.NewFault(kind, op, err)
	e.t.Void = f
	return fmt.Errorf("%s: %w", op, f)
}

// Trajectory is the record of the current episode, nil before the first Reset. It belongs to the caller once the episode is
// over.
func (e *Env) Trajectory() *Trajectory { return e.t }

// Close frees the sandbox. An episode that is closed before its end is abandoned: void. Close may be called twice.
func (e *Env) Close() error {
	if e.t != nil && !e.done {
		e.done = true
		e.t.Void = &sandboxes.Fault{Kind: sandboxes.FaultClosed, Op: "close " + e.t.Task.ID, Msg: "the episode was closed before its end"}
	}
	if e.box == nil {
		return nil
	}
	err := e.box.Close()
	e.box = nil
	if err != nil {
		return fmt.Errorf("close the sandbox of %s: %w", e.spec.Name, err)
	}
	return nil
}

// Step plays one turn. What the agent does wrong is an observation, never an error. An error is ErrNotReset, ErrDone, ctx's
// error, or a *sandboxes.Fault; with the last two the episode is void.
func (e *Env) Step(ctx context.Context, a Action) (Step, error) {
	if e.t == nil {
		return Step{}, ErrNotReset
	}
	if e.done {
		return Step{}, ErrDone
	}
	if err := ctx.Err(); err != nil {
		return Step{}, e.void(ctx, e.op(), sandboxes.FaultClosed, err)
	}
	action, args := clean(a)
	s := Step{Action: action}
	var end End
	if len(a.Calls) == 0 {
		end = EndAnswer
	} else {
		e.turn = len(e.sent)
		results, err := e.calls(ctx, action.Calls, args)
		if err != nil {
			return Step{}, e.void(ctx, e.op(), sandboxes.FaultDied, err)
		}
		s.Observation.Results = results
		switch {
		case results[len(results)-1].Status == StatusKilled:
			end = EndKilled
		case e.over:
			end = EndCalls
		case len(e.t.Steps)+1 >= e.spec.Limits.Turns:
			end = EndTurns
		case time.Now().After(e.last):
			end = EndTime
		}
	}
	var err error
	if end != "" {
		end, err = e.look(ctx, end)
	}
	s.Terminated = end == EndAnswer || end == EndKilled
	s.Truncated = end != "" && !s.Terminated
	e.t.Steps = append(e.t.Steps, s)
	if end == "" || err != nil {
		return s, err
	}
	if err := e.score(ctx); err != nil {
		return s, err
	}
	s.Score = e.t.Score
	return s, nil
}

// op names the step that is being made, for errors.
func (e *Env) op() string { return fmt.Sprintf("step %d of %s", len(e.t.Steps), e.t.Task.ID) }

// look ends the episode: it reads what the verifier needs, out-of-band. Where the verifier fails the same calls are played
// in a fresh sandbox: if it fails there too the agent has done something to it, and has thereby ended its sandbox.
func (e *Env) look(ctx context.Context, end End) (End, error) {
	op := "end of " + e.t.Task.ID
	e.done = true
	if end != EndKilled { // nothing would be left to look at
		err := e.verify(ctx, e.box)
		if err != nil && ctx.Err() == nil && e.blinded(ctx) {
			e.t.State, e.t.Probes, end, err = nil, nil, EndKilled, nil
		}
		if err != nil {
			return end, e.void(ctx, op, sandboxes.FaultVerifier, err)
		}
	}
	e.t.End = end
	return end, nil
}

// verify reads state and probes of a sandbox into the record.
func (e *Env) verify(ctx context.Context, box sandboxes.Sandbox) error {
	state, err := sandboxes.StateOf(ctx, box)
	if err == nil {
		e.t.State = &state
	} else if !errors.Is(err, errors.ErrUnsupported) {
		return err
	}
	n := len(e.t.Task.Assertions)
	if n == 0 {
		return nil
	}
	ask := make([]sandboxes.Question, n)
	for i, as := range e.t.Task.Assertions {
		ask[i] = as.Ask
	}
	if e.t.Probes, err = sandboxes.ProbeOf(ctx, box, ask); err != nil {
		return err
	}
	if len(e.t.Probes) != n {
		return fmt.Errorf("%d questions, %d answers", n, len(e.t.Probes))
	}
	for i, as := range e.t.Task.Assertions {
		if as.Report && e.t.Probes[i].Err != "" {
			return fmt.Errorf("the verifier reports nothing: %s", e.t.Probes[i].Err)
		}
	}
	return nil
}

// blinded says whether the verifier fails in a fresh sandbox, too, once the agent's calls were played there, although it can
// look at the world before them.
func (e *Env) blinded(ctx context.Context) bool {
	if len(e.sent) == 0 {
		return false
	}
	box, err := e.spec.Sandboxes.Lease(ctx, e.t.Task.World)
	if err != nil {
		return false
	}
	defer box.Close()
	if e.verify(ctx, box) != nil {
		return false
	}
	results, _ := e.resend(ctx, box)
	return len(results) == len(e.sent) && e.verify(ctx, box) != nil && ctx.Err() == nil
}

func (e *Env) score(ctx context.Context) error {
	score, err := e.spec.Reward.Score(e.t)
	if err != nil {
		return e.void(ctx, "end of "+e.t.Task.ID, sandboxes.FaultVerifier, fmt.Errorf("score: %w", err))
	}
	e.t.Score = &score
	return nil
}

// calls runs the calls of one turn: in order, at once only if all are read-only and no two are the same. args are their
// arguments as decoded.
func (e *Env) calls(ctx context.Context, calls []Call, args []any) ([]CallResult, error) {
	out := make([]CallResult, 0, len(calls))
	if !e.concurrent(calls) {
		for i, c := range calls {
			r, err := e.call(ctx, c, args[i])
			if err != nil {
				return nil, err
			}
			out = append(out, r)
			if r.Status == StatusKilled {
				break
			}
		}
		return out, nil
	}
	out = out[:len(calls)]
	prepared := make([]*compiledTool, len(calls))
	for i, c := range calls {
		out[i], prepared[i] = e.prepare(c, args[i])
	}
	errs := make([]error, len(calls))
	var wg sync.WaitGroup
	for i, c := range calls {
		if prepared[i] != nil {
			wg.Go(func() { errs[i] = e.send(ctx, e.box.Session(), prepared[i], c, &out[i]) })
		}
	}
	wg.Wait()
	first := slices.IndexFunc(errs, func(err error) bool { return err != nil })
	if first < 0 {
		return out, nil
	}
	// One call ended the sandbox, and others with it. Which one, and what the others would have seen, the replay says, which
	// sends them in order.
	replayed, died := e.replay(ctx)
	if !died {
		return nil, errs[first]
	}
	replayed = replayed[e.turn:]
	for i := range out {
		switch {
		case prepared[i] == nil:
			continue
		case len(replayed) == 0:
			out[i].kill()
			return out[:i+1], nil
		case errs[i] != nil:
			replayed[0].ID, replayed[0].Unknown = out[i].ID, out[i].Unknown
			out[i] = replayed[0]
		}
		replayed = replayed[1:]
	}
	return nil, errs[first]
}

func (e *Env) concurrent(calls []Call) bool {
	if len(calls) < 2 || e.used+len(calls) > e.spec.Limits.Calls {
		return false
	}
	for i, c := range calls {
		if t := e.ts.byName[c.Name]; t != nil && !t.ReadOnly {
			return false
		}
		for _, d := range calls[:i] {
			if c.Name == d.Name && bytes.Equal(c.Arguments, d.Arguments) {
				return false
			}
		}
	}
	return true
}

// call runs one call from its check to its result.
func (e *Env) call(ctx context.Context, c Call, args any) (CallResult, error) {
	r, tool := e.prepare(c, args)
	if tool == nil {
		return r, nil
	}
	if err := e.send(ctx, e.box.Session(), tool, c, &r); err != nil {
		if _, died := e.replay(ctx); !died {
			return r, err
		}
		r.kill()
	}
	return r, nil
}

// prepare judges a call before it is sent. Where it must not be sent, the tool is nil and the result says why. Here the
// table of bad calls is kept: what an agent does wrong, it is told, and the episode goes on.
func (e *Env) prepare(c Call, args any) (CallResult, *compiledTool) {
	r := CallResult{ID: c.ID, Name: c.Name, IsError: true}
	refuse := func(status Status, text string) (CallResult, *compiledTool) {
		r.Status, r.Text = status, text
		r.cut(e.spec.Limits.ResultBytes) // the text may quote what the agent wrote
		return r, nil
	}
	if e.used >= e.spec.Limits.Calls {
		e.over = true
		return refuse(StatusLimit, fmt.Sprintf("not run: the limit of %d calls an episode is reached", e.spec.Limits.Calls))
	}
	e.used++
	tool := e.ts.byName[c.Name]
	if tool == nil {
		return refuse(StatusUnknown, e.ts.unknownTool(c.Name))
	}
	if c.Malformed != "" {
		return refuse(StatusMalformed, fmt.Sprintf("the call of %s cannot be read: %s; send its arguments as one JSON object", c.Name, malformedWhy(c.Malformed)))
	}
	check := tool.check(args)
	r.Unknown = check.unknown
	if check.status != StatusOK {
		return refuse(check.status, check.text)
	}
	e.sent = append(e.sent, sentCall{c.Name, c.args()})
	return r, tool
}

// args gives the arguments to send: none are an empty object.
func (c Call) args() json.RawMessage {
	if len(c.Arguments) == 0 {
		return json.RawMessage("{}")
	}
	return c.Arguments
}

func malformedWhy(text string) string {
	if _, err := DecodeJSON([]byte(text)); err != nil {
		return err.Error()
	}
	return "it is not a tool call"
}

// send sends a checked call and fills in its result. An error is ctx's or a fault whose author is not known yet.
func (e *Env) send(ctx context.Context, session sandboxes.Session, tool *compiledTool, c Call, r *CallResult) error {
	limit := e.spec.Limits.Call
	cctx, cancel := context.WithTimeout(ctx, limit)
	res, err := session.Call(cctx, c.Name, c.args())
	late := cctx.Err() != nil
	cancel()
	switch {
	case err == nil:
		out := tool.checkResult(res, e.spec.Limits.ResultBytes)
		out.ID, out.Name, out.Unknown = c.ID, c.Name, r.Unknown
		*r = out
		return nil
	case ctx.Err() != nil:
		return ctx.Err()
	case !late:
		return sandboxes.NewFault(sandboxes.FaultDied, "call "+c.Name, err)
	}
	// The call took too long, which an agent can cause. The server is at fault only if it no longer answers at all.
	pctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	if _, err := session.Tools(pctx); err != nil {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		return &sandboxes.Fault{Kind: sandboxes.FaultHung, Op: "call " + c.Name, Msg: fmt.Sprintf("no answer within %v, nor to tools/list after it", limit), Err: err}
	}
	r.Status, r.Text = StatusLimit, fmt.Sprintf("stopped: %s was over the limit of %v for one call", c.Name, limit)
	if !tool.ReadOnly {
		r.Text += "; whether it took effect is unknown, and it is not sent again"
	}
	return nil
}

// replay tells whose doing the death of the sandbox is. It sends the calls of the episode once more, to a fresh sandbox of
// the same world: if that dies in the same turn, the agent did it. The results are those of the calls before its death.
func (e *Env) replay(ctx context.Context) (results []CallResult, died bool) {
	if ctx.Err() != nil {
		return nil, false
	}
	box, err := e.spec.Sandboxes.Lease(ctx, e.t.Task.World)
	if err != nil {
		return nil, false
	}
	defer box.Close()
	return e.resend(ctx, box)
}

// resend plays the calls of the episode in another sandbox. died says that it died in the turn that is being made.
func (e *Env) resend(ctx context.Context, box sandboxes.Sandbox) (results []CallResult, died bool) {
	for i, s := range e.sent {
		r := CallResult{Name: s.name, IsError: true}
		if err := e.send(ctx, box.Session(), e.ts.byName[s.name], Call{Name: s.name, Arguments: s.args}, &r); err != nil {
			return results, i >= e.turn && ctx.Err() == nil
		}
		results = append(results, r)
	}
	return results, false
}

// kill makes r the result of a call that ended the sandbox.
func (r *CallResult) kill() {
	r.Status, r.IsError = StatusKilled, true
	r.Text = fmt.Sprintf("the sandbox ended during this call of %s, and a fresh one does too; the episode is over", r.Name)
}

// clean makes an action safe to record: the record must read back as what was played. It also gives the decoded arguments of
// each call, nil where they are malformed.
func clean(a Action) (Action, []any) {
	a.Text, a.Reasoning = valid(a.Text), valid(a.Reasoning)
	if len(a.Calls) == 0 {
		a.Calls = nil
		return a, nil
	}
	calls, args := make([]Call, len(a.Calls)), make([]any, len(a.Calls))
	for i, c := range a.Calls {
		c.ID, c.Name = valid(c.ID), valid(c.Name)
		if c.ID == "" {
			c.ID = fmt.Sprintf("call_%d", i)
		}
		if c.Malformed == "" {
			var err error
			if args[i], err = DecodeJSON(c.args()); err != nil { // too deep, too, for a record that must be readable
				c.Malformed, c.Arguments = string(c.Arguments), nil
			}
		}
		c.Malformed = valid(c.Malformed)
		if len(c.Arguments) > 0 && bytes.ContainsAny(c.Arguments, " \t\r\n") {
			var b bytes.Buffer
			if json.Compact(&b, c.Arguments) == nil {
				c.Arguments = b.Bytes()
			}
		}
		calls[i] = c
	}
	a.Calls = calls
	return a, args
}

func valid(s string) string {
	if utf8.ValidString(s) {
		return s
	}
	return strings.ToValidUTF8(s, "\uFFFD")
}
