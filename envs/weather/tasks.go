package weather

import (
	"encoding/json"
	"fmt"
	"hash/fnv"
	"math/big"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/mcpgym/mcpgym/envs"
	"github.com/mcpgym/mcpgym/rewards"
	"github.com/mcpgym/mcpgym/sandboxes"
	"github.com/mcpgym/mcpgym/sandboxes/weather"
)

// family makes tasks of one kind. make returns false where the world at hand has no such task.
type family struct {
	name string
	make func(d *draft) bool
}

// split generates tasks: families take turns, each task has a world of its own, and no two splits share a seed stream.
func split(name string, families []family) envs.Source {
	h := fnv.New64a()
	h.Write([]byte(name))
	salt := h.Sum64()
	return envs.Generator(func(index int) envs.Task {
		f := families[index%len(families)]
		for try := uint64(0); ; try++ {
			r := rand.New(rand.NewPCG(salt^try<<40, uint64(index)))
			seed := r.Uint64() >> 11 // stays exact in readers that know only doubles
			d := &draft{Rand: r, w: weather.New(seed)}
			if !f.make(d) {
				continue
			}
			return d.task(fmt.Sprintf("%s/%s/%d", name, f.name, index), f.name, seed)
		}
	})
}

// draft collects a task while its family makes it: the prompt, the gold turns, the evidence they show and the answer.
type draft struct {
	*rand.Rand
	w        *weather.World
	prompt   string
	turns    []envs.Action
	working  []string // lines that go with the next turn
	evidence [][]rewards.Fact
	answer   []rewards.Value
}

func (d *draft) task(id, family string, seed uint64) envs.Task {
	want, err := json.Marshal(rewards.Want{Answer: d.answer, Evidence: d.evidence})
	if err != nil {
		panic(err) // plain strings and numbers
	}
	last := envs.Action{Text: strings.Join(append(d.working, rewards.AnswerLine(d.answer)), "\n")}
	return envs.Task{ID: id, Family: family, Prompt: d.prompt, World: sandboxes.World{Seed: seed}, Want: want, Par: len(d.turns),
		Solution: append(d.turns, last)}
}

// ask words the prompt in one of several ways; pairs are placeholders and what stands for them.
func (d *draft) ask(wordings []string, pairs ...string) bool {
	d.prompt = strings.NewReplacer(pairs...).Replace(wordings[d.IntN(len(wordings))])
	return true
}

func (d *draft) call(tool string, args map[string]any) {
	raw, err := json.Marshal(args)
	if err != nil {
		panic(err) // plain strings and numbers
	}
	call := envs.Call{ID: fmt.Sprintf("call_%d", len(d.turns)), Name: tool, Arguments: raw}
	d.turns = append(d.turns, envs.Action{Text: strings.Join(d.working, "\n"), Calls: []envs.Call{call}})
	d.working = nil
}

// need asks for a fact that one result must show; alternatives are as good.
func (d *draft) need(facts ...rewards.Fact) { d.evidence = append(d.evidence, facts) }

func fact(tool string, pairs ...any) rewards.Fact {
	f := rewards.Fact{Tool: tool, Has: map[string]any{}}
	for i := 0; i < len(pairs); i += 2 {
		f.Has[pairs[i].(string)] = pairs[i+1]
	}
	return f
}

// Gold calls, with what they show.

func (d *draft) search(s weather.Station) {
	d.call("search_places", map[string]any{"query": s.City})
}

func (d *draft) current(s weather.Station, field string) weather.Current {
	c := d.w.Current(s)
	d.call("get_current", map[string]any{"station_id": s.ID})
	d.need(fact("get_current", "station_id", s.ID, field, currentFields[field].get(c)))
	return c
}

func (d *draft) daily(s weather.Station, n int) []weather.Day {
	d.call("get_daily_forecast", map[string]any{"station_id": s.ID, "days": n})
	days := make([]weather.Day, n)
	for i := range days {
		days[i] = d.w.Daily(s, d.w.Today().AddDate(0, 0, i))
	}
	return days
}

// history reads days back from the archive, page by page, and again where it is busy.
func (d *draft) history(s weather.Station, from time.Time, n int) []weather.Day {
	days := make([]weather.Day, n)
	for i := range days {
		days[i] = d.w.Daily(s, from.AddDate(0, 0, i))
	}
	args := map[string]any{"station_id": s.ID, "from_date": days[0].Date, "to_date": days[n-1].Date}
	if s.Flaky {
		d.call("get_history", args)
	}
	for start := 0; start < n; start += weather.HistoryPage {
		if start > 0 {
			args["cursor"] = fmt.Sprint(start)
		}
		d.call("get_history", args)
	}
	return days
}

func (d *draft) needDay(tool string, s weather.Station, day weather.Day, fields ...string) {
	f := fact(tool, "station_id", s.ID, "date", day.Date)
	for _, name := range fields {
		f.Has[name] = dayFields[name](day)
	}
	d.need(f)
}

// region lists the stations of a region, page by page.
func (d *draft) region(country, region string) []weather.Station {
	var all []weather.Station
	for _, s := range d.w.Stations {
		if s.Country == country && s.Region == region {
			all = append(all, s)
		}
	}
	args := map[string]any{"country": country, "region": region}
	for start := 0; start < len(all); start += weather.PageSize {
		if start > 0 {
			args["cursor"] = fmt.Sprint(start)
		}
		d.call("list_stations", args)
	}
	return all
}

// Answers.

func number(q fmt.Stringer, unit string) rewards.Value {
	return rewards.Value{Kind: "number", Value: q.String(), Unit: unit}
}

func text(s string) rewards.Value { return rewards.Value{Kind: "text", Value: s} }
func date(s string) rewards.Value { return rewards.Value{Kind: "date", Value: s} }

// Choices.

func (d *draft) station(ok func(weather.Station) bool) (weather.Station, bool) {
	for _, i := range d.Perm(len(d.w.Stations)) {
		if s := d.w.Stations[i]; ok(s) {
			return s, true
		}
	}
	return weather.Station{}, false
}

// plain is a station whose city has a name of its own and which is online.
func (d *draft) plain(s weather.Station) bool { return s.Online && d.namesakes(s) == 1 }

func (d *draft) namesakes(s weather.Station) int {
	n := 0
	for _, o := range d.w.Stations {
		if o.City == s.City {
			n++
		}
	}
	return n
}

// plainPair draws two plain stations that match.
func (d *draft) plainPair(match func(a, b weather.Station) bool) (a, b weather.Station, ok bool) {
	if a, ok = d.station(d.plain); !ok {
		return a, b, false
	}
	b, ok = d.station(func(s weather.Station) bool { return d.plain(s) && s.ID != a.ID && match(a, s) })
	return a, b, ok
}

type currentField struct {
	words []string
	get   func(weather.Current) fmt.Stringer
	unit  func(weather.Station) string
}

type whole int64

func (i whole) String() string               { return fmt.Sprint(int64(i)) }
func (i whole) MarshalJSON() ([]byte, error) { return []byte(i.String()), nil }

var currentFields = map[string]currentField{
	"temperature":  {[]string{"temperature"}, func(c weather.Current) fmt.Stringer { return c.Temperature }, weather.Station.TemperatureUnit},
	"humidity_pct": {[]string{"humidity", "relative humidity"}, func(c weather.Current) fmt.Stringer { return whole(c.Humidity) }, func(weather.Station) string { return "%" }},
	"pressure_hpa": {[]string{"air pressure", "barometric pressure", "pressure"}, func(c weather.Current) fmt.Stringer { return whole(c.Pressure) }, func(weather.Station) string { return "hPa" }},
	"wind_speed":   {[]string{"wind speed"}, func(c weather.Current) fmt.Stringer { return c.WindSpeed }, weather.Station.WindUnit},
}

var dayFields = map[string]func(weather.Day) any{
	"high":          func(d weather.Day) any { return d.High },
	"low":           func(d weather.Day) any { return d.Low },
	"precipitation": func(d weather.Day) any { return d.Precipitation },
	"wind_max":      func(d weather.Day) any { return d.WindMax },
}

// field draws one of the fields named, and one of its words.
func (d *draft) field(names ...string) (name, word string, f currentField) {
	name = names[d.IntN(len(names))]
	f = currentFields[name]
	return name, f.words[d.IntN(len(f.words))], f
}

// Working: what the gold solution writes down on its way from results to a call or an answer that no result holds as it is.

func (d *draft) write(format string, args ...any) {
	d.working = append(d.working, fmt.Sprintf(format, args...))
}

// best finds the index with the largest value, or the smallest where sign is -1, and writes down how; ok is false where another is as
// good.
func best[T any](d *draft, list []T, name func(T) string, value func(T) fmt.Stringer, sign int64) (at int, ok bool) {
	word := map[int64]string{1: "highest", -1: "lowest"}[sign]
	for i, x := range list {
		switch by := sign * (units(value(x)) - units(value(list[at]))); {
		case by > 0:
			at, ok = i, true
		case i == 0 || by == 0:
			ok = i == 0
		}
		d.write("%s: %s, %s %s: %s", name(x), value(x), word, name(list[at]), value(list[at]))
	}
	return at, ok
}

// diff is the difference without sign, written down.
func (d *draft) diff(a, b weather.Quantity) weather.Quantity {
	if a.Units < b.Units {
		a, b = b, a
	}
	q := spread(a, b)
	d.write("%s - %s = %s", a, b, q)
	return q
}

func spread(a, b weather.Quantity) weather.Quantity {
	return weather.Quantity{Units: a.Units - b.Units, Decimals: a.Decimals}
}

// count writes down the days from today to another.
func (d *draft) count(to time.Time) {
	for day := d.w.Today(); !day.After(to); day = day.AddDate(0, 0, 1) {
		d.write("%s %s", day.Weekday(), day.Format(time.DateOnly))
	}
}

func cityOf(s weather.Station) string   { return s.City }
func dateOf(x weather.Day) string       { return x.Date }
func highOf(x weather.Day) fmt.Stringer { return x.High }

// rat is the exact value of a quantity.
func rat(q weather.Quantity) *big.Rat {
	r, _ := new(big.Rat).SetString(q.String())
	return r
}
