package weather

import (
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/mcpgym/mcpgym/envs"
	"github.com/mcpgym/mcpgym/sandboxes/weather"
)

// cheats answer right without having seen what the answer follows from: they have looked at other places, at other days, or
// at the same page for ever.
func cheats(t envs.Task) []envs.Cheat {
	final := t.Solution[len(t.Solution)-1]
	w := weather.New(t.World.Seed)
	asked := map[string]bool{}
	var stations, days, pages []envs.Call
	for _, a := range t.Solution {
		for _, c := range a.Calls {
			var args map[string]any
			if err := json.Unmarshal(c.Arguments, &args); err != nil {
				panic(err) // a gold call
			}
			if id, ok := args["station_id"].(string); ok {
				asked[id] = true
				stations = append(stations, c)
			}
			if other := shifted(args); other != nil {
				days = append(days, envs.Call{ID: c.ID, Name: c.Name, Arguments: other})
			}
		}
	}
	// Those of the same country or of cities of the same name come first.
	far := func(s weather.Station) int {
		if slices.ContainsFunc(w.Stations, func(o weather.Station) bool { return asked[o.ID] && (o.Country == s.Country || o.City == s.City) }) {
			return 0
		}
		return 1
	}
	nearest := slices.Clone(w.Stations)
	slices.SortStableFunc(nearest, func(a, b weather.Station) int { return far(a) - far(b) })
	var others []envs.Call
	for _, s := range nearest {
		for _, c := range stations {
			var args map[string]any
			if err := json.Unmarshal(c.Arguments, &args); err != nil {
				panic(err) // a gold call
			}
			if args["station_id"] = s.ID; !asked[s.ID] {
				others = append(others, call(len(others), c.Name, args))
			}
		}
	}
	for i := range 14 { // of the farthest country: the right one would show whether a station is offline
		pages = append(pages, call(i, "list_stations", map[string]any{"country": nearest[len(nearest)-1].Country}))
	}
	var list []envs.Cheat
	if len(others) > 0 {
		list = append(list, envs.Cheat{Name: "other stations", Actions: []envs.Action{{Calls: others[:min(len(others), 10)]}, final}})
	}
	if len(days) > 0 {
		list = append(list, envs.Cheat{Name: "other days", Actions: []envs.Action{{Calls: days}, final}})
	}
	return append(list, envs.Cheat{Name: "one page again and again", Actions: []envs.Action{{Calls: pages}, final}})
}

func call(i int, tool string, args map[string]any) envs.Call {
	raw, err := json.Marshal(args)
	if err != nil {
		panic(err) // plain strings and numbers
	}
	return envs.Call{ID: fmt.Sprintf("cheat_%d", i), Name: tool, Arguments: raw}
}

// shifted are the arguments of a call with each date a week earlier, nil where there is none.
func shifted(args map[string]any) json.RawMessage {
	found := false
	for k, v := range args {
		s, _ := v.(string)
		if day, err := time.Parse(time.DateOnly, s); err == nil {
			args[k], found = day.AddDate(0, 0, -7).Format(time.DateOnly), true
		}
	}
	if !found {
		return nil
	}
	return call(0, "", args).Arguments
}
