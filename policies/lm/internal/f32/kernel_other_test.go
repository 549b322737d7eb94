//go:build !amd64 || purego

package f32

import "testing"

func kernels(t *testing.T, f func(t *testing.T)) { t.Run("go", f) }
