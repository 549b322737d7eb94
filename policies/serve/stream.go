package serve

import (
	"net/http"
	"sync"
)

// stream writes an answer as server-sent events. Nothing is sent before the first piece, so that until then a request can fail with
// a status. Its methods may be called concurrently until done.
type stream struct {
	w     http.ResponseWriter
	head  wireAnswer // of each piece
	mu    sync.Mutex
	began bool
	roles map[int]bool // that were told, by choice
}

// send sends a piece of a choice.
func (s *stream) send(index int, d wireDelta) error {
	return s.piece(wireChoice{Index: index, Delta: &d})
}

// end sends the last pieces of a choice: its calls, each of them whole, and how it ended.
func (s *stream) end(index int, c choice) error {
	for i, call := range wireCalls(c.calls) {
		call.Index = &i
		if err := s.send(index, wireDelta{ToolCalls: []wireCall{call}}); err != nil {
			return err
		}
	}
	return s.piece(wireChoice{Index: index, Delta: &wireDelta{}, LogProbs: c.logProbs, Finish: &c.finish})
}

func (s *stream) piece(c wireChoice) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.roles[c.Index] {
		s.roles[c.Index] = true
		c.Delta.Role = "assistant"
	}
	piece := s.head
	piece.Choices = []wireChoice{c}
	return s.write(piece)
}

// done ends the stream, with the usage where it is not nil.
func (s *stream) done(u *wireUsage) {
	if u != nil {
		s.head.Choices, s.head.Usage = []wireChoice{}, u
		if s.write(s.head) != nil {
			return
		}
	}
	s.event([]byte("[DONE]\n"))
}

func (s *stream) write(v any) error {
	data, err := encode(v)
	if err != nil {
		return err
	}
	return s.event(data)
}

// event sends a line of data.
func (s *stream) event(line []byte) error {
	if !s.began {
		s.began = true
		s.w.Header().Set("Content-Type", "text/event-stream")
		s.w.Header().Set("Cache-Control", "no-cache")
	}
	if _, err := s.w.Write(append(append([]byte("data: "), line...), '\n')); err != nil {
		return err
	}
	return http.NewResponseController(s.w).Flush()
}
