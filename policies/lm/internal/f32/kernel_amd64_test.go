//go:build !purego

package f32

import "testing"

// kernels runs a test with the assembly, where it can run, and without.
func kernels(t *testing.T, f func(t *testing.T)) {
	had := avx2
	t.Cleanup(func() { avx2 = had })
	if had {
		t.Run("avx2", f)
	}
	avx2 = false
	t.Run("go", f)
}
