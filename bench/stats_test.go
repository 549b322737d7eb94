package bench

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/mcpgym/mcpgym/sandboxes/casetest"
)

func TestCasesPassK(t *testing.T) {
	casetest.Run(t, "pass-k", func(t *testing.T, c casetest.Case) {
		var in struct {
			N, C int
			K    *int
		}
		c.In(t, &in)
		out, all := map[string]any{}, []float64{}
		for k := 1; k <= in.N; k++ {
			hat, err := PassHatK(in.N, in.C, k)
			if err != nil {
				break // reported below: it does not depend on k
			}
			at, err := PassAtK(in.N, in.C, k)
			require.NoError(t, err)
			out[fmt.Sprintf("pass^%d", k)], out[fmt.Sprintf("pass@%d", k)] = hat, at
			all = append(all, hat)
		}
		out["pass^k"] = all
		k := 1
		if in.K != nil {
			k = *in.K
		}
		hat, err := PassHatK(in.N, in.C, k)
		at, errAt := PassAtK(in.N, in.C, k)
		require.Equal(t, err == nil, errAt == nil)
		if in.K != nil {
			out["pass^k"], out["pass@k"] = hat, at
		}
		out["error"] = err != nil
		c.Check(t, out)
	})
}

func TestCasesDenominator(t *testing.T) {
	casetest.Run(t, "denominator", func(t *testing.T, c casetest.Case) {
		var in struct {
			Trials              []string
			Requested           *int
			Scored              []*float64
			ScoringErrors       int `json:"scoring_errors"`
			DeadBeforeFirstTurn int `json:"dead_before_first_turn"`
			Rollouts            map[string][]*float64
		}
		c.In(t, &in)
		var trials []Trial
		add := func(task string, rewards ...*float64) {
			for _, r := range rewards {
				trials = append(trials, Trial{Task: task, Trial: len(trials), Success: r != nil && *r == 1, Reward: r, Void: r == nil})
			}
		}
		for _, s := range in.Trials {
			switch s {
			case "ok":
				add("t", new(1.0))
			case "fail":
				add("t", new(0.0))
			case "infra":
				add("t", nil)
			default:
				t.Fatalf("trial %q", s)
			}
		}
		add("t", in.Scored...)
		add("t", make([]*float64, in.ScoringErrors+in.DeadBeforeFirstTurn)...)
		for task, rewards := range in.Rollouts {
			add(task, rewards...)
		}
		planned := len(trials)
		if in.Requested != nil {
			planned = *in.Requested
		}
		tally := Count(trials, planned)

		out := map[string]any{
			"requested": tally.Planned, "scored": tally.Scored, "infra": tally.Void, "passes": tally.Passes,
			"pass@1": tally.Pass1, "mean_scored": tally.MeanReward, "mean_all": tally.MeanAll,
		}
		for i, p := range tally.PassHat {
			out[fmt.Sprintf("pass^%d", i+1)] = p
		}
		means := map[string]*float64{}
		for _, task := range tally.Tasks {
			means[task.Task] = task.MeanReward
		}
		out["task_means"] = means
		for k := range len(trials) + 1 {
			tasks := []string{}
			for _, task := range tally.Tasks {
				if len(task.PassHat) >= k {
					tasks = append(tasks, task.Task)
				}
			}
			out[fmt.Sprintf("pass^%d_tasks", k)] = tasks
		}
		c.Check(t, out)
	})
}

func TestCasesInterval(t *testing.T) {
	casetest.Run(t, "interval", func(t *testing.T, c casetest.Case) {
		var in struct {
			Passes, N int
			Method    string
		}
		c.In(t, &in)
		require.Equal(t, "wilson95", in.Method)
		got := Wilson(in.Passes, in.N)
		// Wants are rounded to the places that they show, four or more.
		places := 4
		for _, s := range strings.FieldsFunc(c.Want, func(r rune) bool { return strings.ContainsRune("[],{}: ", r) }) {
			if _, frac, ok := strings.Cut(s, "."); ok {
				places = max(places, len(frac))
			}
		}
		round := func(v float64) float64 {
			v, err := strconv.ParseFloat(strconv.FormatFloat(v, 'f', places, 64), 64)
			require.NoError(t, err)
			return v
		}
		c.Check(t, map[string]any{"interval": []float64{round(got.Lo), round(got.Hi)}})
	})
}

func TestCasesBench(t *testing.T) {
	// 31 against 29 passes of 60 paired tasks is a tie, however the passes overlap.
	t.Run("C272", func(t *testing.T) {
		for both := range 30 {
			a, b := make([]bool, 60), make([]bool, 60)
			for i := range 31 {
				a[i] = true
			}
			for i := range 29 {
				b[31-both+i] = true
			}
			p, err := McNemar(a, b)
			require.NoError(t, err)
			require.True(t, Tie(p), "%d tasks passed by both: p = %v", both, p)
		}
	})
}

// References: exact fractions of binomial coefficients.
func TestPassK(t *testing.T) {
	for _, c := range []struct {
		n, c, k int
		hat, at float64
	}{
		{1, 1, 1, 1, 1},
		{1, 0, 1, 0, 0},
		{5, 2, 1, 0.4, 0.4},
		{8, 5, 3, 0.17857142857142858, 0.9821428571428571},
		{50, 0, 3, 0, 0},
		{50, 50, 50, 1, 1},
		{100, 37, 10, 2.0122698376741604e-05, 0.992616797214249},
		{2000, 1990, 500, 0.055891188049832626, 1},
		{1e6, 1e6 - 3, 1000, 0.997002996005992, 1},
		{1e6, 3, 10, 0, 2.999973000045e-05},
		{1e9, 3, 2, 6.000000006e-18, 5.999999994e-09},
		{1e12, 1, 1, 1e-12, 1e-12},
	} {
		t.Run(fmt.Sprint(c.n, c.c, c.k), func(t *testing.T) {
			hat, err := PassHatK(c.n, c.c, c.k)
			require.NoError(t, err)
			near(t, c.hat, hat, 1e-12)
			at, err := PassAtK(c.n, c.c, c.k)
			require.NoError(t, err)
			near(t, c.at, at, 1e-12)
		})
	}
	for c := 1; c <= 100; c++ { // sure to pass: exactly 1
		at, err := PassAtK(100, c, 101-c)
		require.NoError(t, err)
		require.Equal(t, 1.0, at)
	}
	for _, c := range [][3]int{{3, 3, 4}, {3, 3, 0}, {3, 3, -1}, {3, 4, 1}, {3, -1, 1}, {0, 0, 1}} {
		_, err := PassHatK(c[0], c[1], c[2])
		require.Error(t, err, c)
		_, err = PassAtK(c[0], c[1], c[2])
		require.Error(t, err, c)
	}
}

// References: statsmodels proportion_confint, scipy binomtest.
func TestWilson(t *testing.T) {
	for _, c := range []struct {
		passes, n int
		lo, hi    float64
	}{
		{0, 0, 0, 1},
		{0, 1, 0, 0.7934506856227627},
		{1, 1, 0.2065493143772374, 1},
		{1, 3, 0.06149194472039626, 0.7923403991979523},
		{1, 10, 0.017876213095072924, 0.40415002679523854},
		{0, 20, 0, 0.1611251580528194},
		{20, 20, 0.8388748419471804, 1},
		{31, 60, 0.39307810032592494, 0.6382495046026722},
		{57, 120, 0.3878209113791835, 0.5637300469417518},
		{999999, 1000000, 0.9999943350881957, 0.9999998234754233},
	} {
		got := Wilson(c.passes, c.n)
		near(t, c.lo, got.Lo, 1e-12)
		near(t, c.hi, got.Hi, 1e-12)
	}
	for n := 1; n <= 100; n++ {
		require.Zero(t, Wilson(0, n).Lo)
		require.Equal(t, 1.0, Wilson(n, n).Hi)
	}
	require.Panics(t, func() { Wilson(3, 2) })
	require.Panics(t, func() { Wilson(-1, 2) })
}

// References: scipy bootstrap with 1e6 resamples for values alone, all 5^5 draws for clusters.
func TestBootstrap(t *testing.T) {
	values := []float64{.9, .1, .4, .6, .8, .3, .7, .5, 1, 0, .2, .65, .35, .95, .05}
	even := [][]float64{{.9, .8, .85, .7}, {.2, .3, .25, .1}, {.5, .6, .55, .4}, {.7, .65, .75, .6}, {.35, .3, .4, .45}}
	uneven := [][]float64{{1, 1, 1, 1, 1, 1}, {0, 0}, {1, 0, 1}, {.5}, {0, 1, 0, 0}, {}}
	for _, c := range []struct {
		name   string
		f      func(seed uint64) Interval
		lo, hi float64
	}{
		{"values", func(s uint64) Interval { return Bootstrap(values, s) }, 0.33667, 0.66333},
		{"even clusters", func(s uint64) Interval { return ClusterBootstrap(even, s) }, 0.3375, 0.6975},
		{"uneven clusters", func(s uint64) Interval { return ClusterBootstrap(uneven, s) }, 0.19231, 0.88235},
	} {
		t.Run(c.name, func(t *testing.T) {
			var lo, hi []float64
			for seed := range uint64(20) {
				got := c.f(seed)
				require.InDelta(t, c.lo, got.Lo, 0.03)
				require.InDelta(t, c.hi, got.Hi, 0.03)
				require.Equal(t, got, c.f(seed))
				lo, hi = append(lo, got.Lo), append(hi, got.Hi)
			}
			require.InDelta(t, c.lo, sum(lo)/20, 0.005)
			require.InDelta(t, c.hi, sum(hi)/20, 0.005)
		})
	}
	require.NotEqual(t, Bootstrap(values, 1), Bootstrap(values, 2))
	require.Equal(t, Interval{1, 1}, Bootstrap([]float64{1, 1, 1}, 1))
	require.True(t, math.IsNaN(Bootstrap(nil, 1).Lo) && math.IsNaN(ClusterBootstrap([][]float64{{}}, 1).Hi))
	// Twenty equal values in each of two clusters are two observations, not forty.
	pair := [][]float64{make([]float64, 20), make([]float64, 20)}
	for i := range pair[0] {
		pair[0][i] = 1
	}
	require.Equal(t, Interval{0, 1}, ClusterBootstrap(pair, 3))
}

// References: scipy binomtest, statsmodels mcnemar(exact=True).
func TestMcNemar(t *testing.T) {
	for _, c := range []struct {
		onlyA, onlyB int
		p            float64
	}{
		{0, 0, 1},
		{0, 1, 1},
		{2, 0, 0.5},
		{3, 3, 1},
		{5, 0, 0.0625},
		{6, 0, 0.03125},
		{10, 2, 0.03857421875},
		{15, 4, 0.0192108154296875},
		{31, 29, 0.8974218269914307},
		{60, 40, 0.05688793364098089},
		{700, 600, 0.0060157938610449395},
		{3000, 2700, 7.457315554470385e-05},
	} {
		for range 2 {
			a, b := make([]bool, c.onlyA+c.onlyB+7), make([]bool, c.onlyA+c.onlyB+7)
			for i := range a {
				a[i] = i < c.onlyA || i > c.onlyA+c.onlyB+2
				b[i] = i >= c.onlyA && i < c.onlyA+c.onlyB || i > c.onlyA+c.onlyB+2
			}
			p, err := McNemar(a, b)
			require.NoError(t, err)
			near(t, c.p, p, 1e-10)
			require.Equal(t, c.p >= 0.05, Tie(p))
			c.onlyA, c.onlyB = c.onlyB, c.onlyA
		}
	}
	_, err := McNemar(make([]bool, 2), make([]bool, 3))
	require.Error(t, err)
	require.True(t, Tie(0.05))
	require.False(t, Tie(0.0499))
}

// References: scipy permutation_test(permutation_type="samples"), exact for the short ones, 2e6 resamples for the long one.
func TestPairedPermutation(t *testing.T) {
	long := []float64{-.12, -.28, .05, .25, .46, .15, -.05, -.12, .34, .61, .2, -.25, -.17, .6, .18, -.4, .09, -.23, -.07, -.03,
		-.09, .29, .1, -.06, .24, .37, -.37, .04, -.17, .07, -.27, .13, .11, .03, -.19, 0, -.21, -.29, .19, -.21}
	for _, c := range []struct {
		name     string
		diffs    []float64
		p, delta float64
	}{
		{"none", nil, 1, 0},
		{"no difference", []float64{0, 0, 0}, 1, 0},
		{"exact", []float64{.5, .2, -.1, .4, 0, .3, -.2, .6}, 0.109375, 0},
		{"exact with zeros", []float64{1, 0, 1, 1, 0, 1, -1, 0, 1, 1, 1, -1}, 0.1796875, 0},
		{"exact: zeros do not count", []float64{1, 0, 1, 1, 0, 1, -1, 0, 1, 1, 1, -1, 0, 0, 0}, 0.1796875, 0},
		{"same sums in another order", []float64{.1, .2, .3, -.1, -.2}, 22. / 32, 0}, // hand count
		{"sampled", long, 0.56827, 0.015},
		{"never 0", []float64{1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1}, 1. / 10001, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			a, b := make([]float64, len(c.diffs)), make([]float64, len(c.diffs))
			copy(a, c.diffs)
			for seed := range uint64(3) {
				p := PairedPermutation(a, b, seed)
				require.InDelta(t, c.p, p, c.delta)
				require.Equal(t, p, PairedPermutation(b, a, seed))
			}
		})
	}
	require.Panics(t, func() { PairedPermutation(make([]float64, 2), make([]float64, 3), 1) })
}

func TestCount(t *testing.T) {
	trial := func(task string, i int, reward float64, success bool) Trial {
		return Trial{Task: task, Trial: i, Reward: &reward, Success: success}
	}
	trials := []Trial{
		trial("b", 1, 1, true),
		trial("a", 0, -0.25, false),
		{Task: "a", Trial: 1, Void: true, Success: true, Reward: new(1.0)}, // void never pays
		{Task: "b", Trial: 0, Success: true},                               // unscored does not pass, and is not 0
		trial("b", 2, 0.75, true),
	}
	want := Tally{
		Planned: 5, Scored: 3, Void: 2, Passes: 2, Pass1: 0.4, PassHat: []float64{1. / 3, 1. / 6},
		MeanReward: new(0.5), MeanAll: 0.3,
		Tasks: []TaskTally{
			{Task: "a", Planned: 2, Scored: 1, Void: 1, PassHat: []float64{0, 0}, MeanReward: new(-0.25)},
			{Task: "b", Planned: 3, Scored: 2, Void: 1, Passes: 2, PassHat: []float64{2. / 3, 1. / 3, 0}, MeanReward: new(0.875)},
		},
	}
	require.Equal(t, want, Count(trials, 5))
	require.Equal(t, "b", trials[0].Task, "the caller's trials are left alone")
	require.Equal(t, want, Count(trials, 2), "more trials than planned: all count")

	missing := Count(trials, 10)
	require.Equal(t, []any{10, 3, 7, 2, 0.2, 0.15}, []any{missing.Planned, missing.Scored, missing.Void, missing.Passes, missing.Pass1, missing.MeanAll})
	require.Nil(t, missing.PassHat)

	void := Count([]Trial{{Task: "a", Void: true}}, 1)
	require.Nil(t, void.MeanReward)
	require.Nil(t, void.Tasks[0].MeanReward)
	require.Equal(t, Tally{}, Count(nil, 0))
}

// near compares within a relative error.
func near(t *testing.T, want, got, eps float64) {
	t.Helper()
	if math.Abs(want-got) > eps*math.Abs(want) {
		t.Errorf("got %v, want %v", got, want)
	}
}
