package bench

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/mark3labs/mcp-go/mcp"
	"github.com/mark3labs/mcp-go/server"
	"github.com/stretchr/testify/require"

	"github.com/mcpgym/mcpgym/envs"
	"github.com/mcpgym/mcpgym/policies"
	"github.com/mcpgym/mcpgym/sandboxes"
	"github.com/mcpgym/mcpgym/sandboxes/mcpmem"
)

// The toy task on which gyms are compared: 20 cities with 7 days of temperatures by seed, three tools, and the question which
// of two cities is warmer today. It is solved with three calls and an answer. Temperatures are in tenths of a degree.
var toyCities = strings.Fields("Oslo Lima Cairo Delhi Quito Paris Tokyo Accra Minsk Dakar Turin Hanoi Perth Rabat Seoul Sofia Tunis Busan Leeds Osaka")

type toyWorld [20][7]int

func toyMix(x uint64) uint64 {
	x += 0x9E3779B97F4A7C15
	x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9
	x = (x ^ (x >> 27)) * 0x94D049BB133111EB
	return x ^ (x >> 31)
}

func newToyWorld(seed uint64) *toyWorld {
	w := new(toyWorld)
	for i := range w {
		for d := range w[i] {
			w[i][d] = int(toyMix(seed*1000003+uint64(31*i+d))%401) - 100
		}
	}
	return w
}

func (w *toyWorld) today(city string) (float64, error) {
	i := slices.Index(toyCities, city)
	if i < 0 {
		return 0, fmt.Errorf("unknown city %q", city)
	}
	return float64(w[i][0]) / 10, nil
}

type toyTemp struct {
	City string  `json:"city"`
	Temp float64 `json:"temp_c"`
}

func toySpec(tb testing.TB) envs.Spec {
	s := server.NewMCPServer("toy", "1")
	city := mcp.WithString("city", mcp.Required())
	read := mcp.WithReadOnlyHintAnnotation(true)
	s.AddTools(
		mcpmem.Tool("get_current", "Temperature of a city now.", func(_ context.Context, w *toyWorld, in struct{ City string }) (any, error) {
			t, err := w.today(in.City)
			return toyTemp{in.City, t}, err
		}, city, read),
		mcpmem.Tool("get_forecast", "Temperature of a city on day 0..6.", func(_ context.Context, w *toyWorld, in struct {
			City string
			Day  int
		}) (any, error) {
			i := slices.Index(toyCities, in.City)
			if i < 0 || in.Day < 0 || in.Day > 6 {
				return nil, errors.New("unknown city or day")
			}
			return toyTemp{in.City, float64(w[i][in.Day]) / 10}, nil
		}, city, mcp.WithInteger("day", mcp.Required()), read),
		mcpmem.Tool("convert", "Convert degrees C to unit C, F or K.", func(_ context.Context, _ *toyWorld, in struct {
			Value float64
			Unit  string
		}) (any, error) {
			to := map[string]float64{"C": in.Value, "F": in.Value*9/5 + 32, "K": in.Value + 273.15}
			v, ok := to[in.Unit]
			if !ok {
				return nil, fmt.Errorf("unknown unit %q", in.Unit)
			}
			return map[string]any{"value": math.Round(v*100) / 100, "unit": in.Unit}, nil
		}, mcp.WithNumber("value", mcp.Required()), mcp.WithString("unit", mcp.Required()), read),
	)
	p, err := mcpmem.New(s, sandboxes.Identity{"sandbox": "toy"}, func(w sandboxes.World) (*toyWorld, error) { return newToyWorld(w.Seed), nil })
	require.NoError(tb, err)
	return envs.Spec{
		Name:   "Toy-v0",
		Splits: map[string]envs.Source{"train": envs.Generator(toyTask)},
		Limits: envs.Limits{Turns: 8, Calls: 8, ResultBytes: 4000, Call: time.Second, Episode: time.Minute},
		Reward: toyReward{}, Sandboxes: p,
	}
}

func toyTask(i int) envs.Task {
	seed := uint64(i)
	a := toyMix(seed*1000003+900001) % 20
	b := toyMix(seed*1000003+900002) % 19
	if b >= a {
		b++
	}
	w := newToyWorld(seed)
	want := "no"
	if w[a][0] > w[b][0] {
		want = "yes"
	}
	return envs.Task{ID: fmt.Sprintf("toy/%d", i), Family: "warmer", World: sandboxes.World{Seed: seed}, Par: 3, Want: json.RawMessage(`"` + want + `"`),
		Prompt: fmt.Sprintf("Is it warmer in %s than in %s today? Answer yes or no.", toyCities[a], toyCities[b])}
}

// toyReward is an exact check of the answer.
type toyReward struct{}

func (toyReward) Score(t *envs.Trajectory) (envs.Score, error) {
	text, ok := t.Answer()
	s := envs.Score{Success: ok && `"`+text+`"` == string(t.Task.Want)}
	if s.Success {
		s.Value = 1
	}
	return s, nil
}

// toyOracle solves the toy task from what it sees.
type toyOracle struct{}

func (toyOracle) Start(_ context.Context, ep policies.Episode) (policies.Agent, error) {
	words := strings.Fields(ep.Prompt)
	step := 0
	var temps [2]float64
	call := func(name string, args any) envs.Action {
		raw, _ := json.Marshal(args)
		return envs.Action{Calls: []envs.Call{{ID: "c", Name: name, Arguments: raw}}}
	}
	return policies.AgentFunc(func(_ context.Context, o envs.Observation) (envs.Action, error) {
		step++
		if step == 2 || step == 3 {
			var t toyTemp
			if err := json.Unmarshal([]byte(o.Results[0].Text), &t); err != nil {
				return envs.Action{}, err
			}
			temps[step-2] = t.Temp
		}
		switch step {
		case 1:
			return call("get_current", map[string]string{"city": words[4]}), nil
		case 2:
			return call("get_current", map[string]string{"city": words[7]}), nil
		case 3:
			return call("convert", map[string]any{"value": temps[0], "unit": "F"}), nil
		}
		if temps[0] > temps[1] {
			return envs.Action{Text: "yes"}, nil
		}
		return envs.Action{Text: "no"}, nil
	}), nil
}

// The worlds must be those that other gyms are measured on.
func TestToyWeather(t *testing.T) {
	require.Equal(t, "Is it warmer in Tokyo than in Oslo today? Answer yes or no.", toyTask(0).Prompt)
	require.Equal(t, `"no"`, string(toyTask(0).Want))
	require.Equal(t, `"yes"`, string(toyTask(1).Want))
	tokyo, err := newToyWorld(0).today("Tokyo")
	require.NoError(t, err)
	require.Equal(t, 15.5, tokyo)
	r, err := Run(t.Context(), Config{Spec: toySpec(t), Policy: toyOracle{}, Name: "toy", Split: "train", Tasks: 200, Trials: 1, Parallel: 2})
	require.NoError(t, err)
	require.Equal(t, 1.0, Summarise(r).Pass1)
}

// Memory stays flat however many episodes one environment plays: 100,000 in a soak, fewer otherwise.
func TestMemoryIsFlat(t *testing.T) {
	if testing.Short() {
		t.Skip("says nothing under the race detector")
	}
	n := 5_000
	if os.Getenv("MCPGYM_SOAK") != "" {
		n = 100_000
	}
	env, err := envs.New(toySpec(t))
	require.NoError(t, err)
	defer env.Close()
	heap := func() uint64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	var before uint64
	for i := range n {
		if i == n/10 {
			before = heap()
		}
		_, err := policies.Rollout(t.Context(), env, toyTask(i), toyOracle{}, 0)
		require.NoError(t, err)
	}
	after := heap()
	t.Logf("heap after %d episodes: %d KiB, after %d: %d KiB", n/10, before>>10, n, after>>10)
	require.Less(t, after, before+1<<20)
}

// BenchmarkToyWeather plays whole episodes of the toy task, the making of its worlds and tasks included, on all processors.
func BenchmarkToyWeather(b *testing.B) {
	spec := toySpec(b)
	var next atomic.Int64
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		env, err := envs.New(spec)
		if err != nil {
			b.Error(err)
			return
		}
		defer env.Close()
		for pb.Next() {
			t, err := policies.Rollout(context.Background(), env, toyTask(int(next.Add(1))), toyOracle{}, 0)
			if err != nil || t.Score == nil || t.Score.Value != 1 {
				b.Errorf("episode: %v %v", t, err)
				return
			}
		}
	})
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "episodes/s")
}
