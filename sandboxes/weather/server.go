package weather

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/big"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/mark3labs/mcp-go/mcp"
	"github.com/mark3labs/mcp-go/server"

	"github.com/mcpgym/mcpgym/sandboxes"
	"github.com/mcpgym/mcpgym/sandboxes/mcpmem"
)

// Provider leases weather services; a World's seed is all that they are made from.
func Provider() (sandboxes.Provider, error) {
	return mcpmem.New(newServer(), sandboxes.Identity{"sandbox": "weather", "version": Version},
		func(w sandboxes.World) (*World, error) {
			if len(w.Setup) > 0 {
				return nil, fmt.Errorf("weather worlds are made from a seed alone, have setup %s", w.Setup)
			}
			return New(w.Seed), nil
		})
}

const (
	stationDoc = "Station identifier as other tools return it, for example KQT-4821"
	dateDoc    = "Calendar day in the form YYYY-MM-DD"
	cursorDoc  = "The next_cursor of the previous page; leave out for the first page"
)

var (
	stationArg = mcp.WithString("station_id", mcp.Required(), mcpmem.Entity, mcp.Description(stationDoc), mcp.Pattern("^[A-Z]{3}-[0-9]{4}$"))
	cursorArg  = mcp.WithString("cursor", mcp.Description(cursorDoc))
	datePat    = mcp.Pattern("^[0-9]{4}-[0-9]{2}-[0-9]{2}$")
	readOnly   = mcp.WithReadOnlyHintAnnotation(true)
)

func newServer() *server.MCPServer {
	s := server.NewMCPServer("weather", Version)
	s.AddTools(
		mcpmem.Tool("search_places", "Find cities by name, or by the beginning of a name. Several cities may share a name, so look at country and region. Returns the station of each city, a few per page.",
			searchPlaces, readOnly, cursorArg,
			mcp.WithString("query", mcp.Required(), mcp.MinLength(2), mcp.Description("City name or its first letters")),
			mcp.WithString("country", mcpmem.Entity, mcp.Description("Only cities of this country"))),
		mcpmem.Tool("list_stations", "List the weather stations of a country, or of one of its regions, with their city and whether they are online. A few per page.",
			listStations, readOnly, cursorArg,
			mcp.WithString("country", mcpmem.Entity, mcp.Required(), mcp.Description("Country name")),
			mcp.WithString("region", mcpmem.Entity, mcp.Description("Only stations of this region"))),
		mcpmem.Tool("get_current", "Current conditions at a station: temperature, humidity, air pressure and wind speed, in the units that the station reports. A station that is offline has no current data.",
			getCurrent, readOnly, stationArg),
		mcpmem.Tool("get_hourly_forecast", "Hour by hour forecast of temperature, wind speed and chance of rain at a station on one day: six hours beginning with from_hour.",
			getHourly, readOnly, stationArg,
			mcp.WithString("date", mcp.Required(), datePat, mcp.Description(dateDoc+", today or up to six days ahead")),
			mcp.WithInteger("from_hour", mcp.Min(0), mcp.Max(23), mcp.DefaultNumber(0), mcp.Description("First hour of the day, 0 to 23"))),
		mcpmem.Tool("get_daily_forecast", "Daily forecast at a station, beginning today: high and low temperature, precipitation and strongest wind of each day.",
			getDaily, readOnly, stationArg,
			mcp.WithInteger("days", mcp.Min(1), mcp.Max(ForecastDays), mcp.DefaultNumber(3), mcp.Description("Number of days, 1 to 7"))),
		mcpmem.Tool("get_history", "Observed days at a station from the archive, up to yesterday and thirty days back: high and low temperature, precipitation and strongest wind. Five days per page. The archive is sometimes busy; then try again.",
			getHistory, cursorArg, stationArg,
			mcp.WithString("from_date", mcp.Required(), datePat, mcp.Description("First day, "+dateDoc)),
			mcp.WithString("to_date", mcp.Required(), datePat, mcp.Description("Last day, "+dateDoc))),
		mcpmem.Tool("get_alerts", "Weather alerts of a country with kind, severity, region, and when they start and end.",
			getAlerts, readOnly,
			mcp.WithString("country", mcpmem.Entity, mcp.Required(), mcp.Description("Country name"))),
		mcpmem.Tool("convert_units", "Convert a value between units of temperature (C, F), speed (km/h, mph) or precipitation (mm, in), rounded to one decimal, or two for inches.",
			convertUnits, readOnly,
			mcp.WithNumber("value", mcp.Required(), mcp.Min(-1e6), mcp.Max(1e6), mcp.Description("Value to convert")),
			mcp.WithString("from", mcp.Required(), mcp.Enum(unitNames...), mcp.Description("Unit of the value")),
			mcp.WithString("to", mcp.Required(), mcp.Enum(unitNames...), mcp.Description("Unit to convert to"))),
		mcpmem.Tool("get_time", "Current date, weekday and time (UTC). Today, tomorrow and the like are meant from here.",
			getTime, readOnly),
	)
	return s
}

var unitNames = []string{"C", "F", "km/h", "mph", "mm", "in"}

// page cuts one page out of a list and says where the next begins.
func page[T any](all []T, cursor string, size int) (part []T, next string, err error) {
	start := 0
	if cursor != "" {
		if start, err = strconv.Atoi(cursor); err != nil || start < 1 || start >= len(all) || start%size != 0 {
			return nil, "", fmt.Errorf("cursor %q is not one that this list gave", cursor)
		}
	}
	end := min(start+size, len(all))
	if end < len(all) {
		next = strconv.Itoa(end)
	}
	return all[start:end], next, nil
}

type place struct {
	Name      string `json:"name"`
	Country   string `json:"country"`
	Region    string `json:"region"`
	StationID string `json:"station_id"`
}

func searchPlaces(_ context.Context, w *World, in struct{ Query, Country, Cursor string }) (any, error) {
	if in.Country != "" && !w.hasCountry(in.Country) {
		return nil, w.noCountry(in.Country)
	}
	found := []place{}
	for _, s := range w.Stations {
		if hasPrefixFold(s.City, strings.TrimSpace(in.Query)) && (in.Country == "" || strings.EqualFold(s.Country, in.Country)) {
			found = append(found, place{s.City, s.Country, s.Region, s.ID})
		}
	}
	slices.SortStableFunc(found, func(a, b place) int { return strings.Compare(a.Name, b.Name) })
	part, next, err := page(found, in.Cursor, PageSize)
	return struct {
		Places []place `json:"places"`
		Next   string  `json:"next_cursor,omitempty"`
	}{part, next}, err
}

func hasPrefixFold(s, prefix string) bool {
	return len(prefix) > 0 && len(s) >= len(prefix) && strings.EqualFold(s[:len(prefix)], prefix)
}

func (w *World) hasCountry(name string) bool {
	return slices.ContainsFunc(w.Country, func(c Country) bool { return strings.EqualFold(c.Name, name) })
}

func (w *World) noCountry(name string) error {
	names := make([]string, len(w.Country))
	for i, c := range w.Country {
		names[i] = c.Name
	}
	return fmt.Errorf("no country named %.40q; there are %s", name, strings.Join(names, ", "))
}

type listed struct {
	StationID string `json:"station_id"`
	City      string `json:"city"`
	Region    string `json:"region"`
	Status    string `json:"status"`
}

func listStations(_ context.Context, w *World, in struct{ Country, Region, Cursor string }) (any, error) {
	if !w.hasCountry(in.Country) {
		return nil, w.noCountry(in.Country)
	}
	found := []listed{}
	for _, s := range w.Stations {
		if strings.EqualFold(s.Country, in.Country) && (in.Region == "" || strings.EqualFold(s.Region, in.Region)) {
			status := "online"
			if !s.Online {
				status = "offline"
			}
			found = append(found, listed{s.ID, s.City, s.Region, status})
		}
	}
	part, next, err := page(found, in.Cursor, PageSize)
	return struct {
		Stations []listed `json:"stations"`
		Next     string   `json:"next_cursor,omitempty"`
	}{part, next}, err
}

func (w *World) find(id string) (Station, error) {
	s, ok := w.Station(id)
	if !ok {
		return s, fmt.Errorf("no station %.40q", id)
	}
	return s, nil
}

type offline struct {
	StationID  string `json:"station_id"`
	Status     string `json:"status"`
	LastReport string `json:"last_report"`
	Message    string `json:"message"`
}

func getCurrent(_ context.Context, w *World, in struct {
	StationID string `json:"station_id"`
}) (any, error) {
	s, err := w.find(in.StationID)
	if err != nil {
		return nil, err
	}
	if !s.Online {
		return offline{s.ID, "offline", s.LastReport, "no current data from this station"}, nil
	}
	return w.Current(s), nil
}

func getHourly(_ context.Context, w *World, in struct {
	StationID string `json:"station_id"`
	Date      string `json:"date"`
	FromHour  int    `json:"from_hour"`
}) (any, error) {
	s, err := w.find(in.StationID)
	if err != nil {
		return nil, err
	}
	day, err := parseDay(in.Date)
	if err != nil {
		return nil, err
	}
	if last := w.Today().AddDate(0, 0, ForecastDays-1); day.Before(w.Today()) || day.After(last) {
		return nil, fmt.Errorf("no forecast for %s: there is one from %s to %s", in.Date, w.Today().Format(time.DateOnly), last.Format(time.DateOnly))
	}
	hours := []Hour{}
	for h := in.FromHour; h < min(in.FromHour+HourlyPage, 24); h++ {
		hours = append(hours, w.Hourly(s, day.Add(time.Duration(h)*time.Hour)))
	}
	return struct {
		StationID       string `json:"station_id"`
		Date            string `json:"date"`
		TemperatureUnit string `json:"temperature_unit"`
		WindUnit        string `json:"wind_unit"`
		Hours           []Hour `json:"hours"`
	}{s.ID, in.Date, s.TemperatureUnit(), s.WindUnit(), hours}, nil
}

func parseDay(s string) (time.Time, error) {
	day, err := time.Parse(time.DateOnly, s)
	if err != nil {
		return day, fmt.Errorf("%.40q is not a date in the form YYYY-MM-DD", s)
	}
	return day, nil
}

// days is what the daily forecast and the archive return.
type days struct {
	StationID         string `json:"station_id"`
	TemperatureUnit   string `json:"temperature_unit"`
	PrecipitationUnit string `json:"precipitation_unit"`
	WindUnit          string `json:"wind_unit"`
	Days              []Day  `json:"days"`
	Next              string `json:"next_cursor,omitempty"`
}

func getDaily(_ context.Context, w *World, in struct {
	StationID string `json:"station_id"`
	Days      *int   `json:"days"`
}) (any, error) {
	s, err := w.find(in.StationID)
	if err != nil {
		return nil, err
	}
	n := 3
	if in.Days != nil {
		n = *in.Days
	}
	out := days{s.ID, s.TemperatureUnit(), s.RainUnit(), s.WindUnit(), nil, ""}
	for i := range n {
		out.Days = append(out.Days, w.Daily(s, w.Today().AddDate(0, 0, i)))
	}
	return out, nil
}

func getHistory(_ context.Context, w *World, in struct {
	StationID string `json:"station_id"`
	From      string `json:"from_date"`
	To        string `json:"to_date"`
	Cursor    string `json:"cursor"`
}) (any, error) {
	s, err := w.find(in.StationID)
	if err != nil {
		return nil, err
	}
	from, err := parseDay(in.From)
	if err != nil {
		return nil, err
	}
	to, err := parseDay(in.To)
	if err != nil {
		return nil, err
	}
	first, last := w.Today().AddDate(0, 0, -HistoryDays), w.Today().AddDate(0, 0, -1)
	if to.Before(from) || from.Before(first) || to.After(last) {
		return nil, fmt.Errorf("the archive holds %s to %s; have %s to %s", first.Format(time.DateOnly), last.Format(time.DateOnly), in.From, in.To)
	}
	if w.refuse(s) {
		return nil, errors.New("archive temporarily busy, try the same request again")
	}
	var dates []time.Time
	for d := from; !d.After(to); d = d.AddDate(0, 0, 1) {
		dates = append(dates, d)
	}
	part, next, err := page(dates, in.Cursor, HistoryPage)
	if err != nil {
		return nil, err
	}
	out := days{s.ID, s.TemperatureUnit(), s.RainUnit(), s.WindUnit(), nil, next}
	for _, d := range part {
		out.Days = append(out.Days, w.Daily(s, d))
	}
	return out, nil
}

// refuse is the archive's busy signal: once for each flaky station.
func (w *World) refuse(s Station) bool {
	if !s.Flaky {
		return false
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if slices.Contains(w.busy, s.ID) {
		return false
	}
	w.busy = append(w.busy, s.ID)
	return true
}

type alert struct {
	ID       string `json:"alert_id"`
	Kind     string `json:"kind"`
	Severity string `json:"severity"`
	Region   string `json:"region"`
	Starts   string `json:"starts"`
	Ends     string `json:"ends"`
}

func getAlerts(_ context.Context, w *World, in struct{ Country string }) (any, error) {
	if !w.hasCountry(in.Country) {
		return nil, w.noCountry(in.Country)
	}
	out := struct {
		Country string  `json:"country"`
		Alerts  []alert `json:"alerts"`
	}{Alerts: []alert{}}
	for _, c := range w.Country {
		if strings.EqualFold(c.Name, in.Country) {
			out.Country = c.Name
		}
	}
	for _, a := range w.Alerts {
		if a.Country == out.Country {
			out.Alerts = append(out.Alerts, alert{a.ID, a.Kind, a.Severity, a.Region, a.Starts.Format(hourForm), a.Ends.Format(hourForm)})
		}
	}
	return out, nil
}

func convertUnits(_ context.Context, _ *World, in struct {
	Value    json.Number
	From, To string
}) (any, error) {
	v, ok := new(big.Rat).SetString(string(in.Value))
	if !ok {
		return nil, fmt.Errorf("%.40q is not a number", in.Value)
	}
	out, err := Convert(v, in.From, in.To)
	if err != nil {
		return nil, err
	}
	return struct {
		Value json.Number `json:"value"`
		Unit  string      `json:"unit"`
	}{json.Number(out), in.To}, nil
}

// Convert converts a value between units of one dimension and rounds it as the tool does.
func Convert(v *big.Rat, from, to string) (string, error) {
	var out *big.Rat
	switch from + " " + to {
	case "C F":
		out = new(big.Rat).Add(new(big.Rat).Mul(v, big.NewRat(9, 5)), big.NewRat(32, 1))
	case "F C":
		out = new(big.Rat).Mul(new(big.Rat).Sub(v, big.NewRat(32, 1)), big.NewRat(5, 9))
	case "km/h mph":
		out = new(big.Rat).Quo(v, big.NewRat(1609344, 1000000))
	case "mph km/h":
		out = new(big.Rat).Mul(v, big.NewRat(1609344, 1000000))
	case "mm in":
		out = new(big.Rat).Quo(v, big.NewRat(254, 10))
	case "in mm":
		out = new(big.Rat).Mul(v, big.NewRat(254, 10))
	default:
		if from != to {
			return "", fmt.Errorf("%s cannot be converted to %s", from, to)
		}
		out = v
	}
	places := 1
	if to == "in" {
		places = 2
	}
	s := out.FloatString(places)
	if strings.Trim(s, "-0.") == "" {
		s = strings.TrimPrefix(s, "-")
	}
	return s, nil
}

func getTime(_ context.Context, w *World, _ struct{}) (any, error) {
	return struct {
		Date    string `json:"date"`
		Weekday string `json:"weekday"`
		Time    string `json:"time"`
	}{w.Now.Format(time.DateOnly), w.Now.Weekday().String(), w.Now.Format("15:04")}, nil
}
