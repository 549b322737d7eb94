// Package weather is an invented weather service: a world made from a seed, and an MCP server over it.
//
// Everything follows from the seed: places, stations, alerts, the fixed clock, and what each station measures and forecasts.
// Observed days are past, forecasts begin today; a forecast hour need not equal what is observed then.
package weather

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/mcpgym/mcpgym/sandboxes"
)

// Version of the generator and of the tools: part of the identity, changed whenever either changes.
const Version = "2"

// Sizes of a world, and of what its tools return at once.
const (
	Countries         = 4
	RegionsPerCountry = 2
	minStations       = 3 // of a region
	maxStations       = 5
	PageSize          = 4  // places and stations
	HistoryPage       = 5  // days
	HistoryDays       = 30 // that the archive keeps
	HourlyPage        = 6  // hours
	ForecastDays      = 7
)

// World is one weather service. Its data never change; only the archive's busy signal depends on earlier calls.
type World struct {
	Now      time.Time // UTC, on the hour
	Country  []Country
	Stations []Station // sorted by ID
	Alerts   []Alert   // sorted by ID

	seed uint64

	mu   sync.Mutex
	busy []string // stations whose archive has refused once
}

// Country has one system of units for all its stations.
type Country struct {
	Name     string
	Imperial bool
	Regions  []string
}

// Station is the one weather station of a city. Two cities of different countries may share a name.
type Station struct {
	ID, City, Country, Region string
	Imperial                  bool
	Online                    bool
	LastReport                string // of an offline station
	Flaky                     bool   // the archive refuses the first request for it

	base int64 // mean temperature, tenths of a degree Celsius
	key  uint64
}

// Alert is a warning for one region.
type Alert struct {
	ID, Kind, Severity, Country, Region string
	Starts, Ends                        time.Time
}

// Kinds and severities of alerts.
var (
	AlertKinds      = []string{"storm", "heat", "frost", "flood", "fog", "dust"}
	AlertSeverities = []string{"minor", "moderate", "severe"}
)

const hourForm = "2006-01-02T15:04"

// New makes the world of a seed.
func New(seed uint64) *World {
	r := rand.New(rand.NewPCG(seed, 0x77656174686572))
	day := time.Date(2031, 1, 1, 0, 0, 0, 0, time.UTC).AddDate(0, 0, r.IntN(1400))
	w := &World{Now: day.Add(time.Duration(6+r.IntN(12)) * time.Hour), seed: seed,
		Country: make([]Country, 0, Countries), Stations: make([]Station, 0, Countries*RegionsPerCountry*maxStations)}
	names := namer{r: r, used: make([]string, 0, Countries*(1+RegionsPerCountry*(1+maxStations)))}
	for range Countries {
		c := Country{Name: names.next(countryEnds), Imperial: len(w.Country)%2 == 1}
		for range RegionsPerCountry {
			c.Regions = append(c.Regions, regionHeads[r.IntN(len(regionHeads))]+" "+names.next(cityEnds))
		}
		w.Country = append(w.Country, c)
		for _, region := range c.Regions {
			for range minStations + r.IntN(maxStations-minStations+1) {
				s := Station{City: names.next(cityEnds), Country: c.Name, Region: region, Imperial: c.Imperial, Online: true, base: int64(r.IntN(300)) - 30, key: r.Uint64(), Flaky: r.IntN(3) == 0}
				s.ID = w.newID(r)
				w.Stations = append(w.Stations, s)
			}
		}
	}
	// Two city names stand for a place in one country and another in the next; two stations are offline.
	for i := range 2 {
		a, b := w.pick(r, 2*i), w.pick(r, 2*i+1)
		w.Stations[b].City = w.Stations[a].City
	}
	for i := range 2 {
		s := &w.Stations[w.pick(r, i+1)]
		s.Online = false
		s.LastReport = w.Now.Add(-time.Duration(20+r.IntN(200)) * time.Hour).Format(hourForm)
	}
	slices.SortFunc(w.Stations, func(a, b Station) int { return strings.Compare(a.ID, b.ID) })
	for _, c := range w.Country {
		for _, region := range c.Regions {
			kinds := r.Perm(len(AlertKinds))
			for i := range r.IntN(3) {
				from := w.Now.Truncate(24 * time.Hour).Add(time.Duration(r.IntN(5*24)-24) * time.Hour)
				a := Alert{ID: fmt.Sprintf("A-%02d%02d", r.IntN(100), len(w.Alerts)), Kind: AlertKinds[kinds[i]], Severity: AlertSeverities[r.IntN(3)],
					Region: region, Country: c.Name, Starts: from, Ends: from.Add(time.Duration(12+r.IntN(60)) * time.Hour)}
				w.Alerts = append(w.Alerts, a)
			}
		}
	}
	slices.SortFunc(w.Alerts, func(a, b Alert) int { return cmp.Or(strings.Compare(a.ID, b.ID), strings.Compare(a.Region, b.Region)) })
	return w
}

// pick draws a station of a country, by index, before stations are sorted.
func (w *World) pick(r *rand.Rand, country int) int {
	for {
		if i := r.IntN(len(w.Stations)); w.Stations[i].Country == w.Country[country].Name {
			return i
		}
	}
}

// namer invents names that do not repeat within a world.
type namer struct {
	r    *rand.Rand
	used []string
}

var (
	onsets      = strings.Fields("b br d dr f g gr h j k kl kr l m n p pl r s sk st t tr v vr w z")
	nuclei      = strings.Fields("a e i o u ae ei ia oa ou")
	codas       = strings.Fields("l m n r s st nd rk th sk ld x")
	cityEnds    = strings.Fields("a en o ia um ick ava ora ell une ost aby uri")
	countryEnds = strings.Fields("ia land mark avia or une esh istan")
	regionHeads = strings.Fields("Upper Lower North South East West Old New Inner Outer")
)

func (n *namer) next(ends []string) string {
	draw := func(from []string) string { return from[n.r.IntN(len(from))] }
	for {
		var buf [32]byte
		b := append(buf[:0], draw(onsets)...)
		b = append(b, draw(nuclei)...)
		b = append(b, draw(codas)...)
		if n.r.IntN(2) == 0 {
			b = append(b, draw(nuclei)...)
			b = append(b, draw(onsets)...)
		}
		b = append(b, draw(ends)...)
		b[0] -= 'a' - 'A'
		if s := string(b); !slices.Contains(n.used, s) {
			n.used = append(n.used, s)
			return s
		}
	}
}

func (w *World) newID(r *rand.Rand) string {
	for {
		b := [8]byte{3: '-'}
		for i := range 3 {
			b[i] = byte('A' + r.IntN(26))
		}
		number := 1000 + r.IntN(9000)
		for i := 7; i > 3; i-- {
			b[i] = byte('0' + number%10)
			number /= 10
		}
		if id := string(b[:]); !slices.ContainsFunc(w.Stations, func(s Station) bool { return s.ID == id }) {
			return id
		}
	}
}

// Station finds a station by its ID.
func (w *World) Station(id string) (Station, bool) {
	i, ok := slices.BinarySearchFunc(w.Stations, id, func(s Station, id string) int { return strings.Compare(s.ID, id) })
	if !ok {
		return Station{}, false
	}
	return w.Stations[i], true
}

// Today is the day of the clock.
func (w *World) Today() time.Time { return w.Now.Truncate(24 * time.Hour) }

// mix is the finaliser of splitmix64 (Steele, Lea, Flood 2014).
func mix(x uint64) uint64 {
	x += 0x9E3779B97F4A7C15
	x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9
	x = (x ^ (x >> 27)) * 0x94D049BB133111EB
	return x ^ (x >> 31)
}

// draw gives a number in [0, n) that depends on the station, a kind of quantity and a time.
func (s Station) draw(kind uint64, at time.Time, n int64) int64 {
	return int64(mix(s.key^mix(kind<<48^uint64(at.Unix()/3600))) % uint64(n))
}

// Kinds of quantities for draw.
const (
	kDay uint64 = iota + 1
	kNoise
	kForecast
	kHigh
	kLow
	kDayWind
	kWind
	kGust
	kHumidity
	kPressure
	kRain
	kRainAmount
	kChance
)

// diurnal is the daily course of the temperature in tenths of a degree, hour by hour.
var diurnal = [24]int64{-38, -42, -45, -47, -48, -46, -38, -25, -10, 6, 20, 32, 41, 47, 50, 49, 43, 33, 20, 7, -5, -16, -25, -32}

// celsius is the temperature of an hour, in tenths of a degree.
func (s Station) celsius(at time.Time) int64 {
	day := at.Truncate(24 * time.Hour)
	return s.base + s.draw(kDay, day, 120) - 60 + diurnal[at.Hour()]*(60+s.draw(kDay, day.Add(time.Hour), 80))/100 + s.draw(kNoise, at, 15) - 7
}

// forecast is the temperature that is forecast for an hour, in tenths of a degree: near what it will be.
func (s Station) forecast(at time.Time) int64 { return s.celsius(at) + s.draw(kForecast, at, 31) - 15 }

// strongest is the strongest wind of a day in km/h, of which kmh is a part in each hour, as measured (kWind) or forecast (kGust).
func (s Station) strongest(day time.Time) int64 { return 12 + s.draw(kDayWind, day, 90) }

func (s Station) kmh(kind uint64, at time.Time) int64 {
	return s.strongest(at.Truncate(24*time.Hour)) * s.draw(kind, at, 96) / 100
}

// Quantity is a number with one or two decimals, kept exactly.
type Quantity struct {
	Units    int64 // of 10^-Decimals
	Decimals int
}

func (q Quantity) String() string {
	if q.Decimals == 0 {
		return strconv.FormatInt(q.Units, 10)
	}
	sign, u := "", q.Units
	if u < 0 {
		sign, u = "-", -u
	}
	s := fmt.Sprintf("%0*d", q.Decimals+1, u)
	return sign + s[:len(s)-q.Decimals] + "." + s[len(s)-q.Decimals:]
}

// MarshalJSON writes the number as it is said.
func (q Quantity) MarshalJSON() ([]byte, error) { return []byte(q.String()), nil }

func (s Station) temperature(tenths int64) Quantity {
	if s.Imperial {
		tenths = divRound(tenths*9, 5) + 320
	}
	return Quantity{tenths, 1}
}

func (s Station) speed(kmh int64) Quantity {
	if s.Imperial {
		kmh = divRound(kmh*621371, 1000000)
	}
	return Quantity{kmh, 0}
}

func (s Station) rain(tenths int64) Quantity {
	if s.Imperial {
		return Quantity{divRound(tenths*1000, 2540), 2} // tenths of a millimetre to hundredths of an inch
	}
	return Quantity{tenths, 1}
}

// divRound divides and rounds half away from zero; b > 0.
func divRound(a, b int64) int64 {
	if a < 0 {
		return -((-a + b/2) / b)
	}
	return (a + b/2) / b
}

// TemperatureUnit, WindUnit and RainUnit are the units in which the station reports.
func (s Station) TemperatureUnit() string { return s.choose("C", "F") }
func (s Station) WindUnit() string        { return s.choose("km/h", "mph") }
func (s Station) RainUnit() string        { return s.choose("mm", "in") }

func (s Station) choose(metric, imperial string) string {
	if s.Imperial {
		return imperial
	}
	return metric
}

// Current is what a station measures now.
type Current struct {
	StationID       string   `json:"station_id"`
	ObservedAt      string   `json:"observed_at"`
	Temperature     Quantity `json:"temperature"`
	TemperatureUnit string   `json:"temperature_unit"`
	Humidity        int64    `json:"humidity_pct"`
	Pressure        int64    `json:"pressure_hpa"`
	WindSpeed       Quantity `json:"wind_speed"`
	WindUnit        string   `json:"wind_unit"`
}

// Current reads a station that is online.
func (w *World) Current(s Station) Current {
	return Current{StationID: s.ID, ObservedAt: w.Now.Format(hourForm), Temperature: s.temperature(s.celsius(w.Now)), TemperatureUnit: s.TemperatureUnit(),
		Humidity: 10 + s.draw(kHumidity, w.Now, 90), Pressure: 955 + s.draw(kPressure, w.Now, 95), WindSpeed: s.speed(s.kmh(kWind, w.Now)), WindUnit: s.WindUnit()}
}

// Hour is the forecast for one hour.
type Hour struct {
	Hour        int      `json:"hour"`
	Temperature Quantity `json:"temperature"`
	WindSpeed   Quantity `json:"wind_speed"`
	RainChance  int64    `json:"rain_chance_pct"`
}

// Hourly forecasts one hour.
func (w *World) Hourly(s Station, at time.Time) Hour {
	return Hour{Hour: at.Hour(), Temperature: s.temperature(s.forecast(at)), WindSpeed: s.speed(s.kmh(kGust, at)), RainChance: s.draw(kChance, at, 101)}
}

// Day is the forecast for a day, or what was observed on it. High and low are taken between the hours: every hour of the day,
// measured or forecast, lies between them, and no hour has more wind than the strongest.
type Day struct {
	Date          string   `json:"date"`
	High          Quantity `json:"high"`
	Low           Quantity `json:"low"`
	Precipitation Quantity `json:"precipitation"`
	WindMax       Quantity `json:"wind_max"`
}

// Daily gives a day: observed before today, forecast from today on.
func (w *World) Daily(s Station, day time.Time) Day {
	high, low := s.celsius(day), s.celsius(day)
	for h := range 24 {
		at := day.Add(time.Duration(h) * time.Hour)
		c, f := s.celsius(at), s.forecast(at)
		high, low = max(high, c, f), min(low, c, f)
	}
	rain := int64(0)
	if s.draw(kRain, day, 100) < 55 {
		rain = 1 + s.draw(kRainAmount, day, 240)
	}
	return Day{Date: day.Format(time.DateOnly), High: s.temperature(high + 1 + s.draw(kHigh, day, 12)), Low: s.temperature(low - 1 - s.draw(kLow, day, 12)),
		Precipitation: s.rain(rain), WindMax: s.speed(s.strongest(day))}
}

// State is the hash of all that the world was made of. No tool changes it.
func (w *World) State(context.Context) (sandboxes.State, error) {
	h := sha256.New()
	b := binary.LittleEndian.AppendUint64([]byte("weather "+Version+" "), w.seed)
	b = append(b, w.Now.Format(hourForm)...)
	for _, s := range w.Stations {
		b = append(b, s.ID...)
		b = append(b, s.City...)
	}
	h.Write(b)
	return sandboxes.State{Hash: hex.EncodeToString(h.Sum(nil)[:16])}, nil
}
