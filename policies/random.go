package policies

import (
	"context"
	"encoding/json"
	"fmt"
	"math/big"
	"math/rand/v2"
	"regexp/syntax"
	"slices"
	"strings"
	"time"

	"github.com/mcpgym/mcpgym/envs"
)

// Random calls random tools with random arguments that fit their schemas, about two an episode, and then answers with
// something it has seen. It shows what a reward pays for luck. An episode's seed decides all.
type Random struct{}

// Start returns a random agent.
func (Random) Start(_ context.Context, ep Episode) (Agent, error) {
	r := &random{Rand: rand.New(rand.NewPCG(ep.Seed, 0x72616e646f6d)), tools: readTools(ep.Tools), mentions: readMentions(ep.Prompt), byName: map[string][]any{}}
	return AgentFunc(r.act), nil
}

type random struct {
	*rand.Rand
	tools    []tool
	mentions []mention
	seen     []any            // numbers and texts of results
	byName   map[string][]any // the same, by the name of their field
	turn     int
	left     int // values that the call being made may still have: a schema may contain itself
}

// act answers with a probability that grows until it is 1, so that episodes are short and end.
func (r *random) act(_ context.Context, o envs.Observation) (envs.Action, error) {
	for _, res := range o.Results {
		if res.IsError {
			continue
		}
		for _, rec := range readRecords(res.Text) {
			for _, f := range rec.fields[:rec.own] {
				if f.value != nil {
					r.seen = append(r.seen, f.value)
					r.byName[f.name] = append(r.byName[f.name], f.value)
				}
			}
		}
	}
	stop := 0.1 + 0.15*float64(r.turn)
	r.turn++
	if r.Float64() >= stop && len(r.tools) > 0 {
		for range 20 {
			t := &r.tools[r.IntN(len(r.tools))]
			r.left = 200
			args, err := json.Marshal(r.object(t.params))
			if err == nil && t.valid(args) {
				return envs.Action{Calls: []envs.Call{{ID: "call_0", Name: t.Name, Arguments: args}}}, nil
			}
		}
	}
	return envs.Action{Text: answerMark + r.answer()}, nil
}

// answer is a value that was seen, sometimes two.
func (r *random) answer() string {
	if len(r.seen) == 0 {
		return "no data"
	}
	s := fmt.Sprint(r.seen[r.IntN(len(r.seen))])
	if r.IntN(3) == 0 {
		s += "; " + fmt.Sprint(r.seen[r.IntN(len(r.seen))])
	}
	return strings.Join(strings.Fields(s), " ")
}

func (r *random) object(params []param) map[string]any {
	m := map[string]any{}
	for _, p := range params {
		if p.required || r.IntN(4) == 0 {
			m[p.name] = r.value(p)
		}
	}
	return m
}

// value draws a value for a parameter: one that was seen or is mentioned where one fits, else one made from the schema.
func (r *random) value(p param) any {
	if c := p.choices(); len(c) > 0 {
		return c[r.IntN(len(c))]
	}
	if r.left--; r.left < 0 {
		return nil
	}
	fitting := func(values []any) []any {
		var fit []any
		for _, v := range values {
			if c, ok := p.coerce(v); ok {
				fit = append(fit, c)
			}
		}
		return fit
	}
	pool := fitting(r.byName[p.name])
	if len(pool) == 0 {
		var said []any
		for _, m := range r.mentions {
			said = append(said, m.text)
		}
		pool = fitting(slices.Concat(said, p.list("examples"), p.list("default")))
	}
	if len(pool) > 0 && p.kind != "boolean" {
		return pool[r.IntN(len(pool))]
	}
	switch p.kind {
	case "boolean":
		return r.IntN(2) == 0
	case "integer", "number":
		return r.number(p)
	case "array":
		list := []any{}
		low, _ := p.number("minItems")
		n, items := 1, p.items()
		if low != nil && low.IsInt() {
			n = int(max(1, min(low.Num().Int64(), 100)))
		}
		for range n {
			list = append(list, r.value(items))
		}
		return list
	case "object":
		return r.object(p.fields())
	case "null":
		return nil
	}
	return r.text(p)
}

// number draws a whole number between the bounds, and the lower bound itself where there is none.
func (r *random) number(p param) any {
	low, okLow := p.number("minimum")
	high, okHigh := p.number("maximum")
	if !okLow {
		low = big.NewRat(1, 1)
		if okHigh && high.Cmp(low) < 0 {
			low = new(big.Rat).Sub(high, big.NewRat(9, 1))
		}
	}
	if !okHigh {
		high = new(big.Rat).Add(low, big.NewRat(9, 1))
	}
	from := new(big.Int).Neg(new(big.Int).Div(new(big.Int).Neg(low.Num()), low.Denom())) // rounded up
	width := new(big.Int).Sub(new(big.Int).Div(high.Num(), high.Denom()), from)
	if width.Sign() < 0 {
		return json.Number(low.FloatString(6))
	}
	if width.IsInt64() && width.Int64() < 1<<62 {
		from.Add(from, big.NewInt(r.Int64N(width.Int64()+1)))
	}
	return json.Number(from.String())
}

// text makes a text from the parameter's format or pattern, or a short meaningless one.
func (r *random) text(p param) string {
	at := time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC).Add(time.Duration(r.IntN(50*365*24)) * time.Hour)
	switch p.text("format") {
	case "date":
		return at.Format(time.DateOnly)
	case "date-time":
		return at.Format(time.RFC3339)
	case "time":
		return at.Format("15:04:05Z")
	}
	if p.pattern != nil {
		if re, err := syntax.Parse(p.pattern.String(), syntax.Perl); err == nil {
			return r.match(re.Simplify())
		}
	}
	n := 4
	if low, ok := p.number("minLength"); ok && low.IsInt() && low.Num().IsInt64() {
		n = int(max(4, min(low.Num().Int64(), 1000)))
	}
	if high, ok := p.number("maxLength"); ok && high.IsInt() && high.Num().IsInt64() {
		n = int(max(0, min(int64(n), high.Num().Int64())))
	}
	return strings.Repeat(string(rune('a'+r.IntN(26))), n)
}

// match makes a text that a regular expression matches, as far as it has no anchors in its middle.
func (r *random) match(re *syntax.Regexp) string {
	switch re.Op {
	case syntax.OpLiteral:
		return string(re.Rune)
	case syntax.OpCharClass:
		if len(re.Rune) > 0 {
			i := r.IntN(len(re.Rune)/2) * 2
			low, high := re.Rune[i], min(re.Rune[i+1], re.Rune[i]+25)
			return string(low + rune(r.IntN(int(high-low)+1)))
		}
	case syntax.OpAnyChar, syntax.OpAnyCharNotNL:
		return string(rune('a' + r.IntN(26)))
	case syntax.OpAlternate:
		return r.match(re.Sub[r.IntN(len(re.Sub))])
	case syntax.OpStar, syntax.OpPlus, syntax.OpQuest:
		var b strings.Builder
		for n := r.IntN(2); n >= 0; n-- {
			if n == 0 && re.Op != syntax.OpPlus {
				break
			}
			b.WriteString(r.match(re.Sub[0]))
		}
		return b.String()
	case syntax.OpConcat, syntax.OpCapture:
		var b strings.Builder
		for _, sub := range re.Sub {
			b.WriteString(r.match(sub))
		}
		return b.String()
	}
	return ""
}
