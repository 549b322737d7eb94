package checkpoint

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"

	jsonv2 "github.com/go-json-experiment/json"
)

// Model is an open model's folder, whose tensors fit its Config.
type Model struct {
	Config     Config
	Generation Generation // zero where the folder has none

	files []*File
	at    map[string]*File // by tensor
}

const (
	configFile     = "config.json"
	generationFile = "generation_config.json"
	modelFile      = "model.safetensors"
	indexFile      = "model.safetensors.index.json"
)

// OpenModel opens a folder with config.json and model.safetensors, or the shards of model.safetensors.index.json, and checks that
// exactly the tensors of Config.Weights are there. An lm_head.weight of a tied model must equal the embedding.
func OpenModel(dir string) (*Model, error) {
	c, err := ReadConfig(filepath.Join(dir, configFile))
	if err != nil {
		return nil, err
	}
	g, err := readGeneration(filepath.Join(dir, generationFile), c.Vocab)
	if err != nil {
		return nil, err
	}
	m := &Model{Config: c, Generation: g, at: map[string]*File{}}
	if err := m.open(dir); err != nil {
		m.Close()
		return nil, err
	}
	return m, nil
}

func (m *Model) open(dir string) error {
	main, open := filepath.Join(dir, modelFile), m.openFile
	if absent(main) {
		main, open = filepath.Join(dir, indexFile), m.openShards
		if absent(main) {
			return fmt.Errorf("%s: has neither %s nor %s", dir, modelFile, indexFile)
		}
	}
	if err := open(main); err != nil {
		return err
	}
	return m.check(main)
}

func absent(path string) bool {
	_, err := os.Lstat(path)
	return errors.Is(err, os.ErrNotExist)
}

func (m *Model) openFile(path string) error {
	f, err := OpenFile(path)
	if err != nil {
		return err
	}
	m.files = append(m.files, f)
	for name := range f.entries {
		m.at[name] = f
	}
	return nil
}

// openShards opens the files of an index, each of which must hold just the tensors that the index looks for in it.
func (m *Model) openShards(path string) error {
	var index struct {
		WeightMap map[string]string `json:"weight_map"`
	}
	if err := readJSON(path, &index); err != nil {
		return err
	}
	if index.WeightMap == nil {
		return fmt.Errorf("%s: weight_map: missing", path)
	}
	shards := slices.Compact(slices.Sorted(maps.Values(index.WeightMap)))
	for _, shard := range shards {
		if shard == "" || shard == "." || shard == ".." || filepath.Base(shard) != shard {
			return fmt.Errorf("%s: weight_map: %q is not the name of a file", path, shard)
		}
		if err := m.openFile(filepath.Join(filepath.Dir(path), shard)); err != nil {
			return err
		}
		f := m.files[len(m.files)-1]
		for _, name := range slices.Sorted(maps.Keys(f.entries)) {
			if index.WeightMap[name] != shard {
				return fmt.Errorf("%s: tensor %q: weight_map has it in %q", f.file.Name(), name, index.WeightMap[name])
			}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(index.WeightMap)) {
		if m.at[name] == nil {
			return fmt.Errorf("%s: weight_map: tensor %q is not in %s", path, name, index.WeightMap[name])
		}
	}
	return nil
}

// Buffers of the rotary positions that older versions stored. Config says all that is in them.
var rotary = regexp.MustCompile(`^model\.(layers\.\d+\.self_attn\.)?rotary_emb\.inv_freq$`)

// check compares the tensors with Config. main is the file that is named where one is missing.
func (m *Model) check(main string) error {
	unknown := maps.Clone(m.at)
	for _, w := range m.Config.Weights() {
		f := m.at[w.Name]
		if f == nil {
			return fmt.Errorf("%s: tensor %q: missing", main, w.Name)
		}
		if err := f.expect(w); err != nil {
			return err
		}
		delete(unknown, w.Name)
	}
	for _, name := range slices.Sorted(maps.Keys(unknown)) {
		f := unknown[name]
		switch {
		case rotary.MatchString(name):
		case name == head: // of a tied model
			// Versions of the reference differ in which of two tensors they take, so there must be no difference.
			if err := f.expect(Weight{name, []int{m.Config.Vocab, m.Config.Hidden}}); err != nil {
				return err
			}
			h, err := m.Read(head)
			if err != nil {
				return err
			}
			e, err := m.Read(embedding)
			if err != nil {
				return err
			}
			if !slices.Equal(h.Floats(), e.Floats()) {
				return fmt.Errorf("%s: tensor %q: differs from %q, though tie_word_embeddings says that they are one", f.file.Name(), head, embedding)
			}
		default:
			return fmt.Errorf("%s: tensor %q: unknown in a %s of this configuration", f.file.Name(), name, m.Config.Kind)
		}
	}
	return nil
}

// expect compares the shape of a tensor that the file has.
func (f *File) expect(w Weight) error {
	if have := f.entries[w.Name].Shape; !slices.Equal(have, w.Shape) {
		return fmt.Errorf("%s: tensor %q: shape %v, want %v", f.file.Name(), w.Name, have, w.Shape)
	}
	return nil
}

// Read reads one of Config.Weights. A tensor that holds a NaN or an infinity is refused.
func (m *Model) Read(name string) (Tensor, error) {
	f := m.at[name]
	if f == nil {
		return Tensor{}, fmt.Errorf("tensor %q: missing", name)
	}
	return f.Read(name)
}

// Close closes the files.
func (m *Model) Close() error {
	var errs []error
	for _, f := range m.files {
		errs = append(errs, f.Close())
	}
	return errors.Join(errs...)
}

// What a tokenizer consists of, in the folders in use.
var tokenizerFiles = []string{"tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "special_tokens_map.json", "added_tokens.json",
	"vocab.json", "merges.txt", "tokenizer.model"}

// WriteModel writes a model into the new folder dir, whole or not at all: config.json, generation_config.json, and
// model.safetensors in BF16 where that is c.DType, else in F32, whatever the tensors are in memory. Tokenizer files are copied
// from the folder tokenizer, unless that is "".
func WriteModel(dir string, c Config, g Generation, tensors []Tensor, tokenizer string) error {
	if err := c.Validate(); err != nil {
		return fmt.Errorf("writing %s: %w", dir, err)
	}
	if err := fit(c.Weights(), tensors); err != nil {
		return fmt.Errorf("writing %s: %w", dir, err)
	}
	dtype := F32
	if c.DType == BF16 {
		dtype = BF16
	}
	return newFolder(dir, func(tmp string) error {
		if err := writeConfig(filepath.Join(tmp, configFile), c); err != nil {
			return err
		}
		if err := writeGeneration(filepath.Join(tmp, generationFile), g, c.Vocab); err != nil {
			return err
		}
		if err := writeFile(filepath.Join(tmp, modelFile), tensors, func(Tensor) DType { return dtype }); err != nil {
			return err
		}
		if tokenizer == "" {
			return nil
		}
		for _, name := range tokenizerFiles {
			data, err := os.ReadFile(filepath.Join(tokenizer, name))
			if errors.Is(err, os.ErrNotExist) {
				continue
			}
			if err != nil {
				return err
			}
			if err := os.WriteFile(filepath.Join(tmp, name), data, 0o644); err != nil {
				return err
			}
		}
		return nil
	})
}

// fit refuses tensors that are not just those wanted.
func fit(want []Weight, tensors []Tensor) error {
	have := map[string]Tensor{}
	for _, t := range tensors {
		have[t.Name] = t
	}
	for _, w := range want {
		t, ok := have[w.Name]
		if !ok {
			return fmt.Errorf("tensor %q: missing", w.Name)
		}
		if !slices.Equal(t.Shape, w.Shape) {
			return fmt.Errorf("tensor %q: shape %v, want %v", w.Name, t.Shape, w.Shape)
		}
		delete(have, w.Name)
	}
	for _, name := range slices.Sorted(maps.Keys(have)) {
		return fmt.Errorf("tensor %q: unknown", name)
	}
	return nil
}

// newFolder makes the folder dir, which must not exist, out of the files that fill puts into a temporary one next to it. Once dir has
// its name, its files are on the disk.
func newFolder(dir string, fill func(tmp string) error) error {
	if !absent(dir) {
		return fmt.Errorf("writing %s: %w", dir, os.ErrExist)
	}
	dir = filepath.Clean(dir)
	parent := filepath.Dir(dir)
	if err := os.MkdirAll(parent, 0o755); err != nil {
		return err
	}
	tmp, err := os.MkdirTemp(parent, "."+filepath.Base(dir)+".*")
	if err != nil {
		return err
	}
	defer os.RemoveAll(tmp) // there is none after the renaming
	if err := fill(tmp); err != nil {
		return err
	}
	files, err := os.ReadDir(tmp)
	if err != nil {
		return err
	}
	for _, f := range files {
		if err := sync(filepath.Join(tmp, f.Name())); err != nil {
			return err
		}
	}
	if err := cmp.Or(os.Chmod(tmp, 0o755), sync(tmp)); err != nil {
		return err
	}
	return cmp.Or(os.Rename(tmp, dir), sync(parent))
}

func sync(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	return f.Sync()
}

const (
	stateFile    = "state.json"
	snapshotFile = "state.safetensors"
)

// WriteSnapshot writes state as JSON and tensors into the new folder dir, whole or not at all. Equal input gives equal bytes.
func WriteSnapshot(dir string, state any, tensors []Tensor) error {
	return newFolder(dir, func(tmp string) error {
		if err := writeJSON(filepath.Join(tmp, stateFile), state); err != nil {
			return err
		}
		return WriteFile(filepath.Join(tmp, snapshotFile), tensors)
	})
}

// ReadSnapshot reads what WriteSnapshot wrote: the JSON into state, whose fields must be just those of it, and the tensors as an
// open file.
func ReadSnapshot(dir string, state any) (*File, error) {
	if err := readJSON(filepath.Join(dir, stateFile), state, jsonv2.RejectUnknownMembers(true)); err != nil {
		return nil, err
	}
	return OpenFile(filepath.Join(dir, snapshotFile))
}
