package files

import (
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"

	"github.com/mcpgym/mcpgym/rewards"
)

// oodFamilies are compositions that train lacks.
var oodFamilies = []family{
	{"follow", follow},
	{"relink", relink},
	{"differs", differs},
	{"manifest", manifest},
	{"by-list", byList},
	{"fuller", fuller},
}

// follow finds a service by a setting, and then the last error of that service.
func follow(d *draft) bool {
	s, sec, k := d.setting()
	if k.isText || k.key == "retries" {
		return false
	}
	var live []string
	for _, o := range d.services {
		live = append(live, o.path)
		for _, sc := range o.sections {
			if o != s && sc.name == sec.name && slices.ContainsFunc(sc.keys, func(c *setting) bool { return c.key == k.key && c.value == k.value }) {
				return false
			}
		}
	}
	d.turn()
	d.tree(d.config)
	d.list(d.logs)
	d.readAll(live)
	d.turn()
	d.call("read_text_file", map[string]any{"path": s.log, "tail": 40})
	d.needText(s.path, strings.TrimRight(s.spelt(sec, k), ","))
	d.needText(s.log, s.last.line)
	d.say(text(s.name), text(s.last.job))
	return d.ask([]string{
		`One service has $v as $k in the section $x of its settings, which are under "$c".` + unused + ` Which service is it, and which job does the last line of level ERROR name in its log, in "$l"?`,
	}, "$v", k.value, "$k", k.key, "$x", sec.name, "$c", d.config, "$l", d.logs)
}

// relink moves a file and mends what names its path.
func relink(d *draft) bool {
	m := pick(d.Rand, d.memos)
	index := d.notes + "/index.md"
	to := d.archive + "/" + path.Base(m.path)
	d.turn()
	d.call("read_text_file", map[string]any{"path": index})
	d.turn()
	d.move(m.path, to)
	d.edit(index, "- "+m.title+": "+m.path, "- "+m.title+": "+to)
	return strings.Count(d.texts[index], "- "+m.title+": "+m.path) == 1 && d.ask([]string{
		`Move the minutes titled "$t" into the folder "$a"; the file's name stays. "$i" says where they are: make it say the new path.`,
	}, "$t", m.title, "$a", d.archive, "$i", index)
}

// differs compares two versions of a file.
func differs(d *draft) bool {
	s, sec, k := d.setting()
	other, ok := d.texts[s.path+".bak"]
	if !ok {
		return false
	}
	line := s.spelt(sec, k)
	if now := d.texts[s.path]; strings.Count(now, line) != 1 || strings.Contains(other, line) {
		return false
	}
	was := ""
	for l := range strings.Lines(other) {
		if l = strings.Trim(l, " \r\n"); l != "" && !strings.Contains(d.texts[s.path], l) {
			was = l
		}
	}
	if was == "" {
		return false
	}
	d.readAll([]string{s.path, s.path + ".bak"})
	d.needText(s.path, strings.TrimRight(line, ","))
	d.needText(s.path+".bak", strings.TrimRight(was, ","))
	d.say(text(sec.name), text(k.key), valueOf(k.value))
	return d.ask([]string{
		`"$f" and "$f.bak" differ in one setting. Give its section, its key, and its value in "$f".`,
	}, "$f", s.path)
}

// fuller compares two folders.
func fuller(d *draft) bool {
	two := draw(d.Rand, 2, []string{d.config, d.data + "/raw", d.notes, d.inbox, d.shots, d.received, d.store, d.logs})
	var entries [2]int
	d.turn()
	for i, folder := range two {
		names := map[string]bool{}
		for _, name := range d.under(folder) {
			name, _, _ = strings.Cut(name[len(folder)+1:], "/")
			names[name] = true
		}
		entries[i] = len(names)
		d.call("get_file_info", map[string]any{"path": folder})
		for _, name := range slices.Sorted(maps.Keys(names)) { // their number was seen, or each of them
			at := folder + "/" + name
			d.need(rewards.Fact{Has: map[string]any{"path": folder, "entries": len(names)}}, rewards.Fact{File: at}, rewards.Fact{File: at + "/"})
		}
	}
	if entries[0] == entries[1] {
		return false
	}
	more, less := 0, 1
	if entries[0] < entries[1] {
		more, less = 1, 0
	}
	folder := pathOf(two[more])
	folder.Accept = append(folder.Accept, two[more]+"/")
	d.say(folder, number(entries[more]-entries[less]))
	return d.ask([]string{
		`Which of the folders "$a" and "$b" has more entries directly in it, and what is the difference in number?`,
	}, "$a", two[0], "$b", two[1])
}

// manifest writes a list of what is in a folder.
func manifest(d *draft) bool {
	var b strings.Builder
	for _, name := range d.in(d.received) {
		fmt.Fprintf(&b, "%s %d\n", path.Base(name), len(d.texts[name]))
	}
	d.turn()
	d.list(d.received)
	d.turn()
	d.write(d.received+"/MANIFEST", b.String())
	return d.ask([]string{
		`Make a file "$d/MANIFEST" with a line for each other file in "$d", in the order of list_directory: its name, one space, and its size in bytes. Each line ends in a line feed; there are no other lines.`,
	}, "$d", d.received)
}

// byList moves the files that another file lists.
func byList(d *draft) bool {
	list := d.notes + "/to-archive.txt"
	d.turn()
	d.call("read_text_file", map[string]any{"path": list})
	d.list(d.inbox)
	d.turn()
	moved := 0
	for line := range strings.Lines(d.texts[list]) {
		if line = strings.TrimSpace(line); line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		d.move(d.inbox+"/"+line, d.archive+"/"+line)
		moved++
	}
	return moved > 0 && d.ask([]string{
		`"$l" lists names of files in "$i". Move those files to "$a", but not those on lines that begin with "#". Names stay, and so does the list.`,
	}, "$l", list, "$i", d.inbox, "$a", d.archive)
}
