package router

import "time"

// now0 is when pure tests take place.
var now0 = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
