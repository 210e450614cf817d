//go:build linux

package main

import (
	"encoding/json"
	"fmt"
	"testing"
	"time"

	"parley/test/rig"
)

// at is a second of the morning, in ns.
func at(s int) int64 { return morning.Add(time.Duration(s) * time.Second).UnixNano() }

// traffic is what streams, bursts and copies leave behind where all is well.
func traffic() *findings {
	f := &findings{records: rig.History{}, counts: map[string]int{}}
	records := func(task, list string) {
		var all []rig.Record
		if err := json.Unmarshal([]byte(list), &all); err != nil {
			panic(err)
		}
		for i := range all {
			all[i].Seq, all[i].Stored = i+1, morning.Add(time.Duration(i+1)*time.Second)
		}
		f.records[task] = all
	}
	records("s", `[
		{"kind":"queued","state":"queued","data":{"dispatch":{"input":{"message_id":"m"}}}},
		{"kind":"working","state":"working","attempt":1},
		{"kind":"artifact","state":"working","attempt":1,"data":{"artifact":{"artifact_id":"p"}}},
		{"kind":"retry","state":"queued","attempt":1,"facts":{"attempts":[{"attempt":1,"agent_id":"a","code":"agent_error"}]}},
		{"kind":"spent","state":"queued","attempt":1},
		{"kind":"working","state":"working","attempt":2},
		{"kind":"artifact","state":"working","attempt":2,"data":{"artifact":{"artifact_id":"p"}}},
		{"kind":"outcome","state":"done","attempt":2,"data":{"result":{"output":{"nonce":"n"}}},
			"facts":{"attempts":[{"attempt":1,"agent_id":"a","code":"agent_error"}]}}]`)
	records("h", `[
		{"kind":"queued","state":"queued"},
		{"kind":"resumed","state":"queued","facts":{"human":{"answer_id":"alert-1-x"}}},
		{"kind":"resumed","state":"queued","facts":{"human":{"answer_id":"alert-2-y"}}}]`)
	body := func(legs ...leg) []byte { return (&listener{legs: legs}).told() }
	f.ops = []*op{
		{line: line{Client: "caller0", Op: "stream", Key: "m", Text: "keyed"}, from: at(1), to: at(9), end: line{What: wasOK, ID: "s", State: "completed", Body: body(
			leg{Told: []string{"1 submitted", "2 working"}}, leg{After: "2"}, leg{After: "2", Told: []string{"3 artifact"}},
			leg{Told: []string{"4 submitted", "6 working"}}, leg{After: "6", Told: []string{"7 artifact", "7.1 artifact"}}, leg{After: "7.1", Told: []string{"8 completed"}},
		)}},
		{line: line{Client: "caller0", Op: "replay", Kind: sentAgain, ID: "s", Key: "m"}, from: at(10), to: at(11), end: line{What: wasOK, ID: "s", Body: body(leg{Told: []string{"1 submitted"}})}},
		{line: line{Client: "boss0", Op: "dispatch", Key: "k"}, from: at(1), to: at(2), end: line{What: wasOK, ID: "h"}},
		{line: line{Client: "boss0", Op: "replay", Kind: "dispatch", Key: "k"}, from: at(3), to: at(4), end: line{What: wasOK, ID: "h"}},
		{line: line{Client: "team0", Op: "append", ID: "a2a-1", Key: "v"}, from: at(1), to: at(2), end: line{What: wasOK, ID: "a2a-1", Version: 3}},
		{line: line{Client: "team0", Op: "replay", Kind: "append", ID: "a2a-1", Key: "v"}, from: at(3), to: at(4), end: line{What: wasOK, ID: "a2a-1", Version: 3}},
		{line: line{Client: "pen0", Op: "replay", Kind: "letter", ID: "l"}, from: at(3), to: at(4), end: line{What: wasOK}},
	}
	flood := func(id, session string, end line) {
		f.ops = append(f.ops, &op{line: line{Client: "greedy0", Op: "dispatch", ID: id, Session: session, Text: flooded}, end: end, from: at(1), to: at(2)})
	}
	for i := range floodsMany + 1 {
		id, end := fmt.Sprintf("greedy0-%d", i), line{What: wasFail, Code: "rate_limited"}
		if i < floodMost {
			records(id, `[{"kind":"queued","state":"queued"},{"kind":"outcome","state":"done","attempt":0,"data":{"result":{}}}]`)
			end = line{What: wasOK, ID: id}
		}
		flood(id, "a2a-2", end)
	}
	flood("greedy0-long", "", line{What: wasFail, Code: "payload_too_large"})
	flood("greedy0-dumb", "a2a-2", line{What: wasInfo, Code: "no responders"})
	f.said = []*op{
		{line: line{Op: "answer", Text: "link"}, end: line{What: wasOK, Code: "200"}}, {line: line{Op: "replay", Text: "link"}, end: line{What: wasFail, Code: "409"}},
	}
	f.notes = [][]rig.Entry{{
		{What: rig.WasSent, Task: "s", Agent: "a", Attempt: 1, Status: "error"},
		{What: rig.WasLetter, Task: "l", From: "pen0", Agent: "a", Attempt: 1, At: at(2)},
	}}
	return f
}

// legs changes what the connections of the stream were told.
func legs(f *findings, change func(legs []leg) []leg) {
	var list []leg
	if err := json.Unmarshal(f.ops[0].end.Body, &list); err != nil {
		panic(err)
	}
	f.ops[0].end.Body = (&listener{legs: change(list)}).told()
}

func judgeTraffic(f *findings) {
	f.checkStreams()
	f.checkLimits()
	f.checkReplays()
}

// burst is the nth dispatch of the bursts.
func burst(f *findings, n int) *op { return f.ops[7+n] }

// plantedInTraffic are what should be found of streams, limits and copies.
func plantedInTraffic() []planting {
	return []planting{
		{"a gap where a stream is taken up", "connection 3", func(f *findings) {
			legs(f, func(l []leg) []leg { l[2].Told = []string{"4 submitted"}; return l[:3] })
		}},
		{"a repeat where a stream is taken up", "the records say", func(f *findings) {
			legs(f, func(l []leg) []leg { l[2].Told = []string{"2 working", "3 artifact"}; return l })
		}},
		{"a gap in a connection", "the records say", func(f *findings) {
			legs(f, func(l []leg) []leg { l[0].Told = []string{"1 submitted", "3 artifact"}; return l[:1] })
		}},
		{"half an outcome", "the records say", func(f *findings) {
			legs(f, func(l []leg) []leg { l[4].Told = l[4].Told[:1]; return l })
		}},
		{"another state", "the records say", func(f *findings) {
			legs(f, func(l []leg) []leg { l[0].Told[1] = "2 submitted"; return l })
		}},
		{"a picture of no record", "which no record says", func(f *findings) {
			legs(f, func(l []leg) []leg { l[3].Told[0] = "4 working"; return l })
		}},
		{"a stream of nonsense", "22 streams: s: what it told cannot be read", func(f *findings) { f.ops[0].end.Body = []byte("{") }},
		{"an end too early", "did not tell", func(f *findings) {
			f.records["s"] = append(f.records["s"], rig.Record{Seq: 9, Kind: "outcome", State: "done"})
		}},
		{"more after the end", "and more after it", func(f *findings) {
			legs(f, func(l []leg) []leg { l[5].Told = append(l[5].Told, "9 working"); return l })
		}},
		{"another end", "the stream ended with failed", func(f *findings) { f.ops[0].end.State = "failed" }},
		{"a stream that begins late", "the records say", func(f *findings) {
			f.ops[1].end.Body = (&listener{legs: []leg{{Told: []string{"2 working"}}}}).told()
		}},
		{"refused and stored", "it was refused (rate_limited), and is stored", func(f *findings) {
			f.records[burst(f, floodMost).ID] = f.records["h"]
		}},
		{"refused for nothing", "it was refused as not_found", func(f *findings) { burst(f, floodMost).end.Code = "not_found" }},
		{"no limit at all", "none was refused", func(f *findings) {
			for i := range floodsMany + 2 {
				burst(f, i).end = line{What: wasOK}
			}
		}},
		{"too many at once", "tasks of session a2a-2 are under way", func(f *findings) {
			burst(f, floodMost).end = line{What: wasOK}
			f.records[burst(f, floodMost).ID] = f.records[burst(f, 0).ID]
		}},
		{"too long, and taken", "it is longer than a record may be", func(f *findings) { burst(f, floodsMany+1).end = line{What: wasOK} }},
		{"silence", "nobody answered it", func(f *findings) {
			burst(f, floodsMany+2).end.Code = "context deadline exceeded"
		}},
		{"a copy is another task", "is task t", func(f *findings) { f.ops[3].end.ID = "t" }},
		{"a message is two tasks", "are of the message m", func(f *findings) { f.records["u"] = f.records["s"] }},
		{"a copy of a message is another task", "is task t", func(f *findings) { f.ops[1].end.ID, f.ops[1].end.Body = "t", nil }},
		{"a copy is another version", "was acknowledged as version 4", func(f *findings) { f.ops[5].end.Version = 4 }},
		{"a link for two answers", "was taken once more", func(f *findings) { f.said[1].end.Code = "200" }},
		{"tried again twice", "as seq 2 is", func(f *findings) { f.records["h"][2].Facts.Human.AnswerID = "alert-1-z" }},
		{"a piece twice", "publishes what seq 3 has published", func(f *findings) { f.records["s"][6].Attempt = 1 }},
		{"an attempt ends twice", "attempt 1 ended twice", func(f *findings) {
			last := &f.records["s"][7].Facts
			last.Attempts = append(last.Attempts, last.Attempts[0])
		}},
		{"the word of another attempt", "who has not said that of it", func(f *findings) { f.notes[0][0].Attempt = 2 }},
		{"a letter twice", "has dealt with it again", func(f *findings) {
			f.notes[0] = append(f.notes[0], rig.Entry{What: rig.WasLetter, Task: "l", From: "pen0", Agent: "a", Attempt: 2, At: at(4)})
		}},
	}
}

// TestCheckerExcusesTraffic: nobody is accused of silence while something is
// wrong, nor of a letter that is delivered again then, nor of a burst of which
// some began after they counted no longer.
func TestCheckerExcusesTraffic(t *testing.T) {
	t.Parallel()
	f := traffic()
	f.faults = []*op{{line: line{Op: killWorker}, from: at(2), to: at(3)}}
	f.ops[len(f.ops)-1].end.Code = "context deadline exceeded"
	f.notes[0] = append(f.notes[0], rig.Entry{What: rig.WasLetter, Task: "l", From: "pen0", Agent: "b", Attempt: 2, At: at(4)})
	late := *f.ops[7]
	late.ID = "greedy0-late"
	f.ops = append(f.ops, &late)
	f.records[late.ID] = []rig.Record{{Seq: 1, Kind: "queued", State: "queued", Stored: morning.Add(time.Minute)}, {Seq: 2, Kind: "outcome", State: "done", Stored: morning.Add(2 * time.Minute)}}
	f.checkLimits()
	f.checkReplays()
	if len(f.found) > 0 {
		t.Errorf("in good evidence: %v", f.found)
	}
}
