package files_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/mcpgym/mcpgym/sandboxes"
	"github.com/mcpgym/mcpgym/sandboxes/files"
)

// A page of a text ends with a line where one ends in it, so that no line is shown in two pieces.
func TestPagesEndWithLines(t *testing.T) {
	const result = 256
	text := strings.Repeat("the quick brown fox\n", 40) + strings.Repeat("x", 600) + "\nend"
	p, err := files.New(nil, func(sandboxes.World) (files.Setup, error) {
		return files.Setup{Files: map[string]files.File{"a.txt": {Text: text}}, Limits: files.Limits{Result: result}}, nil
	}, 1)
	require.NoError(t, err)
	defer p.Close()
	box, err := p.Lease(t.Context(), sandboxes.World{})
	require.NoError(t, err)
	defer box.Close()
	var pages []string
	for args := `{"path":"a.txt"}`; args != ""; {
		r, err := box.Session().Call(t.Context(), "read_text_file", json.RawMessage(args))
		require.NoError(t, err)
		var page struct {
			Content string
			Next    string `json:"next_cursor"`
		}
		require.NoError(t, json.Unmarshal([]byte(r.Text), &page), r.Text)
		pages = append(pages, page.Content)
		if args = ""; page.Next != "" {
			args = fmt.Sprintf(`{"path":"a.txt","cursor":%q}`, page.Next)
		}
	}
	require.Equal(t, text, strings.Join(pages, ""))
	cut := 0
	for _, p := range pages[:len(pages)-1] {
		if !strings.HasSuffix(p, "\n") {
			require.Equal(t, strings.Repeat("x", result), p, "only a line that is longer than a page is cut")
			cut++
		}
	}
	require.Equal(t, 2, cut)
}
