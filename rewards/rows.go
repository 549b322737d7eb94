package rewards

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"math/big"
	"slices"
	"strconv"
	"time"

	"github.com/mcpgym/mcpgym/envs"
)

// Rows is the right result of a query. Values are as package encoding/json gives them with UseNumber.
type Rows struct {
	Columns []string // names, for results whose columns come in another order; may be nil
	Types   []string // of Postgres, by column: numeric and timestamptz are compared by value; may be nil
	Gold    [][]any
	Ordered bool // the order of the rows counts
	Places  *int // decimals to which numbers are rounded; nil: not rounded
}

// ErrEmptyGold is wrapped by the error of Validate where any query without rows would be right.
var ErrEmptyGold = errors.New("gold empty: task refused at load")

// Validate says whether the rows can tell a right result from a wrong one.
func (r Rows) Validate() error {
	if len(r.Gold) == 0 {
		return ErrEmptyGold
	}
	return nil
}

// Match says whether a result has the same rows, as often. Numbers that are not whole may differ by one part in 10^9,
// since sums of floats depend on their order. A given result may name its columns, and have them in another order.
func (r Rows) Match(got [][]any, columns ...string) (bool, error) {
	if len(got) != len(r.Gold) {
		return false, nil
	}
	from, ok := r.order(columns)
	if !ok {
		return false, nil
	}
	left := slices.Clone(got)
	for _, want := range r.Gold {
		at := -1
		for i, row := range left {
			same, err := r.same(want, row, from)
			if err != nil {
				return false, err
			}
			if same {
				at = i
			}
			if same || r.Ordered {
				break
			}
		}
		if at < 0 {
			return false, nil
		}
		left = slices.Delete(left, at, at+1)
	}
	return true, nil
}

// order gives for each gold column its place in a result, nil where it is the same. ok is false where the result has
// another number of columns.
func (r Rows) order(columns []string) (from []int, ok bool) {
	if columns == nil || r.Columns == nil {
		return nil, true
	}
	if len(columns) != len(r.Columns) {
		return nil, false
	}
	for i, c := range r.Columns {
		at := slices.Index(columns, c)
		if at < 0 || slices.Contains(r.Columns[:i], c) {
			return nil, true // named otherwise, or twice: by place
		}
		from = append(from, at)
	}
	return from, true
}

func (r Rows) same(want, got []any, from []int) (bool, error) {
	if len(want) != len(got) {
		return false, nil
	}
	for i, w := range want {
		at, typ := i, ""
		if from != nil {
			at = from[i]
		}
		if i < len(r.Types) {
			typ = r.Types[i]
		}
		same, err := r.sameCell(typ, w, got[at])
		if !same || err != nil {
			return false, err
		}
	}
	return true, nil
}

func (r Rows) sameCell(typ string, want, got any) (bool, error) {
	if want == nil || got == nil {
		return want == nil && got == nil, nil
	}
	if typ == "timestamptz" {
		a, errA := time.Parse(time.RFC3339Nano, fmt.Sprint(want))
		b, errB := time.Parse(time.RFC3339Nano, fmt.Sprint(got))
		if errA != nil {
			return false, fmt.Errorf("gold unreadable: %w", errA)
		}
		return errB == nil && a.Equal(b), nil
	}
	a, aIs := decimal(typ, want)
	b, bIs := decimal(typ, got)
	if !aIs || !bIs {
		return aIs == bIs && string(envs.Canonical(want)) == string(envs.Canonical(got)), nil
	}
	if r.Places != nil {
		return a.FloatString(*r.Places) == b.FloatString(*r.Places), nil
	}
	if typ == "numeric" || a.IsInt() && b.IsInt() {
		return a.Cmp(b) == 0, nil
	}
	x, _ := a.Float64()
	y, _ := b.Float64()
	return math.Abs(x-y) <= 1e-9*max(math.Abs(x), math.Abs(y)), nil
}

// decimal reads a number: a JSON number, or the text of a numeric.
func decimal(typ string, v any) (*big.Rat, bool) {
	n, ok := v.(json.Number)
	if s, text := v.(string); text && typ == "numeric" {
		n, ok = json.Number(s), true
	}
	if !ok {
		return nil, false
	}
	if f, err := strconv.ParseFloat(n.String(), 64); err != nil || math.Abs(f) > 1e300 || f != 0 && math.Abs(f) < 1e-300 {
		return nil, false // an exponent that would fill the memory
	}
	return new(big.Rat).SetString(n.String())
}
