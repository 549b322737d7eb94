package lm

import (
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// The golden numbers were computed by the reference implementation (transformers and peft) on the checkpoints beside them.
type golden struct {
	Sequence goldenSequence `json:"sequence"`
	Batch    goldenBatch    `json:"batch"`
	AdamW    *goldenAdamW   `json:"adamw_full"`
	LoRA     *goldenLoRA    `json:"lora"`
}

type goldenLoRA struct {
	Rank     int            `json:"r"`
	Alpha    float64        `json:"alpha"`
	Sequence goldenSequence `json:"sequence"`
	Batch    goldenBatch    `json:"batch"`
	Merged   struct {
		Logits goldenLogits `json:"logits"`
	} `json:"merged"`
	AdamW *goldenAdamW `json:"adamw"`
}

type goldenLogits struct {
	Positions []int       `json:"positions"`
	Columns   []int       `json:"columns"`
	Values    [][]float64 `json:"values"`
	Sum       float64     `json:"sum"`
	AbsSum    float64     `json:"abs_sum"`
	Argmax    []int       `json:"argmax"`
	LogSumExp []float64   `json:"logsumexp"`
}

type goldenTensor struct {
	Shape []int     `json:"shape"`
	L2    float64   `json:"l2"`
	Sum   float64   `json:"sum"`
	Index []int     `json:"index"`
	Value []float64 `json:"value"`
}

type goldenSequence struct {
	Tokens    []int32                 `json:"input_ids"`
	Logits    goldenLogits            `json:"logits"`
	LogProbs  []float64               `json:"token_logprobs"`
	Entropy   []float64               `json:"entropy"`
	CE        float64                 `json:"mean_ce"`
	GradNorm  float64                 `json:"grad_global_norm"`
	Gradients map[string]goldenTensor `json:"grads"`
}

type goldenBatch struct {
	Rows      [][]int32 `json:"rows"`
	PromptLen int       `json:"prompt_len"`
	Left      goldenPad `json:"left"`
	Right     goldenPad `json:"right"`
}

type goldenPad struct {
	LogProbs [][]float64 `json:"token_logprobs"`
	CE       float64     `json:"mean_ce"`
	GradNorm float64     `json:"grad_global_norm"`
}

type goldenAdamW struct {
	Rows        [][]int32               `json:"rows"`
	Rate        float64                 `json:"lr"`
	Betas       [2]float64              `json:"betas"`
	Epsilon     float64                 `json:"eps"`
	WeightDecay float64                 `json:"weight_decay"`
	Clip        float64                 `json:"max_grad_norm"`
	Losses      []float64               `json:"loss_before_each_step_and_after_last"`
	Norms       []float64               `json:"grad_norm_before_clip"`
	Params      map[string]goldenTensor `json:"params_after"`
}

var checkpoints = []string{"llama-untied", "llama3rope-tied-bf16", "qwen2-tied", "qwen3-tied", "qwen3-untied-hd32-bf16"}

func folder(name string) string { return filepath.Join("testdata", "models", name) }

func readGolden(t testing.TB, name string) golden {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(folder(name), "golden.json"))
	require.NoError(t, err)
	var g golden
	require.NoError(t, json.Unmarshal(data, &g))
	return g
}

// worst keeps the largest difference of each quantity.
type worst map[string]float64

func (w worst) add(quantity string, got, want float64) {
	d := math.Abs(got - want)
	if math.IsNaN(d) {
		d = math.Inf(1)
	}
	w[quantity] = max(w[quantity], d)
}

// addRelative takes the difference relative to what is wanted.
func (w worst) addRelative(quantity string, got, want float64) {
	w.add(quantity, got/want, 1)
}
