package bpe

// added is a token that is found in a text as it stands.
type added struct {
	ID         int32  `json:"id"`
	Content    string `json:"content"`
	SingleWord bool   `json:"single_word"`
	LStrip     bool   `json:"lstrip"`
	RStrip     bool   `json:"rstrip"`
	Normalized bool   `json:"normalized"`
	Special    bool   `json:"special"`
}

// matcher finds added tokens: a trie whose root is by byte, as nearly all bytes begin none.
type matcher struct {
	begins [256]int32 // nodes; 0: none
	nodes  []trie     // the first is unused
}

type trie struct {
	next map[byte]int32
	id   int32 // -1: no token ends here
}

func (m *matcher) add(content string, id int32) {
	if m.nodes == nil {
		m.nodes = make([]trie, 1)
	}
	grow := func() int32 {
		m.nodes = append(m.nodes, trie{next: map[byte]int32{}, id: -1})
		return int32(len(m.nodes) - 1)
	}
	at := m.begins[content[0]]
	if at == 0 {
		at = grow()
		m.begins[content[0]] = at
	}
	for i := 1; i < len(content); i++ {
		next := m.nodes[at].next[content[i]]
		if next == 0 {
			next = grow()
			m.nodes[at].next[content[i]] = next
		}
		at = next
	}
	m.nodes[at].id = id
}

// find gives the place of the leftmost token in s, of those that begin there of the longest. If there is none, start is the length
// of s and id -1.
func (m *matcher) find(s string) (start, stop int, id int32) {
	if m.nodes == nil {
		return len(s), len(s), -1
	}
	for i := range len(s) {
		at := m.begins[s[i]]
		id := int32(-1)
		for j := i; at != 0; {
			j++
			n := m.nodes[at]
			if n.id >= 0 {
				stop, id = j, n.id
			}
			if j == len(s) {
				break
			}
			at = n.next[s[j]]
		}
		if id >= 0 {
			return i, stop, id
		}
	}
	return len(s), len(s), -1
}
