package bpe

import (
	"bytes"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

// MarshalJSONTo writes the tokens in order of their ids.
func (v vocabulary) MarshalJSONTo(e *jsontext.Encoder) error {
	if err := e.WriteToken(jsontext.BeginObject); err != nil {
		return err
	}
	for _, s := range slices.SortedFunc(maps.Keys(v), func(a, b string) int { return int(v[a]) - int(v[b]) }) {
		if err := e.WriteToken(jsontext.String(s)); err != nil {
			return err
		}
		if err := e.WriteToken(jsontext.Int(int64(v[s]))); err != nil {
			return err
		}
	}
	return e.WriteToken(jsontext.EndObject)
}

// Write writes tokenizer.json into a folder, as the tokenizers library and Open read it, and a tokenizer_config.json that says no
// more than how transformers is to read it. The same tokenizer gives the same bytes.
func (t *Tokenizer) Write(dir string) error {
	config := struct {
		Class   string `json:"tokenizer_class"`
		CleanUp bool   `json:"clean_up_tokenization_spaces"`
	}{"PreTrainedTokenizerFast", false}
	for name, v := range map[string]any{"tokenizer.json": t.asFile(), "tokenizer_config.json": config} {
		var b bytes.Buffer
		if err := json.MarshalWrite(&b, v, json.Deterministic(true)); err != nil {
			return fmt.Errorf("marshal %s: %w", name, err)
		}
		b.WriteByte('\n')
		if err := os.WriteFile(filepath.Join(dir, name), b.Bytes(), 0o666); err != nil {
			return fmt.Errorf("write a tokenizer: %w", err)
		}
	}
	return nil
}

// asFile is the file that gives the same tokenizer.
func (t *Tokenizer) asFile() file {
	f := t.file
	f.Version, f.Model.Type = "1.0", "BPE"
	f.Model.Merges = make([]spelling, len(t.rules))
	for i, r := range t.rules {
		f.Model.Merges[i] = spelling{t.spelled[r.left], t.spelled[r.right]}
	}
	return f
}
