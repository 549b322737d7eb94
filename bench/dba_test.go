package bench

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestDBA(t *testing.T) { reproduce(t, "DBA-v0") }

func BenchmarkDBA(b *testing.B) { speed(b, "DBA-v0") }

// The founding formula is shown beside the truth, on this environment's boards alone: it cannot tell random calls from gold.
func TestFoundingColumn(t *testing.T) {
	records, err := LoadResults("../results")
	require.NoError(t, err)
	boards, err := Boards(records)
	require.NoError(t, err)
	seen := 0
	for _, b := range boards {
		require.Equal(t, b.Env == "DBA-v0", strings.Contains(b.Table(true), "founding"), b.Env)
		for _, r := range b.Rows {
			if b.Env != "DBA-v0" {
				require.Nil(t, r.Founding, b.Env)
				continue
			}
			if r.Seeds == nil {
				seen++
			}
			switch r.Policy {
			case "oracle":
				require.Equal(t, 0.6, *r.Founding, "its first query does not hold the word")
			case "random":
				require.Greater(t, *r.Founding, 0.5, "any call of a known tool is paid for")
			case "noop":
				require.Zero(t, *r.Founding)
			}
		}
	}
	require.Equal(t, 8, seen)
}
