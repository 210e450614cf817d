package rig

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// TestLimitAt: an account is limited when the file says so, and where there is no file
// never.
func TestLimitAt(t *testing.T) {
	t.Parallel()
	from := time.Date(2026, 5, 31, 9, 0, 0, 0, time.UTC)
	file := filepath.Join(t.TempDir(), "limits")
	for _, name := range []string{"", file} {
		if l, err := limitAt(name, from); l != nil || err != nil {
			t.Errorf("without a file: %v, %v", l, err)
		}
	}
	data, err := json.Marshal([]Limit{{From: from, Until: from.Add(time.Minute), Untold: true}})
	if err == nil {
		err = os.WriteFile(file, data, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	for after, want := range map[time.Duration]bool{-time.Second: false, 0: true, 59 * time.Second: true, time.Minute: false} {
		if l, err := limitAt(file, from.Add(after)); err != nil || (l != nil) != want {
			t.Errorf("after %s: %v, %v", after, l, err)
		}
	}
}
