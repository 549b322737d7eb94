package bench

import (
	"bytes"
	"compress/gzip"
	"context"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/mcpgym/mcpgym/envs"
	"github.com/mcpgym/mcpgym/policies"
	"github.com/mcpgym/mcpgym/policies/bpe"
	"github.com/mcpgym/mcpgym/policies/engine"
	"github.com/mcpgym/mcpgym/policies/lm"
	"github.com/mcpgym/mcpgym/policies/toolcall"
)

// References: scipy t.interval.
func TestAcross(t *testing.T) {
	five := Across([]float64{.5, .55, .6, .52, .58})
	near(t, 0.4988048818387915, five.Lo, 1e-10)
	near(t, 0.6011951181612086, five.Hi, 1e-10)
	three := Across([]float64{.5, .55, .6})
	near(t, 0.42579311441248346, three.Lo, 1e-10)
	near(t, 0.6742068855875164, three.Hi, 1e-10)
	require.Equal(t, Interval{math.Inf(-1), math.Inf(1)}, Across([]float64{.5}))
}

// References: standard errors of statsmodels OLS(cov_type="cluster") for seeds and for tasks, added in squares, and scipy t.
func TestTwoWay(t *testing.T) {
	for _, c := range []struct {
		name            string
		differences     [][]float64
		mean, lo, hi, p float64
	}{
		{"five seeds", [][]float64{{1, 0, 1, 1}, {1, 1, 0, 1}, {0, 1, 1, 1}, {1, 0, 1, 0}, {1, 1, 1, 1}}, 0.75, 0.4523094068455944, 1.0476905931544056, 0.004050400393539422},
		{"three seeds", [][]float64{{.5, .25, -.5, 1, 0, .75}, {.25, .5, 0, .5, .25, .5}, {.75, 0, -.25, 1, .5, .25}}, 0.3472222222222222, -0.29306486418754485, 0.9875093086319893, 0.1448179739475774},
		{"no difference", [][]float64{{1, -1, 0, 0}, {0, 1, -1, .5}, {0, 0, 1, -1}}, 0.041666666666666664, -0.44381827803189405, 0.5271516113652274, 0.7473544236800442},
		{"tasks vary", [][]float64{{1, 0, -1, 1, 0, 1}, {1, 0, -1, 1, 0, 0}, {1, 0, -1, 1, 0, 1}}, 0.2777777777777778, -1.0995358100499693, 1.6550913656055246, 0.47700575918087007},
		{"seeds vary", [][]float64{{.9, .8, .9}, {.1, .2, .1}, {.5, .4, .5}, {-.2, -.1, -.2}, {.6, .7, .6}}, 0.38666666666666666, -0.40019481869844925, 1.1735281520317826, 0.1687950779081276},
		{"the same everywhere", [][]float64{{1, 1}, {1, 1}, {1, 1}}, 1, 1, 1, 0.25},
		{"none at all", [][]float64{{0, 0}, {0, 0}}, 0, 0, 0, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			d, err := TwoWay(c.differences)
			require.NoError(t, err)
			for _, v := range [][2]float64{{c.mean, d.Mean}, {c.lo, d.Lo}, {c.hi, d.Hi}, {c.p, d.P}} {
				require.InDelta(t, v[0], v[1], 1e-10)
			}
		})
	}
	for want, differences := range map[string][][]float64{
		"of 0 training seeds": nil,
		"of 1 training seeds": {{1, 2, 3}},
		"and two tasks":       {{1}, {2}},
		"2 and 1 of them":     {{1, 2}, {1}},
	} {
		_, err := TwoWay(differences)
		require.ErrorContains(t, err, want)
	}
}

// invented is a record of 40 tasks of two families that were not played: what passes and how much was made up is given.
func invented(policy string, training *Training, passes func(i int) bool, up func(i int) int) *Record {
	r := &Record{Header: Header{Format: Format, Env: "Toy-v0", Policy: policy, Split: "test", Ranked: true, Seed: 1, Tasks: 40, Trials: 1,
		Provenance: Provenance{Commit: "abc", Command: "play " + policy, Drivers: []string{"in-process"}}}}
	for i := range r.Tasks {
		score := envs.Score{Success: passes(i), Parts: []envs.Part{{Name: "hallucination", Counts: map[string]int{"claims": up(i)}}}}
		if score.Success {
			score.Value = 0.5
		}
		r.Episodes = append(r.Episodes, Episode{Index: i, Task: fmt.Sprint(i), Family: []string{"even", "odd"}[i%2], Steps: make([]envs.Step, 3), Outcome: Outcome{Score: &score}})
	}
	if training != nil {
		r.Label(*training)
	}
	return r
}

func training(seed uint64) *Training {
	return &Training{Seed: seed, Command: "make them", Weights: fmt.Sprint("w", seed), MaxTokens: 128, Arithmetic: "abacus"}
}

func sftSeed(s uint64) *Record {
	return invented("nano-sft", training(s), func(i int) bool { return (7*i+3*int(s))%10 < 4-int(s)%3 }, func(i int) int { return (i + int(s)) % 3 })
}

func grpoSeed(s uint64) *Record {
	return invented("nano-grpo", training(s), func(i int) bool { return (3*i+int(s*s))%11 < 8-int(s)%2 }, func(i int) int { return boolInt(i*int(s)%7 == 0) })
}

func lexicalRow() *Record {
	return invented("lexical", nil, func(i int) bool { return i%4 == 0 }, func(i int) int { return 2 * boolInt(i%5 == 0) })
}

// References: numpy means, scipy t.interval, and as for TestTwoWay.
func TestTrainedRows(t *testing.T) {
	records := []*Record{lexicalRow()}
	for _, s := range []uint64{4, 2, 5, 1, 3} {
		records = append(records, sftSeed(s), grpoSeed(s))
	}
	expert := training(1)
	expert.Expert = true
	records = append(records, invented("nano-sft-full", expert, func(int) bool { return true }, func(int) int { return 0 }))
	boards, err := Boards(records)
	require.NoError(t, err)
	require.Len(t, boards, 1)
	b := boards[0]
	require.Equal(t, []string{"nano-sft-full", "nano-grpo", "nano-sft", "lexical"}, []string{b.Rows[0].Policy, b.Rows[1].Policy, b.Rows[2].Policy, b.Rows[3].Policy})

	sft, grpo := b.Rows[2], b.Rows[1]
	require.InDelta(t, 0.28, sft.Pass1, 1e-12)
	near(t, 0.17611493663164324, sft.Interval.Lo, 1e-9)
	near(t, 0.3838850633683567, sft.Interval.Hi, 1e-9)
	require.InDelta(t, 0.665, grpo.Pass1, 1e-12)
	near(t, 0.5969912619341745, grpo.Interval.Lo, 1e-9)
	near(t, 0.7330087380658256, grpo.Interval.Hi, 1e-9)
	require.Equal(t, [3]int{200, 200, 133}, [3]int{grpo.Planned, grpo.Scored, grpo.Passes})
	require.InDelta(t, 0.3325, *grpo.MeanReward, 1e-12)
	require.InDelta(t, 0.5969912619341745/2, grpo.RewardRange.Lo, 1e-9)
	require.InDeltaSlice(t, []float64{0.665}, grpo.PassHat, 1e-12)
	require.InDelta(t, 0.15, grpo.Hallucination.Claims, 1e-12)
	require.InDelta(t, 3, grpo.Turns, 1e-12)
	require.Equal(t, 100, grpo.Families[0].Planned)
	require.Equal(t, 133, grpo.Families[0].Passes+grpo.Families[1].Passes)
	for i, s := range grpo.Seeds {
		require.Equal(t, uint64(i+1), s.Training.Seed)
	}
	require.Equal(t, Interval{0, 1}, b.Rows[0].Interval, "one seed says nothing of another")
	require.False(t, b.Rows[0].Ranked)

	all := b.Comparisons()
	require.Len(t, all, 3)
	for i, c := range []struct {
		policy, against string
		success, made   [4]float64 // mean, interval, p
		ratio           float64
	}{
		{"nano-grpo", "lexical", [4]float64{0.415, 0.19262869646242126, 0.6373713035375788, 0.006599345209174442}, [4]float64{-0.25, -0.6186320903273914, 0.11863209032739142, 0.13282956249655128}, 0.375},
		{"nano-grpo", "nano-sft", [4]float64{0.385, 0.21156831526951259, 0.5584316847304874, 0.0035176187135241488}, [4]float64{-0.855, -1.0324940982046793, -0.6775059017953207, 0.0001807384833834423}, 0.1492537313432836},
	} {
		got := all[i]
		require.Equal(t, []any{c.policy, c.against, 5}, []any{got.Policy, got.Against, got.Seeds})
		require.InDeltaSlice(t, c.success[:], []float64{got.Success.Mean, got.Success.Lo, got.Success.Hi, got.Success.P}, 1e-9)
		require.InDeltaSlice(t, c.made[:], []float64{got.Inventions.Mean, got.Inventions.Lo, got.Inventions.Hi, got.Inventions.P}, 1e-9)
		require.InDelta(t, c.ratio, *got.Ratio, 1e-9)
	}
	p, reward, err := Compare(grpo, sft)
	require.NoError(t, err)
	require.InDelta(t, 0.0035176187135241488, p, 1e-9)
	require.InDelta(t, 0.0035176187135241488, reward, 1e-9, "here the reward is half the success")
	back, _, err := Compare(b.Rows[3], grpo)
	require.NoError(t, err)
	require.InDelta(t, 0.006599345209174442, back, 1e-9)

	shown := b.Show(true)
	for _, want := range []string{"| policy | seeds | success % |", "| nano-grpo | 5 | 66.5 | 59.7-73.3 |", "| lexical | - | 25.0 |", "nano-sft-full (expert, not ranked) | 1 | 100.0 | 0.0-100.0",
		"| nano-grpo | nano-sft | 5 | +38.5 | +21.2 to +55.8 | 0.0035 | -0.86 | -1.03 to -0.68 | 0.00018 | 0.15 |"} {
		require.Contains(t, shown, want)
	}
	bars, _, err := b.Picture()
	require.NoError(t, err)
	require.NotEmpty(t, bars)
	text, err := benchText(boards)
	require.NoError(t, err)
	require.Equal(t, 5, strings.Count(string(text), "policy=nano-grpo/split=test"), "a line for each seed, so that benchstat has a spread")
	require.NotContains(t, (Board{Rows: []Row{b.Rows[3]}}).Table(true), "seeds")
}

// Only seeds that both rows have are paired, and a seed whose sandbox failed takes its task from all.
func TestTrainedPairs(t *testing.T) {
	boards, err := Boards([]*Record{sftSeed(1), sftSeed(2), sftSeed(3), grpoSeed(2), grpoSeed(3), grpoSeed(7)})
	require.NoError(t, err)
	all := boards[0].Comparisons()
	require.Len(t, all, 1)
	require.Equal(t, 2, all[0].Seeds)

	a, b := sftSeed(1), sftSeed(2)
	a.Episodes[3].Score = nil
	whole, err := overSeeds([]Row{Summarise(a), Summarise(b)})
	require.NoError(t, err)
	tasks := 0
	_, err = against(whole, Summarise(lexicalRow()), func(o outcome) (float64, bool) {
		tasks++
		return inventions(o)
	})
	require.NoError(t, err)
	require.Equal(t, 160, tasks)
	require.Equal(t, 1, whole.Void)

	none, err := Boards([]*Record{lexicalRow(), grpoSeed(1)})
	require.NoError(t, err)
	require.Empty(t, none[0].Comparisons(), "one seed cannot be tested")
	require.Empty(t, none[0].ComparisonTable(false))
}

func TestTrainedRowsRefuse(t *testing.T) {
	for want, change := range map[string]func(r *Record){
		"two records of training seed 1":             func(r *Record) { r.Training.Seed = 1 },
		"seeds 1 and 2 were not played alike":        func(r *Record) { r.Tasks = 39 },
		"nano-sft of Toy-v0 test: the records of tr": func(r *Record) { r.Training.Temperature = 1 },
		"and 2 were not played alike":                func(r *Record) { r.Training.Expert = true },
		"1 and 2 were not played alike":              func(r *Record) { r.Seed = 2 },
	} {
		r := sftSeed(2)
		change(r)
		_, err := Boards([]*Record{sftSeed(1), r})
		require.ErrorContains(t, err, want)
	}
}

// A record of a trained policy is compressed, alike every time, and says where it lies.
func TestTrainedRecord(t *testing.T) {
	spec := toySpec(t)
	r, err := Run(t.Context(), Config{Spec: spec, Policy: toyOracle{}, Name: "nano-sft", Split: "train", Tasks: 200, Trials: 1, Seed: 3, Parallel: 2})
	require.NoError(t, err)
	for i := range r.Episodes {
		r.Episodes[i].Steps[0].Action.Sample = &envs.Sample{Tokens: []int32{1}, LogProbs: []float32{-1}}
	}
	plain, err := r.Marshal()
	require.NoError(t, err)
	require.NotContains(t, string(plain), `"training"`)
	require.Equal(t, "results/toy/nano-sft.train.jsonl", r.Path("results"))
	r.Label(*training(4))
	require.Equal(t, "results/toy/nano-sft.seed4.train.jsonl.gz", r.Path("results"))
	require.Equal(t, "results/toy/nano-sft.seed4.jsonl.gz", Header{Env: "Toy-v3", Policy: "nano-sft", Split: "test", Training: training(4)}.Path("results"))
	data, err := r.Marshal()
	require.NoError(t, err)
	require.NotContains(t, string(data), `"sample"`)

	dir := t.TempDir()
	path := r.Path(dir)
	require.NoError(t, r.Save(path))
	packed, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Less(t, len(packed), len(data)/5)
	require.Equal(t, []byte{0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 2, 255}, packed[:10], "no time, no name")
	require.NoError(t, r.Save(path+".again.jsonl.gz"))
	again, err := os.ReadFile(path + ".again.jsonl.gz")
	require.NoError(t, err)
	require.Equal(t, packed, again)
	require.NoError(t, os.Remove(path+".again.jsonl.gz"))

	back, problems, err := Load(path)
	require.NoError(t, err)
	require.Empty(t, problems)
	require.Equal(t, r.Training, back.Training)
	problems, err = Replay(t.Context(), spec, back, 2, nil)
	require.NoError(t, err)
	require.Empty(t, problems)
	loaded, err := LoadResults(dir)
	require.NoError(t, err)
	require.Len(t, loaded, 1)

	var weak bytes.Buffer // by another compressor
	z, err := gzip.NewWriterLevel(&weak, gzip.BestSpeed)
	require.NoError(t, err)
	_, err = z.Write(data)
	require.NoError(t, err)
	require.NoError(t, z.Close())
	require.NoError(t, os.WriteFile(path, weak.Bytes(), 0o644))
	require.NoError(t, r.Save(path))
	kept, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, weak.Bytes(), kept, "the content is the same")

	require.NoError(t, os.WriteFile(path, packed[:len(packed)-9], 0o644))
	_, _, err = Load(path)
	require.ErrorContains(t, err, "decompress")
	_, err = LoadResults(dir)
	require.ErrorContains(t, err, "decompress")
}

func TestIsRecord(t *testing.T) {
	for name, want := range map[string]bool{"a/b.jsonl": true, "b.seed1.ood.jsonl.gz": true, "b.gz": false, "b.jsonl.txt": false, "nano-grpo": false, "jsonl": false} {
		require.Equal(t, want, IsRecord(name), name)
	}
}

// playedByWeights plays the first tasks of a record anew with the model in a folder, and lists those in which it acts otherwise, and those
// that it passes otherwise.
func playedByWeights(ctx context.Context, spec envs.Spec, r *Record, dir string, tasks int) (acts, passes []int, err error) {
	model, err := lm.Open(dir, lm.Options{})
	if err != nil {
		return nil, nil, err
	}
	defer model.Close()
	policy := toolcall.Policy{Engine: model, Sampling: engine.Request{Temperature: r.Training.Temperature, MaxTokens: r.Training.MaxTokens}}
	anew, err := Run(ctx, Config{Spec: spec, Policy: policy, Name: r.Policy, Split: r.Split, Tasks: min(tasks, r.Tasks), Trials: r.Trials, Seed: r.Seed, Parallel: 4 * runtime.NumCPU()})
	if err != nil {
		return nil, nil, err
	}
	anew.Label(*r.Training)
	for i, e := range anew.Episodes {
		want := r.Episodes[i]
		said := func(e Episode) (actions []envs.Action) {
			for _, s := range e.Steps {
				actions = append(actions, s.Action)
			}
			return actions
		}
		if differ(said(want), said(e)) != "" {
			acts = append(acts, e.Index)
		}
		if (want.Score != nil && want.Score.Success) != (e.Score != nil && e.Score.Success) {
			passes = append(passes, e.Index)
		}
	}
	return acts, passes, nil
}

// weights plays the first tasks of every row of an environment anew whose weights lie under the results, as results/<env>/<policy>. On the
// arithmetic that it was recorded with, a model must act the same; on another, rounding may tip a token over, and a tenth of
// the tasks may end otherwise.
func weights(t *testing.T, spec envs.Spec) {
	const tasks = 30
	folders, err := filepath.Glob(filepath.Join(results, Dir(spec.Name), "*", "config.json"))
	require.NoError(t, err)
	t.Logf("%d models are played anew", len(folders))
	records, err := LoadResults(results)
	require.NoError(t, err)
	for _, f := range folders {
		dir := filepath.Dir(f)
		t.Run("weights="+filepath.Base(dir), func(t *testing.T) {
			sum, err := WeightsSum(dir)
			require.NoError(t, err)
			i := slices.IndexFunc(records, func(r *Record) bool {
				return r.Env == spec.Name && r.Split == "test" && r.Policy == filepath.Base(dir) && r.Training != nil && r.Training.Weights == sum
			})
			require.GreaterOrEqual(t, i, 0, "no record of the split test was made with the weights in %s", dir)
			r := records[i]
			acts, passes, err := playedByWeights(t.Context(), spec, r, dir, tasks)
			require.NoError(t, err)
			if r.Training.Arithmetic == Arithmetic() {
				require.Empty(t, acts, "tasks of training seed %d in which the model does not act as recorded", r.Training.Seed)
				return
			}
			t.Logf("recorded on %s, played on %s: it acts otherwise in tasks %v and passes otherwise in %v", r.Training.Arithmetic, Arithmetic(), acts, passes)
			require.LessOrEqual(t, len(passes), tasks*r.Trials/10)
		})
	}
}

// A model plays as it was recorded, however many episodes share its work; another model does not.
func TestPlayedByWeights(t *testing.T) {
	spec := toySpec(t)
	model := func(seed uint64) string {
		dir := t.TempDir()
		tok, err := bpe.Train(slices.Values([]string{"yes no <tool_call> get_current city Oslo Lima"}), 290, toolcall.SmallTokens)
		require.NoError(t, err)
		require.NoError(t, toolcall.WriteSmall(dir, tok))
		m, err := lm.New(lm.Config{Kind: "qwen3", Hidden: 32, Intermediate: 48, Layers: 2, Heads: 4, KVHeads: 2, HeadDim: 16, Vocab: tok.Size(),
			Eps: 1e-6, Theta: 1e4, QKNorm: true, MaxPositions: 4096, DType: lm.BF16}, seed, lm.Options{Tokenizer: dir})
		require.NoError(t, err)
		out := filepath.Join(t.TempDir(), "model")
		require.NoError(t, m.Export(out))
		require.NoError(t, m.Close())
		return out
	}
	dir := model(3)
	m, err := lm.Open(dir, lm.Options{})
	require.NoError(t, err)
	play := func(p policies.Policy, parallel int) *Record {
		r, err := Run(t.Context(), Config{Spec: spec, Policy: p, Name: "nonsense", Split: "train", Tasks: 8, Trials: 1, Seed: 3, Parallel: parallel})
		require.NoError(t, err)
		l := training(1)
		l.Temperature, l.MaxTokens = 0.7, 12
		r.Label(*l)
		return r
	}
	r := play(toolcall.Policy{Engine: m, Sampling: engine.Request{Temperature: 0.7, MaxTokens: 12}}, 1)
	require.NoError(t, m.Close())
	acts, passes, err := playedByWeights(t.Context(), spec, r, dir, 6)
	require.NoError(t, err)
	require.Empty(t, acts)
	require.Empty(t, passes)

	r.Episodes[2].Steps[0].Action.Text += "!"
	r.Episodes[4].Score.Success = !r.Episodes[4].Score.Success
	acts, passes, err = playedByWeights(t.Context(), spec, r, dir, 6)
	require.NoError(t, err)
	require.Equal(t, []int{2}, acts)
	require.Equal(t, []int{4}, passes)
	acts, _, err = playedByWeights(t.Context(), spec, r, model(4), 6)
	require.NoError(t, err)
	require.Len(t, acts, 6)
}

// The crowd can be played, and is no row that every test run plays anew.
func TestPolicies(t *testing.T) {
	_, err := FindPolicy("crowd")
	require.NoError(t, err)
	for _, b := range Baselines() {
		require.NotEqual(t, "crowd", b.Name)
	}
}
