package lm

import (
	"bufio"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/mcpgym/mcpgym/policies/engine"
	"github.com/mcpgym/mcpgym/policies/lm/internal/checkpoint"
)

// fetched is what a script of testdata/torch has made: the path that a variable names, or one in the cache. It skips the test where
// that is not there, or fails it where MCPGYM_REQUIRE names what.
func fetched(tb testing.TB, what, variable, script string, inCache ...string) string {
	tb.Helper()
	path := os.Getenv(variable)
	if path == "" {
		cache, err := os.UserCacheDir()
		require.NoError(tb, err)
		path = filepath.Join(append([]string{cache, "mcpgym"}, inCache...)...)
	}
	_, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) && !slices.Contains(strings.Split(os.Getenv("MCPGYM_REQUIRE"), ","), what) {
		tb.Skipf("policies/lm/testdata/torch/%s was not run: %v", script, err)
	}
	require.NoError(tb, err)
	return path
}

func python(tb testing.TB) string {
	tb.Helper()
	return fetched(tb, "torch", "MCPGYM_TORCH", "env.sh", "torch", "bin", "python")
}

// process answers lines of JSON with lines of JSON.
type process struct {
	cmd *exec.Cmd
	in  io.WriteCloser
	out *bufio.Reader
}

func startProcess(tb testing.TB, cmd *exec.Cmd) *process {
	tb.Helper()
	p := &process{cmd: cmd}
	cmd.Stderr = os.Stderr
	var err error
	p.in, err = cmd.StdinPipe()
	require.NoError(tb, err)
	out, err := cmd.StdoutPipe()
	require.NoError(tb, err)
	p.out = bufio.NewReaderSize(out, 1<<20)
	require.NoError(tb, cmd.Start())
	tb.Cleanup(func() { p.end() })
	return p
}

func (p *process) ask(tb testing.TB, question, answer any) {
	tb.Helper()
	line, err := json.Marshal(question)
	require.NoError(tb, err)
	_, err = p.in.Write(append(line, '\n'))
	require.NoError(tb, err)
	line, err = p.out.ReadBytes('\n')
	require.NoError(tb, err)
	require.NoError(tb, json.Unmarshal(line, answer), "%s", line)
}

// end may be called twice.
func (p *process) end() error {
	if p.cmd.ProcessState != nil {
		return nil
	}
	p.in.Close()
	io.Copy(io.Discard, p.out)
	return p.cmd.Wait()
}

// TestTorch proves that transformers and PEFT compute with what is exported what the engine computes.
func TestTorch(t *testing.T) {
	alone(t)
	cmd := exec.Command(python(t), filepath.Join("testdata", "torch", "logits.py"))
	cmd.Env = append(os.Environ(), "OMP_NUM_THREADS=1", "HF_HUB_OFFLINE=1")
	torch := startProcess(t, cmd)
	tokens := randomRows(250, 1, 70)[0]
	same := func(t *testing.T, e *Engine, model, adapter string, merge bool) {
		t.Helper()
		var answer struct {
			Logits [][]float64
			Error  string
		}
		torch.ask(t, map[string]any{"model": model, "adapter": adapter, "merge": merge, "tokens": tokens}, &answer)
		require.Empty(t, answer.Error)
		require.Len(t, answer.Logits, len(tokens))
		w, size := worst{}, 0.0
		for i, row := range logitsOf(t, e, tokens) {
			require.Len(t, row, len(answer.Logits[i]))
			for j, x := range row {
				w.add("logits", float64(x), answer.Logits[i][j])
				size = max(size, answer.Logits[i][j])
			}
		}
		t.Logf("%.1e of %.1f", w["logits"], size)
		require.Greater(t, size, 0.5, "the model says something")
		require.LessOrEqual(t, w["logits"], 5e-5)
	}
	scaling := &checkpoint.RopeScaling{Factor: 8, LowFreq: 1, HighFreq: 4, OriginalPositions: 32}
	for name, c := range map[string]Config{
		"llama":              {Kind: checkpoint.Llama, DType: F32},
		"llama tied bf16":    {Kind: checkpoint.Llama, DType: BF16, Tied: true, RopeScaling: scaling, KVHeads: 1},
		"llama biases":       {Kind: checkpoint.Llama, DType: F32, QKVBias: true, OutBias: true, MLPBias: true, RopeScaling: scaling},
		"qwen2 tied":         {Kind: checkpoint.Qwen2, DType: F32, Tied: true, QKVBias: true},
		"qwen2 bf16":         {Kind: checkpoint.Qwen2, DType: BF16, QKVBias: true, KVHeads: 4},
		"qwen3 wide":         {Kind: checkpoint.Qwen3, DType: F32, QKNorm: true, HeadDim: 32},
		"qwen3 tied bf16":    {Kind: checkpoint.Qwen3, DType: BF16, Tied: true, QKNorm: true},
		"qwen3 biases, tied": {Kind: checkpoint.Qwen3, DType: F32, Tied: true, QKNorm: true, QKVBias: true, OutBias: true},
	} {
		t.Run(name, func(t *testing.T) {
			c.Hidden, c.Intermediate, c.Layers, c.Heads, c.Vocab, c.MaxPositions = 64, 112, 2, 4, 259, 128
			c.Eps, c.Theta, c.EOS = 1e-6, 1e4, []int32{2}
			if c.HeadDim == 0 {
				c.HeadDim = 16
			}
			if c.KVHeads == 0 {
				c.KVHeads = 2
			}
			e, err := New(c, 7, Options{Full: true})
			require.NoError(t, err)
			// At this rate biases and norms, too, are far from where they began.
			learn(t, e, 20)
			dir := t.TempDir()
			model := filepath.Join(dir, "model")
			require.NoError(t, e.Export(model))
			if c.DType == F32 {
				same(t, e, model, "", false)
			}
			e, err = Open(model, Options{})
			require.NoError(t, err)
			same(t, e, model, "", false)

			for name, targets := range map[string][]string{"all": nil, "some": {"q_proj", "down_proj"}} {
				e, err = Open(model, Options{LoRA: &LoRA{Rank: 4, Alpha: 6, Targets: targets}, DType: F32})
				require.NoError(t, err)
				before := logitsOf(t, e, tokens)
				learn(t, e, 10)
				require.NotEqual(t, before, logitsOf(t, e, tokens))
				adapter, merged := filepath.Join(dir, name), filepath.Join(dir, name+" merged")
				require.NoError(t, e.Export(adapter))
				same(t, e, model, adapter, false)
				if c.DType == F32 {
					same(t, e, model, adapter, true)
				}
				require.NoError(t, e.Merge(merged, ""))
				if c.DType == F32 {
					same(t, e, merged, "", false)
				}
				e, err = Open(merged, Options{})
				require.NoError(t, err)
				same(t, e, merged, "", false)
			}
		})
	}
}

func learn(t *testing.T, e *Engine, steps int) {
	t.Helper()
	b := engine.Batch{Tokens: randomRows(250, 4, 40)}
	for range steps {
		p := forward(t, e, b)
		backward(t, p, crossEntropy(p, nil), nil)
		_, err := e.Step(t.Context(), engine.Optim{Rate: 1e-2, Beta1: 0.9, Beta2: 0.99, Epsilon: 1e-8, Clip: 1})
		require.NoError(t, err)
	}
}
