// Package ruler scores the trajectories of one task against each other by the word of a judge, with error bars: each group is
// judged twice, in opposite orders.
//
// A judge's score is never a reward of the leaderboard. It proves nothing, moves with the judge, and can be argued with; it is
// for training where no program can verify the outcome.
package ruler

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/mcpgym/mcpgym/envs"
	"github.com/mcpgym/mcpgym/policies/llm"
)

const (
	// MinTau is the least agreement of the two orders, as Kendall's tau-b, with which a group is not a tie: three pairs of
	// four in the same order. A judge that guesses gets there with one group of 4 in six, and one of 8 in twenty.
	MinTau = 0.5
	// MaxBias is the difference between the first place and the last above which a report calls a judge biased.
	MaxBias = 0.25
	// Neutral is the score where there is nothing to compare.
	Neutral = 0.5
)

// Judge is who compares. Model and Temperature are its identity: judges that are equal in them share cached replies.
type Judge struct {
	Model       string
	Temperature *float64 // nil: it has none, or its server's
	// Ask answers a prompt. Its error leaves the group unscored; the reply's Usage and Cost count also then. It may be called
	// concurrently.
	Ask func(ctx context.Context, p Prompt) (Reply, error)
}

// Reply is a judge's answer as it came: Text should be the JSON that the prompt asks for.
type Reply struct {
	Text  string
	Model string    // as the server names it; may be empty
	Usage llm.Usage // retries included
	Cost  *float64  // nil: unknown, which is not free
}

// Criterion is a standard to judge by. Weights say how much criteria count against each other.
type Criterion struct {
	Text   string
	Weight float64
}

// DefaultRubric is judged by where a Ruler names no other.
var DefaultRubric = []Criterion{
	{"The goal of the task is reached: the answer is right by the results in the record, or the world is left as the task asks. Part of a goal is worth part of this.", 6},
	{"What is claimed follows from results in the record. What they do not show is not claimed.", 2},
	{"Nothing is changed that the task does not ask to change.", 1},
	{"Few steps are spent: no calls that are wrong, repeated or of no use.", 1},
}

// Ruler is a GroupReward. It may be used concurrently.
type Ruler struct {
	Judge    Judge
	Rubric   []Criterion  // nil: DefaultRubric
	Seed     uint64       // of ids and orders
	Cache    string       // folder for replies that could be used, made if it is not there; empty: none
	OnReport func(Report) // may be nil; called once for each group that ScoreGroup scores
}

// Identity says who judged, and by what.
type Identity struct {
	Model       string
	Served      []string // names that the server gave to the model, sorted
	Temperature *float64
	Rubric      string // digest of all that the judge is told beside the records
}

// Verdict is what came out for one trajectory.
type Verdict struct {
	Score   *float64  // in [0, 1]; nil: unscored, which is not 0
	Error   float64   // standard error of the mean of both scores; 0 where they are not there
	Scores  []float64 // in the two orders, empty where nothing was judged
	Reasons []string  // in the two orders
	Places  []int     // from 0, in the two orders
}

// Report is how a group was judged.
type Report struct {
	Task     string
	Judge    Identity
	Verdicts []Verdict // of each trajectory, in the order given
	Void     int       // trajectories left out
	Distinct int       // trajectories shown: equal ones are shown once
	Judged   bool      // twice, so that Tau and Bias say something
	Tau      float64   // Kendall's tau-b between the orders
	Bias     float64   // what the first place gets more than the last
	Tie      bool      // no signal: all scores are equal
	Unscored string    // why there are no scores
	Calls    int       // of the judge, repairs included
	Cached   int       // replies from the cache
	Usage    llm.Usage // of the calls, retries included
	Cost     *float64  // nil: some call has no price
}

// Biased says that places moved the scores.
func (r Report) Biased() bool { return r.Judged && (r.Bias > MaxBias || r.Bias < -MaxBias) }

// ScoreGroup scores a group by Compare. No score is a success: a judge opens no gate.
func (r Ruler) ScoreGroup(ctx context.Context, group []*envs.Trajectory) ([]*envs.Score, error) {
	report, err := r.Compare(ctx, group)
	if err != nil {
		return nil, err
	}
	if r.OnReport != nil {
		r.OnReport(report)
	}
	scores := make([]*envs.Score, len(group))
	for i, v := range report.Verdicts {
		if v.Score != nil {
			scores[i] = &envs.Score{Value: *v.Score, Parts: []envs.Part{
				{Name: "judge", Kind: envs.Credit, Weight: 1, Score: v.Score, Reason: strings.Join(v.Reasons, " / ")}}}
		}
	}
	return scores, nil
}

// Compare judges a group: trajectories of one task. Void ones are left out and stay unscored. Where the judge fails, or its
// reply cannot be used also after it was shown its error, the whole group is unscored. An error is ctx's or the cache's, or it
// says that the Ruler or the group is not usable; then nothing was asked.
func (r Ruler) Compare(ctx context.Context, group []*envs.Trajectory) (Report, error) {
	if r.Rubric == nil {
		r.Rubric = DefaultRubric
	}
	if err := r.validate(group); err != nil {
		return Report{}, fmt.Errorf("ruler: %w", err)
	}
	rep := Report{Verdicts: make([]Verdict, len(group)), Cost: new(float64),
		Judge: Identity{Model: r.Judge.Model, Temperature: r.Judge.Temperature, Rubric: fmt.Sprintf("%.8x", sha256.Sum256([]byte(system(r.Rubric))))}}
	members := map[[sha256.Size]byte][]int{}
	var ts []transcript
	for i, t := range group {
		rep.Task = t.Task.ID
		if t.Void != nil {
			rep.Void++
			continue
		}
		tr := newTranscript(t)
		if members[tr.key] == nil {
			ts = append(ts, tr)
		}
		members[tr.key] = append(members[tr.key], i)
	}
	rep.Distinct = len(ts)
	if len(ts) < 2 { // nothing to compare
		rep.Tie = len(ts) == 1
		for _, t := range ts {
			for _, i := range members[t.key] {
				rep.Verdicts[i].Score = new(Neutral)
			}
		}
		return rep, nil
	}
	slices.SortFunc(ts, func(a, b transcript) int { return bytes.Compare(a.key[:], b.key[:]) }) // in whatever order they came

	verdicts := make([]Verdict, len(ts))
	if err := r.twice(ctx, &rep, ts, verdicts); err != nil {
		if ctx.Err() != nil {
			return rep, fmt.Errorf("judge trajectories of %s: %w", rep.Task, ctx.Err())
		}
		if _, ok := errors.AsType[*cacheError](err); ok {
			return rep, err
		}
		rep.Unscored = err.Error()
		return rep, nil
	}
	rep.settle(verdicts)
	for i, t := range ts {
		for _, m := range members[t.key] {
			rep.Verdicts[m] = verdicts[i]
		}
	}
	return rep, nil
}

func (r Ruler) validate(group []*envs.Trajectory) error {
	if r.Judge.Ask == nil || r.Judge.Model == "" {
		return errors.New("a judge needs a function and the name of its model")
	}
	if len(r.Rubric) == 0 {
		return errors.New("the rubric has no criteria")
	}
	for _, c := range r.Rubric {
		if strings.TrimSpace(c.Text) == "" || !(c.Weight > 0 && c.Weight < 1e9) {
			return fmt.Errorf("criterion %q of weight %v: every criterion needs a text and a weight above 0", c.Text, c.Weight)
		}
	}
	if r.Cache != "" {
		if err := os.MkdirAll(r.Cache, 0o755); err != nil {
			return fmt.Errorf("make the folder of the cache: %w", err)
		}
	}
	for i, t := range group {
		if t == nil {
			return fmt.Errorf("trajectory %d is nil", i)
		}
		if first := group[0]; t.Task.ID != first.Task.ID || t.Task.Prompt != first.Task.Prompt || t.System != first.System {
			return fmt.Errorf("trajectory %d is of task %s, the first of %s: only attempts at one task can be compared", i, t.Task.ID, first.Task.ID)
		}
	}
	return nil
}

// twice judges transcripts in a random order and in its reverse, with fresh ids.
func (r Ruler) twice(ctx context.Context, rep *Report, ts []transcript, verdicts []Verdict) error {
	keys := []string{rep.Task}
	for _, t := range ts {
		keys = append(keys, string(t.key[:]))
	}
	rng := newRand(r.Seed, keys...)
	order := rng.Perm(len(ts))
	for range 2 {
		shown := make([]transcript, len(ts))
		for place, i := range order {
			shown[place] = ts[i]
		}
		p, err := build(r.Rubric, shown, newIDs(rng, len(ts)))
		if err != nil {
			return err
		}
		marks, err := r.ask(ctx, rep, p)
		if err != nil {
			return err
		}
		for place, i := range order {
			m, v := marks[p.Shown[place].ID], &verdicts[i]
			v.Scores, v.Reasons, v.Places = append(v.Scores, m.score), append(v.Reasons, m.reason), append(v.Places, place)
		}
		slices.Reverse(order)
	}
	return nil
}

// ask asks the judge, once more if its reply cannot be used.
func (r Ruler) ask(ctx context.Context, rep *Report, p Prompt) (map[string]mark, error) {
	for attempt := 1; ; attempt++ {
		if marks, ok := r.load(p); ok {
			rep.Cached++
			return marks, nil
		}
		reply, err := r.Judge.Ask(ctx, p)
		rep.count(reply)
		if err != nil {
			return nil, fmt.Errorf("ask the judge: %w", err)
		}
		marks, err := parseReply(reply.Text, p.ids())
		if err == nil {
			return marks, r.store(p, reply)
		}
		if attempt == 2 {
			return nil, fmt.Errorf("reply of the judge, also when asked again: %w", err)
		}
		p.Reply, p.Fault = reply.Text, err.Error()
	}
}

func (rep *Report) count(reply Reply) {
	rep.Calls++
	rep.Usage = rep.Usage.Add(reply.Usage)
	rep.Cost = sum(rep.Cost, reply.Cost)
	if i, known := slices.BinarySearch(rep.Judge.Served, reply.Model); !known && reply.Model != "" {
		rep.Judge.Served = slices.Insert(rep.Judge.Served, i, reply.Model)
	}
}

// sum is nil where a part is: unpriced is not free.
func sum(a, b *float64) *float64 {
	if a == nil || b == nil {
		return nil
	}
	return new(*a + *b)
}

// settle makes scores of the two judgements of each trajectory.
func (rep *Report) settle(verdicts []Verdict) {
	var scores [2][]float64
	var places [2][]int
	mean := 0.0
	for _, v := range verdicts {
		for pass := range 2 {
			scores[pass] = append(scores[pass], v.Scores[pass])
			places[pass] = append(places[pass], v.Places[pass])
			mean += v.Scores[pass] / float64(2*len(verdicts))
		}
	}
	rep.Judged = true
	rep.Tau = tau(scores[0], scores[1])
	rep.Bias = bias(scores[0], scores[1], places[0], places[1])
	rep.Tie = rep.Tau < MinTau
	for i := range verdicts {
		a, b := scores[0][i], scores[1][i]
		verdicts[i].Error = max(a-b, b-a) / 2
		verdicts[i].Score = new((a + b) / 2)
		if rep.Tie {
			verdicts[i].Score = new(min(mean, 1))
		}
	}
}

// Totals sums reports up.
type Totals struct {
	Groups, Unscored, Ties, Biased int // Unscored: groups that the judge failed, and those without a trajectory that is not void
	Void                           int // trajectories
	Calls, Cached                  int
	Usage                          llm.Usage
	Cost                           *float64 // nil: some call has no price
}

// Sum sums reports up.
func Sum(reports ...Report) Totals {
	t := Totals{Groups: len(reports), Cost: new(float64)}
	count := func(n *int, yes bool) {
		if yes {
			*n++
		}
	}
	for _, r := range reports {
		count(&t.Unscored, r.Unscored != "" || r.Distinct == 0)
		count(&t.Ties, r.Tie)
		count(&t.Biased, r.Biased())
		t.Void += r.Void
		t.Calls += r.Calls
		t.Cached += r.Cached
		t.Usage = t.Usage.Add(r.Usage)
		t.Cost = sum(t.Cost, r.Cost)
	}
	return t
}
