package main

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/mcpgym/mcpgym/policies/toolcall"
)

func evalCommand() *cobra.Command {
	var p playing
	var s speaking
	var t trained
	var name string
	c := &cobra.Command{
		Use: "eval CHECKPOINT", Short: "Play a trained model in an environment", Args: cobra.ExactArgs(1),
		Long:    "Eval plays as run does, by what a model in a folder of the Hugging Face layout says. Many episodes at once share its work.",
		Example: "  mcpgym eval runs/weather/model --env Weather-v0 --split test --episodes 200",
		RunE: func(cmd *cobra.Command, args []string) (err error) {
			if err := errors.Join(p.check(), s.check()); err != nil {
				return err
			}
			if p.training, err = t.training(cmd, args[0], s); err != nil {
				return err
			}
			model, sampling, err := s.open(args[0], true)
			if err != nil {
				return err
			}
			defer func() { err = errors.Join(err, model.Close()) }()
			command := fmt.Sprintf("eval %s --env %s --temperature %g --max-tokens %d", args[0], p.env, s.temperature, s.maxTokens)
			if s.adapter != "" {
				command += " --adapter " + s.adapter
			}
			if name == "" {
				name = modelName(args[0])
			}
			return p.play(cmd, toolcall.Policy{Engine: model, Sampling: sampling}, name, command)
		},
	}
	p.flags(c, 64)
	s.flags(c)
	t.flags(c)
	c.Flags().StringVar(&name, "name", "", "name of the policy (default that of the folder)")
	return c
}
