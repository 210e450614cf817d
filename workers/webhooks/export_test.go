package webhooks

// What the guide tells.
var (
	GuestsOf = guestsOf
	KeepMost = keepMost
)
