package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/mcpgym/mcpgym/policies/engine"
	"github.com/mcpgym/mcpgym/policies/lm"
	"github.com/mcpgym/mcpgym/policies/serve"
)

func serveCommand() *cobra.Command {
	var addr, name, adapter string
	var maxTokens int
	c := &cobra.Command{
		Use: "serve CHECKPOINT", Short: "Answer OpenAI's chat completions with a trained model", Args: cobra.ExactArgs(1),
		Long: "Serve opens a model in a folder of the Hugging Face layout and answers chat completions, tool calls included, until it is interrupted.\n" +
			"Whatever speaks OpenAI's API works with it, given its address and the model's name. It has no keys and no users: keep it on this machine.",
		Example: "  mcpgym serve checkpoints/weather --adapter runs/weather/step-200",
		RunE: func(cmd *cobra.Command, args []string) (err error) {
			if maxTokens < 1 {
				return fmt.Errorf("--max-tokens is %d, want 1 or more", maxTokens)
			}
			dir, err := filepath.Abs(args[0])
			if err != nil {
				return err
			}
			listener, err := net.Listen("tcp", addr) // before the model, which takes longer
			if err != nil {
				return fmt.Errorf("serve at %s: %w", addr, err)
			}
			defer listener.Close()
			model, err := lm.Open(dir, lm.Options{Adapter: adapter})
			if err != nil {
				return err
			}
			defer func() { err = errors.Join(err, model.Close()) }()
			if _, err := model.Open(nil, []engine.Message{{Role: "user", Text: "hello"}}); err != nil {
				return fmt.Errorf("serve %s: %w", dir, err)
			}
			name := cmp.Or(name, filepath.Base(dir))
			url := "http://" + listener.Addr().String() + "/v1"
			quoted, err := json.Marshal(name)
			if err != nil {
				return err
			}
			body := fmt.Sprintf(`{"model":%s,"messages":[{"role":"user","content":"hello"}]}`, strings.ReplaceAll(string(quoted), "'", `'\''`))
			fmt.Fprintf(cmd.OutOrStdout(), "%s answers at %s until it is interrupted, as\n  curl %s/chat/completions -d '%s'\n", name, url, url, body)
			return serveUntil(cmd.Context(), listener, serve.New(model, name, serve.Options{MaxTokens: maxTokens}), 5*time.Second)
		},
	}
	f := c.Flags()
	f.StringVar(&addr, "addr", "127.0.0.1:8080", "address to listen on; port 0 takes a free one")
	f.StringVar(&name, "name", "", "name of the model (default that of the folder)")
	f.StringVar(&adapter, "adapter", "", "folder of an adapter, in the layout of PEFT, that was trained on the model")
	f.IntVar(&maxTokens, "max-tokens", 2048, "tokens of an answer, where the request has no limit of its own")
	return c
}

// serveUntil serves until ctx ends, which is no error. Requests that are running then have so much time left before they are given up;
// none is running when it returns.
func serveUntil(ctx context.Context, l net.Listener, h http.Handler, left time.Duration) error {
	requests, giveUp := context.WithCancel(context.WithoutCancel(ctx))
	defer giveUp()
	s := &http.Server{Handler: h, ReadHeaderTimeout: 10 * time.Second, BaseContext: func(net.Listener) context.Context { return requests }}
	failed := make(chan error, 1)
	go func() { failed <- s.Serve(l) }()
	select {
	case err := <-failed:
		return fmt.Errorf("serve at %s: %w", l.Addr(), err)
	case <-ctx.Done():
	}
	polite, cancel := context.WithTimeout(requests, left)
	defer cancel()
	if s.Shutdown(polite) == nil {
		return nil
	}
	giveUp()
	return s.Shutdown(context.WithoutCancel(ctx))
}
