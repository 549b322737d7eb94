package bench

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/jedib0t/go-pretty/v6/text"
)

// overSeeds makes one row of those of a policy that was trained from several seeds. It is an error if they differ in more than that,
// or one of them is there twice.
func overSeeds(seeds []Row) (Row, error) {
	slices.SortFunc(seeds, func(a, b Row) int { return cmp.Compare(a.Training.Seed, b.Training.Seed) })
	row := Row{Header: seeds[0].Header, Seeds: seeds}
	var success []float64
	mean := func(v float64) float64 { return v / float64(len(seeds)) }
	families := map[string]*FamilyRow{}
	for i, s := range seeds {
		same := s.Training.Expert == row.Training.Expert && s.Training.Temperature == row.Training.Temperature && s.Training.MaxTokens == row.Training.MaxTokens
		switch {
		case i > 0 && s.Training.Seed == seeds[i-1].Training.Seed:
			return Row{}, fmt.Errorf("%s of %s %s: two records of training seed %d", s.Policy, s.Env, s.Split, s.Training.Seed)
		case s.Header.Tasks != row.Header.Tasks || s.Trials != row.Trials || s.Header.Seed != row.Header.Seed || s.Ranked != row.Ranked || !same:
			return Row{}, fmt.Errorf("%s of %s %s: the records of training seeds %d and %d were not played alike", s.Policy, s.Env, s.Split, row.Training.Seed, s.Training.Seed)
		}
		row.Planned += s.Planned
		row.Scored += s.Scored
		row.Void += s.Void
		row.Passes += s.Passes
		row.Pass1 += mean(s.Pass1)
		row.MeanAll += mean(s.MeanAll)
		success = append(success, s.Pass1)
		if i == 0 {
			row.PassHat = make([]float64, len(s.PassHat))
		}
		for k := range min(len(row.PassHat), len(s.PassHat)) { // of each policy by itself: it is the trials that are repeated
			row.PassHat[k] += mean(s.PassHat[k])
		}
		row.Hallucination.Tools += mean(s.Hallucination.Tools)
		row.Hallucination.Arguments += mean(s.Hallucination.Arguments)
		row.Hallucination.Claims += mean(s.Hallucination.Claims)
		row.Turns += mean(s.Turns)
		row.ToolErrors += mean(s.ToolErrors)
		for _, f := range s.Families {
			if families[f.Family] == nil {
				families[f.Family] = &FamilyRow{Family: f.Family}
			}
			families[f.Family].Planned += f.Planned
			families[f.Family].Passes += f.Passes
		}
		if i > 0 {
			row.Provenance = both(row.Provenance, s.Provenance)
		}
	}
	across := func(values []float64, low, high float64) Interval {
		v := Across(values)
		return Interval{max(low, v.Lo), min(high, v.Hi)}
	}
	row.Interval = across(success, 0, 1)
	if rewards := ofAll(seeds, func(s Row) *float64 { return s.MeanReward }); rewards != nil {
		row.MeanReward, row.RewardRange = new(sum(rewards)/float64(len(rewards))), across(rewards, -1, 1)
	}
	if formulas := ofAll(seeds, func(s Row) *float64 { return s.Founding }); formulas != nil {
		row.Founding = new(round(sum(formulas) / float64(len(formulas))))
	}
	for _, f := range families {
		row.Families = append(row.Families, *f)
	}
	slices.SortFunc(row.Families, func(a, b FamilyRow) int { return strings.Compare(a.Family, b.Family) })
	return row, nil
}

// ofAll gives a value of each row, none where one lacks it.
func ofAll(rows []Row, get func(Row) *float64) []float64 {
	var all []float64
	for _, r := range rows {
		v := get(r)
		if v == nil {
			return nil
		}
		all = append(all, *v)
	}
	return all
}

// both is where two records come from: all commits, and the drivers that both were verified on. The command is the first one's.
func both(a, b Provenance) Provenance {
	if !slices.Contains(strings.Split(a.Commit, ", "), b.Commit) {
		a.Commit += ", " + b.Commit
	}
	a.Drivers = slices.DeleteFunc(slices.Clone(a.Drivers), func(d string) bool { return !slices.Contains(b.Drivers, d) })
	if a.Tokens != nil && b.Tokens != nil {
		a.Tokens = new(*a.Tokens + *b.Tokens)
	} else {
		a.Tokens = nil
	}
	if a.Cost != nil && b.Cost != nil {
		a.Cost = new(*a.Cost + *b.Cost)
	} else {
		a.Cost = nil
	}
	return a
}

// records are those that a row is made of.
func (r Row) records() []*Record {
	if r.Seeds == nil {
		return []*Record{r.record}
	}
	var all []*Record
	for _, s := range r.Seeds {
		all = append(all, s.record)
	}
	return all
}

func (r Row) expert() bool { return r.Training != nil && r.Training.Expert }

// seedCount is the number of training seeds, as tables show it.
func (r Row) seedCount() string {
	if r.Seeds == nil {
		return "-"
	}
	return fmt.Sprint(len(r.Seeds))
}

// passes and inventions are what rows are compared by; ok is false where an episode does not count.
func passes(o outcome) (v float64, ok bool)     { return float64(boolInt(o.pass)), true }
func inventions(o outcome) (v float64, ok bool) { return o.made, !o.void }

// against tests by TwoWay how much more of something a row has than another has on the same tasks. Where both were trained, those of
// the same training seed are paired, since one may have begun as the other; a seed that only one of them has is left out. A task counts
// for all seeds or for none.
func against(a, b Row, what func(outcome) (float64, bool)) (Difference, error) {
	pairs := paired(a, b)
	differences := make([][]float64, len(pairs))
	for task := range min(a.Header.Tasks, b.Header.Tasks) {
		var row []float64
		for _, p := range pairs {
			x, okX := p[0].onTask(task, what)
			y, okY := p[1].onTask(task, what)
			if okX && okY {
				row = append(row, x-y)
			}
		}
		if len(row) == len(pairs) {
			for i, d := range row {
				differences[i] = append(differences[i], d)
			}
		}
	}
	d, err := TwoWay(differences)
	if err != nil {
		return d, fmt.Errorf("compare %s with %s: %w", a.Policy, b.Policy, err)
	}
	return d, nil
}

// paired gives the rows to compare, one pair for each training seed.
func paired(a, b Row) (pairs [][2]Row) {
	for _, x := range a.Seeds {
		if b.Seeds == nil {
			pairs = append(pairs, [2]Row{x, b})
		}
		for _, y := range b.Seeds {
			if x.Training.Seed == y.Training.Seed {
				pairs = append(pairs, [2]Row{x, y})
			}
		}
	}
	if a.Seeds == nil {
		for _, y := range b.Seeds {
			pairs = append(pairs, [2]Row{a, y})
		}
	}
	return pairs
}

// onTask is the mean over a task's trials; ok is false where none counts.
func (r Row) onTask(task int, what func(outcome) (float64, bool)) (mean float64, ok bool) {
	n := 0
	for trial := range r.Trials {
		if o, planned := r.outcomes[[2]int{task, trial}]; planned {
			if v, counts := what(o); counts {
				mean += v
				n++
			}
		}
	}
	return mean / float64(n), n > 0
}

// Comparison is a trained row against another one on the same tasks.
type Comparison struct {
	Policy     string
	Against    string
	Seeds      int        // of training, that both have where both were trained
	Success    Difference // of pass@1
	Inventions Difference // of what was made up, an episode
	Ratio      *float64   // of that; nil where the other one has made nothing up
}

// Comparisons are those of each trained row with its references on the board: the baselines, and what it was trained from. There is none
// of a single training seed, since nothing tells how much another would differ.
func (b Board) Comparisons() []Comparison {
	var out []Comparison
	for _, r := range b.Rows {
		if r.Seeds == nil {
			continue
		}
		for _, name := range references(r.Policy) {
			i := slices.IndexFunc(b.Rows, func(o Row) bool { return o.Policy == name })
			if i < 0 {
				continue
			}
			c := Comparison{Policy: r.Policy, Against: name, Seeds: len(paired(r, b.Rows[i]))}
			var errS, errI error
			c.Success, errS = against(r, b.Rows[i], passes)
			c.Inventions, errI = against(r, b.Rows[i], inventions)
			if errors.Join(errS, errI) != nil {
				continue
			}
			if other := b.Rows[i].Hallucination.sum(); other > 0 {
				c.Ratio = new(r.Hallucination.sum() / other)
			}
			out = append(out, c)
		}
	}
	return out
}

// ComparisonTable shows the comparisons of trained rows; it is empty where there are none.
func (b Board) ComparisonTable(markdown bool) string {
	all := b.Comparisons()
	if len(all) == 0 {
		return ""
	}
	t := table.NewWriter()
	t.SetStyle(table.StyleLight)
	t.Style().Format.Header = text.FormatDefault
	t.AppendHeader(table.Row{"trained", "against", "seeds", "success, points more", "95 %", "p", "halluc., more an episode", "95 %", "p", "ratio"})
	for _, c := range all {
		s, h := c.Success, c.Inventions
		t.AppendRow(table.Row{c.Policy, c.Against, c.Seeds, fmt.Sprintf("%+.1f", 100*s.Mean), fmt.Sprintf("%+.1f to %+.1f", 100*s.Lo, 100*s.Hi), showP(s.P),
			fmt.Sprintf("%+.2f", h.Mean), fmt.Sprintf("%+.2f to %+.2f", h.Lo, h.Hi), showP(h.P), optional(c.Ratio, "%.2f")})
	}
	if markdown {
		return t.RenderMarkdown()
	}
	return t.Render()
}

// showP writes a p of TwoWay, which has no more digits.
func showP(p float64) string {
	if p < 1e-10 {
		return "<1e-10"
	}
	return fmt.Sprintf("%.2g", p)
}

// Show is all that there is to show of a board: its rows, the comparisons of those that were trained, and the families of tasks.
func (b Board) Show(markdown bool) string {
	parts := []string{b.Table(markdown), b.ComparisonTable(markdown), b.FamilyTable(markdown)}
	parts = slices.DeleteFunc(parts, func(s string) bool { return s == "" })
	if markdown {
		return strings.Join(parts, "\n\n") + "\n"
	}
	return strings.Join(parts, "\n") + "\n"
}
