package lm

import (
	"bufio"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"text/tabwriter"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mcpgym/mcpgym/policies/engine"
)

// speedSetup says what a process works with: it trains where Rate is not 0, else it samples.
type speedSetup struct {
	Model   string  `json:"model"`
	Adapter string  `json:"adapter"`
	Rate    float64 `json:"rate"`
	DType   string  `json:"dtype"`   // of PyTorch
	Threads int     `json:"threads"` // of PyTorch; 0: what it takes by itself
}

type speedBatch struct {
	Tokens [][]int32 `json:"tokens"`
	New    int       `json:"new"` // tokens a row, to sample
}

type speedAnswer struct {
	Seconds float64 `json:"seconds"`
	Loss    float64 `json:"loss"`
	Peak    int64   `json:"peak"` // bytes
	Threads int     `json:"threads"`
}

// speedWorker is a process that works, and what it has answered.
type speedWorker struct {
	name  string
	p     *process
	done  []speedAnswer
	timed []float64
}

func (w *speedWorker) work(t *testing.T, batches ...speedBatch) {
	t.Helper()
	for _, b := range batches {
		var a speedAnswer
		w.p.ask(t, b, &a)
		w.done = append(w.done, a)
		w.timed = append(w.timed, a.Seconds)
	}
}

// TestSpeed compares the engine with PyTorch on this machine, where MCPGYM_SPEED is set: both do the same, in turn, each in a process of
// its own and on all cores. With -short they do little, once.
func TestSpeed(t *testing.T) {
	if os.Getenv("MCPGYM_SPEED") == "" {
		t.Skip("MCPGYM_SPEED is not set")
	}
	python, smol := python(t), smolLM2Folder(t)
	dir := t.TempDir()
	small, adapter := filepath.Join(dir, "small"), filepath.Join(dir, "adapter")
	e, err := New(million, 1, Options{Full: true})
	require.NoError(t, err)
	require.NoError(t, e.Export(small))
	e, err = Open(smol, Options{LoRA: &LoRA{Rank: 8, Alpha: 16}})
	require.NoError(t, err)
	require.NoError(t, e.Export(adapter))
	e = nil
	runtime.GC()

	start := func(name string, s speedSetup, command ...string) *speedWorker {
		cmd := exec.Command(command[0], command[1:]...)
		cmd.Env = append(os.Environ(), "MCPGYM_SPEED_WORKER=1", "HF_HUB_OFFLINE=1")
		w := &speedWorker{name: name, p: startProcess(t, cmd)}
		require.NoError(t, json.NewEncoder(w.p.in).Encode(s))
		return w
	}
	dtypes := []string{"float32"}
	if halves(t) {
		dtypes = append(dtypes, "bfloat16")
	}
	threads := []int{0, runtime.NumCPU()} // that PyTorch is tried with; the first case decides
	var table strings.Builder
	out := tabwriter.NewWriter(&table, 0, 0, 2, ' ', 0)
	fmt.Fprint(out, "\t\tseconds\ttokens/s\tpeak MB\tmeasured\n")
	for _, c := range []struct {
		name                string
		setup               speedSetup
		dtypes              []string
		vocab               int
		rows, length, fresh int
	}{
		{"train 1M, 16x192", speedSetup{Model: small, Rate: 1e-3}, []string{"float32"}, million.Vocab, 16, 192, 0},
		{"LoRA SmolLM2, 4x256", speedSetup{Model: smol, Adapter: adapter, Rate: 1e-4}, dtypes, smolLM2.Vocab, 4, 256, 0},
		{"sample SmolLM2, 8x(100+64)", speedSetup{Model: smol}, dtypes, smolLM2.Vocab, 8, 100, 64},
		{"sample 1M, 256x(100+64)", speedSetup{Model: small}, []string{"float32"}, million.Vocab, 256, 100, 64},
	} {
		if testing.Short() {
			c.rows, c.length, c.fresh = min(c.rows, 8), c.length/4, c.fresh/8
		}
		r := rand.New(rand.NewPCG(1, 1))
		// Batches are new each time, so that nothing of them is remembered.
		batch := func(part int) speedBatch {
			b := speedBatch{New: c.fresh / part}
			for range c.rows {
				row := make([]int32, c.length/part)
				for j := range row {
					row[j] = int32(r.IntN(c.vocab))
				}
				b.Tokens = append(b.Tokens, row)
			}
			return b
		}
		// Smaller ones say which way of PyTorch is the fastest here. The first of them only makes all ready.
		try := []speedBatch{batch(8), batch(8)}
		var torch *speedWorker
		var tried []string
		for _, n := range threads {
			for _, dtype := range c.dtypes {
				s := c.setup
				s.DType, s.Threads = dtype, n
				w := start("torch "+dtype, s, python, filepath.Join("testdata", "torch", "speed.py"))
				if n > 0 {
					w.name += fmt.Sprintf(", %d threads set", n)
				}
				w.work(t, try...)
				tried = append(tried, fmt.Sprintf("%s %.3f s", w.name, w.done[1].Seconds))
				if torch == nil || w.done[1].Seconds < torch.done[1].Seconds {
					torch, w = w, torch
				}
				if w != nil {
					require.NoError(t, w.p.end())
				}
			}
		}
		t.Logf("%s: %s", c.name, strings.Join(tried, "; "))
		if strings.HasSuffix(torch.name, "set") {
			threads = threads[len(threads)-1:]
		} else {
			threads = threads[:1]
		}
		ours := start("ours", c.setup, self(t), "-test.run=^TestSpeedWorker$")
		ours.work(t, try...)
		workers := []*speedWorker{ours, torch}
		first := batch(1)
		for _, w := range workers {
			w.work(t, first)
			w.timed = nil
		}
		begin := time.Now()
		for round := 0; round < 15 && (round < 3 || time.Since(begin) < 40*time.Second) && (round < 1 || !testing.Short()); round++ {
			next := batch(1)
			for _, w := range workers {
				w.work(t, next)
			}
		}
		tolerance := 0.01
		if strings.Contains(torch.name, "bfloat16") {
			tolerance = 0.2
		}
		for i, a := range ours.done {
			require.InDelta(t, torch.done[i].Loss, a.Loss, tolerance, "they do not do the same")
		}
		for _, w := range workers {
			require.NoError(t, w.p.end())
			last := w.done[len(w.done)-1]
			require.Equal(t, runtime.NumCPU(), last.Threads)
			seconds, tokens := median(w.timed), c.rows*cmp.Or(c.fresh, c.length)
			fmt.Fprintf(out, "%s\t%s\t%.3f\t%.0f\t%.0f\t%dx, %.3f to %.3f\n", c.name, w.name, seconds, float64(tokens)/seconds, float64(last.Peak)/1e6,
				len(w.timed), slices.Min(w.timed), slices.Max(w.timed))
		}
		fmt.Fprintf(out, "\tours/torch\t%.2f\t%.2f\t\t\n", median(ours.timed)/median(torch.timed), median(torch.timed)/median(ours.timed))
	}
	require.NoError(t, out.Flush())
	t.Logf("medians on %d cores\n%s", runtime.NumCPU(), table.String())
}

// halves says whether the processor multiplies bfloat16 itself. Where it does not, PyTorch takes up to twenty times as long for it.
func halves(t *testing.T) bool {
	t.Helper()
	info, err := os.ReadFile("/proc/cpuinfo")
	require.NoError(t, err)
	return strings.Contains(string(info), "avx512_bf16") || strings.Contains(string(info), "amx_bf16")
}

func median(x []float64) float64 {
	x = slices.Sorted(slices.Values(x))
	return (x[(len(x)-1)/2] + x[len(x)/2]) / 2
}

func self(t *testing.T) string {
	t.Helper()
	path, err := os.Executable()
	require.NoError(t, err)
	return path
}

// TestSpeedWorker is the process that TestSpeed measures.
func TestSpeedWorker(t *testing.T) {
	if os.Getenv("MCPGYM_SPEED_WORKER") == "" {
		t.Skip("started by TestSpeed")
	}
	in := json.NewDecoder(bufio.NewReader(os.Stdin))
	var s speedSetup
	require.NoError(t, in.Decode(&s))
	e, err := Open(s.Model, Options{Full: s.Adapter == "" && s.Rate > 0, Adapter: s.Adapter})
	require.NoError(t, err)
	for seed := uint64(0); ; seed++ {
		var b speedBatch
		err := in.Decode(&b)
		if err == io.EOF {
			return
		}
		require.NoError(t, err)
		begin := time.Now()
		a := speedAnswer{Threads: runtime.GOMAXPROCS(0)}
		if s.Rate > 0 {
			a.Loss = speedTrain(t, e, b, s.Rate)
		} else {
			speedSample(t, e, b, seed)
		}
		a.Seconds = time.Since(begin).Seconds()
		a.Peak = peakMemory(t)
		require.NoError(t, json.NewEncoder(os.Stdout).Encode(a))
	}
}

func speedTrain(t *testing.T, e *Engine, b speedBatch, rate float64) (loss float64) {
	t.Helper()
	p := forward(t, e, engine.Batch{Tokens: b.Tokens})
	loss = meanCE(p, nil)
	backward(t, p, crossEntropy(p, nil), nil)
	_, err := e.Step(t.Context(), engine.Optim{Rate: rate, Beta1: 0.9, Beta2: 0.999, Epsilon: 1e-8, Clip: 1})
	require.NoError(t, err)
	require.False(t, math.IsNaN(loss))
	return loss
}

func speedSample(t *testing.T, e *Engine, b speedBatch, seed uint64) {
	t.Helper()
	var all sync.WaitGroup
	for i, prompt := range b.Tokens {
		all.Go(func() {
			s, err := e.Generate(t.Context(), engine.Request{Prompt: prompt, MaxTokens: b.New, Stops: []int32{}, Temperature: 1, Seed: seed<<32 + uint64(i)})
			if err != nil || len(s.Tokens) != b.New {
				t.Errorf("%d tokens, %v", len(s.Tokens), err)
			}
		})
	}
	all.Wait()
}

// peakMemory is the most that was in use, in bytes. (Rusage would count that of whoever started the process.)
func peakMemory(t *testing.T) (peak int64) {
	t.Helper()
	status, err := os.ReadFile("/proc/self/status")
	require.NoError(t, err)
	_, line, _ := strings.Cut(string(status), "VmHWM:")
	_, err = fmt.Sscanf(line, "%d", &peak)
	require.NoError(t, err)
	return peak << 10
}
