package engine

import "errors"

// ErrNotFinite is wrapped by the error of a Step, or of a Pass, whose numbers are not finite.
var ErrNotFinite = errors.New("not a finite number")

// ErrTooLong is wrapped by the error of a Generate whose prompt leaves the model no room.
var ErrTooLong = errors.New("the conversation is longer than the model takes")
