package main

import (
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"parley/subjects/schedule"
)

// emptyRoot has a process of this test take a directory for its root.
const emptyRoot = "EMPTY_ROOT"

// TestZonesInAnEmptyRoot asks for a zone where there is no file at all, as in the
// image.
func TestZonesInAnEmptyRoot(t *testing.T) {
	if dir := os.Getenv(emptyRoot); dir != "" {
		if err := syscall.Chroot(dir); err != nil {
			t.Skipf("chroot: %v", err)
		}
		d := schedule.Definition{Cron: "0 9 * * *", TimeZone: "Europe/Berlin"}
		c, err := d.Clock(time.Now())
		if err != nil {
			t.Fatal(err)
		}
		summer := time.Date(2026, 7, 1, 12, 0, 0, 0, time.UTC)
		if got, want := c.Next(summer), time.Date(2026, 7, 2, 7, 0, 0, 0, time.UTC); !got.Equal(want) {
			t.Errorf("due at %s, want %s", got, want)
		}
		return
	}
	t.Parallel()
	cmd := exec.CommandContext(t.Context(), "/proc/self/exe", "-test.run=^TestZonesInAnEmptyRoot$", "-test.v")
	cmd.Env = slices.DeleteFunc(os.Environ(), func(kv string) bool { return strings.HasPrefix(kv, "ZONEINFO=") })
	cmd.Env = append(cmd.Env, emptyRoot+"="+t.TempDir())
	if uid := os.Getuid(); uid != 0 { // who is not root is so in a name space of its own
		cmd.SysProcAttr = &syscall.SysProcAttr{
			Cloneflags: syscall.CLONE_NEWUSER, UidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: uid, Size: 1}},
		}
	}
	out, err := cmd.CombinedOutput()
	if err != nil && len(out) == 0 || strings.Contains(string(out), "--- SKIP") {
		t.Skipf("no empty root on this machine: %v\n%s", err, out)
	}
	if err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}
