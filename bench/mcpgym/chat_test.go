package main

import (
	"bytes"
	"context"
	"io"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/mcpgym/mcpgym/policies/engine"
	"github.com/mcpgym/mcpgym/policies/lm"
)

func TestChat(t *testing.T) {
	model, _ := checkpoint(t)
	code, out, errOut := call(t, "what is\n\nthe sum\n", "chat", model, "--max-tokens", "5")
	require.Zero(t, code, errOut)
	require.Equal(t, 4, strings.Count(out, "> "), "%s", out) // the empty line is asked again, the end of input is the end
	again, _, _ := strings.Cut(out, "\n")
	_, alone, _ := call(t, "what is\n", "chat", model, "--max-tokens", "5")
	require.True(t, strings.HasPrefix(alone, again+"\n"))

	// 128 tokens are all that it takes.
	code, out, errOut = call(t, strings.Repeat("what is the sum of 2 and 3?\n", 9), "chat", model, "--max-tokens", "20")
	require.Zero(t, code, errOut)
	require.Contains(t, out, "\n[there is no room for more: the next line begins anew]\n> ")
	require.False(t, strings.HasSuffix(out, "anew]\n> \n"), "it has gone on")
}

// endless says a word and then nothing, until it is interrupted.
type endless struct {
	*lm.Engine
	word    []int32
	prompts [][]int32
	said    func()
}

func (e *endless) Generate(ctx context.Context, r engine.Request) (engine.Sample, error) {
	e.prompts = append(e.prompts, r.Prompt)
	for _, id := range e.word {
		r.Each(id)
	}
	e.said()
	<-ctx.Done()
	return engine.Sample{}, ctx.Err()
}

// TestChatInterrupted interrupts an answer, which stays part of the conversation, another one, and then the chat.
func TestChatInterrupted(t *testing.T) {
	model, _ := checkpoint(t)
	base, err := lm.Open(model, lm.Options{})
	require.NoError(t, err)
	interrupts := make(chan os.Signal, 1)
	in, typed := io.Pipe()
	defer typed.Close()
	e := &endless{Engine: base, word: []int32{'s', 'u', 0xc3, 0xa9, 'm'}}
	var out bytes.Buffer
	e.said = func() { interrupts <- os.Interrupt }
	go func() {
		io.WriteString(typed, "what is\n")
		io.WriteString(typed, "is it\n") // which it reads only after the first answer
	}()
	ended := make(chan error)
	turns := &until{text: "[interrupted]", cancel: func() {
		if len(e.prompts) == 2 {
			interrupts <- os.Interrupt
		}
	}}
	go func() {
		ended <- chat(t.Context(), e, engine.Request{MaxTokens: 9}, in, io.MultiWriter(&out, turns), interrupts)
	}()
	require.NoError(t, <-ended)
	require.Equal(t, "> suém\n[interrupted]\n> suém\n[interrupted]\n> \n", out.String())
	next, err := base.Next(false, []engine.Message{{Role: "user", Text: "is it"}})
	require.NoError(t, err)
	require.Equal(t, append(append(append([]int32{}, e.prompts[0]...), e.word...), next...), e.prompts[1])
}

// A letter is shown when it is whole.
func TestVoice(t *testing.T) {
	model, _ := checkpoint(t)
	e, err := lm.Open(model, lm.Options{})
	require.NoError(t, err)
	var out bytes.Buffer
	v := &voice{w: &out, codec: e}
	for i, want := range []string{"a", "a", "aé", "aé", "aé\uFFFDb", "aé\uFFFDb", "aé\uFFFDb"} {
		v.say([]int32{'a', 0xc3, 0xa9, 0xff, 'b', 0xe2, 0x82}[i])
		require.Equal(t, want, out.String())
	}
	v.end()
	require.Equal(t, "aé\uFFFDb\uFFFD\n", out.String())
	v.say('c')
	require.Equal(t, "aé\uFFFDb\uFFFD\nc", out.String())
}
