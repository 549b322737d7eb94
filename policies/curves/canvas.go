package curves

import (
	"bytes"
	"fmt"
	"image/color"
	"math"
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

// The colours of texts and lines.
var (
	Ink      = color.RGBA{0x22, 0x22, 0x22, 0xff}
	SmallInk = color.RGBA{0x66, 0x66, 0x66, 0xff}
	Grid     = color.RGBA{0xe3, 0xe3, 0xe3, 0xff}
	Axis     = color.RGBA{0xa8, 0xa8, 0xa8, 0xff}
)

// Lengths that all pictures have.
const (
	Px     = vg.Length(0.75) // a pixel of the PNG, which has 96 to the inch
	Width  = 900 * Px        // of a picture, at least; long texts widen it
	Margin = 20 * Px
	Head   = 52 * Px // with the title
)

// Fonts are those of pictures.
type Fonts struct{ Title, Text, Small font.Face }

// NewFonts reads the fonts.
func NewFonts() (f Fonts, err error) {
	for _, x := range []struct {
		face   *font.Face
		ttf    []byte
		weight stdfont.Weight
		size   vg.Length
	}{
		{&f.Title, liberationsansbold.TTF, stdfont.WeightBold, 18 * Px},
		{&f.Text, liberationsansregular.TTF, stdfont.WeightNormal, 14 * Px},
		{&f.Small, liberationsansregular.TTF, stdfont.WeightNormal, 12 * Px},
	} {
		face, err := opentype.Parse(x.ttf)
		if err != nil {
			return f, fmt.Errorf("read font: %w", err)
		}
		*x.face = font.Face{Font: font.Font{Typeface: "Liberation", Variant: "Sans", Weight: x.weight, Size: x.size}, Face: face}
	}
	return f, nil
}

// Printable says which of the texts of a picture cannot be printed.
func Printable(texts ...string) error {
	for _, s := range texts {
		if strings.ContainsFunc(s, func(r rune) bool { return !unicode.IsPrint(r) || r == unicode.ReplacementChar }) {
			return fmt.Errorf("text %q cannot be printed", s)
		}
	}
	return nil
}

// Canvas is what a picture is drawn on, in points from the bottom left.
type Canvas struct{ vg.Canvas }

// Render gives what draw draws on white, under a title, as PNG and as SVG. Where draw does the same the bytes are the same.
func (f Fonts) Render(title string, width, height vg.Length, draw func(Canvas)) (png, svg []byte, err error) {
	all := func(on vg.Canvas) {
		c := Canvas{on}
		c.Rect(color.White, 0, 0, width, height) // also where the page is dark
		c.Text(f.Title, Ink, Margin, height-30*Px, 0, title)
		draw(c)
	}
	img := vgimg.PngCanvas{Canvas: vgimg.New(width, height)}
	all(img)
	var pngText, svgText bytes.Buffer
	if _, err := img.WriteTo(&pngText); err != nil {
		return nil, nil, fmt.Errorf("encode PNG: %w", err)
	}
	vec := &svgCanvas{Canvas: vgsvg.New(width, height)}
	all(vec)
	if _, err := vec.WriteTo(&svgText); err != nil {
		return nil, nil, fmt.Errorf("encode SVG: %w", err)
	}
	return pngText.Bytes(), vec.portable(svgText.String()), nil
}

// Rect fills a rectangle.
func (c Canvas) Rect(clr color.Color, x0, y0, x1, y1 vg.Length) {
	c.SetColor(clr)
	c.Fill(vg.Path{
		{Type: vg.MoveComp, Pos: vg.Point{X: x0, Y: y0}}, {Type: vg.LineComp, Pos: vg.Point{X: x1, Y: y0}},
		{Type: vg.LineComp, Pos: vg.Point{X: x1, Y: y1}}, {Type: vg.LineComp, Pos: vg.Point{X: x0, Y: y1}},
		{Type: vg.CloseComp},
	})
}

// Dot fills a circle.
func (c Canvas) Dot(clr color.Color, x, y, radius vg.Length) {
	c.SetColor(clr)
	c.Fill(vg.Path{
		{Type: vg.MoveComp, Pos: vg.Point{X: x + radius, Y: y}},
		{Type: vg.ArcComp, Pos: vg.Point{X: x, Y: y}, Radius: radius, Angle: 2 * math.Pi},
		{Type: vg.CloseComp},
	})
}

// Text puts s with its start (align 0), middle (0.5) or end (1) at x.
func (c Canvas) Text(f font.Face, clr color.Color, x, y vg.Length, align float64, s string) {
	if s != "" {
		c.SetColor(clr)
		c.FillString(f, vg.Point{X: x - vg.Length(align)*f.Width(s), Y: y}, s)
	}
}

// svgCanvas makes texts as wide on the reader's machine as they are here, whatever fonts that has: embedding ours would take half a
// megabyte.
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
