package bench

import "testing"

func TestDBA(t *testing.T) { reproduce(t, "DBA-v0") }

func BenchmarkDBA(b *testing.B) { speed(b, "DBA-v0") }
