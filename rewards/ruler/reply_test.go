package ruler

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/mcpgym/mcpgym/sandboxes/casetest"
)

func TestReply(t *testing.T) {
	casetest.Run(t, "judge-reply", func(t *testing.T, c casetest.Case) {
		var in struct{ IDs []string }
		(casetest.Case{ID: c.ID, Input: c.Context}).In(t, &in)
		marks, err := parseReply(c.Input, in.IDs)
		got := map[string]any{"ok": err == nil}
		var e *ReplyError
		if errors.As(err, &e) {
			got["error"] = e.Class
		}
		scores, same := map[string]float64{}, true
		for id, m := range marks {
			scores[id] = m.score
			same = same && m.score == marks[in.IDs[0]].score
		}
		got["scores"], got["no_signal"] = scores, same
		c.Check(t, got)
	})
}

func TestReplyOrderOfChecks(t *testing.T) {
	for _, c := range []struct{ name, reply, class string }{
		{"NaN is not JSON", `{"scores":[{"trajectory_id":"a","score":NaN}]}`, "json"},
		{"two values", `{"scores":[]} {"scores":[]}`, "json"},
		{"a key twice", `{"scores":[{"trajectory_id":"a","score":0.1,"score":0.9},{"trajectory_id":"b","score":0}]}`, "json"},
		{"empty", "", "json"},
		{"a list", `[1]`, "schema"},
		{"scores no list", `{"scores":{"a":1}}`, "schema"},
		{"an entry no object", `{"scores":[{"trajectory_id":"a","score":true},0.5]}`, "schema"},
		{"no score, before a wrong type", `{"scores":[{"trajectory_id":"a","score":"1"},{"trajectory_id":"b"}]}`, "schema"},
		{"a wrong type, before the count", `{"scores":[{"trajectory_id":"a","score":"1"}]}`, "type"},
		{"an id of null", `{"scores":[{"trajectory_id":null,"score":1},{"trajectory_id":"b","score":1}]}`, "type"},
		{"an explanation of numbers", `{"scores":[{"trajectory_id":"a","score":1,"explanation":1},{"trajectory_id":"b","score":1}]}`, "type"},
		{"the count, before ids", `{"scores":[{"trajectory_id":"z","score":7}]}`, "count"},
		{"too many", `{"scores":[{"trajectory_id":"a","score":1},{"trajectory_id":"b","score":1},{"trajectory_id":"b","score":1}]}`, "count"},
		{"ids, before the range", `{"scores":[{"trajectory_id":"a","score":7},{"trajectory_id":"z","score":1}]}`, "ids"},
		{"twice", `{"scores":[{"trajectory_id":"a","score":1},{"trajectory_id":"a","score":1}]}`, "ids"},
		{"below", `{"scores":[{"trajectory_id":"a","score":-0.01},{"trajectory_id":"b","score":1}]}`, "range"},
		{"far above", `{"scores":[{"trajectory_id":"a","score":1e999},{"trajectory_id":"b","score":1}]}`, "range"},
		{"good", `{"scores":[{"trajectory_id":"b","score":-0},{"trajectory_id":"a","score":1}],"more":1}`, ""},
		{"good, in a fence with talk around it", "Here:\n```json\n{\"scores\":[{\"trajectory_id\":\"b\",\"score\":0},{\"trajectory_id\":\"a\",\"score\":1}]}\n```\nDone.", ""},
		{"good, with such talk in an explanation", `{"scores":[{"trajectory_id":"b","score":0,"explanation":"says </think> and ` + "```" + `"},{"trajectory_id":"a","score":1}]}`, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			marks, err := parseReply(c.reply, []string{"a", "b"})
			if c.class == "" {
				require.NoError(t, err)
				require.Equal(t, 1.0, marks["a"].score)
				require.Equal(t, 0.0, marks["b"].score)
				return
			}
			var e *ReplyError
			require.ErrorAs(t, err, &e)
			require.Equal(t, c.class, e.Class)
			require.Nil(t, marks)
		})
	}
}

// Whatever a judge writes gives one mark in [0, 1] for each id, or none at all and a reason.
func FuzzReply(f *testing.F) {
	cases, err := casetest.Load()
	require.NoError(f, err)
	for _, c := range cases {
		if c.Kind == "judge-reply" {
			f.Add(c.Input)
		}
	}
	ids := []string{"1", "2", "3", "4"}
	f.Fuzz(func(t *testing.T, reply string) {
		marks, err := parseReply(reply, ids)
		if err != nil {
			var e *ReplyError
			require.ErrorAs(t, err, &e)
			require.Contains(t, []string{"json", "schema", "type", "count", "ids", "range"}, e.Class)
			require.Nil(t, marks)
			return
		}
		require.Len(t, marks, len(ids))
		for _, id := range ids {
			m, ok := marks[id]
			require.True(t, ok && m.score >= 0 && m.score <= 1, "%q of %s", id, reply)
		}
	})
}
