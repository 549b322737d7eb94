package schedule

import (
	"math"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestRate(t *testing.T) {
	for _, c := range []struct {
		r    Rate
		want []float64 // of 5 steps
	}{
		{Rate{}, []float64{2, 2, 2, 2, 2}},
		{Rate{Warmup: 4}, []float64{0.5, 1, 1.5, 2, 2}},
		{Rate{Decay: "linear"}, []float64{2, 1.6, 1.2, 0.8, 0.4}},
		{Rate{Decay: "linear", Floor: 0.5}, []float64{2, 1.8, 1.6, 1.4, 1.2}},
		{Rate{Warmup: 2, Decay: "linear"}, []float64{1, 2, 2, 4.0 / 3, 2.0 / 3}},
		{Rate{Decay: "cosine"}, []float64{2, 1 + math.Cos(math.Pi/5), 1 + math.Cos(2*math.Pi/5), 1 - math.Cos(2*math.Pi/5), 1 - math.Cos(math.Pi/5)}},
		{Rate{Warmup: 2, Decay: "cosine", Floor: 0.1}, []float64{1, 2, 2, 1.55, 0.65}},
		{Rate{Warmup: 4, Decay: "cosine"}, []float64{0.5, 1, 1.5, 2, 2}},
		{Rate{Warmup: 10, Decay: "linear"}, []float64{0.2, 0.4, 0.6, 0.8, 1}},
	} {
		require.NoError(t, c.r.Validate())
		for step, want := range c.want {
			require.InDelta(t, want, c.r.At(2, step, 5), 1e-12, "%+v, step %d", c.r, step)
		}
	}
	for _, r := range []Rate{{Warmup: -1}, {Decay: "step"}, {Floor: 1.5}, {Floor: -0.1}, {Floor: math.NaN()}} {
		require.ErrorContains(t, r.Validate(), "schedule of", "%+v", r)
	}
}

func TestSteps(t *testing.T) {
	require.Equal(t, 4, Steps(3, 10, 8))
	require.Equal(t, 6, Steps(3, 10, 5))
}

func TestPasses(t *testing.T) {
	tokens := func(s string) []int32 { return []int32(s) }
	rows := []string{"there", "a", "then", "eeeee", "the", "ab", "then", "other"}
	for _, c := range []struct {
		most int
		want [][]string
	}{
		{1, [][]string{{"a"}, {"ab"}, {"eeeee"}, {"other"}, {"the"}, {"then", "then"}, {"there"}}},
		{2, [][]string{{"a", "ab"}, {"eeeee"}, {"other"}, {"the"}, {"then", "then"}, {"there"}}},
		{5, [][]string{{"a", "ab"}, {"eeeee"}, {"other"}, {"the", "then", "then"}, {"there"}}},
		{6, [][]string{{"a", "ab"}, {"eeeee"}, {"other"}, {"the", "then", "then", "there"}}},
		{7, [][]string{{"a", "ab", "eeeee"}, {"other"}, {"the", "then", "then", "there"}}},
		{14, [][]string{{"a", "ab", "eeeee", "other"}, {"the", "then", "then", "there"}}},
		{17, [][]string{{"a", "ab", "eeeee", "other", "the", "then", "then"}, {"there"}}},
		{18, [][]string{{"a", "ab", "eeeee", "other", "the", "then", "then", "there"}}},
	} {
		require.Equal(t, c.want, slices.Collect(Passes(rows, tokens, c.most)), "%d", c.most)
	}
	require.Equal(t, "there", rows[0], "the caller's are left alone")
	for pass := range Passes(rows, tokens, 4) {
		require.Equal(t, []string{"a", "ab"}, pass)
		break
	}
	require.Empty(t, slices.Collect(Passes(nil, tokens, 4)))
}
