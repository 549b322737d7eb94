package rewards

import (
	"cmp"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"
)

// spans appends the numbers, dates and times in a text. One that may be read in several ways comes as often, the likeliest
// first. What is part of a word, such as an identifier, is none.
func spans(dst []datum, s string) []datum {
	for i := 0; i < len(s); {
		switch c := s[i]; {
		case isDigit(c):
			dst, i = numeric(dst, s, i)
		case isLetter(s, i):
			if d, ok := monthFirst(s, i); ok {
				dst, i = append(dst, d), d.to
			} else {
				i = wordEnd(s, i)
			}
		default:
			i++
		}
	}
	return dst
}

func isDigit(c byte) bool { return '0' <= c && c <= '9' }

// isLetter says whether a letter, or an underscore, begins or goes on at i.
func isLetter(s string, i int) bool {
	switch c := s[i]; {
	case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', c == '_':
		return true
	case c < utf8.RuneSelf:
		return false
	}
	for i > 0 && !utf8.RuneStart(s[i]) {
		i--
	}
	r, _ := utf8.DecodeRuneInString(s[i:])
	return unicode.IsLetter(r)
}

// wordEnd is where a word ends that has begun at i: a digit after a hyphen, point, slash or colon is still part of it.
func wordEnd(s string, i int) int {
	for i < len(s) {
		switch c := s[i]; {
		case isLetter(s, i) || isDigit(c):
			i++
		case strings.IndexByte("-./:", c) >= 0 && i+1 < len(s) && isDigit(s[i+1]) && isDigit(s[i-1]),
			c == '-' && i+1 < len(s) && (isLetter(s, i+1) || isDigit(s[i+1])):
			i += 2
		default:
			return i
		}
	}
	return i
}

func digits(s string, i, most int) (n, end int) {
	for end = i; end < len(s) && end < i+most && isDigit(s[end]); end++ {
		n = 10*n + int(s[end]-'0')
	}
	return n, end
}

// numeric reads what begins with a digit, and says where it ends.
func numeric(dst []datum, s string, i int) ([]datum, int) {
	if d, ok := isoDate(s, i); ok {
		return append(dst, d), d.to
	}
	a, j := digits(s, i, 4)
	if j-i <= 2 && j+2 < len(s) && s[j] == ':' {
		if b, k := digits(s, j+1, 2); k == j+3 && a < 24 && b < 60 {
			d := clockAt(s, i, k, a, b)
			return append(dst, d), d.to
		}
	}
	if j-i <= 2 && j < len(s) && (s[j] == '.' || s[j] == '/') {
		if b, k := digits(s, j+1, 2); k > j+1 && k < len(s) && s[k] == s[j] {
			if y, e := digits(s, k+1, 5); e == k+5 {
				for _, md := range [][2]int{{b, a}, {a, b}} { // day first, then month first
					if u, ok := midnight(y, md[0], md[1]); ok {
						dst = append(dst, datum{kind: day, num: u, from: i, to: e, text: s[i:e]})
					}
				}
				return dst, e
			}
		}
	}
	if j-i <= 2 && a <= 12 {
		if d := clockAt(s, i, j, a, 0); d.to > j {
			return append(dst, d), d.to
		}
	}
	if j-i <= 2 {
		if d, ok := dayFirst(s, i, j, a); ok {
			return append(dst, d), d.to
		}
	}
	if j == i+4 && a >= 1000 && j+3 <= len(s) && (s[j] == '-' || s[j] == '/') {
		if m, k := digits(s, j+1, 3); k == j+3 && m >= 1 && m <= 12 && wordEnd(s, j-1) == k {
			return append(dst, datum{kind: monthly, num: monthOf(a, m), from: i, to: k, text: s[i:k]}), k
		}
	}
	for j = i; j < len(s) && isDigit(s[j]); j++ {
	}
	for j-i <= 3 || j-i > 4 && s[j-4] == ',' { // groups of thousands
		if _, k := digits(s, min(j+1, len(s)), 4); j < len(s) && s[j] == ',' && k == j+4 {
			j = k
			continue
		}
		break
	}
	if j+1 < len(s) && s[j] == '.' && isDigit(s[j+1]) {
		for j++; j < len(s) && isDigit(s[j]); j++ {
		}
	}
	d := datum{kind: numeral, from: i, to: j}
	if i > 0 && (s[i-1] == '-' || s[i-1] == '+') && (i == 1 || !isDigit(s[i-2]) && !isLetter(s, i-2)) {
		d.from--
	}
	d.text = s[d.from:j]
	var err error
	if d.num, err = strconv.ParseFloat(strings.ReplaceAll(d.text, ",", ""), 64); err != nil {
		return dst, j
	}
	d.unit, d.to = unitAt(s, j)
	if e := wordEnd(s, j-1); d.to < e && !(d.to == j && s[j] == '-' && isLetter(s, j+1)) { // "3rd", "1.2.3", but "7-day"
		return dst, e
	}
	return append(dst, d), d.to
}

// monthOf numbers months.
func monthOf(y, m int) float64 { return float64(12*y + m - 1) }

func midnight(y, m, d int) (unix float64, ok bool) {
	t := time.Date(y, time.Month(m), d, 0, 0, 0, 0, time.UTC)
	return float64(t.Unix()), y >= 1000 && y <= 9999 && m == int(t.Month()) && d == t.Day()
}

// isoDate reads 2031-05-06 or 2031/05/06, and a time after it.
func isoDate(s string, i int) (datum, bool) {
	y, j := digits(s, i, 5)
	if j != i+4 || j+6 > len(s) || s[j] != '-' && s[j] != '/' {
		return datum{}, false
	}
	m, k := digits(s, j+1, 2)
	d, e := digits(s, min(k+1, len(s)), 3)
	u, ok := midnight(y, m, d)
	if !ok || k != j+3 || s[k] != s[j] || e != k+3 {
		return datum{}, false
	}
	out := datum{kind: day, num: u, from: i, to: e, text: s[i:e]}
	if e+6 <= len(s) && (s[e] == 'T' || s[e] == 't' || s[e] == ' ') && s[e+3] == ':' {
		h, he := digits(s, e+1, 2)
		min, me := digits(s, e+4, 2)
		if he == e+3 && me == e+6 && h < 24 && min < 60 {
			out.kind, out.to = moment, me
			out.num += float64(h*3600 + min*60)
			if me+3 <= len(s) && s[me] == ':' {
				if sec, se := digits(s, me+1, 2); se == me+3 {
					out.num, out.to = out.num+float64(sec), se
					if se < len(s) && s[se] == '.' {
						_, out.to = digits(s, se+1, 9)
					}
				}
			}
			rest := s[out.to:]
			for _, zone := range []string{"Z", "+00:00", " UTC"} {
				if strings.HasPrefix(rest, zone) {
					out.to += len(zone)
					break
				}
			}
			out.text = s[i:out.to]
		}
	}
	return out, true
}

// clockAt is the time whose hours and minutes end at end, with the seconds and the half of the day after them.
func clockAt(s string, i, end, h, m int) datum {
	if end < len(s) && s[end] == ':' {
		if _, e := digits(s, end+1, 2); e == end+3 {
			end = e
		}
	}
	at := end
	if at < len(s) && s[at] == ' ' {
		at++
	}
	if at+2 <= len(s) && (at+2 == len(s) || !isLetter(s, at+2)) {
		switch strings.ToLower(s[at : at+2]) {
		case "am":
			h, end = h%12, at+2
		case "pm":
			h, end = h%12+12, at+2
		}
	}
	return datum{kind: clock, num: float64(h*60 + m), from: i, to: end, text: s[i:end]}
}

// month reads the name of a month at i, whole or its first three letters.
func month(s string, i int) (m, end int) {
	for end = i; end < len(s) && isLetter(s, end); end++ {
	}
	if end-i < 3 || s[i] < utf8.RuneSelf && strings.IndexByte("adfjmnosADFJMNOS", s[i]) < 0 {
		return 0, i
	}
	for m := time.January; m <= time.December; m++ {
		if strings.EqualFold(s[i:end], m.String()) || strings.EqualFold(s[i:end], m.String()[:3]) {
			if end-i == 3 && end < len(s) && s[end] == '.' {
				end++
			}
			return int(m), end
		}
	}
	return 0, i
}

// yearAfter reads a year after a day and month, and makes the date.
func yearAfter(s string, i, end, m, d int) (datum, bool) {
	j := end
	for j < len(s) && (s[j] == ',' || s[j] == ' ') {
		j++
	}
	if y, e := digits(s, j, 5); e == j+4 && j > end {
		if u, ok := midnight(y, m, d); ok {
			return datum{kind: day, num: u, from: i, to: e, text: s[i:e]}, true
		}
		return datum{}, false
	}
	_, ok := midnight(2000, m, d)
	return datum{kind: yearless, num: float64(100*m + d), from: i, to: end, text: s[i:end]}, ok
}

// dayFirst reads "6 May 2031", where the day ends at j.
func dayFirst(s string, i, j, d int) (datum, bool) {
	for _, ordinal := range []string{"st", "nd", "rd", "th"} {
		if strings.HasPrefix(s[j:], ordinal) {
			j += 2
			break
		}
	}
	j += len(s[j:]) - len(strings.TrimPrefix(strings.TrimPrefix(s[j:], " "), "of "))
	m, end := month(s, j)
	if m == 0 {
		return datum{}, false
	}
	return yearAfter(s, i, end, m, d)
}

// monthFirst reads "May 6, 2031".
func monthFirst(s string, i int) (datum, bool) {
	m, j := month(s, i)
	if m == 0 || j >= len(s) || s[j] != ' ' {
		return datum{}, false
	}
	if y, e := digits(s, j+1, 5); e == j+5 && y >= 1000 {
		return datum{kind: monthly, num: monthOf(y, m), from: i, to: e, text: s[i:e]}, true
	}
	d, end := digits(s, j+1, 3)
	if end == j+1 || end > j+3 {
		return datum{}, false
	}
	for _, ordinal := range []string{"st", "nd", "rd", "th"} {
		if strings.HasPrefix(s[end:], ordinal) {
			end += 2
			break
		}
	}
	return yearAfter(s, i, end, m, d)
}

// Units.

// measure is a dimension, and what a unit is in the dimension's base unit: scale * value + offset.
type measure struct {
	dimension     string
	scale, offset float64
}

var measures = map[string]measure{
	"C": {"temperature", 1, 0}, "F": {"temperature", 5.0 / 9, -160.0 / 9}, "K": {"temperature", 1, -273.15},
	"m/s": {"speed", 1, 0}, "km/h": {"speed", 1 / 3.6, 0}, "mph": {"speed", 0.44704, 0}, "kn": {"speed", 1852.0 / 3600, 0},
	"mm": {"length", 1, 0}, "cm": {"length", 10, 0}, "in": {"length", 25.4, 0},
	"hPa": {"pressure", 1, 0}, "kPa": {"pressure", 10, 0},
	"%":   {"share", 1, 0},
	"EUR": {"euros", 1, 0}, "ct": {"euros", 0.01, 0}, "USD": {"dollars", 1, 0}, "GBP": {"pounds", 1, 0},
	"s": {"time", 1, 0}, "min": {"time", 60, 0}, "h": {"time", 3600, 0}, "d": {"time", 86400, 0},
}

// spellings lists the ways to write each unit, in lower case, the longest first.
var spellings = func() []struct{ text, symbol string } {
	more := map[string][]string{
		"C": {"c", "degree celsius", "degrees centigrade", "centigrade"}, "F": {"f", "degree fahrenheit"}, "K": {"k", "kelvin"}, "%": {"%", "pct", "percentage"},
		"km/h": {"km/h", "km per hour", "kilometre per hour", "kilometer per hour"}, "mph": {"mph", "mi/h", "mile per hour"},
		"m/s": {"m/s", "mps", "metres per second", "meters per second"}, "kn": {"kn", "kt", "kts", "knot", "knots"},
		"mm": {"mm", "millimetre", "millimeter"}, "cm": {"cm", "centimetres", "centimeters"}, "in": {"in"},
		"hPa": {"hpa", "mbar", "millibar", "millibars"}, "kPa": {"kpa"},
		"s": {"s", "sec", "second", "seconds"}, "min": {"min", "mins", "minute", "minutes"}, "h": {"h", "hr", "hrs"}, "d": {"d", "day", "days"},
		"EUR": {"eur"}, "ct": {"ct", "cent", "cents"}, "USD": {"usd", "dollar", "dollars", "$"}, "GBP": {"gbp", "pound", "pounds", "\u00a3"},
		"": {"\u00b0", "degree", "degrees", "deg"},
	}
	var all []struct{ text, symbol string }
	for _, of := range []map[string][]string{units, more} {
		for symbol, list := range of {
			for _, text := range list {
				all = append(all, struct{ text, symbol string }{text, symbol})
			}
		}
	}
	slices.SortFunc(all, func(a, b struct{ text, symbol string }) int {
		return cmp.Or(cmp.Compare(len(b.text), len(a.text)), strings.Compare(a.text, b.text))
	})
	return all
}()

// symbol is the one name of a unit, empty where it is not known.
func symbol(unit string) string {
	if _, ok := measures[unit]; ok || unit == "" {
		return unit
	}
	unit = strings.ToLower(unit)
	for _, sp := range spellings {
		if sp.text == unit {
			return sp.symbol
		}
	}
	return ""
}

// unitAt reads a unit that stands at i or one space after it. Where there is none, end is i.
func unitAt(s string, i int) (unit string, end int) {
	at := i
	if at < len(s) && s[at] == ' ' {
		at++
	}
	if at >= len(s) || isDigit(s[at]) || s[at] == ',' || s[at] == '"' {
		return "", i
	}
	for _, sp := range spellings {
		n := len(sp.text)
		if at+n > len(s) || !strings.EqualFold(s[at:at+n], sp.text) {
			continue
		}
		after, _ := utf8.DecodeRuneInString(s[at+n:])
		if last, _ := utf8.DecodeLastRuneInString(sp.text); isWordRune(last) && isWordRune(after) || after == '/' {
			continue
		}
		if after == ' ' && at > i && at+n+1 < len(s) && isLetter(s, at+n+1) && (sp.text == "in" || n == 1 && 'a' <= s[at] && s[at] <= 'z') {
			continue // a word, as in "21 in Oslo"
		}
		return sp.symbol, at + n
	}
	return "", i
}

// unitsNamed lists the units that the prompt names in full, or by a symbol that is no word. Times are none.
func (v *view) unitsNamed() []string {
	if v.named == nil {
		v.named = []string{}
		prompt := v.prompt().fold()
		for _, sp := range spellings {
			if len(sp.text) < 3 && sp.text != "mm" && sp.text != "cm" || sp.symbol == "" || measures[sp.symbol].dimension == "time" {
				continue
			}
			if hasPhrase(prompt, sp.text) && !slices.Contains(v.named, sp.symbol) {
				v.named = append(v.named, sp.symbol)
			}
		}
	}
	return v.named
}

func convert(x float64, from, to string) (float64, bool) {
	if from == to {
		return x, true
	}
	a, b := measures[from], measures[to]
	if a.dimension == "" || a.dimension != b.dimension {
		return 0, false
	}
	return (x*a.scale + a.offset - b.offset) / b.scale, true
}

func sameDimension(a, b string) bool {
	return a == b || measures[a].dimension != "" && measures[a].dimension == measures[b].dimension
}
