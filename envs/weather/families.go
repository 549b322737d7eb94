package weather

import (
	"fmt"
	"math/big"
	"strings"
	"time"

	"github.com/mcpgym/mcpgym/rewards"
	"github.com/mcpgym/mcpgym/sandboxes/weather"
)

// families are those of train and test, from one call to six.
var families = []family{
	{"station-reading", stationReading},
	{"city-reading", cityReading},
	{"convert", convert},
	{"compare", compare},
	{"region-max", regionMax},
	{"threshold", threshold},
	{"date-arithmetic", dateArithmetic},
	{"driest-day", driestDay},
	{"plan", plan},
	{"offline", offline},
	{"namesake", namesake},
	{"unanswerable", unanswerable},
	{"busy-archive", busyArchive},
	{"history-max", historyMax},
	{"alert-duration", alertDuration},
	{"wind-peak", windPeak},
}

// oodFamilies compose tools in ways that families never do.
var oodFamilies = []family{
	{"compare-units", compareUnits},
	{"alert-warmest", alertWarmest},
	{"forecast-against-history", forecastAgainstHistory},
	{"windiest-pressure", windiestPressure},
	{"widest-day", widestDay},
}

// One call.
func stationReading(d *draft) bool {
	s, ok := d.station(func(s weather.Station) bool { return s.Online })
	if !ok {
		return false
	}
	name, word, f := d.field("humidity_pct", "pressure_hpa", "wind_speed", "temperature")
	d.answer = []rewards.Value{number(f.get(d.current(s, name)), f.unit(s))}
	return d.ask([]string{
		"What {word} does station {id} report at the moment?",
		"Read the {word} at weather station {id} for me.",
		"I need the current {word} from station {id}.",
		"Station {id}: what is the {word} right now?",
		"Please tell me the latest {word} measured by {id}.",
	}, "{word}", word, "{id}", s.ID)
}

// Two calls.
func cityReading(d *draft) bool {
	s, ok := d.station(d.plain)
	if !ok {
		return false
	}
	d.search(s)
	name, word, f := d.field("temperature", "humidity_pct", "pressure_hpa", "wind_speed")
	d.answer = []rewards.Value{number(f.get(d.current(s, name)), f.unit(s))}
	return d.ask([]string{
		"What is the {word} in {city}, {country} right now?",
		"How is it in {city} ({country}) at the moment? I want the {word}.",
		"Tell me the current {word} of {city} in {country}.",
		"{city}, {country}: current {word}?",
		"I am on my way to {city} in {country}. What {word} is measured there now?",
	}, "{word}", word, "{city}", s.City, "{country}", s.Country)
}

// A reading in a unit that the station does not use.
func convert(d *draft) bool {
	s, ok := d.station(d.plain)
	if !ok {
		return false
	}
	d.search(s)
	name, word, f := d.field("temperature", "wind_speed")
	q := f.get(d.current(s, name)).(weather.Quantity)
	from := f.unit(s)
	to := map[string]string{"C": "F", "F": "C", "km/h": "mph", "mph": "km/h"}[from]
	said := map[string]string{"C": "degrees Celsius", "F": "degrees Fahrenheit", "km/h": "km/h", "mph": "mph"}[to]
	d.call("convert_units", map[string]any{"value": q, "from": from, "to": to})
	out, err := weather.Convert(rat(q), from, to)
	if err != nil {
		return false
	}
	d.answer = []rewards.Value{{Kind: "number", Value: out, Tol: "0.06", Unit: to}}
	return d.ask([]string{
		"What is the {word} in {city}, {country} now, in {unit}?",
		"Give me the current {word} in {city} ({country}) in {unit}.",
		"In {unit}, what {word} does {city} in {country} have at the moment?",
		"I think in {unit}. What is the {word} in {city}, {country} right now?",
	}, "{word}", word, "{city}", s.City, "{country}", s.Country, "{unit}", said)
}

// Two cities: which is warmer, and by how much.
func compare(d *draft) bool {
	a, b, ok := d.plainPair(func(a, b weather.Station) bool { return a.Imperial == b.Imperial })
	if !ok {
		return false
	}
	d.search(a)
	d.search(b)
	ta, tb := d.current(a, "temperature").Temperature, d.current(b, "temperature").Temperature
	if ta == tb {
		return false
	}
	both := []weather.Station{a, b}
	at, _ := best(d, both, cityOf, func(s weather.Station) fmt.Stringer { return d.w.Current(s).Temperature }, 1)
	d.answer = []rewards.Value{text(both[at].City), number(d.diff(ta, tb), a.TemperatureUnit())}
	return d.ask([]string{
		"Which is warmer now, {a} in {ca} or {b} in {cb}, and by how many degrees? Give the city and the difference.",
		"Compare the current temperature in {a} ({ca}) with that in {b} ({cb}): name the warmer city and the difference.",
		"{a}, {ca} or {b}, {cb}: where is it warmer at the moment, and what is the difference in temperature?",
		"Is it warmer in {a} ({ca}) or in {b} ({cb}) right now? Answer with the warmer city, then by how much.",
	}, "{a}", a.City, "{b}", b.City, "{ca}", a.Country, "{cb}", b.Country)
}

// onlineRegion draws a region whose stations are all online, few enough for six calls.
func (d *draft) onlineRegion(most int) (country, region string, ok bool) {
	s, ok := d.station(func(s weather.Station) bool {
		n := 0
		for _, o := range d.w.Stations {
			if o.Region == s.Region && o.Country == s.Country {
				n++
				if !o.Online {
					return false
				}
			}
		}
		return n <= most
	})
	return s.Country, s.Region, ok
}

// All stations of a region: the extreme, and where.
func regionMax(d *draft) bool {
	country, region, ok := d.onlineRegion(4)
	if !ok {
		return false
	}
	all := d.region(country, region)
	name, _, f := d.field("temperature", "humidity_pct", "wind_speed")
	sign, word := int64(1), map[string]string{"temperature": "warmest", "humidity_pct": "most humid", "wind_speed": "windiest"}[name]
	if name == "temperature" && d.IntN(2) == 0 {
		sign, word = -1, "coldest"
	}
	for _, s := range all {
		d.current(s, name)
	}
	reading := func(s weather.Station) fmt.Stringer { return f.get(d.w.Current(s)) }
	at, unique := best(d, all, cityOf, reading, sign)
	if !unique {
		return false
	}
	d.answer = []rewards.Value{text(all[at].City), number(reading(all[at]), f.unit(all[at]))}
	return d.ask([]string{
		"Which city in the region {region} of {country} is the {word} right now, and what does its station measure? Give the city and the {field}.",
		"Find the {word} place in {region}, {country} at the moment. I want the city and its {field}.",
		"Among all stations in {region} ({country}), where is it {word} now? City, then {field}.",
		"Of all cities in {region}, {country}: name the {word} one at this moment, with its {field}.",
	}, "{word}", word, "{region}", region, "{country}", country, "{field}", f.words[0])
}

func yes(is bool) string {
	if is {
		return "yes"
	}
	return "no"
}

func units(v fmt.Stringer) int64 {
	switch v := v.(type) {
	case weather.Quantity:
		return v.Units
	case whole:
		return int64(v)
	}
	panic(fmt.Sprintf("units of a %T", v))
}

// The first forecast day over a threshold, with its value.
func threshold(d *draft) bool {
	s, ok := d.station(d.plain)
	if !ok {
		return false
	}
	d.search(s)
	days := d.daily(s, weather.ForecastDays)
	// A limit that the first days miss and a later one passes.
	most := days[0].High.Units
	at := 0
	for i, day := range days[1:] {
		if day.High.Units > most+10 && i+1 >= 1 {
			at = i + 1
			break
		}
		most = max(most, day.High.Units)
	}
	if at == 0 {
		return false
	}
	limit := most/10 + 1
	if most < 0 {
		limit = most / 10
	}
	if limit*10 <= most || limit*10 >= days[at].High.Units {
		return false
	}
	for _, day := range days[:at+1] {
		d.needDay("get_daily_forecast", s, day, "high")
		d.write("%s: %s, %s", day.Date, day.High, yes(day.High.Units > limit*10))
	}
	d.answer = []rewards.Value{date(days[at].Date), number(days[at].High, s.TemperatureUnit())}
	return d.ask([]string{
		"On which day of the 7-day forecast for {city}, {country} does the high first go above {limit} {unit}, and what is that high? Give date and high.",
		"When is the forecast high in {city} ({country}) above {limit} {unit} for the first time in the next 7 days including today? Date, then the high.",
		"Looking at the coming 7 days from today in {city}, {country}: first date with a high over {limit} {unit}, and the high of that date?",
		"I wait for a high of more than {limit} {unit} in {city}, {country}. Give the first such date within the 7-day forecast, and its high.",
	}, "{city}", s.City, "{country}", s.Country, "{limit}", fmt.Sprint(limit), "{unit}", s.TemperatureUnit())
}

// A day named relative to the clock.
func dateArithmetic(d *draft) bool {
	s, ok := d.station(d.plain)
	if !ok {
		return false
	}
	ahead := 1 + d.IntN(6)
	day := d.w.Today().AddDate(0, 0, ahead)
	when := fmt.Sprintf("in %d days", ahead)
	switch {
	case ahead == 1:
		when = "tomorrow"
	case ahead == 2 && d.IntN(2) == 0:
		when = "the day after tomorrow"
	case d.IntN(2) == 0:
		when = "on the coming " + day.Weekday().String()
	}
	hour := d.IntN(24)
	d.call("get_time", map[string]any{})
	d.search(s)
	d.count(day)
	d.call("get_hourly_forecast", map[string]any{"station_id": s.ID, "date": day.Format(time.DateOnly), "from_hour": hour})
	h := d.w.Hourly(s, day.Add(time.Duration(hour)*time.Hour))
	f := fact("get_hourly_forecast", "station_id", s.ID, "date", day.Format(time.DateOnly), "hour", hour, "temperature", h.Temperature)
	word, value, unit := "temperature", fmt.Stringer(h.Temperature), s.TemperatureUnit()
	if d.IntN(3) == 0 {
		word, value, unit = "chance of rain", whole(h.RainChance), "%"
		delete(f.Has, "temperature")
		f.Has["rain_chance_pct"] = h.RainChance
	}
	d.need(f)
	d.answer = []rewards.Value{number(value, unit)}
	return d.ask([]string{
		"What {word} is forecast for {city}, {country} {when} at {hour}:00?",
		"At {hour}:00 {when}, which {word} is expected in {city} ({country})?",
		"{city}, {country}: forecast {word} {when}, {hour}:00?",
		"I will be in {city} in {country} {when} at {hour}:00. What {word} does the forecast give?",
	}, "{word}", word, "{city}", s.City, "{country}", s.Country, "{when}", when, "{hour}", fmt.Sprint(hour))
}

// The driest of seven days, with its high.
func driestDay(d *draft) bool {
	s, ok := d.station(d.plain)
	if !ok {
		return false
	}
	d.search(s)
	days := d.daily(s, weather.ForecastDays)
	sign, word := int64(-1), "least"
	if d.IntN(2) == 0 {
		sign, word = 1, "most"
	}
	at, unique := best(d, days, dateOf, func(x weather.Day) fmt.Stringer { return x.Precipitation }, sign)
	if !unique {
		return false
	}
	for i, day := range days {
		if i == at {
			d.needDay("get_daily_forecast", s, day, "precipitation", "high")
		} else {
			d.needDay("get_daily_forecast", s, day, "precipitation")
		}
	}
	d.answer = []rewards.Value{date(days[at].Date), number(days[at].High, s.TemperatureUnit())}
	return d.ask([]string{
		"Which of the 7 forecast days in {city}, {country} has the {word} precipitation, and what high is forecast for it? Give date and high.",
		"In the next 7 days including today, when is the {word} precipitation expected in {city} ({country})? Date, then the high of that day.",
		"Find the day with the {word} precipitation in the 7-day forecast for {city}, {country}; answer with the date and its high.",
		"{city}, {country}: date with the {word} precipitation over the coming 7 days from today, and that day's high?",
	}, "{word}", word, "{city}", s.City, "{country}", s.Country)
}

// The earliest day that meets every constraint, alerts included.
func plan(d *draft) bool {
	s, ok := d.station(d.plain)
	if !ok {
		return false
	}
	d.search(s)
	days := d.daily(s, weather.ForecastDays)
	d.call("get_alerts", map[string]any{"country": s.Country})
	warned := func(day weather.Day) bool {
		for _, a := range d.w.Alerts {
			start, _ := time.Parse(time.DateOnly, day.Date)
			if a.Country == s.Country && a.Region == s.Region && a.Starts.Before(start.AddDate(0, 0, 1)) && a.Ends.After(start) {
				return true
			}
		}
		return false
	}
	low, wind := days[d.IntN(7)].High.Units/10, days[d.IntN(7)].WindMax.Units
	warm, calm := func(day weather.Day) bool { return day.High.Units >= low*10 }, func(day weather.Day) bool { return day.WindMax.Units <= wind }
	fits := func(day weather.Day) bool { return warm(day) && calm(day) }
	at, alerted := -1, false
	for i, day := range days {
		if fits(day) && !warned(day) {
			at = i
			break
		}
		alerted = alerted || fits(day)
	}
	if at < 1 || !alerted { // some day must fall to an alert alone, or looking at alerts would not matter
		return false
	}
	for _, day := range days[:at+1] {
		d.needDay("get_daily_forecast", s, day, "high", "wind_max")
		line := fmt.Sprintf("%s: high %s %s", day.Date, day.High, yes(warm(day)))
		if warm(day) {
			line += fmt.Sprintf(", wind %s %s", day.WindMax, yes(calm(day)))
		}
		if fits(day) {
			line += ", alert " + yes(warned(day))
		}
		d.write("%s", line)
	}
	d.need(fact("get_alerts", "country", s.Country))
	d.answer = []rewards.Value{date(days[at].Date), number(days[at].High, s.TemperatureUnit())}
	return d.ask([]string{
		"I plan a hike in {city}, {country}. Find the earliest day of the 7-day forecast with a high of at least {low} {tu}, a strongest wind of at most {wind} {wu}, and no alert for its region at any time of that day. Give date and high.",
		"For an outdoor concert in {city} ({country}) I need a day with a high of {low} {tu} or more, wind never above {wind} {wu}, and no weather alert for the region on that day. Which is the first within the 7 forecast days from today, and what is its high?",
		"Earliest date in the coming 7 days from today in {city}, {country} that has high >= {low} {tu}, strongest wind <= {wind} {wu}, and is untouched by alerts for the region? Answer with date and high.",
		"We want to sail near {city} in {country}: no alert in the region that day, wind at most {wind} {wu}, high at least {low} {tu}. First suitable date of the 7-day forecast, and the high?",
	}, "{city}", s.City, "{country}", s.Country, "{low}", fmt.Sprint(low), "{wind}", fmt.Sprint(wind), "{tu}", s.TemperatureUnit(), "{wu}", s.WindUnit())
}

// A station that is offline: there is no answer, but one has to look.
func offline(d *draft) bool {
	s, ok := d.station(func(s weather.Station) bool { return !s.Online && d.namesakes(s) == 1 })
	if !ok {
		return false
	}
	d.search(s)
	d.call("get_current", map[string]any{"station_id": s.ID})
	d.need(fact("", "station_id", s.ID, "status", "offline"))
	d.answer = []rewards.Value{rewards.NoData()}
	_, word, _ := d.field("temperature", "humidity_pct", "pressure_hpa", "wind_speed")
	return d.ask([]string{
		"What is the {word} in {city}, {country} right now?",
		"Tell me the current {word} of {city} in {country}.",
		"{city}, {country}: current {word}?",
		"How is it in {city} ({country}) at the moment? I want the {word}.",
	}, "{word}", word, "{city}", s.City, "{country}", s.Country)
}

// A name that two countries share.
func namesake(d *draft) bool {
	s, ok := d.station(func(s weather.Station) bool { return s.Online && d.namesakes(s) > 1 })
	if !ok {
		return false
	}
	d.search(s)
	name, word, f := d.field("temperature", "humidity_pct", "pressure_hpa", "wind_speed")
	place := func(s weather.Station) string { return s.Country }
	if d.IntN(2) == 0 {
		place = func(s weather.Station) string { return s.Region }
	}
	where := place(s)
	for _, o := range d.w.Stations {
		if o.City == s.City {
			d.write("%s: %s, %s, %s", o.ID, o.Region, o.Country, yes(place(o) == where))
		}
	}
	d.answer = []rewards.Value{number(f.get(d.current(s, name)), f.unit(s))}
	return d.ask([]string{
		"There are two places called {city}. What {word} is measured now in the one in {where}?",
		"I mean {city} in {where}, not the other one: what is the {word} at the moment?",
		"Current {word} in {city}, the one that lies in {where}?",
		"What is the {word} right now in the {city} that belongs to {where}?",
	}, "{word}", word, "{city}", s.City, "{where}", where)
}

// Something that no tool knows: abstaining is right, after looking at the place.
func unanswerable(d *draft) bool {
	s, ok := d.station(d.plain)
	if !ok {
		return false
	}
	d.search(s)
	d.call("get_current", map[string]any{"station_id": s.ID})
	any := []rewards.Fact{}
	for _, tool := range []string{"get_current", "get_hourly_forecast", "get_daily_forecast", "get_history"} {
		any = append(any, fact(tool, "station_id", s.ID))
	}
	d.need(any...)
	d.answer = []rewards.Value{rewards.NoData()}
	what := strings.Fields("pollen-count UV-index snow-depth water-temperature visibility ozone-level soil-moisture tide-height")
	return d.ask([]string{
		"What is the {what} in {city}, {country} right now?",
		"Tell me the current {what} of {city} in {country}.",
		"{city}, {country}: current {what}?",
		"How is it in {city} ({country}) at the moment? I want the {what}.",
	}, "{what}", strings.ReplaceAll(what[d.IntN(len(what))], "-", " "), "{city}", s.City, "{country}", s.Country)
}

// past draws n days of the archive.
func (d *draft) past(n int) time.Time {
	return d.w.Today().AddDate(0, 0, -n-d.IntN(weather.HistoryDays-n+1))
}

// A sum over observed days; the archive refuses once.
func busyArchive(d *draft) bool {
	s, ok := d.station(func(s weather.Station) bool { return d.plain(s) && s.Flaky })
	if !ok {
		return false
	}
	d.search(s)
	days := d.history(s, d.past(3+d.IntN(3)), 3)
	sum := weather.Quantity{Decimals: days[0].Precipitation.Decimals}
	for _, day := range days {
		d.needDay("get_history", s, day, "precipitation")
		sum.Units += day.Precipitation.Units
		d.write("%s: %s, total %s", day.Date, day.Precipitation, sum)
	}
	if sum.Units == 0 {
		return false
	}
	d.answer = []rewards.Value{number(sum, s.RainUnit())}
	return d.ask([]string{
		"How much precipitation fell in {city}, {country} from {from} to {to} in total?",
		"Total precipitation observed in {city} ({country}) between {from} and {to}, both included?",
		"Add up the precipitation of {city} in {country} for {from} to {to}.",
		"From {from} to {to}, what was the total precipitation in {city}, {country}?",
	}, "{city}", s.City, "{country}", s.Country, "{from}", days[0].Date, "{to}", days[2].Date)
}

// The extreme of more days than one page holds.
func historyMax(d *draft) bool {
	s, ok := d.station(func(s weather.Station) bool { return d.plain(s) && !s.Flaky })
	if !ok {
		return false
	}
	d.search(s)
	n := 6 + d.IntN(5)
	days := d.history(s, d.past(n), n)
	at, unique := best(d, days, dateOf, highOf, 1)
	if !unique {
		return false
	}
	for _, day := range days {
		d.needDay("get_history", s, day, "high")
	}
	d.answer = []rewards.Value{date(days[at].Date), number(days[at].High, s.TemperatureUnit())}
	return d.ask([]string{
		"Which was the hottest day in {city}, {country} from {from} to {to}, by its high? Give date and high.",
		"Between {from} and {to}, both included, on which date did {city} ({country}) have its highest high, and how high was it?",
		"Look through the observed days {from} to {to} for {city} in {country}: date of the greatest high, then that high.",
		"{city}, {country}, {from} to {to}: when was the high at its maximum, and what was it?",
	}, "{city}", s.City, "{country}", s.Country, "{from}", days[0].Date, "{to}", days[n-1].Date)
}

// minutes is how the service writes times.
const minutes = "2006-01-02T15:04"

// How long an alert lasts.
func alertDuration(d *draft) bool {
	if len(d.w.Alerts) == 0 {
		return false
	}
	a := d.w.Alerts[d.IntN(len(d.w.Alerts))]
	d.call("get_alerts", map[string]any{"country": a.Country})
	d.need(fact("get_alerts", "country", a.Country, "region", a.Region, "kind", a.Kind, "starts", a.Starts.Format(minutes), "ends", a.Ends.Format(minutes)))
	d.write("%s: %s to %s", a.Kind, a.Starts.Format(minutes), a.Ends.Format(minutes))
	for from := a.Starts; from.Before(a.Ends); {
		to := from.Truncate(24*time.Hour).AddDate(0, 0, 1)
		if to.After(a.Ends) {
			to = a.Ends
		}
		d.write("%s: %d, total %d", from.Format(time.DateOnly), to.Sub(from)/time.Hour, to.Sub(a.Starts)/time.Hour)
		from = to
	}
	d.answer = []rewards.Value{number(whole(a.Ends.Sub(a.Starts)/time.Hour), "h")}
	return d.ask([]string{
		"For how many hours does the {kind} alert for {region} in {country} last, from its start to its end?",
		"There is a {kind} alert in {region}, {country}. How many hours long is it in all?",
		"Duration in hours of the {kind} alert for the region {region} of {country}?",
		"How many hours lie between start and end of the {kind} alert in {region} ({country})?",
	}, "{kind}", a.Kind, "{region}", a.Region, "{country}", a.Country)
}

// The windiest hour of a span that takes two pages.
func windPeak(d *draft) bool {
	s, ok := d.station(d.plain)
	if !ok {
		return false
	}
	from := d.IntN(12)
	day := d.w.Today().AddDate(0, 0, 1)
	d.call("get_time", map[string]any{})
	d.search(s)
	d.count(day)
	var hours []weather.Hour
	for h := from; h < from+12; h++ {
		if (h-from)%weather.HourlyPage == 0 {
			d.call("get_hourly_forecast", map[string]any{"station_id": s.ID, "date": day.Format(time.DateOnly), "from_hour": h})
		}
		x := d.w.Hourly(s, day.Add(time.Duration(h)*time.Hour))
		hours = append(hours, x)
		d.need(fact("get_hourly_forecast", "station_id", s.ID, "date", day.Format(time.DateOnly), "hour", h, "wind_speed", x.WindSpeed))
	}
	at, unique := best(d, hours, func(h weather.Hour) string { return fmt.Sprint(h.Hour) }, func(h weather.Hour) fmt.Stringer { return h.WindSpeed }, 1)
	if !unique {
		return false
	}
	hour := fmt.Sprint(hours[at].Hour)
	d.answer = []rewards.Value{
		{Kind: "text", Value: hour, Accept: []string{hour + ":00", fmt.Sprintf("%02d:00", hours[at].Hour), fmt.Sprintf("%02d", hours[at].Hour)}},
		number(hours[at].WindSpeed, s.WindUnit()),
	}
	return d.ask([]string{
		"Tomorrow between {from}:00 and {to}:00 (both included), at which full hour is the strongest wind forecast in {city}, {country}, and how strong is it? Give the hour and the wind speed.",
		"When does the wind peak in {city} ({country}) tomorrow from {from}:00 to {to}:00, going by the hourly forecast? Hour, then wind speed.",
		"{city}, {country}: hour with the highest forecast wind speed tomorrow, looking at the hours {from} to {to}, and that speed?",
		"Find the windiest hour tomorrow in {city} in {country}, from hour {from} to hour {to}; answer with the hour and its wind speed.",
	}, "{city}", s.City, "{country}", s.Country, "{from}", fmt.Sprint(from), "{to}", fmt.Sprint(from+11))
}

// The compositions that train lacks.

// Two cities that report in different units.
func compareUnits(d *draft) bool {
	a, b, ok := d.plainPair(func(a, b weather.Station) bool { return !a.Imperial && b.Imperial })
	if !ok || a.Imperial {
		return false
	}
	d.search(a)
	d.search(b)
	ta, tb := d.current(a, "temperature").Temperature, d.current(b, "temperature").Temperature
	d.call("convert_units", map[string]any{"value": tb, "from": "F", "to": "C"})
	conv, err := weather.Convert(rat(tb), "F", "C")
	if err != nil {
		return false
	}
	c, ok := new(big.Rat).SetString(conv)
	if !ok {
		return false
	}
	delta := new(big.Rat).Sub(rat(ta), c)
	warmer := a
	if delta.Sign() < 0 {
		warmer = b
	}
	if delta.Abs(delta).Cmp(big.NewRat(3, 10)) < 0 {
		return false
	}
	d.write("%s: %s", a.City, ta)
	d.write("%s: %s", b.City, conv)
	d.answer = []rewards.Value{text(warmer.City), {Kind: "number", Value: delta.FloatString(1), Tol: "0.11", Unit: "C"}}
	return d.ask([]string{
		"Which is warmer now, {a} in {ca} or {b} in {cb}, and by how many degrees Celsius? Give the city and the difference.",
		"{a} ({ca}) and {b} ({cb}) report in different units. Where is it warmer at the moment, and by how much in degrees Celsius?",
		"Name the warmer of {b}, {cb} and {a}, {ca} right now, and the difference in degrees Celsius.",
	}, "{a}", a.City, "{b}", b.City, "{ca}", a.Country, "{cb}", b.Country)
}

// The region follows from an alert.
func alertWarmest(d *draft) bool {
	if len(d.w.Alerts) == 0 {
		return false
	}
	a := d.w.Alerts[d.IntN(len(d.w.Alerts))]
	for _, o := range d.w.Alerts {
		if o.Country == a.Country && o.Kind == a.Kind && o.Region != a.Region {
			return false
		}
	}
	d.call("get_alerts", map[string]any{"country": a.Country})
	d.need(fact("get_alerts", "country", a.Country, "region", a.Region, "kind", a.Kind))
	all := d.region(a.Country, a.Region)
	if len(all) > 4 {
		return false
	}
	for _, s := range all {
		if !s.Online {
			return false
		}
		d.current(s, "temperature")
	}
	reading := func(s weather.Station) fmt.Stringer { return d.w.Current(s).Temperature }
	at, unique := best(d, all, cityOf, reading, 1)
	if !unique {
		return false
	}
	d.answer = []rewards.Value{text(all[at].City), number(reading(all[at]), all[at].TemperatureUnit())}
	return d.ask([]string{
		"One region of {country} is under a {kind} alert. Which city of that region is the warmest right now, and what is its temperature?",
		"In the region of {country} that has the {kind} alert, where is it warmest at the moment? Give the city and its temperature.",
		"Look up which region in {country} the {kind} alert is for; then name that region's warmest city now and its temperature.",
	}, "{country}", a.Country, "{kind}", a.Kind)
}

// Forecast and archive together.
func forecastAgainstHistory(d *draft) bool {
	s, ok := d.station(d.plain)
	if !ok {
		return false
	}
	d.search(s)
	days := d.daily(s, 2)
	n := 3 + d.IntN(3)
	past := d.history(s, d.w.Today().AddDate(0, 0, -n), n)
	at, _ := best(d, past, dateOf, highOf, 1)
	for _, day := range past {
		d.needDay("get_history", s, day, "high")
	}
	d.needDay("get_daily_forecast", s, days[1], "high")
	delta := d.diff(days[1].High, past[at].High)
	if delta.Units == 0 {
		return false
	}
	d.answer = []rewards.Value{number(delta, s.TemperatureUnit())}
	return d.ask([]string{
		"By how many degrees does tomorrow's forecast high in {city}, {country} differ from the highest high of the last {n} days before today?",
		"Take the highest high of {city} ({country}) over the {n} days up to yesterday, and tomorrow's forecast high. How far apart are they?",
		"What is the difference, without sign, between tomorrow's forecast high in {city}, {country} and the greatest high observed there in the past {n} days?",
	}, "{city}", s.City, "{country}", s.Country, "{n}", fmt.Sprint(n))
}

// The extreme of one quantity, the value of another.
func windiestPressure(d *draft) bool {
	country, region, ok := d.onlineRegion(4)
	if !ok {
		return false
	}
	all := d.region(country, region)
	for _, s := range all {
		d.current(s, "wind_speed")
	}
	at, unique := best(d, all, cityOf, func(s weather.Station) fmt.Stringer { return d.w.Current(s).WindSpeed }, 1)
	if !unique {
		return false
	}
	pressure := d.w.Current(all[at]).Pressure
	d.need(fact("get_current", "station_id", all[at].ID, "pressure_hpa", pressure))
	d.answer = []rewards.Value{text(all[at].City), number(whole(pressure), "hPa")}
	return d.ask([]string{
		"What is the air pressure at the windiest station of {region}, {country} right now? Give its city and the pressure.",
		"Find the city with the strongest wind in {region} ({country}) at the moment and report its air pressure: city, then pressure.",
		"Among the stations of {region} in {country}, take the one with the highest wind speed now. Which city is it, and what is its pressure?",
	}, "{region}", region, "{country}", country)
}

// A value that no result holds: the spread between high and low.
func widestDay(d *draft) bool {
	s, ok := d.station(d.plain)
	if !ok {
		return false
	}
	d.search(s)
	days := d.daily(s, weather.ForecastDays)
	width := func(x weather.Day) fmt.Stringer { return spread(x.High, x.Low) }
	at, unique := best(d, days, dateOf, width, 1)
	if !unique {
		return false
	}
	for _, day := range days {
		d.needDay("get_daily_forecast", s, day, "high", "low")
	}
	d.answer = []rewards.Value{date(days[at].Date), number(width(days[at]), s.TemperatureUnit())}
	return d.ask([]string{
		"On which of the 7 forecast days in {city}, {country} is the gap between high and low widest, and how wide is it? Give date and gap.",
		"Within the 7-day forecast for {city} ({country}), find the day with the largest difference between its high and its low; answer with the date and the difference.",
		"{city}, {country}: which date of the coming 7 days from today has the biggest spread from low to high, and what is the spread?",
	}, "{city}", s.City, "{country}", s.Country)
}
