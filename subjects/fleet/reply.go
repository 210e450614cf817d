package fleet

import "parley/subjects"

// ResultReply is the reply to a result, a question or an artifact that counted.
// One that did not gets an ErrorReply: late_result and the like are final,
// unavailable means repeat.
type ResultReply struct {
	OK     bool            `json:"ok"`
	TaskID subjects.TaskID `json:"task_id"`
	State  State           `json:"state"`
	Seq    uint64          `json:"seq"`
}

// RouterHeartbeat says that a router lives. It is not kept.
type RouterHeartbeat struct {
	Epoch   int64   `json:"epoch"`            // its start, ns
	Hello   bool    `json:"hello,omitzero"`   // it has just come: answer at once
	Leaving bool    `json:"leaving,omitzero"` // it goes: its classes are free
	Unknown Unknown `json:",unknown"`
}
