//go:build !linux

package files

// Elsewhere memory is no folder.
func memory() string { return "" }
