package main

import (
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/mcpgym/mcpgym/bench"
	"github.com/mcpgym/mcpgym/envs"
	"github.com/mcpgym/mcpgym/policies"
	"github.com/mcpgym/mcpgym/policies/bpe"
	"github.com/mcpgym/mcpgym/policies/engine"
	"github.com/mcpgym/mcpgym/policies/sft"
	"github.com/mcpgym/mcpgym/policies/toolcall"
)

// left counts what is not learned, by the reason.
type left map[string]int

func (c left) String() string {
	var parts []string
	for _, why := range slices.Sorted(maps.Keys(c)) {
		parts = append(parts, fmt.Sprintf("%d that %s", c[why], why))
	}
	return strings.Join(parts, ", ")
}

// episodes gives those to learn from: of records, or without any those that are played, which it gives as a record too.
func (l *lessons) episodes(cmd *cobra.Command, files []string) (all []*envs.Trajectory, gold *bench.Record, counts left, err error) {
	counts = left{}
	take := func(what string, r *bench.Record, spec envs.Spec) error {
		if r.Split != "train" {
			l.judged = append(l.judged, fmt.Sprintf("the split %s of %s is learned, by which policies are judged", r.Split, r.Env))
		}
		progress, done := progressBar(cmd.ErrOrStderr(), "read "+what, len(r.Episodes))
		defer done()
		for i, e := range r.Episodes {
			progress(i)
			switch {
			case e.Void != nil:
				counts["were void"]++
				continue
			case (l.OnlySuccess || l.Env != "") && (e.Score == nil || !e.Score.Success):
				counts["failed"]++
				continue
			}
			t, err := r.Trajectory(spec, e)
			if err != nil {
				return err
			}
			if !writes(t) {
				counts["have calls that cannot be read"]++
				continue
			}
			all = append(all, t)
		}
		return nil
	}
	if files == nil {
		spec, _, err := openEnv(cmd.Context(), l.Env, l.Driver, l.Split)
		if err != nil {
			return nil, nil, nil, err
		}
		defer spec.Sandboxes.Close()
		n := l.Episodes + l.DevEpisodes
		progress, done := progressBar(cmd.ErrOrStderr(), "play gold", n)
		gold, err = bench.Run(cmd.Context(), bench.Config{Spec: spec, Policy: policies.Oracle{}, Name: "oracle", Split: l.Split, Tasks: n, Trials: 1, Seed: l.Seed,
			Parallel: runtime.NumCPU(), Progress: progress})
		done()
		if err != nil {
			return nil, nil, nil, err
		}
		gold.Provenance = provenance(cmd.Context(), l.Driver, fmt.Sprintf("run --env %s --policy oracle --split %s --episodes %d --seed %d", l.Env, l.Split, n, l.Seed))
		if err := take("gold", gold, spec); err != nil {
			return nil, nil, nil, err
		}
		return all, gold, counts, nil
	}
	files, err = recordFiles(files)
	if err != nil {
		return nil, nil, nil, err
	}
	for _, file := range files {
		r, problems, err := loadWhole(file)
		if err != nil {
			return nil, nil, nil, err
		}
		spec, err := rules(cmd.Context(), r)
		if err == nil {
			err = take(filepath.Base(file), r, spec)
		}
		if err != nil {
			return nil, nil, nil, fmt.Errorf("learn from %s: %w", file, err)
		}
		for _, p := range problems {
			fmt.Fprintf(cmd.ErrOrStderr(), "mcpgym: %s: %s\n", file, p)
		}
	}
	return all, nil, counts, nil
}

// writes says whether a chat can be made of an episode. The tokens that another model may have sampled are forgotten.
func writes(t *envs.Trajectory) bool {
	t.Steps = slices.Clone(t.Steps)
	for i := range t.Steps {
		t.Steps[i].Action.Sample = nil
		if _, err := toolcall.Message(t.Steps[i].Action); err != nil {
			return false
		}
	}
	return len(t.Steps) > 0
}

// split divides episodes into those to learn and the last, by which that is judged.
func (l *lessons) split(n int) (train int, err error) {
	if train = n - l.DevEpisodes; train < 1 {
		return 0, fmt.Errorf("nothing to learn: there are %d episodes, and --dev-episodes takes %d", n, l.DevEpisodes)
	}
	return train, nil
}

// learnTokens makes a tokenizer of what is said in the episodes to learn, and writes it with the small chat template.
func (l *lessons) learnTokens(cmd *cobra.Command, played []*envs.Trajectory, dir string) error {
	train, err := l.split(len(played))
	if err != nil {
		return err
	}
	progress, done := progressBar(cmd.ErrOrStderr(), "make the tokenizer", train)
	defer done()
	template := toolcall.Small()
	var failed error
	tok, err := bpe.Train(func(yield func(string) bool) {
		for i, t := range played[:train] {
			progress(i)
			chat := toolcall.Prompt(t.System, t.Task.Prompt)
			for _, s := range t.Steps {
				m, err := toolcall.Message(s.Action)
				failed = errors.Join(failed, err)
				chat = append(append(chat, m), toolcall.Replies(s.Observation)...)
			}
			text, err := template.Render(toolcall.Tools(t.Tools), chat, false)
			if failed = errors.Join(failed, err); failed != nil || !yield(text) {
				return
			}
		}
	}, l.Vocab, toolcall.SmallTokens)
	if err := errors.Join(failed, err); err != nil {
		return err
	}
	return toolcall.WriteSmall(dir, tok)
}

// examples are the episodes as tokens, but for those that are longer than the model takes.
func examples(cmd *cobra.Command, codec engine.Codec, most int, played []*envs.Trajectory, counts left) ([]sft.Example, error) {
	progress, done := progressBar(cmd.ErrOrStderr(), "make tokens", len(played))
	defer done()
	var out []sft.Example
	for i, t := range played {
		if err := cmd.Context().Err(); err != nil {
			return nil, err
		}
		progress(i)
		s, err := toolcall.NewSequence(codec, t)
		if err != nil {
			return nil, err
		}
		if len(s.Tokens) > most {
			counts[fmt.Sprintf("are longer than the %d tokens that the model takes", most)]++
			continue
		}
		out = append(out, sft.Example{Tokens: s.Tokens, Mask: s.Mask})
	}
	if len(out) == 0 {
		if len(counts) > 0 {
			return nil, fmt.Errorf("nothing to learn: of the episodes, %v", counts)
		}
		return nil, errors.New("nothing to learn: there are no episodes")
	}
	return out, nil
}

// size sums up examples.
func size(examples []sft.Example) (tokens, learned, longest int) {
	for _, x := range examples {
		tokens += len(x.Tokens)
		longest = max(longest, len(x.Tokens))
		for _, m := range x.Mask {
			if m {
				learned++
			}
		}
	}
	return tokens, learned, longest
}
