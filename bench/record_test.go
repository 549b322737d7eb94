package bench

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/mcpgym/mcpgym/envs"
	"github.com/mcpgym/mcpgym/policies"
	"github.com/mcpgym/mcpgym/sandboxes"
	"github.com/mcpgym/mcpgym/sandboxes/casetest"
)

func TestCasesJSONL(t *testing.T) {
	casetest.Run(t, "jsonl", func(t *testing.T, c casetest.Case) {
		rows, bad := readLines([]byte(c.Input))
		got := map[string]any{"rows": len(rows), "bad": len(bad)}
		if len(bad) > 0 {
			last := 1 + strings.Count(strings.TrimRight(c.Input, "\n"), "\n")
			got["bad_is_last"] = bad[len(bad)-1] == last
		}
		c.Check(t, got)
	})
}

func TestCasesJSONLSize(t *testing.T) {
	casetest.Run(t, "jsonl-size", func(t *testing.T, c casetest.Case) {
		var in struct {
			LineBytes int `json:"line_bytes"`
			Lines     int
		}
		c.In(t, &in)
		line := `{"t":"` + strings.Repeat("x", in.LineBytes-len(`{"t":""}`)) + "\"}\n"
		rows, bad := readLines([]byte(strings.Repeat(line, in.Lines)))
		c.Check(t, map[string]any{"rows": len(rows), "bad": len(bad)})
	})
}

// toyRecord is a record of a few toy episodes.
func toyRecord(t *testing.T) (*Record, envs.Spec) {
	spec := toySpec(t)
	r, err := Run(t.Context(), Config{Spec: spec, Policy: toyOracle{}, Name: "toy", Split: "train", Tasks: 6, Trials: 2, Seed: 3, Parallel: 2})
	require.NoError(t, err)
	r.Provenance = Provenance{Commit: "abc", Date: "2031-01-01", Command: "none", Drivers: []string{"in-process"}}
	return r, spec
}

// check reads a record's bytes and replays them, and returns every problem as text.
func check(t *testing.T, spec envs.Spec, data []byte) string {
	r, problems, err := Unmarshal(data)
	if err != nil {
		return err.Error()
	}
	found, err := Replay(t.Context(), spec, r, 2, nil)
	if err != nil {
		return err.Error()
	}
	var b strings.Builder
	for _, p := range append(problems, found...) {
		fmt.Fprintln(&b, p)
	}
	return b.String()
}

// A record that was edited in any place is caught, and the place is named: also by one who computes the digests anew.
func TestTampering(t *testing.T) {
	r, spec := toyRecord(t)
	data, err := r.Marshal()
	require.NoError(t, err)
	require.Empty(t, check(t, spec, data))

	lines := bytes.Split(bytes.TrimSpace(data), []byte("\n"))
	edit := func(line int, old, new string) []byte {
		require.Contains(t, string(lines[line]), old)
		all := make([][]byte, len(lines))
		copy(all, lines)
		all[line] = bytes.Replace(lines[line], []byte(old), []byte(new), 1)
		return append(bytes.Join(all, []byte("\n")), '\n')
	}
	for _, c := range []struct {
		name string
		data []byte
		want []string
	}{
		{"C276 observation", edit(4, `\"temp_c\":`, `\"temp_c\":1`), []string{"episode 1 trial 1 step 0: observation: result 0", "episode 1 trial 1: the line does not match its digest"}},
		{"C276 reward", edit(4, `"value":1`, `"value":2`), []string{"episode 1 trial 1: reward"}},
		{"C276 cut", append(bytes.Join(lines[:9], []byte("\n")), '\n'), []string{"cut short: 8 of 12 episodes", "episode 4 trial 0: the episode is missing"}},
		{"torn last line", data[:len(data)-40], []string{"line 13: not JSON, or torn", "cut short: 11 of 12"}},
		{"action", edit(4, `"arguments":{"city":"`, `"arguments":{"city":"X`), []string{"episode 1 trial 1 step 0"}},
		{"answer", edit(2, `{"action":{"text":"`, `{"action":{"text":"x`), []string{"episode 0 trial 1: reward"}},
		{"provenance", edit(0, `"commit":"abc"`, `"commit":"abd"`), []string{"line 1: the header, which holds the provenance, does not match its digest"}},
		{"seed", edit(3, `"seed":`, `"seed":1`), []string{"episode 1 trial 0: the seed does not follow"}},
		{"prompt", edit(3, `Is it warmer`, `Is it colder`), []string{"episode 1 trial 0: the task is not what train 1 gives now"}},
		{"exchanged", append(bytes.Join([][]byte{lines[0], lines[2], lines[1], bytes.Join(lines[3:], []byte("\n"))}, []byte("\n")), '\n'), []string{"the episodes are not those that the header was written for"}},
		{"no record", []byte("{}\n"), []string{"the record has format 0"}},
		{"nothing", nil, []string{"line 1 is not the header"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := check(t, spec, c.data)
			for _, w := range c.want {
				require.Contains(t, got, w)
			}
		})
	}

	t.Run("digests computed anew", func(t *testing.T) {
		for what, forge := range map[string]func(r *Record){
			"episode 2 trial 0 step 1: observation": func(r *Record) { r.Episodes[4].Steps[1].Observation.Results[0].Text += " " },
			"episode 2 trial 0: reward":             func(r *Record) { r.Episodes[4].Score.Value = 0.5 },
			"episode 2 trial 0: state":              func(r *Record) { r.Episodes[4].State = &sandboxes.State{Hash: "x"} },
			"episode 2 trial 0: end":                func(r *Record) { r.Episodes[4].End = envs.EndTurns },
			"episode 2 trial 0: tools":              func(r *Record) { r.Episodes[4].Tools = "" },
			"header: the limits":                    func(r *Record) { r.Limits.Turns++ },
			"line 1":                                nil,
		} {
			if forge == nil {
				continue
			}
			r, _, err := Unmarshal(data)
			require.NoError(t, err)
			forge(r)
			forged, err := r.Marshal()
			require.NoError(t, err)
			require.Contains(t, check(t, spec, forged), what)
		}
	})

	t.Run("C277 another version", func(t *testing.T) {
		other := spec
		other.Name = "Toy-v1"
		require.Equal(t, "the record is of Toy-v0, which cannot be compared with Toy-v1", check(t, other, data))
		r1, _ := toyRecord(t)
		r1.Env = "Toy-v1"
		_, err := Boards([]*Record{r, r1})
		require.ErrorContains(t, err, "scores of two versions cannot be compared")
		_, _, err = Compare(Summarise(r), Summarise(r1))
		require.ErrorContains(t, err, "only rows of one version and split can be compared")
	})
}

// Every single changed byte of a record is noticed.
func TestEveryByteCounts(t *testing.T) {
	r, _ := toyRecord(t)
	data, err := r.Marshal()
	require.NoError(t, err)
	step := 7
	if testing.Short() {
		step = 97
	}
	for i := 0; i < len(data); i += step {
		if data[i] == '\n' {
			continue
		}
		changed := bytes.Clone(data)
		changed[i] ^= 1
		if _, problems, err := Unmarshal(changed); err == nil && len(problems) == 0 {
			t.Fatalf("byte %d changed unnoticed: %s", i, changed[max(0, i-20):i+20])
		}
	}
}

func TestSave(t *testing.T) {
	r, _ := toyRecord(t)
	path := filepath.Join(t.TempDir(), "toy", "toy.jsonl")
	require.NoError(t, r.Save(path))
	first, err := os.ReadFile(path)
	require.NoError(t, err)

	again, _ := toyRecord(t)
	again.Provenance = Provenance{Commit: "later", Date: "2032-02-02"}
	require.NoError(t, again.Save(path))
	same, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, string(first), string(same), "an unchanged record keeps its provenance")

	again.Episodes[0].Score.Value = 0.5
	again.Provenance.Commit = "later"
	require.NoError(t, again.Save(path))
	changed, _, err := Load(path)
	require.NoError(t, err)
	require.Equal(t, "later", changed.Provenance.Commit)

	before, err := os.ReadFile(path)
	require.NoError(t, err)
	bad, _ := toyRecord(t)
	bad.Provenance.Cost = new(float64)
	*bad.Provenance.Cost = 1 / zero
	require.Error(t, bad.Save(path), "infinity is no JSON")
	after, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, string(before), string(after), "a failed write leaves the file alone")
	entries, err := os.ReadDir(filepath.Dir(path))
	require.NoError(t, err)
	require.Len(t, entries, 1, "no temporary file is left")
}

var zero float64

// The record does not depend on how many episodes run at once, nor on the order in which they end.
func TestRunIsDeterministic(t *testing.T) {
	spec := toySpec(t)
	var first []byte
	for _, parallel := range []int{1, 2, 8} {
		r, err := Run(t.Context(), Config{Spec: spec, Policy: policies.Random{}, Name: "random", Split: "train", Tasks: 20, Trials: 3, Seed: 5, Parallel: parallel})
		require.NoError(t, err)
		data, err := r.Marshal()
		require.NoError(t, err)
		if first == nil {
			first = data
		}
		require.Equal(t, string(first), string(data), "with %d at once", parallel)
	}
}

func TestRunRefuses(t *testing.T) {
	spec := toySpec(t)
	for name, c := range map[string]Config{
		"want at least one task": {Spec: spec, Policy: policies.Noop{}, Split: "train", Tasks: -1, Trials: 1, Parallel: 1},
		"has no split":           {Spec: spec, Policy: policies.Noop{}, Split: "x", Tasks: 1, Trials: 1, Parallel: 1},
		"environment \"toy\"":    {Spec: func() envs.Spec { s := spec; s.Name = "toy"; return s }(), Policy: policies.Noop{}, Split: "train", Tasks: 1, Trials: 1, Parallel: 1},
	} {
		_, err := Run(t.Context(), c)
		require.ErrorContains(t, err, name)
	}
	ctx, cancel := context.WithCancel(t.Context())
	_, err := Run(ctx, Config{Spec: spec, Policy: policies.Noop{}, Split: "train", Tasks: 1000, Trials: 1, Parallel: 2, Progress: func(done int) {
		if done == 10 {
			cancel()
		}
	}})
	require.ErrorIs(t, err, context.Canceled)
}

// deadSandboxes fails every lease of some worlds.
type deadSandboxes struct {
	sandboxes.Provider
	every int
}

func (d deadSandboxes) Lease(ctx context.Context, w sandboxes.World) (sandboxes.Sandbox, error) {
	if int(w.Seed)%d.every == d.every-1 {
		return nil, &sandboxes.Fault{Kind: sandboxes.FaultLease, Op: "lease", Msg: "no room", Err: errors.New("no room")}
	}
	return d.Provider.Lease(ctx, w)
}

// An episode whose sandbox failed is data: its siblings go on, it is not passed, and a row with too many is withheld.
func TestVoidEpisodes(t *testing.T) {
	spec := toySpec(t)
	spec.Sandboxes = deadSandboxes{spec.Sandboxes, 10}
	r, err := Run(t.Context(), Config{Spec: spec, Policy: toyOracle{}, Name: "toy", Split: "train", Tasks: 100, Trials: 1, Parallel: 2})
	require.NoError(t, err)
	row := Summarise(r)
	require.Equal(t, 10, row.Void)
	require.Equal(t, 0.9, row.Pass1)
	require.Equal(t, 1.0, *row.MeanReward)
	boards, err := Boards([]*Record{r})
	require.NoError(t, err)
	require.Empty(t, boards[0].Rows)
	require.Len(t, boards[0].Withheld, 1)
	require.Contains(t, boards[0].Table(true), "withheld")

	data, err := r.Marshal()
	require.NoError(t, err)
	back, problems, err := Unmarshal(data)
	require.NoError(t, err)
	require.Empty(t, problems)
	again, err := back.Marshal()
	require.NoError(t, err)
	require.Equal(t, string(data), string(again))
	require.True(t, json.Valid(bytes.Split(data, []byte("\n"))[0]))
}

// On another major version of a program that the machine provides, records are replayed by outcome.
func TestReplayByOutcome(t *testing.T) {
	r, spec := toyRecord(t)
	data, err := r.Marshal()
	require.NoError(t, err)
	edit := func(old, new string) string {
		require.Contains(t, string(data), old)
		changed, _, err := Unmarshal([]byte(strings.Replace(string(data), old, new, 1)))
		require.NoError(t, err)
		anew, err := changed.Marshal()
		require.NoError(t, err)
		return check(t, spec, anew)
	}
	identity := `"identity":{"sandbox":"toy"}`
	require.Contains(t, edit(identity, `"identity":{"sandbox":"toy","version":"2"}`), "the record was made with")

	major := `"identity":{"db major":"14","sandbox":"toy"}`
	require.Equal(t, "replayed by outcome: recorded with map[db major:14 sandbox:toy], this is map[sandbox:toy]\n", edit(identity, major))
	data = []byte(strings.Replace(string(data), identity, major, 1))
	require.NotContains(t, edit(`\"temp_c\":`, `\"temp_c\":1`), "observation", "what was seen may be worded otherwise")
	require.Contains(t, edit(`"success":true,"value":1`, `"success":true,"value":0.5`), "reward: recorded")
	require.Contains(t, edit(`"end":"answer"`, `"end":"turns"`), "end: recorded")
}
