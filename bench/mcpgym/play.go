package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/mcpgym/mcpgym/envs"
	"github.com/mcpgym/mcpgym/sandboxes"
)

const playHelp = `  TOOL key=value ...   call a tool; a value with spaces in double quotes
  TOOL {"key": ...}    call a tool with JSON arguments
  answer TEXT          give the final answer; "ANSWER:" is put before it
  tools, tools TOOL    list the tools, or describe one
  task                 show the task again
  quit                 give up`

func playCommand() *cobra.Command {
	var split, driver string
	var index int
	c := &cobra.Command{
		Use: "play ENV", Short: "Play an episode yourself, and see how it is scored", Args: cobra.ExactArgs(1), ValidArgsFunction: envNames,
		RunE: func(cmd *cobra.Command, args []string) error {
			if index < 0 {
				return fmt.Errorf("--index is %d, want 0 or more", index)
			}
			spec, src, err := openEnv(cmd.Context(), args[0], driver, split)
			if err != nil {
				return err
			}
			defer spec.Sandboxes.Close()
			env, err := envs.New(spec)
			if err != nil {
				return err
			}
			defer env.Close()
			o, err := env.Reset(cmd.Context(), src.Task(index))
			if err != nil {
				return err
			}
			w := cmd.OutOrStdout()
			fmt.Fprintf(w, "%s\n\nTask %s: %s\n\n%s\n", spec.System, env.Trajectory().Task.ID, o.Text, playHelp)
			return play(cmd, env, bufio.NewScanner(cmd.InOrStdin()), w)
		},
	}
	c.Flags().StringVar(&split, "split", "", "split (default train)")
	driverFlag(c, &driver)
	c.Flags().IntVar(&index, "index", 0, "index of the task in the split")
	return c
}

func play(cmd *cobra.Command, env *envs.Env, lines *bufio.Scanner, w io.Writer) error {
	tools := env.Trajectory().Tools
	for n := 0; ; {
		fmt.Fprint(w, "\n> ")
		if !lines.Scan() {
			fmt.Fprintln(w, "\nthe episode was given up: void, no reward")
			return lines.Err()
		}
		word, rest, _ := strings.Cut(strings.TrimSpace(lines.Text()), " ")
		rest = strings.TrimSpace(rest)
		var action envs.Action
		switch word {
		case "":
			continue
		case "help", "?":
			fmt.Fprintln(w, playHelp)
			continue
		case "task":
			fmt.Fprintln(w, env.Trajectory().Task.Prompt)
			continue
		case "quit", "exit":
			fmt.Fprintln(w, "the episode was given up: void, no reward")
			return nil
		case "tools":
			i := slices.IndexFunc(tools, func(t sandboxes.Tool) bool { return t.Name == rest })
			for k, t := range tools {
				if i < 0 || i == k {
					fmt.Fprintln(w, describe(t, i == k))
				}
			}
			continue
		case "answer":
			if !strings.HasPrefix(strings.ToUpper(rest), "ANSWER:") {
				rest = "ANSWER: " + rest
			}
			action.Text = rest
		default:
			args, err := parseArgs(rest, tools, word)
			if err != nil {
				fmt.Fprintln(w, err)
				continue
			}
			action.Calls = []envs.Call{{ID: fmt.Sprintf("call_%d", n), Name: word, Arguments: args}}
			n++
		}
		s, err := env.Step(cmd.Context(), action)
		if err != nil {
			return err
		}
		for _, r := range s.Observation.Results {
			showResult(w, r)
		}
		if s.Terminated || s.Truncated {
			t := env.Trajectory()
			fmt.Fprintln(w)
			showOutcome(w, t.End, t.Score, t.Void)
			return nil
		}
	}
}

// parseArgs reads what a person typed after a tool's name: a JSON object, or key=value pairs. Values are numbers or truth
// values where the tool's schema says so, else texts.
func parseArgs(s string, tools []sandboxes.Tool, tool string) (json.RawMessage, error) {
	if strings.HasPrefix(s, "{") {
		return json.RawMessage(s), nil
	}
	var schema struct {
		Properties map[string]struct {
			Type any `json:"type"`
		} `json:"properties"`
	}
	for _, t := range tools {
		if t.Name == tool {
			if err := json.Unmarshal(t.InputSchema, &schema); err != nil {
				return nil, fmt.Errorf("read the schema of %s: %w", tool, err)
			}
		}
	}
	args := map[string]any{}
	for s = strings.TrimSpace(s); s != ""; s = strings.TrimSpace(s) {
		key, rest, ok := strings.Cut(s, "=")
		if !ok || strings.ContainsAny(key, ` "`) {
			return nil, fmt.Errorf("write key=value, or a JSON object; cannot read %q", s)
		}
		var value string
		if strings.HasPrefix(rest, `"`) {
			if value, s, ok = strings.Cut(rest[1:], `"`); !ok {
				return nil, fmt.Errorf("the quote after %s= is not closed", key)
			}
		} else {
			value, s, _ = strings.Cut(rest, " ")
		}
		args[key] = value
		if typ := schema.Properties[key].Type; typ != "string" && json.Valid([]byte(value)) {
			args[key] = json.RawMessage(value)
		}
	}
	return json.Marshal(args)
}

// describe writes a tool out: its parameters in one line, and with long its descriptions.
func describe(t sandboxes.Tool, long bool) string {
	var schema struct {
		Properties map[string]struct {
			Type        any    `json:"type"`
			Enum        []any  `json:"enum"`
			Description string `json:"description"`
		} `json:"properties"`
		Required []string `json:"required"`
	}
	if err := json.Unmarshal(t.InputSchema, &schema); err != nil {
		return t.Name + ": " + err.Error()
	}
	names := make([]string, 0, len(schema.Properties))
	for n := range schema.Properties {
		names = append(names, n)
	}
	// required ones first, then by name
	slices.SortFunc(names, func(a, b string) int {
		if x, y := slices.Contains(schema.Required, a), slices.Contains(schema.Required, b); x != y {
			if x {
				return -1
			}
			return 1
		}
		return strings.Compare(a, b)
	})
	var b strings.Builder
	b.WriteString(t.Name)
	for _, n := range names {
		if slices.Contains(schema.Required, n) {
			fmt.Fprintf(&b, " %s", n)
		} else {
			fmt.Fprintf(&b, " [%s]", n)
		}
	}
	if !long {
		return b.String()
	}
	fmt.Fprintf(&b, "\n    %s\n", t.Description)
	for _, n := range names {
		p := schema.Properties[n]
		fmt.Fprintf(&b, "    %-12s %v", n, p.Type)
		if len(p.Enum) > 0 {
			fmt.Fprintf(&b, ", one of %v", p.Enum)
		}
		if p.Description != "" {
			fmt.Fprintf(&b, ": %s", p.Description)
		}
		b.WriteByte('\n')
	}
	return b.String()
}

func showStep(w io.Writer, s envs.Step) {
	if s.Action.Reasoning != "" {
		fmt.Fprintf(w, "  (thinks) %s\n", s.Action.Reasoning)
	}
	if s.Action.Text != "" {
		fmt.Fprintf(w, "  %s\n", s.Action.Text)
	}
	for i, c := range s.Action.Calls {
		args := string(c.Arguments)
		if c.Malformed != "" {
			args = "malformed: " + c.Malformed
		}
		fmt.Fprintf(w, "  %s %s\n", c.Name, args)
		if i < len(s.Observation.Results) {
			showResult(w, s.Observation.Results[i])
		}
	}
}

func showResult(w io.Writer, r envs.CallResult) {
	mark := ""
	if r.Status != envs.StatusOK {
		mark = fmt.Sprintf("[%s] ", r.Status)
	}
	fmt.Fprintf(w, "    %s%s\n", mark, strings.ReplaceAll(r.Text, "\n", "\n    "))
	if r.Defect != "" {
		fmt.Fprintf(w, "    [the server's fault: %s]\n", r.Defect)
	}
}

// showOutcome explains a score part by part.
func showOutcome(w io.Writer, end envs.End, score *envs.Score, void *sandboxes.Fault) {
	if void != nil {
		fmt.Fprintf(w, "void: %v\n", void)
		return
	}
	fmt.Fprintf(w, "ended by: %s\n", end)
	if score == nil {
		fmt.Fprintln(w, "not scored")
		return
	}
	for _, p := range score.Parts {
		value := "  not scored"
		if p.Score != nil {
			sign := "+"
			if p.Kind == envs.Penalty {
				sign = "-"
			}
			value = fmt.Sprintf("%s%.2f x %.2f", sign, p.Weight, *p.Score)
		}
		fmt.Fprintf(w, "  %-14s %-8s %-13s %s\n", p.Name, p.Kind, value, p.Reason)
	}
	verdict := "failure (gates not met: credits do not count)"
	if score.Success {
		verdict = "success"
	}
	fmt.Fprintf(w, "reward %.3f, %s\n", score.Value, verdict)
}
