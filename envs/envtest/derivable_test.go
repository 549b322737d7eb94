package envtest

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestDerived(t *testing.T) {
	const known = `move it to "/top/archive" {"path":"/top/in/Letter 2030.txt","content":"Project: AB-1234\nport = 80\r\n"} 2031-05-04`
	for leaf, want := range map[string]bool{
		"/top/archive":                          true,
		"/top/in/Letter 2030.txt":               true,
		"/top/archive/AB-1234/letter_2030.txt":  true,
		"/top/archive/CD-1234/letter_2030.txt":  false,
		"port = 1234":                           true,
		"port = 1235":                           false,
		"letter_2030":                           false, // neither a path nor a text
		"12":                                    true,
		"2031-05-20":                            true,
		"2033-05-20":                            false,
		"SELECT content FROM project":           true,
		"SELECT content FROM project JOIN mail": false,
	} {
		require.Equal(t, want, derived(leaf, known), leaf)
	}
}
