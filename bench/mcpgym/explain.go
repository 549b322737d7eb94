package main

import (
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/mcpgym/mcpgym/bench"
	"github.com/mcpgym/mcpgym/envs"
)

func explainCommand() *cobra.Command {
	var index, trial int
	var asJSON bool
	c := &cobra.Command{
		Use: "explain RECORD --episode N", Short: "Show what the score of a recorded episode is made of", Args: cobra.ExactArgs(1),
		Long: "Explain scores one episode of a record again, by the present rules of its environment, and shows what each part has added, and which results\nshow what the answer follows from. Exit status 1 means that the recorded score is another one.",
		RunE: func(cmd *cobra.Command, args []string) error {
			r, problems, err := bench.Load(args[0])
			if err != nil {
				return err
			}
			episode, err := findEpisode(r, index, trial)
			if err != nil {
				return fmt.Errorf("explain %s: %w", args[0], err)
			}
			spec, err := rules(cmd.Context(), r)
			if err != nil {
				return fmt.Errorf("explain %s: %w", args[0], err)
			}
			e, err := bench.Explain(spec, r, episode)
			if err != nil {
				return fmt.Errorf("explain %s: %w", args[0], err)
			}
			for _, p := range problems {
				if p.Episode == index && p.Trial == trial {
					e.Problems = append(e.Problems, p)
					continue
				}
				fmt.Fprintf(cmd.ErrOrStderr(), "mcpgym: %s: %s\n", args[0], p)
			}
			if asJSON {
				err = printJSON(cmd.OutOrStdout(), struct {
					bench.Explanation
					Problems []problemJSON `json:"problems"`
				}{e, problemsJSON(e.Problems)})
			} else {
				showExplanation(cmd.OutOrStdout(), e)
			}
			if err == nil && len(e.Problems) > 0 {
				err = errFailed
			}
			return err
		},
	}
	c.Flags().IntVar(&index, "episode", 0, "index of the episode's task")
	c.Flags().IntVar(&trial, "trial", 0, "trial of the task")
	c.Flags().BoolVar(&asJSON, "json", false, "print one line of JSON")
	c.MarkFlagRequired("episode")
	return c
}

func showExplanation(w io.Writer, e bench.Explanation) {
	fmt.Fprintf(w, "%s (%s), played by %s in %s\n", e.Task, e.Family, e.Policy, e.Env)
	switch {
	case e.Void != nil:
		fmt.Fprintf(w, "void, not scored: %v\n", e.Void)
	case e.Value == nil:
		fmt.Fprintln(w, "not scored")
	default:
		showScore(w, e)
	}
	for _, p := range e.Problems {
		fmt.Fprintf(w, "FAIL %s\n", p)
	}
}

func showScore(w io.Writer, e bench.Explanation) {
	fmt.Fprintf(w, "ended by: %s\n\n%-14s %-8s %6s %6s %7s  %s\n", e.End, "part", "kind", "weight", "score", "earned", "reason")
	for _, p := range e.Parts {
		fmt.Fprintf(w, "%-14s %-8s %6.3f %6.3f %+7.3f  %s\n", p.Name, p.Kind, p.Weight, *p.Score, p.Earned, p.Reason)
	}
	verdict := "failure (gates not met: credits do not count)"
	if *e.Success {
		verdict = "success"
	}
	fmt.Fprintf(w, "reward %.3f, %s\n", *e.Value, verdict)
	if len(e.Evidence) > 0 {
		fmt.Fprintln(w, "\nthe right answer follows from")
	}
	for _, s := range e.Evidence {
		if s.Step < 0 {
			fmt.Fprintf(w, "  shown by no result: %s\n", s.Fact)
			continue
		}
		path := string(s.Path)
		if path == "" {
			path = "as a whole"
		}
		fmt.Fprintf(w, "  step %d, call %d, %s %s: %s\n", s.Step, s.Call, s.Tool, path, s.Fact)
	}
	if len(e.BadCalls) > 0 {
		fmt.Fprintln(w, "\nbad calls")
	}
	for _, c := range e.BadCalls {
		why := string(c.Status)
		if len(c.Unknown) > 0 && c.Status == envs.StatusOK {
			why = "parameters that it does not know: " + strings.Join(c.Unknown, ", ")
		}
		fmt.Fprintf(w, "  step %d, call %d, %s: %s\n", c.Step, c.Call, c.Tool, why)
	}
	if len(e.References)+len(e.Claims) > 0 {
		fmt.Fprintln(w, "\nmade up")
	}
	for _, r := range e.References {
		fmt.Fprintf(w, "  reference %.60q: stands nowhere before its call\n", r)
	}
	for _, c := range e.Claims {
		fmt.Fprintf(w, "  claim %.60q: %s\n", c.Text, c.Reason)
	}
}
