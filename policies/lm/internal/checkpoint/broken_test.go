package checkpoint

import (
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// Every broken folder is refused in one line that names the file and the field or tensor.
func TestBroken(t *testing.T) {
	nan := float32(math.NaN())
	for _, test := range []struct {
		name, from, file string
		change           string              // of a JSON file, or
		bytes            func([]byte) []byte // of any file, or
		tensors          func([]Tensor) []Tensor
		message          string
	}{
		{name: "empty", file: configFile, bytes: text(""), message: "not JSON: "},
		{name: "garbage", file: configFile, bytes: text("{\"a\n\":"), message: "not JSON: "},
		{name: "two values", file: configFile, bytes: text("{} {}"), message: "not JSON: "},
		{name: "an array", file: configFile, bytes: text("[]"), message: "a JSON array, want struct"},
		{name: "a field twice", file: configFile, bytes: text(`{"vocab_size":1,"vocab_size":2}`), message: `vocab_size`},
		{name: "too long", file: configFile, bytes: text(strings.Repeat(" ", maxJSON+1)), message: "larger than 16777216 bytes"},
		{name: "too deep", file: configFile, bytes: text(strings.Repeat(`{"a":`, 20000)), message: "not JSON: "},
		{name: "no model", file: configFile, change: "-model_type", message: "model_type: missing"},
		{name: "another model", file: configFile, change: `model_type="mistral\n"`, message: `model_type: "mistral\n" is none of llama, qwen2, qwen3`},
		{name: "another head", file: configFile, change: `architectures=["Qwen2ForSequenceClassification"]`, message: `architectures: ["Qwen2ForSequenceClassification"]`},
		{name: "of the wrong type", file: configFile, change: `hidden_size="64"`, message: "hidden_size: a JSON string, want int"},
		{name: "a fraction", file: configFile, change: "hidden_size=64.5", message: "hidden_size: "},
		{name: "out of range", file: configFile, change: "num_hidden_layers=99999999999999999999", message: "num_hidden_layers: value out of range"},
		{name: "no size", file: configFile, change: "-intermediate_size", message: "intermediate_size: missing"},
		{name: "size of null", file: configFile, change: "vocab_size=null", message: "vocab_size: missing"},
		{name: "size of zero", file: configFile, change: "vocab_size=0", message: "vocab_size: 0 is not between"},
		{name: "negative size", file: configFile, change: "num_attention_heads=-4", message: "num_attention_heads: -4 is not between"},
		{name: "no heads", file: configFile, change: "num_attention_heads=0 -head_dim", message: "head_dim: missing"},
		{name: "huge size", file: configFile, change: "hidden_size=1099511627776", message: "hidden_size: 1099511627776 is not between"},
		{name: "many layers", file: configFile, change: "num_hidden_layers=100000 -layer_types", message: "num_hidden_layers: 100000 is more than 1024"},
		{name: "large product", file: configFile, change: "num_attention_heads=65536 head_dim=65536", message: "head_dim: 65536 for 65536 heads is too large"},
		{name: "heads that do not divide", file: configFile, change: "-head_dim num_attention_heads=3",
			message: "head_dim: missing, and hidden_size 64 is no multiple of num_attention_heads 3"},
		{name: "groups that do not divide", file: configFile, change: "num_key_value_heads=3", message: "num_key_value_heads: 3 does not divide num_attention_heads 4"},
		{name: "odd heads", file: configFile, change: "head_dim=15", message: "head_dim: 15 is odd"},
		{name: "no head dim", from: "qwen3-tied", file: configFile, change: "-head_dim", message: "head_dim: missing"},
		{name: "no epsilon", file: configFile, change: "-rms_norm_eps", message: "rms_norm_eps: missing"},
		{name: "negative epsilon", file: configFile, change: "rms_norm_eps=-1e-6", message: "rms_norm_eps: -1e-06 is not"},
		{name: "another activation", file: configFile, change: `hidden_act="gelu"`, message: `hidden_act: "gelu", want silu`},
		{name: "quantized", file: configFile, change: `quantization_config={"bits":4}`, message: "quantization_config: "},
		{name: "experts", file: configFile, change: "num_local_experts=8", message: "num_local_experts: 8"},
		{name: "a window", file: configFile, change: "sliding_window=32 use_sliding_window=true max_window_layers=1 -layer_types",
			message: "sliding_window: 32 of 256 positions"},
		{name: "a window in a layer", file: configFile, change: `layer_types=["full_attention","sliding_attention"]`, message: `layer_types: "sliding_attention"`},
		{name: "another attention", file: configFile, change: `layer_types=["full_attention","linear_attention"]`, message: `layer_types: "linear_attention"`},
		{name: "layers of which", file: configFile, change: `layer_types=["full_attention"]`, message: "layer_types: 1 entries for 2 layers"},
		{name: "yarn", file: configFile, change: `rope_parameters={"rope_type":"yarn","factor":4.0}`, message: `rope_parameters.rope_type: "yarn" is none of default, llama3`},
		{name: "linear", file: configFile, change: `-rope_parameters rope_scaling={"type":"linear","factor":4.0}`, message: `rope_scaling.type: "linear" is none of`},
		{name: "scaling of some type", file: configFile, change: `rope_scaling={"factor":4.0}`, message: "rope_scaling.rope_type: missing"},
		{name: "scaling without factor", file: configFile, change: `rope_parameters={"rope_type":"llama3"}`, message: "rope_parameters.factor: missing"},
		{name: "scaling of nowhere", file: configFile, change: `rope_parameters={"rope_type":"llama3","factor":2,"low_freq_factor":1,"high_freq_factor":4}`,
			message: "rope_parameters.original_max_position_embeddings: missing"},
		{name: "scaling down", file: configFile, message: "rope_scaling.factor: 0.5",
			change: `rope_parameters={"rope_type":"llama3","factor":0.5,"low_freq_factor":1,"high_freq_factor":4,"original_max_position_embeddings":9}`},
		{name: "scaling with equal frequencies", file: configFile, message: "rope_scaling.low_freq_factor: 4",
			change: `rope_parameters={"rope_type":"llama3","factor":2,"low_freq_factor":4,"high_freq_factor":4,"original_max_position_embeddings":9}`},
		{name: "rotation of a part", file: configFile, change: "partial_rotary_factor=0.5", message: "partial_rotary_factor: 0.5, want 1"},
		{name: "rotation of a part, newly", file: configFile, change: `rope_parameters={"partial_rotary_factor":0.5}`,
			message: "rope_parameters.partial_rotary_factor: 0.5, want 1"},
		{name: "rotation by layer", file: configFile, change: `rope_parameters={"full_attention":{"rope_type":"default"}}`,
			message: "rope_parameters.full_attention: unknown field"},
		{name: "two thetas", file: configFile, change: "rope_theta=3.0", message: "rope_parameters.rope_theta: 1e+06, but rope_theta is 3"},
		{name: "two scalings", file: configFile, message: "rope_scaling: differs from rope_parameters",
			change: `rope_scaling={"rope_type":"llama3","factor":2,"low_freq_factor":1,"high_freq_factor":4,"original_max_position_embeddings":9}`},
		{name: "no theta at all", file: configFile, change: `rope_parameters={"rope_theta":0}`, message: "rope_theta: 0 is not a number above 1"},
		{name: "another type", file: configFile, change: `dtype="float64"`, message: `dtype: "float64" is none of float32, bfloat16, float16`},
		{name: "two types", file: configFile, change: `torch_dtype="bfloat16"`, message: `dtype: "float32", but torch_dtype is "bfloat16"`},
		{name: "token beyond the vocabulary", file: configFile, change: "eos_token_id=[2,257]", message: "eos_token_id: 257 is outside of the vocabulary of 257"},
		{name: "tokens of text", file: configFile, change: `eos_token_id="</s>"`, message: "eos_token_id: a JSON string"},
		{name: "negative token", file: configFile, change: `bos_token_id=-2`, message: "bos_token_id: -2 is outside"},

		{name: "hot", file: generationFile, bytes: text(`{"temperature":-1}`), message: "temperature: -1 is negative"},
		{name: "improbable", file: generationFile, bytes: text(`{"top_p":1.5}`), message: "top_p: 1.5 is not between 0 and 1"},
		{name: "none at all", file: generationFile, bytes: text(`{"top_k":-1}`), message: "top_k: -1 is negative"},
		{name: "ends nowhere", file: generationFile, bytes: text(`{"eos_token_id":[1,999]}`), message: "eos_token_id: 999 is outside"},

		{name: "no bytes", file: modelFile, bytes: text(""), message: "header: cut off, the file has 0 bytes"},
		{name: "cut off in the header", file: modelFile, bytes: func(b []byte) []byte { return b[:100] }, message: "header: 2640 bytes, of which the file has 92"},
		{name: "cut off in the data", file: modelFile, bytes: func(b []byte) []byte { return b[:len(b)-1] }, message: "data: 289279 bytes, but the header lists 289280"},
		{name: "longer", file: modelFile, bytes: func(b []byte) []byte { return append(b, 0) }, message: "data: 289281 bytes, but the header lists 289280"},
		{name: "endless header", file: modelFile, bytes: text("\xff\xff\xff\xff\xff\xff\xff\xff{}"), message: "header: 18446744073709551615 bytes"},
		{name: "header of garbage", file: modelFile, bytes: header("\x00{", 0), message: "header: not JSON: "},
		{name: "header of null", file: modelFile, bytes: header("null", 0), message: "header: null"},
		{name: "no header", file: modelFile, bytes: header("", 0), message: "header: not JSON: "},
		{name: "tensor twice", file: modelFile, bytes: header(`{"a":`+entryOf("F32", "1", 0, 4)+`,"a":`+entryOf("F32", "1", 0, 4)+`}`, 4), message: `header: not JSON: `},
		{name: "metadata of numbers", file: modelFile, bytes: header(`{"__metadata__":{"a":1}}`, 0), message: "header: __metadata__: a: a JSON number"},
		{name: "other type", file: modelFile, bytes: tensor("I64", "1", 0, 8), message: `tensor "a": dtype: "I64" is none of`},
		{name: "no shape", file: modelFile, bytes: header(`{"a":{"dtype":"F32","data_offsets":[0,4]}}`, 4), message: `tensor "a": shape: missing`},
		{name: "no offsets", file: modelFile, bytes: header(`{"a":{"dtype":"F32","shape":[1]}}`, 4), message: `tensor "a": data_offsets: [0 0]`},
		{name: "three offsets", file: modelFile, bytes: header(`{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4,4]}}`, 4), message: `tensor "a": data_offsets`},
		{name: "unknown member", file: modelFile, bytes: header(`{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4],"x":1}}`, 4), message: `tensor "a": x: unknown field`},
		{name: "negative shape", file: modelFile, bytes: tensor("F32", "-1,-1", 0, 4), message: `tensor "a": shape: [-1 -1] has a negative size`},
		{name: "endless shape", file: modelFile, bytes: tensor("F32", "4611686018427387904,4", 0, 0), message: `tensor "a": shape: [4611686018427387904 4] is too large`},
		{name: "shape beyond numbers", file: modelFile, bytes: tensor("F32", "18446744073709551616", 0, 0), message: `tensor "a": shape.0: value out of range`},
		{name: "other size", file: modelFile, bytes: tensor("F32", "2", 0, 4), message: `tensor "a": data_offsets: [0 4], but the shape [2] takes 8 bytes of F32`},
		{name: "backwards", file: modelFile, bytes: tensor("F32", "1", 4, 0), message: `tensor "a": data_offsets: [4 0]`},
		{name: "negative begin", file: modelFile, bytes: tensor("F32", "1", -4, 0), message: `tensor "a": data_offsets: [-4 0]`},
		{name: "overflow", file: modelFile, bytes: tensor("F32", "1", math.MinInt64, math.MaxInt64), message: `tensor "a": data_offsets: [-9223372036854775808`},
		{name: "out of the file", file: modelFile, bytes: tensor("F32", "1073741824", 0, 4294967296), message: "data: 8 bytes, but the header lists 4294967296"},
		{name: "overlap", file: modelFile, bytes: header(`{"a":`+entryOf("F32", "1", 0, 4)+`,"b\n":`+entryOf("F32", "1", 2, 6)+`}`, 8),
			message: `tensor "b\n": data_offsets: begin at 2, want 4`},
		{name: "gap", file: modelFile, bytes: header(`{"a":`+entryOf("F32", "1", 0, 4)+`,"b":`+entryOf("F32", "1", 8, 12)+`}`, 12),
			message: `tensor "b": data_offsets: begin at 8, want 4`},

		{name: "missing tensor", file: modelFile, tensors: func(x []Tensor) []Tensor { return x[1:] }, message: `tensor "model.embed_tokens.weight": missing`},
		{name: "unknown tensor", file: modelFile, tensors: func(x []Tensor) []Tensor { return append(x, Tensor{Name: "more", Shape: []int{1}, F32: []float32{1}}) },
			message: `tensor "more": unknown in a qwen2`},
		{name: "tensor of another shape", file: modelFile, tensors: func(x []Tensor) []Tensor { x[0].Shape = []int{64, 257}; return x },
			message: `tensor "model.embed_tokens.weight": shape [64 257], want [257 64]`},
		{name: "another head's weights", file: modelFile, tensors: func(x []Tensor) []Tensor {
			return append(x, Tensor{Name: head, Shape: x[0].Shape, F32: make([]float32, 257*64)})
		}, message: `tensor "lm_head.weight": differs from "model.embed_tokens.weight"`},
		{name: "another head's shape", file: modelFile, tensors: func(x []Tensor) []Tensor {
			return append(x, Tensor{Name: head, Shape: []int{1}, F32: make([]float32, 1)})
		}, message: `tensor "lm_head.weight": shape [1], want [257 64]`},
		{name: "NaN", file: modelFile, bytes: last(nan), message: `tensor "model.norm.weight": holds a value that is not a finite number`},
		{name: "infinite", file: modelFile, bytes: last(float32(math.Inf(-1))), message: `tensor "model.norm.weight": holds a value that is not a finite number`},
		{name: "NaN in bfloat16", from: "llama3rope-tied-bf16", file: modelFile, bytes: last(uint16(0x7fc0)), message: `tensor "model.norm.weight": holds a value`},
	} {
		t.Run(test.name, func(t *testing.T) {
			if test.from == "" {
				test.from = "qwen2-tied"
			}
			dir := folder(t, filepath.Join(models, test.from))
			path := filepath.Join(dir, test.file)
			switch {
			case test.change != "":
				replace(t, path, read(t, changed(t, path, test.change)))
			case test.bytes != nil:
				var old []byte
				if !absent(path) {
					old = read(t, path)
				}
				replace(t, path, test.bytes(old))
			default:
				m, err := OpenModel(dir)
				require.NoError(t, err)
				tensors := readAll(t, m)
				require.NoError(t, m.Close())
				require.NoError(t, os.Remove(path))
				require.NoError(t, WriteFile(path, test.tensors(tensors)))
			}
			requireLine(t, load(dir), test.message)
			require.ErrorContains(t, load(dir), path+": ")
		})
	}
}

// A tied model may store its head once more, and a Llama its rotary frequencies.
func TestSurplus(t *testing.T) {
	dir := folder(t, filepath.Join(models, "llama3rope-tied-bf16"))
	m, err := OpenModel(dir)
	require.NoError(t, err)
	tensors := readAll(t, m)
	require.NoError(t, m.Close())
	tensors = append(tensors, Tensor{Name: head, Shape: tensors[0].Shape, F32: tensors[0].Floats()},
		Tensor{Name: "model.layers.1.self_attn.rotary_emb.inv_freq", Shape: []int{8}, F32: make([]float32, 8)})
	require.NoError(t, os.Remove(filepath.Join(dir, modelFile)))
	require.NoError(t, WriteFile(filepath.Join(dir, modelFile), tensors))
	require.NoError(t, load(dir))

	require.NoError(t, os.Remove(filepath.Join(dir, modelFile)))
	requireLine(t, load(dir), dir+": has neither model.safetensors nor model.safetensors.index.json")
}

func TestBrokenAdapter(t *testing.T) {
	for _, test := range []struct{ name, change, message string }{
		{"not LoRA", `peft_type="LOHA"`, `peft_type: "LOHA", want LORA`},
		{"another task", `task_type="SEQ_CLS"`, `task_type: "SEQ_CLS", want CAUSAL_LM`},
		{"biases", `bias="all"`, `bias: "all", want none`},
		{"no rank", "-r", "r: missing"},
		{"rank of zero", "r=0", "r: 0 is not between"},
		{"other rank", "r=8", `tensor "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight": shape [4 64], want [8 64]`},
		{"no scale", "-lora_alpha", "lora_alpha: missing"},
		{"negative scale", "lora_alpha=-1", "lora_alpha: -1 is not"},
		{"another base", `init_lora_weights="pissa"`, `init_lora_weights: "pissa" changes the base model`},
		{"modules", `modules_to_save=["lm_head"]`, "modules_to_save: not known, and switched on"},
		{"DoRA", "use_dora=true", "use_dora: not known, and switched on"},
		{"ranks", `rank_pattern={"q_proj":8}`, "rank_pattern: not known, and switched on"},
		{"scales", `alpha_pattern={"q_proj":8}`, "alpha_pattern: not known, and switched on"},
		{"layers", "layers_to_transform=[0]", "layers_to_transform: not known, and switched on"},
		{"of the future", "use_xyz=1", "use_xyz: not known, and switched on"},
		{"text", `r="four"`, "r: a JSON string, want int"},
	} {
		t.Run(test.name, func(t *testing.T) {
			dir := folder(t, filepath.Join(models, "qwen3-tied", "lora"))
			path := filepath.Join(dir, adapterConfigFile)
			replace(t, path, read(t, changed(t, path, test.change)))
			_, err := ReadAdapter(dir, fixture("qwen3-tied"))
			requireLine(t, err, test.message)
			require.ErrorContains(t, err, dir)
		})
	}
	t.Run("missing tensor", func(t *testing.T) {
		dir := folder(t, filepath.Join(models, "qwen3-tied", "lora"))
		replace(t, filepath.Join(dir, adapterFile), file("{}", nil))
		_, err := ReadAdapter(dir, fixture("qwen3-tied"))
		requireLine(t, err, adapterFile+`: tensor "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight": missing`)
	})
	t.Run("NaN", func(t *testing.T) {
		dir := folder(t, filepath.Join(models, "qwen3-tied", "lora"))
		path := filepath.Join(dir, adapterFile)
		replace(t, path, last(float32(math.NaN()))(read(t, path)))
		_, err := ReadAdapter(dir, fixture("qwen3-tied"))
		requireLine(t, err, adapterFile+`: tensor "base_model.model.model.layers.1.self_attn.v_proj.lora_B.weight": holds a value`)
	})
}

// What cannot be written leaves nothing behind.
func TestRefusedWriting(t *testing.T) {
	c := fixture("qwen3-tied")
	m, err := OpenModel(filepath.Join(models, "qwen3-tied"))
	require.NoError(t, err)
	defer m.Close()
	for _, test := range []struct {
		name    string
		write   func(dir string, x []Tensor) error
		message string
	}{
		{"configuration", func(dir string, x []Tensor) error {
			c := c
			c.OutBias = true
			return WriteModel(dir, c, Generation{}, x, "")
		}, "attention_bias: "},
		{"generation", func(dir string, x []Tensor) error { return WriteModel(dir, c, Generation{TopP: new(-1.0)}, x, "") }, "top_p: -1"},
		{"missing", func(dir string, x []Tensor) error { return WriteModel(dir, c, Generation{}, x[1:], "") }, `tensor "model.embed_tokens.weight": missing`},
		{"twice", func(dir string, x []Tensor) error { return WriteModel(dir, c, Generation{}, append(x, x[0]), "") },
			`tensor "model.embed_tokens.weight": the name is taken`},
		{"unknown", func(dir string, x []Tensor) error {
			return WriteModel(dir, c, Generation{}, append(x, Tensor{Name: "x"}), "")
		}, `tensor "x": unknown`},
		{"values", func(dir string, x []Tensor) error {
			x[0].F32 = x[0].F32[1:]
			return WriteModel(dir, c, Generation{}, x, "")
		},
			`tensor "model.embed_tokens.weight": data_offsets`},
		{"shape", func(dir string, x []Tensor) error {
			x[0].Shape = []int{1}
			return WriteModel(dir, c, Generation{}, x, "")
		},
			`tensor "model.embed_tokens.weight": shape [1], want [256 64]`},
		{"NaN", func(dir string, x []Tensor) error {
			x[0].F32[7] = float32(math.NaN())
			return WriteModel(dir, c, Generation{}, x, "")
		}, `tensor "model.embed_tokens.weight": holds a value`},
		{"infinite once rounded", func(dir string, x []Tensor) error {
			c := c
			c.DType, x[0].F32[7] = BF16, math.MaxFloat32
			return WriteModel(dir, c, Generation{}, x, "")
		}, `tensor "model.embed_tokens.weight": holds a value`},
		{"state", func(dir string, x []Tensor) error { return WriteSnapshot(dir, math.NaN(), nil) }, "state.json: "},
		{"adapter's layer", func(dir string, x []Tensor) error {
			return WriteAdapter(dir, c, Adapter{Rank: 1, Alpha: 1, Layers: []AdapterLayer{{Name: "x"}}})
		}, `the model has no layer "x"`},
		{"adapter's size", func(dir string, x []Tensor) error {
			return WriteAdapter(dir, c, Adapter{Rank: 1, Alpha: 1, Layers: []AdapterLayer{{Name: "model.layers.0.mlp.up_proj"}}})
		}, `tensor "base_model.model.model.layers.0.mlp.up_proj.lora_A.weight": data_offsets`},
	} {
		t.Run(test.name, func(t *testing.T) {
			parent := t.TempDir()
			requireLine(t, test.write(filepath.Join(parent, "x"), readAll(t, m)), test.message)
			require.Empty(t, names(t, parent))
		})
	}
}

func load(dir string) error {
	m, err := OpenModel(dir)
	if err != nil {
		return err
	}
	defer m.Close()
	for _, w := range m.Config.Weights() {
		if _, err := m.Read(w.Name); err != nil {
			return err
		}
	}
	return nil
}

// folder makes a folder with links to the files of another.
func folder(t testing.TB, source string) string {
	dir := t.TempDir()
	for _, name := range names(t, source) {
		require.NoError(t, os.Symlink(absolute(t, filepath.Join(source, name)), filepath.Join(dir, name)))
	}
	return dir
}

func read(t testing.TB, path string) []byte {
	b, err := os.ReadFile(path)
	require.NoError(t, err)
	return b
}

func replace(t testing.TB, path string, b []byte) {
	if !absent(path) {
		require.NoError(t, os.Remove(path)) // not what it links to
	}
	require.NoError(t, os.WriteFile(path, b, 0o600))
}

func text(s string) func([]byte) []byte { return func([]byte) []byte { return []byte(s) } }

func header(s string, data int) func([]byte) []byte { return text(string(file(s, make([]byte, data)))) }

func entryOf(dtype, shape string, begin, end int) string {
	return fmt.Sprintf(`{"dtype":%q,"shape":[%s],"data_offsets":[%d,%d]}`, dtype, shape, begin, end)
}

func tensor(dtype, shape string, begin, end int) func([]byte) []byte {
	return header(`{"a":`+entryOf(dtype, shape, begin, end)+`}`, 8)
}

// last replaces the last value of a file.
func last(v any) func([]byte) []byte {
	return func(b []byte) []byte {
		v := bytesOf(v)
		return append(b[:len(b)-len(v)], v...)
	}
}

func FuzzSafetensors(f *testing.F) {
	dir := f.TempDir()
	for name := range fixtures { // parts of them: large files take a fuzzer's time
		m, err := OpenModel(filepath.Join(models, name))
		require.NoError(f, err)
		tensors := slices.DeleteFunc(readAll(f, m), func(x Tensor) bool { return len(x.Shape) > 1 })
		require.NoError(f, m.Close())
		path := filepath.Join(dir, name)
		require.NoError(f, WriteFile(path, tensors))
		f.Add(read(f, path))
	}
	f.Add(file(`{"a":`+entryOf("F16", "2", 0, 4)+`,"b":`+entryOf("F32", "0,3", 4, 4)+`}`, []byte{1, 2, 3, 4}))
	f.Fuzz(func(t *testing.T, b []byte) {
		path := filepath.Join(dir, fmt.Sprint(os.Getpid()))
		require.NoError(t, os.WriteFile(path, b, 0o600))
		x, err := OpenFile(path)
		if err != nil {
			requireLine(t, err, path+": ")
			return
		}
		defer x.Close()
		var tensors []Tensor
		total := 0
		for _, w := range x.Tensors() {
			v, err := x.Read(w.Name)
			if err != nil {
				requireLine(t, err, path+": tensor ")
				return
			}
			total += 2 * (len(v.F32) + len(v.BF16))
			tensors = append(tensors, v)
		}
		require.LessOrEqual(t, total, len(b), "values that no byte says")
		again := path + ".again"
		require.NoError(t, WriteFile(again, tensors))
		y, err := OpenFile(again)
		require.NoError(t, err)
		defer y.Close()
		require.Equal(t, x.Tensors(), y.Tensors())
		for _, want := range tensors {
			v, err := y.Read(want.Name)
			require.NoError(t, err)
			require.Equal(t, want, v)
		}
	})
}

func FuzzConfig(f *testing.F) {
	for name := range fixtures {
		for _, file := range []string{"config.json", "config.v4.json"} {
			f.Add(read(f, filepath.Join(models, name, file)))
		}
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		path := filepath.Join(t.TempDir(), "c")
		require.NoError(t, os.WriteFile(path, b, 0o600))
		c, err := ReadConfig(path)
		if err != nil {
			requireLine(t, err, path+": ")
			return
		}
		require.NotEmpty(t, c.Weights())
		require.NoError(t, writeConfig(path, c))
		again, err := ReadConfig(path)
		require.NoError(t, err)
		if c.DType == F16 {
			c.DType = F32
		}
		require.Equal(t, c, again)
	})
}
