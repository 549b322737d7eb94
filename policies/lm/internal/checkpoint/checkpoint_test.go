package checkpoint

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const models = "../../testdata/models"

// fixtures are the configurations of the models in testdata.
var fixtures = map[string]Config{
	"llama-untied": {Kind: Llama, Vocab: 259, Eps: 1e-6, Theta: 1e4, HeadDim: 16, DType: F32},
	"llama3rope-tied-bf16": {Kind: Llama, Vocab: 256, Eps: 1e-5, Theta: 5e5, HeadDim: 16, Tied: true, DType: BF16,
		RopeScaling: &RopeScaling{Factor: 8, LowFreq: 1, HighFreq: 4, OriginalPositions: 32}},
	"qwen2-tied":             {Kind: Qwen2, Vocab: 257, Eps: 1e-6, Theta: 1e6, HeadDim: 16, Tied: true, QKVBias: true, DType: F32},
	"qwen3-tied":             {Kind: Qwen3, Vocab: 256, Eps: 1e-6, Theta: 1e6, HeadDim: 16, Tied: true, QKNorm: true, DType: F32},
	"qwen3-untied-hd32-bf16": {Kind: Qwen3, Vocab: 300, Eps: 1e-6, Theta: 1e6, HeadDim: 32, QKNorm: true, DType: BF16},
}

func fixture(name string) Config {
	c := fixtures[name]
	c.Hidden, c.Intermediate, c.Layers, c.Heads, c.KVHeads, c.MaxPositions = 64, 80, 2, 4, 2, 256
	c.BOS, c.EOS, c.Pad = new(int32(1)), []int32{2}, new(int32(0))
	return c
}

func TestConfig(t *testing.T) {
	for name := range fixtures {
		t.Run(name, func(t *testing.T) {
			for _, file := range []string{"config.json", "config.v4.json"} {
				c, err := ReadConfig(filepath.Join(models, name, file))
				require.NoError(t, err)
				require.Equal(t, fixture(name), c, file)
			}
			path := filepath.Join(t.TempDir(), "config.json")
			require.NoError(t, writeConfig(path, fixture(name)))
			c, err := ReadConfig(path)
			require.NoError(t, err)
			require.Equal(t, fixture(name), c, "written")
		})
	}
}

// What published checkpoints leave out, or say in another way.
func TestConfigSpelling(t *testing.T) {
	for _, test := range []struct {
		name, from, change string
		want               func(*Config)
	}{
		{"no theta, key-value heads or dtype", "llama-untied", `-rope_theta -num_key_value_heads -head_dim -torch_dtype`,
			func(c *Config) { c.KVHeads = 4 }},
		{"several ends", "llama-untied", `eos_token_id=[2,5]`, func(c *Config) { c.EOS = []int32{2, 5} }},
		{"no tokens", "llama-untied", `eos_token_id=null pad_token_id=-1 bos_token_id=null`, func(c *Config) { c.BOS, c.EOS, c.Pad = nil, nil, nil }},
		{"biases", "llama-untied", `attention_bias=true mlp_bias=true`, func(c *Config) { c.QKVBias, c.OutBias, c.MLPBias = true, true, true }},
		{"biases of Qwen3", "qwen3-tied", `attention_bias=true`, func(c *Config) { c.QKVBias, c.OutBias = true, true }},
		{"half precision", "qwen2-tied", `torch_dtype="float16"`, func(c *Config) { c.DType = F16 }},
		{"old name of the type", "llama3rope-tied-bf16",
			`rope_scaling={"type":"llama3","factor":8,"low_freq_factor":1,"high_freq_factor":4,"original_max_position_embeddings":32}`, nil},
		{"both spellings", "llama3rope-tied-bf16",
			`rope_parameters={"rope_theta":5e5,"rope_type":"llama3","factor":8,"low_freq_factor":1,"high_freq_factor":4,"original_max_position_embeddings":32}`, nil},
		{"a window that is not used", "qwen2-tied", `sliding_window=32`, nil},
		{"a window as wide as the model", "qwen2-tied", `sliding_window=256 use_sliding_window=true max_window_layers=0`, nil},
		{"a window in no layer", "qwen2-tied", `sliding_window=32 use_sliding_window=true max_window_layers=2`, nil},
		{"no experts", "qwen3-tied", `num_experts=0 quantization_config=null partial_rotary_factor=1.0`, nil},
	} {
		t.Run(test.name, func(t *testing.T) {
			want := fixture(test.from)
			if test.want != nil {
				test.want(&want)
			}
			c, err := ReadConfig(changed(t, filepath.Join(models, test.from, "config.v4.json"), test.change))
			require.NoError(t, err)
			require.Equal(t, want, c)
		})
	}
}

// changed copies a JSON object into a new file with some fields replaced (name=value) or left out (-name). Values have no spaces.
func changed(t testing.TB, path, change string) string {
	var fields map[string]any
	require.NoError(t, readJSON(path, &fields))
	for _, c := range strings.Fields(change) {
		if name, left := strings.CutPrefix(c, "-"); left {
			delete(fields, name)
			continue
		}
		name, value, _ := strings.Cut(c, "=")
		var v any
		require.NoError(t, decode([]byte(value), &v))
		fields[name] = v
	}
	to := filepath.Join(t.TempDir(), filepath.Base(path))
	require.NoError(t, writeJSON(to, fields))
	return to
}

func readAll(t testing.TB, m *Model) []Tensor {
	var tensors []Tensor
	for _, w := range m.Config.Weights() {
		x, err := m.Read(w.Name)
		require.NoError(t, err)
		require.Equal(t, w.Shape, x.Shape)
		tensors = append(tensors, x)
	}
	return tensors
}

// A model that is read and written has the bytes of the reference's own file, so all values and names are right.
func TestModelRoundTrip(t *testing.T) {
	for name := range fixtures {
		t.Run(name, func(t *testing.T) {
			m, err := OpenModel(filepath.Join(models, name))
			require.NoError(t, err)
			defer m.Close()
			tensors := readAll(t, m)
			slices.Reverse(tensors) // the order does not count
			tokenizer := t.TempDir()
			require.NoError(t, os.WriteFile(filepath.Join(tokenizer, "tokenizer.json"), []byte("{}"), 0o600))
			require.NoError(t, os.WriteFile(filepath.Join(tokenizer, "notes.txt"), []byte("no part of it"), 0o600))
			g := Generation{EOS: []int32{2, 3}, DoSample: new(true), Temperature: new(0.7), TopP: new(0.9), TopK: new(20)}

			dir := filepath.Join(t.TempDir(), "new", "model")
			require.NoError(t, WriteModel(dir, m.Config, g, tensors, tokenizer))
			want, err := os.ReadFile(filepath.Join(models, name, modelFile))
			require.NoError(t, err)
			have, err := os.ReadFile(filepath.Join(dir, modelFile))
			require.NoError(t, err)
			require.True(t, bytes.Equal(want, have))
			require.Equal(t, []string{configFile, generationFile, modelFile, "tokenizer.json"}, names(t, dir))
			require.Equal(t, []string{"model"}, names(t, filepath.Dir(dir)), "nothing is left next to it")

			again, err := OpenModel(dir)
			require.NoError(t, err)
			defer again.Close()
			require.Equal(t, m.Config, again.Config)
			require.Equal(t, g, again.Generation)
			require.ErrorIs(t, WriteModel(dir, m.Config, g, tensors, ""), fs.ErrExist)
		})
	}
}

func names(t testing.TB, dir string) []string {
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

// A model is stored as its configuration says, whatever its tensors are in memory.
func TestModelConversion(t *testing.T) {
	m, err := OpenModel(filepath.Join(models, "qwen3-untied-hd32-bf16"))
	require.NoError(t, err)
	defer m.Close()
	narrow := readAll(t, m)
	var wide []Tensor
	for _, x := range narrow {
		wide = append(wide, Tensor{Name: x.Name, Shape: x.Shape, F32: x.Floats()})
	}
	for _, test := range []struct {
		dtype    DType
		from, to []Tensor
	}{{F32, narrow, wide}, {BF16, wide, narrow}, {F16, narrow, wide}} {
		c := m.Config
		c.DType = test.dtype
		dir := filepath.Join(t.TempDir(), "model")
		require.NoError(t, WriteModel(dir, c, Generation{}, test.from, ""))
		converted, err := OpenModel(dir)
		require.NoError(t, err)
		defer converted.Close()
		require.Equal(t, test.to, readAll(t, converted))
		require.Equal(t, test.dtype == BF16, converted.Config.DType == BF16)
	}
}

func TestValues(t *testing.T) {
	path := filepath.Join(t.TempDir(), "x.safetensors")
	one := []uint16{0x3c00, 0xc000, 0x0001, 0x83ff, 0x7bff, 0x0400, 0x8000} // float16
	require.NoError(t, os.WriteFile(path, file(`{"x":{"dtype":"F16","shape":[7],"data_offsets":[0,14]}}`, bytesOf(one)), 0o600))
	f, err := OpenFile(path)
	require.NoError(t, err)
	defer f.Close()
	x, err := f.Read("x")
	require.NoError(t, err)
	require.Equal(t, []float32{1, -2, 0x1p-24, -1023 * 0x1p-24, 65504, 0x1p-14, float32(math.Copysign(0, -1))}, x.F32)
	require.True(t, math.Signbit(float64(x.F32[6])))

	// Written again under other circumstances: several types, sizes beyond one portion of reading, no values, a scalar.
	large := make([]float32, 1<<18)
	for i := range large {
		large[i] = float32(i) - 0.5
	}
	tensors := []Tensor{{Name: "b", Shape: []int{2}, BF16: []uint16{0x3f80, 0x8000}}, {Name: "large", Shape: []int{1 << 9, 1 << 9}, F32: large},
		{Name: "none", Shape: []int{0, 3}, F32: []float32{}}, {Name: "scalar", Shape: []int{}, F32: []float32{3}}}
	require.NoError(t, WriteFile(path, tensors))
	g, err := OpenFile(path)
	require.NoError(t, err)
	defer g.Close()
	for _, want := range tensors {
		x, err := g.Read(want.Name)
		require.NoError(t, err)
		require.Equal(t, want, x)
	}
	require.Equal(t, []Weight{{"b", []int{2}}, {"large", []int{512, 512}}, {"none", []int{0, 3}}, {"scalar", []int{}}}, g.Tensors())
}

func bytesOf(v any) []byte {
	b, err := binary.Append(nil, binary.LittleEndian, v)
	if err != nil {
		panic(err)
	}
	return b
}

// file is a safetensors file.
func file(header string, data []byte) []byte {
	return append(append(bytesOf(uint64(len(header))), header...), data...)
}

func TestShards(t *testing.T) {
	source := filepath.Join(models, "qwen2-tied")
	m, err := OpenModel(source)
	require.NoError(t, err)
	defer m.Close()
	tensors := readAll(t, m)
	dir := t.TempDir()
	require.NoError(t, os.Link(changed(t, filepath.Join(source, configFile), ""), filepath.Join(dir, configFile)))
	index := map[string]string{}
	for i, part := range [][]Tensor{tensors[:9], tensors[9:]} {
		shard := fmt.Sprintf("model-0000%d-of-00002.safetensors", i+1)
		require.NoError(t, WriteFile(filepath.Join(dir, shard), part))
		for _, x := range part {
			index[x.Name] = shard
		}
	}
	write := func(index map[string]string) {
		require.NoError(t, writeJSON(filepath.Join(dir, indexFile), map[string]any{"metadata": map[string]int{"total_size": 1}, "weight_map": index}))
	}
	write(index)
	sharded, err := OpenModel(dir)
	require.NoError(t, err)
	require.Equal(t, tensors, readAll(t, sharded))
	require.NoError(t, sharded.Close())

	for _, test := range []struct{ name, tensor, shard, message string }{
		{"of another folder", lastNorm, "../x.safetensors", indexFile + `: weight_map: "../x.safetensors" is not the name of a file`},
		{"in another file", lastNorm, "model-00001-of-00002.safetensors", `tensor "model.norm.weight": weight_map has it in`},
		{"nowhere", "more", "model-00001-of-00002.safetensors", indexFile + `: weight_map: tensor "more" is not in model-00001-of-00002.safetensors`},
	} {
		t.Run(test.name, func(t *testing.T) {
			old, had := index[test.tensor]
			index[test.tensor] = test.shard
			write(index)
			_, err := OpenModel(dir)
			requireLine(t, err, test.message)
			if index[test.tensor] = old; !had {
				delete(index, test.tensor)
			}
		})
	}
	write(index)
	require.NoError(t, os.Remove(filepath.Join(dir, "model-00002-of-00002.safetensors")))
	_, err = OpenModel(dir)
	requireLine(t, err, "model-00002-of-00002.safetensors: no such file")
}

// requireLine wants an error of one line that contains message.
func requireLine(t testing.TB, err error, message string) {
	require.ErrorContains(t, err, message)
	require.NotContains(t, err.Error(), "\n")
}

func TestSnapshot(t *testing.T) {
	type state struct {
		Version int
		Seed    uint64
	}
	tensors := []Tensor{{Name: "w", Shape: []int{2}, F32: []float32{1, 2}}, {Name: "m", Shape: []int{2}, F32: []float32{3, 4}}}
	a, b := filepath.Join(t.TempDir(), "s"), filepath.Join(t.TempDir(), "s")
	require.NoError(t, WriteSnapshot(a, state{7, math.MaxUint64}, tensors))
	slices.Reverse(tensors)
	require.NoError(t, WriteSnapshot(b, state{7, math.MaxUint64}, tensors))
	for _, name := range []string{stateFile, snapshotFile} {
		x, err := os.ReadFile(filepath.Join(a, name))
		require.NoError(t, err)
		y, err := os.ReadFile(filepath.Join(b, name))
		require.NoError(t, err)
		require.Equal(t, x, y)
	}
	var s state
	f, err := ReadSnapshot(a, &s)
	require.NoError(t, err)
	defer f.Close()
	require.Equal(t, state{7, math.MaxUint64}, s)
	for _, want := range tensors {
		x, err := f.Read(want.Name)
		require.NoError(t, err)
		require.Equal(t, want, x)
	}
	_, err = ReadSnapshot(a, new(struct{ Version int }))
	requireLine(t, err, "state.json: Seed: unknown field")

	parent := t.TempDir()
	err = WriteSnapshot(filepath.Join(parent, "s"), s, []Tensor{{Name: "w", Shape: []int{1}, F32: []float32{float32(math.Inf(1))}}})
	requireLine(t, err, `tensor "w": holds a value that is not a finite number`)
	require.Empty(t, names(t, parent))
}

func TestAdapter(t *testing.T) {
	for _, name := range []string{"llama-untied", "qwen3-tied"} {
		t.Run(name, func(t *testing.T) {
			c, source := fixture(name), filepath.Join(models, name, "lora")
			a, err := ReadAdapter(source, c)
			require.NoError(t, err)
			require.Equal(t, 2.0, a.Scale())
			require.Equal(t, "..", a.Base)
			require.Len(t, a.Layers, 14)

			dir := filepath.Join(t.TempDir(), "lora")
			require.NoError(t, WriteAdapter(dir, c, a))
			want, err := os.ReadFile(filepath.Join(source, adapterFile))
			require.NoError(t, err)
			have, err := os.ReadFile(filepath.Join(dir, adapterFile))
			require.NoError(t, err)
			require.True(t, bytes.Equal(want, have))
			var before, after map[string]any
			require.NoError(t, readJSON(filepath.Join(source, adapterConfigFile), &before))
			require.NoError(t, readJSON(filepath.Join(dir, adapterConfigFile), &after))
			for field, value := range after {
				require.Equal(t, before[field], value, field)
			}

			// Layers of one block only, named in full.
			a.Layers, a.RSLoRA = a.Layers[7:9], true
			part := filepath.Join(t.TempDir(), "lora")
			require.NoError(t, WriteAdapter(part, c, a))
			again, err := ReadAdapter(part, c)
			require.NoError(t, err)
			require.Equal(t, a, again)
			require.Equal(t, 4.0, again.Scale())
		})
	}
}

// The ways to say which layers are meant.
func TestAdapterTargets(t *testing.T) {
	source, c := filepath.Join(models, "qwen3-tied", "lora"), fixture("qwen3-tied")
	for _, test := range []struct{ targets, message string }{
		{`"all-linear"`, ""},
		{`".*_proj"`, ""},
		{`"model[.]layers[.][01][.](mlp|self_attn)[.][a-z]+_proj"`, ""},
		{`["q_proj","k_proj","v_proj","o_proj","mlp.up_proj","model.layers.0.mlp.gate_proj","layers.1.mlp.gate_proj","down_proj","w1"]`, ""},
		{`["q_proj"]`, `adapter_model.safetensors: tensor "base_model.model.model.layers.0.mlp.down_proj.lora_A.weight": not among target_modules`},
		{`["proj"]`, "target_modules: none of the model's layers"},
		{`"q_proj"`, "target_modules: none of the model's layers"}, // it must match whole names
		{`["q_proj","lm_head"]`, "target_modules: lm_head, which cannot be adapted"},
		{`".*"`, "target_modules: model.embed_tokens, which cannot be adapted"},
		{`"(?!x)q_proj"`, "target_modules: \"(?!x)q_proj\" is not a regular expression"},
		{`7`, "target_modules: want a list"},
		{`[7]`, "target_modules: 0: a JSON number"},
		{`null`, "target_modules: want a list"},
	} {
		t.Run(test.targets, func(t *testing.T) {
			dir := filepath.Dir(changed(t, filepath.Join(source, adapterConfigFile), "target_modules="+test.targets))
			require.NoError(t, os.Symlink(absolute(t, filepath.Join(source, adapterFile)), filepath.Join(dir, adapterFile)))
			a, err := ReadAdapter(dir, c)
			if test.message != "" {
				requireLine(t, err, test.message)
				return
			}
			require.NoError(t, err)
			require.Len(t, a.Layers, 14)
			require.Equal(t, "model.layers.1.mlp.down_proj", a.Layers[13].Name)
			require.Len(t, a.Layers[13].A, 4*80)
			require.Len(t, a.Layers[13].B, 4*64)
		})
	}
}

func absolute(t testing.TB, path string) string {
	path, err := filepath.Abs(path)
	require.NoError(t, err)
	return path
}

func TestGeneration(t *testing.T) {
	path := filepath.Join(t.TempDir(), generationFile)
	require.NoError(t, os.WriteFile(path, []byte(`{"repetition_penalty": 1.05, "eos_token_id": 7, "top_k": 20, "temperature": 1}`), 0o600))
	g, err := readGeneration(path, 10)
	require.NoError(t, err)
	require.Equal(t, []int32{7}, g.EOS)
	require.Equal(t, 20, *g.TopK)
	require.Equal(t, 1.0, *g.Temperature)
	require.Nil(t, g.TopP)
	require.NoError(t, writeGeneration(path, g, 10))
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	require.JSONEq(t, `{"repetition_penalty": 1.05, "eos_token_id": 7, "top_k": 20, "temperature": 1}`, string(text))
	require.Contains(t, string(text), `"temperature": 1.0,`)
}
