package sandboxes

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
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

// Message is a JSON-RPC message: a request has a method and an id, a notification only a method, a response only an id.
type Message struct {
	ID            json.RawMessage // nil where there is none
	Method        string
	Params        json.RawMessage
	Result, Error json.RawMessage // nil where there is none; a null error is none
}

// DecodeMessage reads one JSON-RPC message, whose members are then parts of data. A batch is none: MCP has removed them.
func DecodeMessage(data []byte) (Message, error) {
	if !json.Valid(data) {
		return Message{}, errors.New("not JSON-RPC: not JSON")
	}
	var m Message
	var version, method json.RawMessage
	members(data, func(name, value []byte) {
		switch string(name) {
		case `"jsonrpc"`:
			version = value
		case `"id"`:
			m.ID = value
		case `"method"`:
			method = value
		case `"params"`:
			m.Params = value
		case `"result"`:
			m.Result = value
		case `"error"`:
			m.Error = value
		}
	})
	if string(version) != `"2.0"` {
		return Message{}, errors.New("not JSON-RPC: it does not say so")
	}
	if string(m.Error) == "null" {
		m.Error = nil
	}
	if method != nil {
		if err := json.Unmarshal(method, &m.Method); err != nil || m.Method == "" {
			return Message{}, fmt.Errorf("not JSON-RPC: method %.100s", method)
		}
	} else if m.ID == nil {
		return Message{}, errors.New("not JSON-RPC: neither method nor id")
	}
	return m, nil
}

// members shows the members of an object to f, names as they are written, with their quotes. What it reads must be valid JSON;
// of what is no object it shows nothing. encoding/json would take "Method" for method, and copy every value twice.
func members(data []byte, f func(name, value []byte)) {
	const space = " \t\r\n"
	rest := bytes.TrimLeft(data, space)
	if rest[0] != '{' {
		return
	}
	for {
		rest = bytes.TrimLeft(rest[1:], space) // behind a brace or a comma
		if rest[0] == '}' {
			return
		}
		n := valueLen(rest)
		name := rest[:n]
		rest = bytes.TrimLeft(rest[n:], space)
		rest = bytes.TrimLeft(rest[1:], space) // behind the colon
		n = valueLen(rest)
		f(name, rest[:n:n])
		if rest = bytes.TrimLeft(rest[n:], space); rest[0] == '}' {
			return
		}
	}
}

// valueLen is the length of the JSON value that data begins with.
func valueLen(data []byte) int {
	depth, text := 0, false
	for i := 0; i < len(data); i++ {
		switch c := data[i]; {
		case text && c == '\\':
			i++
		case c == '"':
			if text = !text; !text && depth == 0 {
				return i + 1
			}
		case text:
		case c == '{' || c == '[':
			depth++
		case c == '}' || c == ']':
			if depth == 0 {
				return i // a number, true or the like ends before it
			}
			if depth--; depth == 0 {
				return i + 1
			}
		case depth == 0 && (c == ',' || c == ' ' || c == '\t' || c == '\r' || c == '\n'):
			return i
		}
	}
	return len(data)
}

// EncodeRequest makes a JSON-RPC request.
func EncodeRequest(id json.RawMessage, method string, params json.RawMessage) []byte {
	msg := make([]byte, 0, 64+len(id)+len(method)+len(params))
	msg = append(msg, `{"jsonrpc":"2.0","id":`...)
	msg = append(msg, id...)
	msg = append(msg, `,"method":"`...)
	msg = append(msg, method...)
	msg = append(msg, `","params":`...)
	msg = append(msg, params...)
	return append(msg, '}')
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
	m, err := DecodeMessage(data)
	if err != nil {
		return Reply{}, &Fault{Kind: FaultProtocol, Op: op, Msg: "reply is " + err.Error(), Err: err}
	}
	return m.Reply(op, id)
}

// Reply reads the message as a response to the request with the given id. An error is a *Fault of kind protocol.
func (m Message) Reply(op string, id json.RawMessage) (Reply, error) {
	r := Reply{ID: m.ID, Result: m.Result}
	if !SameID(id, m.ID) {
		return r, &Fault{Kind: FaultProtocol, Op: op, Msg: fmt.Sprintf("reply has id %s, the request had %s", m.ID, id)}
	}
	if m.Error == nil && m.Result == nil {
		return r, &Fault{Kind: FaultProtocol, Op: op, Msg: "reply has neither result nor error"}
	}
	if m.Error != nil {
		if err := json.Unmarshal(m.Error, &r.Error); err != nil {
			return r, &Fault{Kind: FaultProtocol, Op: op, Msg: "reply has an error that is none of JSON-RPC: " + err.Error(), Err: err}
		}
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

// Send sends a request to an MCP server and returns its response. The functions that take one are the client's side of MCP,
// whatever the transport.
type Send = func(ctx context.Context, method string, params json.RawMessage) (Reply, error)

// protocols are the versions of MCP that begin with a handshake, newest first. For a client that only uses tools they are one.
var protocols = []string{"2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05"}

// Initialize begins a session. It says whether the server tells when its tools change. The notification that follows is the
// transport's to send.
func Initialize(ctx context.Context, send Send) (listChanged bool, err error) {
	const op = "initialize"
	reply, err := send(ctx, op, json.RawMessage(`{"protocolVersion":"`+protocols[0]+`","capabilities":{},"clientInfo":{"name":"mcpgym","version":"1"}}`))
	if err != nil {
		return false, err
	}
	if reply.Error != nil {
		return false, &Fault{Kind: FaultProtocol, Op: op, Msg: reply.Error.Message}
	}
	var server struct {
		ProtocolVersion string `json:"protocolVersion"`
		Capabilities    struct {
			Tools struct {
				ListChanged bool `json:"listChanged"`
			} `json:"tools"`
		} `json:"capabilities"`
	}
	if err := json.Unmarshal(reply.Result, &server); err != nil {
		return false, &Fault{Kind: FaultProtocol, Op: op, Msg: err.Error(), Err: err}
	}
	if !slices.Contains(protocols, server.ProtocolVersion) {
		return false, &Fault{Kind: FaultProtocol, Op: op, Msg: fmt.Sprintf("the server speaks version %q of MCP, not one of %q", server.ProtocolVersion, protocols)}
	}
	return server.Capabilities.Tools.ListChanged, nil
}

// ListTools reads the whole list of tools.
func ListTools(ctx context.Context, send Send) ([]Tool, error) {
	const op = "tools/list"
	return ListAll(ctx, func(ctx context.Context, cursor *string) (Page, error) {
		params := json.RawMessage("{}")
		if cursor != nil {
			var err error
			if params, err = json.Marshal(map[string]string{"cursor": *cursor}); err != nil {
				return Page{}, err
			}
		}
		reply, err := send(ctx, op, params)
		if err != nil {
			return Page{}, err
		}
		if reply.Error != nil {
			return Page{}, &Fault{Kind: FaultProtocol, Op: op, Msg: reply.Error.Message}
		}
		return DecodePage(reply.Result)
	})
}

// CallTool calls a tool. Arguments that are not JSON never reach the server: they give the error result that it would.
func CallTool(ctx context.Context, send Send, name string, args json.RawMessage) (Result, error) {
	if len(args) == 0 {
		args = json.RawMessage("{}")
	}
	if !json.Valid(args) || !utf8.Valid(args) {
		return Result{IsError: true, Code: -32700, Text: "arguments are not JSON"}, nil
	}
	quoted, err := json.Marshal(name)
	if err != nil {
		return Result{}, err
	}
	params := make([]byte, 0, 32+len(quoted)+len(args))
	params = append(params, `{"name":`...)
	params = append(params, quoted...)
	params = append(params, `,"arguments":`...)
	params = append(params, args...)
	params = append(params, '}')
	reply, err := send(ctx, "tools/call", params)
	if err != nil {
		return Result{}, err
	}
	return reply.ToolResult(), nil
}
