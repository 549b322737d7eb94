package bench

import (
	"cmp"
	"errors"
	"fmt"
	"image/color"
	"math"
	"slices"
	"strings"

	"gonum.org/v1/plot/vg"

	"github.com/mcpgym/mcpgym/policies/curves"
)

// Bar is one row of a plot. Value and Interval are rates in [0, 1].
type Bar struct {
	Label    string
	Value    float64
	Interval Interval
	Note     string // small print under the label; may be empty
	Muted    bool   // not ranked: an oracle, an expert
}

// Blue is of the colour-blind safe palette of Okabe and Ito; muted rows differ from ranked ones in lightness and form as well.
var (
	blue      = color.RGBA{0x00, 0x72, 0xb2, 0xff}
	blueLight = color.RGBA{0xb9, 0xd8, 0xea, 0xff}
	gray      = color.RGBA{0x88, 0x88, 0x88, 0xff}
	grayLight = color.RGBA{0xe9, 0xe9, 0xe9, 0xff}
)

const (
	px        = curves.Px
	barsWidth = 300 * px // at least
	picGap    = 14 * px
)

// SuccessPlot draws success rates with their 95 % intervals, one row each, best first (ties by label). The picture is 900
// pixels wide, wider if its texts need it, and as high as its rows need. Equal arguments give equal bytes. It is an error if
// there are no rows, a rate is not in [0, 1], an interval is reversed or not in [0, 1], or a text cannot be printed.
func SuccessPlot(title, xlabel string, bars []Bar) (png, svg []byte, err error) {
	err = checkBars(title, xlabel, bars)
	var p *picture
	if err == nil {
		p, err = layOut(title, xlabel, bars)
	}
	if err == nil {
		png, svg, err = p.Render(title, p.width, p.height, p.draw)
	}
	if err != nil {
		return nil, nil, fmt.Errorf("plot %q: %w", title, err)
	}
	return png, svg, nil
}

func checkBars(title, xlabel string, bars []Bar) error {
	if len(bars) == 0 {
		return errors.New("no rows")
	}
	texts := []string{title, xlabel}
	for _, b := range bars {
		texts = append(texts, b.Label, b.Note)
		if !(b.Value >= 0 && b.Value <= 1) { // also not a number
			return fmt.Errorf("row %s: rate %v, want one in [0, 1]", b.Label, b.Value)
		}
		if i := b.Interval; !(i.Lo >= 0 && i.Lo <= i.Hi && i.Hi <= 1) {
			return fmt.Errorf("row %s: interval [%v, %v]", b.Label, i.Lo, i.Hi)
		}
	}
	return curves.Printable(texts...)
}

// picture is a plot with every length known, in points from the bottom left.
type picture struct {
	curves.Fonts
	xlabel, legend                       string
	bars                                 []Bar
	width, height, left, right, top, row vg.Length
	valueRight                           vg.Length // end of the values, and shortly after it the start of the intervals
}

func layOut(title, xlabel string, bars []Bar) (*picture, error) {
	p := &picture{xlabel: xlabel, legend: "line: 95 % interval", bars: slices.Clone(bars), row: 28 * px}
	slices.SortStableFunc(p.bars, func(a, b Bar) int {
		return cmp.Or(cmp.Compare(b.Value, a.Value), strings.Compare(a.Label, b.Label))
	})
	var err error
	if p.Fonts, err = curves.NewFonts(); err != nil {
		return nil, err
	}

	var labels, values, intervals vg.Length
	for _, b := range p.bars {
		labels = max(labels, p.Text.Width(b.Label), p.Small.Width(b.Note))
		values = max(values, p.Text.Width(rate(b)))
		intervals = max(intervals, p.Text.Width(ends(b)))
		if b.Note != "" {
			p.row = 42 * px
		}
		if b.Muted {
			p.legend = "line: 95 % interval, gray: not ranked"
		}
	}
	p.left = curves.Margin + labels + picGap
	after := picGap + values + 5*px + intervals + curves.Margin
	foot := max(p.Text.Width(xlabel), p.Small.Width(p.legend)) // centred under the plot
	p.width = max(curves.Width, p.left+max(barsWidth, foot)+after, p.Title.Width(title)+2*curves.Margin)
	p.right = p.width - after
	p.valueRight = p.right + picGap + values
	// Whole pixels keep edges sharp.
	p.width = px * vg.Length(math.Ceil(float64(p.width/px)))
	p.left, p.right = px*vg.Length(math.Round(float64(p.left/px))), px*vg.Length(math.Round(float64(p.right/px)))
	tail := 66 * px
	p.top = tail + p.row*vg.Length(len(p.bars))
	p.height = p.top + curves.Head
	return p, nil
}

func rate(b Bar) string { return fmt.Sprintf("%.1f %%", 100*b.Value) }
func ends(b Bar) string { return fmt.Sprintf("[%.0f, %.0f]", 100*b.Interval.Lo, 100*b.Interval.Hi) }

func (p *picture) draw(c curves.Canvas) {
	at := func(rate float64) vg.Length { return p.left + vg.Length(rate)*(p.right-p.left) }
	bottom := p.top - p.row*vg.Length(len(p.bars))

	for tick := 0; tick <= 100; tick += 20 {
		x := at(float64(tick) / 100)
		clr, label := curves.Grid, fmt.Sprint(tick)
		if tick == 0 {
			clr = curves.Axis
		}
		if tick == 100 {
			label = "100 %"
		}
		c.Rect(clr, x-px/2, bottom, x+px/2, p.top)
		c.Text(p.Small, curves.SmallInk, x, bottom-16*px, 0.5, label)
	}
	middle := (p.left + p.right) / 2
	c.Text(p.Text, curves.Ink, middle, bottom-36*px, 0.5, p.xlabel)
	c.Text(p.Small, curves.SmallInk, middle, bottom-54*px, 0.5, p.legend)

	for i, b := range p.bars {
		y := p.top - p.row*(vg.Length(i)+0.5)
		bar, strong, labelInk := blueLight, blue, curves.Ink
		if b.Muted {
			bar, strong, labelInk = grayLight, gray, curves.SmallInk
		}
		base := y - 5*px
		if b.Note != "" {
			base = y + 2*px
			c.Text(p.Small, curves.SmallInk, p.left-picGap, y-14*px, 1, b.Note)
		}
		c.Text(p.Text, labelInk, p.left-picGap, base, 1, b.Label)
		x := at(b.Value)
		c.Rect(bar, p.left, y-9*px, x, y+9*px)
		lo, hi := at(b.Interval.Lo), at(b.Interval.Hi)
		c.Rect(strong, lo, y-px, hi, y+px)
		c.Rect(strong, lo-px/2, y-5*px, lo+px/2, y+5*px)
		c.Rect(strong, hi-px/2, y-5*px, hi+px/2, y+5*px)
		c.Dot(strong, x, y, 4.5*px)
		if b.Muted {
			c.Dot(color.White, x, y, 2.5*px)
		}
		c.Text(p.Text, labelInk, p.valueRight, y-5*px, 1, rate(b))
		c.Text(p.Text, curves.SmallInk, p.valueRight+5*px, y-5*px, 0, ends(b))
	}
}
