package bench

import (
	"bytes"
	"cmp"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/jedib0t/go-pretty/v6/text"
	"golang.org/x/perf/benchfmt"

	"github.com/mcpgym/mcpgym/envs"
)

// Row is what a record amounts to. Means are per episode that was scored.
type Row struct {
	Header
	Tally
	Interval      Interval // of Pass1, 95 % (Wilson)
	RewardRange   Interval // of MeanReward, 95 % (bootstrap); meaningless where nothing was scored
	Hallucination Made
	Turns         float64
	ToolErrors    float64
	Founding      *float64    // by the founding formula, to compare with; nil where the environment has none or nothing was scored
	Families      []FamilyRow // sorted by name

	// Seeds are the rows of the policy as it was trained from each seed, in order; nil where nothing was trained. Then all
	// that is a mean here is that over seeds, and intervals are those of Across.
	Seeds []Row

	record   *Record            // nil where there are Seeds
	outcomes map[[2]int]outcome // by task and trial; nil where there are Seeds
}

// Made is what was made up, an episode.
type Made struct {
	Tools     float64 `json:"tools"`     // calls of tools that do not exist
	Arguments float64 `json:"arguments"` // unknown parameters, and references to what was never seen
	Claims    float64 `json:"claims"`    // values of the answer that follow from nothing that was seen
}

func (m Made) sum() float64 { return m.Tools + m.Arguments + m.Claims }

type outcome struct {
	pass   bool
	reward float64 // 0 where void: compared with a scored one it did not pay
	void   bool
	made   float64 // up, of all kinds; meaningless where void
}

// FamilyRow is the success of a row on one family of tasks.
type FamilyRow struct {
	Family          string
	Planned, Passes int
}

// publishable is the largest share of void episodes with which a row is shown.
const publishable = 0.01

// Summarise computes a record's row.
func Summarise(r *Record) Row {
	row := Row{Header: r.Header, record: r, outcomes: map[[2]int]outcome{}}
	founding := foundingOf(r.Env)
	formula := 0.0
	var rewarded []float64
	var trials []Trial
	families := map[string]*FamilyRow{}
	for _, e := range r.Episodes {
		f := families[e.Family]
		if f == nil {
			f = &FamilyRow{Family: e.Family}
			families[e.Family] = f
		}
		f.Planned++
		t := Trial{Task: e.Task, Trial: e.Trial, Void: e.Void != nil}
		o := outcome{void: e.Score == nil}
		if e.Score != nil {
			t.Success, t.Reward = e.Score.Success, &e.Score.Value
			tr := envs.Trajectory{Steps: e.Steps, Tools: r.Tools[e.Tools]}
			for _, p := range e.Score.Parts {
				made := Made{float64(p.Counts["tools"]), float64(p.Counts["arguments"]), float64(p.Counts["claims"])}
				row.Hallucination.Tools += made.Tools
				row.Hallucination.Arguments += made.Arguments
				row.Hallucination.Claims += made.Claims
				o.made += made.sum()
			}
			row.Turns += float64(len(e.Steps))
			if founding != nil {
				formula += founding(&tr)
			}
			for _, res := range tr.Results() {
				if res.Status == envs.StatusToolError {
					row.ToolErrors++
				}
			}
		}
		if t.Success {
			f.Passes++
		}
		o.pass = t.Success
		if t.Reward != nil {
			o.reward = *t.Reward
			rewarded = append(rewarded, o.reward)
		}
		row.outcomes[[2]int{e.Index, e.Trial}] = o
		trials = append(trials, t)
	}
	row.Tally = Count(trials, r.Tasks*r.Trials)
	row.Interval = Wilson(row.Passes, row.Planned)
	if row.Scored > 0 {
		row.RewardRange = Bootstrap(rewarded, resampling)
		row.Hallucination.Tools /= float64(row.Scored)
		row.Hallucination.Arguments /= float64(row.Scored)
		row.Hallucination.Claims /= float64(row.Scored)
		row.Turns /= float64(row.Scored)
		row.ToolErrors /= float64(row.Scored)
		if founding != nil {
			row.Founding = new(round(formula / float64(row.Scored)))
		}
	}
	for _, f := range families {
		row.Families = append(row.Families, *f)
	}
	slices.SortFunc(row.Families, func(a, b FamilyRow) int { return strings.Compare(a.Family, b.Family) })
	return row
}

// resampling seeds every resampling of the board, so that equal records give equal figures.
const resampling = 1

// Compare tests two rows on the episodes that both planned, paired: success by McNemar's exact test, reward by sign flips. Where one
// of them was trained, both are tested by TwoWay. It is an error to compare rows of different environments, versions or splits.
func Compare(a, b Row) (pSuccess, pReward float64, err error) {
	if a.Env != b.Env || a.Split != b.Split {
		return 0, 0, fmt.Errorf("compare %s of %s %s with %s of %s %s: only rows of one version and split can be compared", a.Policy, a.Env, a.Split, b.Policy, b.Env, b.Split)
	}
	if a.Seeds != nil || b.Seeds != nil {
		success, err := against(a, b, passes)
		if err != nil {
			return 0, 0, err
		}
		reward, err := against(a, b, func(o outcome) (float64, bool) { return o.reward, true })
		return success.P, reward.P, err
	}
	var x, y []bool
	var u, v []float64
	for task := range max(a.Header.Tasks, b.Header.Tasks) {
		for trial := range max(a.Trials, b.Trials) {
			o, okA := a.outcomes[[2]int{task, trial}]
			q, okB := b.outcomes[[2]int{task, trial}]
			if okA && okB {
				x, y = append(x, o.pass), append(y, q.pass)
				u, v = append(u, o.reward), append(v, q.reward)
			}
		}
	}
	pSuccess, err = McNemar(x, y)
	return pSuccess, PairedPermutation(u, v, resampling), err
}

// Board is the rows of one split of one environment, best first.
type Board struct {
	Env, Split string
	Rows       []Row
	Withheld   []Row // more than 1 % void
}

// Boards sorts records into boards, by environment and split. Those of one trained policy share a row. Records of two versions of an
// environment are an error: their scores share no table. So are records of a trained policy that differ in more than the seed.
func Boards(records []*Record) ([]Board, error) {
	byKey := map[string]*Board{}
	trained := map[*Board]map[string][]Row{} // by policy
	version := map[string]string{}
	for _, r := range records {
		base := Dir(r.Env)
		if v, ok := version[base]; ok && v != r.Env {
			return nil, fmt.Errorf("records of %s and %s share results/%s: scores of two versions cannot be compared", v, r.Env, base)
		}
		version[base] = r.Env
		key := r.Env + " " + r.Split
		b := byKey[key]
		if b == nil {
			b = &Board{Env: r.Env, Split: r.Split}
			byKey[key] = b
			trained[b] = map[string][]Row{}
		}
		if row := Summarise(r); r.Training != nil {
			trained[b][r.Policy] = append(trained[b][r.Policy], row)
		} else {
			b.add(row)
		}
	}
	for b, policies := range trained {
		for _, seeds := range policies {
			row, err := overSeeds(seeds)
			if err != nil {
				return nil, err
			}
			b.add(row)
		}
	}
	var out []Board
	for _, b := range byKey {
		for _, rows := range [][]Row{b.Rows, b.Withheld} {
			slices.SortFunc(rows, func(x, y Row) int {
				return cmp.Or(cmp.Compare(y.Pass1, x.Pass1), strings.Compare(x.Policy, y.Policy))
			})
		}
		out = append(out, *b)
	}
	// test before the other splits
	slices.SortFunc(out, func(x, y Board) int {
		return cmp.Or(strings.Compare(x.Env, y.Env), cmp.Compare(boolInt(x.Split != "test"), boolInt(y.Split != "test")), strings.Compare(x.Split, y.Split))
	})
	return out, nil
}

func (b *Board) add(row Row) {
	if float64(row.Void) > publishable*float64(row.Planned) {
		b.Withheld = append(b.Withheld, row)
	} else {
		b.Rows = append(b.Rows, row)
	}
}

func boolInt(b bool) int {
	if b {
		return 1
	}
	return 0
}

// Dir is the folder of an environment's records: its name without the version, in lower case.
func Dir(env string) string {
	name, _, _ := strings.Cut(env, "-v")
	return strings.ToLower(name)
}

func percent(v float64) string { return fmt.Sprintf("%.1f", 100*v) }

func optional[T any](v *T, format string) string {
	if v == nil {
		return "-"
	}
	return fmt.Sprintf(format, *v)
}

// Table shows a board: for a terminal, or as Markdown with where each row comes from.
func (b Board) Table(markdown bool) string {
	t := table.NewWriter()
	t.SetStyle(table.StyleLight)
	t.Style().Format.Header = text.FormatDefault
	head := table.Row{"policy"}
	trained := slices.ContainsFunc(b.Rows, func(r Row) bool { return r.Seeds != nil })
	if trained {
		head = append(head, "seeds")
	}
	head = append(head, "success %", "95 %", "pass^k %", "reward", "halluc.", "turns", "tool errors", "planned", "void", "tokens", "cost $", "p vs next", "p reward")
	founding := foundingOf(b.Env) != nil
	if founding {
		head = append(head, "founding")
	}
	if markdown {
		head = append(head, "verified on", "commit", "command")
	}
	t.AppendHeader(head)
	for i, r := range b.Rows {
		name := r.Policy
		switch {
		case r.expert():
			name += " (expert, not ranked)"
		case !r.Ranked:
			name += " (not ranked)"
		}
		hat := make([]string, len(r.PassHat))
		for k, v := range r.PassHat {
			hat[k] = percent(v)
		}
		next, nextReward := "", ""
		if i+1 < len(b.Rows) {
			if p, q, err := Compare(r, b.Rows[i+1]); err == nil {
				next, nextReward = fmt.Sprintf("%.2g", p), fmt.Sprintf("%.2g", q)
				if Tie(p) {
					next += " tie"
				}
			}
		}
		reward := "-"
		if r.MeanReward != nil {
			reward = fmt.Sprintf("%.3f [%.3f, %.3f]", *r.MeanReward, r.RewardRange.Lo, r.RewardRange.Hi)
		}
		line := table.Row{name}
		if trained {
			line = append(line, r.seedCount())
		}
		line = append(line, percent(r.Pass1), fmt.Sprintf("%.1f-%.1f", 100*r.Interval.Lo, 100*r.Interval.Hi), strings.Join(hat, " "), reward,
			fmt.Sprintf("%.2f %.2f %.2f", r.Hallucination.Tools, r.Hallucination.Arguments, r.Hallucination.Claims), fmt.Sprintf("%.1f", r.Turns), fmt.Sprintf("%.2f", r.ToolErrors), r.Planned, r.Void, optional(r.Provenance.Tokens, "%d"), optional(r.Provenance.Cost, "%.2f"), next, nextReward)
		if founding {
			line = append(line, optional(r.Founding, "%.3f"))
		}
		if markdown {
			line = append(line, strings.Join(r.Provenance.Drivers, ", "), r.Provenance.Commit, "`"+r.Provenance.Command+"`")
		}
		t.AppendRow(line)
	}
	for _, r := range b.Withheld {
		line := table.Row{r.Policy}
		if trained {
			line = append(line, r.seedCount())
		}
		t.AppendRow(append(line, "withheld", "", "", "", "", "", "", r.Planned, r.Void))
	}
	if markdown {
		return t.RenderMarkdown()
	}
	return t.Render()
}

// FamilyTable shows the success of each row by family of tasks.
func (b Board) FamilyTable(markdown bool) string {
	t := table.NewWriter()
	t.SetStyle(table.StyleLight)
	t.Style().Format.Header = text.FormatDefault
	head := table.Row{"success % by family"}
	var families []string
	for _, r := range b.Rows {
		head = append(head, r.Policy)
		for _, f := range r.Families {
			if !slices.Contains(families, f.Family) {
				families = append(families, f.Family)
			}
		}
	}
	t.AppendHeader(head)
	slices.Sort(families)
	for _, family := range families {
		line := table.Row{family}
		for _, r := range b.Rows {
			i := slices.IndexFunc(r.Families, func(f FamilyRow) bool { return f.Family == family })
			if i < 0 {
				line = append(line, "-")
				continue
			}
			f := r.Families[i]
			line = append(line, percent(float64(f.Passes)/float64(f.Planned)))
		}
		t.AppendRow(line)
	}
	if markdown {
		return t.RenderMarkdown()
	}
	return t.Render()
}

// Picture draws a board.
func (b Board) Picture() (png, svg []byte, err error) {
	var bars []Bar
	for _, r := range b.Rows {
		bar := Bar{Label: r.Policy, Value: r.Pass1, Interval: r.Interval, Muted: !r.Ranked}
		switch {
		case r.expert():
			bar.Note = "expert, not ranked"
		case !r.Ranked:
			bar.Note = "not ranked"
		case r.Seeds != nil:
			bar.Note = fmt.Sprintf("%d training seeds", len(r.Seeds))
		}
		bars = append(bars, bar)
	}
	return SuccessPlot(fmt.Sprintf("%s, %s tasks", b.Env, b.Split), "success (pass@1), %, with 95 % intervals", bars)
}

// benchText writes boards in the Go benchmark format, one line a row, training seed and trial, so that
//
//	benchstat -col /policy results/weather.txt
//
// compares policies. Rates are in points of 100.
func benchText(boards []Board) ([]byte, error) {
	var buf bytes.Buffer
	for _, u := range []string{"success-pts/episode better=higher", "reward-pts/episode better=higher", "hallucinations/episode better=lower", "turns/episode better=lower", "founding-pts/episode better=higher", "void-pts/episode better=lower"} {
		fmt.Fprintf(&buf, "Unit %s\n", u)
	}
	w := benchfmt.NewWriter(&buf)
	for _, b := range boards {
		for _, row := range b.Rows {
			for _, r := range row.records() {
				for trial := range r.Trials {
					one := &Record{Header: r.Header}
					one.Trials = 1
					for _, e := range r.Episodes {
						if e.Trial == trial {
							one.Episodes = append(one.Episodes, e)
						}
					}
					if err := w.Write(benchLine(Summarise(one))); err != nil {
						return nil, err
					}
				}
			}
		}
	}
	return buf.Bytes(), nil
}

func benchLine(s Row) *benchfmt.Result {
	res := &benchfmt.Result{
		Config: []benchfmt.Config{{Key: "env", Value: []byte(s.Env), File: true}},
		Name:   benchfmt.Name(fmt.Sprintf("%s/policy=%s/split=%s", strings.SplitN(s.Env, "-v", 2)[0], s.Policy, s.Split)),
		Iters:  s.Planned,
		Values: []benchfmt.Value{{Value: round(100 * s.Pass1), Unit: "success-pts/episode"}},
	}
	if s.MeanReward != nil {
		res.Values = append(res.Values, benchfmt.Value{Value: round(100 * *s.MeanReward), Unit: "reward-pts/episode"})
	}
	res.Values = append(res.Values, benchfmt.Value{Value: round(s.Hallucination.sum()), Unit: "hallucinations/episode"},
		benchfmt.Value{Value: round(s.Turns), Unit: "turns/episode"}, benchfmt.Value{Value: round(100 * float64(s.Void) / float64(s.Planned)), Unit: "void-pts/episode"})
	if s.Founding != nil {
		res.Values = append(res.Values, benchfmt.Value{Value: round(100 * *s.Founding), Unit: "founding-pts/episode"})
	}
	return res
}

func round(v float64) float64 { return math.Round(v*1e4) / 1e4 }

// LoadResults reads every record under a results folder, sorted by path. Problems in a record are an error here: a board is
// made of whole records only.
func LoadResults(dir string) ([]*Record, error) {
	paths, err := filepath.Glob(filepath.Join(dir, "*", "*"))
	if err != nil {
		return nil, fmt.Errorf("list the records in %s: %w", dir, err)
	}
	paths = slices.DeleteFunc(paths, func(p string) bool { return !IsRecord(p) })
	var out []*Record
	for _, p := range paths {
		r, problems, err := Load(p)
		if err != nil {
			return nil, err
		}
		if len(problems) > 0 {
			return nil, fmt.Errorf("record %s: %s", p, problems[0])
		}
		out = append(out, r)
	}
	return out, nil
}

// Generated computes the files of a results folder that follow from its records, by path: texts always, and pictures.
func Generated(dir string, records []*Record) (texts, pictures map[string][]byte, err error) {
	boards, err := Boards(records)
	if err != nil {
		return nil, nil, err
	}
	texts, pictures = map[string][]byte{}, map[string][]byte{}
	var md bytes.Buffer
	fmt.Fprint(&md, readmeHead)
	if slices.ContainsFunc(records, func(r *Record) bool { return r.Training != nil }) {
		fmt.Fprint(&md, readmeTrained)
	}
	byEnv := map[string][]Board{}
	for _, b := range boards {
		byEnv[b.Env] = append(byEnv[b.Env], b)
	}
	for i, b := range boards {
		name := Dir(b.Env)
		if i == 0 || boards[i-1].Env != b.Env {
			text, err := benchText(byEnv[b.Env])
			if err != nil {
				return nil, nil, fmt.Errorf("write %s.txt: %w", name, err)
			}
			texts[filepath.Join(dir, name+".txt")] = text
			fmt.Fprintf(&md, "\n## %s\n", b.Env)
		}
		if b.Split == "test" && len(b.Rows) > 0 {
			png, svg, err := b.Picture()
			if err != nil {
				return nil, nil, err
			}
			pictures[filepath.Join(dir, name+".png")] = png
			pictures[filepath.Join(dir, name+".svg")] = svg
			fmt.Fprintf(&md, "\n![success of each policy in %s](%s.png)\n", b.Env, name)
		}
		fmt.Fprintf(&md, "\n### Split %s\n\n%s", b.Split, b.Show(true))
		for _, r := range b.Withheld {
			fmt.Fprintf(&md, "\n%s is withheld: %d of %d episodes were void.\n", r.Policy, r.Void, r.Planned)
		}
	}
	texts[filepath.Join(dir, "README.md")] = md.Bytes()
	return texts, pictures, nil
}

const readmeHead = `# Leaderboard

This page is generated from the records beside it. Play every row again: ` + "`go test ./bench -run Weather -v`" + `, or one: ` + "`go run ./bench/mcpgym verify results/weather/lexical.jsonl`" + `.

A row counts all planned episodes: one that was void (the sandbox failed, not the agent) is not passed, and has no reward.
"success" is pass@1 with its 95 % Wilson interval, "pass^k" the chance that all k trials of a task succeed, for each k up to the trials made. "halluc." is what was made up, an
episode: tools, arguments, claims. "p vs next" is the exact paired test (McNemar) against the row below on the same tasks, from 0.05 on it is a tie; "p reward" is that of the mean reward (sign flips), whose interval is
bootstrapped. Tokens and cost are those of a model; "-" means that there was none, or that it has no price. "founding" is the mean of
the founding note's formula, which looks at the first call alone and pays 1 for a word in its query: a column to compare with, never the reward.
`

const readmeTrained = `
A policy that was trained has one row for all its training seeds, and one record for each: "success" and all else are means over seeds, and intervals are t intervals of the means of
the seeds. Such rows are compared with others on the same tasks, also below each table, by a t-test for which both seeds and tasks are chance (clustered both ways, with as many degrees of
freedom as there are seeds but one); "95 %" there is the interval of the difference, and "halluc." is of all kinds together. Nothing is corrected for the number of comparisons. An expert has
learned from gold solutions, and is not ranked.
`

// WriteResults brings the generated files of a results folder up to date. Pictures are drawn anew only when their numbers
// have changed, so that another version of a font or an encoder changes nothing.
func WriteResults(dir string) error {
	records, err := LoadResults(dir)
	if err != nil {
		return err
	}
	texts, pictures, err := Generated(dir, records)
	if err != nil {
		return err
	}
	for path, data := range pictures {
		source := strings.TrimSuffix(path, filepath.Ext(path)) + ".txt"
		if old, err := os.ReadFile(source); err == nil && bytes.Equal(old, texts[source]) {
			if _, err := os.Stat(path); err == nil {
				continue
			}
		}
		if err := writeFile(path, data); err != nil {
			return err
		}
	}
	for path, data := range texts {
		if err := writeFile(path, data); err != nil {
			return err
		}
	}
	return nil
}
