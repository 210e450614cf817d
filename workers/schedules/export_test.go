package schedules

import "time"

// Beat has a worker that is alone say the more seldom that it lives: days pass
// in a test.
func (w *Worker) Beat(every time.Duration) { w.every = every }
