package sandboxes

import (
	"context"
	"errors"
	"fmt"
)

// FaultKind says how a sandbox failed.
type FaultKind string

const (
	FaultLease    FaultKind = "lease"    // no sandbox could be had
	FaultDied     FaultKind = "died"     // the server is gone
	FaultHung     FaultKind = "hung"     // the server does not answer, and no call of the agent is to blame
	FaultProtocol FaultKind = "protocol" // the server's answer is not MCP
	FaultLost     FaultKind = "lost"     // the connection broke after a call was sent: whether it happened is unknown
	FaultVerifier FaultKind = "verifier" // probes, state or reward could not be had
	FaultClosed   FaultKind = "closed"   // the episode was closed before its end
)

// Fault is a failure of the sandbox, the judge or the network: nobody's reward. An episode that meets one is void.
type Fault struct {
	Kind FaultKind `json:"kind"`
	Op   string    `json:"op"`  // what was being done to what
	Msg  string    `json:"msg"` // what went wrong
	Err  error     `json:"-"`   // the cause, where there is one
}

// NewFault makes a Fault from its cause. If err already is one, it is returned as it is: the first boundary names the fault.
func NewFault(kind FaultKind, op string, err error) *Fault {
	if f, ok := errors.AsType[*Fault](err); ok {
		return f
	}
	return &Fault{Kind: kind, Op: op, Msg: err.Error(), Err: err}
}

func (f *Fault) Error() string { return fmt.Sprintf("%s: sandbox fault (%s): %s", f.Op, f.Kind, f.Msg) }
func (f *Fault) Unwrap() error { return f.Err }

// Interrupted says whether err came from the caller's own context: then it is nobody's fault.
func Interrupted(ctx context.Context, err error) bool {
	return err != nil && ctx.Err() != nil && errors.Is(err, ctx.Err())
}
