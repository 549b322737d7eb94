package weather_test

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mcpgym/mcpgym/envs"
	"github.com/mcpgym/mcpgym/envs/envtest"
	"github.com/mcpgym/mcpgym/envs/weather"
	"github.com/mcpgym/mcpgym/policies"
	"github.com/mcpgym/mcpgym/rewards"
)

func TestEnv(t *testing.T) {
	spec, err := weather.Spec()
	require.NoError(t, err)
	envtest.Check(t, spec)
}

// No prompt of a split that scores are taken on may be one that a policy was trained on.
func TestSplitsAreDisjoint(t *testing.T) {
	spec, err := weather.Spec()
	require.NoError(t, err)
	if testing.Short() {
		t.Skip("many tasks take a minute under the race detector")
	}
	held := map[string]string{}
	for _, split := range []string{"test", "ood"} {
		for i := range 500 {
			task := spec.Splits[split].Task(i)
			other, twice := held[task.Prompt]
			require.False(t, twice, "%s and %s have one prompt", task.ID, other)
			held[task.Prompt] = task.ID
		}
	}
	var wg sync.WaitGroup
	workers := runtime.NumCPU()
	n := 20_000
	if os.Getenv("MCPGYM_SOAK") != "" {
		n = 100_000
	}
	for w := range workers {
		wg.Go(func() {
			for i := w; i < n; i += workers {
				task := spec.Splits["train"].Task(i)
				if other, seen := held[task.Prompt]; seen {
					t.Errorf("%s is trained on as %s", other, task.ID)
				}
			}
		})
	}
	wg.Wait()
}

// plays gives the gold records of a family's first tasks in a split that has it.
func plays(t *testing.T, family string, n int) (all []*envs.Trajectory) {
	spec, err := weather.Spec()
	require.NoError(t, err)
	defer spec.Sandboxes.Close()
	e, err := envs.New(spec)
	require.NoError(t, err)
	defer e.Close()
	for _, split := range []string{"train", "ood"} {
		for i := 0; len(all) < n && i < 21*n; i++ {
			task := spec.Splits[split].Task(i)
			if task.Family != family {
				continue
			}
			tr, err := policies.Rollout(t.Context(), e, task, policies.Oracle{}, 1)
			require.NoError(t, err)
			require.Equal(t, 1.0, tr.Score.Value, task.ID)
			all = append(all, tr)
		}
	}
	require.Len(t, all, n, family)
	return all
}

// Who asks for the warmest asks for one: of all that the tools show of what is asked about, one alone is the best, and it is
// the right answer.
func TestBestIsOne(t *testing.T) {
	n := 100
	if testing.Short() {
		n = 10
	}
	type row = map[string]any
	number := func(field string) func(row) float64 {
		return func(r row) float64 { x, _ := r[field].(float64); return x }
	}
	spread := func(r row) float64 { return number("high")(r) - number("low")(r) }
	celsius := func(r row) float64 {
		if r["temperature_unit"] == "F" {
			return (number("temperature")(r) - 32) * 5 / 9
		}
		return number("temperature")(r)
	}
	for _, c := range []struct {
		family, tool, list, id string // the rows stand in a list of the tool's result, or are the result
		value                  func(row) float64
	}{
		{"compare", "get_current", "", "station_id", number("temperature")},
		{"region-max", "get_current", "", "station_id", nil},
		{"driest-day", "get_daily_forecast", "days", "date", number("precipitation")},
		{"history-max", "get_history", "days", "date", number("high")},
		{"wind-peak", "get_hourly_forecast", "hours", "hour", number("wind_speed")},
		{"compare-units", "get_current", "", "station_id", celsius},
		{"alert-warmest", "get_current", "", "station_id", number("temperature")},
		{"windiest-pressure", "get_current", "", "station_id", number("wind_speed")},
		{"widest-day", "get_daily_forecast", "days", "date", spread},
	} {
		for _, tr := range plays(t, c.family, n) {
			sign, value := 1.0, c.value
			for word, field := range map[string]string{"warmest": "temperature", "coldest": "temperature", "most humid": "humidity_pct", "windiest": "wind_speed"} {
				if c.value == nil && strings.Contains(tr.Task.Prompt, word) {
					value = number(field)
				}
			}
			if strings.Contains(tr.Task.Prompt, "coldest") || strings.Contains(tr.Task.Prompt, "least precipitation") {
				sign = -1
			}
			names := map[string]string{} // of stations
			values := map[string]float64{}
			for _, r := range tr.Results() {
				var body row
				if json.Unmarshal([]byte(r.Text), &body) != nil {
					continue // busy
				}
				for _, list := range []string{"places", "stations", c.list} {
					rows, _ := body[list].([]any)
					for _, e := range rows {
						one := e.(row)
						switch {
						case list != c.list:
							names[one["station_id"].(string)] = fmt.Sprint(one["name"], one["city"])
						case r.Name == c.tool:
							values[fmt.Sprint(one[c.id])] = math.Round(sign * 100 * value(one))
						}
					}
				}
				if r.Name == c.tool && c.list == "" {
					values[body["station_id"].(string)] = math.Round(sign * 100 * value(body))
				}
			}
			require.GreaterOrEqual(t, len(values), 2, tr.Task.ID)
			most := slices.Max(slices.Collect(maps.Values(values)))
			var best []string
			for id, x := range values {
				if x == most {
					best = append(best, id)
				}
			}
			require.Len(t, best, 1, "%s: %s", tr.Task.ID, tr.Task.Prompt)
			name := strings.ReplaceAll(cmp.Or(names[best[0]], best[0]), "<nil>", "")
			text, _ := tr.Answer()
			answer, err := rewards.FinalAnswer(text)
			require.NoError(t, err)
			require.Equal(t, name, strings.Split(answer, ";")[0], tr.Task.Prompt)
		}
	}
}

// Who asks for an alert, or for one of two places of a name, means one.
func TestMeansOne(t *testing.T) {
	type row struct{ Country, Region, Kind string }
	for _, c := range []struct {
		family, tool string
		meant        func(prompt string, r row) bool
	}{
		{"alert-duration", "get_alerts", func(prompt string, r row) bool {
			return strings.Contains(prompt, r.Kind) && strings.Contains(prompt, r.Region)
		}},
		{"namesake", "search_places", func(prompt string, r row) bool {
			return strings.Contains(prompt, r.Country) || strings.Contains(prompt, r.Region)
		}},
	} {
		for _, tr := range plays(t, c.family, 100) {
			var body struct{ Alerts, Places []row }
			require.Equal(t, c.tool, tr.Results()[0].Name)
			require.NoError(t, json.Unmarshal([]byte(tr.Results()[0].Text), &body))
			n := 0
			for _, r := range append(body.Alerts, body.Places...) {
				if c.meant(tr.Task.Prompt, r) {
					n++
				}
			}
			require.Equal(t, 1, n, "%s: %s", tr.Task.ID, tr.Task.Prompt)
		}
	}
}

// The clock of the machine reaches neither tasks nor worlds: in the year 2000 the records are the same.
func TestAnotherYear(t *testing.T) {
	record := func(t *testing.T) []byte {
		spec, err := weather.Spec()
		require.NoError(t, err)
		e, err := envs.New(spec)
		require.NoError(t, err)
		var all []*envs.Trajectory
		for _, split := range []string{"test", "ood"} {
			for i := range 32 {
				tr, err := policies.Rollout(t.Context(), e, spec.Splits[split].Task(i), policies.Oracle{}, 1)
				require.NoError(t, err)
				all = append(all, tr)
			}
		}
		require.NoError(t, e.Close())
		require.NoError(t, spec.Sandboxes.Close())
		raw, err := json.Marshal(all)
		require.NoError(t, err)
		return raw
	}
	now := record(t)
	synctest.Test(t, func(t *testing.T) {
		require.Equal(t, 2000, time.Now().Year())
		require.Equal(t, string(now), string(record(t)))
	})
}

func BenchmarkTask(b *testing.B) {
	spec, err := weather.Spec()
	require.NoError(b, err)
	i := 0
	for b.Loop() {
		spec.Splits["train"].Task(i)
		i++
	}
}

// Where no result holds the answer as it is, the gold solution writes down how it follows, before the call or the answer that needs it.
func TestWorking(t *testing.T) {
	spec, err := weather.Spec()
	require.NoError(t, err)
	for i, want := range map[int]string{
		1:  "ANSWER: 90",
		3:  "Sunost: 58.8, highest Sunost: 58.8\nVraexava: 75.4, highest Vraexava: 75.4\n75.4 - 58.8 = 16.6\nANSWER: Vraexava; 16.6",
		4:  "Giastikrora: 76, highest Giastikrora: 76\nSouraby: 87, highest Souraby: 87\nGrithoago: 43, highest Souraby: 87\nANSWER: Souraby; 87",
		5:  "2031-07-05: 24.9, no\n2031-07-06: 29.3, yes\nANSWER: 2031-07-06; 29.3",
		6:  "Saturday 2033-10-22\nSunday 2033-10-23|get_hourly_forecast|ANSWER: 50.9",
		8:  "2034-10-09: high 10.3 yes, wind 14 yes, alert yes\n2034-10-10: high 3.2 no\n2034-10-11: high 12.3 yes, wind 46 no\n2034-10-12: high 1.0 no\n2034-10-13: high 9.6 yes, wind 39 yes, alert no\nANSWER: 2034-10-13; 9.6",
		10: "CFQ-4133: East Zaskibost, Rusiagia, no\nDPL-2682: Lower Kronost, Joldikrune, yes|get_current|ANSWER: 54",
		12: "2031-09-20: 0.55, total 0.55\n2031-09-21: 0.29, total 0.84\n2031-09-22: 0.00, total 0.84\nANSWER: 0.84",
		14: "storm: 2034-01-03T19:00 to 2034-01-06T17:00\n2034-01-03: 5, total 5\n2034-01-04: 24, total 29\n2034-01-05: 24, total 53\n2034-01-06: 17, total 70\nANSWER: 70",
	} {
		var got []string
		for _, a := range spec.Splits["train"].Task(i).Solution {
			if a.Text != "" {
				got = append(got, a.Text)
				for _, c := range a.Calls {
					got = append(got, c.Name)
				}
			}
		}
		require.Equal(t, want, strings.Join(got, "|"), "task %d", i)
	}
}
