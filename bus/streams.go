package bus

import (
	"cmp"
	"slices"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"parley/subjects"
)

// consumerRouters is the inbox's durable consumer.
const consumerRouters = "routers"

// consumerEscalation sees to what is a human's.
const consumerEscalation = "escalation"

// anyWorker is the writer of what workers of every kind write.
const anyWorker = "workers"

// deadLetterPrefix is followed by the origin's stream and subject.
const deadLetterPrefix = "fleet.dlq."

// maxConsumers is explicit everywhere: a server of 2.15 or later counts to 1000
// where a stream says nothing, ordered consumers included.
const maxConsumers = 10_000

// progressChunks is how many chunks of progress are kept of a task: of one line each
// at least, and the last 200 lines are promised.
const progressChunks = 200

const day = 24 * time.Hour

// asset is a stream, or a bucket in the form of its stream, with its durable
// consumers.
type asset struct {
	stream    jetstream.StreamConfig
	keepSize  bool   // MaxBytes is for what is created
	taker     string // the kind of worker that looks after what others write, too, see Written
	consumers []jetstream.ConsumerConfig
}

// catalogue is the one table of everything that is stored.
func catalogue(p Provisioning, size sizes) []asset {
	return slices.Concat(taskAssets(p, size), sessionAssets(p, size), meshAssets(p, size), scheduleAssets(p, size))
}

// taskAssets are what tasks and agents are kept in.
func taskAssets(p Provisioning, size sizes) []asset {
	return []asset{
		{keepSize: p.MaxBytes == 0, stream: jetstream.StreamConfig{
			Name:        subjects.StreamTasks,
			Description: "Task records: the truth about every task; written by routers only, by compare-and-set",
			Subjects:    []string{subjects.TaskPattern},
			Discard:     jetstream.DiscardNew,
			MaxBytes:    size.tasks,
			Duplicates:  time.Second, // records carry no message ids

			AllowMsgTTL: true, AllowAtomicPublish: true,
			RePublish: &jetstream.RePublish{Source: subjects.TaskPattern, Destination: "fleet.event.{{wildcard(1)}}"},
			Metadata:  map[string]string{"writer": "router"},
		}},
		{keepSize: p.AnnounceMaxBytes == 0, taker: "router", stream: jetstream.StreamConfig{
			Name:              subjects.StreamAnnounce,
			Description:       "The last announcement of every agent instance",
			Subjects:          []string{subjects.AnnouncePattern},
			MaxMsgsPerSubject: 1,
			MaxAge:            30 * day, // as long as a task may wait for whoever announced
			MaxBytes:          size.announce,
			Metadata:          map[string]string{"writer": "agent"},
		}},
		{
			keepSize: p.InboxMaxBytes == 0, taker: "router",
			stream: jetstream.StreamConfig{
				Name:        subjects.StreamInbox,
				Description: "The raw door: dispatches until they have become a task record",
				Subjects:    []string{subjects.DispatchPattern},
				// No work queue: one that is empty when all copies lose power may have
				// no leader ever again (ADR 21, 22). Bus.DropDone clears it up.
				Discard:  jetstream.DiscardNew,
				MaxMsgs:  1_000_000,
				MaxBytes: size.inbox,
				Metadata: map[string]string{"writer": "orchestrator"},
			},
			consumers: []jetstream.ConsumerConfig{{
				Durable:     consumerRouters,
				Description: "Routers copy dispatches into task records",
				AckPolicy:   jetstream.AckExplicitPolicy,
				AckWait:     30 * time.Second,
				MaxDeliver:  -1, MaxAckPending: 10_000, MaxWaiting: 1024,
			}},
		},
		{keepSize: p.BucketMaxBytes == 0, stream: progress(size.bucket)},
		{keepSize: p.DeadLetterMaxBytes == 0, taker: "router", stream: jetstream.StreamConfig{
			Name:        subjects.StreamDLQ,
			Description: "Messages that nobody could handle, with the reason; replay or drop them with parley dlq",
			Subjects:    []string{deadLetterPrefix + ">"},
			MaxAge:      7 * day,
			MaxBytes:    size.deadLetters,
			Metadata:    map[string]string{"writer": anyWorker},
		}},
		{keepSize: p.WebhooksMaxBytes == 0, stream: tells(outbox(size.webhooks))},
		escalations(p, size),
		// Expired idempotency keys leave no marker: nobody watches them, and a
		// marker is one write more per key.
		{keepSize: p.BucketMaxBytes == 0, stream: bucket(subjects.BucketIdem, "router", "Idempotency keys, 24 h", jetstream.StreamConfig{
			MaxAge: day, AllowMsgTTL: true, MaxBytes: size.bucket,
		})},
		{keepSize: p.BucketMaxBytes == 0, stream: bucket(subjects.BucketPush, "gateway", "Push notification configs of A2A clients", jetstream.StreamConfig{
			AllowMsgTTL: true, SubjectDeleteMarkerTTL: 5 * time.Minute, MaxBytes: size.bucket,
		})},
		{keepSize: p.BucketMaxBytes == 0, stream: tells(bucket(subjects.BucketAgents, "router", "Operator drain and cool-down per agent", jetstream.StreamConfig{
			SubjectDeleteMarkerTTL: 5 * time.Minute, MaxBytes: size.bucket,
		}))},
		{keepSize: p.BucketMaxBytes == 0, stream: bucket(subjects.BucketLedger, "router", "Tokens spent, by session or run, task and attempt, 7 days", jetstream.StreamConfig{
			AllowMsgTTL: true, MaxBytes: size.bucket,
		})},
		{keepSize: p.BucketMaxBytes == 0, stream: tells(bucket(subjects.BucketAlerts, "escalation", "What waits for a human, who was told, silences", jetstream.StreamConfig{
			SubjectDeleteMarkerTTL: 5 * time.Minute, MaxBytes: size.bucket,
		}))},
		{keepSize: p.BucketMaxBytes == 0, stream: objects(subjects.ObjectsIndex, "router", "Checkpoints of the routers' index", size.bucket)},
	}
}

// sessionAssets are what sessions and the audit are kept in.
func sessionAssets(p Provisioning, size sizes) []asset {
	keep := p.BucketMaxBytes == 0
	return []asset{
		{keepSize: keep, stream: jetstream.StreamConfig{
			Name:        subjects.StreamContext,
			Description: "The context of every session, one message per version; purged when the session is gone",
			Subjects:    []string{subjects.ContextPattern},
			Discard:     jetstream.DiscardNew,
			MaxBytes:    size.bucket,
			Duplicates:  time.Second, // versions carry no message ids

			AllowAtomicPublish: true,
			RePublish:          &jetstream.RePublish{Source: subjects.ContextPattern, Destination: "fleet.contextnews.{{wildcard(1)}}", HeadersOnly: true},
			Metadata:           map[string]string{"writer": "sessions"},
		}},
		// The end of a session is told to whoever watches: a worker that was away
		// for less than a day still hears of it, and drops what it held.
		{keepSize: keep, stream: tells(bucket(subjects.BucketSessions, "sessions", "Session records, 24 h after their last renewal", jetstream.StreamConfig{
			MaxAge: day, AllowMsgTTL: true, SubjectDeleteMarkerTTL: day, MaxBytes: size.bucket,
		}))},
		{keepSize: keep, stream: bucket(subjects.BucketWorkers, anyWorker, "What workers remember together: keys", jetstream.StreamConfig{
			AllowMsgTTL: true, SubjectDeleteMarkerTTL: 5 * time.Minute, MaxBytes: size.bucket,
		})},
		// What is overwritten stays until a snapshot was taken of what came after it
		// (ADR 22), by a thousand processes, too. A few keys, so some megabytes.
		{stream: bucket(subjects.BucketScratch, anyWorker, "What workers write all the time, and can make anew: positions, the canary", jetstream.StreamConfig{
			MaxMsgsPerSubject: 50_000,
		})},
		{keepSize: keep, stream: tells(bucket(subjects.BucketIdentities, "callout", "Who may connect and sign, with sealed keys", jetstream.StreamConfig{
			SubjectDeleteMarkerTTL: 5 * time.Minute, MaxBytes: size.bucket,
		}))},
		// Twice the window in which a signature counts, and a little.
		{keepSize: keep, stream: bucket(subjects.BucketNonces, anyWorker, "Signatures that were used, until they count no longer", jetstream.StreamConfig{
			MaxAge: 11 * time.Minute, AllowMsgTTL: true, MaxBytes: size.bucket,
		})},
		{keepSize: keep, taker: "audit", stream: jetstream.StreamConfig{
			Name:        subjects.StreamLog,
			Description: "Log lines of workers, until the audit has taken them over",
			Subjects:    []string{subjects.LogPattern},
			MaxAge:      7 * day,
			MaxBytes:    size.bucket,
			Metadata:    map[string]string{"writer": anyWorker},
		}},
		{keepSize: p.AuditMaxBytes == 0, stream: jetstream.StreamConfig{
			Name:        subjects.StreamAudit,
			Description: "The audit: log lines in blocks that are chained by hash; read it with parley audit",
			Subjects:    []string{subjects.Audit},
			MaxAge:      cmp.Or(p.AuditMaxAge, 90*day),
			MaxBytes:    size.audit,
			Metadata:    map[string]string{"writer": "audit"},
		}},
		{keepSize: keep, stream: bucket(subjects.BucketA2E, "a2e", "Sessions of agents that use the fleet as their environment, 24 h", jetstream.StreamConfig{
			MaxAge: day, AllowMsgTTL: true, MaxBytes: size.bucket,
		})},
		{keepSize: keep, stream: objects(subjects.ObjectsOutputs, "sessions", "Large outputs of sessions, in parts", size.bucket)},
	}
}

// objects is the stream of an object store.
func objects(name, writer, description string, most int64) jetstream.StreamConfig {
	return jetstream.StreamConfig{
		Name:        "OBJ_" + name,
		Description: description,
		Subjects:    []string{"$O." + name + ".C.>", "$O." + name + ".M.>"},
		Discard:     jetstream.DiscardNew,
		AllowRollup: true,
		MaxBytes:    most,
		Metadata:    map[string]string{"writer": writer},
	}
}

// meshAssets are runs, and the messages between agents with their states.
func meshAssets(p Provisioning, size sizes) []asset {
	return []asset{
		{keepSize: p.RunsMaxBytes == 0, stream: tells(jetstream.StreamConfig{
			Name:              subjects.StreamRuns,
			Description:       "Records of runs, and the results of their tasks; written by runs workers only",
			Subjects:          []string{subjects.RunPattern, subjects.RunResultPattern},
			MaxMsgsPerSubject: 1,
			Discard:           jetstream.DiscardNew,
			MaxBytes:          size.runs,
			Duplicates:        time.Second, // records carry no message ids

			RePublish: &jetstream.RePublish{Source: subjects.RunPattern, Destination: "fleet.runevent.{{wildcard(1)}}"},
			Metadata:  map[string]string{"writer": "runs"},
		})},
		{keepSize: p.MeshMaxBytes == 0, taker: "mesh", stream: jetstream.StreamConfig{
			Name:        subjects.StreamMesh,
			Description: "Messages between agents; purged by mesh workers a day after their end",
			Subjects:    []string{subjects.MeshPattern},
			Discard:     jetstream.DiscardNew,
			MaxBytes:    size.mesh,
			Metadata:    map[string]string{"writer": "agent"},
		}},
		{stream: jetstream.StreamConfig{
			Name:              subjects.StreamMeshState,
			Description:       "How far each message between agents has come, one record each; written by mesh workers only, by compare-and-set",
			Subjects:          []string{subjects.MeshStatePattern},
			MaxMsgsPerSubject: 1,
			Duplicates:        time.Second, // records carry no message ids

			AllowAtomicPublish: true,
			RePublish:          &jetstream.RePublish{Source: subjects.MeshStatePattern, Destination: "fleet.meshack.{{wildcard(1)}}.{{wildcard(2)}}"},
			Metadata:           map[string]string{"writer": "mesh"},
		}},
	}
}

// scheduleAssets are the records of schedules, and their timers: three small
// messages per schedule at most, so the records' bound is theirs too. A stream
// with timers cannot refuse what is new, so it must never be full.
func scheduleAssets(p Provisioning, size sizes) []asset {
	return []asset{
		{keepSize: p.BucketMaxBytes == 0, stream: tells(bucket(subjects.BucketSchedules, "schedules", "Schedules, and how far they have come", jetstream.StreamConfig{
			SubjectDeleteMarkerTTL: 5 * time.Minute, MaxBytes: size.bucket,
		}))},
		{stream: jetstream.StreamConfig{
			Name:              subjects.StreamTimers,
			Description:       "When schedules are due next, as message schedules, and when they were last; written by schedules workers and by JetStream",
			Subjects:          []string{subjects.TimerPattern, subjects.TickPattern},
			MaxMsgsPerSubject: 1,

			AllowMsgSchedules: true, AllowRollup: true,
			Metadata: map[string]string{"writer": "schedules"},
		}},
	}
}

// progress is the stream of what agents tell while they work. The oldest goes where
// there is too much.
func progress(maxBytes int64) jetstream.StreamConfig {
	return jetstream.StreamConfig{
		Name:              subjects.StreamProgress,
		Description:       "What agents tell while they work, the latest lines of each task",
		Subjects:          []string{subjects.TaskLogPattern},
		MaxMsgsPerSubject: progressChunks,
		MaxAge:            day,
		MaxBytes:          maxBytes,
		Metadata:          map[string]string{"writer": "registry"},
	}
}

// outbox is the stream of webhooks.
func outbox(maxBytes int64) jetstream.StreamConfig {
	return jetstream.StreamConfig{
		Name:              subjects.StreamWebhooks,
		Description:       "The outbox of webhooks: deliveries until they ended, and what became of each",
		Subjects:          []string{subjects.WebhookPattern, subjects.WebhookEventPattern},
		MaxMsgsPerSubject: 1,
		Discard:           jetstream.DiscardNew,
		// A delivery is older than what is said about it, so it is the first
		// to age out: none comes back to life.
		MaxAge:   30 * day,
		MaxBytes: maxBytes,
		Metadata: map[string]string{"writer": "webhooks"},
	}
}

// escalations is the stream of escalations, with who sees to those of level 3.
func escalations(p Provisioning, size sizes) asset {
	return asset{
		keepSize: p.EscalationsMaxBytes == 0,
		stream: jetstream.StreamConfig{
			Name:        subjects.StreamEscalations,
			Description: "Every escalation of a task, and what became of alerts",
			Subjects:    []string{subjects.EscalationPattern, subjects.AlertPattern},
			MaxAge:      30 * day,
			MaxBytes:    size.escalations,
			Duplicates:  10 * time.Minute,
			Metadata:    map[string]string{"writer": "escalation"},
		},
		consumers: []jetstream.ConsumerConfig{{
			Durable:       consumerEscalation,
			Description:   "Escalation workers log what is a human's and raise alerts",
			FilterSubject: subjects.HumanPattern,
			AckPolicy:     jetstream.AckExplicitPolicy,
			AckWait:       10 * time.Second,
			MaxDeliver:    -1, MaxAckPending: 1024, MaxWaiting: 512,
		}},
	}
}

// tells is a stream in which log lines are kept beside what they tell of: as
// long as anything there, or for a time of their own where things do not age.
func tells(c jetstream.StreamConfig) jetstream.StreamConfig {
	c.Subjects = append(c.Subjects, subjects.ToldPattern(c.Name))
	c.AllowAtomicPublish = true
	c.AllowMsgTTL = c.AllowMsgTTL || !ages(c.Name)
	return c
}

// ages reports whether what a stream holds has an age at which it goes.
func ages(stream string) bool {
	return stream == subjects.StreamWebhooks || stream == "KV_"+subjects.BucketSessions
}

// bucket is the stream of a key-value bucket, of history 1 where c says nothing.
func bucket(name, writer, description string, c jetstream.StreamConfig) jetstream.StreamConfig {
	c.Name, c.Description = "KV_"+name, description
	c.Subjects = []string{"$KV." + name + ".>"}
	c.MaxMsgsPerSubject = cmp.Or(c.MaxMsgsPerSubject, 1)
	c.Discard = jetstream.DiscardNew
	c.AllowRollup, c.DenyDelete = true, true
	c.Metadata = map[string]string{"writer": writer}
	return c
}

// complete fills in what every stream has.
func (a asset) complete(p Provisioning) asset {
	s := &a.stream
	s.Storage = jetstream.FileStorage
	s.Replicas = p.Replicas
	s.MaxConsumers = maxConsumers
	s.AllowDirect = true
	for _, limit := range []*int64{&s.MaxMsgs, &s.MaxBytes, &s.MaxMsgsPerSubject} {
		if *limit == 0 {
			*limit = -1
		}
	}
	if s.Duplicates == 0 {
		s.Duplicates = 2 * time.Minute
	}
	s.Metadata["app"] = "parley"
	return a
}
