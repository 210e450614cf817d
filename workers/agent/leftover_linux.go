package agent

import (
	"bytes"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// AdoptOrphans makes this process the parent of whatever its children leave
// behind (PR_SET_CHILD_SUBREAPER), so that init does not become it, and what
// Exec has started can be found and ended. It concerns the whole process: a
// program calls it once, before it starts anything.
func AdoptOrphans() error {
	const setChildSubreaper = 36
	if _, _, errno := syscall.RawSyscall(syscall.SYS_PRCTL, setChildSubreaper, 1, 0); errno != 0 {
		return fmt.Errorf("adopt orphans: %w", errno)
	}
	return nil
}

// processInfo is a line of /proc/PID/stat.
type processInfo struct {
	pid, parent, group int
	state              byte
	start              uint64
}

// readProcess reads a process; false when there is none.
func readProcess(pid int) (p processInfo, ok bool) {
	stat, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return p, false
	}
	// pid (command) state parent …, and a command's name may hold anything.
	f := bytes.Fields(stat[bytes.LastIndexByte(stat, ')')+1:])
	if len(f) < 20 {
		return p, false
	}
	p.pid, p.state = pid, f[0][0]
	p.parent, _ = strconv.Atoi(string(f[1]))
	p.group, _ = strconv.Atoi(string(f[2]))
	p.start, _ = strconv.ParseUint(string(f[19]), 10, 64)
	return p, true
}

// allProcesses lists the processes of this machine that can be seen.
func allProcesses() (list []processInfo) {
	dir, err := os.Open("/proc")
	if err != nil {
		return nil
	}
	defer func() { _ = dir.Close() }()
	names, _ := dir.Readdirnames(-1)
	for _, name := range names {
		if pid, err := strconv.Atoi(name); err == nil {
			if p, ok := readProcess(pid); ok {
				list = append(list, p)
			}
		}
	}
	return list
}

func thisProcess() owner {
	self, _ := readProcess(os.Getpid())
	return owner{space: spaceOf("self"), pid: os.Getpid(), start: self.start}
}

// spaceOf is the PID namespace of a process, 0 when that is not known.
func spaceOf(pid string) uint64 {
	link, _ := os.Readlink("/proc/" + pid + "/ns/pid") // pid:[4026531836]
	n, _ := strconv.ParseUint(strings.TrimSuffix(strings.TrimPrefix(link, "pid:["), "]"), 10, 64)
	return n
}

func (o owner) lives() bool {
	p, ok := readProcess(o.pid)
	return ok && p.start == o.start && p.state != 'Z' && p.state != 'X'
}

// markOf is the mark of a process of this user and namespace, "" for none.
func markOf(pid int, space uint64) string {
	env, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/environ")
	if err != nil {
		return ""
	}
	for kv := range bytes.SplitSeq(env, []byte{0}) {
		if mark, ok := bytes.CutPrefix(kv, []byte(taskMark+"=")); ok && spaceOf(strconv.Itoa(pid)) == space {
			return string(mark)
		}
	}
	return ""
}

// signalMarked sends sig to every process whose mark matches, but not to those of
// the group except, and returns how many there are; nil only counts them.
func signalMarked(match func(mark string) bool, sig os.Signal, except int) (found int) {
	space := spaceOf("self")
	for _, p := range allProcesses() {
		if p.pid == os.Getpid() || p.group == except || p.state == 'Z' || p.state == 'X' {
			continue
		}
		handle, err := os.FindProcess(p.pid) // holds on to the process, not to its id
		if err != nil {
			continue
		}
		if mark := markOf(p.pid, space); mark != "" && match(mark) {
			found++
			if sig != nil {
				_ = handle.Signal(sig)
			}
		}
		_ = handle.Release()
	}
	return found
}

// killRounds bounds how often processes that start others meanwhile are looked
// for.
const killRounds = 50

// killMarked kills every process whose mark matches, and what these have started
// meanwhile.
func killMarked(match func(mark string) bool) (killed int) {
	for i := range killRounds {
		n := signalMarked(match, syscall.SIGKILL, 0)
		if i == 0 {
			killed = n
		}
		if n == 0 {
			return killed
		}
		<-time.After(time.Duration(min(i+1, 10)) * 2 * time.Millisecond)
	}
	return killed
}

// reapAdopted waits for orphans that this process has adopted and that have
// ended. A child that somebody waits for is no zombie for long: only one that
// was a zombie the last time, too, is taken, and none that leads a command.
func reapAdopted(before map[int]uint64, leads func(pid int) bool) (zombies map[int]uint64) {
	zombies = map[int]uint64{}
	self := os.Getpid()
	for _, p := range allProcesses() {
		if p.parent != self || p.state != 'Z' {
			continue
		}
		if before[p.pid] == p.start && p.start != 0 && !leads(p.pid) {
			_, _ = syscall.Wait4(p.pid, nil, syscall.WNOHANG, nil)
			continue
		}
		zombies[p.pid] = p.start
	}
	return zombies
}

// guardScript waits for the end of its standard input, which is the end of the
// agent, and kills what carries its mark, $1. An agent that ends in order says so.
const guardScript = `trap '' HUP INT TERM
read -r word && exit 0
for round in 1 2 3 4 5; do
	found=
	for p in /proc/[0-9]*; do
		if tr '\0' '\n' <"$p/environ" 2>/dev/null | grep -q "^` + taskMark + `=$1\."; then
			kill -9 "${p#/proc/}" 2>/dev/null && found=1
		fi
	done
	[ "$found" ] || exit 0
done`

// startGuard starts a shell that ends what is left of own's commands when this
// process is killed. Without a shell the next agent on the machine does that.
func startGuard(own owner, log *slog.Logger) (release func()) {
	r, w, err := os.Pipe()
	if err != nil {
		log.Debug("start the guard", slog.Any("error", err))
		return func() {}
	}
	defer func() { _ = r.Close() }()
	sh, err := lookPath("sh", nil)
	if err == nil {
		c := &exec.Cmd{
			Path: sh, Args: []string{"parley-guard", "-c", guardScript, "parley-guard", own.String()},
			Env: []string{"PATH=" + defaultPath}, Dir: string(filepath.Separator), Stdin: r, SysProcAttr: &syscall.SysProcAttr{Setsid: true},
		}
		if err = c.Start(); err == nil {
			return func() {
				_, _ = w.WriteString("end\n")
				_ = w.Close()
				_ = c.Wait()
			}
		}
	}
	_ = w.Close()
	log.Debug("start the guard", slog.Any("error", err))
	return func() {}
}
