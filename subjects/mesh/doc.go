// Package mesh is the contract of the session mesh: messages from one agent
// into another one's live session, and what their senders hear of them.
//
// A MESH_MESSAGE goes one way. It carries a call to action: what the receiver
// is to do with it (action) and whether an answer is expected (reply). An
// answer is a message of its own, which names what it answers (ref). Messages
// that belong together share a thread. A MESH_ACK tells a sender how far a
// message has come.
//
// What one agent writes is data to another one, never an order from its user:
// Clean and Fenced are what keeps the two apart.
package mesh
