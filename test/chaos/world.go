//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Places of the world: three servers, two zones of workers, the agents.
const (
	zoneA   = "wa"
	zoneB   = "wb"
	zoneOut = "ag"
)

var nodeNames = []string{"n1", "n2", "n3"}

// world is the machine as the processes see it: where root allows, every place
// has a network of its own, and every server a disk of its own.
type world struct {
	dir     string
	id      string // of networks: short, this run's alone
	nets    bool   // places have networks of their own
	disks   bool   // servers have disks of their own
	subnet  string
	undo    []func() error // last to first
	machine machine
	why     []string // what the machine refuses, and why
}

// hosts are the last numbers of the places' addresses.
var hosts = map[string]int{"n1": 1, "n2": 2, "n3": 3, zoneA: 11, zoneB: 12, zoneOut: 21}

const diskSize = 8 << 30 // as far as it is used: the image has holes

func newWorld(ctx context.Context, dir string) (*world, error) {
	w := &world{dir: dir, id: "pc" + strconv.FormatInt(int64(os.Getpid())%100_000, 36)}
	w.subnet = fmt.Sprintf("10.%d.%d.", 200+os.Getpid()/250%50, os.Getpid()%250)
	if err := w.makeNets(ctx); err != nil {
		w.why = append(w.why, "no networks: "+err.Error())
		w.cleanup()
	} else {
		w.nets = true
	}
	mark := len(w.undo)
	if err := w.makeDisks(ctx); err != nil {
		w.why = append(w.why, "no disks: "+err.Error())
		w.cleanupTo(mark)
	} else {
		w.disks = true
	}
	for _, n := range nodeNames {
		if err := os.MkdirAll(w.disk(n), 0o700); err != nil {
			return w, err
		}
	}
	return w, nil
}

// cleanup undoes everything that was made of the machine.
func (w *world) cleanup() { w.cleanupTo(0) }

func (w *world) cleanupTo(mark int) {
	for i := len(w.undo) - 1; i >= mark; i-- {
		if err := w.undo[i](); err != nil {
			fmt.Fprintln(os.Stderr, "chaos: clean up:", err)
		}
	}
	w.undo = w.undo[:mark]
}

// do runs a command of the system.
func do(ctx context.Context, args ...string) error {
	out, err := exec.CommandContext(ctx, args[0], args[1:]...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("%s: %w: %s", strings.Join(args, " "), err, strings.TrimSpace(string(out)))
	}
	return nil
}

// later is do, once everything is over.
func (w *world) later(args ...string) {
	w.undo = append(w.undo, func() error { return do(context.Background(), args...) })
}

// makeNets joins one network namespace for each place by a bridge.
func (w *world) makeNets(ctx context.Context) error {
	if os.Getuid() != 0 {
		return errors.New("that takes root")
	}
	bridge := w.id + "b"
	if err := do(ctx, "ip", "link", "add", bridge, "type", "bridge"); err != nil {
		return err
	}
	w.later("ip", "link", "del", bridge)
	steps := [][]string{{"ip", "addr", "add", w.subnet + "254/24", "dev", bridge}, {"ip", "link", "set", bridge, "up"}}
	for place, host := range hosts {
		ns, veth := w.ns(place), w.veth(place)
		if err := do(ctx, "ip", "netns", "add", ns); err != nil {
			return err
		}
		w.later("ip", "netns", "del", ns)
		in := []string{"nsenter", "--net=/run/netns/" + ns}
		steps = append(steps,
			[]string{"ip", "link", "add", veth, "type", "veth", "peer", "name", "eth0", "netns", ns},
			[]string{"ip", "link", "set", veth, "master", bridge, "up"},
			append(in, "ip", "addr", "add", w.subnet+strconv.Itoa(host)+"/24", "dev", "eth0"),
			append(in, "ip", "link", "set", "eth0", "up"),
			append(in, "ip", "link", "set", "lo", "up"))
	}
	for _, s := range steps {
		if err := do(ctx, s...); err != nil {
			return err
		}
	}
	return nil
}

func (w *world) ns(place string) string   { return w.id + "-" + place }
func (w *world) veth(place string) string { return w.id + place }

// inside is the beginning of a command that runs at a place.
func (w *world) inside(place string) []string {
	if !w.nets || place == "" {
		return nil
	}
	return []string{"nsenter", "--net=/run/netns/" + w.ns(place)}
}

// ip is the address of a place.
func (w *world) ip(place string) string {
	if !w.nets {
		return "127.0.0.1"
	}
	return w.subnet + strconv.Itoa(hosts[place])
}

// here is the address of this process.
func (w *world) here() string {
	if !w.nets {
		return "127.0.0.1"
	}
	return w.subnet + "254"
}

// cut makes whatever from says to the other place vanish: one way.
func (w *world) cut(ctx context.Context, from, to string) error {
	return do(ctx, append(w.inside(from), "ip", "route", "replace", "blackhole", w.ip(to)+"/32")...)
}

// join ends a cut.
func (w *world) join(ctx context.Context, from, to string) error {
	return do(ctx, append(w.inside(from), "ip", "route", "del", "blackhole", w.ip(to)+"/32")...)
}

// slow makes what a place says trickle.
func (w *world) slow(ctx context.Context, place string) error {
	return do(ctx, append(w.inside(place), "tc", "qdisc", "replace", "dev", "eth0", "root", "tbf", "rate", "2mbit", "burst", "16kbit", "latency", "600ms")...)
}

// fast ends slow.
func (w *world) fast(ctx context.Context, place string) error {
	return do(ctx, append(w.inside(place), "tc", "qdisc", "del", "dev", "eth0", "root")...)
}

// disk is where a server keeps its streams.
func (w *world) disk(node string) string { return filepath.Join(w.dir, "disk-"+node) }

func (w *world) image(node string) string { return filepath.Join(w.dir, node+".img") }

func (w *world) makeDisks(ctx context.Context) error {
	if os.Getuid() != 0 {
		return errors.New("that takes root")
	}
	for _, n := range nodeNames {
		f, err := os.Create(w.image(n))
		if err != nil {
			return err
		}
		if err := errors.Join(f.Truncate(diskSize), f.Close(), os.MkdirAll(w.disk(n), 0o700)); err != nil {
			return err
		}
		if err := do(ctx, "mkfs.ext4", "-q", "-F", "-m", "0", w.image(n)); err != nil {
			return err
		}
		if err := w.mount(ctx, n); err != nil {
			return err
		}
		w.undo = append(w.undo, func() error { return w.unmount(context.Background(), n) })
	}
	return nil
}

func (w *world) mount(ctx context.Context, node string) error {
	return do(ctx, "mount", "-o", "loop", w.image(node), w.disk(node))
}

// unmount tries for a while: a process that was just killed may hold it yet.
func (w *world) unmount(ctx context.Context, node string) error {
	var err error
	for range 50 {
		if err = do(ctx, "umount", w.disk(node)); err == nil {
			return nil
		}
		if pause(ctx, 100*time.Millisecond) != nil {
			break
		}
	}
	return err
}

// ext4Shutdown is EXT4_IOC_SHUTDOWN, and noLogFlush its flag: what is not on
// the disk now never will be.
const (
	ext4Shutdown = 0x8004587d
	noLogFlush   = 2
)

// powerOff takes the power from a server's disk.
func (w *world) powerOff(node string) error {
	d, err := os.Open(w.disk(node))
	if err != nil {
		return err
	}
	defer d.Close()
	return unix.IoctlSetPointerInt(int(d.Fd()), ext4Shutdown, noLogFlush)
}

// powerOn mounts the disk again, whose file system replays its journal.
func (w *world) powerOn(ctx context.Context, node string) error {
	if err := w.unmount(ctx, node); err != nil {
		return err
	}
	return w.mount(ctx, node)
}

// fill takes what room there is on a server's disk, and free gives it back.
func (w *world) fill(node string) error {
	var s unix.Statfs_t
	if err := unix.Statfs(w.disk(node), &s); err != nil {
		return err
	}
	f, err := os.Create(w.ballast(node))
	if err != nil {
		return err
	}
	defer f.Close()
	err = unix.Fallocate(int(f.Fd()), 0, 0, int64(s.Bavail)*s.Bsize)
	if errors.Is(err, unix.ENOSPC) {
		return nil // the server was faster: it is full
	}
	return err
}

func (w *world) free(node string) error { return os.Remove(w.ballast(node)) }

func (w *world) ballast(node string) string { return filepath.Join(w.disk(node), "ballast") }

func pause(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
