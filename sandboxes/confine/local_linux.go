//go:build amd64 || arm64

package confine

import (
	"bytes"
	"cmp"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync/atomic"
	"syscall"

	"golang.org/x/sys/unix"
)

// nobody is the user that programs see themselves as; they are it where this process is root, whom limits do not bind.
const nobody = 65534

type local struct {
	bwrap  string
	args   []string // of bwrap, for every program
	closed atomic.Bool
}

// Local runs programs of this machine with bubblewrap. Its errors wrap ErrUnavailable and say what is missing.
//
// Each of a program's processes may use Memory: no limit is on all of them together. A program dies with this process, however
// that ends. Files that this process was started with open are no longer inherited by any program that it starts.
func Local(ctx context.Context) (Runner, error) {
	bwrap, err := exec.LookPath("bwrap")
	if err != nil {
		return nil, fmt.Errorf("%w: bubblewrap is missing: make deps, or apt-get install bubblewrap", ErrUnavailable)
	}
	// What this process was started with open would be open for programs too.
	if err := unix.CloseRange(3, math.MaxInt32, unix.CLOSE_RANGE_CLOEXEC); err != nil {
		return nil, fmt.Errorf("%w: keep open files from programs: %w", ErrUnavailable, err)
	}
	l := &local{bwrap: bwrap, args: confinement()}
	out, err := l.Run(ctx, Program{Args: []string{"true"}})
	if err == nil && out.Exit != 0 {
		err = fmt.Errorf("true exits with %d: %s", out.Exit, out.Stderr)
	}
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	if err != nil {
		return nil, fmt.Errorf("%w: bubblewrap needs version 0.8 and user namespaces: %w", ErrUnavailable, err)
	}
	return l, nil
}

// tools is where make deps puts tools, if it has: for all users, or for one who is not root.
func tools() (string, bool) {
	dirs := []string{"/usr/local/lib/mcpgym"}
	if home, err := os.UserHomeDir(); err == nil && os.Getuid() != 0 {
		dirs = append(dirs, filepath.Join(home, ".local/lib/mcpgym"))
	}
	for _, dir := range dirs {
		if _, err := os.Stat(dir); err == nil {
			return dir, true
		}
	}
	return "", false
}

// confinement gives bwrap's arguments up to a program's files.
func confinement() []string {
	args := []string{"--unshare-all", "--unshare-user", "--disable-userns", "--uid", fmt.Sprint(nobody), "--gid", fmt.Sprint(nobody), "--die-with-parent", "--new-session", "--hostname", "sandbox", "--cap-drop", "ALL",
		"--ro-bind", "/usr", "/usr", "--symlink", "usr/bin", "/bin", "--symlink", "usr/lib", "/lib", "--symlink", "usr/lib64", "/lib64",
		"--proc", "/proc", "--dev", "/dev", "--size", "1048576", "--tmpfs", "/dev/shm", "--remount-ro", "/dev"}
	if dir, ok := tools(); ok {
		args = append(args, "--ro-bind", dir, Tools)
	}
	for _, dir := range []string{"/tmp", Work} {
		args = append(args, "--size", fmt.Sprint(Space), "--tmpfs", dir)
	}
	args = append(args, "--chdir", Work, "--clearenv")
	for _, v := range Env() {
		name, value, _ := strings.Cut(v, "=")
		args = append(args, "--setenv", name, value)
	}
	return args
}

func (l *local) Run(ctx context.Context, p Program) (Output, error) {
	out, err := l.run(ctx, p)
	if ctx.Err() != nil {
		return Output{}, ctx.Err()
	}
	if err != nil {
		return Output{}, fmt.Errorf("run %s with bubblewrap: %w", strings.Join(p.Args[:min(1, len(p.Args))], ""), err)
	}
	return out, nil
}

func (l *local) run(ctx context.Context, p Program) (out Output, err error) {
	files, err := p.Check()
	if err != nil {
		return out, err
	}
	if l.closed.Load() {
		return out, errors.New("the runner is closed")
	}
	ctx, full, stop := p.Limit(ctx)
	defer stop()
	stdout, stderr := &Capped{Full: full}, &Capped{Full: full}
	cmd := exec.CommandContext(ctx, l.bwrap)
	cmd.Args = append(cmd.Args, l.args...)
	cmd.Env, cmd.Dir, cmd.Stdout, cmd.Stderr = []string{}, "/", stdout, stderr
	cmd.SysProcAttr = confined()
	give := func(f *os.File) string {
		cmd.ExtraFiles = append(cmd.ExtraFiles, f)
		return fmt.Sprint(2 + len(cmd.ExtraFiles))
	}
	defer func() {
		for _, f := range cmd.ExtraFiles {
			f.Close()
		}
	}()
	status, statusIn, err := os.Pipe()
	if err != nil {
		return out, err
	}
	defer status.Close()
	cmd.Args = append(cmd.Args, "--json-status-fd", give(statusIn))
	filter, err := inMemory(denied)
	if err != nil {
		return out, err
	}
	cmd.Args = append(cmd.Args, "--seccomp", give(filter))
	for _, name := range files {
		f, err := inMemory([]byte(p.Files[name]))
		if err != nil {
			return out, fmt.Errorf("hand over %s: %w", name, err)
		}
		cmd.Args = append(cmd.Args, "--perms", "0644", "--file", give(f), filepath.Join(Work, name))
	}
	seconds := int(math.Ceil(cmp.Or(p.Time, MaxTime).Seconds()))
	cmd.Args = append(cmd.Args, "--remount-ro", "/", "--", "/usr/bin/prlimit", fmt.Sprintf("--as=%d", Memory), fmt.Sprintf("--nproc=%d", Processes),
		fmt.Sprintf("--nofile=%d", OpenFiles), fmt.Sprintf("--fsize=%d", FileSize), fmt.Sprintf("--cpu=%d", seconds+1), "--core=0", "--")
	cmd.Args = append(cmd.Args, p.Args...)

	// A child dies with the thread that started it, which must therefore not end before.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	err = cmd.Start()
	statusIn.Close()
	if err == nil {
		err = cmd.Wait()
	}
	out.Stdout, out.Stderr, out.Over = stdout.String(), stderr.String(), Over(ctx)
	exit, begun := exitCode(status)
	switch _, exited := errors.AsType[*exec.ExitError](err); {
	case out.Over != "":
		out.Exit = 128 + int(syscall.SIGKILL)
	case err != nil && !exited:
		return out, err
	case !begun:
		return out, fmt.Errorf("it has not begun: %s", cmp.Or(strings.TrimSpace(out.Stderr), cmd.ProcessState.String()))
	default:
		out.Exit = exit
	}
	return out, nil
}

// confined makes bubblewrap the first of its processes, as an ordinary user: with it all others end, at whatever moment it is
// killed, and are gone when it is.
func confined() *syscall.SysProcAttr {
	a := &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Cloneflags: syscall.CLONE_NEWPID}
	if os.Getuid() == 0 {
		a.Credential = &syscall.Credential{Uid: nobody, Gid: nobody}
		return a
	}
	a.Cloneflags |= syscall.CLONE_NEWUSER
	a.UidMappings = []syscall.SysProcIDMap{{ContainerID: os.Getuid(), HostID: os.Getuid(), Size: 1}}
	a.GidMappings = []syscall.SysProcIDMap{{ContainerID: os.Getgid(), HostID: os.Getgid(), Size: 1}}
	return a
}

// exitCode reads bubblewrap's reports: of a program that has begun there is one of its end.
func exitCode(status io.Reader) (code int, begun bool) {
	for d := json.NewDecoder(status); ; {
		var report struct {
			Exit *int `json:"exit-code"`
		}
		if err := d.Decode(&report); err != nil {
			return 0, false
		}
		if report.Exit != nil {
			return *report.Exit, true
		}
	}
}

// inMemory makes a file that has no name, to be read from its beginning.
func inMemory(data []byte) (*os.File, error) {
	fd, err := unix.MemfdCreate("", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(fd), "memfd")
	if _, err = f.Write(data); err == nil {
		_, err = f.Seek(0, io.SeekStart)
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

func (l *local) Close() error {
	l.closed.Store(true)
	return nil
}

// denied is a filter of system calls that fail as if the kernel had none: with them a program could have memory that no limit
// counts, or more of the kernel than it needs.
var denied = func() []byte {
	calls := []uint32{
		unix.SYS_MEMFD_CREATE, unix.SYS_MEMFD_SECRET, unix.SYS_SHMGET, unix.SYS_MSGGET, unix.SYS_SEMGET, unix.SYS_MQ_OPEN,
		unix.SYS_IO_URING_SETUP, unix.SYS_USERFAULTFD, unix.SYS_BPF, unix.SYS_PERF_EVENT_OPEN, unix.SYS_KEYCTL, unix.SYS_ADD_KEY, unix.SYS_REQUEST_KEY,
		unix.SYS_PTRACE, unix.SYS_PROCESS_VM_WRITEV, unix.SYS_MOUNT, unix.SYS_FSOPEN, unix.SYS_UNSHARE, unix.SYS_SETNS,
	}
	arch := map[string]uint32{"amd64": unix.AUDIT_ARCH_X86_64, "arm64": unix.AUDIT_ARCH_AARCH64}[runtime.GOARCH]
	const foreign = 0x40000000 // the calls of x32, which are others
	const nr, archAt = 0, 4    // where struct seccomp_data has them
	load, equal, above := uint16(unix.BPF_LD|unix.BPF_W|unix.BPF_ABS), uint16(unix.BPF_JMP|unix.BPF_JEQ|unix.BPF_K), uint16(unix.BPF_JMP|unix.BPF_JGE|unix.BPF_K)
	ret := uint16(unix.BPF_RET | unix.BPF_K)
	deny := uint8(len(calls) + 1) // from the first comparison over the others and the one that allows
	program := []unix.SockFilter{
		{Code: load, K: archAt},
		{Code: equal, K: arch, Jt: 1},
		{Code: ret, K: unix.SECCOMP_RET_KILL_PROCESS},
		{Code: load, K: nr},
		{Code: above, K: foreign, Jt: deny},
	}
	for i, c := range calls {
		program = append(program, unix.SockFilter{Code: equal, K: c, Jt: deny - 1 - uint8(i)})
	}
	program = append(program, unix.SockFilter{Code: ret, K: unix.SECCOMP_RET_ALLOW}, unix.SockFilter{Code: ret, K: unix.SECCOMP_RET_ERRNO | uint32(unix.ENOSYS)})
	var b bytes.Buffer
	if err := binary.Write(&b, binary.NativeEndian, program); err != nil {
		panic(fmt.Sprintf("confine: encode a filter: %v", err)) // its size is fixed
	}
	return b.Bytes()
}()
