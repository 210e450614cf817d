package webhooks

// GuestsOf is what the guide tells.
var GuestsOf = guestsOf
