package e2e_test

import (
	"encoding/json"
	"time"
)

// script is what a task's brief tells its agents: what to do in the first
// attempt, in the second, and so on; the last step holds for all that follow.
type script struct {
	Steps []step `json:"steps"`
}

// step is what an agent does in one attempt, after MS milliseconds.
type step struct {
	Do string `json:"do"`
	MS int    `json:"ms,omitempty"`
}

// What a step can do.
const (
	doDone     = "done"     // end well
	doPartial  = "partial"  // end well, with something left
	doError    = "error"    // fail, worth another try
	doFatal    = "fatal"    // fail for good
	doBlocked  = "blocked"  // cannot
	doLimited  = "limited"  // rate_limited for a moment
	doReturned = "returned" // hand the task back, unfailed
	doSilent   = "silent"   // say nothing until the attempt's time is over
	doArtifact = "artifact" // publish a piece of output, then end well
	doAsk      = "ask"      // ask a question, then end well
)

// play is the brief of a script.
func play(steps ...step) string {
	data, err := json.Marshal(script{steps})
	if err != nil {
		panic(err)
	}
	return string(data)
}

// at is the step of an attempt; a brief that is no script is done at once.
func stepAt(brief string, attempt int) step {
	var s script
	if json.Unmarshal([]byte(brief), &s) != nil || len(s.Steps) == 0 {
		return step{Do: doDone}
	}
	return s.Steps[min(max(attempt, 1), len(s.Steps))-1]
}

func (s step) delay() time.Duration { return time.Duration(s.MS) * time.Millisecond }
