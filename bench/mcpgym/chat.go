package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/mcpgym/mcpgym/envs"
	"github.com/mcpgym/mcpgym/policies"
	"github.com/mcpgym/mcpgym/policies/engine"
	"github.com/mcpgym/mcpgym/policies/toolcall"
)

func chatCommand() *cobra.Command {
	var s speaking
	var env, split, driver string
	var index int
	var seed uint64
	c := &cobra.Command{
		Use: "chat CHECKPOINT", Short: "Talk with a trained model, or watch it play a task", Args: cobra.ExactArgs(1),
		Long: "Chat reads what you say line by line and shows what the model says as it says it. Ctrl-C ends what it says; where it says nothing, the chat,\n" +
			"as the end of input does. With --env it plays a task instead, and you see its turns, what the tools answer, and how it is scored.",
		Example: "  mcpgym chat runs/weather/model --env Weather-v0 --task 3\n  mcpgym chat SmolLM2-135M-Instruct",
		RunE: func(cmd *cobra.Command, args []string) (err error) {
			if err := s.check(); err != nil {
				return err
			}
			if index < 0 {
				return fmt.Errorf("--task is %d, want 0 or more", index)
			}
			if env == "" {
				for _, name := range []string{"split", "task", "driver"} {
					if cmd.Flags().Changed(name) {
						return fmt.Errorf("--%s is for --env", name)
					}
				}
			}
			model, sampling, err := s.open(args[0], env != "")
			if err != nil {
				return err
			}
			defer func() { err = errors.Join(err, model.Close()) }()
			sampling.Seed = seed
			w := cmd.OutOrStdout()
			if env == "" {
				// An interrupt is not the end here: it is told from others before the context that it ends.
				interrupts := make(chan os.Signal, 1)
				signal.Notify(interrupts, os.Interrupt)
				defer signal.Stop(interrupts)
				ctx, stop := signal.NotifyContext(context.WithoutCancel(cmd.Context()), syscall.SIGTERM)
				defer stop()
				return chat(ctx, model, sampling, cmd.InOrStdin(), w, interrupts)
			}
			spec, src, err := openEnv(cmd.Context(), env, driver, split)
			if err != nil {
				return err
			}
			defer spec.Sandboxes.Close()
			return watch(cmd.Context(), spec, src.Task(index), model, sampling, w)
		},
	}
	s.flags(c)
	f := c.Flags()
	f.StringVar(&env, "env", "", "environment of a task to play")
	f.StringVar(&split, "split", "test", "split of the task")
	f.IntVar(&index, "task", 0, "index of the task in the split")
	driverFlag(c, &driver)
	f.Uint64Var(&seed, "seed", 1, "seed of sampling")
	c.RegisterFlagCompletionFunc("env", envNames)
	return c
}

// voice shows tokens as text while there are ever more of them. A letter that is not whole yet is held back.
type voice struct {
	w      io.Writer
	codec  engine.Codec
	tokens []int32
	shown  int // bytes
}

func (v *voice) say(token int32) {
	v.tokens = append(v.tokens, token)
	v.show(strings.TrimRight(v.codec.Decode(v.tokens), "\uFFFD"))
}

func (v *voice) show(text string) {
	if v.shown < len(text) {
		fmt.Fprint(v.w, text[v.shown:])
		v.shown = len(text)
	}
}

// end ends a line, and what was said.
func (v *voice) end() {
	v.show(v.codec.Decode(v.tokens))
	fmt.Fprintln(v.w)
	v.tokens, v.shown = nil, 0
}

// watch plays a task and shows it as it goes.
func watch(ctx context.Context, spec envs.Spec, task envs.Task, e engine.Engine, sampling engine.Request, w io.Writer) error {
	env, err := envs.New(spec)
	if err != nil {
		return err
	}
	defer env.Close()
	o, err := env.Reset(ctx, task)
	if err != nil {
		return err
	}
	t := env.Trajectory()
	fmt.Fprintf(w, "%s (%s)\n\n%s\n", task.ID, task.Family, o.Text)
	v := &voice{w: w, codec: e}
	sampling.Each = v.say
	agent, err := toolcall.Policy{Engine: e, Sampling: sampling}.Start(ctx, policies.Episode{System: t.System, Prompt: o.Text, Tools: t.Tools, Seed: sampling.Seed})
	if err != nil {
		return err
	}
	defer agent.Close()
	for n := 0; ; n++ {
		fmt.Fprintf(w, "\nstep %d\n  ", n)
		a, err := agent.Act(ctx, o)
		v.end()
		if err != nil {
			return err
		}
		s, err := env.Step(ctx, a)
		if err != nil {
			return err
		}
		for _, r := range s.Observation.Results {
			showResult(w, r)
		}
		if s.Terminated || s.Truncated {
			fmt.Fprintln(w)
			showOutcome(w, t.End, t.Score, t.Void)
			return nil
		}
		o = s.Observation
	}
}

// chat answers what is said, line by line, until there is no more. An interrupt ends an answer; between answers, the chat.
func chat(ctx context.Context, e engine.Engine, sampling engine.Request, in io.Reader, w io.Writer, interrupts <-chan os.Signal) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	lines, failed := make(chan string), make(chan error, 1)
	go func() { // which stays where nothing more is said: a terminal cannot be read with an end
		s := bufio.NewScanner(in)
		for s.Scan() {
			select {
			case lines <- s.Text():
			case <-ctx.Done():
				return
			}
		}
		failed <- s.Err()
	}()
	v := &voice{w: w, codec: e}
	sampling.Each = v.say
	var said []int32 // the conversation; nil before it begins
	for {
		fmt.Fprint(w, "> ")
		var line string
		select {
		case line = <-lines:
		case err := <-failed:
			fmt.Fprintln(w)
			return err
		case <-interrupts:
			fmt.Fprintln(w)
			return nil
		case <-ctx.Done():
			fmt.Fprintln(w)
			return ctx.Err()
		}
		if line = strings.TrimSpace(line); line == "" {
			continue
		}
		message := []engine.Message{{Role: "user", Text: line}}
		var more []int32
		var err error
		if said == nil {
			more, err = e.Open(nil, message)
		} else {
			more, err = e.Next(slices.Contains(e.Stops(), said[len(said)-1]), message)
		}
		if err != nil {
			return err
		}
		said = append(said, more...)
		sampling.Prompt = said
		_, err = answer(ctx, e, sampling, interrupts)
		said = append(said, v.tokens...)
		v.end()
		switch {
		case errors.Is(err, engine.ErrTooLong):
			fmt.Fprintln(w, "[there is no room for more: the next line begins anew]")
			said = nil
		case ctx.Err() != nil:
			return ctx.Err()
		case errors.Is(err, context.Canceled):
			fmt.Fprintln(w, "[interrupted]")
		case err != nil:
			return err
		}
		sampling.Seed++
	}
}

// answer generates until it is interrupted.
func answer(ctx context.Context, e engine.Engine, r engine.Request, interrupts <-chan os.Signal) (engine.Sample, error) {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	ended := make(chan struct{})
	defer close(ended)
	go func() {
		select {
		case <-interrupts:
			stop()
		case <-ended:
		}
	}()
	return e.Generate(ctx, r)
}
