package lint

import (
	"slices"
	"strings"
)

// functions make parts of modules. A part's text has one place for each fault, so that it has one at a time.
var functions = []func(p *project, noun string) *part{share, without, tally, whole, label, row, lookup, boxes, atLeast}

// variant makes a fault of a part: a piece of its text becomes another one.
func (f *part) variant(rule, piece, by, mark string) {
	if strings.Count(f.clean, piece) != 1 {
		panic("no one place for " + piece + " in " + f.name) // of this file
	}
	f.faults = append(f.faults, fault{rule: rule, broken: strings.Replace(f.clean, piece, by, 1), mark: mark})
}

// unused makes a fault of a part: one more line after another, which sets a name that nothing reads.
func (f *part) unused(rule, after, line, name string) {
	f.variant(rule, after, after+line, strings.TrimSpace(line))
	f.faults[len(f.faults)-1].gone = name
}

func (f *part) show(want any, args ...any) { f.shown = append(f.shown, check{Args: args, want: want}) }
func (f *part) hide(want any, args ...any) {
	f.hidden = append(f.hidden, check{Args: args, want: want})
}

func newPart(name, text string) *part { return &part{name: name, clean: text, now: text} }

// otherThan draws a number that is not n.
func (p *project) otherThan(n int) int { return n + p.between(1, 4) }

func share(p *project, noun string) *part {
	name, r := pick(p.Rand, []string{"fee_of_", "toll_of_", "levy_on_"})+noun, p.between(3, 40)
	f := newPart(name, replace(`def @f(amount, limit=None):
    """Return @r percent of amount, rounded down, but no more than limit if there is one."""
    part = amount * @r // 100
    if limit is None:
        return part
    return min(part, limit)
`, "@f", name, "@r", r))
	f.variant("E711", "limit is None", "limit == None", "limit == None")
	f.variant("F821", "min(part", "min(prat", "prat")
	f.unused("F841", "// 100\n", "    rest = amount - part\n", "rest")
	f.variant("", replace("amount * @r ", "@r", r), replace("amount * @r ", "@r", p.otherThan(r)), "")
	for i := range 4 {
		n, limit := p.between(100, 5000), p.between(20, 400)
		got := n * r / 100
		if i == 0 {
			f.show(got, n)
			continue
		}
		f.hide(got, n)
		f.hide(min(got, limit), n, limit)
	}
	return f
}

func without(p *project, noun string) *part {
	name := pick(p.Rand, []string{"new_", "missing_", "fresh_"}) + noun
	f := newPart(name, replace(`def @f(items, known):
    """Return those items that are not in known, in their order."""
    found = []
    for item in items:
        if item not in known:
            found.append(item)
    return found
`, "@f", name))
	f.variant("E713", "item not in known:", "not item in known:", "not item")
	f.variant("F821", "return found", "return fuond", "fuond")
	f.unused("F841", "found = []\n", "    most = len(items)\n", "most")
	f.variant("", "item not in known:", "item in known:", "")
	for i := range 3 {
		items := draw(p.Rand, 6, words)
		known := append(draw(p.Rand, 2, items), pick(p.Rand, words))
		left := slices.DeleteFunc(slices.Clone(items), func(w string) bool { return slices.Contains(known, w) })
		if i == 0 {
			f.show(left, items, known)
			continue
		}
		f.hide(left, items, known)
	}
	return f
}

func tally(p *project, noun string) *part {
	name, n := pick(p.Rand, []string{"tally_", "count_", "weigh_"})+noun, p.between(2, 9)
	f := newPart(name, replace(`def @f(marks, counts=None):
    """Add @n to counts for each of the marks and return counts, which is a new dict if None."""
    if counts is None:
        counts = {}
    for mark in marks:
        counts[mark] = counts.get(mark, 0) + @n
    return counts
`, "@f", name, "@n", n))
	f.variant("B006", "counts=None", "counts={}", "counts={}")
	last := &f.faults[0]
	last.broken = strings.Replace(last.broken, "    if counts is None:\n        counts = {}\n", "", 1)
	f.variant("E711", "counts is None", "counts == None", "counts == None")
	f.variant("F821", "return counts\n", "return count\n", "return count\n")
	f.variant("", replace("+ @n\n", "@n", n), replace("+ @n\n", "@n", p.otherThan(n)), "")
	count := func(list []string) map[string]int {
		all := map[string]int{}
		for _, w := range list {
			all[w] += n
		}
		return all
	}
	for i := range 4 {
		list := draw(p.Rand, 3, words)
		if list = append(list, list[0]); i == 0 {
			f.show(count(list), list)
			continue
		}
		f.hide(count(list), list)
	}
	list := draw(p.Rand, 2, words)
	f.hide(map[string]int{list[0]: n + 5, list[1]: n}, list, map[string]int{list[0]: 5})
	return f
}

func whole(p *project, noun string) *part {
	name, n := pick(p.Rand, []string{"read_", "parse_", "size_of_"})+noun, p.between(100, 900)
	f := newPart(name, replace(`def @f(text):
    """Return the whole number that text holds, or @n where int raises ValueError."""
    try:
        return int(text)
    except ValueError:
        return @n
`, "@f", name, "@n", n))
	f.variant("E722", "except ValueError:", "except:", "except:")
	f.variant("F821", "int(text)", "int(txet)", "txet")
	f.variant("", replace("        return @n\n", "@n", n), replace("        return @n\n", "@n", p.otherThan(n)), "")
	f.show(p.between(10, 99), "")
	f.shown[0].Args[0] = string(encode(f.shown[0].want))
	f.hide(n, pick(p.Rand, words))
	f.hide(-n, string(encode(-n)))
	f.hide("raises TypeError", nil)
	f.hide("raises KeyboardInterrupt", interrupts)
	return f
}

func label(p *project, noun string) *part {
	name, unit := pick(p.Rand, []string{"label_", "line_for_", "caption_"})+noun, pick(p.Rand, words)+" "+noun
	f := newPart(name, replace(`def @f(place, amount):
    """Return place, a colon, a space, amount and " @u", or only "no @u" for an amount of 0."""
    if amount == 0:
        return "no @u"
    return f"{place}: {amount} @u"
`, "@f", name, "@u", unit))
	f.variant("F541", replace(`return "no @u"`, "@u", unit), replace(`return f"no @u"`, "@u", unit), "return f\"no")
	f.variant("F632", "amount == 0", "amount is 0", "amount is 0")
	f.variant("F821", "{place}:", "{palce}:", "palce")
	f.variant("", "amount == 0", "amount == 1", "")
	for i := range 3 {
		w, n := pick(p.Rand, words), p.between(2, 400)
		said := replace("@w: @n @u", "@w", w, "@n", n, "@u", unit)
		if i == 0 {
			f.show(said, w, n)
			continue
		}
		f.hide(said, w, n)
	}
	f.hide("no "+unit, pick(p.Rand, words), 0)
	f.hide(replace("x: 1 @u", "@u", unit), "x", 1)
	return f
}

func row(p *project, noun string) *part {
	name, top := pick(p.Rand, []string{"plan_", "row_of_", "steps_of_"})+noun, p.between(50, 90)
	f := newPart(name, replace(`def @f(first, step, times):
    """Return times numbers: first, then each step more than the one before, but none over @t."""
    numbers = []
    for _ in range(times):
        numbers.append(min(first, @t))
        first += step
    return numbers
`, "@f", name, "@t", top))
	f.variant("B007", "for _ in", "for turn in", "for turn in")
	f.faults[0].gone = "turn"
	f.variant("F821", "range(times)", "range(tiems)", "tiems")
	f.unused("F841", "numbers = []\n", "    end = first + step * times\n", "end")
	f.variant("", "first += step", "first -= step", "")
	for i := range 3 {
		first, step, times := p.between(1, 30), p.between(2, 20), p.between(3, 7)
		all := []int{}
		for k := range times {
			all = append(all, min(first+k*step, top))
		}
		if i == 0 {
			f.show(all, first, step, times)
			continue
		}
		f.hide(all, first, step, times)
	}
	return f
}

func lookup(p *project, noun string) *part {
	name, n := pick(p.Rand, []string{"find_", "price_of_", "place_of_"})+noun, p.between(2, 9)
	f := newPart(name, replace(`def @f(table, key):
    """Return @n times what table has for key; where it has nothing raise LookupError from the KeyError."""
    try:
        return table[key] * @n
    except KeyError as err:
        raise LookupError(key) from err
`, "@f", name, "@n", n))
	f.variant("B904", " from err", "", "raise LookupError")
	f.faults[0].broken = strings.Replace(f.faults[0].broken, " as err", "", 1)
	f.faults[0].mark = "raise LookupError(key)"
	f.variant("F821", "table[key]", "table[kye]", "kye")
	f.variant("", replace("] * @n\n", "@n", n), replace("] * @n\n", "@n", p.otherThan(n)), "")
	for i := range 3 {
		two, v := draw(p.Rand, 2, words), p.between(5, 500)
		if i == 0 {
			f.show(n*v, map[string]int{two[0]: v}, two[0])
			continue
		}
		f.hide(n*v, map[string]int{two[0]: v, two[1]: v + 1}, two[0])
		f.hide("raises LookupError from KeyError", map[string]int{two[0]: v}, two[1])
	}
	return f
}

func boxes(p *project, noun string) *part {
	name, n := pick(p.Rand, []string{"boxes_for_", "carts_for_", "trips_for_"})+noun, p.between(6, 30)
	f := newPart(name, replace(`def @f(total):
    """Return how many times one must go to carry total pieces, @n at a time."""
    return math.ceil(total / @n)
`, "@f", name, "@n", n))
	f.uses = "math"
	f.variant("F821", "ceil(total", "ceil(totla", "totla")
	f.unused("F841", "time.\"\"\"\n", "    spare = total % "+string(encode(n))+"\n", "spare")
	f.variant("", replace("/ @n)", "@n", n), replace("/ @n)", "@n", p.otherThan(n)), "")
	for i := range 5 {
		total := p.between(n*4*i+1, n*4*(i+1))
		if i == 0 {
			f.show((total+n-1)/n, total)
			continue
		}
		f.hide((total+n-1)/n, total)
	}
	f.hide(40, 40*n)
	return f
}

func atLeast(p *project, noun string) *part {
	name, n := pick(p.Rand, []string{"large_", "heavy_", "long_"})+noun, p.between(20, 60)
	f := newPart(name, replace(`def @f(values):
    """Return those of the values that are @n or more, the least first."""
    return sorted(value for value in values if value >= @n)
`, "@f", name, "@n", n))
	f.variant("F821", "if value >=", "if vaule >=", "vaule")
	f.unused("F841", "first.\"\"\"\n", "    top = max(values)\n", "top")
	f.variant("", "value >= ", "value > ", "")
	for i := range 3 {
		all, kept := []int{n}, []int{n}
		for range 6 {
			all = append(all, p.between(1, 90))
		}
		for _, v := range all[1:] {
			if v >= n {
				kept = append(kept, v)
			}
		}
		slices.Sort(kept)
		if i == 0 {
			f.show(kept, all)
			continue
		}
		f.hide(kept, all)
	}
	return f
}

// scripts make scripts. What they print comes after their exit code.
var scripts = []func(p *project, noun string) *part{holding, named, marked, chosen, headed}

func (f *part) run(want string, exit int, data map[string]string, args ...any) {
	f.hidden = append(f.hidden, check{Args: args, Files: data, want: []any{exit, want}})
}

func holding(p *project, noun string) *part {
	name, w := "count-"+noun, pick(p.Rand, words)
	f := newPart(name, replace(`# Run with FILE: print how many lines of it hold "@w".
file=$1
grep -c -- "@w" "$file" || true
`, "@w", w))
	f.variant("SC2086", `"$file"`, `$file`, `$file`)
	f.unused("SC2034", "file=$1\n", "extra=$2\n", "extra=")
	f.variant("", "grep -c --", "grep -c -v --", "")
	f.run("2\n", 0, map[string]string{"a b": "x " + w + "\ny\n" + w + "s\nz\nz\n"}, "a b")
	f.run("0\n", 0, map[string]string{"n": "x\n"}, "n")
	return f
}

func named(p *project, noun string) *part {
	name, two := "list-"+noun, draw(p.Rand, 2, words)
	f := newPart(name, replace(`# Run with FOLDER: print the names of the files in it that end in .@w, one on a line. Exit with 1 where there is no FOLDER.
cd "$1" || exit 1
for name in *.@w; do
    if [ -e "$name" ]; then
        echo "$name"
    fi
done
`, "@w", two[0]))
	f.variant("SC2164", ` || exit 1`, ``, `cd "$1"`)
	f.variant("SC2086", `echo "$name"`, `echo $name`, `echo $name`)
	f.variant("", replace("in *.@w;", "@w", two[0]), replace("in *.@w;", "@w", two[1]), "")
	data := map[string]string{"d/a." + two[0]: "", "d/b  c." + two[0]: "", "d/c." + two[1]: "", "e/c": ""}
	f.run(replace("a.@w\nb  c.@w\n", "@w", two[0]), 0, data, "d")
	f.run("", 0, data, "e")
	f.run("", 1, map[string]string{"x." + two[0]: ""}, "none")
	return f
}

func marked(p *project, noun string) *part {
	name, two := "mark-"+noun, draw(p.Rand, 2, words)
	f := newPart(name, replace(`# Run with FILE: print each of its lines after "@w" and a space.
while read -r line; do
    printf '%s %s\n' "@w" "$line"
done < "$1"
`, "@w", two[0]))
	f.variant("SC2162", `read -r line`, `read line`, `read line`)
	f.variant("SC2086", `"$line"`, `$line`, `$line`)
	f.variant("", replace(`"@w" "$`, "@w", two[0]), replace(`"@w" "$`, "@w", two[1]), "")
	f.run(replace("@w one  two\n@w c:\\temp\n", "@w", two[0]), 0, map[string]string{"f": "one  two\nc:\\temp\n"}, "f")
	return f
}

func chosen(p *project, noun string) *part {
	name, three := "choose-"+noun, draw(p.Rand, 3, words)
	f := newPart(name, replace(`# Run with WORD: print "@x" where it is "@w", and else "@y".
word=$1
if [ "$word" = "@w" ]; then
    echo "@x"
else
    echo "@y"
fi
`, "@w", three[0], "@x", three[1], "@y", three[2]))
	f.variant("SC3014", `" = "`, `" == "`, ` == `)
	f.variant("SC2086", `"$word"`, `$word`, `$word`)
	f.unused("SC2034", "word=$1\n", "last=$2\n", "last=")
	f.variant("", `" = "`, `" != "`, "")
	f.run(three[1]+"\n", 0, nil, three[0])
	f.run(three[2]+"\n", 0, nil, three[1])
	f.run(three[2]+"\n", 0, nil, three[0]+" "+three[0])
	return f
}

func headed(p *project, noun string) *part {
	name, w := "head-"+noun, pick(p.Rand, words)
	f := newPart(name, replace(`# Run with FILE: print its first line, which is 1p to sed, a hyphen and "@w".
first=$(sed -n 1p "$1")
echo "$first-@w"
`, "@w", w))
	f.variant("SC2006", `$(sed -n 1p "$1")`, "`sed -n 1p \"$1\"`", "`sed")
	f.variant("SC2086", `"$1")`, `$1)`, `$1)`)
	f.variant("", "-n 1p", "-n 2p", "")
	f.run("one  x-"+w+"\n", 0, map[string]string{"a b": "one  x\ntwo\n"}, "a b")
	return f
}
