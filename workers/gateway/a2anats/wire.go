package a2anats

import (
	"strings"

	"parley/bus"
	"parley/subjects"
)

// Binding is the binding's name in agent cards. A change that breaks it gets
// another one.
const Binding = "https://parley.dev/a2a/bindings/nats/v1"

// Root is the root of the subjects on which a fleet serves the binding.
const Root = "fleet.a2a"

// CardOperation gives a client that has no HTTP the public agent card: its
// request may name a tenant. It is beside the operations of A2A.
const CardOperation = "GetAgentCard"

// Headers of requests and frames, beside the service parameters.
const (
	HeaderVersion    = "A2A-Version"
	HeaderExtensions = "A2A-Extensions"
	HeaderIdempotent = "Idempotency-Key"
	HeaderLastEvent  = "Last-Event-ID"
	HeaderTrace      = "traceparent" // W3C Trace Context

	HeaderFrame     = "A2A-Frame"    // what a frame is
	HeaderEvent     = "A2A-Event-ID" // of an event; Last-Event-ID resumes behind it
	HeaderErrorCode = "Nats-Service-Error-Code"
	HeaderError     = "Nats-Service-Error"
)

// Frames.
const (
	FrameResponse = "response" // the answer of a unary operation, its only frame beside alive
	FrameEvent    = "event"    // one event of a stream
	FrameEnd      = "end"      // the stream has ended as it should
	FrameError    = "error"    // the call has failed; nothing follows
	FrameAlive    = "alive"    // the call is under way: confirm it
)

// Window is how many events follow each other without an alive that is
// confirmed.
const Window = 32

// Subject is where from asks for an operation.
func Subject(root string, from subjects.AgentID, operation string) string {
	return root + "." + string(from) + "." + operation
}

// Confirm is where from confirms the alive frames of a call at a replica; stars
// stand for everybody and every call.
func Confirm(root, from, replica, call string) string {
	return strings.Join([]string{root, from, "confirm", replica, call}, ".")
}

// Params are the headers of a message: their names are of any case.
type Params bus.Header

// Values are the values of the parameter of a name.
func (p Params) Values(name string) []string {
	if v, ok := p[name]; ok {
		return v
	}
	for k, v := range p {
		if strings.EqualFold(k, name) {
			return v
		}
	}
	return nil
}
