package subjects

import (
	"slices"
	"strings"
)

// Streams, buckets and object stores of a fleet.
const (
	StreamTasks       = "FLEET_TASKS"       // the records of every task: the truth
	StreamAnnounce    = "FLEET_ANNOUNCE"    // the last announce of every instance
	StreamInbox       = "FLEET_INBOX"       // the raw door, until a dispatch is a record
	StreamEscalations = "FLEET_ESCALATIONS" // every escalation, and what became of alerts
	StreamProgress    = "FLEET_PROGRESS"    // the latest lines of progress of each task
	StreamDLQ         = "FLEET_DLQ"         // what nobody could handle, with the reason
	StreamWebhooks    = "FLEET_WEBHOOKS"    // the outbox: deliveries, and what became of them

	StreamRuns      = "FLEET_RUNS"       // records and results of runs
	StreamMesh      = "FLEET_MESH"       // messages between agents
	StreamMeshState = "FLEET_MESH_STATE" // how far each of them has come

	BucketIdem   = "FLEET_IDEM"   // idempotency keys
	BucketAgents = "FLEET_AGENTS" // operators' drains, routers' cool-downs
	BucketPush   = "FLEET_PUSH"   // push notification configs of A2A clients
	BucketAlerts = "FLEET_ALERTS" // what waits for a human, and who was told
	BucketLedger = "FLEET_LEDGER" // tokens spent, by session or run, task and attempt

	ObjectsIndex = "FLEET_INDEX" // checkpoints of the routers' index
)

// Headers of messages, beside Nats-Msg-Id.
const (
	// HeaderTraceparent is the W3C trace context: on a dispatch or a run that is
	// started its caller's, on what the fleet sends the span that sends it.
	HeaderTraceparent = "traceparent"

	HeaderKind      = "Fleet-Kind"      // what a record says, see fleet.Event
	HeaderLevel     = "Fleet-Level"     // of escalation, on a record that is one; 0: a wait for a human is over
	HeaderWriteID   = "Fleet-Write-Id"  // tells one's own write from another's
	HeaderAgent     = "Fleet-Agent"     // who sends, for readers; the subject proves it
	HeaderSession   = "Fleet-Session"   // the session it belongs to
	HeaderTask      = "Fleet-Task"      // the task whose result it brings
	HeaderTimestamp = "Fleet-Timestamp" // when it was signed
	HeaderSignature = "Fleet-Signature" // see package subjects/identity
	HeaderWriter    = "Fleet-Writer"    // the worker that wrote a record
)

// Entry is one subject of the catalogue: who writes what to whom. Writer and
// Readers are words joined by ", ": agent, orchestrator and operator are roles
// (see Permissions), any other word is a worker of the fleet.
type Entry struct {
	Pattern     string // <name> stands for one token
	Message     string
	Writer      string
	Readers     string
	Kept        string // how long, "" not at all
	Stream      string // where, "" nowhere
	Description string
}

// Catalogue returns every subject of the fleet, in the order of the protocol.
// Documentation and permissions are generated from it.
func Catalogue() []Entry {
	return append(append([]Entry{
		{
			Pattern: "fleet.announce.<agent>.<instance>", Message: "SESSION_ANNOUNCE",
			Writer: "agent", Readers: "router, registry, operator",
			Kept: "last per instance, 30 days", Stream: StreamAnnounce,
			Description: "What an instance can do and how well it is; repeated hourly and on every change.",
		},
		{
			Pattern: "fleet.heartbeat.<agent>.<instance>", Message: "HEARTBEAT",
			Writer: "agent", Readers: "router, registry, operator",
			Description: "An instance lives, and which tasks it holds. Renews its leases.",
		},
		{
			Pattern: "fleet.heartbeat.router.<instance>", Message: "RouterHeartbeat",
			Writer: "router", Readers: "router",
			Description: "A router lives, so it owns its share of the waiting tasks.",
		},
		{
			Pattern: "fleet.worker.mesh.<instance>", Message: "RouterHeartbeat",
			Writer: "mesh", Readers: "mesh",
			Description: "A mesh worker lives, so it owns its share of the inboxes.",
		},
		{
			Pattern: "fleet.agent.<agent>.<instance>", Message: "AGENT_EVENT",
			Writer: "registry", Readers: "orchestrator, operator",
			Description: "An instance went live, was lost, stopped, drains or was resumed.",
		},
	}, apiEntries()...), slices.Concat(taskEntries(), a2aEntries(), meshEntries(), runEntries(), webhookEntries(), sessionEntries(), scheduleEntries(), auditEntries(), identityEntries(), a2eEntries())...)
}

// apiEntries are the endpoints of the micro service "fleet".
func apiEntries() []Entry {
	var list []Entry
	for _, e := range []struct{ noun, verb, message, writer, reader, description string }{
		{"task", "dispatch", "TASK_DISPATCH → Dispatched", "orchestrator", "router", "Accept a task: answers with its id, or with every validation error."},
		{"task", "get", "TaskRef → TaskView", "orchestrator", "router", "A task as its latest record tells it."},
		{"task", "wait", "TaskWait → TaskView", "orchestrator", "router", "A task once it has ended, or when the time is over."},
		{"task", "list", "TaskList → TaskListReply", "orchestrator", "router", "The tasks that live and those that ended lately."},
		{"task", "events", "TaskEvents → TaskEventsReply", "orchestrator", "router", "The records of a task, from a sequence on."},
		{"task", "cancel", "TaskCancel → TaskView", "orchestrator", "router", "End a task."},
		{"task", "answer", "TaskAnswer → TaskView", "orchestrator", "router", "Answer the open question of a task."},
		{"task", "message", "TaskMessage → TaskView", "orchestrator", "router", "Add a follow-up to a task that is under way."},
		{"task", "resume", "TaskResume → TaskView", "operator, escalation", "router", "Answer a task that waits for a human."},
		{"task", "explain", "TaskRef → TaskExplanation", "orchestrator", "router", "Why each agent was or was not chosen."},
		{"task", "logs", "TaskLogs → TaskLogsReply", "orchestrator", "registry", "What the agents of a task have told while they worked, as far as it is kept."},
		{"escalation", "list", "EscalationList → EscalationListReply", "operator", "escalation", "What waits for a human, as much as a reply has room for, and the silences: next, if there is one, is the after of the request for more."},
		{"escalation", "get", "EscalationRef → Alert", "operator", "escalation", "One alert, or that of a task."},
		{"escalation", "status", "EscalationStatus → EscalationStatusReply", "operator", "escalation", "Whether humans can be told."},
		{"escalation", "ack", "EscalationRef → Alert", "operator", "escalation", "Somebody sees to it: nobody else is called for now."},
		{"escalation", "retry", "EscalationAnswer → EscalationAnswered", "operator", "escalation", "Try the tasks of an alert, or one task, once more."},
		{"escalation", "reassign", "EscalationAnswer → EscalationAnswered", "operator", "escalation", "Give them to an agent."},
		{"escalation", "answer", "EscalationAnswer → EscalationAnswered", "operator", "escalation", "Try them once more, and tell the next agent something."},
		{"escalation", "complete", "EscalationAnswer → EscalationAnswered", "operator", "escalation", "Hand in their result."},
		{"escalation", "cancel", "EscalationAnswer → EscalationAnswered", "operator", "escalation", "End them."},
		{"escalation", "silence", "Silence → Silence", "operator", "escalation", "Call nobody about some alerts for a while."},
		{"agent", "list", "AgentList → AgentListReply", "orchestrator", "registry", "The instances of the fleet, as many as a reply has room for: next, if there is one, is the after of the request for more."},
		{"agent", "drain", "AgentDrain → AgentListReply", "operator", "router", "Offer an agent nothing more."},
		{"agent", "resume", "AgentDrain → AgentListReply", "operator", "router", "Offer an agent tasks again."},
		{"agent", "limits", "AgentLimits → AgentLimitsReply", "orchestrator", "router", "The accounts that are limited, and until when."},
		{"agent", "lift", "AgentLimits → AgentLimitsReply", "operator", "router", "End the limits of an account."},
		{"task", "waiting", "– → TaskWaitingReply", "operator, escalation", "router", "Why tasks wait, cause by cause."},
		{"agent", "forget", "AgentForget → AgentForgotten", "operator", "registry", "An agent is gone for good: it is listed no more, and nothing waits for it."},
		{"webhook", "list", "WebhookList → WebhookListReply", "operator", "webhooks", "Deliveries that wait, that ended lately, and dead letters."},
		{"webhook", "get", "WebhookRef → WebhookView", "operator", "webhooks", "One delivery, with what is to be sent."},
		{"webhook", "replay", "WebhookReplay → WebhookReplayReply", "operator", "webhooks", "Send dead letters again, or what waits now."},
		{"webhook", "drop", "WebhookRef → WebhookView", "operator", "webhooks", "Give a delivery up."},
		{"webhook", "status", "WebhookStatus → WebhookStatusReply", "operator", "webhooks", "How the endpoints are, and the figures of the worker that answers."},
		{"run", "start", "TASK_DEFINITION → Started", "orchestrator", "runs", "Start a run: answers with its id, or with everything that is wrong with it."},
		{"run", "get", "Ref → RUN_RECORD", "orchestrator", "runs", "How far a run has come."},
		{"run", "list", "– → List", "orchestrator", "runs", "The runs that live and those that ended lately."},
		{"run", "output", "Ref → Output", "orchestrator", "runs", "The document of a run that has ended."},
		{"run", "part", "PartRef → Part", "orchestrator", "runs", "A part of it, of any size: the same bytes each time."},
		{"run", "cancel", "Ref → RUN_RECORD", "orchestrator", "runs", "End a run, and its tasks."},
		{"run", "pause", "Ref → RUN_RECORD", "orchestrator", "runs", "Begin nothing more; what is under way goes on."},
		{"run", "resume", "Ref → RUN_RECORD", "orchestrator", "runs", "Go on with a paused run."},
		{"run", "retry", "Ref → RUN_RECORD", "orchestrator", "runs", "Run what has not succeeded again."},
		{"mesh", "send", "MESH_MESSAGE → Sent", "orchestrator", "mesh", "Send a message to an agent: answers with its id, or with what is wrong with it."},
		{"mesh", "get", "Ref → View", "orchestrator", "mesh", "A message and how far it has come."},
		{"mesh", "inbox", "Inbox → List", "orchestrator", "mesh", "The messages to the caller, which may take them."},
		{"mesh", "thread", "Thread → List", "orchestrator", "mesh", "The messages of a thread that the caller has part in."},
		{"mesh", "wait", "Wait → Answers", "orchestrator", "mesh", "The answers to messages of the caller, waiting for them."},
		{"mesh", "done", "Done → MESH_ACK", "agent", "mesh", "An instance has dealt with a message, or gives it back."},
	} {
		list = append(list, Entry{
			Pattern: "fleet.api." + self(e.writer) + "." + e.noun + "." + e.verb, Message: e.message,
			Writer: e.writer, Readers: e.reader, Description: e.description,
		})
	}
	return list
}

// self is the token at which a caller in that role stands for itself.
func self(role string) string {
	if role == RoleAgent {
		return "<agent>"
	}
	return "<from>"
}

// runEntries are the subjects on which runs live.
func runEntries() []Entry {
	return []Entry{
		{
			Pattern: "fleet.worker.runs.<instance>", Message: "RouterHeartbeat",
			Writer: "runs", Readers: "runs",
			Description: "A runs worker lives, so it owns its share of the runs.",
		},
		{
			Pattern: "fleet.run.<run>", Message: "RUN_RECORD",
			Writer: "runs", Readers: "runs, audit",
			Kept: "until 7 days after its end", Stream: StreamRuns,
			Description: "How far a run has come: the truth about it, written by compare-and-set.",
		},
		{
			Pattern: "fleet.runevent.<run>", Message: "RUN_RECORD or RUN_OUTPUT",
			Writer: "stream, runs", Readers: "operator, dashboard",
			Description: "Each record once it is stored, then the document (Fleet-Kind output) if a message holds it. Best effort: run get and run output have both.",
		},
		{
			Pattern: "fleet.runresult.<run>.<task>", Message: "TASK_RESULT or Chunk",
			Writer: "runs", Readers: "runs",
			Kept: "40 days", Stream: StreamRuns,
			Description: "What a task of a run has come to; of a fan-out, chunk by chunk, what its items have.",
		},
	}
}

// meshEntries are the subjects on which agents talk to each other.
func meshEntries() []Entry {
	return []Entry{
		{
			Pattern: "fleet.mesh.<to>.<from>", Message: "MESH_MESSAGE",
			Writer: "orchestrator", Readers: "mesh, operator",
			Kept: "until 24 h after its end", Stream: StreamMesh,
			Description: "A message to an agent: acknowledged means that it will be delivered, or reported as expired.",
		},
		{
			Pattern: "fleet.inbox.<agent>.<instance>", Message: "MESH_MESSAGE → Delivery",
			Writer: "mesh", Readers: "agent",
			Description: "A request to take a message, to be answered within 2 s; mesh done tells what became of it.",
		},
		{
			Pattern: "fleet.meshstate.<from>.<message>", Message: "MESH_ACK",
			Writer: "mesh", Readers: "mesh, audit",
			Kept: "as long as the message", Stream: StreamMeshState,
			Description: "How far a message has come: the truth about it, written by compare-and-set.",
		},
		{
			Pattern: "fleet.meshack.<from>.<message>", Message: "MESH_ACK",
			Writer: "stream, mesh", Readers: "orchestrator, operator",
			Description: "The same, once it is stored, for the sender; that a loop was cut, for whoever began its thread as well. Best effort: mesh get has the last one.",
		},
	}
}

// taskEntries are the subjects on which tasks live.
func taskEntries() []Entry {
	return []Entry{
		{
			Pattern: "fleet.dispatch.<from>", Message: "TASK_DISPATCH or text",
			Writer: "orchestrator", Readers: "router",
			Kept: "until it is a record", Stream: StreamInbox,
			Description: "The raw door for the stock nats command line: acknowledged means that the task will have an outcome.",
		},
		{
			Pattern: "fleet.task.<task>", Message: "TASK_EVENT",
			Writer: "router", Readers: "router, escalation, gateway, audit",
			Kept: "until 24 h after its end", Stream: StreamTasks,
			Description: "The records of a task: the truth about it, written by compare-and-set.",
		},
		{
			Pattern: "fleet.event.<task>", Message: "TASK_EVENT",
			Writer: "stream", Readers: "operator, gateway, telemetry, dashboard",
			Description: "Each record once it is stored. Best effort: task events fills the gaps, and is how others than operators follow their tasks.",
		},
		{
			Pattern: "fleet.outcome.<from>.<task>", Message: "TASK_RESULT",
			Writer: "router", Readers: "orchestrator, operator",
			Description: "A copy of the final result for whoever listens; task get and task wait have the kept one.",
		},
		{
			Pattern: "fleet.offer.<agent>.<instance>", Message: "TASK_DISPATCH → HANDSHAKE_ACK or TASK_RESULT",
			Writer: "router", Readers: "agent",
			Description: "A request to take a task, to be answered within 2 s; by nobody who is older than the `epoch` that it names. One that is not answered comes again, for the same attempt, under another `offer_id`.",
		},
		{
			Pattern: "fleet.control.<agent>.<instance>", Message: "CONTROL → ControlReply",
			Writer: "router, registry", Readers: "agent",
			Description: "CANCEL, DRAIN, RESUME, INPUT or EPOCH, repeated until it is answered; REFUSED, once, where the announce does not count. A CANCEL with an `offer_id` ends only what was accepted by that offer, and by no later one.",
		},
		{
			Pattern: "fleet.progress.<agent>.<task>", Message: "TASK_PROGRESS → ResultReply",
			Writer: "agent", Readers: "router, operator, gateway",
			Kept:        "artifacts and questions, as records",
			Description: "How a task goes on; a question or an artifact is a request, repeated until it is answered; an artifact that is only published is refused.",
		},
		{
			Pattern: "fleet.tasklog.<task>", Message: "ProgressChunk",
			Writer: "registry", Readers: "registry",
			Kept: "24 h, at least the last 200 lines of a task", Stream: StreamProgress,
			Description: "Lines of progress, several at a time. Best effort: where there are too many, the oldest that are not stored yet are left out.",
		},
		{
			Pattern: "fleet.result.<agent>.<task>", Message: "TASK_RESULT or text → ResultReply",
			Writer: "agent", Readers: "router",
			Kept:        "as a record",
			Description: "How an attempt ended: a request, repeated until it is answered.",
		},
		{
			Pattern: "fleet.escalation.<level>.<task>", Message: "escalation",
			Writer: "escalation", Readers: "operator, escalation, audit",
			Kept: "30 days", Stream: StreamEscalations,
			Description: "A task was escalated: 1 the same agent tries again, 2 another one, 3 a human or the end. Message id task/seq.",
		},
		{
			Pattern: "fleet.alert.<alert>", Message: "ALERT_EVENT",
			Writer: "escalation", Readers: "operator, audit",
			Kept: "30 days", Stream: StreamEscalations,
			Description: "What became of an alert: who was called, who answered, and what was refused.",
		},
		{
			Pattern: "fleet.dlq.>", Message: "what it was",
			Writer: "bus", Readers: "operator",
			Kept: "7 days", Stream: StreamDLQ,
			Description: "What nobody could handle, under its old subject, with the reason in headers Fleet-Dead-*.",
		},
	}
}

// a2aEntries are the subjects of A2A over NATS.
func a2aEntries() []Entry {
	return []Entry{
		{
			Pattern: "fleet.a2a.<from>.<operation>", Message: "A2A request → frames",
			Writer: "orchestrator", Readers: "gateway",
			Description: "An operation of A2A 1.0, in ProtoJSON; see a2a-over-nats.md for the frames that answer it.",
		},
		{
			Pattern: "fleet.a2a.<from>.confirm.<replica>.<call>", Message: "–",
			Writer: "orchestrator", Readers: "gateway",
			Description: "The caller has read so far: it confirms an alive frame of a call.",
		},
	}
}

// webhookEntries are the subjects of the outbox.
func webhookEntries() []Entry {
	return []Entry{
		{
			Pattern: "fleet.webhook.<order>.<delivery>", Message: "WEBHOOK_DELIVERY",
			Writer: "escalation, gateway", Readers: "webhooks",
			Kept: "until it is delivered; 7 days once it is dead", Stream: StreamWebhooks,
			Description: "A POST that is to reach a webhook, stored with its delivery id as message id.",
		},
		{
			Pattern: "fleet.webhookevent.<delivery>", Message: "WEBHOOK_STATE",
			Writer: "webhooks", Readers: "webhooks, escalation, gateway, audit",
			Kept: "last per delivery, until 24 h after it was delivered, 7 days after it died", Stream: StreamWebhooks,
			Description: "What became of a delivery so far, written by compare-and-set.",
		},
	}
}

// Named is a subject of e: id stands where the writer names itself, and a token
// everywhere else.
func Named(e Entry, id AgentID) string {
	tokens := strings.Split(e.Pattern, ".")
	me := "<from>"
	if !slices.Contains(tokens, me) {
		me = "<agent>"
	}
	for i, t := range tokens {
		switch {
		case t == me:
			tokens[i] = string(id)
		case t == ">":
			tokens[i] = "x.x"
		case strings.HasPrefix(t, "<"):
			tokens[i] = "x"
		}
	}
	return strings.Join(tokens, ".")
}

// WrittenByClients reports whether agents, orchestrators or operators write e.
func WrittenByClients(e Entry) bool { return anyClient(e.Writer) }

// ReadByWorkers reports whether workers of the fleet read e.
func ReadByWorkers(e Entry) bool { return anyWorker(e.Readers) }
