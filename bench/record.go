package bench

import (
	"bytes"
	"cmp"
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	"golang.org/x/sys/cpu"

	"github.com/mcpgym/mcpgym/envs"
	"github.com/mcpgym/mcpgym/sandboxes"
)

// Format is the version of the record's file form.
const Format = 1

// Record is a row of the leaderboard with everything that it takes to play it again. Its file has one JSON object a line:
// the header, then the episodes by task and trial. Each line ends with a digest of what stands before it.
type Record struct {
	Header
	Episodes []Episode
}

// Header names what was played, and where the record comes from.
type Header struct {
	Format     int                         `json:"format"`
	Env        string                      `json:"env"`
	Policy     string                      `json:"policy"`
	Split      string                      `json:"split"`
	Ranked     bool                        `json:"ranked"` // false for policies that were shown the tasks
	Seed       uint64                      `json:"seed"`
	Tasks      int                         `json:"tasks"`
	Trials     int                         `json:"trials"` // of each task
	Identity   sandboxes.Identity          `json:"identity"`
	Limits     envs.Limits                 `json:"limits"`
	System     string                      `json:"system"`
	Tools      map[string][]sandboxes.Tool `json:"tools"`              // tool lists by digest
	Training   *Training                   `json:"training,omitempty"` // nil where nothing was trained
	Provenance Provenance                  `json:"provenance"`
	Digest     string                      `json:"episodes_digest"` // over the digests of all episodes
}

// Training says which weights acted, where they come from, and how they were sampled. Rows of one policy that differ in its Seed
// alone are trained anew, and share a row of the board.
type Training struct {
	Seed        uint64  `json:"seed"`
	Command     string  `json:"command"`          // that trains such weights
	Weights     string  `json:"weights_sha256"`   // of model.safetensors, in hexadecimal
	Expert      bool    `json:"expert,omitempty"` // learned from gold solutions, which no user has; not ranked
	Temperature float64 `json:"temperature"`      // of sampling
	MaxTokens   int     `json:"max_tokens"`       // of a turn
	Arithmetic  string  `json:"arithmetic"`       // that computed the tokens, see Arithmetic
}

// WeightsSum is Training.Weights of the model in a folder.
func WeightsSum(dir string) (string, error) {
	f, err := os.Open(filepath.Join(dir, "model.safetensors"))
	if err != nil {
		return "", fmt.Errorf("read weights: %w", err)
	}
	defer f.Close()
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		return "", fmt.Errorf("read weights: %w", err)
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}

// Label says which weights acted. What they have sampled is left out, token by token: the same weights say it again, and it would be
// most of the record.
func (r *Record) Label(t Training) {
	r.Training = &t
	r.Ranked = r.Ranked && !t.Expert
	for _, e := range r.Episodes {
		for i := range e.Steps {
			e.Steps[i].Action.Sample = nil
		}
	}
}

// Arithmetic names the machine's way of computing with floats, as far as it moves the tokens that a model says: its architecture,
// with "avx2" where policies/lm has vector instructions there.
func Arithmetic() string {
	if runtime.GOARCH == "amd64" && cpu.X86.HasAVX2 && cpu.X86.HasFMA {
		return "amd64 avx2"
	}
	return runtime.GOARCH
}

// Path is where a record lies under a results folder. Those of trained policies are compressed: there are many.
func (h Header) Path(dir string) string {
	name := h.Policy
	if h.Training != nil {
		name += fmt.Sprintf(".seed%d", h.Training.Seed)
	}
	if h.Split != "test" {
		name += "." + h.Split
	}
	if name += recordExt; h.Training != nil {
		name += gzipExt
	}
	return filepath.Join(dir, Dir(h.Env), name)
}

const recordExt, gzipExt = ".jsonl", ".gz"

// IsRecord says whether a file's name is that of a record.
func IsRecord(path string) bool {
	return strings.HasSuffix(strings.TrimSuffix(path, gzipExt), recordExt)
}

// Provenance is what a replay cannot recompute.
type Provenance struct {
	Commit  string   `json:"commit"`
	Date    string   `json:"date"`
	Command string   `json:"command"`
	Drivers []string `json:"drivers"`          // that the row was verified on
	Tokens  *int     `json:"tokens,omitempty"` // sampled; nil where no model was
	Cost    *float64 `json:"cost,omitempty"`   // in US dollars; nil is unpriced, which is not free
}

// Episode is one line of a record. The task is named, not stored: index and split give it again, and its digest says whether
// it still is what was played.
type Episode struct {
	Index      int         `json:"i"`
	Trial      int         `json:"trial"`
	Seed       uint64      `json:"seed"` // of the policy
	Task       string      `json:"task"`
	Family     string      `json:"family"`
	TaskDigest string      `json:"task_digest"`
	Prompt     string      `json:"prompt"`
	Tools      string      `json:"tools,omitempty"` // digest of the list in the header
	Steps      []envs.Step `json:"steps"`
	Outcome
}

// Outcome is the end of an episode as the trajectory has it.
type Outcome struct {
	Probes []sandboxes.Answer `json:"probes,omitempty"`
	State  *sandboxes.State   `json:"state,omitempty"`
	End    envs.End           `json:"end,omitempty"`
	Score  *envs.Score        `json:"score,omitempty"`
	Void   *sandboxes.Fault   `json:"void,omitempty"`
}

func digest(data ...[]byte) string {
	h := sha256.New()
	for _, d := range data {
		h.Write(d)
	}
	return hex.EncodeToString(h.Sum(nil)[:8])
}

// encode writes JSON as records hold it: one line, no HTML escapes.
func encode(v any) ([]byte, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		return nil, err
	}
	return bytes.TrimSuffix(b.Bytes(), []byte("\n")), nil
}

func taskDigest(t envs.Task) (string, error) {
	data, err := encode(t)
	if err != nil {
		return "", fmt.Errorf("encode task %s: %w", t.ID, err)
	}
	return digest(data), nil
}

// add appends the record of one episode.
func (r *Record) add(index, trial int, seed uint64, t *envs.Trajectory) error {
	e := Episode{Index: index, Trial: trial, Seed: seed, Task: t.Task.ID, Family: t.Task.Family, Prompt: t.Task.Prompt, Steps: t.Steps,
		Outcome: Outcome{t.Probes, t.State, t.End, t.Score, t.Void}}
	var err error
	if e.TaskDigest, err = taskDigest(t.Task); err != nil {
		return err
	}
	if len(t.Tools) > 0 {
		list, err := encode(t.Tools)
		if err != nil {
			return fmt.Errorf("encode the tools of %s: %w", t.Task.ID, err)
		}
		e.Tools = digest(list)
		r.Tools[e.Tools] = t.Tools
	}
	r.Episodes = append(r.Episodes, e)
	return nil
}

// trajectory puts the parts of an episode together again.
func (r *Record) trajectory(e Episode, task envs.Task) *envs.Trajectory {
	return &envs.Trajectory{Version: envs.TrajectoryVersion, Env: r.Env, Identity: r.Identity, Limits: r.Limits, Task: task, System: cmp.Or(task.System, r.System), Tools: r.Header.Tools[e.Tools],
		Steps: e.Steps, Probes: e.Probes, State: e.State, End: e.End, Score: e.Score, Void: e.Void}
}

// seal closes a line with the digest of what stands before it.
func seal(v any) ([]byte, error) {
	line, err := encode(v)
	if err != nil {
		return nil, err
	}
	body := line[:len(line)-1]
	return fmt.Appendf(body, `,"digest":"%s"}`, digest(body)), nil
}

// sealed splits a line into its body and its digest, and says whether they fit.
func sealed(line []byte) (sum string, ok bool) {
	const tail = len(`,"digest":"0123456789abcdef"}`)
	if len(line) < tail {
		return "", false
	}
	body := line[:len(line)-tail]
	sum = string(line[len(line)-18 : len(line)-2])
	return sum, bytes.Equal(line[len(body):], fmt.Appendf(nil, `,"digest":"%s"}`, digest(body)))
}

// Marshal writes the file form. Equal records give equal bytes.
func (r *Record) Marshal() ([]byte, error) {
	var lines [][]byte
	var sums bytes.Buffer
	for _, e := range r.Episodes {
		line, err := seal(e)
		if err != nil {
			return nil, fmt.Errorf("encode episode %d: %w", e.Index, err)
		}
		sum, _ := sealed(line)
		sums.WriteString(sum)
		lines = append(lines, line)
	}
	r.Digest = digest(sums.Bytes())
	head, err := seal(r.Header)
	if err != nil {
		return nil, fmt.Errorf("encode header: %w", err)
	}
	return append(bytes.Join(append([][]byte{head}, lines...), []byte("\n")), '\n'), nil
}

// Problem is a place in a record that is not as it was recorded.
type Problem struct {
	Episode int    // index of the task, -1 for the file as a whole
	Trial   int    // of the task
	Step    int    // -1 where the problem is not in a step
	What    string // what is wrong
	Soft    bool   // reported, not failed: the result is volatile
	Torn    bool   // the file itself is damaged: a line cannot be read

	// Recorded and Now are what Regrade compares: parts of a score, or nil where it lacks them. Both are nil elsewhere.
	Recorded, Now any
}

func (p Problem) String() string {
	what := p.What
	if p.Recorded != nil || p.Now != nil {
		recorded, errR := encode(p.Recorded)
		now, errN := encode(p.Now)
		if err := errors.Join(errR, errN); err != nil {
			return err.Error()
		}
		what = fmt.Sprintf("%s: recorded %s, now %s", what, recorded, now)
	}
	switch {
	case p.Episode < 0:
		return what
	case p.Step < 0:
		return fmt.Sprintf("episode %d trial %d: %s", p.Episode, p.Trial, what)
	}
	return fmt.Sprintf("episode %d trial %d step %d: %s", p.Episode, p.Trial, p.Step, what)
}

// Unmarshal reads the file form. What is readable is returned even where there are problems: digests that do not fit, lines
// that are torn or missing. The error says that it is no record at all.
func Unmarshal(data []byte) (*Record, []Problem, error) {
	lines, bad := readLines(data)
	if len(lines) == 0 || slices.Contains(bad, 1) {
		return nil, nil, errors.New("line 1 is not the header of a record")
	}
	r := &Record{}
	if err := json.Unmarshal(lines[0], &r.Header); err != nil {
		return nil, nil, fmt.Errorf("line 1 is not the header of a record: %w", err)
	}
	if r.Format != Format {
		return nil, nil, fmt.Errorf("the record has format %d, this program reads %d", r.Format, Format)
	}
	var problems []Problem
	whole := func(format string, args ...any) {
		problems = append(problems, Problem{Episode: -1, Step: -1, What: fmt.Sprintf(format, args...)})
	}
	if _, ok := sealed(lines[0]); !ok {
		whole("line 1: the header, which holds the provenance, does not match its digest")
	}
	for _, n := range bad {
		whole("line %d: not JSON, or torn", n)
		problems[len(problems)-1].Torn = true
	}
	var sums bytes.Buffer
	for _, line := range lines[1:] {
		var e Episode
		if err := json.Unmarshal(line, &e); err != nil {
			whole("after episode %d: a line that is not an episode: %v", len(r.Episodes)-1, err)
			continue
		}
		sum, ok := sealed(line)
		if !ok {
			problems = append(problems, Problem{Episode: e.Index, Trial: e.Trial, Step: -1, What: "the line does not match its digest"})
		}
		sums.WriteString(sum)
		r.Episodes = append(r.Episodes, e)
	}
	if want := r.Tasks * r.Trials; len(r.Episodes) != want {
		whole("cut short: %d of %d episodes", len(r.Episodes), want)
	} else if digest(sums.Bytes()) != r.Digest {
		whole("the episodes are not those that the header was written for")
	}
	return r, problems, nil
}

// readLines splits JSON lines at line feeds only; a byte order mark and blank lines are skipped. bad lists the numbers, from
// 1, of lines that are not JSON.
func readLines(data []byte) (lines [][]byte, bad []int) {
	data = bytes.TrimPrefix(data, []byte("\ufeff"))
	for i, line := range bytes.Split(data, []byte("\n")) {
		line = bytes.TrimSuffix(line, []byte("\r"))
		switch {
		case len(bytes.TrimSpace(line)) == 0:
		case !json.Valid(line):
			bad = append(bad, i+1)
		default:
			lines = append(lines, line)
		}
	}
	return lines, bad
}

// Load reads a record's file, compressed or not. Problems are those of Unmarshal.
func Load(path string) (*Record, []Problem, error) {
	data, err := readFile(path)
	if err != nil {
		return nil, nil, fmt.Errorf("read record: %w", err)
	}
	r, problems, err := Unmarshal(data)
	if err != nil {
		return nil, nil, fmt.Errorf("read record %s: %w", path, err)
	}
	return r, problems, nil
}

// readFile reads a file; one whose name ends in .gz is decompressed.
func readFile(path string) ([]byte, error) {
	data, err := os.ReadFile(path)
	if err != nil || filepath.Ext(path) != gzipExt {
		return data, err
	}
	z, err := gzip.NewReader(bytes.NewReader(data))
	if err != nil {
		return nil, fmt.Errorf("decompress %s: %w", path, err)
	}
	if data, err = io.ReadAll(z); err != nil {
		return nil, fmt.Errorf("decompress %s: %w", path, err)
	}
	return data, nil
}

// compress gives the same bytes for the same data: without a time and a name.
func compress(data []byte) ([]byte, error) {
	var b bytes.Buffer
	z, err := gzip.NewWriterLevel(&b, gzip.BestCompression)
	if err != nil {
		return nil, err
	}
	_, err = z.Write(data)
	err = errors.Join(err, z.Close())
	return b.Bytes(), err
}

// Save writes a record's file, compressed where its name ends in .gz. Where the file already holds the same episodes, its provenance is kept, so that playing again
// changes nothing; only drivers are added on which the record was verified now.
func (r *Record) Save(path string) error {
	old, problems, err := Load(path)
	data, merr := r.Marshal()
	if merr != nil {
		return fmt.Errorf("write record %s: %w", path, merr)
	}
	if err == nil && len(problems) == 0 {
		same := r.Header
		same.Provenance = old.Provenance
		a, errA := encode(same)
		b, errB := encode(old.Header)
		if errA == nil && errB == nil && bytes.Equal(a, b) {
			drivers := append(slices.Clone(old.Provenance.Drivers), r.Provenance.Drivers...)
			r.Provenance = old.Provenance
			r.Provenance.Drivers = nil
			for _, d := range drivers {
				if !slices.Contains(r.Provenance.Drivers, d) {
					r.Provenance.Drivers = append(r.Provenance.Drivers, d)
				}
			}
			if data, merr = r.Marshal(); merr != nil {
				return fmt.Errorf("write record %s: %w", path, merr)
			}
		}
	}
	return writeFile(path, data)
}

// writeFile writes a file whole or not at all, compressed where its name ends in .gz. A file that already has the content is left
// alone, whatever has compressed it.
func writeFile(path string, data []byte) error {
	if old, err := readFile(path); err == nil && bytes.Equal(old, data) {
		return nil
	}
	if filepath.Ext(path) == gzipExt {
		var err error
		if data, err = compress(data); err != nil {
			return fmt.Errorf("compress %s: %w", path, err)
		}
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	f, err := os.CreateTemp(filepath.Dir(path), ".tmp-*")
	if err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	defer os.Remove(f.Name())
	_, err = f.Write(data)
	err = errors.Join(err, f.Sync(), f.Chmod(0o644), f.Close())
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	return nil
}
