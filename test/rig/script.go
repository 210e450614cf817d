package rig

import (
	"context"
	"encoding/json"
	"os"
	"time"
)

// Script is what a task's brief tells its agents: what to do in the first
// attempt, in the second, and so on; the last step holds for all that follow.
type Script struct {
	Steps []Step `json:"steps"`
	Word  string `json:"word,omitempty"` // says nothing to its agents
}

// Step is what an agent does in one attempt, after MS milliseconds, and once there is
// a file Once.
type Step struct {
	Do   string `json:"do"`
	MS   int    `json:"ms,omitempty"`
	Once string `json:"once,omitempty"`
	N    int    `json:"n,omitempty"` // pieces that DoArtifact publishes, MS apart; 0 is one, and of DoCrash none
}

// What a step can do.
const (
	DoDone     = "done"     // end well
	DoPartial  = "partial"  // end well, with something left
	DoError    = "error"    // fail, worth another try
	DoFatal    = "fatal"    // fail for good
	DoBlocked  = "blocked"  // cannot
	DoLimited  = "limited"  // rate_limited for a moment
	DoReturned = "returned" // hand the task back, unfailed
	DoSilent   = "silent"   // say nothing until the attempt's time is over
	DoArtifact = "artifact" // publish pieces of output, then end well
	DoAsk      = "ask"      // ask a question, then end well
	DoCrash    = "crash"    // publish pieces of output, if it says how many, then take the whole process down
)

// Play is the brief of a script.
func Play(steps ...Step) string {
	return Script{Steps: steps}.brief()
}

func (s Script) brief() string {
	data, err := json.Marshal(s)
	if err != nil {
		panic(err)
	}
	return string(data)
}

// Mark puts a word into a brief.
func Mark(brief, word string) string {
	var s Script
	if json.Unmarshal([]byte(brief), &s) != nil {
		return brief + " " + word
	}
	s.Word = word
	return s.brief()
}

// StepAt is the step of an attempt; a brief that is no script is done at once.
func StepAt(brief string, attempt int) Step {
	var s Script
	if json.Unmarshal([]byte(brief), &s) != nil || len(s.Steps) == 0 {
		return Step{Do: DoDone}
	}
	return s.Steps[min(max(attempt, 1), len(s.Steps))-1]
}

func (s Step) delay() time.Duration { return time.Duration(s.MS) * time.Millisecond }

// wait waits until the step is to be done.
func (s Step) wait(ctx context.Context) error {
	if err := Pause(ctx, s.delay()); err != nil || s.Once == "" {
		return err
	}
	for {
		if _, err := os.Stat(s.Once); err == nil {
			return nil
		}
		if err := Pause(ctx, 10*time.Millisecond); err != nil {
			return err
		}
	}
}
