package workers

import "testing"

func TestHeapLimitFollowsTheLiveHeap(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		live, scanned uint64
		want          int64
	}{{0, 0, leastHeap}, {100 << 20, 10 << 20, leastHeap}, {1000 << 20, 0, 1125 << 20}, {1000 << 20, 100 << 20, 1325 << 20}} {
		if got := heapLimit(tt.live, tt.scanned); got != tt.want {
			t.Errorf("heapLimit(%d, %d) = %d, want %d", tt.live, tt.scanned, got, tt.want)
		}
	}
}
