package rewards_test

import (
	"encoding/json"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"
	"time"
	_ "time/tzdata" // without a zone database this could not fail

	"github.com/stretchr/testify/require"

	"github.com/mcpgym/mcpgym/envs/weather"
	"github.com/mcpgym/mcpgym/rewards"
	worlds "github.com/mcpgym/mcpgym/sandboxes/weather"
)

// dated plays gold solutions of tasks that ask for a day, in worlds where it is 6 o'clock in UTC, and gives their records and
// the days that a clock of the machine's zone would show.
func dated(t *testing.T) (records, local []string) {
	t.Helper()
	spec, err := weather.Spec()
	require.NoError(t, err)
	for i := 0; len(records) < 4; i++ {
		task := spec.Splits["test"].Task(i)
		w := worlds.New(task.World.Seed)
		if w.Now.Hour() != 6 {
			continue
		}
		want, err := rewards.DecodeWant(task.Want)
		require.NoError(t, err)
		if want.Answer[0].Kind != "date" {
			continue
		}
		e := start(t, spec, task)
		require.Equal(t, 1.0, play(t, e, task.Solution...).Score.Value, task.ID)
		line, err := json.Marshal(e.Trajectory())
		require.NoError(t, err)
		records, local = append(records, string(line)), append(local, w.Now.Local().Format(time.DateOnly))
	}
	return records, local
}

var clockLine = regexp.MustCompile(`(?m)^clock (.*)$`)

// At 23:00 in the zone of the machine the day in UTC is the next one: it is the world's day that counts.
func TestCasesClock(t *testing.T) {
	const child = "MCPGYM_CLOCK"
	type told struct{ Records, Local []string }
	var here told
	here.Records, here.Local = dated(t)
	if os.Getenv(child) != "" {
		line, err := json.Marshal(here)
		require.NoError(t, err)
		os.Stdout.WriteString("\nclock " + string(line) + "\n")
		return
	}
	t.Run("C180", func(t *testing.T) {
		exe, err := os.Executable()
		require.NoError(t, err)
		tell := func(zone string) (out told) {
			cmd := exec.CommandContext(t.Context(), exe, "-test.run=^TestCasesClock$", "-test.count=1")
			cmd.Env = append(os.Environ(), child+"=1", "TZ="+zone)
			text, err := cmd.CombinedOutput()
			require.NoError(t, err, "%s", text)
			line := clockLine.FindSubmatch(text)
			require.NotNil(t, line, "%s", text)
			require.NoError(t, json.Unmarshal(line[1], &out))
			return out
		}
		utc, west := tell("UTC"), tell("Etc/GMT+7")
		for i := range utc.Local {
			require.Less(t, west.Local[i], utc.Local[i], "there it is the day before")
		}
		require.Equal(t, utc.Records, west.Records)
		require.Equal(t, utc.Records, here.Records)
		require.Contains(t, strings.Join(utc.Records, "\n"), `"kind":"date"`)
	})
}
