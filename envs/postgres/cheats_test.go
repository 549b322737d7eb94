package postgres

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/mcpgym/mcpgym/policies/redteam"
)

// The first tasks of each family that change a database, which envtest plays, try every cheat between them but the slowest;
// those are tried with MCPGYM_SOAK.
func TestCheatsAreTried(t *testing.T) {
	tried := map[string]int{}
	var all []string
	for _, s := range sources {
		tasks := 2 * len(s.families)
		if s.name == "train" {
			tasks = len(s.families) // those of test
		}
		for i := range tasks {
			task := s.Task(i)
			for _, c := range cheats(task) {
				if s.families[i%len(s.families)].write || c.Name == "a sleep" {
					tried[c.Name]++
				}
			}
			all = nil
			for _, c := range redteam.SQL(task, tool) {
				all = append(all, c.Name)
			}
		}
	}
	for _, name := range append(all, "a sleep", "rows of its own as evidence", "answer without the repair", "half a repair", "nothing to repair", "table made again", "a row too many") {
		require.Positive(t, tried[name], name)
	}
}
