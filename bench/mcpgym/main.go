// Command mcpgym plays, shows and verifies episodes of the gym's environments.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/schollz/progressbar/v3"
	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/mcpgym/mcpgym/bench"
	"github.com/mcpgym/mcpgym/envs"
	"github.com/mcpgym/mcpgym/policies"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code := run(ctx, os.Args[1:], os.Stdin, os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

// errFailed says that the command did its work and the outcome is a failure, which it has printed.
var errFailed = errors.New("failed")

// interruption is the error of a command that was interrupted and has left something: it says what can be done with it.
type interruption string

func (i interruption) Error() string { return string(i) }

// run executes the command and returns the exit status: 0, 1 for a failure that was looked for and found, 2 for wrong input
// or anything that kept the command from its work, 130 when it was interrupted.
func run(ctx context.Context, args []string, in io.Reader, out, errOut io.Writer) int {
	root := &cobra.Command{Use: "mcpgym", Short: "A gym and benchmark for agents that work through MCP tools", SilenceUsage: true, SilenceErrors: true}
	root.SetArgs(args)
	root.SetIn(in)
	root.SetOut(out)
	root.SetErr(errOut)
	root.AddCommand(envsCommand(), toolsCommand(), runCommand(), playCommand(), showCommand(), explainCommand(), verifyCommand(), regradeCommand(), boardCommand(), sftCommand(), trainCommand(), evalCommand(), chatCommand(), mergeCommand(), serveCommand())
	root.Args = cobra.ArbitraryArgs
	root.RunE = func(_ *cobra.Command, args []string) error {
		if len(args) == 0 {
			return root.Help()
		}
		var names []string
		for _, c := range root.Commands() {
			names = append(names, c.Name())
		}
		return fmt.Errorf("no command %q, only %s", args[0], strings.Join(names, ", "))
	}
	err := root.ExecuteContext(ctx)
	switch {
	case err == nil:
		return 0
	case errors.Is(err, errFailed):
		return 1
	case errors.As(err, new(interruption)):
		fmt.Fprintf(errOut, "mcpgym: interrupted, %v\n", err)
		return 130
	case ctx.Err() != nil:
		fmt.Fprintln(errOut, "mcpgym: interrupted, nothing was written")
		return 130
	}
	fmt.Fprintf(errOut, "mcpgym: %s\n", strings.ReplaceAll(err.Error(), "\n", " "))
	return 2
}

// exitCode is the status of a command that checked several things.
func exitCode(failed, _ int) error {
	if failed > 0 {
		return errFailed
	}
	return nil
}

// openEnv opens an environment on a driver, and one of its splits; the default ones where they are not named. What can be
// wrong in the input is looked at before anything is started.
func openEnv(ctx context.Context, name, driver, split string) (envs.Spec, envs.Source, error) {
	entry, err := bench.FindEnv(name)
	if err != nil {
		return envs.Spec{}, nil, err
	}
	if driver, err = entry.Driver(driver); err != nil {
		return envs.Spec{}, nil, err
	}
	if split == "" {
		split = entry.Splits[0]
	}
	if err := entry.Split(split); err != nil {
		return envs.Spec{}, nil, err
	}
	spec, err := entry.Open(ctx, driver)
	if err != nil {
		return envs.Spec{}, nil, err
	}
	return spec, spec.Splits[split], nil
}

// driverFlag adds the choice of a driver to a command.
func driverFlag(c *cobra.Command, driver *string) {
	c.Flags().StringVar(driver, "driver", "", "what live sandboxes run on: local, the programs of this machine, or container, a Docker engine (default local)")
	c.RegisterFlagCompletionFunc("driver", cobra.FixedCompletions([]string{"local", "container"}, cobra.ShellCompDirectiveNoFileComp))
}

// envNames completes environment names in the shell.
func envNames(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
	var names []string
	for _, e := range bench.Envs() {
		names = append(names, e.Name)
	}
	return names, cobra.ShellCompDirectiveNoFileComp
}

func policyNames(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
	var names []string
	for _, b := range bench.Policies() {
		names = append(names, b.Name)
	}
	return names, cobra.ShellCompDirectiveNoFileComp
}

func envsCommand() *cobra.Command {
	var asJSON bool
	c := &cobra.Command{Use: "envs", Short: "List the environments and policies", Args: cobra.NoArgs, RunE: func(cmd *cobra.Command, _ []string) error {
		type item struct {
			Name    string   `json:"name"`
			About   string   `json:"about"`
			Splits  []string `json:"splits,omitempty"`
			Drivers []string `json:"drivers,omitempty"`
		}
		var list struct {
			Envs     []item `json:"envs"`
			Policies []item `json:"policies"`
		}
		for _, e := range bench.Envs() {
			list.Envs = append(list.Envs, item{e.Name, e.About, e.Splits, e.Drivers})
		}
		for _, b := range bench.Policies() {
			list.Policies = append(list.Policies, item{Name: b.Name, About: b.About})
		}
		if asJSON {
			return printJSON(cmd.OutOrStdout(), list)
		}
		fmt.Fprintln(cmd.OutOrStdout(), "environments")
		for _, e := range list.Envs {
			fmt.Fprintf(cmd.OutOrStdout(), "  %-14s %s (splits: %s; drivers: %s)\n", e.Name, e.About, strings.Join(e.Splits, ", "), strings.Join(e.Drivers, ", "))
		}
		fmt.Fprintln(cmd.OutOrStdout(), "policies")
		for _, p := range list.Policies {
			fmt.Fprintf(cmd.OutOrStdout(), "  %-14s %s\n", p.Name, p.About)
		}
		return nil
	}}
	c.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return c
}

func printJSON(w io.Writer, v any) error {
	e := json.NewEncoder(w)
	e.SetEscapeHTML(false)
	return e.Encode(v)
}

func toolsCommand() *cobra.Command {
	var asJSON bool
	var driver string
	c := &cobra.Command{Use: "tools ENV", Short: "List the tools of an environment, as its server describes them", Args: cobra.ExactArgs(1), ValidArgsFunction: envNames, RunE: func(cmd *cobra.Command, args []string) error {
		spec, src, err := openEnv(cmd.Context(), args[0], driver, "")
		if err != nil {
			return err
		}
		defer spec.Sandboxes.Close()
		env, err := envs.New(spec)
		if err != nil {
			return err
		}
		defer env.Close()
		if _, err := env.Reset(cmd.Context(), src.Task(0)); err != nil {
			return err
		}
		tools := env.Trajectory().Tools
		if asJSON {
			return printJSON(cmd.OutOrStdout(), tools)
		}
		for _, t := range tools {
			fmt.Fprintln(cmd.OutOrStdout(), describe(t, true))
		}
		return nil
	}}
	driverFlag(c, &driver)
	c.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return c
}

// summary is a row as JSON: the last line of run --json, and an element of board --json.
type summary struct {
	Env           string         `json:"env"`
	Policy        string         `json:"policy"`
	Split         string         `json:"split"`
	Ranked        bool           `json:"ranked"`
	Seed          uint64         `json:"seed"`
	Episodes      int            `json:"episodes"` // planned
	Trials        int            `json:"trials"`
	Training      []uint64       `json:"training_seeds,omitempty"` // over which all that follows is a mean
	Expert        bool           `json:"expert,omitempty"`
	Void          int            `json:"void"`
	Success       float64        `json:"success"` // passes by planned episodes
	Interval      [2]float64     `json:"success_95"`
	PassHat       []float64      `json:"pass_hat_k"`
	Reward        *float64       `json:"reward"`        // mean over scored episodes, null without any
	Hallucination bench.Made     `json:"hallucination"` // means an episode
	Turns         float64        `json:"turns"`
	ToolErrors    float64        `json:"tool_errors"`
	Founding      *float64       `json:"founding,omitempty"` // by the founding formula, to compare with
	Families      map[string]any `json:"families"`
	Seconds       *float64       `json:"seconds,omitempty"`
}

func summarise(row bench.Row) summary {
	families := map[string]any{}
	for _, f := range row.Families {
		families[f.Family] = map[string]int{"planned": f.Planned, "passes": f.Passes}
	}
	var training []uint64
	for _, s := range row.Seeds {
		training = append(training, s.Training.Seed)
	}
	if row.Training != nil && row.Seeds == nil { // a record by itself
		training = []uint64{row.Training.Seed}
	}
	return summary{Training: training, Expert: row.Training != nil && row.Training.Expert, Env: row.Env, Policy: row.Policy, Split: row.Split, Ranked: row.Ranked, Seed: row.Seed, Episodes: row.Planned, Trials: row.Trials, Void: row.Void, Success: row.Pass1,
		Interval: [2]float64{row.Interval.Lo, row.Interval.Hi}, PassHat: row.PassHat, Reward: row.MeanReward, Hallucination: row.Hallucination, Turns: row.Turns, ToolErrors: row.ToolErrors, Founding: row.Founding, Families: families}
}

// playing is how a policy is played: what run and eval have in common.
type playing struct {
	env, split, driver, file string
	tasks, trials, parallel  int
	seed                     uint64
	asJSON                   bool
	training                 *bench.Training // nil where nothing was trained, or nobody says how
}

func (p *playing) flags(c *cobra.Command, parallel int) {
	f := c.Flags()
	f.StringVar(&p.env, "env", "", "environment")
	f.StringVar(&p.split, "split", "test", "split")
	driverFlag(c, &p.driver)
	f.IntVar(&p.tasks, "episodes", 100, "tasks to play, from the first of the split")
	f.IntVar(&p.trials, "trials", 1, "episodes of each task")
	f.Uint64Var(&p.seed, "seed", 1, "seed of the policy's choices")
	f.IntVar(&p.parallel, "parallel", parallel, "episodes at once")
	f.BoolVar(&p.asJSON, "json", false, "print one line of JSON")
	f.StringVar(&p.file, "out", "", "write the record to this file")
	c.RegisterFlagCompletionFunc("env", envNames)
}

// check looks at all that can be wrong before anything is started.
func (p *playing) check() error {
	if err := positive(flagValue{"episodes", p.tasks}, flagValue{"trials", p.trials}, flagValue{"parallel", p.parallel}); err != nil {
		return err
	}
	entry, err := bench.FindEnv(p.env)
	if err != nil {
		return err
	}
	if p.driver, err = entry.Driver(p.driver); err != nil {
		return err
	}
	if err := entry.Split(p.split); err != nil {
		return err
	}
	if p.file != "" {
		return writable(p.file)
	}
	return nil
}

// play plays a policy, keeps the record and prints the row. The command is what plays it again, but for the flags that are here.
func (p *playing) play(cmd *cobra.Command, policy policies.Policy, name, command string) error {
	spec, _, err := openEnv(cmd.Context(), p.env, p.driver, p.split)
	if err != nil {
		return err
	}
	defer spec.Sandboxes.Close()
	start := time.Now()
	progress, done := progressBar(cmd.ErrOrStderr(), "play", p.tasks*p.trials)
	r, err := bench.Run(cmd.Context(), bench.Config{Spec: spec, Policy: policy, Name: name, Split: p.split, Tasks: p.tasks, Trials: p.trials, Seed: p.seed, Parallel: p.parallel, Progress: progress})
	done()
	if err != nil {
		return err
	}
	seconds := time.Since(start).Seconds()
	if t := p.training; t != nil {
		command += fmt.Sprintf(" --name %s --training-seed %d --trained-by %q", name, t.Seed, t.Command)
		if t.Expert {
			command += " --expert"
		}
	}
	r.Provenance = provenance(cmd.Context(), p.driver, fmt.Sprintf("%s --split %s --episodes %d --trials %d --seed %d", command, p.split, p.tasks, p.trials, p.seed))
	r.Provenance.Tokens = sampled(r)
	if p.training != nil {
		r.Label(*p.training)
	}
	if p.file != "" {
		if err := r.Save(p.file); err != nil {
			return err
		}
	}
	row := bench.Summarise(r)
	if !p.asJSON {
		board, err := bench.Boards([]*bench.Record{r})
		if err != nil {
			return err
		}
		fmt.Fprintf(cmd.OutOrStdout(), "%s, split %s\n%s%d episodes in %.1f s\n", p.env, p.split, board[0].Show(false), row.Planned, seconds)
		return nil
	}
	out := summarise(row)
	out.Seconds = &seconds
	return printJSON(cmd.OutOrStdout(), out)
}

func provenance(ctx context.Context, driver, command string) bench.Provenance {
	return bench.Provenance{Commit: commit(ctx), Date: time.Now().UTC().Format(time.DateOnly), Drivers: []string{driver}, Command: "go run ./bench/mcpgym " + command}
}

// sampled is the number of tokens that a model has said; nil where none was asked.
func sampled(r *bench.Record) *int {
	n, any := 0, false
	for _, e := range r.Episodes {
		for _, s := range e.Steps {
			if s.Action.Sample != nil {
				n, any = n+len(s.Action.Sample.Tokens), true
			}
		}
	}
	if !any {
		return nil
	}
	return &n
}

// trained is where the weights of a model come from, as a row of the board says it.
type trained struct {
	seed    uint64
	command string
	expert  bool
}

func (t *trained) flags(c *cobra.Command) {
	f := c.Flags()
	f.Uint64Var(&t.seed, "training-seed", 0, "for a row of the board: the seed that the model was trained from")
	f.StringVar(&t.command, "trained-by", "", "with --training-seed: the command that trains it")
	f.BoolVar(&t.expert, "expert", false, "with --training-seed: it was trained on gold solutions, and is not ranked")
}

// training describes the model in a folder; nil without --training-seed.
func (t *trained) training(cmd *cobra.Command, dir string, s speaking) (*bench.Training, error) {
	switch {
	case !cmd.Flags().Changed("training-seed"):
		if t.command != "" || t.expert {
			return nil, errors.New("--trained-by and --expert go with --training-seed")
		}
		return nil, nil
	case t.command == "":
		return nil, errors.New("--training-seed needs --trained-by, the command that trains the model")
	case s.adapter != "":
		return nil, errors.New("--training-seed names the weights of a whole model: mcpgym merge makes one of a model and its adapter")
	}
	sum, err := bench.WeightsSum(dir)
	if err != nil {
		return nil, err
	}
	return &bench.Training{Seed: t.seed, Command: t.command, Weights: sum, Expert: t.expert, Temperature: s.temperature, MaxTokens: s.maxTokens, Arithmetic: bench.Arithmetic()}, nil
}

type flagValue struct {
	flag  string
	value int
}

func positive(values ...flagValue) error {
	for _, v := range values {
		if v.value < 1 {
			return fmt.Errorf("--%s is %d, want 1 or more", v.flag, v.value)
		}
	}
	return nil
}

func runCommand() *cobra.Command {
	var p playing
	var policy string
	c := &cobra.Command{
		Use: "run", Short: "Play a policy in an environment", Args: cobra.NoArgs,
		Example: "  mcpgym run --env Weather-v0 --policy lexical --split test --episodes 200",
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := p.check(); err != nil {
				return err
			}
			b, err := bench.FindPolicy(policy)
			if err != nil {
				return err
			}
			return p.play(cmd, b.Policy, b.Name, fmt.Sprintf("run --env %s --policy %s", p.env, policy))
		},
	}
	p.flags(c, runtime.NumCPU())
	c.Flags().StringVar(&policy, "policy", "", "policy")
	c.RegisterFlagCompletionFunc("policy", policyNames)
	return c
}

// writable finds out before a long run whether its result can be written.
func writable(file string) error {
	f, err := os.CreateTemp(filepath.Dir(file), ".tmp-*")
	if err != nil {
		return fmt.Errorf("write %s: %w", file, err)
	}
	return errors.Join(f.Close(), os.Remove(f.Name()))
}

// commit names the commit of the tree that is run, where git knows it.
func commit(ctx context.Context) string {
	out, err := exec.CommandContext(ctx, "git", "rev-parse", "--short=12", "HEAD").Output()
	if err != nil {
		return "unknown"
	}
	return strings.TrimSpace(string(out))
}

func terminal(w io.Writer) (*os.File, bool) {
	f, ok := w.(*os.File)
	return f, ok && term.IsTerminal(int(f.Fd()))
}

// progressBar shows progress on a terminal, and nothing elsewhere.
func progressBar(w io.Writer, what string, total int) (step func(int), done func()) {
	f, ok := terminal(w)
	if !ok {
		return func(int) {}, func() {}
	}
	bar := newBar(f, what, total)
	return func(n int) { bar.Set(n) }, func() { bar.Clear() }
}

func newBar(f *os.File, what string, total int) *progressbar.ProgressBar {
	return progressbar.NewOptions(total, progressbar.OptionSetDescription(what), progressbar.OptionSetWriter(f), progressbar.OptionShowCount(),
		progressbar.OptionShowIts(), progressbar.OptionThrottle(100*time.Millisecond), progressbar.OptionClearOnFinish())
}

func verifyCommand() *cobra.Command {
	var parallel int
	var driver string
	c := &cobra.Command{
		Use: "verify RECORD...", Short: "Play records again and compare everything", Args: cobra.MinimumNArgs(1),
		Long: "Verify plays the actions of each record again, in fresh sandboxes, and compares what was seen, the world's state and the reward.\nA folder stands for the records in it. Exit status 1 means that a record could not be reproduced.",
		RunE: func(cmd *cobra.Command, args []string) error {
			return eachRecord(args, func(file string) (bool, error) { return verify(cmd, file, driver, parallel) })
		},
	}
	driverFlag(c, &driver)
	c.Flags().IntVar(&parallel, "parallel", runtime.NumCPU(), "episodes at once")
	return c
}

// eachRecord checks one record after the other.
func eachRecord(args []string, check func(file string) (ok bool, err error)) error {
	files, err := recordFiles(args)
	if err != nil {
		return err
	}
	failed := 0
	for _, file := range files {
		ok, err := check(file)
		if err != nil {
			return err
		}
		if !ok {
			failed++
		}
	}
	return exitCode(failed, len(files)-failed)
}

func recordFiles(args []string) ([]string, error) {
	var files []string
	for _, a := range args {
		info, err := os.Stat(a)
		if err != nil {
			return nil, fmt.Errorf("read record: %w", err)
		}
		if !info.IsDir() {
			files = append(files, a)
			continue
		}
		before := len(files)
		err = filepath.WalkDir(a, func(path string, d os.DirEntry, err error) error {
			if err == nil && !d.IsDir() && bench.IsRecord(path) {
				files = append(files, path)
			}
			return err
		})
		if err != nil {
			return nil, fmt.Errorf("list records: %w", err)
		}
		if len(files) == before {
			return nil, fmt.Errorf("no record (.jsonl, .jsonl.gz) in %s", a)
		}
	}
	return files, nil
}

func verify(cmd *cobra.Command, file, driver string, parallel int) (bool, error) {
	r, problems, err := loadWhole(file)
	if err != nil {
		return false, err
	}
	spec, _, err := openEnv(cmd.Context(), r.Env, driver, r.Split)
	if err != nil {
		return false, fmt.Errorf("verify %s: %w", file, err)
	}
	defer spec.Sandboxes.Close()
	progress, done := progressBar(cmd.ErrOrStderr(), "verify "+filepath.Base(file), r.Tasks*r.Trials)
	found, err := bench.Replay(cmd.Context(), spec, r, parallel, progress)
	done()
	if err != nil {
		return false, fmt.Errorf("verify %s: %w", file, err)
	}
	return report(cmd.OutOrStdout(), file, r, append(problems, found...), 20), nil
}

// loadWhole loads a record, none of whose lines may be torn.
func loadWhole(file string) (*bench.Record, []bench.Problem, error) {
	r, problems, err := bench.Load(file)
	if err != nil {
		return nil, nil, err
	}
	for _, p := range problems {
		if p.Torn {
			return nil, nil, fmt.Errorf("read record %s: %s; %d of %d episodes can be read", file, p, len(r.Episodes), r.Tasks*r.Trials)
		}
	}
	return r, problems, nil
}

// report prints what is wrong with a record, at most so many failures, or that it is ok, and says whether it is.
func report(w io.Writer, file string, r *bench.Record, problems []bench.Problem, most int) (ok bool) {
	hard := 0
	for _, p := range problems {
		mark := "FAIL"
		if p.Soft {
			mark = "note"
		} else {
			hard++
		}
		if hard <= most {
			fmt.Fprintf(w, "%s %s: %s\n", mark, file, p)
		}
	}
	if hard > most {
		fmt.Fprintf(w, "FAIL %s: and %d more\n", file, hard-most)
	}
	if hard == 0 {
		fmt.Fprintf(w, "ok   %s: %d episodes of %s in %s, split %s\n", file, len(r.Episodes), r.Policy, r.Env, r.Split)
	}
	return hard == 0
}

func boardCommand() *cobra.Command {
	var asJSON bool
	c := &cobra.Command{Use: "board [FOLDER]", Short: "Show the leaderboard that the records in a folder make (results by default)", Args: cobra.MaximumNArgs(1), RunE: func(cmd *cobra.Command, args []string) error {
		dir := "results"
		if len(args) > 0 {
			dir = args[0]
		}
		records, err := bench.LoadResults(dir)
		if err != nil {
			return err
		}
		if len(records) == 0 {
			return fmt.Errorf("no records in %s: want <environment>/<policy>.jsonl", dir)
		}
		boards, err := bench.Boards(records)
		if err != nil {
			return err
		}
		if asJSON {
			rows := []summary{}
			for _, b := range boards {
				for _, r := range b.Rows {
					rows = append(rows, summarise(r))
				}
			}
			return printJSON(cmd.OutOrStdout(), rows)
		}
		for _, b := range boards {
			fmt.Fprintf(cmd.OutOrStdout(), "%s, split %s\n%s", b.Env, b.Split, b.Show(false))
		}
		return nil
	}}
	c.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return c
}

func showCommand() *cobra.Command {
	var index, trial int
	c := &cobra.Command{Use: "show RECORD", Short: "Show what is in a record, or one of its episodes turn by turn", Args: cobra.ExactArgs(1), RunE: func(cmd *cobra.Command, args []string) error {
		r, problems, err := bench.Load(args[0])
		if err != nil {
			return err
		}
		w := cmd.OutOrStdout()
		for _, p := range problems {
			fmt.Fprintf(cmd.ErrOrStderr(), "mcpgym: %s: %s\n", args[0], p)
		}
		if index < 0 {
			fmt.Fprintf(w, "%s in %s, split %s: %d tasks, %d trials each, seed %d\nrecorded %s at commit %s on %s\nplay again: %s\n\n", r.Policy, r.Env, r.Split, r.Tasks, r.Trials, r.Seed,
				r.Provenance.Date, r.Provenance.Commit, strings.Join(r.Provenance.Drivers, ", "), r.Provenance.Command)
			if t := r.Training; t != nil {
				fmt.Fprintf(w, "trained from seed %d by: %s\nweights %s, sampled at temperature %g, at most %d tokens a turn, on %s\n\n", t.Seed, t.Command, t.Weights, t.Temperature, t.MaxTokens, t.Arithmetic)
			}
			for _, e := range r.Episodes {
				outcome := "void"
				if e.Score != nil {
					outcome = fmt.Sprintf("%+.3f", e.Score.Value)
				}
				fmt.Fprintf(w, "%4d.%d %7s  %-22s %s\n", e.Index, e.Trial, outcome, e.Family, e.Prompt)
			}
			return nil
		}
		e, err := findEpisode(r, index, trial)
		if err != nil {
			return fmt.Errorf("show %s: %w", args[0], err)
		}
		fmt.Fprintf(w, "%s (%s), seed %d\n\n%s\n", e.Task, e.Family, e.Seed, e.Prompt)
		for n, s := range e.Steps {
			fmt.Fprintf(w, "\nstep %d\n", n)
			showStep(w, s)
		}
		fmt.Fprintln(w)
		showOutcome(w, e.End, e.Score, e.Void)
		return nil
	}}
	c.Flags().IntVar(&index, "episode", -1, "index of the episode's task")
	c.Flags().IntVar(&trial, "trial", 0, "trial of the task")
	return c
}

// findEpisode finds an episode of a record, or says which there are.
func findEpisode(r *bench.Record, index, trial int) (bench.Episode, error) {
	i := slices.IndexFunc(r.Episodes, func(e bench.Episode) bool { return e.Index == index && e.Trial == trial })
	if i < 0 {
		return bench.Episode{}, fmt.Errorf("no episode %d with trial %d, only 0 to %d with %d trials", index, trial, r.Tasks-1, r.Trials)
	}
	return r.Episodes[i], nil
}
