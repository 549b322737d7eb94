package bench

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"image/color"
	"math"
	"slices"
	"strings"
	"unicode"

	"codeberg.org/go-fonts/liberation/liberationsansbold"
	"codeberg.org/go-fonts/liberation/liberationsansregular"
	stdfont "golang.org/x/image/font"
	"golang.org/x/image/font/opentype"
	"gonum.org/v1/plot/font"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/vgimg"
	"gonum.org/v1/plot/vg/vgsvg"
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
	ink       = color.RGBA{0x22, 0x22, 0x22, 0xff}
	smallInk  = color.RGBA{0x66, 0x66, 0x66, 0xff}
	grid      = color.RGBA{0xe3, 0xe3, 0xe3, 0xff}
	axis      = color.RGBA{0xa8, 0xa8, 0xa8, 0xff}
	blue      = color.RGBA{0x00, 0x72, 0xb2, 0xff}
	blueLight = color.RGBA{0xb9, 0xd8, 0xea, 0xff}
	gray      = color.RGBA{0x88, 0x88, 0x88, 0xff}
	grayLight = color.RGBA{0xe9, 0xe9, 0xe9, 0xff}
)

// Lengths of the picture in pixels of the PNG, which has 96 to the inch.
const (
	px        = vg.Length(0.75)
	picWidth  = 900 * px
	barsWidth = 300 * px // at least; long texts widen the picture
	picMargin = 20 * px
	picGap    = 14 * px
)

// SuccessPlot draws success rates with their 95 % intervals, one row each, best first (ties by label). The picture is 900
// pixels wide, wider if its texts need it, and as high as its rows need. Equal arguments give equal bytes. It is an error if
// there are no rows, a rate is not in [0, 1], an interval is reversed or not in [0, 1], or a text cannot be printed.
func SuccessPlot(title, xlabel string, bars []Bar) (png, svg []byte, err error) {
	if err := checkBars(title, xlabel, bars); err != nil {
		return nil, nil, fmt.Errorf("plot %q: %w", title, err)
	}
	p, err := layOut(title, xlabel, bars)
	if err != nil {
		return nil, nil, fmt.Errorf("plot %q: %w", title, err)
	}
	img := vgimg.PngCanvas{Canvas: vgimg.New(p.width, p.height)}
	p.draw(img)
	var pngText, svgText bytes.Buffer
	if _, err := img.WriteTo(&pngText); err != nil {
		return nil, nil, fmt.Errorf("plot %q: encode PNG: %w", title, err)
	}
	vec := &svgCanvas{Canvas: vgsvg.New(p.width, p.height)}
	p.draw(vec)
	if _, err := vec.WriteTo(&svgText); err != nil {
		return nil, nil, fmt.Errorf("plot %q: encode SVG: %w", title, err)
	}
	return pngText.Bytes(), vec.portable(svgText.String()), nil
}

// svgCanvas makes texts as wide on the reader's machine as they are here, whatever fonts that has: embedding ours would
// take half a megabyte.
type svgCanvas struct {
	*vgsvg.Canvas
	widths []vg.Length // of the texts, in order
}

func (c *svgCanvas) FillString(f font.Face, at vg.Point, s string) {
	c.widths = append(c.widths, f.Width(s))
	c.Canvas.FillString(f, at, s)
}

func (c *svgCanvas) portable(svg string) []byte {
	parts := strings.Split(svg, "<text ") // texts themselves are escaped
	for i, w := range c.widths {
		parts[i+1] = fmt.Sprintf(`textLength="%.2f" lengthAdjust="spacingAndGlyphs" `, w.Points()) + parts[i+1]
	}
	svg = strings.Join(parts, "<text ")
	return []byte(strings.ReplaceAll(svg, "font-family:Liberation Sans;", "font-family:Liberation Sans,Arial,Helvetica,sans-serif;"))
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
	for _, s := range texts {
		if strings.ContainsFunc(s, func(r rune) bool { return !unicode.IsPrint(r) || r == unicode.ReplacementChar }) {
			return fmt.Errorf("text %q cannot be printed", s)
		}
	}
	return nil
}

// picture is a plot with every length known, in points from the bottom left.
type picture struct {
	title, xlabel, legend                string
	bars                                 []Bar
	titleFont, textFont, smallFont       font.Face
	width, height, left, right, top, row vg.Length
	valueRight                           vg.Length // end of the values, and shortly after it the start of the intervals
}

func layOut(title, xlabel string, bars []Bar) (*picture, error) {
	p := &picture{title: title, xlabel: xlabel, legend: "line: 95 % interval", bars: slices.Clone(bars), row: 28 * px}
	slices.SortStableFunc(p.bars, func(a, b Bar) int {
		return cmp.Or(cmp.Compare(b.Value, a.Value), strings.Compare(a.Label, b.Label))
	})
	for _, f := range []struct {
		face   *font.Face
		ttf    []byte
		weight stdfont.Weight
		size   vg.Length
	}{
		{&p.titleFont, liberationsansbold.TTF, stdfont.WeightBold, 18 * px},
		{&p.textFont, liberationsansregular.TTF, stdfont.WeightNormal, 14 * px},
		{&p.smallFont, liberationsansregular.TTF, stdfont.WeightNormal, 12 * px},
	} {
		face, err := opentype.Parse(f.ttf)
		if err != nil {
			return nil, fmt.Errorf("read font: %w", err)
		}
		*f.face = font.Face{Font: font.Font{Typeface: "Liberation", Variant: "Sans", Weight: f.weight, Size: f.size}, Face: face}
	}

	var labels, values, intervals vg.Length
	for _, b := range p.bars {
		labels = max(labels, p.textFont.Width(b.Label), p.smallFont.Width(b.Note))
		values = max(values, p.textFont.Width(rate(b)))
		intervals = max(intervals, p.textFont.Width(ends(b)))
		if b.Note != "" {
			p.row = 42 * px
		}
		if b.Muted {
			p.legend = "line: 95 % interval, gray: not ranked"
		}
	}
	p.left = picMargin + labels + picGap
	after := picGap + values + 5*px + intervals + picMargin
	foot := max(p.textFont.Width(xlabel), p.smallFont.Width(p.legend)) // centred under the plot
	p.width = max(picWidth, p.left+max(barsWidth, foot)+after, p.titleFont.Width(title)+2*picMargin)
	p.right = p.width - after
	p.valueRight = p.right + picGap + values
	// Whole pixels keep edges sharp.
	p.width = px * vg.Length(math.Ceil(float64(p.width/px)))
	p.left, p.right = px*vg.Length(math.Round(float64(p.left/px))), px*vg.Length(math.Round(float64(p.right/px)))
	head, tail := 52*px, 66*px
	p.top = tail + p.row*vg.Length(len(p.bars))
	p.height = p.top + head
	return p, nil
}

func rate(b Bar) string { return fmt.Sprintf("%.1f %%", 100*b.Value) }
func ends(b Bar) string { return fmt.Sprintf("[%.0f, %.0f]", 100*b.Interval.Lo, 100*b.Interval.Hi) }

func (p *picture) draw(c vg.Canvas) {
	fill := func(clr color.Color, x0, y0, x1, y1 vg.Length) {
		c.SetColor(clr)
		c.Fill(vg.Path{
			{Type: vg.MoveComp, Pos: vg.Point{X: x0, Y: y0}}, {Type: vg.LineComp, Pos: vg.Point{X: x1, Y: y0}},
			{Type: vg.LineComp, Pos: vg.Point{X: x1, Y: y1}}, {Type: vg.LineComp, Pos: vg.Point{X: x0, Y: y1}},
			{Type: vg.CloseComp},
		})
	}
	dot := func(clr color.Color, x, y, radius vg.Length) {
		c.SetColor(clr)
		c.Fill(vg.Path{
			{Type: vg.MoveComp, Pos: vg.Point{X: x + radius, Y: y}},
			{Type: vg.ArcComp, Pos: vg.Point{X: x, Y: y}, Radius: radius, Angle: 2 * math.Pi},
			{Type: vg.CloseComp},
		})
	}
	// text puts s with its start (align 0), middle (0.5) or end (1) at x.
	text := func(f font.Face, clr color.Color, x, y vg.Length, align float64, s string) {
		if s != "" {
			c.SetColor(clr)
			c.FillString(f, vg.Point{X: x - vg.Length(align)*f.Width(s), Y: y}, s)
		}
	}
	at := func(rate float64) vg.Length { return p.left + vg.Length(rate)*(p.right-p.left) }
	bottom := p.top - p.row*vg.Length(len(p.bars))

	fill(color.White, 0, 0, p.width, p.height) // also where the page is dark
	text(p.titleFont, ink, picMargin, p.height-30*px, 0, p.title)
	for tick := 0; tick <= 100; tick += 20 {
		x := at(float64(tick) / 100)
		clr, label := grid, fmt.Sprint(tick)
		if tick == 0 {
			clr = axis
		}
		if tick == 100 {
			label = "100 %"
		}
		fill(clr, x-px/2, bottom, x+px/2, p.top)
		text(p.smallFont, smallInk, x, bottom-16*px, 0.5, label)
	}
	middle := (p.left + p.right) / 2
	text(p.textFont, ink, middle, bottom-36*px, 0.5, p.xlabel)
	text(p.smallFont, smallInk, middle, bottom-54*px, 0.5, p.legend)

	for i, b := range p.bars {
		y := p.top - p.row*(vg.Length(i)+0.5)
		bar, strong, labelInk := blueLight, blue, ink
		if b.Muted {
			bar, strong, labelInk = grayLight, gray, smallInk
		}
		base := y - 5*px
		if b.Note != "" {
			base = y + 2*px
			text(p.smallFont, smallInk, p.left-picGap, y-14*px, 1, b.Note)
		}
		text(p.textFont, labelInk, p.left-picGap, base, 1, b.Label)
		x := at(b.Value)
		fill(bar, p.left, y-9*px, x, y+9*px)
		lo, hi := at(b.Interval.Lo), at(b.Interval.Hi)
		fill(strong, lo, y-px, hi, y+px)
		fill(strong, lo-px/2, y-5*px, lo+px/2, y+5*px)
		fill(strong, hi-px/2, y-5*px, hi+px/2, y+5*px)
		dot(strong, x, y, 4.5*px)
		if b.Muted {
			dot(color.White, x, y, 2.5*px)
		}
		text(p.textFont, labelInk, p.valueRight, y-5*px, 1, rate(b))
		text(p.textFont, smallInk, p.valueRight+5*px, y-5*px, 0, ends(b))
	}
}
