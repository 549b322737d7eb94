package dba

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/mcpgym/mcpgym/policies/redteam"
)

// The first two tasks of each family, which envtest plays, try every cheat between them but the slowest, which are tried with
// MCPGYM_SOAK, and those of jobs, which TestJobCheats plays.
func TestCheatsAreTried(t *testing.T) {
	spec := Rules()
	tried, all := map[string]int{}, map[string]bool{"a sleep": true}
	for name, list := range map[string][]family{"test": families, "ood": oodFamilies} {
		for i := range 2 * len(list) {
			task := spec.Splits[name].Task(i)
			c, err := readWorld(task.World)
			require.NoError(t, err)
			for _, cheat := range cheats(task) {
				if !c.ReadOnly || cheat.Name == "a sleep" {
					tried[cheat.Name]++
				}
			}
			own := allCheats(task, c)
			if isJob(task) {
				own = nil
			}
			for _, cheat := range append(own, redteam.SQL(task, "query_database")...) {
				all[cheat.Name] = true
			}
		}
	}
	for name := range all {
		require.Positive(t, tried[name], name)
	}
}
