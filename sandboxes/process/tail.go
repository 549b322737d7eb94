package process

import (
	"strings"
	"sync"
)

// tailBytes is how much of a server's standard error is kept.
const tailBytes = 2 << 10

// Tail is a writer that keeps the last two KiB of what is written to it. Its methods may be called concurrently.
type Tail struct {
	mu   sync.Mutex
	data []byte
}

// Write never fails.
func (t *Tail) Write(b []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.data = append(t.data, b[max(0, len(b)-tailBytes):]...)
	if over := len(t.data) - tailBytes; over > 0 {
		t.data = append(t.data[:0], t.data[over:]...)
	}
	return len(b), nil
}

// String returns what was kept, as valid UTF-8 without space around it.
func (t *Tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return strings.TrimSpace(strings.ToValidUTF8(string(t.data), "\uFFFD"))
}
