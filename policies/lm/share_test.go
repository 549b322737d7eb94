package lm

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/mcpgym/mcpgym/policies/engine"
	"github.com/mcpgym/mcpgym/policies/lm/internal/f32"
)

// related are rows that begin alike in all the ways that there are.
func related() [][]int32 {
	r := rand.New(rand.NewPCG(6, 7))
	base := randomRows(23, 1, 330)[0]
	leave := func(row []int32, at, n int) []int32 { // has another token at at
		out := append(slices.Clone(row[:at]), (row[at]+1+r.Int32N(22))%23)
		for range n - 1 {
			out = append(out, r.Int32N(23))
		}
		return out
	}
	middle := leave(base, 100, 90)
	deep := leave(middle, 150, 70)
	return [][]int32{
		base[:200],
		base,                                   // goes on where an earlier row ends
		base,                                   // the same again
		base[:7],                               // the beginning of an earlier row
		leave(base, 0, 40), leave(base, 1, 30), // next to nothing alike
		middle, deep, leave(deep, 160, 20), leave(deep, 219, 5), leave(middle, 100, 30), // a tree of several levels
		leave(base, 300, 1), leave(base, 300, 1), // one position predicts several tokens
		leave(base, 300, 40), leave(base, 301, 40),
		{4, 5, 6}, {4, 5, 6, 7}, {4, 5, 9}, {4, 4}, // another tree
	}
}

// distinct counts the prefixes of rows up to the last token that is asked for, and those that are asked to predict.
func distinct(rows [][]int32, mask [][]bool) (prefixes, asked int) {
	type step struct {
		from  int
		token int32
	}
	tree, predict := map[step]int{}, map[int]bool{} // nodes are numbered from 1
	for i, row := range rows {
		at := 0
		for t := 1; t < len(row) && (mask == nil || slices.Contains(mask[i][t:], true)); t++ {
			next := step{at, row[t-1]}
			if tree[next] == 0 {
				tree[next] = len(tree) + 1
			}
			if at = tree[next]; mask == nil || mask[i][t] {
				predict[at] = true
			}
		}
	}
	return len(tree), len(predict)
}

// What rows share is computed once, and all is as if each had been on its own.
func TestSharedPrefixes(t *testing.T) {
	alone(t)
	rows := related()
	r := rand.New(rand.NewPCG(1, 3))
	some := make([][]bool, len(rows))
	values := func() [][]float32 {
		out := make([][]float32, len(rows))
		for i, row := range rows {
			out[i] = make([]float32, len(row))
			for k := range out[i] {
				out[i][k] = float32(r.NormFloat64())
			}
		}
		return out
	}
	for i, row := range rows {
		some[i] = make([]bool, len(row))
		for k := 1; k < len(row)-i%4; k++ { // now and then nothing is asked for at the end
			some[i][k] = r.IntN(3) == 0
		}
	}
	clear(some[5])
	dLog, dEnt := values(), values()
	require.NotEqual(t, rows[11][300], rows[12][300])
	for k := range dLog[11] { // they cancel, but for the token that is not the same
		dLog[12][k], dEnt[12][k] = -dLog[11][k], -dEnt[11][k]
	}

	longer := func(change func(*Config)) Config {
		return small(func(c *Config) {
			if c.MaxPositions = 340; change != nil {
				change(c)
			}
		})
	}
	qwen2 := longer(func(c *Config) { c.Kind, c.QKVBias, c.Tied, c.KVHeads = "qwen2", true, true, 1 })
	for name, open := range map[string]func() *Engine{
		"llama": func() *Engine { return newFull(t, longer(nil)) },
		"qwen2": func() *Engine { return newFull(t, qwen2) },
		"qwen3": func() *Engine {
			return newFull(t, longer(func(c *Config) { c.Kind, c.QKNorm, c.KVHeads = "qwen3", true, 4 }))
		},
		"mixed":      func() *Engine { return newFull(t, longer(mixed)) },
		"qwen2 lora": func() *Engine { return scrambledAdapter(t, qwen2, LoRA{Rank: 3, Alpha: 6}) },
		"mixed lora": func() *Engine { return scrambledAdapter(t, longer(mixed), LoRA{Rank: 3, Alpha: 6}) },
	} {
		e := open()
		for _, c := range []struct {
			name       string
			mask       [][]bool
			dLog, dEnt [][]float32
			reference  bool
		}{
			{"all", nil, dLog, dEnt, false},
			{"some", some, dLog, dEnt, false},
			{"without entropy", some, dLog, nil, false},
			{"without log-probabilities", some, nil, dEnt, false},
			{"reference", some, nil, nil, true},
		} {
			if c.reference && e.full {
				continue
			}
			t.Run(name+", "+c.name, func(t *testing.T) {
				part := func(table [][]float32, i int) [][]float32 {
					if table == nil {
						return nil
					}
					return table[i : i+1]
				}
				p := forward(t, e, engine.Batch{Tokens: rows, Mask: c.mask, Temperature: 0.8, Reference: c.reference})
				prefixes, asked := distinct(rows, c.mask)
				require.Len(t, p.(*pass).tokens, prefixes)
				require.Len(t, p.(*pass).spots, asked)
				logProbs, entropy := p.LogProbs(), p.Entropy()
				if c.reference {
					p.Discard()
				} else {
					backward(t, p, c.dLog, c.dEnt)
				}
				got := slices.Clone(e.values.g)
				clear(e.values.g)
				for i, row := range rows {
					b := engine.Batch{Tokens: [][]int32{row}, Temperature: 0.8, Reference: c.reference}
					if c.mask != nil {
						b.Mask = c.mask[i : i+1]
					}
					q := forward(t, e, b)
					for k := range row {
						require.InDelta(t, q.LogProbs()[0][k], logProbs[i][k], 1e-5, "row %d, token %d", i, k)
						require.InDelta(t, q.Entropy()[0][k], entropy[i][k], 1e-5, "row %d, token %d", i, k)
					}
					if c.reference {
						q.Discard()
					} else {
						backward(t, q, part(c.dLog, i), part(c.dEnt, i))
					}
				}
				if c.reference {
					return
				}
				at := 0
				for _, x := range e.trained {
					require.NotZero(t, f32.SumSquares(x.g), x.name)
					f32.Axpy(got[at:at+len(x.g)], -1, x.g)
					off := math.Sqrt(f32.SumSquares(got[at:at+len(x.g)]) / f32.SumSquares(x.g))
					require.LessOrEqual(t, off, 1e-5, x.name)
					at += len(x.g)
				}
				clear(e.values.g)
			})
		}
	}
}

// The memory that a pass keeps is that of what is distinct.
func TestSharedMemory(t *testing.T) {
	alone(t)
	e := newFull(t, small(mixed))
	row := randomRows(23, 1, 200)[0]
	size := func(b engine.Batch) int {
		p := forward(t, e, b)
		defer p.Discard()
		return len(p.(*pass).arena)
	}
	end := make([]bool, 200)
	end[199] = true
	one := size(engine.Batch{Tokens: [][]int32{row}, Mask: [][]bool{end}})
	require.Equal(t, one, size(engine.Batch{Tokens: [][]int32{row, row, row}, Mask: [][]bool{end, end, end}}))
	other := append(slices.Clone(row[:150]), randomRows(22, 1, 50)[0]...)
	other[150] = (row[150] + 1) % 23
	two := size(engine.Batch{Tokens: [][]int32{row, other}, Mask: [][]bool{end, end}})
	require.InDelta(t, 1.25*float64(one), float64(two), 0.01*float64(one))
}
