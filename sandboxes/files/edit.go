package files

import (
	"errors"
	"fmt"
	"slices"
	"strings"
)

// edit is one replacement. Texts are what they are: nothing in them is a pattern.
type edit struct {
	Old string `json:"oldText"`
	New string `json:"newText"`
}

// maxCounted is where counting places for an error ends.
const maxCounted = 100

// apply makes edits one after the other, all of them or none. Each must match in exactly one place, and what is not part of
// a match stays as it is, byte for byte. Where every line of the file ends in CRLF, ends of lines in an edit mean that, so
// that an agent need not spell it.
func apply(content string, edits []edit) (string, error) {
	if len(edits) == 0 {
		return "", errors.New("there are no edits")
	}
	now := content
	n := strings.Count(content, "\n")
	crlf := n > 0 && strings.Count(content, "\r\n") == n
	for i, e := range edits {
		if crlf {
			e.Old, e.New = toCRLF(e.Old), toCRLF(e.New)
		}
		if e.Old == "" {
			return "", fmt.Errorf("edit %d: oldText is empty; quote the text at the place that is to change (write_file fills an empty file)", i+1)
		}
		if e.Old == e.New {
			return "", fmt.Errorf("edit %d: newText is oldText, so it changes nothing", i+1)
		}
		switch n := count(now, e.Old); {
		case n == 0 && count(content, e.Old) > 0:
			return "", fmt.Errorf("edit %d: 0 matches of oldText, since an edit before it has changed that text; no edit was made", i+1)
		case n == 0:
			return "", fmt.Errorf("edit %d: 0 matches of oldText, which must be in the file character for character; no edit was made", i+1)
		case n >= maxCounted:
			return "", fmt.Errorf("edit %d: at least %d matches of oldText: take in more of the text around it, until there is one; no edit was made", i+1, n)
		case n > 1:
			return "", fmt.Errorf("edit %d: %d matches of oldText: take in more of the text around it, until there is one; no edit was made", i+1, n)
		}
		now = strings.Replace(now, e.Old, e.New, 1)
	}
	return now, nil
}

func toCRLF(s string) string {
	return strings.ReplaceAll(strings.ReplaceAll(s, "\r\n", "\n"), "\n", "\r\n")
}

// count counts the places where old begins, also those that overlap, up to maxCounted.
func count(s, old string) int {
	n := 0
	for n < maxCounted {
		i := strings.Index(s, old)
		if i < 0 {
			break
		}
		n++
		s = s[i+1:]
	}
	return n
}

// around is how many unchanged lines a diff shows before and after a change, maxChanges how many changed ones it looks for
// before it takes all between the first and the last for changed.
const (
	around     = 3
	maxChanges = 400
)

// unified gives the difference of two texts as a unified diff; it is empty where there is none.
func unified(name, before, after string) string {
	if before == after {
		return ""
	}
	a, b := lines(before), lines(after)
	same := common(a, b)
	same = append(same, [2]int{len(a), len(b)}) // the end
	var out strings.Builder
	fmt.Fprintf(&out, "--- a%s\n+++ b%s\n", show(name), show(name))

	// A hunk goes on while fewer than twice around lines are the same.
	var hunk strings.Builder
	var fromA, fromB, numA, numB int
	line := func(mark, text string) {
		hunk.WriteString(mark)
		hunk.WriteString(text)
		if !strings.HasSuffix(text, "\n") {
			hunk.WriteString("\n\\ No newline at end of file\n")
		}
	}
	keep := func(from, to int) {
		for _, l := range a[from:to] {
			line(" ", l)
			numA++
			numB++
		}
	}
	flush := func() {
		if hunk.Len() > 0 {
			fmt.Fprintf(&out, "@@ -%s +%s @@\n%s", place(fromA, numA), place(fromB, numB), hunk.String())
		}
		hunk.Reset()
		numA, numB = 0, 0
	}
	i, j := 0, 0 // all before is done
	quiet := 0   // lines before them that are the same, and not shown
	for _, p := range same {
		if p[0] == i && p[1] == j {
			i, j = i+1, j+1
			quiet++
			continue
		}
		switch {
		case hunk.Len() > 0 && quiet <= 2*around:
			keep(i-quiet, i)
		case hunk.Len() > 0:
			keep(i-quiet, i-quiet+around)
			flush()
			fallthrough
		default:
			ahead := min(quiet, around)
			fromA, fromB = i-ahead, j-ahead
			keep(i-ahead, i)
		}
		for ; i < p[0]; i++ {
			line("-", a[i])
			numA++
		}
		for ; j < p[1]; j++ {
			line("+", b[j])
			numB++
		}
		i, j, quiet = i+1, j+1, 1
	}
	if last := len(a); hunk.Len() > 0 { // the end counts as a line that is the same
		keep(last-(quiet-1), min(last, last-(quiet-1)+around))
	}
	flush()
	return out.String()
}

// place is a hunk's place in a unified diff: where it has no line it names the one before.
func place(from, n int) string {
	switch n {
	case 0:
		return fmt.Sprintf("%d,0", from)
	case 1:
		return fmt.Sprint(from + 1)
	}
	return fmt.Sprintf("%d,%d", from+1, n)
}

func lines(s string) []string {
	l := strings.SplitAfter(s, "\n")
	if l[len(l)-1] == "" {
		l = l[:len(l)-1]
	}
	return l
}

// common pairs the lines that two texts have in common, as many as can be, in order (E. W. Myers, "An O(ND) difference
// algorithm and its variations", 1986).
func common(a, b []string) [][2]int {
	var same [][2]int
	for len(a) > len(same) && len(b) > len(same) && a[len(same)] == b[len(same)] {
		same = append(same, [2]int{len(same), len(same)})
	}
	head, tail := len(same), 0
	for tail < min(len(a), len(b))-head && a[len(a)-1-tail] == b[len(b)-1-tail] {
		tail++
	}
	for _, p := range middle(a[head:len(a)-tail], b[head:len(b)-tail]) {
		same = append(same, [2]int{head + p[0], head + p[1]})
	}
	for ; tail > 0; tail-- {
		same = append(same, [2]int{len(a) - tail, len(b) - tail})
	}
	return same
}

// middle is common for texts that begin and end differently. It gives up where too much has changed.
func middle(a, b []string) (same [][2]int) {
	limit := min(len(a)+len(b), maxChanges)
	reach := make([]int, 2*limit+3) // by diagonal: how far in a one gets
	zero := limit + 1
	var rounds [][]int
	for d := 0; d <= limit; d++ {
		rounds = append(rounds, slices.Clone(reach))
		for k := -d; k <= d; k += 2 {
			x := reach[zero+step(reach, zero, k, d)]
			if step(reach, zero, k, d) < k {
				x++
			}
			for x < len(a) && x-k < len(b) && a[x] == b[x-k] {
				x++
			}
			reach[zero+k] = x
			if x < len(a) || x-k < len(b) {
				continue
			}
			x, y := len(a), len(b)
			for ; d > 0; d-- {
				k := x - y
				from := step(rounds[d], zero, k, d)
				px := rounds[d][zero+from]
				for py := px - from; x > px && y > py; {
					x, y = x-1, y-1
					same = append(same, [2]int{x, y})
				}
				x, y = px, px-from
			}
			for x > 0 && y > 0 {
				x, y = x-1, y-1
				same = append(same, [2]int{x, y})
			}
			slices.Reverse(same)
			return same
		}
	}
	return nil
}

// step gives the diagonal from which round d comes to diagonal k.
func step(reach []int, zero, k, d int) int {
	if k == -d || k != d && reach[zero+k-1] < reach[zero+k+1] {
		return k + 1
	}
	return k - 1
}
