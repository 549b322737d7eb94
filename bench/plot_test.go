package bench

import (
	"bytes"
	"encoding/xml"
	"errors"
	"fmt"
	"image/color"
	"image/png"
	"io"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func bar(label string, passes, n int) Bar {
	return Bar{Label: label, Value: float64(passes) / float64(n), Interval: Wilson(passes, n)}
}

func TestSuccessPlot(t *testing.T) {
	oracle := bar("oracle", 120, 120)
	oracle.Muted, oracle.Note = true, "plays the gold solution"
	bars := []Bar{bar("b", 0, 120), bar("best <&> known", 68, 120), oracle, bar("a", 0, 120)}
	given := slices.Clone(bars)
	pic, svg, err := SuccessPlot("title", "pass@1", bars)
	require.NoError(t, err)
	require.Equal(t, given, bars, "the caller's rows are left alone")

	// All texts are there, best row first, ties by label, each followed by its numbers.
	at := 0
	for _, s := range []string{">title<", ">100 %<", ">pass@1<", ">line: 95 % interval, gray: not ranked<",
		">plays the gold solution<", ">oracle<", ">100.0 %<", ">[97, 100]<",
		">best &lt;&amp;&gt; known<", ">56.7 %<", ">[48, 65]<", ">a<", ">0.0 %<", ">[0, 3]<", ">b<", ">0.0 %<", ">[0, 3]<"} {
		i := strings.Index(string(svg[at:]), s)
		require.GreaterOrEqual(t, i, 0, "%s is missing after byte %d of\n%s", s, at, svg)
		at += i + len(s)
	}
	require.Contains(t, string(svg), "font-family:Liberation Sans,Arial,Helvetica,sans-serif;")
	require.Equal(t, strings.Count(string(svg), "<text "), strings.Count(string(svg), "textLength="))
	for d := xml.NewDecoder(bytes.NewReader(svg)); ; {
		if _, err := d.Token(); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
	}

	// Equal rows in another order give the same bytes.
	slices.Reverse(bars)
	pic2, svg2, err := SuccessPlot("title", "pass@1", bars)
	require.NoError(t, err)
	require.True(t, bytes.Equal(pic, pic2))
	require.True(t, bytes.Equal(svg, svg2))

	// Muted rows alone are gray.
	for _, muted := range []bool{false, true} {
		b := bar("x", 3, 4)
		b.Muted = muted
		_, svg, err := SuccessPlot("title", "", []Bar{b})
		require.NoError(t, err)
		require.Equal(t, muted, strings.Contains(string(svg), "not ranked"))
		require.Equal(t, muted, strings.Contains(string(svg), "#888888"))
		require.Equal(t, !muted, strings.Contains(string(svg), "#0072B2"))
	}
}

// No text or mark reaches the edge, however many rows there are and however long the texts.
func TestSuccessPlotFits(t *testing.T) {
	if testing.Short() {
		t.Skip("looks at every pixel of four pictures")
	}
	long := strings.Repeat("very long ", 12)
	for _, c := range []struct {
		name, title, xlabel, label, note string
		wider                            bool
	}{
		{"plain", "title", "pass@1", "policy", "", false},
		{"notes", "title", "pass@1", "policy", "trained from 3 seeds", false},
		{"label", "title", "pass@1", long, "", true},
		{"note", "title", "pass@1", "policy", long, true},
		{"title", long, "pass@1", "policy", "", true},
		{"xlabel", "title", long + long, "policy", "", true},
	} {
		t.Run(c.name, func(t *testing.T) {
			last := 0
			for _, n := range []int{1, 2, 5, 20} {
				var bars []Bar
				for i := range n {
					b := bar(fmt.Sprint(c.label, i), 120*i/max(n-1, 1), 120)
					b.Note = c.note
					bars = append(bars, b)
				}
				pic, _, err := SuccessPlot(c.title, c.xlabel, bars)
				require.NoError(t, err)
				img, err := png.Decode(bytes.NewReader(pic))
				require.NoError(t, err)
				size := img.Bounds().Size()
				if c.wider {
					require.Greater(t, size.X, 900)
				} else {
					require.Equal(t, 900, size.X)
				}
				require.GreaterOrEqual(t, size.Y, last+20)
				last = size.Y
				for x := range size.X {
					for y := range size.Y {
						edge := x < 10 || y < 5 || x >= size.X-10 || y >= size.Y-5
						if edge && color.GrayModel.Convert(img.At(x, y)) != (color.Gray{255}) {
							t.Fatalf("%d rows: a mark at %d,%d of %v", n, x, y, size)
						}
					}
				}
			}
		})
	}
}

func TestSuccessPlotRefuses(t *testing.T) {
	ok := bar("x", 3, 4)
	for _, c := range []struct {
		name string
		edit func(b *Bar)
	}{
		{"percent", func(b *Bar) { b.Value = 57 }},
		{"negative", func(b *Bar) { b.Value = -0.1 }},
		{"not a number", func(b *Bar) { b.Value = math.NaN() }},
		{"reversed interval", func(b *Bar) { b.Interval = Interval{0.8, 0.2} }},
		{"interval in percent", func(b *Bar) { b.Interval = Interval{0, 61} }},
		{"interval without values", func(b *Bar) { b.Interval = Bootstrap(nil, 1) }},
		{"line break", func(b *Bar) { b.Label = "a\nb" }},
		{"control character in a note", func(b *Bar) { b.Note = "\x00" }},
		{"not UTF-8", func(b *Bar) { b.Label = "\xff" }},
	} {
		bad := ok
		c.edit(&bad)
		_, _, err := SuccessPlot("t", "x", []Bar{ok, bad})
		require.Error(t, err, c.name)
	}
	_, _, err := SuccessPlot("t", "x", nil)
	require.Error(t, err)
	_, _, err = SuccessPlot("t\n", "x", []Bar{ok})
	require.Error(t, err)
}
