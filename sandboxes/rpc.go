package sandboxes

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"
)

// Result is the answer to a tool call as the client reads it. Text is all that an agent sees.
type Result struct {
	Text       string          // the text items, and a line for each item that is not text
	Structured json.RawMessage // structuredContent, nil where absent
	IsError    bool            // the call failed: isError, or a JSON-RPC error
	Code       int             // code of a JSON-RPC error, else 0
	Volatile   bool            // the server marks the result as depending on a clock, randomness or the like
	Defect     string          // what the server did against the specification; the agent is not charged for it
}

// VolatileMeta is the key in a result's _meta by which a server of this project says that a result is volatile.
const VolatileMeta = "mcpgym/volatile"

// DecodeResult reads the result member of a tools/call response (MCP specification, "Tools", tool result). It never fails:
// what cannot be read becomes an error result with a defect.
func DecodeResult(raw json.RawMessage) Result {
	var in struct {
		Content    []content       `json:"content"`
		Structured json.RawMessage `json:"structuredContent"`
		IsError    bool            `json:"isError"`
		Meta       map[string]any  `json:"_meta"`
	}
	if err := json.Unmarshal(raw, &in); err != nil {
		return Result{IsError: true, Text: "the server's result cannot be read", Defect: "result is not a tool result: " + err.Error()}
	}
	r := Result{IsError: in.IsError}
	if v, _ := in.Meta[VolatileMeta].(bool); v {
		r.Volatile = true
	}
	if len(in.Structured) > 0 && !bytes.Equal(in.Structured, []byte("null")) {
		r.Structured = in.Structured
	}
	var parts []string
	for i, item := range in.Content {
		text, err := item.shown()
		if err != nil {
			r.Defect = fmt.Sprintf("content[%d]: %v", i, err)
			r.IsError = true
			continue
		}
		parts = append(parts, text)
	}
	r.Text = strings.Join(parts, "\n")
	if r.Text == "" && r.Structured != nil {
		r.Text = string(r.Structured)
	}
	if !utf8.Valid(raw) { // decoding has replaced what is not
		r.Defect = "text is not UTF-8"
	}
	return r
}

// content is one content item of a tool result. Only its type is sure to be text: the other members of a type of the future
// may be anything.
type content struct {
	Type     string `json:"type"`
	Text     any    `json:"text"`
	MimeType any    `json:"mimeType"`
	Data     any    `json:"data"`
	URI      any    `json:"uri"`
	Resource any    `json:"resource"`
}

// shown gives what an agent sees of an item. Items that are not text are named, never dropped: an agent that is shown nothing
// retries or invents.
func (c content) shown() (string, error) {
	switch c.Type {
	case "text":
		if text, ok := c.Text.(string); ok {
			return text, nil
		}
		return "", errors.New("item of type text without text")
	case "":
		return "", errors.New("item without type")
	case "resource":
		r, _ := c.Resource.(map[string]any)
		if text, ok := r["text"].(string); ok {
			return text, nil
		}
		return fmt.Sprintf("[resource %v]", r["uri"]), nil
	}
	s := "[" + c.Type
	for _, v := range []any{c.MimeType, c.URI} {
		if text, ok := v.(string); ok {
			s += " " + text
		}
	}
	if data, ok := c.Data.(string); ok {
		s += fmt.Sprintf(", %d base64 characters", len(data))
	}
	return s + "]", nil
}

// Page is one page of tools/list. Next is nil on the last page; an empty text is a cursor like any other
// (MCP specification, "Pagination").
type Page struct {
	Tools []Tool
	Next  *string
}

// ListAll reads every page. A cursor that comes back a second time is the server's fault, else listing would never end.
func ListAll(ctx context.Context, page func(ctx context.Context, cursor *string) (Page, error)) ([]Tool, error) {
	var tools []Tool
	var cursor *string
	seen := map[string]bool{}
	for {
		p, err := page(ctx, cursor)
		if err != nil {
			return nil, err
		}
		if p.Next == nil && tools == nil {
			return p.Tools, nil
		}
		tools = append(tools, p.Tools...)
		if p.Next == nil {
			return tools, nil
		}
		if seen[*p.Next] {
			return nil, &Fault{Kind: FaultProtocol, Op: "list tools", Msg: fmt.Sprintf("cursor repeated: %q", *p.Next)}
		}
		seen[*p.Next] = true
		cursor = p.Next
	}
}

// SameID says whether a response's id answers the request's id. Some servers answer a number with its text, or as a float;
// a client that waits for the exact spelling waits until its timeout.
func SameID(sent, got json.RawMessage) bool {
	if bytes.Equal(sent, got) {
		return true
	}
	a, b := idText(sent), idText(got)
	return a != "" && a == b
}

// idText gives an id's text, or an integer's digits. It is empty for what is no id.
func idText(raw json.RawMessage) string {
	if len(raw) > 0 && raw[0] == '"' {
		var s string
		if json.Unmarshal(raw, &s) != nil {
			return ""
		}
		return s
	}
	whole, fraction, _ := strings.Cut(string(raw), ".")
	if strings.Trim(whole, "-0123456789") != "" || strings.Trim(fraction, "0") != "" {
		return ""
	}
	return whole
}

// Reply is a JSON-RPC response.
type Reply struct {
	ID     json.RawMessage `json:"id"`
	Result json.RawMessage `json:"result"`
	Error  *struct {
		Code    int    `json:"code"`
		Message string `json:"message"`
	} `json:"error"`
}

// DecodeReply reads a JSON-RPC response to the request with the given id. An error is a *Fault of kind protocol.
func DecodeReply(op string, id json.RawMessage, data []byte) (Reply, error) {
	var r Reply
	if err := json.Unmarshal(data, &r); err != nil {
		return r, &Fault{Kind: FaultProtocol, Op: op, Msg: "reply is not JSON-RPC: " + err.Error(), Err: err}
	}
	if !SameID(id, r.ID) {
		return r, &Fault{Kind: FaultProtocol, Op: op, Msg: fmt.Sprintf("reply has id %s, the request had %s", r.ID, id)}
	}
	if r.Error == nil && r.Result == nil {
		return r, &Fault{Kind: FaultProtocol, Op: op, Msg: "reply has neither result nor error"}
	}
	return r, nil
}

// ToolResult reads a response to tools/call. A JSON-RPC error is an error result: the server is alive and has answered.
func (r Reply) ToolResult() Result {
	if r.Error != nil {
		return Result{IsError: true, Code: r.Error.Code, Text: r.Error.Message}
	}
	return DecodeResult(r.Result)
}

// DecodePage reads the result member of a tools/list response. An error is a *Fault of kind protocol.
func DecodePage(raw json.RawMessage) (Page, error) {
	var in struct {
		Tools []struct {
			Tool
			Annotations struct {
				ReadOnlyHint bool `json:"readOnlyHint"`
			} `json:"annotations"`
		} `json:"tools"`
		Next *string `json:"nextCursor"`
	}
	if err := json.Unmarshal(raw, &in); err != nil {
		return Page{}, &Fault{Kind: FaultProtocol, Op: "tools/list", Msg: err.Error(), Err: err}
	}
	p := Page{Next: in.Next}
	for _, t := range in.Tools {
		t.Tool.ReadOnly = t.Annotations.ReadOnlyHint
		p.Tools = append(p.Tools, t.Tool)
	}
	return p, nil
}
