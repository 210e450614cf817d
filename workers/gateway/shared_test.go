package gateway

import (
	"errors"
	"testing"
	"time"
)

// TestShared: callers share an answer while it is young, and a failure when they
// came while it was waited for; those who come later ask again.
func TestShared(t *testing.T) {
	t.Parallel()
	var s shared[int]
	away := errors.New("nobody answers")
	waits, answer := make(chan bool), make(chan bool)
	asked := 0
	silent := func() (int, error) {
		asked++
		waits <- true
		<-answer
		return 0, away
	}
	failed := make(chan error, 100)
	go func() {
		_, err := s.get(time.Now(), time.Second, silent)
		failed <- err
	}()
	<-waits
	came := time.Now()
	for range cap(failed) - 1 {
		go func() {
			_, err := s.get(came, time.Second, silent)
			failed <- err
		}()
	}
	close(answer)
	for range cap(failed) {
		if err := <-failed; !errors.Is(err, away) {
			t.Errorf("get = %v, want %v", err, away)
		}
	}
	if asked != 1 {
		t.Errorf("%d asked, want one for all", asked)
	}
	for i, want := range []int{1, 1, 2} {
		age := time.Hour
		if i == 2 {
			age = 0
		}
		got, err := s.get(time.Now(), age, func() (int, error) { return want, nil })
		if got != want || err != nil {
			t.Errorf("get = %d, %v, want %d", got, err, want)
		}
	}
}
