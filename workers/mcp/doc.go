// Package mcp lets a model use the fleet: an MCP server whose tools find
// agents, dispatch tasks, wait for them, read what came out, and talk to agents
// while they work. It speaks over stdin and stdout to one caller, or over
// streamable HTTP to many.
//
// # Promises
//
// The server keeps nothing: every call is a call of the fleet's API in the
// caller's name, so any process can answer any call, and a server that is
// started again has lost nothing. A task whose id a model was told is the
// fleet's, with all that the fleet promises. No call takes longer than 60
// seconds, since clients give up on longer ones: fleet_wait answers done=false
// after 50 at most, and is called again.
//
// Every refusal says which argument was wrong and what to do; it is an answer
// of the tool, which the model reads, and never an error of the protocol.
// Answers are bounded, so that they fit into a model's context: long results
// come in pages.
//
// # Safety
//
// What agents have written reaches the model as data of the answer. Who calls
// is the door's to say (see Page); a caller sees their own tasks, and an
// operator all of them. Answering what waits for a human is a tool only where
// it is enabled, and refused to callers who are no operators.
package mcp
