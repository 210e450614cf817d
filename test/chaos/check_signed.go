//go:build linux

package main

import (
	"bytes"
	"cmp"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"
)

// How long a call may have been on its way when it is taken down, and how far its
// stamp may be from then.
const (
	sentMost  = 3 * time.Second
	stampMost = 15 * time.Second
)

// inForce is a step of the keys: it may be in force from the beginning of what was
// done for it, and nothing else is once that is done.
type inForce struct {
	step     int
	from, to int64
}

// steps are all of them.
func (f *findings) steps() []inForce {
	list := []inForce{{}}
	for _, o := range f.faults {
		if o.Op != replaceKey {
			continue
		}
		n, err := strconv.Atoi(o.ID)
		if err != nil {
			f.fault("8 signatures", o.ID, "no step of the keys: %v", err)
			continue
		}
		list = append(list, inForce{n, o.from, o.to})
	}
	slices.SortFunc(list, func(a, b inForce) int { return cmp.Compare(a.step, b.step) })
	return list
}

// keysAt are the keys that must have signed what came at a time, and those that may
// have.
func keysAt(list []inForce, at int64) (must, may []int) {
	for i, s := range list {
		gone := i+1 < len(list) && list[i+1].to < at-int64(sentMost)
		if s.from > at || gone {
			continue
		}
		keys := ring(s.step)
		if may == nil {
			must = slices.Clone(keys)
		}
		must = slices.DeleteFunc(must, func(k int) bool { return !slices.Contains(keys, k) })
		may = append(may, keys...)
	}
	return must, may
}

// checkSigned checks that all calls under one id have the same body, also where the
// key is replaced between two of them, and that each is signed by the keys that
// were in force, by no other, and stamped with the right time, whether their bodies
// can be read or not.
func (f *findings) checkSigned() {
	steps := f.steps()
	f.counts["steps of keys"] = len(steps) - 1
	verifiers := map[int]*standardwebhooks.Webhook{}
	for _, s := range steps {
		for _, k := range ring(s.step) {
			wh, err := standardwebhooks.NewWebhook(secretOf(k))
			if err != nil {
				panic(err) // they are ours
			}
			verifiers[k] = wh
		}
	}
	down, skewed := f.downtime(skewWorker), f.skewed()
	before := map[string]*line{}
	for i := range f.calls {
		c := &f.calls[i]
		sign := strings.Split(c.Text, "\n")
		h := http.Header{}
		h.Set("webhook-id", sign[0])
		h.Set("webhook-timestamp", sign[1])
		h.Set("webhook-signature", sign[2])
		var by []int
		for k, wh := range verifiers {
			if wh.VerifyIgnoringTimestamp(c.Body, h) == nil {
				by = append(by, k)
			}
		}
		f.checkKeysOf(c, by, steps)
		if was := before[c.ID]; was != nil {
			f.counts["calls tried again"]++
			if !bytes.Equal(was.Body, c.Body) {
				f.fault("8 humans", c.ID, "two calls under one id differ:\n%s\n%s", was.Body, c.Body)
			}
			if slices.ContainsFunc(steps, func(s inForce) bool { return s.from > was.At && s.from < c.At }) {
				f.counts["calls tried again after a step of keys"]++
			}
		}
		before[c.ID] = c
		// A worker that begins with a wrong clock, and is told the time by no
		// server, goes by its own.
		unknown := skewed.explains(c.at().Add(-sentMost), sentMost) && down.explains(c.at().Add(-sentMost), sentMost)
		if s, err := strconv.ParseInt(sign[1], 10, 64); err != nil || c.at().Sub(time.Unix(s, 0)).Abs() > stampMost && !unknown {
			f.fault("8 signatures", c.ID, "a call that came at %s is stamped %s", c.at().UTC().Format(time.RFC3339), sign[1])
		}
	}
}

// checkKeysOf checks by which keys a call is signed.
func (f *findings) checkKeysOf(c *line, by []int, steps []inForce) {
	must, may := keysAt(steps, c.At)
	if len(by) > 1 {
		f.counts["calls signed by two keys"]++
	}
	if len(by) == 0 {
		f.fault("8 signatures", c.ID, "the signature of a call does not hold")
		return
	}
	for _, k := range by {
		if !slices.Contains(may, k) {
			f.fault("8 signatures", c.ID, "a call is signed by key %d, which is not in force", k)
		}
	}
	for _, k := range must {
		if !slices.Contains(by, k) {
			f.fault("8 signatures", c.ID, "a call is not signed by key %d, which is in force", k)
		}
	}
}
