package weather_test

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"math/big"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mcpgym/mcpgym/sandboxes"
	"github.com/mcpgym/mcpgym/sandboxes/sandboxtest"
	"github.com/mcpgym/mcpgym/sandboxes/weather"
)

func open(t testing.TB) sandboxes.Provider {
	t.Helper()
	p, err := weather.Provider()
	require.NoError(t, err)
	return p
}

func TestContract(t *testing.T) {
	sandboxtest.Check(t, func(t *testing.T) sandboxes.Provider { return open(t) }, sandboxes.World{Seed: 1}, sandboxes.World{Seed: 2}, sandboxes.World{Seed: 1<<64 - 1})
}

// inTurn skips a test with -short, which is for the race detector: a world is made of its seed by one who is alone.
func inTurn(t *testing.T) {
	t.Helper()
	if testing.Short() {
		t.Skip("nothing happens at once")
	}
}

func TestProvider(t *testing.T) {
	p := open(t)
	require.Equal(t, sandboxes.Identity{"sandbox": "weather", "version": weather.Version}, p.Identity())
	_, err := p.Lease(t.Context(), sandboxes.World{Seed: 1, Setup: json.RawMessage(`{}`)})
	require.ErrorContains(t, err, "seed alone")
}

func encode(t testing.TB, v any) string {
	t.Helper()
	data, err := json.Marshal(v)
	require.NoError(t, err)
	return string(data)
}

// When this test fails, worlds or tools have changed: give Version another value, then the values below.
func TestGolden(t *testing.T) {
	inTurn(t)
	require.Equal(t, "2", weather.Version)
	w := weather.New(1)
	require.Equal(t, "2031-04-04T16:00:00Z", w.Now.Format(time.RFC3339))
	require.Equal(t, weather.Country{Name: "Siskaetor", Imperial: true, Regions: []string{"North Vreilujick", "Old Pirkadruri"}}, w.Country[1])
	require.Len(t, w.Stations, 32)
	require.Len(t, w.Alerts, 11)
	require.Equal(t, `{"ID":"A-0501","Kind":"frost","Severity":"severe","Country":"Gaeresh","Region":"Upper Bestodava","Starts":"2031-04-06T21:00:00Z","Ends":"2031-04-09T12:00:00Z"}`, encode(t, w.Alerts[0]))
	s, ok := w.Station("BCT-9050")
	require.True(t, ok)
	require.Equal(t, "Gemava", s.City)
	require.Equal(t, `{"station_id":"BCT-9050","observed_at":"2031-04-04T16:00","temperature":75.6,"temperature_unit":"F","humidity_pct":19,"pressure_hpa":1018,"wind_speed":19,"wind_unit":"mph"}`, encode(t, w.Current(s)))
	require.Equal(t, `{"date":"2031-04-04","high":80.8,"low":51.8,"precipitation":0.78,"wind_max":46}`, encode(t, w.Daily(s, w.Today())))
	require.Equal(t, `{"hour":15,"temperature":75.7,"wind_speed":3,"rain_chance_pct":35}`, encode(t, w.Hourly(s, w.Today().Add(15*time.Hour))))
	state, err := w.State(t.Context())
	require.NoError(t, err)
	require.Equal(t, sandboxes.State{Hash: "e55c2a6f56341e5488d753e189447549"}, state)

	h := sha256.New()
	for seed := range uint64(5) {
		h.Write([]byte(dump(t, weather.New(seed))))
	}
	require.Equal(t, "9ff98619cc0db316", hex.EncodeToString(h.Sum(nil)[:8]), "the worlds of 5 seeds")
	c, _ := lease(t, 1)
	tools, err := c.session.Tools(t.Context())
	require.NoError(t, err)
	sum := sha256.Sum256([]byte(encode(t, tools)))
	require.Equal(t, "a48827d75010ab1b", hex.EncodeToString(sum[:8]), "the list of tools")
}

// dump is all that a world can show.
func dump(t testing.TB, w *weather.World) string {
	var b strings.Builder
	fmt.Fprintln(&b, encode(t, []any{w.Now, w.Country, w.Stations, w.Alerts}))
	for _, s := range w.Stations {
		fmt.Fprintln(&b, encode(t, w.Current(s)))
		for i := -weather.HistoryDays; i < weather.ForecastDays; i++ {
			fmt.Fprintln(&b, encode(t, w.Daily(s, w.Today().AddDate(0, 0, i))))
		}
		for h := range 24 * weather.ForecastDays {
			fmt.Fprintln(&b, encode(t, w.Hourly(s, w.Today().Add(time.Duration(h)*time.Hour))))
		}
	}
	return b.String()
}

func TestSameSeedSameWorld(t *testing.T) {
	inTurn(t)
	for _, seed := range []uint64{1, 1<<64 - 1} {
		require.Equal(t, dump(t, weather.New(seed)), dump(t, weather.New(seed)))
		require.NotEqual(t, dump(t, weather.New(seed)), dump(t, weather.New(seed+1)))
	}
}

// What is promised of every world.
func TestWorlds(t *testing.T) {
	inTurn(t)
	seeds := []uint64{1066, 1269, 1707} // where a name would come twice if it could
	for seed := range uint64(300) {
		seeds = append(seeds, seed)
	}
	for _, seed := range seeds {
		w := weather.New(seed)
		require.Equal(t, w.Now.Truncate(time.Hour), w.Now)
		require.Equal(t, time.UTC, w.Now.Location())
		require.Equal(t, w.Now.Format(time.DateOnly)+"T00:00:00Z", w.Today().Format(time.RFC3339))

		require.Len(t, w.Country, weather.Countries)
		var names []string // of countries, regions and, below, cities
		regions := map[string]int{}
		for _, c := range w.Country {
			names = append(names, c.Name)
			require.Len(t, c.Regions, weather.RegionsPerCountry)
			for _, r := range c.Regions {
				names = append(names, r)
				regions[c.Name+"/"+r] = 0
			}
		}

		offline, previous := 0, ""
		cities := map[string][]string{} // their countries
		for _, s := range w.Stations {
			require.Regexp(t, `^[A-Z]{3}-[1-9][0-9]{3}$`, s.ID)
			require.Less(t, previous, s.ID, "sorted, none twice")
			previous = s.ID
			regions[s.Country+"/"+s.Region]++
			cities[s.City] = append(cities[s.City], s.Country)
			require.Equal(t, w.Country[slices.IndexFunc(w.Country, func(c weather.Country) bool { return c.Name == s.Country })].Imperial, s.Imperial)
			if !s.Online {
				offline++
				last, err := time.Parse("2006-01-02T15:04", s.LastReport)
				require.NoError(t, err)
				require.True(t, last.Before(w.Now))
			} else {
				require.Empty(t, s.LastReport)
			}
			found, ok := w.Station(s.ID)
			require.True(t, ok)
			require.Equal(t, s, found)
		}
		require.Equal(t, 2, offline)
		require.Len(t, regions, weather.Countries*weather.RegionsPerCountry)
		for name, n := range regions {
			require.True(t, n >= 3 && n <= 5, "region %s of seed %d has %d stations", name, seed, n)
		}
		shared := 0
		for city, in := range cities {
			names = append(names, city)
			require.LessOrEqual(t, len(in), 2)
			if len(in) == 2 {
				shared++
				require.NotEqual(t, in[0], in[1])
			}
		}
		require.Equal(t, 2, shared, "city names that two countries share")
		slices.Sort(names)
		require.Len(t, slices.Compact(slices.Clone(names)), len(names), "names of countries, regions and cities differ")

		kinds := map[string]bool{}
		for i, a := range w.Alerts {
			require.Regexp(t, `^A-[0-9]{4}$`, a.ID)
			require.Contains(t, weather.AlertKinds, a.Kind)
			require.Contains(t, weather.AlertSeverities, a.Severity)
			require.Contains(t, regions, a.Country+"/"+a.Region)
			require.True(t, a.Starts.Before(a.Ends))
			require.False(t, kinds[a.Region+a.Kind], "two alerts of one kind for one region")
			kinds[a.Region+a.Kind] = true
			require.True(t, i == 0 || w.Alerts[i-1].ID <= a.ID, "sorted")
		}

		clock := w.Now
		for _, s := range w.Stations {
			for _, i := range []int{-weather.HistoryDays, -1, 0, weather.ForecastDays - 1} {
				day := w.Today().AddDate(0, 0, i)
				d := w.Daily(s, day)
				require.Equal(t, day.Format(time.DateOnly), d.Date)
				require.GreaterOrEqual(t, d.Precipitation.Units, int64(0))
				require.GreaterOrEqual(t, d.WindMax.Units, int64(0))
				for h := range 24 {
					w.Now = day.Add(time.Duration(h) * time.Hour)
					c := w.Current(s)
					if c.Temperature.Units >= d.High.Units || c.Temperature.Units <= d.Low.Units {
						require.Fail(t, "an hour at or outside the day's high and low", "seed %d, %s %v: %v, not between %v and %v", seed, s.ID, w.Now, c.Temperature, d.Low, d.High)
					}
					if c.WindSpeed.Units > d.WindMax.Units {
						require.Fail(t, "more wind than the day's strongest", "seed %d, %s %v", seed, s.ID, w.Now)
					}
					if c.Humidity < 0 || c.Humidity > 100 || c.Pressure < 900 || c.Pressure > 1100 || c.WindSpeed.Units < 0 {
						require.Fail(t, "not of this world", "%+v", c)
					}
				}
				w.Now = clock
			}
			for h := range 24 * weather.ForecastDays {
				at := w.Today().Add(time.Duration(h) * time.Hour)
				f, d := w.Hourly(s, at), w.Daily(s, at.Truncate(24*time.Hour))
				if f.Temperature.Units >= d.High.Units || f.Temperature.Units <= d.Low.Units || f.WindSpeed.Units > d.WindMax.Units {
					require.Fail(t, "a forecast hour beyond its day's bounds", "seed %d, %s: %+v, %+v", seed, s.ID, f, d)
				}
				if f.Hour != h%24 || f.RainChance < 0 || f.RainChance > 100 || f.WindSpeed.Units < 0 {
					require.Fail(t, "not a forecast", "%v: %+v", at, f)
				}
			}
		}
	}
}

func TestQuantity(t *testing.T) {
	for _, c := range []struct {
		q    weather.Quantity
		want string
	}{
		{weather.Quantity{}, "0"},
		{weather.Quantity{Decimals: 1}, "0.0"},
		{weather.Quantity{Decimals: 2}, "0.00"},
		{weather.Quantity{Units: 214, Decimals: 1}, "21.4"},
		{weather.Quantity{Units: -4, Decimals: 1}, "-0.4"},
		{weather.Quantity{Units: -214, Decimals: 1}, "-21.4"},
		{weather.Quantity{Units: 7, Decimals: 2}, "0.07"},
		{weather.Quantity{Units: -30}, "-30"},
	} {
		require.Equal(t, c.want, c.q.String())
		require.Equal(t, c.want, encode(t, c.q))
	}
}

// client calls the tools of a leased world.
type client struct {
	*testing.T
	session sandboxes.Session
}

type args = map[string]any

// lease leases a world, and makes it once more to compare with.
func lease(t *testing.T, seed uint64) (client, *weather.World) {
	t.Helper()
	box, err := open(t).Lease(t.Context(), sandboxes.World{Seed: seed})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, box.Close()) })
	return client{t, box.Session()}, weather.New(seed)
}

// resultBytes is the limit of the environment that is made of this world.
const resultBytes = 4000

func (c client) send(tool string, a args) sandboxes.Result {
	c.Helper()
	r, err := c.session.Call(c.Context(), tool, json.RawMessage(encode(c, a)))
	require.NoError(c, err)
	require.Empty(c, r.Defect)
	require.LessOrEqual(c, len(r.Text), resultBytes)
	return r
}

// call calls a tool that works and returns its result, taken apart.
func (c client) call(tool string, a args) map[string]json.RawMessage {
	c.Helper()
	r := c.send(tool, a)
	require.False(c, r.IsError, r.Text)
	var out map[string]json.RawMessage
	require.NoError(c, json.Unmarshal([]byte(r.Text), &out), r.Text)
	return out
}

// refused calls a tool that fails and says why.
func (c client) refused(tool string, a args, why string) {
	c.Helper()
	r := c.send(tool, a)
	require.True(c, r.IsError, r.Text)
	require.Contains(c, r.Text, why)
}

// pages calls a tool page by page to the end and returns what is listed under a key, and the number of pages.
func (c client) pages(tool, key string, size int, a args) (all []string, n int) {
	c.Helper()
	a = maps.Clone(a)
	for {
		out := c.call(tool, a)
		n++
		var items []json.RawMessage
		require.NoError(c, json.Unmarshal(out[key], &items))
		for _, i := range items {
			all = append(all, string(i))
		}
		if out["next_cursor"] == nil {
			require.LessOrEqual(c, len(items), size)
			return all, n
		}
		require.Len(c, items, size, "a page before the last is full")
		var cursor string
		require.NoError(c, json.Unmarshal(out["next_cursor"], &cursor))
		a["cursor"] = cursor
	}
}

func placeJSON(s weather.Station) string {
	return fmt.Sprintf(`{"name":%q,"country":%q,"region":%q,"station_id":%q}`, s.City, s.Country, s.Region, s.ID)
}

func TestSearchPlaces(t *testing.T) {
	paged := 0
	for seed := range uint64(5) {
		c, w := lease(t, seed)
		search := func(query, country string) ([]string, int) {
			a := args{"query": query}
			if country != "" {
				a["country"] = country
			}
			return c.pages("search_places", "places", weather.PageSize, a)
		}
		matches := func(query, country string) []string {
			var want []weather.Station
			for _, s := range w.Stations {
				if strings.HasPrefix(strings.ToLower(s.City), strings.ToLower(query)) && (country == "" || country == s.Country) {
					want = append(want, s)
				}
			}
			slices.SortFunc(want, func(a, b weather.Station) int { return strings.Compare(a.City+a.ID, b.City+b.ID) })
			var all []string
			for _, s := range want {
				all = append(all, placeJSON(s))
			}
			return all
		}
		namesakes := 0
		for _, s := range w.Stations {
			for _, query := range []string{s.City, strings.ToUpper(s.City), s.City[:2], " " + s.City[:3] + " "} {
				got, n := search(query, "")
				require.Equal(t, matches(strings.TrimSpace(query), ""), got)
				require.Contains(t, got, placeJSON(s))
				if n > 1 {
					paged++
				}
			}
			both, _ := search(s.City, "")
			one, _ := search(s.City, strings.ToLower(s.Country))
			require.Equal(t, matches(s.City, s.Country), one)
			if len(both) > len(one) {
				namesakes++
			}
		}
		require.GreaterOrEqual(t, namesakes, 4, "two names, each in two countries")
		got, _ := search("qqqq", "")
		require.Empty(t, got)
		require.Equal(t, "[]", string(c.call("search_places", args{"query": "qqqq"})["places"]), "an empty list is a list")
		for _, country := range w.Country {
			c.refused("search_places", args{"query": "be", "country": "Atlantis"}, country.Name)
		}
		c.refused("search_places", args{"query": w.Stations[0].City, "cursor": "4"}, "cursor")
	}
	require.Positive(t, paged, "no search had a second page")
}

func TestListStations(t *testing.T) {
	for seed := range uint64(5) {
		c, w := lease(t, seed)
		listed := 0
		for _, country := range w.Country {
			expect := func(region string) []string {
				var want []string
				for _, s := range w.Stations {
					if s.Country == country.Name && (region == "" || region == s.Region) {
						status := map[bool]string{true: "online", false: "offline"}[s.Online]
						want = append(want, fmt.Sprintf(`{"station_id":%q,"city":%q,"region":%q,"status":%q}`, s.ID, s.City, s.Region, status))
					}
				}
				return want
			}
			got, n := c.pages("list_stations", "stations", weather.PageSize, args{"country": strings.ToUpper(country.Name)})
			require.Equal(t, expect(""), got)
			require.Equal(t, (len(got)+weather.PageSize-1)/weather.PageSize, n)
			require.Greater(t, n, 1)
			listed += len(got)
			for _, region := range country.Regions {
				got, _ := c.pages("list_stations", "stations", weather.PageSize, args{"country": country.Name, "region": region})
				require.Equal(t, expect(region), got)
			}
			for _, cursor := range []string{"0", "-4", "1", "5", "99", "next", "4x"} {
				c.refused("list_stations", args{"country": country.Name, "cursor": cursor}, "cursor")
			}
		}
		require.Equal(t, len(w.Stations), listed)
		got, _ := c.pages("list_stations", "stations", weather.PageSize, args{"country": w.Country[0].Name, "region": w.Country[1].Regions[0]})
		require.Empty(t, got, "a region of another country")
		c.refused("list_stations", args{"country": "Atlantis"}, w.Country[3].Name)
	}
}

func TestGetCurrent(t *testing.T) {
	for seed := range uint64(5) {
		c, w := lease(t, seed)
		for _, s := range w.Stations {
			r := c.send("get_current", args{"station_id": s.ID})
			require.False(t, r.IsError)
			if s.Online {
				require.Equal(t, encode(t, w.Current(s)), r.Text)
			} else {
				require.Equal(t, fmt.Sprintf(`{"station_id":%q,"status":"offline","last_report":%q,"message":"no current data from this station"}`, s.ID, s.LastReport), r.Text)
			}
		}
		for _, id := range []string{"AAA-0000", "", w.Stations[0].City, strings.ToLower(w.Stations[0].ID)} {
			c.refused("get_current", args{"station_id": id}, "no station")
		}
	}
}

func TestGetHourlyForecast(t *testing.T) {
	c, w := lease(t, 1)
	for _, s := range w.Stations {
		for i := range weather.ForecastDays {
			day := w.Today().AddDate(0, 0, i)
			for _, from := range []int{0, 6, 12, 18, 20, 23} {
				var hours []weather.Hour
				for h := from; h < min(24, from+weather.HourlyPage); h++ {
					hours = append(hours, w.Hourly(s, day.Add(time.Duration(h)*time.Hour)))
				}
				a := args{"station_id": s.ID, "date": day.Format(time.DateOnly), "from_hour": from}
				if from == 0 {
					delete(a, "from_hour")
				}
				require.Equal(t, fmt.Sprintf(`{"station_id":%q,"date":%q,"temperature_unit":%q,"wind_unit":%q,"hours":%s}`,
					s.ID, day.Format(time.DateOnly), s.TemperatureUnit(), s.WindUnit(), encode(t, hours)), c.send("get_hourly_forecast", a).Text)
			}
		}
	}
	id := w.Stations[0].ID
	today := w.Today().Format(time.DateOnly)
	c.refused("get_hourly_forecast", args{"station_id": "AAA-0000", "date": today}, "no station")
	c.refused("get_hourly_forecast", args{"station_id": id, "date": w.Today().AddDate(0, 0, -1).Format(time.DateOnly)}, "there is one from "+today)
	c.refused("get_hourly_forecast", args{"station_id": id, "date": w.Today().AddDate(0, 0, weather.ForecastDays).Format(time.DateOnly)}, "there is one from "+today)
	for _, date := range []string{"", "tomorrow", "2031-13-01", "2031-02-30", "2031-4-5"} {
		c.refused("get_hourly_forecast", args{"station_id": id, "date": date}, "is not a date")
	}
}

// daysJSON is the result of the tools that give days.
func daysJSON(t *testing.T, w *weather.World, s weather.Station, from time.Time, n int, more string) string {
	days := make([]weather.Day, n)
	for i := range days {
		days[i] = w.Daily(s, from.AddDate(0, 0, i))
	}
	return fmt.Sprintf(`{"station_id":%q,"temperature_unit":%q,"precipitation_unit":%q,"wind_unit":%q,"days":%s%s}`,
		s.ID, s.TemperatureUnit(), s.RainUnit(), s.WindUnit(), encode(t, days), more)
}

func TestGetDailyForecast(t *testing.T) {
	c, w := lease(t, 1)
	for _, s := range w.Stations {
		require.Equal(t, daysJSON(t, w, s, w.Today(), 3, ""), c.send("get_daily_forecast", args{"station_id": s.ID}).Text)
		for n := 1; n <= weather.ForecastDays; n++ {
			require.Equal(t, daysJSON(t, w, s, w.Today(), n, ""), c.send("get_daily_forecast", args{"station_id": s.ID, "days": n}).Text)
		}
	}
	c.refused("get_daily_forecast", args{"station_id": "AAA-0000"}, "no station")
}

func TestGetHistory(t *testing.T) {
	c, w := lease(t, 1)
	first, last := w.Today().AddDate(0, 0, -weather.HistoryDays), w.Today().AddDate(0, 0, -1)
	span := func(s weather.Station, from, to time.Time) args {
		return args{"station_id": s.ID, "from_date": from.Format(time.DateOnly), "to_date": to.Format(time.DateOnly)}
	}
	flaky := 0
	for _, s := range w.Stations {
		a := span(s, first, last)
		if s.Flaky {
			flaky++
			c.refused("get_history", a, "busy, try the same request again")
		}
		require.Equal(t, daysJSON(t, w, s, first, weather.HistoryPage, `,"next_cursor":"5"`), c.send("get_history", a).Text)
		got, n := c.pages("get_history", "days", weather.HistoryPage, a)
		require.Equal(t, weather.HistoryDays/weather.HistoryPage, n)
		var want []string
		for i := range weather.HistoryDays {
			want = append(want, encode(t, w.Daily(s, first.AddDate(0, 0, i))))
		}
		require.Equal(t, want, got)
		require.Equal(t, daysJSON(t, w, s, last, 1, ""), c.send("get_history", span(s, last, last)).Text)
	}
	require.Positive(t, flaky)
	require.Less(t, flaky, len(w.Stations))

	again, _ := lease(t, 1)
	busy := w.Stations[slices.IndexFunc(w.Stations, func(s weather.Station) bool { return s.Flaky })]
	again.refused("get_history", span(busy, first, last), "busy")

	s := w.Stations[slices.IndexFunc(w.Stations, func(s weather.Station) bool { return !s.Flaky })]
	c.refused("get_history", args{"station_id": "AAA-0000", "from_date": first.Format(time.DateOnly), "to_date": last.Format(time.DateOnly)}, "no station")
	for _, bad := range [][2]time.Time{{first.AddDate(0, 0, -1), last}, {first, w.Today()}, {last, first}} {
		c.refused("get_history", span(s, bad[0], bad[1]), "the archive holds "+first.Format(time.DateOnly)+" to "+last.Format(time.DateOnly))
	}
	for _, key := range []string{"from_date", "to_date"} {
		a := span(s, first, last)
		a[key] = "yesterday"
		c.refused("get_history", a, `"yesterday" is not a date`)
	}
	for _, cursor := range []string{"0", "3", "30", "-5", "last"} {
		a := span(s, first, last)
		a["cursor"] = cursor
		c.refused("get_history", a, "cursor")
	}
}

func TestGetAlerts(t *testing.T) {
	for seed := range uint64(5) {
		c, w := lease(t, seed)
		shown := 0
		for _, country := range w.Country {
			want := []string{}
			for _, a := range w.Alerts {
				if a.Country == country.Name {
					want = append(want, fmt.Sprintf(`{"alert_id":%q,"kind":%q,"severity":%q,"region":%q,"starts":%q,"ends":%q}`,
						a.ID, a.Kind, a.Severity, a.Region, a.Starts.Format("2006-01-02T15:04"), a.Ends.Format("2006-01-02T15:04")))
				}
			}
			shown += len(want)
			require.Equal(t, fmt.Sprintf(`{"country":%q,"alerts":[%s]}`, country.Name, strings.Join(want, ",")),
				c.send("get_alerts", args{"country": strings.ToLower(country.Name)}).Text)
		}
		require.Equal(t, len(w.Alerts), shown)
		c.refused("get_alerts", args{"country": "Atlantis"}, w.Country[0].Name)
	}
}

func TestConvertUnits(t *testing.T) {
	c, _ := lease(t, 1)
	for _, x := range []struct{ value, from, to, want string }{
		{"0", "C", "F", "32.0"},
		{"100", "C", "F", "212.0"},
		{"-40", "C", "F", "-40.0"},
		{"36.6", "C", "F", "97.9"}, // 97.88
		{"212", "F", "C", "100.0"},
		{"0", "F", "C", "-17.8"},
		{"31.95", "F", "C", "0.0"}, // -0.03, and no -0.0
		{"-17.8", "C", "F", "0.0"}, // -0.04
		{"100", "km/h", "mph", "62.1"},
		{"100", "mph", "km/h", "160.9"},
		{"-0.01", "km/h", "mph", "0.0"},
		{"25.4", "mm", "in", "1.00"},
		{"1", "mm", "in", "0.04"},
		{"-0.1", "mm", "in", "0.00"},
		{"-1", "mm", "in", "-0.04"},
		{"1", "in", "mm", "25.4"},
		{"0.75", "in", "mm", "19.1"}, // 19.05, half away from zero
		{"-0.75", "in", "mm", "-19.1"},
		{"0.25", "in", "in", "0.25"},
		{"21.44", "C", "C", "21.4"},
		{"1e2", "mph", "mph", "100.0"},
	} {
		v, ok := new(big.Rat).SetString(x.value)
		require.True(t, ok)
		got, err := weather.Convert(v, x.from, x.to)
		require.NoError(t, err)
		require.Equal(t, x.want, got, "%s %s in %s", x.value, x.from, x.to)
		require.Equal(t, fmt.Sprintf(`{"value":%s,"unit":%q}`, x.want, x.to),
			c.send("convert_units", args{"value": json.Number(x.value), "from": x.from, "to": x.to}).Text)
	}
	pairs := 0
	units := []string{"C", "F", "km/h", "mph", "mm", "in"}
	for i, from := range units {
		for j, to := range units {
			if i/2 == j/2 {
				pairs++
				continue
			}
			c.refused("convert_units", args{"value": 1, "from": from, "to": to}, from+" cannot be converted to "+to)
		}
	}
	require.Equal(t, 12, pairs)
	c.refused("convert_units", args{"from": "C", "to": "F"}, "not a number")
}

func TestGetTime(t *testing.T) {
	c, w := lease(t, 1)
	require.Equal(t, `{"date":"2031-04-04","weekday":"Friday","time":"16:00"}`, c.send("get_time", args{}).Text)
	require.Equal(t, w.Now.Weekday(), time.Friday)
}

func TestState(t *testing.T) {
	seen := map[string]uint64{}
	for seed := range uint64(50) {
		state, err := weather.New(seed).State(t.Context())
		require.NoError(t, err)
		other, twice := seen[state.Hash]
		require.False(t, twice, "seeds %d and %d have one state", seed, other)
		seen[state.Hash] = seed
	}
	p := open(t)
	box, err := p.Lease(t.Context(), sandboxes.World{Seed: 7})
	require.NoError(t, err)
	defer box.Close()
	state, err := sandboxes.StateOf(t.Context(), box)
	require.NoError(t, err)
	require.Equal(t, uint64(7), seen[state.Hash])
}

func BenchmarkNew(b *testing.B) {
	seed := uint64(0)
	b.ReportAllocs()
	for b.Loop() {
		weather.New(seed)
		seed++
	}
}

func BenchmarkLease(b *testing.B) {
	p := open(b)
	seed := uint64(0)
	b.ReportAllocs()
	for b.Loop() {
		box, err := p.Lease(b.Context(), sandboxes.World{Seed: seed})
		if err != nil {
			b.Fatal(err)
		}
		if err := box.Close(); err != nil {
			b.Fatal(err)
		}
		seed++
	}
}

func BenchmarkCall(b *testing.B) {
	w := weather.New(1)
	box, err := open(b).Lease(b.Context(), sandboxes.World{Seed: 1})
	require.NoError(b, err)
	defer box.Close()
	for _, c := range []struct {
		tool string
		a    args
	}{
		{"get_time", args{}},
		{"search_places", args{"query": "ge"}},
		{"get_current", args{"station_id": w.Stations[0].ID}},
		{"get_daily_forecast", args{"station_id": w.Stations[0].ID, "days": weather.ForecastDays}},
	} {
		raw := json.RawMessage(encode(b, c.a))
		b.Run(c.tool, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				r, err := box.Session().Call(b.Context(), c.tool, raw)
				if err != nil || r.IsError {
					b.Fatal(r, err)
				}
			}
		})
	}
}
