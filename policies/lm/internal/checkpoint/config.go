package checkpoint

import (
	"errors"
	"fmt"
	"math"
	"os"
	"reflect"
	"slices"
	"strings"

	"github.com/go-json-experiment/json/jsontext"
)

// Kind is a family of decoders, as config.json's model_type calls it.
type Kind string

// The kinds that are read.
const (
	Llama Kind = "llama"
	Qwen2 Kind = "qwen2"
	Qwen3 Kind = "qwen3"
)

// Config is the shape of a decoder. Every block is x += attention(norm(x)); x += down(silu(gate(norm(x))) * up(norm(x))), with RMS
// norms, grouped-query attention and rotary positions (of halves, not of pairs); a last norm comes before the head.
type Config struct {
	Kind         Kind
	Hidden       int
	Intermediate int
	Layers       int
	Heads        int // a multiple of KVHeads
	KVHeads      int
	HeadDim      int // even; Heads*HeadDim need not be Hidden
	Vocab        int
	MaxPositions int

	Eps         float64      // of the norms
	Theta       float64      // of the rotary positions
	RopeScaling *RopeScaling // nil: none
	Tied        bool         // the head is the embedding; there is no lm_head.weight then
	QKVBias     bool
	OutBias     bool // of o_proj
	MLPBias     bool // of gate_proj, up_proj and down_proj
	QKNorm      bool // RMS norms over each head of q and k, before the rotation

	BOS *int32 // nil: none
	EOS []int32
	Pad *int32 // nil: none

	DType DType // what the model is stored as: its tensors may differ from it
}

// RopeScaling is Llama 3's change of the rotary frequencies.
type RopeScaling struct {
	Factor, LowFreq, HighFreq float64
	OriginalPositions         int
}

// Weight is a tensor that a model has.
type Weight struct {
	Name  string
	Shape []int
}

// Linear is a linear layer of a block: its weight is Name+".weight", of the shape [Out, In].
type Linear struct {
	Name    string // such as model.layers.0.self_attn.q_proj
	In, Out int
	Bias    bool // Name+".bias", of the shape [Out]
}

// The names of the tensors that are not in a block.
const (
	embedding = "model.embed_tokens.weight"
	lastNorm  = "model.norm.weight"
	head      = "lm_head.weight"
)

// Weights lists a model's tensors: the embedding, those of the blocks in order, the last norm, and lm_head.weight where it is not
// tied. c is one that ReadConfig or Validate has accepted.
func (c Config) Weights() []Weight {
	w := []Weight{{embedding, []int{c.Vocab, c.Hidden}}}
	linears := c.Linears()
	perBlock := len(linears) / c.Layers
	for i := range c.Layers {
		block := blockName(i)
		w = append(w, Weight{block + "input_layernorm.weight", []int{c.Hidden}}, Weight{block + "post_attention_layernorm.weight", []int{c.Hidden}})
		if c.QKNorm {
			w = append(w, Weight{block + "self_attn.q_norm.weight", []int{c.HeadDim}}, Weight{block + "self_attn.k_norm.weight", []int{c.HeadDim}})
		}
		for _, l := range linears[i*perBlock : (i+1)*perBlock] {
			w = append(w, Weight{l.Name + ".weight", []int{l.Out, l.In}})
			if l.Bias {
				w = append(w, Weight{l.Name + ".bias", []int{l.Out}})
			}
		}
	}
	w = append(w, Weight{lastNorm, []int{c.Hidden}})
	if !c.Tied {
		w = append(w, Weight{head, []int{c.Vocab, c.Hidden}})
	}
	return w
}

// Linears lists the blocks' linear layers in order, in each q_proj, k_proj, v_proj, o_proj, gate_proj, up_proj, down_proj.
func (c Config) Linears() []Linear {
	var l []Linear
	q, kv := c.Heads*c.HeadDim, c.KVHeads*c.HeadDim
	for i := range c.Layers {
		block := blockName(i)
		l = append(l,
			Linear{block + "self_attn.q_proj", c.Hidden, q, c.QKVBias},
			Linear{block + "self_attn.k_proj", c.Hidden, kv, c.QKVBias},
			Linear{block + "self_attn.v_proj", c.Hidden, kv, c.QKVBias},
			Linear{block + "self_attn.o_proj", q, c.Hidden, c.OutBias},
			Linear{block + "mlp.gate_proj", c.Hidden, c.Intermediate, c.MLPBias},
			Linear{block + "mlp.up_proj", c.Hidden, c.Intermediate, c.MLPBias},
			Linear{block + "mlp.down_proj", c.Intermediate, c.Hidden, c.MLPBias})
	}
	return l
}

func blockName(i int) string { return fmt.Sprintf("model.layers.%d.", i) }

// configJSON is what of config.json counts. What is absent or null is nil.
type configJSON struct {
	Architectures  []string        `json:"architectures"`
	ModelType      *string         `json:"model_type"`
	Hidden         *int            `json:"hidden_size"`
	Intermediate   *int            `json:"intermediate_size"`
	Layers         *int            `json:"num_hidden_layers"`
	Heads          *int            `json:"num_attention_heads"`
	KVHeads        *int            `json:"num_key_value_heads"`
	HeadDim        *int            `json:"head_dim"`
	Vocab          *int            `json:"vocab_size"`
	MaxPositions   *int            `json:"max_position_embeddings"`
	Act            *string         `json:"hidden_act"`
	Eps            *float          `json:"rms_norm_eps"`
	Theta          *float          `json:"rope_theta"`
	RopeScaling    *ropeJSON       `json:"rope_scaling"`
	RopeParameters *ropeJSON       `json:"rope_parameters,omitzero"`
	Partial        *float          `json:"partial_rotary_factor,omitzero"`
	Tied           bool            `json:"tie_word_embeddings"`
	AttentionBias  *bool           `json:"attention_bias,omitzero"`
	MLPBias        *bool           `json:"mlp_bias,omitzero"`
	UseSliding     *bool           `json:"use_sliding_window,omitzero"`
	Sliding        *int            `json:"sliding_window,omitzero"`
	MaxWindow      *int            `json:"max_window_layers,omitzero"`
	LayerTypes     []string        `json:"layer_types,omitzero"`
	Experts        *int            `json:"num_experts,omitzero"`
	LocalExperts   *int            `json:"num_local_experts,omitzero"`
	Quantization   *jsontext.Value `json:"quantization_config,omitzero"`
	BOS            *int32          `json:"bos_token_id"`
	EOS            ids             `json:"eos_token_id"`
	Pad            *int32          `json:"pad_token_id"`
	TorchDType     *string         `json:"torch_dtype"`
	DType          *string         `json:"dtype,omitzero"`
}

type ropeJSON struct {
	Type     *string                   `json:"rope_type"`
	OldType  *string                   `json:"type,omitzero"`
	Theta    *float                    `json:"rope_theta,omitzero"`
	Factor   *float                    `json:"factor,omitzero"`
	Low      *float                    `json:"low_freq_factor,omitzero"`
	High     *float                    `json:"high_freq_factor,omitzero"`
	Original *int                      `json:"original_max_position_embeddings,omitzero"`
	Partial  *float                    `json:"partial_rotary_factor,omitzero"`
	Unknown  map[string]jsontext.Value `json:",embed"`
}

// ReadConfig reads a config.json in the spelling of transformers 4 or 5.
func ReadConfig(path string) (Config, error) {
	var j configJSON
	if err := readJSON(path, &j); err != nil {
		return Config{}, err
	}
	c, err := j.config()
	if err != nil {
		return Config{}, fmt.Errorf("%s: %w", path, err)
	}
	return c, nil
}

// config gives what j says. The error begins with the field.
func (j *configJSON) config() (Config, error) {
	var c Config
	if j.ModelType == nil {
		return c, errors.New("model_type: missing")
	}
	c.Kind = Kind(*j.ModelType)
	if err := c.kindKnown(); err != nil {
		return c, err
	}
	if j.Architectures != nil && !slices.Equal(j.Architectures, []string{c.architecture()}) {
		return c, fmt.Errorf("architectures: %q, of which only %q is known for %s", j.Architectures, c.architecture(), c.Kind)
	}
	if j.Quantization != nil {
		return c, errors.New("quantization_config: quantized weights are not read")
	}
	for _, e := range []struct {
		field string
		n     *int
	}{{"num_experts", j.Experts}, {"num_local_experts", j.LocalExperts}} {
		if e.n != nil && *e.n > 1 {
			return c, fmt.Errorf("%s: %d, but mixtures of experts are not known", e.field, *e.n)
		}
	}
	if j.Act != nil && *j.Act != "silu" {
		return c, fmt.Errorf("hidden_act: %q, want silu", *j.Act)
	}

	// A Llama of the first generations leaves these out. For the others the reference has defaults of its largest model.
	if c.Kind == Llama && j.KVHeads == nil {
		j.KVHeads = j.Heads
	}
	if c.Kind != Qwen3 && j.HeadDim == nil && j.Hidden != nil && j.Heads != nil && *j.Heads > 0 {
		if *j.Hidden%*j.Heads != 0 {
			return c, fmt.Errorf("head_dim: missing, and hidden_size %d is no multiple of num_attention_heads %d", *j.Hidden, *j.Heads)
		}
		j.HeadDim = new(*j.Hidden / *j.Heads)
	}
	for _, s := range c.sizes() {
		from := map[string]*int{"hidden_size": j.Hidden, "intermediate_size": j.Intermediate, "num_hidden_layers": j.Layers,
			"num_attention_heads": j.Heads, "num_key_value_heads": j.KVHeads, "head_dim": j.HeadDim, "vocab_size": j.Vocab,
			"max_position_embeddings": j.MaxPositions}[s.field]
		if from == nil {
			return c, fmt.Errorf("%s: missing", s.field)
		}
		*s.n = *from
	}
	if j.Eps == nil {
		return c, errors.New("rms_norm_eps: missing")
	}
	c.Eps = float64(*j.Eps)
	if err := j.rope(&c); err != nil {
		return c, err
	}

	c.Tied = j.Tied
	biased := j.AttentionBias != nil && *j.AttentionBias
	c.QKVBias = c.Kind == Qwen2 || biased
	c.OutBias = c.Kind != Qwen2 && biased
	c.MLPBias = c.Kind == Llama && j.MLPBias != nil && *j.MLPBias
	c.QKNorm = c.Kind == Qwen3
	if len(j.EOS) > 0 {
		c.EOS = j.EOS
	}
	for _, id := range []struct{ from, to **int32 }{{&j.BOS, &c.BOS}, {&j.Pad, &c.Pad}} {
		if *id.from != nil && **id.from != -1 { // an old spelling of none
			*id.to = *id.from
		}
	}
	if j.DType != nil && j.TorchDType != nil && *j.DType != *j.TorchDType {
		return c, fmt.Errorf("dtype: %q, but torch_dtype is %q", *j.DType, *j.TorchDType)
	}
	name, field := j.DType, "dtype"
	if name == nil {
		name, field = j.TorchDType, "torch_dtype"
	}
	c.DType = F32
	if name != nil {
		i := slices.Index(torchNames, strings.TrimPrefix(*name, "torch."))
		if i < 0 {
			return c, fmt.Errorf("%s: %q is none of %s", field, *name, strings.Join(torchNames, ", "))
		}
		c.DType = dtypes[i]
	}
	if err := c.Validate(); err != nil {
		return c, err
	}
	return c, j.sliding(c)
}

var (
	dtypes     = []DType{F32, BF16, F16}
	torchNames = []string{"float32", "bfloat16", "float16"} // of dtypes
)

// rope sets Theta and RopeScaling. Transformers 5 says in rope_parameters what its predecessor says in rope_theta and rope_scaling;
// where a file has both they must agree.
func (j *configJSON) rope(c *Config) error {
	if j.Partial != nil && *j.Partial != 1 {
		return fmt.Errorf("partial_rotary_factor: %v, want 1", *j.Partial)
	}
	theta, field := j.Theta, "rope_theta"
	for _, r := range []struct {
		field string
		*ropeJSON
	}{{"rope_parameters", j.RopeParameters}, {"rope_scaling", j.RopeScaling}} {
		if r.ropeJSON == nil {
			continue
		}
		scaling, err := r.scaling()
		if err != nil {
			return fmt.Errorf("%s.%w", r.field, err)
		}
		if r.field == "rope_scaling" && j.RopeParameters != nil && !reflect.DeepEqual(scaling, c.RopeScaling) {
			return errors.New("rope_scaling: differs from rope_parameters")
		}
		c.RopeScaling = scaling
		if r.Theta != nil {
			if theta != nil && *theta != *r.Theta {
				return fmt.Errorf("%s.rope_theta: %v, but %s is %v", r.field, *r.Theta, field, *theta)
			}
			theta, field = r.Theta, r.field+".rope_theta"
		}
	}
	c.Theta = 10000 // which the first generation of Llama leaves out
	if theta != nil {
		c.Theta = float64(*theta)
	}
	return nil
}

// scaling gives what r says, nil for none. The error begins with the field.
func (r *ropeJSON) scaling() (*RopeScaling, error) {
	for name, v := range r.Unknown {
		if v.Kind() != 'n' {
			return nil, fmt.Errorf("%s: unknown field", quoted(name))
		}
	}
	if r.Partial != nil && *r.Partial != 1 {
		return nil, fmt.Errorf("partial_rotary_factor: %v, want 1", *r.Partial)
	}
	kind, field := r.Type, "rope_type"
	if kind == nil && r.OldType != nil {
		kind, field = r.OldType, "type"
	}
	switch {
	case kind == nil && r.Factor == nil || kind != nil && *kind == "default":
		return nil, nil
	case kind == nil:
		return nil, errors.New("rope_type: missing")
	case *kind != "llama3":
		return nil, fmt.Errorf("%s: %q is none of default, llama3", field, *kind)
	}
	s := &RopeScaling{}
	for _, v := range []struct {
		field string
		from  *float
		to    *float64
	}{{"factor", r.Factor, &s.Factor}, {"low_freq_factor", r.Low, &s.LowFreq}, {"high_freq_factor", r.High, &s.HighFreq}} {
		if v.from == nil {
			return nil, fmt.Errorf("%s: missing", v.field)
		}
		*v.to = float64(*v.from)
	}
	if r.Original == nil {
		return nil, errors.New("original_max_position_embeddings: missing")
	}
	s.OriginalPositions = *r.Original
	return s, nil
}

// sliding refuses a window that a token would see less through than through full attention.
func (j *configJSON) sliding(c Config) error {
	windowed := c.Kind != Llama && j.UseSliding != nil && *j.UseSliding && j.Sliding != nil
	bites := windowed && *j.Sliding < c.MaxPositions
	if j.LayerTypes == nil {
		if bites && (j.MaxWindow == nil || *j.MaxWindow < c.Layers) {
			return fmt.Errorf("sliding_window: %d of %d positions, but only full attention is known", *j.Sliding, c.MaxPositions)
		}
		return nil
	}
	if len(j.LayerTypes) != c.Layers {
		return fmt.Errorf("layer_types: %d entries for %d layers", len(j.LayerTypes), c.Layers)
	}
	for _, t := range j.LayerTypes {
		if t != "full_attention" && !(t == "sliding_attention" && windowed && !bites) {
			return fmt.Errorf("layer_types: %q, but only full attention is known", t)
		}
	}
	return nil
}

type size struct {
	field string
	n     *int
}

func (c *Config) sizes() []size {
	return []size{{"hidden_size", &c.Hidden}, {"intermediate_size", &c.Intermediate}, {"num_hidden_layers", &c.Layers},
		{"num_attention_heads", &c.Heads}, {"num_key_value_heads", &c.KVHeads}, {"head_dim", &c.HeadDim}, {"vocab_size", &c.Vocab},
		{"max_position_embeddings", &c.MaxPositions}}
}

func (c *Config) kindKnown() error {
	if c.Kind != Llama && c.Kind != Qwen2 && c.Kind != Qwen3 {
		return fmt.Errorf("model_type: %q is none of llama, qwen2, qwen3", c.Kind)
	}
	return nil
}

func (c *Config) architecture() string {
	return strings.ToUpper(string(c.Kind[:1])) + string(c.Kind[1:]) + "ForCausalLM"
}

// Largest sizes that are believed. They keep products of two sizes, in bytes, far from overflowing, and lists of layers short.
const (
	maxSize   = 1 << 24
	maxLayers = 1 << 10
)

// Validate refuses a Config that no config.json can say or whose sizes make no sense. The error names the field of config.json.
func (c Config) Validate() error {
	if err := c.kindKnown(); err != nil {
		return err
	}
	for _, s := range c.sizes() {
		if *s.n < 1 || *s.n > maxSize {
			return fmt.Errorf("%s: %d is not between 1 and %d", s.field, *s.n, maxSize)
		}
	}
	switch {
	case c.Layers > maxLayers:
		return fmt.Errorf("num_hidden_layers: %d is more than %d", c.Layers, maxLayers)
	case c.Heads%c.KVHeads != 0:
		return fmt.Errorf("num_key_value_heads: %d does not divide num_attention_heads %d", c.KVHeads, c.Heads)
	case c.HeadDim%2 != 0:
		return fmt.Errorf("head_dim: %d is odd", c.HeadDim)
	case c.Heads > maxSize/c.HeadDim:
		return fmt.Errorf("head_dim: %d for %d heads is too large", c.HeadDim, c.Heads)
	case !(c.Eps > 0 && c.Eps < 1):
		return fmt.Errorf("rms_norm_eps: %v is not between 0 and 1", c.Eps)
	case !(c.Theta > 1 && c.Theta <= math.MaxFloat32):
		return fmt.Errorf("rope_theta: %v is not a number above 1", c.Theta)
	case c.QKNorm != (c.Kind == Qwen3):
		return fmt.Errorf("model_type: %s with a q and k norm of %v", c.Kind, c.QKNorm)
	case c.Kind == Qwen2 && (!c.QKVBias || c.OutBias) || c.Kind != Qwen2 && c.QKVBias != c.OutBias:
		return fmt.Errorf("attention_bias: %s with biases %v of q, k, v and %v of o", c.Kind, c.QKVBias, c.OutBias)
	case c.MLPBias && c.Kind != Llama:
		return fmt.Errorf("mlp_bias: %s has none", c.Kind)
	case !slices.Contains(dtypes, c.DType):
		return fmt.Errorf("dtype: %q is none of %q", c.DType, dtypes)
	}
	if s := c.RopeScaling; s != nil {
		switch {
		case !(s.Factor >= 1 && s.Factor <= math.MaxFloat32):
			return fmt.Errorf("rope_scaling.factor: %v is not a number of at least 1", s.Factor)
		case !(s.LowFreq > 0 && s.LowFreq < s.HighFreq && s.HighFreq <= math.MaxFloat32):
			return fmt.Errorf("rope_scaling.low_freq_factor: %v is not between 0 and high_freq_factor %v", s.LowFreq, s.HighFreq)
		case s.OriginalPositions < 1 || s.OriginalPositions > maxSize:
			return fmt.Errorf("rope_scaling.original_max_position_embeddings: %d is not between 1 and %d", s.OriginalPositions, maxSize)
		}
	}
	return checkIDs(c.BOS, c.EOS, c.Pad, c.Vocab)
}

// checkIDs refuses tokens outside of the vocabulary.
func checkIDs(bos *int32, eos []int32, pad *int32, vocab int) error {
	for _, t := range []struct {
		field string
		ids   []int32
	}{{"bos_token_id", listed(bos)}, {"eos_token_id", eos}, {"pad_token_id", listed(pad)}} {
		for _, id := range t.ids {
			if id < 0 || int(id) >= vocab {
				return fmt.Errorf("%s: %d is outside of the vocabulary of %d", t.field, id, vocab)
			}
		}
	}
	return nil
}

func listed(id *int32) []int32 {
	if id == nil {
		return nil
	}
	return []int32{*id}
}

// writeConfig writes config.json in the older spelling, which all versions of transformers read. F16 becomes float32.
func writeConfig(path string, c Config) error {
	if err := c.Validate(); err != nil {
		return fmt.Errorf("writing %s: %w", path, err)
	}
	j := configJSON{Architectures: []string{c.architecture()}, ModelType: new(string(c.Kind)), Hidden: &c.Hidden, Intermediate: &c.Intermediate,
		Layers: &c.Layers, Heads: &c.Heads, KVHeads: &c.KVHeads, HeadDim: &c.HeadDim, Vocab: &c.Vocab, MaxPositions: &c.MaxPositions,
		Act: new("silu"), Eps: new(float(c.Eps)), Theta: new(float(c.Theta)), Tied: c.Tied, BOS: c.BOS, EOS: c.EOS, Pad: c.Pad,
		TorchDType: new("float32")}
	if c.DType == BF16 {
		j.TorchDType = new("bfloat16")
	}
	if s := c.RopeScaling; s != nil {
		j.RopeScaling = &ropeJSON{Type: new("llama3"), Factor: new(float(s.Factor)), Low: new(float(s.LowFreq)), High: new(float(s.HighFreq)),
			Original: &s.OriginalPositions}
	}
	switch c.Kind {
	case Llama:
		j.AttentionBias, j.MLPBias = &c.QKVBias, &c.MLPBias
	case Qwen3:
		j.AttentionBias = &c.QKVBias
	}
	if c.Kind != Llama {
		j.UseSliding = new(bool)
	}
	return writeJSON(path, j)
}

// Generation is a generation_config.json. What a file does not say is nil.
type Generation struct {
	BOS         *int32
	EOS         []int32 // where nil the Config's count
	Pad         *int32
	DoSample    *bool
	Temperature *float64
	TopP        *float64
	TopK        *int

	others map[string]jsontext.Value // kept for writing
}

type generationJSON struct {
	BOS         *int32                    `json:"bos_token_id,omitzero"`
	EOS         ids                       `json:"eos_token_id,omitzero"`
	Pad         *int32                    `json:"pad_token_id,omitzero"`
	DoSample    *bool                     `json:"do_sample,omitzero"`
	Temperature *float                    `json:"temperature,omitzero"`
	TopP        *float                    `json:"top_p,omitzero"`
	TopK        *int                      `json:"top_k,omitzero"`
	Others      map[string]jsontext.Value `json:",embed"`
}

// readGeneration reads a generation_config.json, of a model with vocab tokens. A file that is not there says nothing.
func readGeneration(path string, vocab int) (Generation, error) {
	var j generationJSON
	if err := readJSON(path, &j); errors.Is(err, os.ErrNotExist) {
		return Generation{}, nil
	} else if err != nil {
		return Generation{}, err
	}
	g := Generation{BOS: j.BOS, EOS: j.EOS, Pad: j.Pad, DoSample: j.DoSample, Temperature: (*float64)(j.Temperature), TopP: (*float64)(j.TopP),
		TopK: j.TopK, others: j.Others}
	if g.Pad != nil && *g.Pad == -1 {
		g.Pad = nil
	}
	if err := g.validate(vocab); err != nil {
		return Generation{}, fmt.Errorf("%s: %w", path, err)
	}
	return g, nil
}

func (g Generation) validate(vocab int) error {
	if t := g.Temperature; t != nil && !(*t >= 0 && *t <= math.MaxFloat32) {
		return fmt.Errorf("temperature: %v is negative or not finite", *t)
	}
	if p := g.TopP; p != nil && !(*p >= 0 && *p <= 1) {
		return fmt.Errorf("top_p: %v is not between 0 and 1", *p)
	}
	if k := g.TopK; k != nil && (*k < 0 || *k > math.MaxInt32) {
		return fmt.Errorf("top_k: %d is negative or too large", *k)
	}
	return checkIDs(g.BOS, g.EOS, g.Pad, vocab)
}

func writeGeneration(path string, g Generation, vocab int) error {
	if err := g.validate(vocab); err != nil {
		return fmt.Errorf("writing %s: %w", path, err)
	}
	return writeJSON(path, generationJSON{g.BOS, g.EOS, g.Pad, g.DoSample, (*float)(g.Temperature), (*float)(g.TopP), g.TopK, g.others})
}
