package curves

import (
	"bytes"
	"encoding/xml"
	"errors"
	"fmt"
	"image/color"
	"image/png"
	"io"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// wave is a curve of n points from step 1 on, which turns at each of them where it is rough.
func wave(name string, n int, rough bool) Curve {
	c := Curve{Name: name}
	for i := range n {
		y := 2.5 - 2*float64(i)/float64(n)
		if rough && i%2 == 0 {
			y += 0.5
		}
		c.Points = append(c.Points, Point{i + 1, y})
	}
	return c
}

func picture(curves ...Curve) Picture {
	return Picture{Title: "title <&>", X: "step", Panels: []Panel{{"loss (nats per token)", curves}, {"rate", []Curve{wave("", 9, false)}}}}
}

func TestDraw(t *testing.T) {
	p := picture(wave("train", 200, true), wave("dev", 10, false), Curve{Name: "absent"})
	pic, svg, err := Draw(p)
	require.NoError(t, err)
	at := 0
	for _, s := range []string{">title &lt;&amp;&gt;<", ">loss (nats per token)<", ">train (strong: mean of 9)<", ">dev<", ">0<", ">1<", ">2<", ">3<",
		">50<", ">100<", ">150<", ">200<", ">step<", ">rate<", ">0<", ">1<", ">2<", ">50<", ">200<", ">step<"} {
		i := strings.Index(string(svg[at:]), s)
		require.GreaterOrEqual(t, i, 0, "%s is missing after byte %d", s, at)
		at += i + len(s)
	}
	require.NotContains(t, string(svg), "absent")
	require.Equal(t, strings.Count(string(svg), "<text "), strings.Count(string(svg), "textLength="))
	for d := xml.NewDecoder(bytes.NewReader(svg)); ; {
		if _, err := d.Token(); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
	}
	pic2, svg2, err := Draw(p)
	require.NoError(t, err)
	require.True(t, bytes.Equal(pic, pic2) && bytes.Equal(svg, svg2))

	img, err := png.Decode(bytes.NewReader(pic))
	require.NoError(t, err)
	require.Equal(t, 900, img.Bounds().Dx())
	strong, light := 0, 0
	for x := range 900 {
		for y := range img.Bounds().Dy() {
			switch color.RGBAModel.Convert(img.At(x, y)) {
			case palette[0]:
				strong++
			case pale(palette[0]):
				light++
			}
		}
	}
	require.Greater(t, strong, 500)
	require.Greater(t, light, 500, "the points are there besides their mean")
}

// A value that is not finite is a gap in its curve, not in the mean of many.
func TestGaps(t *testing.T) {
	strokes := func(c Curve) int {
		_, svg, err := Draw(picture(c))
		require.NoError(t, err)
		i := strings.Index(string(svg), "stroke:#0072B2")
		require.GreaterOrEqual(t, i, 0)
		path := string(svg[:i])
		return strings.Count(path[strings.LastIndex(path, "<path"):], "M")
	}
	c := wave("x", 60, false)
	require.Equal(t, 1, strokes(c))
	c.Points[20].Y, c.Points[40].Y = math.NaN(), math.Inf(1)
	require.Equal(t, 3, strokes(c))
	c = wave("x", 150, true)
	require.Equal(t, 1, strokes(c))
	c.Points[20].Y = math.NaN()
	require.Equal(t, 1, strokes(c))
}

func TestRunningMean(t *testing.T) {
	in := []Point{{1, 1}, {2, 3}, {4, math.NaN()}, {5, 8}, {9, 10}}
	require.Equal(t, []Point{{1, 2}, {2, 2}, {4, 5.5}, {5, 9}, {9, 9}}, runningMean(in, 1))
}

func TestScale(t *testing.T) {
	for _, c := range []struct {
		lo, hi, least float64
		want          string
	}{
		{0, 1, 0, "0 0.2 0.4 0.6 0.8 1.0"},
		{0.31, 0.92, 0, "0.4 0.6 0.8"},
		{0, 3, 1, "0 1 2 3"},
		{1, 400, 1, "100 200 300 400"},
		{-0.021, 0.019, 0, "-0.02 -0.01 0 0.01"},
		{0, 1e-5, 0, "0 2e-06 4e-06 6e-06 8e-06 1e-05"},
		{0, 3e8, 0, "0 1e+08 2e+08 3e+08"},
		{990, 1010, 0, "990 995 1000 1005 1010"},
	} {
		s := newScale(c.lo, c.hi, 5, c.least)
		var got []string
		for _, tick := range s.ticks {
			got = append(got, s.label(tick))
		}
		require.Equal(t, c.want, strings.Join(got, " "))
	}
}

// No text or mark reaches the edge, however long the texts.
func TestDrawFits(t *testing.T) {
	if testing.Short() {
		t.Skip("looks at every pixel of five pictures")
	}
	long := strings.Repeat("very long ", 12)
	for _, title := range []string{"t", long} {
		for _, name := range []string{"n", long} {
			for panels := 1; panels <= 3; panels++ {
				p := Picture{Title: title, X: name}
				for i := range panels {
					p.Panels = append(p.Panels, Panel{fmt.Sprint(name, i), []Curve{wave(name, 10, false), wave("b", 200, true)}})
				}
				pic, _, err := Draw(p)
				require.NoError(t, err)
				img, err := png.Decode(bytes.NewReader(pic))
				require.NoError(t, err)
				size := img.Bounds().Size()
				for x := range size.X {
					for y := range size.Y {
						edge := x < 10 || y < 5 || x >= size.X-10 || y >= size.Y-5
						if edge && color.GrayModel.Convert(img.At(x, y)) != (color.Gray{255}) {
							t.Fatalf("%d panels, %q, %q: a mark at %d,%d of %v", panels, title, name, x, y, size)
						}
					}
				}
			}
		}
	}
}

// One value, or equal ones, make a picture too.
func TestDrawLittle(t *testing.T) {
	for _, points := range [][]Point{{{0, 0}}, {{5, 3}}, {{1, -2}, {2, -2}}, {{1, 1}, {2, math.NaN()}}} {
		_, svg, err := Draw(picture(Curve{"x", points}))
		require.NoError(t, err)
		require.NotContains(t, string(svg), "NaN")
		require.NotContains(t, string(svg), "Inf")
	}
}

func TestDrawRefuses(t *testing.T) {
	for name, p := range map[string]Picture{
		"no panels":  {Title: "t"},
		"no curve":   picture(),
		"no value":   picture(Curve{"x", nil}),
		"not finite": picture(Curve{"x", []Point{{1, math.NaN()}, {2, math.Inf(1)}}}),
		"seven":      picture(make([]Curve, 7)...),
		"same step":  picture(Curve{"x", []Point{{1, 1}, {1, 2}}}),
		"line break": picture(wave("a\nb", 3, false)),
		"not UTF-8":  picture(wave("\xff", 3, false)),
	} {
		_, _, err := Draw(p)
		require.Error(t, err, name)
	}
}

// A picture is written again only when it is another.
func TestSave(t *testing.T) {
	base := filepath.Join(t.TempDir(), "curves")
	old := time.Unix(1e9, 0)
	written := func() (n int) {
		for _, end := range []string{".png", ".svg"} {
			s, err := os.Stat(base + end)
			require.NoError(t, err)
			if !s.ModTime().Equal(old) {
				n++
			}
			require.NoError(t, os.Chtimes(base+end, old, old))
		}
		return n
	}
	p := picture(wave("x", 5, false))
	require.NoError(t, Save(base, p))
	require.Equal(t, 2, written())
	require.NoError(t, Save(base, p))
	require.Equal(t, 0, written())
	p.Panels[0].Curves[0].Points[2].Y = 0.5
	require.NoError(t, Save(base, p))
	require.Equal(t, 2, written())
	require.Error(t, Save(base, Picture{}))
}

func TestPoints(t *testing.T) {
	entries := []Entry{{0, map[string]float64{"a": 1}}, {3, map[string]float64{"b": 2}}, {4, map[string]float64{"a": 5, "b": 6}}}
	require.Equal(t, []Point{{0, 1}, {4, 5}}, Points(entries, "a"))
	require.Empty(t, Points(entries, "c"))
}
