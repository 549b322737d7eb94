package rewards

import (
	"bytes"
	"cmp"
	"math"
	"regexp"
	"slices"
	"strings"
)

// figure is a claimed number.
type figure struct {
	num   float64
	half  float64 // of its last decimal
	whole bool    // it has no decimals but zeros
	text  string
	unit  string // that it has
	asked string // that the task asks for, where it has none

	targets []string // units that it may be in: its own, the one asked for or else those that the prompt names
	from    []conversion
}

// conversion turns a number in another unit into one that the figure may have: scale * number + offset.
type conversion struct {
	unit          string
	scale, offset float64
}

func (v *view) figure(d datum, asked string) figure {
	_, fraction, _ := strings.Cut(d.text, ".")
	f := figure{num: d.num, half: 0.5 * math.Pow10(-len(fraction)) * (1 + 1e-9), whole: strings.Trim(fraction, "0") == "", text: d.text, unit: d.unit, asked: asked}
	if f.targets = []string{f.target()}; f.target() == "" {
		f.targets = v.unitsNamed()
	}
	for _, to := range f.targets {
		b := measures[to]
		for from, a := range measures {
			if a.dimension == b.dimension && from != to {
				f.from = append(f.from, conversion{from, a.scale / b.scale, (a.offset - b.offset) / b.scale})
			}
		}
	}
	return f
}

// near says whether x, rounded to the figure's decimals, is the figure.
func (f *figure) near(x float64) bool { return math.Abs(x-f.num) <= f.half+1e-12*math.Abs(x) }

// target is the unit in which the figure is meant, empty where nothing says it.
func (f *figure) target() string { return cmp.Or(f.unit, f.asked) }

// takes says whether the figure may be meant in a unit that was seen.
func (f *figure) takes(unit string) bool {
	return unit == anyUnit || f.target() == "" || unit == f.target() || f.unit == "" && sameDimension(unit, f.asked)
}

// Units of what was seen: a symbol, or one of these.
const (
	anyUnit = "?" // nothing says
	noUnit  = ""  // others around have units, this one has none
)

// bears says whether a number in the unit of a datum bears the figure out.
func (v *view) bears(f *figure, x float64, d *datum) bool {
	if f.near(x) && f.takes(v.unitFor(f, d)) || f.target() == "%" && f.near(100*x) && v.unit(d) == anyUnit {
		return true
	}
	for _, c := range f.from {
		if f.near(c.scale*x+c.offset) && (v.unitFor(f, d) == c.unit || c.unit == "ct" && v.unit(d) == anyUnit && v.inCents()) {
			return true
		}
	}
	return f.unit == "ct" && f.whole && f.near(x) && v.unit(d) == anyUnit && v.inCents()
}

// unitFor is the unit of a number that was seen. Where nothing says it, it is the one that the task asks for.
func (v *view) unitFor(f *figure, d *datum) string {
	if u := v.unit(d); u != anyUnit || f.asked == "" {
		return u
	}
	return f.asked
}

// inCents says whether something that was seen speaks of cents, so that amounts may be some.
func (v *view) inCents() bool {
	return slices.ContainsFunc(v.said, func(s said) bool { return hasPhrase(s.fold(), "cents") })
}

func (v *view) hasNumber(f figure) bool {
	for i := range v.data {
		d := &v.data[i]
		switch {
		case d.given:
		case d.kind == numeral && len(d.text) > 15 && len(f.text) > 15: // too long for a double
			if plainDigits(d.text) == plainDigits(f.text) {
				return true
			}
		case d.kind == numeral && v.bears(&f, d.num, d):
			return true
		case d.isMoment() && f.whole && f.target() == "" && float64(d.time().Year()) == f.num:
			return true
		case d.kind == monthly && f.whole && f.target() == "" && math.Floor(d.num/12) == f.num:
			return true
		}
	}
	return v.ofColumns(&f) || v.difference(&f)
}

// plainDigits is a number without what does not change its value.
func plainDigits(s string) string {
	s = strings.TrimPrefix(strings.ReplaceAll(s, ",", ""), "+")
	if strings.Contains(s, ".") {
		s = strings.TrimSuffix(strings.TrimRight(s, "0"), ".")
	}
	return s
}

// columns gives the data of each field that stands in a list, in order.
func (v *view) columns() map[int32][]*datum {
	if v.listed != nil {
		return v.listed
	}
	all := map[int32][]*datum{}
	for i := range v.data {
		d := &v.data[i]
		if d.node == none || !v.nodes[d.node].within {
			continue
		}
		all[d.node] = append(all[d.node], d)
	}
	v.listed = all
	return all
}

// places are fields that say where something stands, which nobody adds up.
var places = []string{"line", "column", "position"}

// ofColumns says whether a column, taken together, bears the figure out.
func (v *view) ofColumns(f *figure) bool {
	count := f.whole && f.target() == "" && f.num >= 0
	for i, n := range v.nodes {
		if n.list && count && (float64(n.size) == f.num || f.num == 0) && v.tells(int32(i)) {
			return true
		}
	}
	for at, c := range v.columns() {
		if !v.tells(at) {
			continue
		}
		sum, n := 0.0, 0
		if !slices.ContainsFunc(c, func(d *datum) bool { return !d.given }) {
			continue
		}
		for _, d := range c {
			if d.kind == numeral {
				sum += d.num
				n++
			}
		}
		mean := sum / float64(n)
		if n > 0 && !slices.Contains(places, v.nodes[at].name) && (v.bears(f, sum, c[0]) || v.bears(f, mean, c[0]) && (!f.whole || mean == math.Trunc(mean) || v.shareAsked())) {
			return true
		}
		if count && (n > 0 && float64(n) == f.num || v.counted(c, f.num)) {
			return true
		}
	}
	return count && v.holding(f.num)
}

// catalogAsked finds in a prompt that it asks how many parts a database has.
var catalogAsked = regexp.MustCompile(`(how many|number of|count(?: of)?(?: the| all)?) (?:\w+ )?(?:columns|tables|views|indexes|indices|constraints|keys|schemas|types)\b`)

// tells says whether a column may be counted and added up. That of a database's catalog may be only if the prompt asks for such
// a thing. Where the task says which tools show what it asks for, the column must come from one of them.
func (v *view) tells(column int32) bool {
	for v.nodes[column].parent != none {
		column = v.nodes[column].parent
	}
	from := v.sources[slices.IndexFunc(v.sources, func(s source) bool { return s.root == column })]
	if from.catalog && !catalogAsked.MatchString(v.prompt().fold()) {
		return false
	}
	return bytes.Contains(v.want, []byte(`"`+from.tool+`"`)) || !bytes.Contains(v.want, []byte(`"tool"`))
}

// counted says whether so many of a column's data compare in one way with a value of the prompt.
func (v *view) counted(data []*datum, want float64) bool {
	for _, q := range v.asked {
		if q.kind != numeral && !q.isMoment() {
			continue
		}
		less, equal, more := 0, 0, 0
		for _, d := range data {
			switch {
			case d.kind != q.kind && !(d.isMoment() && q.isMoment()):
			case d.num < q.num:
				less++
			case d.num > q.num:
				more++
			default:
				equal++
			}
		}
		for _, n := range []int{less, equal, more, less + equal, more + equal} {
			if float64(n) == want {
				return true
			}
		}
	}
	same := map[string]int{}
	for _, d := range data {
		if d.kind == words {
			same[d.text]++
		}
	}
	for text, n := range same {
		if float64(n) == want && anySays([]said{*v.prompt()}, text) {
			return true
		}
	}
	return false
}

// holding says whether so many different texts in lists hold one or two texts that stand in quotes in the prompt.
func (v *view) holding(want float64) bool {
	parts := inQuotes.FindAllStringSubmatch(v.prompt().text, maxQuoted)
	for i, a := range parts {
		for _, b := range parts[:i+1] {
			found := map[string]bool{}
			for _, d := range v.data {
				if d.kind == words && !d.given && d.node != none && v.nodes[d.node].within && strings.Contains(d.text, a[1]) && strings.Contains(d.text, b[1]) && v.tells(d.node) {
					found[d.text] = true
				}
			}
			if n := len(found); n > 0 && float64(n) == want {
				return true
			}
		}
	}
	return false
}

// inQuotes finds texts in quotes, such as the ending of a file's name.
var inQuotes = regexp.MustCompile(`"([^"\n]+)"`)

const maxQuoted = 6

// difference says whether a difference of two values bears the figure out.
func (v *view) difference(f *figure) bool {
	f.num = math.Abs(f.num)
	var numbers, moments []*datum
	for i := range v.data {
		switch d := &v.data[i]; {
		case d.isMoment():
			moments = append(moments, d)
		case d.kind == numeral && d.node != none && !d.given && (v.nodes[d.node].name != rowCount || v.nodes[d.node].within):
			numbers = append(numbers, d)
		}
	}
	for i, a := range moments[:min(len(moments), maxPaired)] {
		for _, b := range moments[:i] {
			if v.spans(a, b) && v.lasts(f, math.Abs(a.num-b.num)) {
				return true
			}
		}
	}
	for i, a := range numbers[:min(len(numbers), maxPaired)] {
		for _, b := range numbers[:i] {
			if v.mayBe(f, a.num, b.num) && v.comparable(a, b) && v.apart(f, a.num, b.num, a, b) {
				return true
			}
		}
	}
	return v.fromExtreme(f) || v.total(f, numbers) || v.quotient(f, numbers)
}

// alone says whether a number stands in no list, or in a row that is the only one.
func (v *view) alone(d *datum) bool {
	return d.row != none && (!v.nodes[d.node].within || len(v.columns()[d.node]) == 1)
}

// total says whether the figure is the sum over the results of one tool that show a field alone and begin alike, such as the
// rows affected by each DELETE: over all, or, where they begin with a text, over some that follow each other.
func (v *view) total(f *figure, numbers []*datum) bool {
	type alike struct{ tool, field, begin string }
	series := map[alike][]*datum{}
	for _, d := range numbers {
		if !v.alone(d) {
			continue
		}
		k := alike{v.tool(d), v.nodes[d.node].name, ""}
		if first := v.first(d.row); first.kind == words {
			k.begin = first.text
		}
		series[k] = append(series[k], d)
	}
	for k, list := range series {
		switch measures[v.unit(list[0])].dimension {
		case "temperature", "speed", "pressure", "share":
			continue
		}
		for i := range list {
			sum := list[i].num
			for j, d := range list[i+1:] {
				sum += d.num
				if f.near(sum) && f.takes(v.unitFor(f, d)) && (k.begin != "" || i == 0 && j == len(list)-2) {
					return true
				}
			}
		}
	}
	return false
}

// rowCount is the field that says of a table how many rows it has, which is seen, and compared with nothing.
const rowCount = "row_count"

// Words by which a prompt asks for a quotient.
var shareWords = strings.Fields("average averages mean per percent percentage percentages proportion rate ratio share")

func (v *view) shareAsked() bool {
	return slices.ContainsFunc(shareWords, func(w string) bool { return hasPhrase(v.prompt().fold(), w) })
}

// quotient says whether the figure is the quotient of two numbers of one row, if the prompt asks for one.
func (v *view) quotient(f *figure, numbers []*datum) bool {
	if f.whole || !v.shareAsked() {
		return false
	}
	for i, a := range numbers[:min(len(numbers), maxPaired)] {
		for _, b := range numbers[:i] {
			if a.row != none && a.row == b.row && (f.near(a.num/b.num) || f.near(b.num/a.num) || f.target() == "%" && (f.near(100*a.num/b.num) || f.near(100*b.num/a.num))) {
				return true
			}
		}
	}
	return false
}

// mayBe says, whatever their units, whether two numbers may be so far apart as the figure says.
func (v *view) mayBe(f *figure, x, y float64) bool {
	if f.near(math.Abs(x - y)) {
		return true
	}
	for _, c := range f.from {
		p, q := c.scale*x+c.offset, c.scale*y+c.offset
		if f.near(math.Abs(p-q)) || f.near(math.Abs(p-y)) || f.near(math.Abs(x-q)) {
			return true
		}
	}
	return false
}

// spans says whether the time between two moments is one that may be claimed.
func (v *view) spans(a, b *datum) bool {
	if a.row != none && a.row == b.row {
		return true
	}
	return v.single(a) && v.single(b)
}

// single says whether a datum stands in no list.
func (v *view) single(d *datum) bool { return d.node == none || !v.nodes[d.node].within }

// lasts says whether a time in seconds bears the figure out.
func (v *view) lasts(f *figure, seconds float64) bool {
	for _, unit := range []string{"h", "d", f.target()} {
		if x, ok := convert(seconds, "s", unit); ok && (f.target() == "" || f.unit == unit || f.unit == "" && sameDimension(unit, f.asked)) && f.near(x) {
			return true
		}
	}
	return false
}

// comparable says whether the difference between two numbers is one that may be claimed.
func (v *view) comparable(a, b *datum) bool {
	if a.row == none || b.row == none {
		return false
	}
	if a.row == b.row {
		named := v.promptNames(a)
		return a.node != b.node && named == v.promptNames(b) && (named || v.oneUnit(a, b))
	}
	if a.node == b.node && v.nodes[a.node].within {
		return len(v.columns()[a.node]) == 2
	}
	if v.rows[a.row].source == v.rows[b.row].source {
		return false
	}
	oneField := v.nodes[a.node].name == v.nodes[b.node].name
	if !v.nodes[a.node].within && !v.nodes[b.node].within {
		return oneField || v.oneUnit(a, b)
	}
	return oneField && v.agree(a, b)
}

func (v *view) oneUnit(a, b *datum) bool {
	u := v.unit(a)
	return u != anyUnit && u != noUnit && u == v.unit(b)
}

// agree says whether the rows of two data are about the same: by their first field, or by their place in the lists where
// that is the field compared.
func (v *view) agree(a, b *datum) bool {
	x, y := v.first(a.row), v.first(b.row)
	if x.node == a.node || y.node == b.node {
		return v.rows[a.row].index == v.rows[b.row].index
	}
	return v.nodes[x.node].name == v.nodes[y.node].name && x.kind == y.kind && x.num == y.num && x.text == y.text
}

// first is the first datum of a row.
func (v *view) first(r int32) *datum {
	i := v.rows[r].from
	for v.data[i].row != r || v.data[i].node == none {
		i++
	}
	return &v.data[i]
}

// apart says whether two numbers, which are or come from two data, are so far apart as the figure says.
func (v *view) apart(f *figure, x, y float64, a, b *datum) bool {
	u, w := v.unit(a), v.unit(b)
	if u == w && f.takes(u) && f.near(math.Abs(x-y)) {
		return true
	}
	for _, to := range f.targets {
		p, ok := convert(x, u, to)
		q, ok2 := convert(y, w, to)
		if ok && ok2 && measures[to].dimension != "" && f.near(math.Abs(p-q)) {
			return true
		}
	}
	return false
}

// Words by which a prompt asks for an extreme.
var (
	mostWords  = strings.Fields("highest greatest largest biggest maximum max most top peak hottest warmest strongest longest")
	leastWords = strings.Fields("lowest least smallest minimum min fewest coldest coolest weakest shortest")
)

// fromExtreme says whether a value and the extreme of its field in the results of another tool are so far apart.
func (v *view) fromExtreme(f *figure) bool {
	prompt := v.prompt()
	for _, extreme := range []struct {
		words []string
		sign  float64
	}{{mostWords, 1}, {leastWords, -1}} {
		if !slices.ContainsFunc(extreme.words, func(w string) bool { return hasPhrase(prompt.fold(), w) }) {
			continue
		}
		for n, c := range v.columns() {
			var best *datum
			for _, d := range c {
				if d.kind == numeral && (best == nil || extreme.sign*d.num > extreme.sign*best.num) {
					best = d
				}
			}
			if best == nil || !v.promptNames(best) {
				continue
			}
			for i := range v.data {
				d := &v.data[i]
				if d.kind == numeral && d.row != none && d.node != none && v.nodes[d.node].name == v.nodes[n].name &&
					v.tool(d) != v.tool(best) && v.apart(f, d.num, best.num, d, best) {
					return true
				}
			}
		}
	}
	return false
}

func (v *view) source(d *datum) int32 { return v.rows[d.row].source }
func (v *view) tool(d *datum) string  { return v.sources[v.source(d)].tool }

// promptNames says whether a word of a datum's field stands in the prompt.
func (v *view) promptNames(d *datum) bool {
	n := &v.nodes[d.node]
	if n.asked == 0 {
		n.asked = -1
		prompt := v.prompt().fold()
		for word := range strings.SplitSeq(strings.ToLower(n.name), "_") {
			if len(word) > 2 && (hasPhrase(prompt, word) || hasPhrase(prompt, word+"s")) {
				n.asked = 1
			}
		}
	}
	return n.asked == 1
}

func (v *view) prompt() *said { return &v.said[len(v.said)-1] }

// unit is the unit of a number that was seen.
func (v *view) unit(d *datum) string {
	if d.unit != "" {
		return d.unit
	}
	if d.node == none {
		return anyUnit
	}
	n := &v.nodes[d.node]
	if u := unitOfName(n.name); u != "" {
		return u
	}
	bare := noUnit
	if n.key != n.name { // a column, whose name whoever asks makes up
		bare = anyUnit
	}
	found, loose, several := anyUnit, "", false // loose: a unit that no field beside this one shares a word with
	for r := d.row; r != none; r = v.rows[r].parent {
		for i := v.rows[r].from; i < v.rows[r].to; i++ {
			o := &v.data[i]
			if o.row != r || o.node == none {
				continue
			}
			of, isUnit := unitField(v.nodes[o.node].name)
			if isUnit || unitOfName(v.nodes[o.node].name) != "" {
				found = bare
			}
			if !isUnit {
				continue
			}
			u := symbol(o.text)
			switch {
			case u == "":
			case of == "" || sharesWord(of, n.name):
				return u
			case !v.anyShares(d.row, of):
				loose, several = u, loose != ""
			}
		}
	}
	if loose != "" && !several {
		return loose
	}
	return found
}

// unitField says of which quantity a field names the unit.
func unitField(name string) (of string, is bool) {
	name = strings.TrimSuffix(name, "s")
	if name == "unit" {
		return "", true
	}
	return strings.CutSuffix(name, "_unit")
}

func sharesWord(a, b string) bool {
	for x := range strings.SplitSeq(a, "_") {
		for y := range strings.SplitSeq(b, "_") {
			if x == y && x != "" {
				return true
			}
		}
	}
	return false
}

// anyShares says whether a number of a row has a field that shares a word.
func (v *view) anyShares(r int32, of string) bool {
	return slices.ContainsFunc(v.data[v.rows[r].from:v.rows[r].to], func(d datum) bool {
		return d.row == r && d.kind == numeral && d.node != none && sharesWord(of, v.nodes[d.node].name)
	})
}

var nameUnits = map[string]string{"pct": "%", "percent": "%", "percentage": "%", "hpa": "hPa", "kpa": "kPa",
	"c": "C", "celsius": "C", "f": "F", "fahrenheit": "F", "kmh": "km/h", "kph": "km/h", "mph": "mph", "mps": "m/s", "mm": "mm", "cm": "cm",
	"inches": "in", "hours": "h", "days": "d", "minutes": "min", "seconds": "s", "eur": "EUR", "euro": "EUR", "euros": "EUR", "cents": "ct", "usd": "USD"}

// unitOfName is the unit that the name of a field ends in.
func unitOfName(name string) string {
	at := strings.LastIndexByte(name, '_')
	if at <= 0 {
		if name == "cents" {
			return "ct"
		}
		return ""
	}
	return nameUnits[strings.ToLower(name[at+1:])]
}

func (v *view) hasClock(minutes float64) bool {
	return slices.ContainsFunc(v.data, func(d datum) bool {
		switch d.kind {
		case clock:
			return d.num == minutes
		case moment:
			return float64(d.time().Hour()*60+d.time().Minute()) == minutes
		case numeral:
			return d.node != none && 60*d.num == minutes && strings.Contains(strings.ToLower(v.nodes[d.node].name), "hour")
		}
		return false
	})
}

// hasMonth says whether a month was seen: by itself, in a date, or as its year and number in one row.
func (v *view) hasMonth(claim datum) bool {
	year, month := math.Floor(claim.num/12), math.Mod(claim.num, 12)+1
	return slices.ContainsFunc(v.data, func(d datum) bool {
		switch {
		case d.given:
		case d.kind == monthly:
			return d.num == claim.num
		case d.isMoment():
			at := d.time()
			return monthOf(at.Year(), int(at.Month())) == claim.num
		case d.kind == numeral && d.num == year && d.row != none:
			row := v.rows[d.row]
			return slices.ContainsFunc(v.data[row.from:row.to], func(o datum) bool { return o.kind == numeral && o.num == month && o.node != d.node && !o.given })
		}
		return false
	})
}

// ofZone matches prompts for which a day is not one of UTC.
var ofZone = regexp.MustCompile(`\b(?:time ?zone|local time|utc)\b`)

func (v *view) hasDate(claim datum) bool {
	var ahead []float64 // days
	for _, d := range v.data {
		if d.kind == numeral && d.num == math.Trunc(d.num) && math.Abs(d.num) < 1e5 &&
			(d.node == none && d.row == none && (d.unit == "" || d.unit == "d") || d.node != none && strings.Contains(v.nodes[d.node].name, "day")) {
			ahead = append(ahead, math.Abs(d.num))
		}
	}
	prompt := v.prompt()
	zone := -1 // whether the prompt names a time zone: not known yet
	for word, n := range map[string]float64{"tomorrow": 1, "yesterday": 1, "day after tomorrow": 2, "day before yesterday": 2, "week": 7, "fortnight": 14} {
		if hasPhrase(prompt.fold(), word) {
			ahead = append(ahead, n)
		}
	}
	for _, d := range v.data {
		if d.given {
			continue
		}
		switch {
		case d.kind == yearless && (claim.kind == yearless && claim.num == d.num || claim.kind == day && monthDay(claim) == d.num),
			d.isMoment() && claim.kind == yearless && claim.num == monthDay(d),
			d.isMoment() && claim.kind == day && midnightOf(claim) == midnightOf(d),
			d.kind == claim.kind && claim.kind == moment && d.num == claim.num,
			d.kind == day && claim.kind == moment && midnightOf(claim) == d.num && v.hasClock((claim.num-d.num)/60):
			return true
		}
		if !d.isMoment() || claim.kind == moment {
			continue
		}
		if d.kind == moment && claim.kind == day {
			if zone < 0 {
				zone = len(ofZone.FindString(prompt.fold()))
			}
			if zone > 0 && claim.num > d.num-(24+12)*3600 && claim.num <= d.num+14*3600 { // midnight there, in UTC
				return true
			}
		}
		for _, n := range ahead {
			for _, at := range []float64{midnightOf(d) + n*86400, midnightOf(d) - n*86400} {
				if x := (datum{kind: day, num: at}); claim.kind == day && claim.num == at || claim.kind == yearless && claim.num == monthDay(x) {
					return true
				}
			}
		}
		gap := (claim.num - midnightOf(d)) / 86400
		if claim.kind == day && gap > 0 && gap <= 7 && v.single(&d) && hasPhrase(prompt.fold(), strings.ToLower(claim.time().Weekday().String())) {
			return true
		}
	}
	return false
}

func midnightOf(d datum) float64 { return math.Floor(d.num/86400) * 86400 }
func monthDay(d datum) float64   { return float64(100*int(d.time().Month()) + d.time().Day()) }
