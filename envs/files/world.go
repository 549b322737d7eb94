package files

import (
	"fmt"
	"math/rand/v2"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/mcpgym/mcpgym/sandboxes"
	"github.com/mcpgym/mcpgym/sandboxes/files"
)

// resultBytes is how much of a text or a list one result shows: long files and lists come in pages.
const resultBytes = 3000

// project is the tree of an invented project, and what tasks need to know of it.
type project struct {
	*rand.Rand
	texts map[string]string // by path

	name                                                              string
	config, data, logs, notes, inbox, archive, shots, received, store string // folders

	people   []string
	services []*service
	tables   []*table
	memos    []memo
}

// service is a program with a file of settings. Beside it lie files that look like it and are not used.
type service struct {
	name, path string
	format     string // of the settings
	sections   []section
	log        string // path
	last       event  // the last error in the log
}

type section struct {
	name string
	keys []*setting
}

type setting struct {
	key, value string
	isText     bool
}

type event struct{ line, job, code string }

// table is a CSV file. Its first column is the key.
type table struct {
	path    string
	what    string
	columns []string
	rows    [][]string
}

// memo is a note whose name says little.
type memo struct {
	path, title, owner, due string
}

var (
	kinds = []string{"harbour survey", "orchard", "tram depot", "observatory", "salt museum", "mill", "ferry line", "seed bank", "quarry", "lighthouse"}
	towns = []string{"Brenholm", "Ostermoor", "Calder Vale", "Lindquay", "Marrowby", "Tarnwick", "Yarrowdale", "Vexmouth", "Hollin Fell", "Quillsea", "Dunmere", "Askrigg Sands"}
	first = []string{"Ines", "Bruno", "Carla", "Teodor", "Mirela", "Oskar", "Yusra", "Pavel", "Solveig", "Anselm", "Noor", "Ewa", "Kofi", "Lotte", "Rasmus", "Zoë"}
	last  = []string{"Moreau", "Halden", "Okafor", "Brandt", "Lindqvist", "Saavedra", "Petrov", "Ashdown", "Nakata", "Verhoeven", "Duarte", "Kowalska", "Strand", "Müller"}
	names = []string{"tidewatch", "pumpctl", "gatekeeper", "mailroom", "ledgerd", "beacon", "rosterd", "sluice", "ticketd", "weighbridge", "nightcron", "pressroom", "siloview", "kilnctl", "archivist", "courier"}
	nouns = []string{"pumps", "ropes", "lanterns", "benches", "valves", "charts", "ladders", "nets", "signs", "gauges", "tarpaulins", "radios", "anchors", "trolleys"}
	acts  = []string{"Repair", "Replace", "Survey", "Paint", "Order", "Move", "Insure", "Count", "Store", "Lend"}
	where = []string{"north basin", "upper yard", "east gate", "reading room", "old engine house", "second floor", "west pier", "cold store", "car park", "boat shed"}
)

func pick[T any](r *rand.Rand, from []T) T { return from[r.IntN(len(from))] }

// draw takes n of some, in random order.
func draw[T any](r *rand.Rand, n int, from []T) []T {
	all := make([]T, n)
	for i, at := range r.Perm(len(from))[:n] {
		all[i] = from[at]
	}
	return all
}

// between draws a number from lo to hi.
func (p *project) between(lo, hi int) int { return lo + p.IntN(hi-lo+1) }

func (p *project) code() string {
	return string([]byte{'A' + byte(p.IntN(26)), 'A' + byte(p.IntN(26))}) + "-" + strconv.Itoa(p.between(1000, 9999))
}

// day draws a day of the two years that a project is about.
func (p *project) day() string {
	return time.Date(2030, 1, 1+p.IntN(700), 0, 0, 0, 0, time.UTC).Format(time.DateOnly)
}

func slug(s string) string { return strings.ReplaceAll(strings.ToLower(s), " ", "-") }

// setup makes the tree of a world.
func setup(w sandboxes.World) (files.Setup, error) { return newProject(w.Seed).setup(), nil }

func (p *project) setup() files.Setup { return setupOf(p.texts, nil) }

func setupOf(texts map[string]string, folders []string) files.Setup {
	s := files.Setup{Files: make(map[string]files.File, len(texts)), Folders: folders, Limits: files.Limits{Bytes: 2 << 20, Entries: 500, Result: resultBytes}}
	for name, text := range texts {
		s.Files[name] = files.File{Text: text}
	}
	return s
}

// newProject makes the project of a seed.
func newProject(seed uint64) *project {
	p := &project{Rand: rand.New(rand.NewPCG(seed, 0x66696c6573)), texts: map[string]string{}}
	kind, town := pick(p.Rand, kinds), pick(p.Rand, towns)
	p.name = town + " " + kind
	top := "/" + slug(town)
	if p.IntN(2) == 0 {
		top += "-" + slug(kind)
	}
	at := func(choices ...string) string { return top + "/" + pick(p.Rand, choices) }
	p.config, p.data, p.logs, p.notes = at("config", "conf", "settings"), at("data", "tables", "figures"), at("logs", "log", "var/log"), at("notes", "minutes", "Übersicht")
	p.inbox, p.archive, p.shots = at("inbox", "incoming", "unsorted"), at("archive", "old", "attic"), at("pictures", "captions", "media")
	p.received, p.store = at("received", "from-partners", "transfer"), at("originals", "masters", "store")
	for range 6 {
		p.people = append(p.people, pick(p.Rand, first)+" "+pick(p.Rand, last))
	}
	p.makeServices()
	p.makeTables()
	p.makeMemos()
	p.makeShots()
	p.makeInbox()
	p.makeCopies()
	p.texts[top+"/README.md"] = fmt.Sprintf("# %s\n\nSettings of the services are in %s, one file each; nothing reads a copy whose name holds bak, example or a year.\nTables are in %s, minutes in %s. What nobody needs goes to %s.\n\nAsk %s.\n",
		p.name, p.config, p.data, p.notes, p.archive, p.people[0])
	return p
}

// under lists the files under a folder, in the order of search_files.
func (p *project) under(folder string) (all []string) {
	for name := range p.texts {
		if strings.HasPrefix(name, folder+"/") {
			all = append(all, name)
		}
	}
	slices.SortFunc(all, byParts)
	return all
}

// in lists the files in a folder, in the order of list_directory.
func (p *project) in(folder string) []string {
	return slices.DeleteFunc(p.under(folder), func(name string) bool { return path.Dir(name) != folder })
}

// byParts is the order of a walk: that of names, folder by folder.
func byParts(a, b string) int { return slices.Compare(strings.Split(a, "/"), strings.Split(b, "/")) }

// Settings.

func (p *project) makeServices() {
	number := func(key string, lo, hi int) *setting {
		return &setting{key, fmt.Sprint(p.between(lo, hi)), false}
	}
	text := func(key, value string) *setting { return &setting{key, value, true} }
	host := func() string {
		return fmt.Sprintf("%s%d.%s.example", pick(p.Rand, []string{"hub", "node", "relay", "core"}), p.between(1, 99), slug(pick(p.Rand, towns)))
	}
	for _, name := range draw(p.Rand, 6, names) {
		s := &service{name: name, format: pick(p.Rand, []string{"ini", "toml", "yaml", "json"})}
		all := []section{
			{"server", []*setting{text("host", host()), number("port", 1024, 60000), number("timeout_s", 5, 900), number("workers", 2, 64)}},
			{"storage", []*setting{number("max_mb", 50, 9000), number("keep_days", 7, 400), number("timeout_s", 5, 900)}},
			{"mail", []*setting{text("sender", name+"@"+slug(pick(p.Rand, towns))+".example"), text("host", host()), number("port", 1024, 60000), number("retries", 2, 80)}},
			{"sync", []*setting{text("host", host()), number("interval_s", 10, 3600), number("batch", 10, 900), number("retries", 2, 80)}},
		}
		s.sections = draw(p.Rand, 3, all)
		s.path = p.config + "/" + name + "." + s.format
		if p.IntN(3) == 0 {
			s.path = p.config + "/" + name + "/main." + s.format
		}
		crlf, open := p.IntN(3) == 0, p.IntN(4) == 0
		p.texts[s.path] = lineEnds(s.render(name+", "+p.name), crlf, open)
		for _, copy := range draw(p.Rand, p.between(1, 2), []string{s.path + ".bak", p.config + "/" + name + ".example." + s.format, p.archive + "/" + name + "-2029." + s.format}) {
			p.texts[copy] = lineEnds(p.varied(s, copy).render(name+", "+p.name), crlf, open)
		}
		s.log = p.logs + "/" + name + ".log"
		p.texts[s.log] = p.log(s)
		p.services = append(p.services, s)
	}
}

// varied is a service whose settings differ: in one place in a backup, anywhere elsewhere.
func (p *project) varied(s *service, copy string) *service {
	v := &service{name: s.name, format: s.format}
	n := 0
	for _, sec := range s.sections {
		keys := make([]*setting, len(sec.keys))
		for i, k := range sec.keys {
			c := *k
			keys[i] = &c
			n++
		}
		v.sections = append(v.sections, section{sec.name, keys})
	}
	change := []int{p.IntN(n)}
	if !strings.HasSuffix(copy, ".bak") {
		change = p.Perm(n)[:n/2]
	}
	i := 0
	for _, sec := range v.sections {
		for _, k := range sec.keys {
			if slices.Contains(change, i) {
				if k.isText {
					k.value = fmt.Sprintf("old%d-%s", p.between(1, 99), k.value)
				} else {
					n, _ := strconv.Atoi(k.value) // a number
					k.value = strconv.Itoa(2*n + 1)
				}
			}
			i++
		}
	}
	return v
}

// line is a setting as its file spells it, without the space before it.
func (s *service) line(k *setting, last bool) string {
	value := k.value
	if k.isText && (s.format == "toml" || s.format == "json") {
		value = `"` + value + `"`
	}
	switch {
	case s.format == "yaml":
		return k.key + ": " + value
	case s.format == "json" && last:
		return `"` + k.key + `": ` + value
	case s.format == "json":
		return `"` + k.key + `": ` + value + ","
	}
	return k.key + " = " + value
}

// header is a section's first line.
func (s *service) header(sec section) string {
	switch s.format {
	case "yaml":
		return sec.name + ":"
	case "json":
		return `"` + sec.name + `": {`
	}
	return "[" + sec.name + "]"
}

func (s *service) render(about string) string {
	var b strings.Builder
	comment, indent := map[string]string{"ini": "; ", "toml": "# ", "yaml": "# "}[s.format], map[string]string{"yaml": "  ", "json": "    "}[s.format]
	if comment != "" {
		b.WriteString(comment + about + "\n")
	} else {
		b.WriteString("{\n")
	}
	for i, sec := range s.sections {
		switch s.format {
		case "json":
			b.WriteString("  ")
		case "ini", "toml":
			b.WriteString("\n")
		}
		b.WriteString(s.header(sec) + "\n")
		for k, key := range sec.keys {
			b.WriteString(indent + s.line(key, k == len(sec.keys)-1) + "\n")
		}
		if s.format == "json" {
			b.WriteString("  }")
			if i < len(s.sections)-1 {
				b.WriteString(",")
			}
			b.WriteString("\n")
		}
	}
	if s.format == "json" {
		b.WriteString("}\n")
	}
	return b.String()
}

// lineEnds gives a text that ends its lines in "\n" other ends. An open one lacks the last.
func lineEnds(text string, crlf, open bool) string {
	if open {
		text = strings.TrimSuffix(text, "\n")
	}
	if crlf {
		text = strings.ReplaceAll(text, "\n", "\r\n")
	}
	return text
}

// log makes the log of a service. Its last error lies in the last thirty lines.
func (p *project) log(s *service) string {
	var b strings.Builder
	n := p.between(50, 110)
	at := time.Date(2031, time.Month(p.between(1, 12)), p.between(1, 28), 5, p.IntN(60), 0, 0, time.UTC)
	lastError := n - p.between(3, 28)
	for i := range n {
		at = at.Add(time.Duration(p.between(2, 200)) * time.Second)
		job, code, took := string("kmqrx"[p.IntN(5)])+strconv.Itoa(p.between(10000, 99999)), "E"+strconv.Itoa(p.between(100, 999)), strconv.Itoa(p.between(3, 4000))
		line := at.Format(time.DateTime) + " INFO  " + s.name + ": job " + job + " done in " + took + " ms"
		switch {
		case i == lastError || i < lastError && p.IntN(9) == 0:
			line = at.Format(time.DateTime) + " ERROR " + s.name + ": job " + job + " failed with code " + code
		case p.IntN(6) == 0:
			line = at.Format(time.DateTime) + " WARN  " + s.name + ": job " + job + " was late, last code " + code
		}
		if i == lastError {
			s.last = event{line, job, code}
		}
		b.WriteString(line)
		b.WriteByte('\n')
	}
	return b.String()
}

// Tables.

func (p *project) makeTables() {
	for _, t := range []struct {
		name, what string
		columns    []string
		row        func() []string
	}{
		{"stock", "item", []string{"item", "name", "pieces", "cents_each", "shelf"}, func() []string {
			return []string{fmt.Sprintf("%s, %s", pick(p.Rand, nouns), pick(p.Rand, []string{"large", "small", "spare", "worn"})), fmt.Sprint(p.between(1, 900)), fmt.Sprint(p.between(40, 90000)), fmt.Sprintf("S%d", p.between(10, 99))}
		}},
		{"visits", "visit", []string{"visit", "date", "guide", "adults", "children"}, func() []string {
			return []string{p.day(), pick(p.Rand, p.people), fmt.Sprint(p.between(2, 400)), fmt.Sprint(p.between(1, 300))}
		}},
		{"readings", "reading", []string{"reading", "date", "level_mm", "salt_ppm"}, func() []string {
			return []string{p.day(), fmt.Sprint(p.between(100, 9000)), fmt.Sprint(p.between(20, 40000))}
		}},
	} {
		tab := &table{path: fmt.Sprintf("%s/%s-%d.csv", p.data, t.name, p.between(2028, 2031)), what: t.what, columns: t.columns}
		seen := map[string]bool{}
		for range p.between(20, 190) {
			code := p.code()
			if !seen[code] {
				seen[code] = true
				tab.rows = append(tab.rows, append([]string{code}, t.row()...))
			}
		}
		p.tables = append(p.tables, tab)
		p.texts[tab.path] = lineEnds(tab.text(), p.IntN(4) == 0, p.IntN(4) == 0)
	}
	// Pieces of what somebody has measured: many small files.
	kinds := draw(p.Rand, 3, []string{".csv", ".txt", ".dat", ".xml", ".md"})
	for range p.between(16, 60) {
		kind := kinds[0] // most of them
		if p.IntN(5) < 2 {
			kind = pick(p.Rand, kinds[1:])
		}
		name := fmt.Sprintf("%s/%s/run %04d%s", p.data, pick(p.Rand, []string{"raw", "raw/spring", "raw/autumn"}), p.IntN(10000), kind)
		if p.IntN(3) == 0 {
			name = strings.Replace(name, "run ", pick(p.Rand, []string{"messung-", "relevé_", "log."}), 1)
		}
		var b strings.Builder
		for range p.between(1, 12) {
			b.WriteString(strconv.Itoa(p.between(0, 999)) + " " + strconv.Itoa(p.between(0, 99999)) + "\n")
		}
		p.texts[name] = b.String()
	}
}

func (t *table) text() string {
	lines := []string{strings.Join(t.columns, ";")}
	for _, row := range t.rows {
		lines = append(lines, strings.Join(row, ";"))
	}
	return strings.Join(lines, "\n") + "\n"
}

// Notes.

func (p *project) makeMemos() {
	places := []string{"untitled.md", "untitled 2.md", "meeting.txt", "meeting (1).txt", "draft_old.md", "Café.md", "final.md", "final-final.txt", "todo.txt", "misc.md", "scan.txt", "2030.md"}
	titles := map[string]bool{}
	var index strings.Builder
	fmt.Fprintf(&index, "# Minutes of %s\n\n", p.name)
	for _, file := range draw(p.Rand, p.between(7, 10), places) {
		title := fmt.Sprintf("%s the %s in the %s", pick(p.Rand, acts), pick(p.Rand, nouns), pick(p.Rand, where))
		if titles[title] {
			continue
		}
		titles[title] = true
		m := memo{path: p.notes + "/" + file, title: title, owner: pick(p.Rand, first) + " " + pick(p.Rand, last), due: p.day()}
		if p.IntN(3) == 0 {
			m.path = p.notes + "/earlier/" + file
		}
		talk := fmt.Sprintf("%s reported on the %s. %s asked whether %d of them are enough.", pick(p.Rand, p.people), pick(p.Rand, nouns), pick(p.Rand, p.people), p.between(2, 60))
		text := fmt.Sprintf("# %s\n\nHeld on %s, present: %s and %s.\n\n%s\n\nOwner: %s\nDue: %s\n", title, p.day(), pick(p.Rand, p.people), pick(p.Rand, p.people), talk, m.owner, m.due)
		p.texts[m.path] = lineEnds(text, p.IntN(4) == 0, false)
		p.memos = append(p.memos, m)
		fmt.Fprintf(&index, "- %s: %s\n", title, m.path)
	}
	p.texts[p.notes+"/index.md"] = index.String()
}

// Files to be named anew: captions of pictures.

func (p *project) makeShots() {
	endings := []string{"txt", "TXT", "md", "text", "jpeg.txt"}
	for i, noun := range draw(p.Rand, p.between(6, 9), nouns) {
		name := pick(p.Rand, []string{noun, strings.ToUpper(noun[:1]) + noun[1:], strings.ToUpper(noun)})
		name += pick(p.Rand, []string{" ", "_", "-", " at "}) + fmt.Sprintf("%03d", 100+7*i+p.IntN(7)) + "." + pick(p.Rand, endings)
		p.texts[p.shots+"/"+name] = fmt.Sprintf("Taken: %s\nBy: %s\n%s in the %s.\n", p.day(), pick(p.Rand, p.people), noun, pick(p.Rand, where))
	}
}

// Files to be put elsewhere.

func (p *project) makeInbox() {
	projects := []string{p.code(), p.code(), p.code()}
	var list strings.Builder
	for i := range p.between(6, 9) {
		year := p.between(2028, 2031)
		name := fmt.Sprintf("%s-%d-%02d.%s", pick(p.Rand, []string{"letter", "invoice", "report", "offer", "protokoll"}), year, i, pick(p.Rand, []string{"txt", "csv", "md"}))
		p.texts[p.inbox+"/"+name] = fmt.Sprintf("Project: %s\nFrom: %s\nSum: %d euros, to be paid by %s\n", pick(p.Rand, projects), pick(p.Rand, p.people), p.between(20, 90000), p.day())
		list.WriteString(pick(p.Rand, []string{name + "\n", name + "\n", "# " + name + "\n", ""}))
	}
	p.texts[p.notes+"/to-archive.txt"] = list.String()
	p.texts[p.archive+"/closed.txt"] = "What nobody needs.\n"
	for _, there := range []string{projects[0], strconv.Itoa(p.between(2028, 2031))} { // folders that need not be made
		p.texts[p.archive+"/"+there+"/about.txt"] = "Closed by " + pick(p.Rand, p.people) + ".\n"
	}
}

// Files of which some are copies of others, and some only look like it.

func (p *project) makeCopies() {
	for i := range 7 {
		base := fmt.Sprintf("%s-%d", pick(p.Rand, nouns), p.between(100, 999))
		text := ""
		for range p.between(3, 8) {
			text += fmt.Sprintf("%s %s %d\n", p.code(), p.day(), p.between(1, 9999))
		}
		p.texts[fmt.Sprintf("%s/%s.txt", p.store, base)] = text
		other := fmt.Sprintf("%s/%s.txt", p.received, pick(p.Rand, []string{"copy-of-" + base, base, fmt.Sprintf("file%02d", i), base + "-new"}))
		switch i % 3 {
		case 0, 1: // a copy
			p.texts[other] = text
		default: // one digit differs
			at := strings.LastIndexAny(text, "0123456789")
			p.texts[other] = text[:at] + string('0'+(text[at]-'0'+1)%10) + text[at+1:]
		}
	}
	p.texts[p.received+"/readme.txt"] = "Sent by " + pick(p.Rand, p.people) + ".\n"
}
