//go:build linux

package main

import (
	"cmp"
	"math"
	"slices"
	"time"
)

// spans are times at which something was wrong, in the order in which they
// begin. They may overlap.
type spans [][2]int64

// afterFault is how long after a fault something may be late for it, and slow
// an operation that takes longer than when all is well.
const (
	afterFault = 20 * time.Second
	slow       = time.Second
)

// downtime is when faults of all kinds but some were at work, when the machine was
// away, and when clients had to wait; those who take whatever they are told do not.
func (f *findings) downtime(but ...string) (down spans) {
	for _, o := range f.faults {
		if o.Op != quietKind && !slices.Contains(but, o.Op) {
			down = append(down, [2]int64{o.from, min(o.to, math.MaxInt64-int64(afterFault)) + int64(afterFault)})
		}
	}
	for _, d := range f.away {
		down = append(down, [2]int64{d[0], d[1] + int64(afterFault)})
	}
	return append(down, f.outages()...).inOrder()
}

// outages is when clients had to wait, or the machine was away.
func (f *findings) outages() (down spans) {
	down = append(down, f.away...)
	for _, o := range f.ops {
		if o.to-o.from > int64(slow) && o.Text != flooded && slices.Contains([]string{"dispatch", "append", "run", "letter"}, o.Op) {
			down = append(down, [2]int64{o.from, o.to})
		}
	}
	return down.inOrder()
}

// absent is for how long in all the machine was away, and of how long.
func (f *findings) absent() (away, of time.Duration) {
	from, to := f.span()
	of = to.Sub(from)
	return of - f.away.calm(from, to), of
}

// inOrder orders spans by when they begin.
func (s spans) inOrder() spans {
	slices.SortFunc(s, func(a, b [2]int64) int { return cmp.Compare(a[0], b[0]) })
	return s
}

// explains reports whether something was wrong at a time, or within a while
// after it.
func (s spans) explains(t time.Time, while time.Duration) bool {
	return s.meet(t.Add(-time.Second), t.Add(while))
}

// meet reports whether something was wrong in part of a time.
func (s spans) meet(from, to time.Time) bool {
	return slices.ContainsFunc(s, func(d [2]int64) bool { return d[0] < to.UnixNano() && d[1] > from.UnixNano() })
}

// quiet is the longest that nothing was wrong between two times.
func (s spans) quiet(from, to time.Time) time.Duration {
	at, end, most := from.UnixNano(), to.UnixNano(), int64(0)
	for _, d := range s {
		most = max(most, min(d[0], end)-at)
		at = max(at, d[1])
	}
	return time.Duration(max(most, end-at))
}

// calm is for how long in all nothing was wrong between two times.
func (s spans) calm(from, to time.Time) time.Duration {
	at, end, all := from.UnixNano(), to.UnixNano(), int64(0)
	for _, d := range s {
		all += max(0, min(d[0], end)-at)
		at = max(at, d[1])
	}
	return time.Duration(all + max(0, end-at))
}
