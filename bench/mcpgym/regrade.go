package main

import (
	"context"
	"fmt"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/mcpgym/mcpgym/bench"
	"github.com/mcpgym/mcpgym/envs"
)

func regradeCommand() *cobra.Command {
	var asJSON bool
	c := &cobra.Command{
		Use: "regrade RECORD...", Short: "Score the episodes of records again, without playing them", Args: cobra.MinimumNArgs(1),
		Long: "Regrade computes the reward of every recorded episode from the record alone, by the present rules of its environment. Nothing is played.\nA folder stands for the records in it. Exit status 1 means that a recorded score is not what the rules give now.",
		RunE: func(cmd *cobra.Command, args []string) error {
			return eachRecord(args, func(file string) (bool, error) { return regrade(cmd, file, asJSON) })
		},
	}
	c.Flags().BoolVar(&asJSON, "json", false, "print one line of JSON for each record")
	return c
}

func regrade(cmd *cobra.Command, file string, asJSON bool) (bool, error) {
	r, problems, err := loadWhole(file)
	if err != nil {
		return false, err
	}
	spec, err := rules(cmd.Context(), r)
	if err != nil {
		return false, fmt.Errorf("regrade %s: %w", file, err)
	}
	progress, done := progressBar(cmd.ErrOrStderr(), "regrade "+filepath.Base(file), len(r.Episodes))
	found, err := bench.Regrade(cmd.Context(), spec, r, progress)
	done()
	if err != nil {
		return false, fmt.Errorf("regrade %s: %w", file, err)
	}
	problems = append(problems, found...)
	if !asJSON {
		return report(cmd.OutOrStdout(), file, r, problems, len(problems)), nil
	}
	return len(problems) == 0, printJSON(cmd.OutOrStdout(), struct {
		File     string        `json:"file"`
		Env      string        `json:"env"`
		Policy   string        `json:"policy"`
		Split    string        `json:"split"`
		Episodes int           `json:"episodes"`
		Void     int           `json:"void"` // of them; not scored
		Problems []problemJSON `json:"problems"`
	}{file, r.Env, r.Policy, r.Split, len(r.Episodes), bench.Summarise(r).Void, problemsJSON(problems)})
}

// rules gives the tasks and the reward that a record was made with.
func rules(ctx context.Context, r *bench.Record) (envs.Spec, error) {
	entry, err := bench.FindEnv(r.Env)
	if err != nil {
		return envs.Spec{}, err
	}
	if err := entry.Split(r.Split); err != nil {
		return envs.Spec{}, err
	}
	return entry.Scoring(ctx)
}

// problemJSON is a problem of a record. Without an episode it is one of the file as a whole. Recorded and Now are null where
// the score lacks what they are about.
type problemJSON struct {
	Episode  *int   `json:"episode,omitempty"`
	Trial    *int   `json:"trial,omitempty"`
	Step     *int   `json:"step,omitempty"`
	What     string `json:"what"`
	Recorded any    `json:"recorded"`
	Now      any    `json:"now"`
}

func problemsJSON(problems []bench.Problem) []problemJSON {
	list := make([]problemJSON, len(problems))
	for i, p := range problems {
		list[i] = problemJSON{What: p.What, Recorded: p.Recorded, Now: p.Now}
		if p.Episode >= 0 {
			list[i].Episode, list[i].Trial = &p.Episode, &p.Trial
		}
		if p.Step >= 0 {
			list[i].Step = &p.Step
		}
	}
	return list
}
