package remote

import (
	"encoding/json"
	"slices"

	gojson "github.com/go-json-experiment/json"

	"parley/subjects"
	"parley/subjects/fleet"
	"parley/workers/agent"
)

// nextRoute is where a task has been once it has gone on to address, or why it
// must not go there. It decides purely.
func nextRoute(d *fleet.Dispatch, address string) (fleet.Route, error) {
	var r fleet.Route
	if d.Input != nil && len(d.Input.Metadata) > 0 {
		var m map[string]json.RawMessage
		if gojson.Unmarshal(d.Input.Metadata, &m) == nil && len(m[fleet.RouteURI]) > 0 && gojson.Unmarshal(m[fleet.RouteURI], &r) != nil {
			return r, &agent.Fail{Code: subjects.CodeInvalidMessage, Message: "the metadata under " + fleet.RouteURI + " is no route"}
		}
	}
	switch {
	case slices.Contains(r.Via, address):
		return r, &agent.Fail{Code: subjects.CodeCycle, Message: "the task has been at " + address + " before: it would go in circles"}
	case len(r.Via) >= fleet.MaxRoute:
		return r, &agent.Fail{Code: subjects.CodeHopLimit, Message: "the task has gone through too many fleets and agents already"}
	}
	r.Via = append(slices.Clone(r.Via), address)
	return r, nil
}
