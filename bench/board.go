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

	outcomes map[[2]int]outcome // by task and trial
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
	row := Row{Header: r.Header, outcomes: map[[2]int]outcome{}}
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
		if e.Score != nil {
			t.Success, t.Reward = e.Score.Success, &e.Score.Value
			tr := envs.Trajectory{Steps: e.Steps, Tools: r.Tools[e.Tools]}
			for _, p := range e.Score.Parts {
				row.Hallucination.Tools += float64(p.Counts["tools"])
				row.Hallucination.Arguments += float64(p.Counts["arguments"])
				row.Hallucination.Claims += float64(p.Counts["claims"])
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
		o := outcome{pass: t.Success}
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

// Compare tests two rows on the episodes that both planned, paired: success by McNemar's exact test, reward by sign flips.
// It is an error to compare rows of different environments, versions or splits.
func Compare(a, b Row) (pSuccess, pReward float64, err error) {
	if a.Env != b.Env || a.Split != b.Split {
		return 0, 0, fmt.Errorf("compare %s of %s %s with %s of %s %s: only rows of one version and split can be compared", a.Policy, a.Env, a.Split, b.Policy, b.Env, b.Split)
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

// Boards sorts records into boards, by environment and split. Records of two versions of an environment are an error: their
// scores share no table.
func Boards(records []*Record) ([]Board, error) {
	byKey := map[string]*Board{}
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
		}
		row := Summarise(r)
		if float64(row.Void) > publishable*float64(row.Planned) {
			b.Withheld = append(b.Withheld, row)
		} else {
			b.Rows = append(b.Rows, row)
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
	head := table.Row{"policy", "success %", "95 %", "pass^k %", "reward", "halluc.", "turns", "tool errors", "planned", "void", "tokens", "cost $", "p vs next", "p reward"}
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
		if !r.Ranked {
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
		line := table.Row{name, percent(r.Pass1), fmt.Sprintf("%.1f-%.1f", 100*r.Interval.Lo, 100*r.Interval.Hi), strings.Join(hat, " "), reward,
			fmt.Sprintf("%.2f %.2f %.2f", r.Hallucination.Tools, r.Hallucination.Arguments, r.Hallucination.Claims), fmt.Sprintf("%.1f", r.Turns), fmt.Sprintf("%.2f", r.ToolErrors), r.Planned, r.Void, optional(r.Provenance.Tokens, "%d"), optional(r.Provenance.Cost, "%.2f"), next, nextReward}
		if founding {
			line = append(line, optional(r.Founding, "%.3f"))
		}
		if markdown {
			line = append(line, strings.Join(r.Provenance.Drivers, ", "), r.Provenance.Commit, "`"+r.Provenance.Command+"`")
		}
		t.AppendRow(line)
	}
	for _, r := range b.Withheld {
		t.AppendRow(table.Row{r.Policy, "withheld", "", "", "", "", "", "", r.Planned, r.Void})
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
		if !r.Ranked {
			bar.Note = "not ranked"
		}
		bars = append(bars, bar)
	}
	return SuccessPlot(fmt.Sprintf("%s, %s tasks", b.Env, b.Split), "success (pass@1), %, with 95 % intervals", bars)
}

// benchText writes boards in the Go benchmark format, one line a row and trial, so that
//
//	benchstat -col /policy results/weather.txt
//
// compares policies. Rates are in points of 100.
func benchText(boards []Board, records []*Record) ([]byte, error) {
	var buf bytes.Buffer
	for _, u := range []string{"success-pts/episode better=higher", "reward-pts/episode better=higher", "hallucinations/episode better=lower", "turns/episode better=lower", "founding-pts/episode better=higher", "void-pts/episode better=lower"} {
		fmt.Fprintf(&buf, "Unit %s\n", u)
	}
	w := benchfmt.NewWriter(&buf)
	for _, b := range boards {
		for _, row := range b.Rows {
			i := slices.IndexFunc(records, func(r *Record) bool {
				return r.Env == row.Env && r.Split == row.Split && r.Policy == row.Policy
			})
			for trial := range row.Trials {
				one := &Record{Header: row.Header}
				one.Trials = 1
				for _, e := range records[i].Episodes {
					if e.Trial == trial {
						one.Episodes = append(one.Episodes, e)
					}
				}
				s := Summarise(one)
				res := &benchfmt.Result{
					Config: []benchfmt.Config{{Key: "env", Value: []byte(b.Env), File: true}},
					Name:   benchfmt.Name(fmt.Sprintf("%s/policy=%s/split=%s", strings.SplitN(b.Env, "-v", 2)[0], row.Policy, b.Split)),
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
				if err := w.Write(res); err != nil {
					return nil, err
				}
			}
		}
	}
	return buf.Bytes(), nil
}

func round(v float64) float64 { return math.Round(v*1e4) / 1e4 }

// LoadResults reads every record under a results folder, sorted by path. Problems in a record are an error here: a board is
// made of whole records only.
func LoadResults(dir string) ([]*Record, error) {
	paths, err := filepath.Glob(filepath.Join(dir, "*", "*.jsonl"))
	if err != nil {
		return nil, fmt.Errorf("list the records in %s: %w", dir, err)
	}
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

// RecordPath is where the record of a row lies under a results folder.
func RecordPath(dir, env, policy, split string) string {
	name := policy
	if split != "test" {
		name += "." + split
	}
	return filepath.Join(dir, Dir(env), name+".jsonl")
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
	byEnv := map[string][]Board{}
	for _, b := range boards {
		byEnv[b.Env] = append(byEnv[b.Env], b)
	}
	for i, b := range boards {
		name := Dir(b.Env)
		if i == 0 || boards[i-1].Env != b.Env {
			text, err := benchText(byEnv[b.Env], records)
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
		fmt.Fprintf(&md, "\n### Split %s\n\n%s\n\n%s\n", b.Split, b.Table(true), b.FamilyTable(true))
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
