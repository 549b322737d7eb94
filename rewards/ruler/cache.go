package ruler

import (
	"crypto/sha256"
	"fmt"
	"os"
	"path/filepath"
)

type cacheError struct{ err error }

func (e *cacheError) Error() string { return "cache of judge replies: " + e.err.Error() }
func (e *cacheError) Unwrap() error { return e.err }

// file is where the reply to a prompt is kept. The name covers all that the judge is asked, and who it is.
func (r Ruler) file(p Prompt) string {
	temperature := "none"
	if t := r.Judge.Temperature; t != nil {
		temperature = fmt.Sprint(*t)
	}
	key := sha256.Sum256(fmt.Appendf(nil, "%q", []string{r.Judge.Model, temperature, p.System, p.User, p.Reply, p.Fault}))
	return filepath.Join(r.Cache, fmt.Sprintf("%x.txt", key))
}

// load gives the marks of a reply that is kept. A file that holds no good reply is as none.
func (r Ruler) load(p Prompt) (map[string]mark, bool) {
	if r.Cache == "" {
		return nil, false
	}
	data, err := os.ReadFile(r.file(p))
	if err != nil {
		return nil, false
	}
	marks, err := parseReply(string(data), p.ids())
	return marks, err == nil
}

// store keeps a reply. Readers see all of it or nothing.
func (r Ruler) store(p Prompt, reply Reply) error {
	if r.Cache == "" {
		return nil
	}
	f, err := os.CreateTemp(r.Cache, "new")
	if err != nil {
		return &cacheError{err}
	}
	_, err = f.WriteString(reply.Text)
	if e := f.Close(); err == nil {
		err = e
	}
	if err == nil {
		err = os.Rename(f.Name(), r.file(p))
	}
	if err != nil {
		os.Remove(f.Name())
		return &cacheError{err}
	}
	return nil
}
