//go:build !linux || !(amd64 || arm64)

package confine

import (
	"context"
	"fmt"
)

// Local runs programs of this machine confined, which takes Linux on amd64 or arm64: its error wraps ErrUnavailable.
func Local(context.Context) (Runner, error) {
	return nil, fmt.Errorf("%w: that takes Linux on amd64 or arm64, or a Docker engine and package container", ErrUnavailable)
}
