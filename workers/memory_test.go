package workers

import "testing"

func TestMemoryLimitFollowsWhatIsLive(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		live, scanned, beside int64
		want                  int64
	}{
		{0, 0, 0, leastHeap},
		{100 << 20, 10 << 20, 20 << 20, leastHeap},
		{1000 << 20, 0, 0, 1125 << 20},
		{1000 << 20, 100 << 20, 0, 1200 << 20},
		{200 << 20, 50 << 20, 150 << 20, 450 << 20},
	} {
		if got := memoryLimit(tt.live, tt.scanned, tt.beside); got != tt.want {
			t.Errorf("memoryLimit(%d, %d, %d) = %d, want %d", tt.live, tt.scanned, tt.beside, got, tt.want)
		}
	}
}
