package files

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"
	"sync"
	"syscall"
	"unicode/utf8"

	"github.com/mcpgym/mcpgym/sandboxes"
)

// temporary is where a file is written before it gets its name. It is no part of the tree: agents cannot name it, and
// neither lists nor states show what a crash has left there.
const temporary = reserved + "-write"

// tree is a folder of the host as a world. What its methods return is for the agent, unless it is a *sandboxes.Fault; those
// that begin with a small letter want the caller to hold mu.
//
// os.Root keeps it safe: no path and no link leads out of the folder, also where somebody changes the tree at the same time.
// What is checked before makes it plain: an agent is told what it may not do, and why.
type tree struct {
	root   *os.Root
	limits Limits
	start  picture // nil where nobody asks for the state
	folder string  // is removed by Close, where not empty

	mu      sync.RWMutex // held for reading by calls that only read
	bytes   int64        // of all files
	entries int
	closed  bool
}

var errClosed = &sandboxes.Fault{Kind: sandboxes.FaultClosed, Op: "use a file tree", Msg: "it is closed"}

// usable says whether the tree is still there. A folder that was removed is open until its last user closes it, and empty.
func (t *tree) usable() error {
	if t.closed {
		return errClosed
	}
	fi, err := t.root.Stat(".")
	if err == nil && links(fi) == 0 {
		err = errors.New("its folder was removed")
	}
	if err != nil {
		return sandboxes.NewFault(sandboxes.FaultDied, "use a file tree", err)
	}
	return nil
}

// Alive says whether the tree can be used.
func (t *tree) Alive() bool {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return t.usable() == nil
}

// Close removes the tree.
func (t *tree) Close() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return nil
	}
	t.closed = true
	err := t.root.Close()
	if t.folder != "" {
		err = errors.Join(err, os.RemoveAll(t.folder))
	}
	return err
}

// links counts the names that a file has.
func links(fi fs.FileInfo) uint64 {
	if st, ok := fi.Sys().(*syscall.Stat_t); ok {
		return uint64(st.Nlink) // of another size elsewhere
	}
	return 1
}

// kind names what something is: "file" and "directory" are all that agents may use.
func kind(fi fs.FileInfo) string {
	switch m := fi.Mode(); {
	case m.IsDir():
		return "directory"
	case m.IsRegular() && links(fi) > 1:
		return "hard link"
	case m.IsRegular():
		return "file"
	case m&fs.ModeSymlink != 0:
		return "link"
	case m&fs.ModeNamedPipe != 0:
		return "pipe"
	case m&fs.ModeDevice != 0:
		return "device"
	}
	return "special file"
}

// refuse says why something may not be used, if it may not.
func refuse(name string, fi fs.FileInfo) error {
	switch k := kind(fi); k {
	case "file", "directory":
		return nil
	case "link", "hard link":
		return fmt.Errorf("%s is a %s, which may lead out of the tree and is never followed: use files and folders by their own paths", show(name), k)
	default:
		return fmt.Errorf("%s is a %s: only files and folders can be used", show(name), k)
	}
}

// failed tells what the agent may cause, and what whoever else is at work in the tree may, from what is the machine's fault.
func failed(doing, name string, err error) error {
	for _, e := range []error{syscall.ENOTDIR, syscall.EISDIR, syscall.ELOOP, syscall.ENXIO, syscall.EINVAL, fs.ErrNotExist, fs.ErrExist} {
		if errors.Is(err, e) {
			return fmt.Errorf("%s %s: it is not what it was a moment ago; try again", doing, show(name))
		}
	}
	if strings.HasSuffix(err.Error(), "path escapes from parent") { // os does not export this error
		return fmt.Errorf("%s %s: a link on the way leads out of the tree%s", doing, show(name), allowed)
	}
	return sandboxes.NewFault(sandboxes.FaultDied, doing+" "+show(name), err)
}

// at looks at what has a name, nil where nothing has. All folders on the way must be there.
func (t *tree) at(name string) (fs.FileInfo, error) {
	for i, c := range name {
		if c != '/' {
			continue
		}
		up := name[:i]
		fi, err := t.root.Lstat(up)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return nil, fmt.Errorf("there is no folder %s%s", show(up), t.similar(up))
		case err != nil:
			return nil, failed("look at", up, err)
		}
		if err := refuse(up, fi); err != nil {
			return nil, err
		}
		if !fi.IsDir() {
			return nil, fmt.Errorf("%s is a file, not a folder", show(up))
		}
	}
	fi, err := t.root.Lstat(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, failed("look at", name, err)
	}
	return fi, refuse(name, fi)
}

// exists says whether something has a name.
func (t *tree) exists(name string) bool {
	_, err := t.root.Lstat(name)
	return !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, syscall.ENOTDIR)
}

// find looks at what has a name; something must.
func (t *tree) find(name string) (fs.FileInfo, error) {
	fi, err := t.at(name)
	if fi == nil && err == nil {
		err = fmt.Errorf("there is no %s%s", show(name), t.similar(name))
	}
	return fi, err
}

// similar names what has the same name but for case.
func (t *tree) similar(name string) string {
	all, err := t.list(parent(name))
	if err != nil {
		return ""
	}
	for _, fi := range all {
		if strings.EqualFold(fi.Name(), path.Base(name)) {
			return fmt.Sprintf("; case counts, and there is %s", show(path.Join(parent(name), fi.Name())))
		}
	}
	return ""
}

// list lists a folder, sorted by name.
func (t *tree) list(name string) ([]fs.FileInfo, error) {
	r, err := t.root.OpenRoot(name)
	if err != nil {
		return nil, failed("open", name, err)
	}
	defer r.Close()
	all, err := entries(r)
	if err != nil {
		return nil, failed("list", name, err)
	}
	return all, nil
}

// entries lists the root of r, sorted by name.
func entries(r *os.Root) ([]fs.FileInfo, error) {
	d, err := r.Open(".")
	if err != nil {
		return nil, err
	}
	names, err := d.Readdirnames(-1)
	if err := errors.Join(err, d.Close()); err != nil {
		return nil, err
	}
	slices.Sort(names)
	all := make([]fs.FileInfo, 0, len(names))
	for _, name := range names {
		if name == temporary {
			continue
		}
		fi, err := r.Lstat(name)
		if errors.Is(err, fs.ErrNotExist) { // gone meanwhile
			continue
		}
		if err != nil {
			return nil, err
		}
		all = append(all, fi)
	}
	return all, nil
}

// walk calls f for all that is under a folder, each folder before what is in it, sorted by name. Where f says so, a folder
// is not entered. r is the root of the folder that the thing is in.
func (t *tree) walk(name string, f func(r *os.Root, name string, fi fs.FileInfo) (enter bool, err error)) error {
	r, err := t.root.OpenRoot(name)
	if err != nil {
		return failed("open", name, err)
	}
	return walk(r, name, f)
}

func walk(r *os.Root, name string, f func(*os.Root, string, fs.FileInfo) (bool, error)) error {
	defer r.Close()
	all, err := entries(r)
	if err != nil {
		return failed("list", name, err)
	}
	for _, fi := range all {
		full := path.Join(name, fi.Name())
		enter, err := f(r, full, fi)
		if err != nil {
			return err
		}
		if !enter || !fi.IsDir() {
			continue
		}
		sub, err := r.OpenRoot(fi.Name())
		if err != nil {
			return failed("open", full, err)
		}
		if err := walk(sub, full, f); err != nil {
			return err
		}
	}
	return nil
}

// open opens a file for reading. What is opened is what is looked at, whoever changes names meanwhile; and nobody waits for
// the other end of a pipe.
func open(r *os.Root, name string) (*os.File, fs.FileInfo, error) {
	f, err := r.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, nil, err
	}
	fi, err := f.Stat()
	if err != nil {
		f.Close()
		return nil, nil, err
	}
	return f, fi, nil
}

// read reads a file.
func (t *tree) read(name string) ([]byte, error) {
	fi, err := t.find(name)
	if err != nil {
		return nil, err
	}
	if fi.IsDir() {
		return nil, fmt.Errorf("%s is a folder: list_directory shows what is in it", show(name))
	}
	f, fi, err := open(t.root, name)
	if err != nil {
		return nil, failed("open", name, err)
	}
	defer f.Close()
	if k := kind(fi); k != "file" {
		return nil, fmt.Errorf("%s is a %s now: only files can be read", show(name), k)
	}
	var b bytes.Buffer
	b.Grow(int(min(fi.Size(), t.limits.Bytes)) + bytes.MinRead)
	if _, err := b.ReadFrom(io.LimitReader(f, t.limits.Bytes+1)); err != nil {
		return nil, failed("read", name, err)
	}
	if int64(b.Len()) > t.limits.Bytes {
		return nil, fmt.Errorf("%s is larger than the limit of %d bytes", show(name), t.limits.Bytes)
	}
	return b.Bytes(), nil
}

// text reads a file that holds text.
func (t *tree) text(name string) (string, error) {
	data, err := t.read(name)
	if err != nil {
		return "", err
	}
	if !isText(data) {
		return "", fmt.Errorf("%s is binary, %d bytes: only text can be read and edited", show(name), len(data))
	}
	return string(data), nil
}

func isText(data []byte) bool { return utf8.Valid(data) && bytes.IndexByte(data, 0) < 0 }

// grow says which limit a change would break, if it would.
func (t *tree) grow(bytes int64, entries int) error {
	if n := t.bytes + bytes; bytes >= 0 && n > t.limits.Bytes {
		return fmt.Errorf("not done: the tree would hold %d bytes, the limit is %d", n, t.limits.Bytes)
	}
	if n := t.entries + entries; n > t.limits.Entries {
		return fmt.Errorf("not done: the tree would hold %d files and folders, the limit is %d", n, t.limits.Entries)
	}
	return nil
}

// write makes a file, or gives one other content. A dry one only says what would be wrong.
func (t *tree) write(name, content string, dry bool) (created bool, err error) {
	if !isText([]byte(content)) {
		return false, errors.New("the content is binary: only text can be written")
	}
	fi, err := t.at(name)
	if err != nil {
		return false, err
	}
	mode, grown, more := fileMode, int64(len(content)), 1
	if fi != nil {
		if fi.IsDir() {
			return false, fmt.Errorf("%s is a folder", show(name))
		}
		if err := writable(name, fi); err != nil {
			return false, err
		}
		mode, grown, more = fi.Mode().Perm(), grown-fi.Size(), 0
	}
	if err := t.grow(grown, more); err != nil {
		return false, err
	}
	if !dry {
		if err := t.put(name, []byte(content), mode); err != nil {
			return false, err
		}
		t.bytes += grown
		t.entries += more
	}
	return more > 0, nil
}

// writable says whether an agent may change or remove a file.
func writable(name string, fi fs.FileInfo) error {
	if !fi.IsDir() && fi.Mode().Perm()&0o200 == 0 {
		return fmt.Errorf("%s is read-only (mode %#o)", show(name), fi.Mode().Perm())
	}
	return nil
}

// put gives a name to a new file, all at once, in place of a file that has it.
func (t *tree) put(name string, data []byte, mode fs.FileMode) error {
	const flags = os.O_WRONLY | os.O_CREATE | os.O_EXCL
	f, err := t.root.OpenFile(temporary, flags, 0o600)
	if errors.Is(err, fs.ErrExist) { // left by a crash
		if err = t.root.RemoveAll(temporary); err == nil {
			f, err = t.root.OpenFile(temporary, flags, 0o600)
		}
	}
	if err != nil {
		return sandboxes.NewFault(sandboxes.FaultDied, "write "+show(name), err)
	}
	_, err = f.Write(data)
	if err == nil {
		err = f.Chmod(mode) // no umask
	}
	if err = errors.Join(err, f.Close()); err == nil {
		err = t.root.Rename(temporary, name)
	}
	if err != nil {
		_ = t.root.Remove(temporary) // the next write does, too
		return failed("write", name, err)
	}
	return nil
}

// mkdir makes a folder, in one that is there.
func (t *tree) mkdir(name string) error {
	if err := t.grow(0, 1); err != nil {
		return err
	}
	err := t.root.Mkdir(name, folderMode)
	if err == nil {
		err = t.root.Chmod(name, folderMode) // no umask
	}
	if err != nil {
		return failed("make", name, err)
	}
	t.entries++
	return nil
}

// mkdirs makes a folder and those that it is in, all of them or none, and says whether there was any to make.
func (t *tree) mkdirs(name string) (created bool, err error) {
	var missing []string
	for up := name; up != "."; up = parent(up) {
		if _, err := t.root.Lstat(up); !errors.Is(err, fs.ErrNotExist) {
			break // what it is will be seen below
		}
		missing = append(missing, up)
	}
	at := name
	if len(missing) > 0 {
		at = parent(missing[len(missing)-1])
	}
	fi, err := t.find(at)
	if err != nil {
		return false, err
	}
	if !fi.IsDir() {
		return false, fmt.Errorf("%s is a file, not a folder", show(at))
	}
	if err := t.grow(0, len(missing)); err != nil {
		return false, err
	}
	for _, m := range slices.Backward(missing) {
		if err := t.mkdir(m); err != nil {
			return false, err
		}
	}
	return len(missing) > 0, nil
}

// move gives something another name, which nothing has.
func (t *tree) move(from, to string) error {
	fi, err := t.find(from)
	if err != nil {
		return err
	}
	there, err := t.at(to)
	switch {
	case err != nil:
		return err
	case from == ".":
		return errors.New("the root of the tree cannot be moved")
	case there != nil:
		return fmt.Errorf("%s exists already, nothing is overwritten", show(to))
	case strings.HasPrefix(to, from+"/"):
		return fmt.Errorf("%s cannot be moved into itself", show(from))
	}
	if err := writable(from, fi); err != nil {
		return err
	}
	if fi.IsDir() {
		err := t.walk(from, func(_ *os.Root, name string, _ fs.FileInfo) (bool, error) {
			_, _, err := clean(to + strings.TrimPrefix(name, from))
			return true, err
		})
		if err != nil {
			return fmt.Errorf("not moved, for what is in it: %w", err)
		}
	}
	if err := t.root.Rename(from, to); err != nil {
		return failed("move", from, err)
	}
	return nil
}

// remove removes a file or an empty folder, and says which it was.
func (t *tree) remove(name string) (was string, err error) {
	fi, err := t.find(name)
	if err != nil {
		return "", err
	}
	if name == "." {
		return "", errors.New("the root of the tree cannot be deleted")
	}
	if err := writable(name, fi); err != nil {
		return "", err
	}
	if fi.IsDir() {
		all, err := t.list(name)
		if err != nil {
			return "", err
		}
		if len(all) > 0 {
			return "", fmt.Errorf("%s is not empty: it holds %d files and folders", show(name), len(all))
		}
	}
	if err := t.root.Remove(name); err != nil {
		return "", failed("delete", name, err)
	}
	t.entries--
	if !fi.IsDir() {
		t.bytes -= fi.Size()
	}
	return kind(fi), nil
}

// look describes all that is in the tree. What an agent can neither make nor use is shown as what it is, and not read.
func (t *tree) look() (picture, error) {
	p := picture{}
	err := t.walk(".", func(r *os.Root, name string, fi fs.FileInfo) (bool, error) {
		if k := kind(fi); k != "file" {
			if p[name] = k; fi.IsDir() {
				p[name] = describe(fi.Mode(), 0, nil)
			}
			return true, nil
		}
		f, fi, err := open(r, path.Base(name))
		if err != nil {
			return false, failed("open", name, err)
		}
		defer f.Close()
		h := sha256.New()
		n, err := io.Copy(h, f)
		if err != nil {
			return false, failed("read", name, err)
		}
		p[name] = describe(fi.Mode(), n, h.Sum(nil))
		return true, nil
	})
	return p, err
}
