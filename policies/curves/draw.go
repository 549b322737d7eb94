package curves

import (
	"bytes"
	"errors"
	"fmt"
	"image/color"
	"math"
	"os"
	"strconv"
	"strings"

	"gonum.org/v1/plot/vg"
)

// Picture is a title and panels, each of one quantity. X is the name of the axis of steps, which they share.
type Picture struct {
	Title, X string
	Panels   []Panel
}

// Panel shows curves. Y is the name of their quantity, with its unit.
type Panel struct {
	Y      string
	Curves []Curve
}

// Curve is the values of a key, or of anything else, by step. One without points is left out.
type Curve struct {
	Name   string
	Points []Point
}

// Point is a value at a step. A curve has a gap at one that is not finite.
type Point struct {
	Step int
	Y    float64
}

// Points are the values of a key where it was measured.
func Points(entries []Entry, key string) []Point {
	var out []Point
	for _, e := range entries {
		if y, ok := e.Values[key]; ok {
			out = append(out, Point{e.Step, y})
		}
	}
	return out
}

// The colours of curves are of the palette of Okabe and Ito, which the colour-blind can tell apart.
var palette = []color.RGBA{{0x00, 0x72, 0xb2, 0xff}, {0xd5, 0x5e, 0x00, 0xff}, {0x00, 0x9e, 0x73, 0xff},
	{0xcc, 0x79, 0xa7, 0xff}, {0xe6, 0x9f, 0x00, 0xff}, {0x56, 0xb4, 0xe9, 0xff}}

const (
	panelGap  = 32 * Px
	panelHead = 52 * Px // the quantity's name and the curves'
	panelFoot = 44 * Px // the numbers and the name of the steps
	swatch    = 18 * Px
)

const dotted = 30 // a curve of at most so many points has dots

// Save draws a picture into the files base.png and base.svg. Files of the same picture are left alone.
func Save(base string, p Picture) error {
	png, svg, err := Draw(p)
	if err != nil {
		return err
	}
	if old, err := os.ReadFile(base + ".svg"); err == nil && bytes.Equal(old, svg) {
		if _, err := os.Stat(base + ".png"); err == nil {
			return nil
		}
	}
	// The SVG comes last: where it is whole, both are of one picture.
	if err := errors.Join(os.WriteFile(base+".png", png, 0o644), os.WriteFile(base+".svg", svg, 0o644)); err != nil {
		return fmt.Errorf("picture %q: %w", p.Title, err)
	}
	return nil
}

// Draw draws a picture, its panels two a row. Equal pictures give equal bytes. It is an error if there is no panel, a panel has no
// finite value or more than six curves, a curve's steps do not rise, or a text cannot be printed.
func Draw(p Picture) (png, svg []byte, err error) {
	l, err := layOut(p)
	if err == nil {
		png, svg, err = l.Render(p.Title, l.width, l.height, l.draw)
	}
	if err != nil {
		return nil, nil, fmt.Errorf("picture %q: %w", p.Title, err)
	}
	return png, svg, nil
}

// layout is a picture with every length known, in points from the bottom left.
type layout struct {
	Fonts
	x             string
	width, height vg.Length
	panels        []panel
}

// panel is a panel that is placed. Its numbers are left of left.
type panel struct {
	y                        string
	curves                   []curve
	xs, ys                   scale
	edge                     vg.Length // where its texts begin
	left, right, bottom, top vg.Length
}

type curve struct {
	name   string
	points []Point
	mean   []Point // nil unless noisy
	color  color.RGBA
}

func layOut(p Picture) (*layout, error) {
	l := &layout{x: p.X}
	if len(p.Panels) == 0 {
		return nil, errors.New("no panels")
	}
	first, last := math.MaxInt, math.MinInt
	for _, from := range p.Panels {
		for _, c := range from.Curves {
			for _, at := range c.Points {
				first, last = min(first, at.Step), max(last, at.Step)
			}
		}
	}
	if first > last {
		return nil, errors.New("no points")
	}
	xs := newScale(float64(first), float64(max(last, first+1)), 6, 1)
	texts := []string{p.Title, p.X}
	for _, from := range p.Panels {
		one, err := place(from, xs)
		if err != nil {
			return nil, fmt.Errorf("panel %q: %w", from.Y, err)
		}
		l.panels = append(l.panels, one)
		texts = append(texts, from.Y)
		for _, c := range from.Curves {
			texts = append(texts, c.Name)
		}
	}
	if err := Printable(texts...); err != nil {
		return nil, err
	}
	var err error
	if l.Fonts, err = NewFonts(); err != nil {
		return nil, err
	}

	columns, high := min(2, len(p.Panels)), 180*Px
	if columns == 1 {
		high = 300 * Px
	}
	wide := (Width - 2*Margin - panelGap*vg.Length(columns-1)) / vg.Length(columns)
	var numbers vg.Length // the widest of all, so that panels are alike
	for _, one := range l.panels {
		for _, t := range one.ys.ticks {
			numbers = max(numbers, l.Small.Width(one.ys.label(t)))
		}
		wide = max(wide, l.Text.Width(one.y), l.legend(one))
	}
	numbers += 8 * Px
	wide = max(wide, numbers+l.Text.Width(l.x), l.Title.Width(p.Title)/vg.Length(columns))
	wide = Px * vg.Length(math.Ceil(float64(wide/Px))) // whole pixels keep edges sharp
	numbers = Px * vg.Length(math.Ceil(float64(numbers/Px)))
	rows := (len(p.Panels) + columns - 1) / columns
	l.width = 2*Margin + wide*vg.Length(columns) + panelGap*vg.Length(columns-1)
	tall := panelHead + high + panelFoot
	l.height = Head + tall*vg.Length(rows) + Margin/2
	for i := range l.panels {
		one := &l.panels[i]
		one.edge = Margin + (wide+panelGap)*vg.Length(i%columns)
		one.left, one.right = one.edge+numbers, one.edge+wide
		one.top = l.height - Head - tall*vg.Length(i/columns) - panelHead
		one.bottom = one.top - high
	}
	return l, nil
}

// legend is how wide the names of a panel's curves are.
func (l *layout) legend(p panel) (width vg.Length) {
	for _, c := range p.curves {
		width += swatch + 6*Px + l.Small.Width(c.name) + 16*Px
	}
	return width
}

func place(from Panel, xs scale) (panel, error) {
	p := panel{y: from.Y, xs: xs}
	if len(from.Curves) > len(palette) {
		return p, fmt.Errorf("%d curves", len(from.Curves))
	}
	y0, y1 := math.Inf(1), math.Inf(-1)
	for i, c := range from.Curves {
		if len(c.Points) == 0 {
			continue
		}
		for k, at := range c.Points {
			if k > 0 && at.Step <= c.Points[k-1].Step {
				return p, fmt.Errorf("curve %q: step %d after %d", c.Name, at.Step, c.Points[k-1].Step)
			}
			if finite(at.Y) {
				y0, y1 = min(y0, at.Y), max(y1, at.Y)
			}
		}
		one := curve{name: c.Name, points: c.Points, color: palette[i]}
		if noisy(c.Points) {
			half := len(c.Points) / 50
			one.mean = runningMean(c.Points, half)
			one.name = strings.TrimSpace(fmt.Sprintf("%s (strong: mean of %d)", c.Name, 2*half+1))
		}
		p.curves = append(p.curves, one)
	}
	if !finite(y0) {
		return p, errors.New("no finite value")
	}
	if y0 >= 0 && y0 < y1/2 { // what is nearly 0 is seen to be so
		y0 = 0
	}
	room := (y1 - y0) / 20
	if room == 0 {
		room = max(math.Abs(y1)/10, 1e-9)
	}
	if y0 != 0 {
		y0 -= room
	}
	p.ys = newScale(y0, y1+room, 5, 0)
	return p, nil
}

// noisy is whether a curve of many points turns so often that its running mean shows more. It is drawn pale then, and the mean over it.
func noisy(points []Point) bool {
	turns := 0
	for i := 2; i < len(points); i++ {
		if (points[i].Y > points[i-1].Y) != (points[i-1].Y > points[i-2].Y) {
			turns++
		}
	}
	return len(points) > 100 && turns > len(points)/4
}

func finite(x float64) bool { return !math.IsNaN(x) && !math.IsInf(x, 0) }

// runningMean gives at each point the mean of the finite ones up to half before and after it.
func runningMean(points []Point, half int) []Point {
	out := make([]Point, len(points))
	for i, p := range points {
		sum, n := 0.0, 0.0
		for _, q := range points[max(i-half, 0):min(i+half+1, len(points))] {
			if finite(q.Y) {
				sum, n = sum+q.Y, n+1
			}
		}
		out[i] = Point{p.Step, sum / n} // not a number where there is none
	}
	return out
}

// scale is an axis: its ends, and the round numbers between them.
type scale struct {
	lo, hi, step float64
	ticks        []float64
}

// newScale makes an axis of at most about n ticks, of which the step is at least least.
func newScale(lo, hi float64, n int, least float64) scale {
	s := scale{lo: lo, hi: hi}
	rough := max((hi-lo)/float64(n), least)
	power := math.Pow(10, math.Floor(math.Log10(rough)))
	for _, m := range []float64{1, 2, 5, 10} {
		if s.step = m * power; s.step >= rough*(1-1e-9) {
			break
		}
	}
	for i := math.Ceil(lo / s.step); i*s.step <= hi; i++ {
		s.ticks = append(s.ticks, i*s.step)
	}
	return s
}

func (s scale) label(tick float64) string {
	if tick == 0 {
		return "0"
	}
	if s.step < 1e-4 || s.hi >= 1e7 || s.lo <= -1e7 {
		return strconv.FormatFloat(tick, 'g', 4, 64)
	}
	return strconv.FormatFloat(tick, 'f', max(0, int(-math.Floor(math.Log10(s.step*(1+1e-9))))), 64)
}

// at is where a value lies between the ends a and b.
func (s scale) at(v float64, a, b vg.Length) vg.Length {
	return a + vg.Length((v-s.lo)/(s.hi-s.lo))*(b-a)
}

func (l *layout) draw(c Canvas) {
	for _, p := range l.panels {
		c.Text(l.Text, Ink, p.edge, p.top+32*Px, 0, p.y)
		x := p.edge
		for _, one := range p.curves {
			if one.name != "" {
				c.Rect(one.color, x, p.top+15*Px, x+swatch, p.top+18*Px)
				c.Text(l.Small, SmallInk, x+swatch+6*Px, p.top+12*Px, 0, one.name)
				x += swatch + 6*Px + l.Small.Width(one.name) + 16*Px
			}
		}
		for _, t := range p.ys.ticks {
			y := p.ys.at(t, p.bottom, p.top)
			c.Rect(Grid, p.left, y-Px/2, p.right, y+Px/2)
			c.Text(l.Small, SmallInk, p.left-8*Px, y-4*Px, 1, p.ys.label(t))
		}
		c.Rect(Axis, p.left, p.bottom-Px/2, p.right, p.bottom+Px/2)
		for _, t := range p.xs.ticks {
			x := p.xs.at(t, p.left, p.right)
			c.Rect(Axis, x-Px/2, p.bottom-4*Px, x+Px/2, p.bottom)
			c.Text(l.Small, SmallInk, x, p.bottom-18*Px, 0.5, p.xs.label(t))
		}
		c.Text(l.Text, Ink, (p.left+p.right)/2, p.bottom-36*Px, 0.5, l.x)
		for _, one := range p.curves {
			if one.mean != nil {
				p.stroke(c, one.points, pale(one.color), Px)
				p.stroke(c, one.mean, one.color, 2*Px)
				continue
			}
			p.stroke(c, one.points, one.color, 2*Px)
			if len(one.points) <= dotted {
				p.dots(c, one.points, one.color)
			}
		}
	}
}

// pale is a colour mixed with white.
func pale(c color.RGBA) color.RGBA {
	mix := func(v uint8) uint8 { return uint8((int(v) + 2*255) / 3) }
	return color.RGBA{mix(c.R), mix(c.G), mix(c.B), 0xff}
}

func (p panel) point(q Point) vg.Point {
	return vg.Point{X: p.xs.at(float64(q.Step), p.left, p.right), Y: p.ys.at(q.Y, p.bottom, p.top)}
}

func (p panel) stroke(c Canvas, points []Point, clr color.Color, width vg.Length) {
	var path vg.Path
	gap := true
	for _, q := range points {
		if !finite(q.Y) {
			gap = true
			continue
		}
		if gap {
			path.Move(p.point(q))
		} else {
			path.Line(p.point(q))
		}
		gap = false
	}
	c.SetColor(clr)
	c.SetLineWidth(width)
	c.Stroke(path)
}

func (p panel) dots(c Canvas, points []Point, clr color.Color) {
	for _, q := range points {
		if finite(q.Y) {
			at := p.point(q)
			c.Dot(clr, at.X, at.Y, 3*Px)
		}
	}
}
