package checkpoint

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"

	jsonv2 "github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

// The largest JSON file that is read; an index of shards is the largest of those in use, with about 100 bytes a tensor.
const maxJSON = 16 << 20

// readJSON reads the JSON file path into v. Repeated names are refused: who reads the file next may take the other one.
func readJSON(path string, v any, options ...jsonv2.Options) error {
	f, err := os.Open(path)
	if err != nil {
		return err // it names the path
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxJSON+1))
	if err != nil {
		return err
	}
	if len(data) > maxJSON {
		return fmt.Errorf("%s: larger than %d bytes", path, maxJSON)
	}
	if err := decode(data, v, options...); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	return nil
}

// decode reads JSON into v. The error begins with the field, and is one line.
func decode(data []byte, v any, options ...jsonv2.Options) error {
	err := jsonv2.Unmarshal(data, v, options...)
	if e, ok := errors.AsType[*jsonv2.SemanticError](err); ok {
		field := strings.ReplaceAll(strings.TrimPrefix(string(e.JSONPointer), "/"), "/", ".")
		if field = quoted(field); field != "" {
			field += ": "
		}
		switch {
		case errors.Is(e.Err, jsonv2.ErrUnknownName):
			return fmt.Errorf("%sunknown field", field)
		case e.Err != nil:
			return fmt.Errorf("%s%w", field, e.Err)
		case e.GoType != nil:
			return fmt.Errorf("%sa JSON %s, want %s", field, kindName(e.JSONKind), e.GoType.Kind())
		}
	}
	if err != nil {
		return fmt.Errorf("not JSON: %w", err)
	}
	return nil
}

func kindName(k jsontext.Kind) string {
	switch k {
	case '{':
		return "object"
	case '[':
		return "array"
	}
	return k.String()
}

// quoted gives a name as it is, or in quotes where it might break a line.
func quoted(name string) string {
	if q := strconv.Quote(name); q != `"`+name+`"` {
		return q
	}
	return name
}

// writeJSON writes v into a new file, indented as the reference does it.
func writeJSON(path string, v any) error {
	data, err := jsonv2.Marshal(v, jsonv2.Deterministic(true), jsontext.WithIndent("  "))
	if err != nil {
		return fmt.Errorf("writing %s: %w", path, err)
	}
	return os.WriteFile(path, append(data, '\n'), 0o644)
}

// ids is a list of tokens that is written as one number where it holds one, and as null where it holds none.
type ids []int32

func (t *ids) UnmarshalJSONFrom(d *jsontext.Decoder) error {
	if d.PeekKind() != '0' {
		return jsonv2.UnmarshalDecode(d, (*[]int32)(t))
	}
	*t = make(ids, 1)
	return jsonv2.UnmarshalDecode(d, &(*t)[0])
}

func (t ids) MarshalJSONTo(e *jsontext.Encoder) error {
	switch len(t) {
	case 0:
		return e.WriteToken(jsontext.Null)
	case 1:
		return e.WriteToken(jsontext.Int(int64(t[0])))
	}
	return jsonv2.MarshalEncode(e, []int32(t))
}

// float is a number that is written with a point or an exponent, since Python tells 1 from 1.0 and the reference checks it.
type float float64

func (x float) MarshalJSONTo(e *jsontext.Encoder) error {
	b, err := jsonv2.Marshal(float64(x))
	if err != nil {
		return err
	}
	if !strings.ContainsAny(string(b), ".eE") {
		b = append(b, ".0"...)
	}
	return e.WriteValue(b)
}
