package checkpoint

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	jsonv2 "github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

// Adapter is a LoRA (Hu et al. 2021): a linear layer's weight becomes W + Scale·B·A.
type Adapter struct {
	Rank   int
	Alpha  float64
	RSLoRA bool   // Scale divides by the root of Rank
	Base   string // base_model_name_or_path: a name or a folder
	Layers []AdapterLayer
}

// AdapterLayer is the part of an adapter at the linear layer Name: A is of the shape [Rank, In] and B of [Out, Rank].
type AdapterLayer struct {
	Name string
	A, B []float32
}

// Scale is the factor of B·A.
func (a Adapter) Scale() float64 {
	if a.RSLoRA {
		return a.Alpha / math.Sqrt(float64(a.Rank))
	}
	return a.Alpha / float64(a.Rank)
}

const (
	adapterConfigFile = "adapter_config.json"
	adapterFile       = "adapter_model.safetensors"
	adapterPrefix     = "base_model.model."
)

// adapterJSON is what of adapter_config.json is known. Everything else must be switched off.
type adapterJSON struct {
	Base    *string                   `json:"base_model_name_or_path"`
	Bias    *string                   `json:"bias"`
	Infer   *bool                     `json:"inference_mode"`
	Init    jsontext.Value            `json:"init_lora_weights"`
	Alpha   *float                    `json:"lora_alpha"`
	Dropout *float                    `json:"lora_dropout"`
	Type    *string                   `json:"peft_type"`
	Rank    *int                      `json:"r"`
	Targets jsontext.Value            `json:"target_modules"`
	Task    *string                   `json:"task_type"`
	RSLoRA  bool                      `json:"use_rslora"`
	Others  map[string]jsontext.Value `json:",embed"`
}

// Fields that say nothing about the weights: where they came from, or about a method that has a switch of its own.
var idleFields = []string{"auto_mapping", "ensure_weight_tying", "eva_config", "megatron_core", "peft_version", "qalora_group_size", "revision"}

// Ways to begin that leave the base model as it is.
var knownInits = []string{"true", "false", `"gaussian"`, `"eva"`, `"orthogonal"`}

// ReadAdapter reads a folder with adapter_config.json and adapter_model.safetensors. Layers are in the order of c.Linears. A dropout
// is not kept.
func ReadAdapter(dir string, c Config) (Adapter, error) {
	path := filepath.Join(dir, adapterConfigFile)
	var j adapterJSON
	if err := readJSON(path, &j); err != nil {
		return Adapter{}, err
	}
	a, targets, err := j.adapter(c)
	if err != nil {
		return Adapter{}, fmt.Errorf("%s: %w", path, err)
	}
	f, err := OpenFile(filepath.Join(dir, adapterFile))
	if err != nil {
		return Adapter{}, err
	}
	defer f.Close()
	unknown := maps.Clone(f.entries)
	for _, l := range targets {
		var values [2][]float32
		for i, w := range a.weights(l) {
			if _, ok := f.entries[w.Name]; !ok {
				return Adapter{}, fmt.Errorf("%s: tensor %q: missing, though target_modules names it", f.file.Name(), w.Name)
			}
			if err := f.expect(w); err != nil {
				return Adapter{}, err
			}
			t, err := f.Read(w.Name)
			if err != nil {
				return Adapter{}, err
			}
			values[i] = t.Floats()
			delete(unknown, w.Name)
		}
		a.Layers = append(a.Layers, AdapterLayer{l.Name, values[0], values[1]})
	}
	for _, name := range slices.Sorted(maps.Keys(unknown)) {
		return Adapter{}, fmt.Errorf("%s: tensor %q: not among target_modules", f.file.Name(), name)
	}
	return a, nil
}

// weights are the tensors A and B of a layer.
func (a Adapter) weights(l Linear) [2]Weight {
	name := adapterPrefix + l.Name
	return [2]Weight{{name + ".lora_A.weight", []int{a.Rank, l.In}}, {name + ".lora_B.weight", []int{l.Out, a.Rank}}}
}

// adapter gives what j says, without the weights, and the layers that have some. The error begins with the field.
func (j *adapterJSON) adapter(c Config) (Adapter, []Linear, error) {
	fail := func(format string, a ...any) (Adapter, []Linear, error) {
		return Adapter{}, nil, fmt.Errorf(format, a...)
	}
	switch {
	case j.Type == nil || *j.Type != "LORA":
		return fail("peft_type: %s, want LORA", said(j.Type))
	case j.Task != nil && *j.Task != "CAUSAL_LM":
		return fail("task_type: %s, want CAUSAL_LM", said(j.Task))
	case j.Bias != nil && *j.Bias != "none":
		return fail("bias: %s, want none", said(j.Bias))
	case j.Rank == nil:
		return fail("r: missing")
	case j.Alpha == nil:
		return fail("lora_alpha: missing")
	case j.Init != nil && !slices.Contains(knownInits, string(j.Init)):
		return fail("init_lora_weights: %s changes the base model", j.Init)
	}
	for _, name := range slices.Sorted(maps.Keys(j.Others)) {
		v := j.Others[name]
		if err := v.Compact(); err != nil {
			return fail("%s: %w", quoted(name), err)
		}
		switch {
		case slices.Contains(idleFields, name):
		case name == "loftq_config" && string(j.Init) != `"loftq"`: // it only counts there
		case !slices.Contains([]string{"null", "false", "{}", "[]", `""`}, string(v)):
			return fail("%s: not known, and switched on", quoted(name))
		}
	}
	a := Adapter{Rank: *j.Rank, Alpha: float64(*j.Alpha), RSLoRA: j.RSLoRA}
	if j.Base != nil {
		a.Base = *j.Base
	}
	if err := a.validate(); err != nil {
		return fail("%w", err)
	}
	targets, err := j.targets(c)
	return a, targets, err
}

func (a Adapter) validate() error {
	if a.Rank < 1 || a.Rank > maxSize {
		return fmt.Errorf("r: %d is not between 1 and %d", a.Rank, maxSize)
	}
	if !(a.Alpha > 0 && a.Alpha <= math.MaxFloat32) {
		return fmt.Errorf("lora_alpha: %v is not a positive number", a.Alpha)
	}
	return nil
}

func said(s *string) string {
	if s == nil {
		return "missing"
	}
	return fmt.Sprintf("%q", *s)
}

// targets finds the layers that target_modules means: ends of names, a regular expression of whole names, or all-linear.
func (j *adapterJSON) targets(c Config) ([]Linear, error) {
	var matches func(name string) bool
	switch j.Targets.Kind() {
	case '"':
		var s string
		if err := decode(j.Targets, &s); err != nil {
			return nil, fmt.Errorf("target_modules: %w", err)
		}
		if s == "all-linear" {
			return c.Linears(), nil
		}
		re, err := regexp.Compile(`^(?:` + s + `)$`)
		if err != nil {
			return nil, fmt.Errorf("target_modules: %q is not a regular expression that Go knows", s)
		}
		matches = re.MatchString
	case '[':
		var list []string
		if err := decode(j.Targets, &list); err != nil {
			return nil, fmt.Errorf("target_modules: %w", err)
		}
		matches = func(name string) bool {
			return slices.ContainsFunc(list, func(s string) bool { return name == s || strings.HasSuffix(name, "."+s) })
		}
	default:
		return nil, errors.New("target_modules: want a list of names or a string")
	}
	for _, w := range []string{embedding, head} {
		if name := strings.TrimSuffix(w, ".weight"); matches(name) {
			return nil, fmt.Errorf("target_modules: %s, which cannot be adapted", name)
		}
	}
	l := slices.DeleteFunc(c.Linears(), func(l Linear) bool { return !matches(l.Name) })
	if len(l) == 0 {
		return nil, errors.New("target_modules: none of the model's layers is among them")
	}
	return l, nil
}

// WriteAdapter writes an adapter of a model c into the new folder dir, whole or not at all.
func WriteAdapter(dir string, c Config, a Adapter) error {
	if err := a.validate(); err != nil {
		return fmt.Errorf("writing %s: %w", dir, err)
	}
	linears := map[string]Linear{}
	for _, l := range c.Linears() {
		linears[l.Name] = l
	}
	var names []string
	var tensors []Tensor
	for _, l := range a.Layers {
		linear, ok := linears[l.Name]
		if !ok {
			return fmt.Errorf("writing %s: the model has no layer %q", dir, l.Name)
		}
		w := a.weights(linear)
		tensors = append(tensors, Tensor{Name: w[0].Name, Shape: w[0].Shape, F32: l.A}, Tensor{Name: w[1].Name, Shape: w[1].Shape, F32: l.B})
		names = append(names, l.Name)
	}
	j := adapterJSON{Base: &a.Base, Bias: new("none"), Infer: new(true), Init: jsontext.Value("true"), Alpha: new(float(a.Alpha)), Dropout: new(float),
		Type: new("LORA"), Rank: &a.Rank, Task: new("CAUSAL_LM"), RSLoRA: a.RSLoRA}
	var err error
	if j.Targets, err = jsonv2.Marshal(shortTargets(names, c.Layers)); err != nil {
		return fmt.Errorf("writing %s: target_modules: %w", dir, err)
	}
	return newFolder(dir, func(tmp string) error {
		if err := writeJSON(filepath.Join(tmp, adapterConfigFile), j); err != nil {
			return err
		}
		return WriteFile(filepath.Join(tmp, adapterFile), tensors)
	})
}

// shortTargets gives the last parts of the layers' names where these are adapted in all blocks, else the whole names.
func shortTargets(names []string, blocks int) []string {
	count := map[string]int{}
	for _, name := range names {
		count[name[strings.LastIndexByte(name, '.')+1:]]++
	}
	for _, n := range count {
		if n != blocks {
			return slices.Sorted(slices.Values(names))
		}
	}
	return slices.Sorted(maps.Keys(count))
}
