package files

import (
	"path"
	"slices"
	"strconv"
	"strings"
)

var families = []family{
	{"size", size},
	{"count", count},
	{"setting", extract},
	{"larger", larger},
	{"row", row},
	{"memo", ownerOf},
	{"rename", rename},
	{"last-error", lastError},
	{"edit", editSetting},
	{"duplicates", duplicates},
	{"reorganise", reorganise},
}

func size(d *draft) bool {
	all := d.under(path.Dir(d.data))
	name := pick(d.Rand, all)
	d.turn()
	d.call("get_file_info", map[string]any{"path": name})
	d.needSize(name)
	d.say(number(len(d.texts[name])))
	return d.ask([]string{
		`What is the size of the file "$f" in bytes?`,
		`How many bytes does the file "$f" have? Give its size.`,
		`Tell the size in bytes of "$f".`,
	}, "$f", name)
}

func larger(d *draft) bool {
	two := draw(d.Rand, 2, d.under(path.Dir(d.data)))
	a, b := two[0], two[1]
	difference := len(d.texts[a]) - len(d.texts[b])
	if difference == 0 {
		return false
	}
	d.turn()
	for _, name := range two {
		d.call("get_file_info", map[string]any{"path": name})
		d.needSize(name)
	}
	if difference > 0 {
		d.say(pathOf(a), number(difference))
	} else {
		d.say(pathOf(b), number(-difference))
	}
	return d.ask([]string{
		`Which file has the larger size, "$a" or "$b", and what is the difference in bytes?`,
		`Compare the sizes of the files "$a" and "$b": which is larger, and by how many bytes?`,
	}, "$a", a, "$b", b)
}

// count asks how many files there are of a kind, and for the largest.
func count(d *draft) bool {
	ending := pick(d.Rand, []string{".csv", ".txt", ".dat", ".xml", ".md"})
	var found []string
	most, ties := 0, 0
	for _, name := range d.under(d.data) {
		if !strings.HasSuffix(name, ending) {
			continue
		}
		found = append(found, name)
		switch n := len(d.texts[name]); {
		case n > len(d.texts[found[most]]):
			most, ties = len(found)-1, 0
		case n == len(d.texts[found[most]]) && most != len(found)-1:
			ties++
		}
	}
	if len(found) < 3 || ties > 0 {
		return false
	}
	d.search(d.data, "**/*"+ending, found)
	for _, name := range found {
		d.needListed(name)
	}
	largest := slices.MaxFunc(found, func(a, b string) int { return len(d.texts[a]) - len(d.texts[b]) })
	d.needSize(largest)
	d.say(number(len(found)), pathOf(largest))
	return d.ask([]string{
		`How many files under "$d" have names that end in "$e", and which of them is the largest?`,
		`Count the files below "$d", at any depth, with the ending "$e". Give their number and the path of the one with the most bytes.`,
	}, "$d", d.data, "$e", ending)
}

// draws a setting of a service.
func (d *draft) setting() (s *service, sec section, k *setting) {
	s = pick(d.Rand, d.services)
	sec = pick(d.Rand, s.sections)
	return s, sec, pick(d.Rand, sec.keys)
}

// spelt is the line of a setting in its file.
func (s *service) spelt(sec section, k *setting) string {
	return s.line(k, k == sec.keys[len(sec.keys)-1])
}

const unused = ` Copies whose names hold "bak", "example" or a year are not in use.`

func extract(d *draft) bool {
	s, sec, k := d.setting()
	d.turn()
	d.tree(d.config)
	d.readTo(s.path, 0)
	d.needText(s.path, strings.TrimRight(s.spelt(sec, k), ","))
	d.say(valueOf(k.value))
	return d.ask([]string{
		`What is the value of $k in the section $x of the settings that the service $s uses? They are in a file under "$d".` + unused,
		`Under "$d" every service has its settings. Look up $k, section $x, of $s.` + unused,
	}, "$k", k.key, "$x", sec.name, "$s", s.name, "$d", d.config)
}

func row(d *draft) bool {
	t := pick(d.Rand, d.tables)
	r := pick(d.Rand, t.rows)
	cells := draw(d.Rand, 2, t.asked())
	line := strings.Join(r, ";")
	d.readTo(t.path, strings.Index(d.texts[t.path], line))
	d.needText(t.path, line)
	d.say(valueOf(r[cells[0]]), valueOf(r[cells[1]]))
	return d.ask([]string{
		`In the table "$f", what are $a and $b of the $w $c?`,
		`Look up the $w $c in "$f" and give its $a and its $b.`,
	}, "$f", t.path, "$a", t.columns[cells[0]], "$b", t.columns[cells[1]], "$w", t.what, "$c", r[0])
}

// asked are the columns that tasks ask for: not the key, and not its name.
func (t *table) asked() (all []int) {
	for i, c := range t.columns {
		if i > 0 && c != "name" {
			all = append(all, i)
		}
	}
	return all
}

func ownerOf(d *draft) bool {
	m := pick(d.Rand, d.memos)
	d.turn()
	d.call("read_text_file", map[string]any{"path": d.notes + "/index.md"})
	d.readTo(m.path, 0)
	d.needText(m.path, "Owner: "+m.owner)
	d.needText(m.path, "Due: "+m.due)
	d.say(text(m.owner), date(m.due))
	return d.ask([]string{
		`The minutes with the title "$t" are in one of the files that "$i" lists. Who is the owner of the task, and when is it due?`,
		`Find the minutes titled "$t" by "$i". Give the owner and the date by which the task is due.`,
	}, "$t", m.title, "$i", d.notes+"/index.md")
}

func lastError(d *draft) bool {
	s := pick(d.Rand, d.services)
	d.turn()
	d.call("read_text_file", map[string]any{"path": s.log, "tail": 40})
	d.needText(s.log, s.last.line)
	d.say(text(s.last.job), text(s.last.code))
	return d.ask([]string{
		`Which job does the last line of level ERROR in "$f" name, and with which code did it fail?`,
		`Look at the end of the log "$f": give the job of the last ERROR and its code.`,
	}, "$f", s.log)
}

func rename(d *draft) bool {
	all := d.in(d.shots)
	rule, say := pick(d.Rand, []string{"lower", "date", "ending"}), ""
	d.turn()
	d.list(d.shots)
	if rule == "date" {
		d.readAll(all)
	}
	to := map[string]string{}
	for _, name := range all {
		base := path.Base(name)
		switch rule {
		case "lower":
			say, base = `Rename the files in "$d": names in small letters, with "_" in place of every space. Those that fit already stay.`, strings.ReplaceAll(strings.ToLower(base), " ", "_")
		case "date":
			say, base = `Put before the name of each file in "$d" the date at which it says that it was taken, and a "-": so "pear.md" of 2030-05-06 becomes "2030-05-06-pear.md".`, d.texts[name][len("Taken: "):len("Taken: 2030-05-06")]+"-"+base
		default:
			stem, ok := strings.CutSuffix(base, ".text")
			if !ok {
				stem, ok = strings.CutSuffix(base, ".TXT")
			}
			if say = `In "$d", rename the files that end in ".text" or ".TXT" so that they end in ".txt". Leave all others.`; ok {
				base = stem + ".txt"
			}
		}
		if now := d.shots + "/" + base; now != name {
			to[name] = now
		}
	}
	if len(to) == 0 {
		return false
	}
	d.turn()
	for _, name := range all {
		if now := to[name]; now != "" {
			if _, taken := d.after[now]; taken {
				return false
			}
			d.move(name, now)
		}
	}
	return d.ask([]string{say}, "$d", d.shots)
}

func editSetting(d *draft) bool {
	s, sec, k := d.setting()
	now := *k
	if k.isText {
		now.value = "new" + strconv.Itoa(1+d.IntN(99)) + "." + strings.TrimLeft(k.value, "@")
	} else {
		now.value = strconv.Itoa(1 + d.IntN(60000))
	}
	if now.value == k.value {
		return false
	}
	last := k == sec.keys[len(sec.keys)-1]
	d.turn()
	d.tree(d.config)
	d.readTo(s.path, 0)
	d.turn()
	plain := strings.ReplaceAll(d.texts[s.path], "\r\n", "\n")
	old, by := s.line(k, last), s.line(&now, last)
	if strings.Count(plain, old) > 1 { // say in which section
		block := plain[strings.Index(plain, s.header(sec)):]
		block = block[:strings.Index(block, old)]
		old, by = block+old, block+by
	}
	if strings.Count(plain, old) != 1 {
		return false
	}
	d.edit(s.path, old, by)
	d.needText(s.path, strings.TrimRight(s.line(k, last), ","))
	d.say(valueOf(k.value))
	return d.ask([]string{
		`In the settings that the service $s uses, a file under "$d", set $k in the section $x to $v. Answer with the value that it had before.` + unused,
		`Change the settings of $s under "$d": $k, section $x, becomes $v. What was it before?` + unused,
	}, "$s", s.name, "$d", d.config, "$k", k.key, "$x", sec.name, "$v", now.value)
}

func duplicates(d *draft) bool {
	kept, sent := d.in(d.store), d.in(d.received)
	var read, copies []string
	for _, name := range kept {
		if slices.ContainsFunc(sent, func(o string) bool { return len(d.texts[o]) == len(d.texts[name]) }) {
			read = append(read, name)
		}
	}
	for _, name := range sent {
		if slices.ContainsFunc(kept, func(o string) bool { return len(d.texts[o]) == len(d.texts[name]) }) {
			read = append(read, name)
		}
		if slices.ContainsFunc(kept, func(o string) bool { return d.texts[o] == d.texts[name] }) {
			copies = append(copies, name)
		}
	}
	d.turn()
	d.list(d.store)
	d.list(d.received)
	d.readAll(read)
	d.turn()
	for _, name := range copies {
		d.remove(name)
	}
	return len(copies) > 0 && d.ask([]string{
		`Delete every file in "$a" whose content is exactly that of some file in "$b", whatever the names. Everything else stays, also what is only nearly the same.`,
		`Some files in "$a" are exact copies of files in "$b", perhaps under other names. Remove the copies in "$a", and nothing else.`,
	}, "$a", d.received, "$b", d.store)
}

func reorganise(d *draft) bool {
	all := d.in(d.inbox)
	rule, say, top := pick(d.Rand, []string{"project", "ending", "year"}), "", d.archive
	d.turn()
	d.list(d.inbox)
	if rule == "project" {
		d.readAll(all)
	}
	into := map[string]string{}
	for _, name := range all {
		switch rule {
		case "project":
			say = `The first line of each file in "$i" names its project. Move each file into the folder of "$d" that is named like its project, which you make where it is missing. Names of files stay.`
			first, _, _ := strings.Cut(d.texts[name], "\n")
			into[name] = strings.TrimPrefix(first, "Project: ")
		case "ending":
			say, top = `Sort the files in "$i" by their endings: those that end in ".txt" into a folder "txt" in it, and so on. Make the folders. Names of files stay.`, d.inbox
			into[name] = path.Ext(name)[1:]
		default:
			say = `Each file in "$i" has a year in its name. Move it into the folder of "$d" that is named like the year, which you make where it is missing. Names of files stay.`
			into[name] = strings.Split(path.Base(name), "-")[1]
		}
	}
	d.turn()
	made := map[string]bool{}
	for _, name := range all {
		if folder := top + "/" + into[name]; !made[folder] && len(d.under(folder)) == 0 {
			made[folder] = true
			d.mkdir(folder)
		}
	}
	for _, name := range all {
		d.move(name, top+"/"+into[name]+"/"+path.Base(name))
	}
	return d.ask([]string{say}, "$i", d.inbox, "$d", d.archive)
}
