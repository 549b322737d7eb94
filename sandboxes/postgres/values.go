package postgres

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgtype"
)

// builtins are the types that Postgres itself has.
var builtins = pgtype.NewMap()

// elementOf returns the type of an array type's elements, 0 for what is no array type of Postgres itself.
func elementOf(oid uint32) uint32 {
	if t, ok := builtins.TypeForOID(oid); ok {
		if a, ok := t.Codec.(*pgtype.ArrayCodec); ok {
			return a.ElementType.OID
		}
	}
	return 0
}

// maxExact is the largest integer that every reader of JSON gets right.
const maxExact = 1<<53 - 1

// encode gives a value's JSON from its type and its text (nil for NULL). element is the type of an array's elements, 0 where
// it is no array. Text that does not look as its type should, after SET datestyle for example, stays text.
func encode(oid, element uint32, text []byte) json.RawMessage {
	if text == nil {
		return json.RawMessage("null")
	}
	s := string(text)
	if element != 0 {
		if v, ok := encodeArray(element, s); ok {
			return v
		}
		return quote(s)
	}
	switch oid {
	case pgtype.BoolOID:
		switch s {
		case "t":
			return json.RawMessage("true")
		case "f":
			return json.RawMessage("false")
		}
	case pgtype.Int2OID, pgtype.Int4OID, pgtype.Int8OID, pgtype.OIDOID:
		if n, err := strconv.ParseInt(s, 10, 64); err == nil && -maxExact <= n && n <= maxExact {
			return text
		}
	case pgtype.Float4OID, pgtype.Float8OID:
		if json.Valid(text) {
			return text
		}
	case pgtype.JSONOID, pgtype.JSONBOID:
		if json.Valid(text) {
			return text
		}
	case pgtype.TimestamptzOID:
		for _, layout := range []string{"2006-01-02 15:04:05.999999999-07", "2006-01-02 15:04:05.999999999-07:00", "2006-01-02 15:04:05.999999999-07:00:00"} {
			if t, err := time.Parse(layout, s); err == nil {
				return quote(t.UTC().Format(time.RFC3339Nano))
			}
		}
	case pgtype.TimestampOID:
		if t, err := time.Parse("2006-01-02 15:04:05.999999999", s); err == nil {
			return quote(t.Format("2006-01-02T15:04:05.999999999"))
		}
	}
	return quote(s)
}

// quote is json.Marshal of a text, without the escapes that only HTML needs.
func quote(s string) json.RawMessage { return compact(s) }

// compact is json.Marshal without the escapes that only HTML needs. v must be of types that can be encoded.
func compact(v any) []byte {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		panic(fmt.Sprintf("postgres: encode a result: %v", err))
	}
	return bytes.TrimSuffix(b.Bytes(), []byte("\n"))
}

// encodeArray reads the text form of an array: braces, commas, elements in quotes where they need them, and bounds before it
// where they do not begin at 1 (PostgreSQL manual, "Array Input and Output Syntax").
func encodeArray(element uint32, s string) (json.RawMessage, bool) {
	if strings.HasPrefix(s, "[") {
		_, after, ok := strings.Cut(s, "=")
		if !ok {
			return nil, false
		}
		s = after
	}
	delimiter := byte(',')
	if element == pgtype.BoxOID {
		delimiter = ';'
	}
	p := arrayParser{s, element, delimiter}
	v, ok := p.array(nil)
	return v, ok && p.rest == ""
}

type arrayParser struct {
	rest      string
	element   uint32
	delimiter byte
}

func (p *arrayParser) array(out []byte) ([]byte, bool) {
	if !strings.HasPrefix(p.rest, "{") {
		return nil, false
	}
	p.rest = p.rest[1:]
	out = append(out, '[')
	if strings.HasPrefix(p.rest, "}") {
		p.rest = p.rest[1:]
		return append(out, ']'), true
	}
	for {
		ok := true
		if strings.HasPrefix(p.rest, "{") {
			out, ok = p.array(out)
		} else {
			var text []byte
			if text, ok = p.item(); ok {
				out = append(out, encode(p.element, 0, text)...)
			}
		}
		if !ok || p.rest == "" {
			return nil, false
		}
		c := p.rest[0]
		p.rest = p.rest[1:]
		switch c {
		case '}':
			return append(out, ']'), true
		case p.delimiter:
			out = append(out, ',')
		default:
			return nil, false
		}
	}
}

// item reads one element: nil is NULL.
func (p *arrayParser) item() ([]byte, bool) {
	text := []byte{}
	quoted := strings.HasPrefix(p.rest, `"`)
	i := 0
	if quoted {
		i = 1
	}
	for ; i < len(p.rest); i++ {
		switch c := p.rest[i]; {
		case c == '\\' && i+1 < len(p.rest):
			i++
			text = append(text, p.rest[i])
		case quoted && c == '"':
			p.rest = p.rest[i+1:]
			return text, true
		case !quoted && (c == p.delimiter || c == '}'):
			p.rest = p.rest[i:]
			if strings.EqualFold(string(text), "null") {
				return nil, true
			}
			return text, len(text) > 0
		default:
			text = append(text, c)
		}
	}
	return nil, false
}
