package webhooks

// What the guide tells.
var (
	GuestsOf   = guestsOf
	KeepMost   = keepMost
	KeepDeadOf = keepDeadOf
	TightAt    = tightAt
	FullAt     = fullAt

	KeepBriefly = keepBriefly
)
