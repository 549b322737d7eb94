package bench

import "testing"

func TestLint(t *testing.T) { reproduce(t, "Lint-v0") }

func BenchmarkLint(b *testing.B) { speed(b, "Lint-v0") }
