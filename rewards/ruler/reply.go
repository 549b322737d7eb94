package ruler

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/mcpgym/mcpgym/envs"
)

// mark is what a judge says of one trajectory.
type mark struct {
	score  float64
	reason string
}

// ReplyError says why a judge's reply is not used. Class is what was found wrong first, in this order: json, schema, type,
// count, ids, range.
type ReplyError struct {
	Class, Detail string
}

func (e *ReplyError) Error() string { return e.Class + ": " + e.Detail }

// parseReply reads a judge's reply: a mark for each of ids, by id and never by position. A reply that is wrong anywhere gives
// no marks at all.
func parseReply(text string, ids []string) (map[string]mark, error) {
	fault := func(class, format string, args ...any) error { return &ReplyError{class, fmt.Sprintf(format, args...)} }
	v, err := envs.DecodeJSON([]byte(strip(text)))
	if err != nil {
		return nil, fault("json", "%v", err)
	}
	top, _ := v.(map[string]any)
	list, ok := top["scores"].([]any)
	if !ok {
		return nil, fault("schema", `want an object with a list "scores"`)
	}
	for i, e := range list {
		entry, ok := e.(map[string]any)
		if !ok {
			return nil, fault("schema", "entry %d of scores is no object", i)
		}
		for _, key := range []string{"trajectory_id", "score"} {
			if _, ok := entry[key]; !ok {
				return nil, fault("schema", "entry %d of scores has no %s", i, key)
			}
		}
	}
	type line struct {
		id, reason string
		score      json.Number
	}
	lines := make([]line, len(list))
	for i, e := range list {
		entry := e.(map[string]any)
		switch id := entry["trajectory_id"].(type) {
		case string:
			lines[i].id = id
		case json.Number:
			lines[i].id = id.String()
		default:
			return nil, fault("type", "trajectory_id of entry %d is not text", i)
		}
		if lines[i].score, ok = entry["score"].(json.Number); !ok {
			return nil, fault("type", "score of %q is not a number", lines[i].id)
		}
		if why, has := entry["explanation"]; has {
			if lines[i].reason, ok = why.(string); !ok {
				return nil, fault("type", "explanation of %q is not text", lines[i].id)
			}
		}
	}
	if len(lines) != len(ids) {
		return nil, fault("count", "%d scores, want %d", len(lines), len(ids))
	}
	marks := map[string]mark{}
	for _, l := range lines {
		if !slices.Contains(ids, l.id) {
			return nil, fault("ids", "nobody asked for %q", l.id)
		}
		if _, twice := marks[l.id]; twice {
			return nil, fault("ids", "%q is scored twice", l.id)
		}
		marks[l.id] = mark{reason: l.reason}
	}
	for _, l := range lines {
		f, err := l.score.Float64()
		if err != nil || !(f >= 0 && f <= 1) {
			return nil, fault("range", "score %s of %q is not in [0, 1]", l.score, l.id)
		}
		marks[l.id] = mark{f + 0, l.reason} // + 0 turns -0 into 0
	}
	return marks, nil
}

// strip takes away what models put around JSON: thinking before it, a code fence.
func strip(text string) string {
	text = strings.TrimSpace(text)
	if strings.HasPrefix(text, "{") {
		return text
	}
	if i := strings.LastIndex(text, "</think>"); i >= 0 {
		text = text[i+len("</think>"):]
	}
	if _, fenced, ok := strings.Cut(text, "```"); ok {
		if i := strings.LastIndex(fenced, "```"); i >= 0 {
			text = strings.TrimPrefix(fenced[:i], "json")
		}
	}
	return strings.TrimSpace(text)
}
