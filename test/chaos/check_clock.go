//go:build linux

package main

import (
	"crypto/sha256"
	"encoding/base32"
	"encoding/json"
	"fmt"
	"math"
	"strings"
	"time"
)

// clockRecord is how far a schedule has come.
type clockRecord struct {
	From       string     `json:"from"`
	Generation int64      `json:"generation"`
	Created    time.Time  `json:"created"`
	State      string     `json:"state"`
	Reckoned   time.Time  `json:"reckoned"`
	Last       *firing    `json:"last"`
	Waiting    []firing   `json:"waiting"`
	Next       *time.Time `json:"next"`
	Begun      int        `json:"begun"`
	Missed     int        `json:"missed"`
	Skipped    int        `json:"skipped"`
	Refused    int        `json:"refused"`
}

type firing struct {
	ID     string          `json:"id"`
	Begun  *time.Time      `json:"begun"`
	Reason json.RawMessage `json:"reason"`
}

// busy reports whether something is yet to be begun.
func (r *clockRecord) busy() bool {
	return len(r.Waiting) > 0 || r.Last != nil && r.Last.Begun == nil && len(r.Last.Reason) == 0 ||
		r.State == "active" && r.Next != nil
}

// clockRecords are the last records of all schedules, by who created them and
// name.
func clockRecords(dump []message) map[string]*clockRecord {
	all := map[string]*clockRecord{}
	for i := range dump {
		r := &clockRecord{}
		id := strings.TrimPrefix(dump[i].Subject, "$KV.FLEET_SCHEDULES.")
		if json.Unmarshal(dump[i].Data, r) == nil {
			all[id] = r
		}
	}
	return all
}

// id is what a schedule begins at a time; the contract, once more.
func (r *clockRecord) id(name string, t time.Time) string {
	sum := sha256.Sum256(fmt.Appendf(nil, "%s %s %d %s", r.From, name, r.Generation, t.UTC().Format(time.RFC3339Nano)))
	return "sch-" + strings.ToLower(base32.StdEncoding.WithPadding(base32.NoPadding).EncodeToString(sum[:20]))
}

// ticks are the times of a schedule as far as it has come, reckoned anew.
func (r *clockRecord) ticks(c *clockwork) (all []time.Time) {
	switch {
	case c.At != nil:
		return []time.Time{*c.At}
	case c.Cron != "": // every fifth second
		for t := r.Created.Truncate(5 * time.Second).Add(5 * time.Second); !t.After(r.Reckoned); t = t.Add(5 * time.Second) {
			all = append(all, t)
		}
	default:
		every := time.Duration(c.Every * float64(time.Second))
		for t := r.Created.Add(every); !t.After(r.Reckoned); t = t.Add(every) {
			all = append(all, t)
		}
	}
	return all
}

// checkClocks checks that a time of a schedule is one task, run or message, not
// before that time, and none where something explains it.
func (f *findings) checkClocks() {
	records := clockRecords(f.dumps["KV_FLEET_SCHEDULES"])
	letters, down := letterStates(f.dumps["FLEET_MESH_STATE"]), f.downtime()
	began := map[string]int64{} // by id of what was begun
	for id, list := range f.records {
		began[id] = list[0].Stored.UnixNano()
	}
	for i := range f.dumps["FLEET_RUNS"] {
		if id, ok := strings.CutPrefix(f.dumps["FLEET_RUNS"][i].Subject, "fleet.run."); ok && began[id] == 0 {
			began[id] = f.dumps["FLEET_RUNS"][i].Time.UnixNano()
		}
	}
	for id := range letters {
		if who, m, _ := strings.Cut(id, "."); strings.HasPrefix(who, "clock") {
			began[m] = math.MaxInt64
		}
	}
	known := map[string]bool{}
	for _, o := range f.ops {
		if o.Op != "schedule" {
			continue
		}
		about := o.Client + "." + o.ID
		r := records[about]
		var c clockwork
		if err := json.Unmarshal(o.Body, &c); err != nil || r == nil {
			if o.ok() {
				f.fault("S schedules", about, "it was acknowledged, and has no record (%v)", err)
			}
			continue
		}
		for _, t := range r.ticks(&c) {
			known[r.id(o.ID, t)] = true // also where its client was not told that it is there
		}
		if !o.ok() {
			continue
		}
		f.counts["schedules"]++
		done := 0
		times := r.ticks(&c)
		// After the last that was begun some waited for their turn when the
		// schedule was paused, which left them out.
		waited, missed := len(times), -r.Skipped
		for ; c.Overlap == "queue" && r.State == "paused" && waited > 0 && began[r.id(o.ID, times[waited-1])] == 0; waited-- {
			if missed++; down.explains(times[waited-1], lateMost) {
				missed--
			}
		}
		if missed > 0 {
			f.fault("S schedules", about, "%d times after %s were missed, and nothing explains that", missed, times[max(waited-1, 0)].Format(time.RFC3339))
		}
		for n, t := range times {
			at, is := began[r.id(o.ID, t)]
			switch {
			case is:
				f.counts["times of schedules"]++
				done++
				if at < t.Add(-clockSlack).UnixNano() {
					f.fault("S schedules", about, "what is due at %s was begun %s before that", t.Format(time.RFC3339), t.Sub(time.Unix(0, at)))
				}
			case n < waited && !down.explains(t, lateMost) && (c.Overlap != "skip" || n == 0 || !f.underWay(r.id(o.ID, times[n-1]), t)):
				f.fault("S schedules", about, "%s was missed, and nothing explains that", t.Format(time.RFC3339))
			}
		}
		if done != r.Begun || r.Refused > 0 || r.Begun+r.Missed+r.Skipped != len(times) {
			f.fault("S schedules", about, "of %d times %d were begun; its record says %d, with %d missed, %d skipped and %d refused",
				len(times), done, r.Begun, r.Missed, r.Skipped, r.Refused)
		}
	}
	for id, list := range f.records {
		if strings.HasPrefix(list[0].Facts.From, "clock") && list[0].Facts.RunID == "" && !known[id] {
			f.fault("S schedules", id, "no time of a schedule is this task")
		}
	}
	for id := range letters {
		if who, m, _ := strings.Cut(id, "."); strings.HasPrefix(who, "clock") && !known[m] {
			f.fault("S schedules", id, "no time of a schedule is this message")
		}
	}
}

// underWay reports whether a run had not ended a second before a time.
func (f *findings) underWay(run string, t time.Time) bool {
	for i := range f.dumps["FLEET_RUNS"] {
		m := &f.dumps["FLEET_RUNS"][i]
		var r struct {
			State string `json:"state"`
		}
		if m.Subject == "fleet.run."+run && json.Unmarshal(m.Data, &r) == nil && (r.State == "done" || r.State == "failed") {
			return m.Time.After(t.Add(-time.Second))
		}
	}
	return true
}

// lateMost is within what something that went wrong shows.
const lateMost = 6 * time.Second
