package bench

import "testing"

func TestFiles(t *testing.T) { reproduce(t, "Files-v0") }

func BenchmarkFiles(b *testing.B) { speed(b, "Files-v0") }
