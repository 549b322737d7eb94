package policies_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/mark3labs/mcp-go/mcp"
	"github.com/mark3labs/mcp-go/server"
	"github.com/stretchr/testify/require"

	"github.com/mcpgym/mcpgym/envs"
	"github.com/mcpgym/mcpgym/policies"
	"github.com/mcpgym/mcpgym/rewards"
	"github.com/mcpgym/mcpgym/sandboxes"
	"github.com/mcpgym/mcpgym/sandboxes/mcpmem"
)

type obj = map[string]any

// world is what the made-up services remember of an episode.
type world struct{ refused bool }

// library is a catalogue: titles lead to book numbers, those to details; a shelf is listed in pages, once refused.
func library() []server.ServerTool {
	type book struct {
		ID     string `json:"book_id"`
		Title  string `json:"title"`
		Author string `json:"author"`
		Shelf  string `json:"shelf"`
		pages  int
		copies any
	}
	books := []book{
		{"B-1042", "The Glass Orchard", "Ines Harlan", "Fiction", 412, 3},
		{"B-2210", "Tides of Ember", "Otto Prell", "Fiction", 287, 1},
		{"B-3307", "Salt and Signal", "Mira Quist", "Fiction", 530, 2},
		{"B-4118", "Mosses of the North", "Edda Varga", "Nature", 198, nil},
		{"B-5001", "Birds in Winter", "Edda Varga", "Nature", 244, 4},
		{"B-6006", "Tides", "Jun Sorell", "Travel", 90, 1},
	}
	id := mcp.WithString("book_id", mcp.Required(), mcp.Pattern(`^B-\d{4}$`), mcp.Description("Number of a book, from a search"))
	return []server.ServerTool{
		mcpmem.Tool("find_books", "Search the catalogue for books by title.", func(_ context.Context, _ *world, in struct{ Title string }) (any, error) {
			found := []book{}
			for _, b := range books {
				if strings.Contains(strings.ToLower(b.Title), strings.ToLower(in.Title)) {
					found = append(found, b)
				}
			}
			return obj{"books": found}, nil
		}, mcp.WithString("title", mcp.Required(), mcp.Description("Title or a part of it"))),
		mcpmem.Tool("book_details", "Details of one book: pages, copies that are free to lend, year.", func(_ context.Context, _ *world, in struct {
			ID string `json:"book_id"`
		}) (any, error) {
			for i, b := range books {
				if b.ID == in.ID {
					return obj{"book_id": b.ID, "pages": b.pages, "copies": b.copies, "year": 1990 + i}, nil
				}
			}
			return nil, fmt.Errorf("no book %q", in.ID)
		}, id),
		mcpmem.Tool("list_shelf", "List the books that stand on a shelf, two a page.", func(_ context.Context, w *world, in struct{ Shelf, Cursor string }) (any, error) {
			if !w.refused {
				w.refused = true
				return nil, errors.New("index temporarily busy, please retry")
			}
			found := slices.DeleteFunc(slices.Clone(books), func(b book) bool { return !strings.EqualFold(b.Shelf, in.Shelf) })
			start, _ := map[string]int{"": 0, "p2": 2}[in.Cursor]
			out := obj{"books": found[min(start, len(found)):min(start+2, len(found))]}
			if start+2 < len(found) {
				out["next_cursor"] = "p2"
			}
			return out, nil
		}, mcp.WithString("shelf", mcp.Required(), mcp.Enum("Fiction", "Nature", "Travel")), mcp.WithString("cursor", mcp.Description("From the previous page"))),
	}
}

// railway is a timetable: names lead to codes, those to departures on a day.
func railway() []server.ServerTool {
	stations := []obj{{"code": "ASH", "name": "Ashford", "district": "Weald"}, {"code": "KEL", "name": "Kelby", "district": "Fens"}, {"code": "KEX", "name": "Kelby", "district": "Moors"}}
	return []server.ServerTool{
		mcpmem.Tool("find_station", "Find stations by name. Gives the code of each.", func(_ context.Context, _ *world, in struct{ Query string }) (any, error) {
			found := slices.DeleteFunc(slices.Clone(stations), func(s obj) bool { return !strings.EqualFold(s["name"].(string), in.Query) })
			return obj{"stations": found}, nil
		}, mcp.WithString("query", mcp.Required(), mcp.Description("Name of a station"))),
		mcpmem.Tool("departures", "Trains that leave a station on a day, with platform, delay in minutes and destination.", func(_ context.Context, _ *world, in struct{ Code, Date string }) (any, error) {
			if in.Date != "2031-05-04" {
				return nil, fmt.Errorf("no timetable for %s", in.Date)
			}
			trains := map[string][]obj{
				"ASH": {{"train": "IC 7", "destination": "Harwick", "platform": 4, "delay_minutes": 12}, {"train": "RE 30", "destination": "Dunmoor", "platform": 2, "delay_minutes": 31}, {"train": "RE 32", "destination": "Harwick", "platform": 1, "delay_minutes": 3}},
				"KEX": {{"train": "IC 9", "destination": "Harwick", "platform": 6, "delay_minutes": 5}},
			}
			return obj{"code": in.Code, "departures": trains[in.Code]}, nil
		}, mcp.WithString("code", mcp.Required(), mcp.Pattern("^[A-Z]{3}$"), mcp.Description("Code of the station")),
			mcp.WithString("date", mcp.Required(), mcp.Pattern(`^\d{4}-\d\d-\d\d$`), mcp.Description("Day"))),
		mcpmem.Tool("station_facts", "Facts about a station: length of its longest platform, number of passengers a day.", func(_ context.Context, _ *world, in struct{ Code string }) (any, error) {
			facts, ok := map[string]obj{"ASH": {"platform_length": 240.5, "length_unit": "m", "passengers": 8100}, "KEL": {"platform_length": 199, "length_unit": "m", "passengers": 950}, "KEX": {"status": "closed", "message": "no data for this station"}}[in.Code]
			if !ok {
				return nil, fmt.Errorf("no station %s", in.Code)
			}
			return facts, nil
		}, mcp.WithString("code", mcp.Required(), mcp.Pattern("^[A-Z]{3}$"), mcp.Description("Code of the station"))),
	}
}

// buses is a service where names must find the right parameter: an error says which one was wrong.
func buses() []server.ServerTool {
	return []server.ServerTool{
		mcpmem.Tool("fare", "Price of a ticket.", func(_ context.Context, _ *world, in struct{ From, To string }) (any, error) {
			if in.From != "Ashford" || in.To != "Harwick" {
				return nil, errors.New("no such connection")
			}
			return obj{"price": 18.5, "class": 2}, nil
		}, mcp.WithString("from", mcp.Required()), mcp.WithString("to", mcp.Required())),
		mcpmem.Tool("operator", "Operator of the buses of a county, or of one line in it.", func(_ context.Context, _ *world, in struct{ County, Line string }) (any, error) {
			if in.County != "Wealdshire" {
				return nil, fmt.Errorf("no county %q", in.County)
			}
			return obj{"county": in.County, "line": in.Line, "operator": "Oakway"}, nil
		}, mcp.WithString("county", mcp.Required()), mcp.WithString("line")),
	}
}

// spec makes an environment of one task. Want is the answer, values separated by semicolons, and all facts that results must show.
func spec(t *testing.T, tools []server.ServerTool, prompt, want string, par int, evidence ...obj) envs.Spec {
	t.Helper()
	srv := server.NewMCPServer("test", "1")
	srv.AddTools(tools...)
	p, err := mcpmem.New(srv, nil, func(sandboxes.World) (*world, error) { return &world{}, nil })
	require.NoError(t, err)
	w := rewards.Want{}
	for _, v := range strings.Split(want, "; ") {
		w.Answer = append(w.Answer, rewards.Value{Kind: "text", Value: v})
	}
	for _, e := range evidence {
		w.Evidence = append(w.Evidence, []rewards.Fact{{Has: e}})
	}
	raw, err := json.Marshal(w)
	require.NoError(t, err)
	return envs.Spec{Name: "Test-v0", System: "Answer with the last line ANSWER: <value>.", Sandboxes: p,
		Splits: map[string]envs.Source{"test": envs.Generator(func(int) envs.Task { return envs.Task{ID: "t", Prompt: prompt, Want: raw, Par: par} })},
		Limits: envs.Limits{Turns: 20, Calls: 40, ResultBytes: 4000, Call: time.Second, Episode: time.Minute},
		Reward: rewards.Sum{rewards.Answer(0.8), rewards.ValidCalls(0.1), rewards.Efficiency(0.1), rewards.Hallucination(0.5)}}
}

func play(t *testing.T, s envs.Spec, p policies.Policy, seed uint64) *envs.Trajectory {
	t.Helper()
	env, err := envs.New(s)
	require.NoError(t, err)
	defer env.Close()
	tr, err := policies.Rollout(t.Context(), env, s.Splits["test"].Task(0), p, seed)
	require.NoError(t, err)
	return tr
}

func transcript(t *testing.T, tr *envs.Trajectory) string {
	t.Helper()
	var b strings.Builder
	for _, s := range tr.Steps {
		for _, c := range s.Action.Calls {
			fmt.Fprintf(&b, "%s %s\n", c.Name, c.Arguments)
		}
		for _, r := range s.Observation.Results {
			fmt.Fprintf(&b, "   %s\n", r.Text)
		}
		b.WriteString(s.Action.Text + "\n")
	}
	return b.String()
}

func TestLexicalSolves(t *testing.T) {
	for _, c := range []struct {
		name     string
		tools    []server.ServerTool
		prompt   string
		want     string
		par      int
		evidence []obj
	}{
		{"one call by identifier", library(), "How many pages does book B-1042 have?", "412", 1, []obj{{"book_id": "B-1042", "pages": 412}}},
		{"one call by title", library(), `Who is the author of "Tides of Ember"?`, "Otto Prell", 2, []obj{{"author": "Otto Prell"}}},
		{"search, then detail", library(), `How many copies of "Salt and Signal" are free?`, "2", 2, []obj{{"book_id": "B-3307", "copies": 2}}},
		{"comparison", library(), `Which book has more pages, "The Glass Orchard" or "Birds in Winter", and by how many? Give the title and the difference.`, "The Glass Orchard; 168", 4, []obj{{"pages": 412}, {"pages": 244}}},
		{"highest of a list, in pages, after a refusal", library(), "Which of the books on the Fiction shelf has the most pages? Give its title and the number of pages.", "Salt and Signal; 530", 6, []obj{{"title": "Salt and Signal"}, {"pages": 530}, {"pages": 412}, {"pages": 287}}},
		{"lowest of a list", library(), "Of all books on the Nature shelf, find the one with the fewest pages: give its title, then its pages.", "Mosses of the North; 198", 5, []obj{{"pages": 198}}},
		{"nothing there", library(), `How many copies of "Mosses of the North" are free?`, "no data", 2, []obj{{"book_id": "B-4118", "copies": nil}}},
		{"namesakes", railway(), "From which platform does IC 9 leave Kelby in the Moors on 4 May 2031?", "6", 2, []obj{{"code": "KEX", "platform": 6}}},
		{"two subjects", railway(), "How many passengers a day do Ashford and Kelby in the Fens have?", "8100; 950", 4, []obj{{"passengers": 8100}, {"passengers": 950}}},
		{"one row of several", railway(), "From which platform does RE 30 leave Ashford on 2031-05-04?", "2", 2, []obj{{"train": "RE 30", "platform": 2}}},
		{"the same name, not a longer one", library(), `How many pages has "Tides"?`, "90", 2, []obj{{"book_id": "B-6006", "pages": 90}}},
		{"parameters by the words before them", buses(), "What is the price of a ticket from Ashford to Harwick?", "18.5", 1, []obj{{"price": 18.5}}},
		{"a refused value is not used again", buses(), "Who is the operator in Wealdshire on the Coast Road?", "Oakway", 2, []obj{{"county": "Wealdshire", "line": "Coast Road", "operator": "Oakway"}}},
		{"closed", railway(), "How many passengers a day does Kelby in the Moors have?", "no data", 2, []obj{{"status": "closed"}}},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := spec(t, c.tools, c.prompt, c.want, c.par, c.evidence...)
			tr := play(t, s, policies.Lexical{}, 1)
			require.NotNil(t, tr.Score)
			require.True(t, tr.Score.Success, "%s\n%v", transcript(t, tr), tr.Score.Parts)
			require.LessOrEqual(t, len(tr.Results()), c.par, transcript(t, tr))
			require.Equal(t, transcript(t, tr), transcript(t, play(t, s, policies.Lexical{}, 2)))
			for _, r := range tr.Results() {
				require.Contains(t, []envs.Status{envs.StatusOK, envs.StatusToolError}, r.Status, r.Text)
			}
		})
	}
}

func TestLexicalStops(t *testing.T) {
	n := 0
	tools := []server.ServerTool{
		mcpmem.Tool("list_rooms", "List all rooms.", func(context.Context, *world, struct{}) (any, error) {
			rooms := make([]obj, 60)
			for i := range rooms {
				rooms[i] = obj{"room_id": fmt.Sprintf("R%d", i)}
			}
			return obj{"rooms": rooms}, nil
		}),
		mcpmem.Tool("measure_room", "Size of a room.", func(context.Context, *world, struct {
			ID string `json:"room_id"`
		}) (any, error) {
			n++
			return obj{"size": n}, nil
		}, mcp.WithString("room_id", mcp.Required())),
	}
	tr := play(t, spec(t, tools, "Which room has the greatest size, and what is its size?", "R59; 60", 61, obj{"size": 60}), policies.Lexical{}, 1)
	require.Equal(t, envs.EndAnswer, tr.End)
	require.LessOrEqual(t, len(tr.Results()), 15)
}

// hostile are schemas, and results, that servers in the field get wrong.
var hostile = []struct{ schema, result string }{
	{`{}`, ``},
	{`true`, `null`},
	{`null`, `"plain"`},
	{`not json`, `{"a":`},
	{`[]`, `[[[[{"x":[{"y":1}]}]]]]`},
	{`{"type":"object"}`, `{"a":1,"A":2}`},
	{`{"type":"object","properties":null,"required":null}`, `{"next_cursor":"x"}`},
	{`{"type":"object","properties":{"a":{"$ref":"#/properties/a"}},"required":["a"]}`, `{"a":1e999999999}`},
	{`{"$ref":"#"}`, `{"a":{"a":{"a":{"a":{}}}}}`},
	{`{"type":"object","properties":{"a":{"$ref":"#"}},"required":["a"]}`, "\xff\xfe"},
	{`{"type":"object","properties":{"a":{"$ref":"#/$defs/b"}},"$defs":{"b":{"type":"string","enum":["x","Oslo"]}}}`, `{"a":"Oslo","hour":9223372036854775808}`},
	{`{"type":"object","properties":{"a":{"anyOf":[{"type":"null"},{"type":"array","minItems":1000,"items":{"type":"object","properties":{"b":{"type":"integer","minimum":5,"maximum":1}},"required":["b"]}}]}},"required":["a"]}`, `[1,2,3]`},
	{`{"type":"object","properties":{"a":{"type":["null","number"],"minimum":-1e300,"multipleOf":0.5},"":{"type":"string"}},"required":["a",""]}`, `{"":"","a":-1e300}`},
	{`{"type":"object","properties":{"a":{"type":"string","pattern":"(((","minLength":99999999}},"required":["a"]}`, `{"a":"` + strings.Repeat("x", 5000) + `"}`},
	{`{"type":"object","properties":{"hour":{"type":"integer"},"date":{"type":"string"},"cursor":{"type":["string","null"]}}}`, `{"hour":5,"date":"2031-05-04","cursor":"again","hours":[{"hour":23},{"hour":"x"},{"hour":1.5}]}`},
	{`{"type":"object","properties":{"a":{"enum":[{"b":1},[2],null,true,3]},"n":{"type":"number"}},"required":["a","n","missing"]}`, `{"unit":"C","value":null}`},
	{`{"type":"object","properties":{"a":{"allOf":[{"type":"string"},{"not":{}}]}},"required":["a"]}`, `{"starts":"2031-01-01T00:00","ends":"0001-01-01"}`},
	{`{"$ref":"http://localhost/other.json"}`, `{}`},
}

// exercise plays a policy against a server that has one tool of a schema, and always answers the same.
func exercise(t *testing.T, p policies.Policy, schema, description, prompt, result string, isError bool) {
	t.Helper()
	tools := []sandboxes.Tool{{Name: "get_thing", Description: description, InputSchema: json.RawMessage(schema)},
		{Name: "find", InputSchema: json.RawMessage(`{"type":"object","properties":{"query":{"type":"string"},"page":{"type":"integer"}},"required":["query"]}`)}}
	agent, err := p.Start(t.Context(), policies.Episode{System: "s", Prompt: prompt, Tools: tools, Seed: 7})
	require.NoError(t, err)
	o := envs.Observation{Text: prompt}
	for turn := 0; ; turn++ {
		require.Less(t, turn, 20, "it does not stop")
		a, err := agent.Act(t.Context(), o)
		require.NoError(t, err)
		if len(a.Calls) == 0 {
			require.Contains(t, a.Text, "ANSWER: ")
			return
		}
		o = envs.Observation{}
		for _, c := range a.Calls {
			require.Contains(t, []string{"get_thing", "find"}, c.Name)
			require.True(t, json.Valid(c.Arguments), "%s", c.Arguments)
			o.Results = append(o.Results, envs.CallResult{ID: c.ID, Name: c.Name, Text: result, IsError: isError, Status: envs.StatusOK})
		}
	}
}

func TestHostileServers(t *testing.T) {
	prompts := []string{"", "What is the highest hour in Oslo, Norway or Bergen tomorrow at 25:99, above 3, in degrees C?",
		"\u023a\u023a \"x\" \u0130: how many \"a\" more than 5 from 2031-99-99 to 0 May 0000?"}
	for i, h := range hostile {
		for j, g := range hostile {
			exercise(t, policies.Lexical{}, h.schema, "busy find hour", prompts[(i+j)%3], g.result, j%2 == 0)
			exercise(t, policies.Random{}, h.schema, "busy find hour", prompts[(i+j)%3], g.result, j%2 == 0)
		}
	}
}

func FuzzLexical(f *testing.F) {
	for _, h := range hostile {
		f.Add(h.schema, "hour of a day", "Which hour in Oslo is warmest, and how warm?", h.result, false)
	}
	f.Add(`{"type":"object","properties":{"date":{"type":"string","format":"date"}},"required":["date"]}`, "find", "In 3 days, is A or B less than 4?", `busy, retry`, true)
	f.Fuzz(func(t *testing.T, schema, description, prompt, result string, isError bool) {
		exercise(t, policies.Lexical{}, schema, description, prompt, result, isError)
		exercise(t, policies.Random{}, schema, description, prompt, result, isError)
	})
}
