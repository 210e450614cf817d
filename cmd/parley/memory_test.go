package main

import "testing"

func TestHeapLimitFollowsTheLiveHeap(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		live uint64
		want int64
	}{{0, leastHeap}, {100 << 20, leastHeap}, {1 << 30, 2 << 30}} {
		if got := heapLimit(tt.live); got != tt.want {
			t.Errorf("heapLimit(%d) = %d, want %d", tt.live, got, tt.want)
		}
	}
}
