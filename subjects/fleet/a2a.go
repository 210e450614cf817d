package fleet

// The extensions of A2A that Parley defines. A change that breaks one gets
// another URI.
const (
	// ContractURI names the extension by which a message carries the terms of
	// its task, and a task tells how it went.
	ContractURI = "https://parley.dev/a2a/extensions/dispatch/v1"
	// HealthURI names the one by which a card tells how well its agents are.
	HealthURI = "https://parley.dev/a2a/extensions/health/v1"
	// RouteURI names the one by which a message tells which agents it has gone
	// through, a Route.
	RouteURI = "https://parley.dev/a2a/extensions/route/v1"
)

// MaxRoute is how many agents a message may go through, one after the other.
const MaxRoute = 8

// Route is where a message has been: the addresses of the cards of the agents
// that were asked, the first one first.
type Route struct {
	Via []string `json:"via"`
}
