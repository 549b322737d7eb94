package lint

import "sync"

// maxKnown bounds what a memory keeps.
const maxKnown = 256

// memory keeps what takes long to find out and is the same each time. It may be used concurrently.
type memory[K comparable, V any] struct {
	mu    sync.Mutex
	known map[K]V
}

// get gives what is kept for a key, or else what find gives, which is kept if find says so.
func (m *memory[K, V]) get(key K, find func() (v V, keep bool, err error)) (V, error) {
	m.mu.Lock()
	v, ok := m.known[key]
	m.mu.Unlock()
	if ok {
		return v, nil
	}
	v, keep, err := find()
	if err != nil || !keep {
		return v, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.known == nil || len(m.known) >= maxKnown {
		m.known = map[K]V{}
	}
	m.known[key] = v
	return v, nil
}
