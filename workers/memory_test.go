package workers

import "testing"

func TestHeapLimitFollowsTheLiveHeap(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		live uint64
		want int64
	}{{0, leastHeap}, {100 << 20, leastHeap}, {1000 << 20, 1250 << 20}} {
		if got := heapLimit(tt.live); got != tt.want {
			t.Errorf("heapLimit(%d) = %d, want %d", tt.live, got, tt.want)
		}
	}
}
