package skew_test

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"parley/bus/bustest"
	"parley/bus/plant/skew"
)

// TestFollow makes the clock of this process wrong, and right again.
func TestFollow(t *testing.T) {
	if !skew.Possible {
		t.Skip("not on this machine")
	}
	path := filepath.Join(t.TempDir(), "clock")
	begin, right := time.Now(), skew.Now()
	skew.Follow(path)
	for _, s := range []struct {
		file string
		want time.Duration
	}{{"240", 4 * time.Minute}, {"-300", -5 * time.Minute}, {"0", 0}} {
		if err := os.WriteFile(path, []byte(s.file), 0o600); err != nil {
			t.Fatal(err)
		}
		bustest.Eventually(t, "the clock is wrong by "+s.file, func() bool {
			return (time.Now().Round(0).Sub(skew.Now()) - s.want).Abs() < 20*time.Second
		})
		since, passed := time.Since(begin), skew.Now().Sub(right)
		if (since - passed).Abs() > 20*time.Second {
			t.Errorf("the monotonic clock went by %s in %s", since, passed)
		}
	}
}
