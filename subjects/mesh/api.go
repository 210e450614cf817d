package mesh

import (
	"parley/subjects"
	"parley/subjects/fleet"
)

// Requests and replies of the API, fleet.api.<from>.mesh.<verb>. Every reply
// may instead be an ErrorReply.

// Sent is the reply to mesh send (whose request is a Message).
type Sent struct {
	MessageID MessageID `json:"message_id"`
	ThreadID  ThreadID  `json:"thread_id"`
	State     State     `json:"state"`
	Duplicate bool      `json:"duplicate,omitzero"` // it was sent before
}

// Ref asks about a message: mesh get. The reply is a View.
type Ref struct {
	MessageID MessageID        `json:"message_id"`
	From      subjects.AgentID `json:"from,omitempty"` // absent: the caller's own
}

// View is a message and how far it has come.
type View struct {
	Message Message `json:"message"`
	Ack     Ack     `json:"ack"`
}

// Inbox asks for the messages to the caller: mesh inbox. The reply is a List.
type Inbox struct {
	All         bool    `json:"all,omitzero"`          // those that are processed too
	Take        bool    `json:"take,omitzero"`         // and they are processed now
	WaitSeconds float64 `json:"wait_seconds,omitzero"` // for the first to come, at most 60
	Limit       int     `json:"limit,omitzero"`        // absent 100, at most 1000
}

// Thread asks for the messages of a thread that the caller has part in: mesh
// thread. The reply is a List.
type Thread struct {
	ThreadID ThreadID `json:"thread_id"`
	Limit    int      `json:"limit,omitzero"` // the last ones; absent 100, at most 1000
}

// List lists messages in the order in which the bus accepted them.
type List struct {
	Messages []View `json:"messages"`
}

// Wait asks for the answers to messages of the caller, and takes them: mesh
// wait. It returns once Need of them have come to an end, or when the time is
// over.
type Wait struct {
	MessageIDs     []MessageID `json:"message_ids"`
	Need           int         `json:"need,omitzero"`            // answers wanted; absent: all
	TimeoutSeconds float64     `json:"timeout_seconds,omitzero"` // absent 4, at most 60
}

// Answers is the reply to mesh wait: one entry for each message asked for.
type Answers struct {
	Answers []Answer `json:"answers"`
	Done    bool     `json:"done,omitzero"` // enough of them, or no more will come
}

// Answer is what has become of a message that waits for an answer.
type Answer struct {
	MessageID MessageID        `json:"message_id"`
	To        subjects.AgentID `json:"to,omitempty"`
	State     State            `json:"state"`
	Reason    *fleet.Reason    `json:"reason,omitempty"`
	Reply     *Message         `json:"reply,omitempty"` // once it is answered
}

// Delivery is what an instance answers to a message handed to it.
type Delivery struct {
	OK    bool            `json:"ok"`
	Done  bool            `json:"done,omitzero"` // it is dealt with already
	Error *subjects.Error `json:"error,omitempty"`
}

// Done says that an instance has dealt with a message: mesh done. The reply is
// an Ack.
type Done struct {
	From        subjects.AgentID    `json:"from"` // of the message
	MessageID   MessageID           `json:"message_id"`
	Attempt     int                 `json:"attempt"`
	InstanceID  subjects.InstanceID `json:"instance_id"`
	Released    bool                `json:"released,omitzero"` // not dealt with: another instance is to have it
	ReplyID     MessageID           `json:"reply_id,omitempty"`
	TokensSpent int64               `json:"tokens_spent,omitzero"`
	Error       *fleet.Reason       `json:"error,omitempty"` // it could not be dealt with
}
