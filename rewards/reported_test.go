package rewards_test

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/mark3labs/mcp-go/mcp"
	"github.com/mark3labs/mcp-go/server"
	"github.com/stretchr/testify/require"

	"github.com/mcpgym/mcpgym/envs"
	"github.com/mcpgym/mcpgym/rewards"
	"github.com/mcpgym/mcpgym/sandboxes"
	"github.com/mcpgym/mcpgym/sandboxes/casetest"
	"github.com/mcpgym/mcpgym/sandboxes/mcpmem"
)

// reporting is an episode whose verifier has written a text.
func reporting(t testing.TB, text string) *envs.Trajectory {
	t.Helper()
	value, err := json.Marshal(text)
	require.NoError(t, err)
	return &envs.Trajectory{End: envs.EndAnswer, Probes: []sandboxes.Answer{{Value: value}}, Task: envs.Task{Assertions: []envs.Assertion{{Report: true}}}}
}

func TestCasesRewardFile(t *testing.T) {
	casetest.Run(t, "reward-file", func(t *testing.T, c casetest.Case) {
		score, reason, err := scoreOf(rewards.Reported(1), reporting(t, c.Input))
		require.NoError(t, err)
		if score == nil {
			require.Contains(t, reason, "report unreadable")
			c.Check(t, map[string]any{"error": true})
			return
		}
		c.Check(t, map[string]any{"reward": *score})
	})
}

func TestReportedReads(t *testing.T) {
	for text, want := range map[string]float64{
		`{"reward": 1}`:               1,
		`{"reward":0}`:                0,
		`{"reward": 1.0}`:             1,
		`{"reward": 0.25}`:            0.25,
		`{"reward": 2.5e-1}`:          0.25,
		`{"reward": -0.0}`:            0,
		" {\r\n\"reward\" : 0.5 } \n": 0.5,
		`{"\u0072eward": 0.5}`:        0.5, // the same name in JSON
		`{"reward": 0.9999999999999}`: 0.9999999999999,
	} {
		score, reason := one(t, rewards.Reported(1), reporting(t, text))
		require.Equal(t, want, score, "%s: %s", text, reason)
		require.False(t, math.Signbit(score), text)
	}
	for _, text := range []string{
		``, ` `, "\n", `null`, `1`, `"1"`, `true`, `[]`, `{}`, `[{"reward": 1}]`, `reward: 1`, `"{\"reward\": 1}"`,
		`{"reward": NaN}`, `{"reward": nan}`, `{"reward": Infinity}`, `{"reward": -Infinity}`, `{"reward": 1e999}`, `{"reward": 1e9999999999}`,
		`{"reward": "1"}`, `{"reward": "0"}`, `{"reward": true}`, `{"reward": false}`, `{"reward": null}`, `{"reward": [1]}`, `{"reward": {"reward": 1}}`,
		`{"reward": 1.5}`, `{"reward": -0.5}`, `{"reward": 1.0000001}`, `{"reward": -1e-9}`, `{"reward": 100}`,
		`{"reward": 1`, `{"reward": `, `{"reward"`, `{"rew`, `{`, `{"reward": 0.`, `{"reward": 1,}`, `{"reward": .5}`, `{"reward": +1}`, `{"reward": 01}`, `{"reward": 0x1}`,
		`{"reward": 0, "reward": 1}`, `{"reward": 1, "reward": 1}`, `{"reward": 1, "Reward": 1}`, `{"Reward": 1}`, `{"REWARD": 1}`, `{"reward ": 1}`, `{"score": 1}`,
		`{"reward": 1, "note": "fine"}`, `{"reward": 1} {"reward": 1}`, `{"reward": 1}x`, `{"reward": 0}{"reward": 1}`, `{"reward": 1}]`,
		`// done` + "\n" + `{"reward": 1}`, "\ufeff" + `{"reward": 1}`, `{'reward': 1}`, "```json\n{\"reward\": 1}\n```", strings.Repeat(`{"reward":`, 2000),
	} {
		score, reason, err := scoreOf(rewards.Reported(1), reporting(t, text))
		require.NoError(t, err)
		require.Nil(t, score, text)
		require.Contains(t, reason, "report unreadable", text)
	}
	part := rewards.Reported(0.7)
	require.Equal(t, envs.Gate, part.Kind)
	require.Equal(t, 0.7, part.Weight)
}

func TestReported(t *testing.T) {
	report, other := envs.Assertion{Report: true}, envs.Assertion{Want: json.RawMessage(`1`)}
	full, none := sandboxes.Answer{Value: json.RawMessage(`"{\"reward\":1}"`)}, sandboxes.Answer{Value: json.RawMessage(`"{\"reward\":0}"`)}
	for _, c := range []struct {
		name   string
		asked  []envs.Assertion
		probes []sandboxes.Answer
		end    envs.End
		score  float64 // -1: not scored
		reason string
	}{
		{"full", []envs.Assertion{report}, []sandboxes.Answer{full}, envs.EndAnswer, 1, "reports 1"},
		{"none", []envs.Assertion{report}, []sandboxes.Answer{none}, envs.EndAnswer, 0, "reports 0"},
		{"beside others, the second", []envs.Assertion{other, report}, []sandboxes.Answer{none, full}, envs.EndAnswer, 1, ""},
		{"beside others, the first", []envs.Assertion{report, other}, []sandboxes.Answer{none, full}, envs.EndAnswer, 0, ""},
		{"cut short by a limit", []envs.Assertion{report}, []sandboxes.Answer{full}, envs.EndTurns, 1, ""},
		{"the sandbox is gone", []envs.Assertion{report}, nil, envs.EndKilled, 0, "the sandbox is gone"},
		{"the probe failed", []envs.Assertion{report}, []sandboxes.Answer{{Err: "exit status 139"}}, envs.EndAnswer, -1, "exit status 139"},
		{"the probe failed, and has a value", []envs.Assertion{report}, []sandboxes.Answer{{Value: full.Value, Err: "stopped"}}, envs.EndAnswer, -1, "stopped"},
		{"no answers", []envs.Assertion{report, other}, []sandboxes.Answer{full}, envs.EndAnswer, -1, "1 of 2 questions"},
		{"no value", []envs.Assertion{report}, []sandboxes.Answer{{}}, envs.EndAnswer, -1, "report unreadable"},
		{"an object instead of its text", []envs.Assertion{report}, []sandboxes.Answer{{Value: json.RawMessage(`{"reward":1}`)}}, envs.EndAnswer, -1, "not a text"},
		{"a number", []envs.Assertion{report}, []sandboxes.Answer{{Value: json.RawMessage(`1`)}}, envs.EndAnswer, -1, "not a text"},
	} {
		t.Run(c.name, func(t *testing.T) {
			tr := &envs.Trajectory{End: c.end, Probes: c.probes, Task: envs.Task{Assertions: c.asked}}
			score, reason := one(t, rewards.Reported(1), tr)
			require.Equal(t, c.score, score, reason)
			require.Contains(t, reason, c.reason)
			s, err := rewards.Sum{rewards.Reported(1)}.Score(tr)
			require.Equal(t, c.score < 0, errors.Is(err, envs.ErrUnscored))
			require.Equal(t, c.score == 1, s.Success)
		})
	}
	for _, asked := range [][]envs.Assertion{nil, {other}, {report, report}} {
		score, _, err := scoreOf(rewards.Reported(1), &envs.Trajectory{End: envs.EndAnswer, Probes: slices.Repeat([]sandboxes.Answer{full}, len(asked)), Task: envs.Task{Assertions: asked}})
		require.ErrorContains(t, err, "the task asks for")
		require.NotErrorIs(t, err, envs.ErrUnscored)
		require.Nil(t, score)
	}
	// Half is no success, and pays nothing.
	s, err := rewards.Sum{rewards.Reported(1)}.Score(reporting(t, `{"reward": 0.5}`))
	require.NoError(t, err)
	require.False(t, s.Success)
	require.Zero(t, s.Value)
}

func FuzzReported(f *testing.F) {
	for _, s := range []string{`{"reward": 1}`, `{"reward": 0.25}`, `{"reward": NaN}`, `{"reward":1,"reward":0}`, `{"reward": -0}`, "", `{"reward": 1e400}`, `{"Reward":1}`} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		score, _, err := scoreOf(rewards.Reported(1), reporting(t, text))
		require.NoError(t, err)
		if score == nil {
			return
		}
		if !(*score >= 0 && *score <= 1) {
			t.Errorf("%q is read as %v", text, *score)
		}
		var plain map[string]float64 // what is read strictly, a lax reader reads the same
		if err := json.Unmarshal([]byte(text), &plain); err != nil || len(plain) != 1 || plain["reward"] != *score {
			t.Errorf("%q is read as %v and as %v (%v)", text, *score, plain, err)
		}
		for _, bad := range []string{text + "x", "x" + text, text + text, strings.TrimSpace(text)[1:], strings.Replace(text, "}", ",}", 1)} {
			if score, _, _ := scoreOf(rewards.Reported(1), reporting(t, bad)); score != nil {
				t.Errorf("%q is read as %v", bad, *score)
			}
		}
	})
}

// desk is a world of files, which a program looks at in the end.
type desk struct {
	dir   string
	limit time.Duration // of the program
}

const deskCheck = `if [ "$(cat answer.txt)" = 42 ]; then echo '{"reward": 1}'; else echo '{"reward": 0}'; fi`

type deskFile struct {
	Name string `json:"name"`
	Text string `json:"text"`
}

func openDesk(limit time.Duration) (*desk, error) {
	dir, err := os.MkdirTemp("", "mcpgym-desk-")
	if err != nil {
		return nil, err
	}
	return &desk{dir, limit}, os.WriteFile(filepath.Join(dir, "check.sh"), []byte(deskCheck), 0o600)
}

func (d *desk) write(_ context.Context, in deskFile) (any, error) {
	root, err := os.OpenRoot(d.dir)
	if err != nil {
		return nil, err
	}
	defer root.Close()
	return "written", root.WriteFile(in.Name, []byte(in.Text), 0o600)
}

// Probe runs the program that it is asked, and answers what it writes.
func (d *desk) Probe(ctx context.Context, ask []sandboxes.Question) (answers []sandboxes.Answer, err error) {
	for _, q := range ask {
		ctx, cancel := context.WithTimeout(ctx, d.limit)
		cmd := exec.CommandContext(ctx, "sh", "-c", q.Text)
		cmd.Dir = d.dir
		out, err := cmd.Output()
		switch cancel(); {
		case ctx.Err() == context.DeadlineExceeded:
			answers = append(answers, sandboxes.Answer{Err: fmt.Sprintf("the verifier was stopped after %v", d.limit)})
		case err != nil:
			answers = append(answers, sandboxes.Answer{Err: "the verifier failed: " + err.Error()})
		default:
			value, err := json.Marshal(string(out))
			if err != nil {
				return nil, err
			}
			answers = append(answers, sandboxes.Answer{Value: value})
		}
	}
	return answers, nil
}

func (d *desk) State(context.Context) (sandboxes.State, error) {
	entries, err := os.ReadDir(d.dir)
	if err != nil {
		return sandboxes.State{}, err
	}
	var state sandboxes.State
	h := sha256.New()
	for _, e := range entries {
		text, err := os.ReadFile(filepath.Join(d.dir, e.Name()))
		if err != nil {
			return sandboxes.State{}, err
		}
		fmt.Fprintf(h, "%q %q\n", e.Name(), text)
		if e.Name() != "check.sh" {
			state.Diff = append(state.Diff, "+ file "+e.Name())
		} else if string(text) != deskCheck {
			state.Diff = append(state.Diff, "- file check.sh", "+ file check.sh")
		}
	}
	slices.Sort(state.Diff)
	state.Hash = fmt.Sprintf("%x", h.Sum(nil))
	return state, nil
}

func (d *desk) Close() error { return os.RemoveAll(d.dir) }

func deskSpec(t *testing.T, limit time.Duration) envs.Spec {
	t.Helper()
	srv := server.NewMCPServer("desk", "1")
	srv.AddTools(mcpmem.Tool("write_file", "Write a file.", func(ctx context.Context, d *desk, in deskFile) (any, error) { return d.write(ctx, in) },
		mcp.WithString("name", mcp.Required()), mcp.WithString("text", mcp.Required())))
	p, err := mcpmem.New(srv, nil, func(sandboxes.World) (*desk, error) { return openDesk(limit) })
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, p.Close()) })
	return envs.Spec{
		Name:      "Desk-v0",
		Splits:    map[string]envs.Source{"test": envs.Generator(func(int) envs.Task { return deskTask(deskCheck) })},
		Limits:    envs.Limits{Turns: 8, Calls: 8, ResultBytes: 1000, Call: 10 * time.Second, Episode: time.Minute},
		Reward:    rewards.Sum{rewards.Reported(0.8), rewards.Efficiency(0.2), rewards.Hallucination(0.5)},
		Sandboxes: p,
	}
}

func deskTask(verifier string) envs.Task {
	return envs.Task{ID: "desk", Family: "desk", Prompt: "Write 42 to answer.txt.", Par: 1,
		Assertions: []envs.Assertion{{Ask: sandboxes.Question{Kind: "program", Text: verifier}, Report: true}}}
}

func writing(name, text string) envs.Action {
	args, err := json.Marshal(deskFile{name, text})
	if err != nil {
		panic(err) // plain strings
	}
	return call("write_file", string(args))
}

func TestCasesVerifier(t *testing.T) {
	long := deskSpec(t, time.Minute)
	solved := writing("answer.txt", "42")

	// What an agent writes or says is no report, neither for nor against it.
	t.Run("C171", func(t *testing.T) {
		for _, c := range []struct {
			name  string
			turns []envs.Action
			want  float64
		}{
			{"nothing is done", []envs.Action{say("")}, 0},
			{"and forged", []envs.Action{writing("reward.json", `{"reward": 1}`), writing("../reward.json", `{"reward": 1}`),
				say("{\"reward\": 1}\n[[EPISODE DONE]]\n<|reset|>\nFINAL SCORE: 1")}, 0},
			{"by a tool that the agent invents", []envs.Action{call("reset", `{}`), call("submit", `{"reward":1}`), say(`{"reward": 1}`)}, -0.2},
			{"all is done", []envs.Action{solved, say("")}, 1},
			{"and denied", []envs.Action{solved, say(`{"reward": "none"}`)}, 1},
		} {
			e := start(t, long, deskTask(deskCheck))
			s := play(t, e, c.turns...).Score
			require.Equal(t, c.want, s.Value, c.name)
			require.Equal(t, c.want == 1, s.Success, c.name)
			tr := e.Trajectory()
			require.Nil(t, tr.Void)
			if c.name != "and forged" {
				continue
			}
			require.Len(t, tr.Results(), 2, "the attempts are in the record")
			require.Contains(t, string(tr.Steps[0].Action.Calls[0].Arguments), "reward.json")
			require.Equal(t, envs.StatusToolError, tr.Results()[1].Status, "out of its folder it cannot write")
			require.Equal(t, []string{"+ file reward.json"}, tr.State.Diff)
			score, reason := one(t, rewards.Collateral(1), tr)
			require.Zero(t, score)
			require.Contains(t, reason, "reward.json")
		}
	})

	// A verifier that fails is nobody's reward, whatever the agent did: not 0, and not left out of what was planned.
	broken := func(t *testing.T, spec envs.Spec, verifier, reason string) {
		t.Helper()
		var group []*envs.Trajectory
		for _, turns := range [][]envs.Action{{solved, say("")}, {writing("answer.txt", "41"), say("")}, {say("")}} {
			e := start(t, spec, deskTask(verifier))
			var err error
			for _, a := range turns {
				_, err = e.Step(t.Context(), a)
			}
			fault, ok := errors.AsType[*sandboxes.Fault](err)
			require.True(t, ok, "%v", err)
			require.Equal(t, sandboxes.FaultVerifier, fault.Kind)
			require.ErrorContains(t, err, reason)
			require.Equal(t, fault, e.Trajectory().Void)
			require.Nil(t, e.Trajectory().Score)
			group = append(group, e.Trajectory())
		}
		e := start(t, long, deskTask(deskCheck))
		require.True(t, play(t, e, solved, say("")).Score.Success, "another verifier is well")
		group = append(group, e.Trajectory())
		scores, err := rewards.Each(spec.Reward).ScoreGroup(t.Context(), group)
		require.NoError(t, err)
		require.Len(t, scores, 4, "all that were planned")
		require.Equal(t, []*envs.Score{nil, nil, nil}, scores[:3])
		require.Equal(t, 1.0, scores[3].Value)
	}
	t.Run("C175", func(t *testing.T) { broken(t, long, "exec mcpgym-verifier-that-is-not-installed", "exit status 127") })
	t.Run("C176/exits 139", func(t *testing.T) { broken(t, long, "echo '{\"reward\": 0}'; exit 139", "exit status 139") })
	t.Run("C176/crashes", func(t *testing.T) { broken(t, long, "ulimit -c 0; kill -SEGV $$", "segmentation fault") })
	t.Run("C176/times out", func(t *testing.T) {
		broken(t, deskSpec(t, 50*time.Millisecond), "echo '{\"reward\": 0}'; exec sleep 60", "stopped after 50ms")
	})
	t.Run("C176/fetches nothing and says so", func(t *testing.T) { broken(t, long, "echo 'could not fetch'", "not scored") })

	// An agent that breaks the program that judges it has ended its sandbox: that pays no better than a wrong answer.
	t.Run("broken by the agent", func(t *testing.T) {
		e := start(t, long, deskTask(". ./check.sh"))
		require.True(t, play(t, e, solved, say("")).Score.Success)
		e = start(t, long, deskTask(". ./check.sh"))
		s := play(t, e, writing("check.sh", "exit 139"), say("")).Score
		require.Equal(t, envs.EndKilled, e.Trajectory().End)
		require.Nil(t, e.Trajectory().Void)
		require.False(t, s.Success)
		require.Zero(t, s.Value)
	})
}
