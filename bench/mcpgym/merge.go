package main

import (
	"errors"
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"github.com/mcpgym/mcpgym/policies/lm"
)

func mergeCommand() *cobra.Command {
	return &cobra.Command{
		Use: "merge BASE ADAPTER OUT", Short: "Write a model with an adapter added to its weights", Args: cobra.ExactArgs(3),
		Long:    "Merge adds an adapter, in the layout of PEFT, to the weights of the model that it was trained on, and writes the sum as a model of its own.",
		Example: "  mcpgym merge Qwen3-0.6B runs/qwen/adapter models/qwen-weather",
		RunE: func(cmd *cobra.Command, args []string) (err error) {
			out := args[2]
			if _, err := os.Lstat(out); err == nil {
				return fmt.Errorf("%s exists already: name another folder", out)
			}
			if err := writable(out); err != nil {
				return err
			}
			model, err := lm.Open(args[0], lm.Options{Adapter: args[1]})
			if err != nil {
				return err
			}
			if err := errors.Join(model.Merge(out), model.Close()); err != nil {
				return err
			}
			fmt.Fprintf(cmd.OutOrStdout(), "%s is %s with %s\n", out, args[0], args[1])
			return nil
		},
	}
}
