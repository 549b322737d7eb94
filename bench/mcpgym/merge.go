package main

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/mcpgym/mcpgym/policies/lm"
)

// dtypes are what numbers can be stored as, by PyTorch's names.
var dtypes = map[string]lm.DType{"float32": lm.F32, "bfloat16": lm.BF16}

func mergeCommand() *cobra.Command {
	var dtype string
	c := &cobra.Command{
		Use: "merge BASE [ADAPTER] OUT", Short: "Write a model with an adapter added to its weights, or in another precision", Args: cobra.RangeArgs(2, 3),
		Long: "Merge adds an adapter, in the layout of PEFT, to the weights of the model that it was trained on, and writes the sum as a model of its own. With\n" +
			"--dtype its numbers are stored as that, which needs no adapter.",
		Example: "  mcpgym merge Qwen3-0.6B runs/qwen/adapter models/qwen-weather\n" +
			"  mcpgym merge runs/weather/model models/weather --dtype bfloat16",
		RunE: func(cmd *cobra.Command, args []string) (err error) {
			base, adapter, out := args[0], "", args[len(args)-1]
			if len(args) == 3 {
				adapter = args[1]
			}
			d, known := dtypes[dtype]
			switch {
			case dtype != "" && !known:
				return fmt.Errorf("no dtype %q, only %s", dtype, strings.Join(slices.Sorted(maps.Keys(dtypes)), ", "))
			case adapter == "" && dtype == "":
				return errors.New("want an ADAPTER to add, or --dtype: else the model is what it was")
			case exists(out):
				return fmt.Errorf("%s exists already: name another folder", out)
			}
			if err := writable(out); err != nil {
				return err
			}
			model, err := lm.Open(base, lm.Options{Adapter: adapter})
			if err != nil {
				return err
			}
			if err := errors.Join(model.Merge(out, d), model.Close()); err != nil {
				return err
			}
			what := base
			if adapter != "" {
				what += " with " + adapter
			}
			if dtype != "" {
				what += " in " + dtype
			}
			fmt.Fprintf(cmd.OutOrStdout(), "%s is %s\n", out, what)
			return nil
		},
	}
	c.Flags().StringVar(&dtype, "dtype", "", "what numbers are stored as: "+strings.Join(slices.Sorted(maps.Keys(dtypes)), ", ")+" (default as in BASE)")
	return c
}
