package bus

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"parley/subjects"
)

// What the server must be.
const (
	minAPILevel = 4
	minVersion  = "2.15.1" // fixes a bypass of auth_users
)

// The modes of Provision.
const (
	ProvisionCreate = "create" // create what is missing, adopt safe changes
	ProvisionVerify = "verify" // change nothing, fail on what is missing or wrong
	ProvisionOff    = "off"    // do not even look at them, at the server alone
)

func (p Provisioning) validate() error {
	switch p.Mode {
	case ProvisionCreate, ProvisionVerify, ProvisionOff:
	default:
		return fmt.Errorf("provision: mode %q is not create, verify or off", p.Mode)
	}
	if !slices.Contains([]int{0, 1, 3, 5}, p.Replicas) {
		return fmt.Errorf("provision: %d replicas: use 1, 3 or 5", p.Replicas)
	}
	return nil
}

// Provision declares every stream, bucket and consumer, on a server that is new
// enough. It is idempotent and may run in many processes at once. It waits for a
// server or cluster that is starting, at most 30 s when ctx has no deadline. A
// difference that needs a migration is an error that names stream, field, what
// is there, what is wanted and what to do; all of them are reported together.
func (b *Bus) Provision(ctx context.Context, p Provisioning) error {
	p.Mode = cmp.Or(p.Mode, ProvisionCreate)
	if err := p.validate(); err != nil {
		return err
	}
	ctx, cancel := withDefaultTimeout(ctx, 30*time.Second)
	defer cancel()
	if err := b.checkServer(ctx); err != nil {
		return fmt.Errorf("provision: %w", err)
	}
	if p.Mode == ProvisionOff {
		return nil
	}
	most, small := p.sizes()
	assets := catalogue(p, most)
	made, err := b.provisionAll(ctx, p, assets)
	// A cluster that is forming may take back what it has said is there: one of its
	// servers could not make its copy.
	for more, again := made, 3; err == nil && more > 0 && again > 0 && b.nc.ConnectedClusterName() != ""; again-- {
		more, err = b.provisionAll(ctx, p, assets)
	}
	if err != nil {
		return fmt.Errorf("provision: %w", err)
	}
	if made > 0 && small {
		b.log.Warn("the disk has little room: streams are smaller than by default",
			slog.String("room", mebibytes(p.Room)), slog.String("task_records", mebibytes(most.tasks)))
	}
	return nil
}

// Server is what a server is, and what it must be at least.
type Server struct {
	Name, Version, LeastVersion string
	APILevel, LeastAPILevel     int // of JetStream
}

// Server asks the server that b is connected to.
func (b *Bus) Server(ctx context.Context) (Server, error) {
	s := Server{Name: b.nc.ConnectedServerName(), Version: b.nc.ConnectedServerVersion(), LeastVersion: minVersion, LeastAPILevel: minAPILevel}
	ctx, cancel := withDefaultTimeout(ctx, defaultRequest)
	defer cancel()
	var err error
	if s.APILevel, err = b.apiLevel(ctx); err != nil {
		return s, mapError(fmt.Errorf("ask for the account: %w", err))
	}
	return s, nil
}

// apiLevel asks for the account, and is the level of its JetStream API. The
// client library would take a refusal for a time-out. What the server answers
// instead is the library's error, see noJetStream.
func (b *Bus) apiLevel(ctx context.Context) (int, error) {
	var resp struct {
		jetstream.AccountInfo
		Error *jetstream.APIError `json:"error"`
	}
	err := b.apiCall(ctx, "INFO", nil, &resp, &resp.Error)
	switch {
	case resp.Error != nil:
		return 0, resp.Error
	case errors.Is(err, ErrNoResponders) && b.nc.IsConnected():
		return 0, jetstream.ErrJetStreamNotEnabled // nobody listens there
	}
	return resp.API.Level, err
}

// Old reports whether it is older than it must be.
func (s Server) Old() bool {
	return !versionAtLeast(s.Version, s.LeastVersion) || s.APILevel < s.LeastAPILevel
}

// checkServer checks version and API level, and waits for JetStream.
func (b *Bus) checkServer(ctx context.Context) error {
	if have := b.nc.ConnectedServerVersion(); !versionAtLeast(have, minVersion) {
		return fmt.Errorf("the NATS server is version %s, at least %s is needed: upgrade nats-server", have, minVersion)
	}
	level, begin := 0, time.Now()
	err := b.persist(ctx, func(ctx context.Context) (err error) {
		level, err = b.apiLevel(ctx)
		if time.Since(begin) > startingServer {
			return b.noJetStream(err)
		}
		return err
	})
	switch {
	case errors.Is(err, ErrNoResponders):
		return fmt.Errorf("JetStream does not answer: has the cluster a leader? (%w)", err)
	case err != nil:
		return fmt.Errorf("ask for the account: %w", err)
	case level < minAPILevel:
		return fmt.Errorf("the server's JetStream API level is %d, at least %d is needed: upgrade nats-server", level, minAPILevel)
	}
	return nil
}

// startingServer is how long a server that is starting may say that it has no
// JetStream.
const startingServer = 5 * time.Second

// noJetStream says so where waiting does not help, and returns err elsewhere.
func (b *Bus) noJetStream(err error) error {
	has, _ := b.nc.ConnectedServerJetStream()
	switch {
	case errors.Is(err, jetstream.ErrJetStreamNotEnabledForAccount):
		return fmt.Errorf("%w: the account of these credentials has no JetStream: enable it there, or use an account that has it", errRefused)
	case errors.Is(err, jetstream.ErrJetStreamNotEnabled) && !has:
		return fmt.Errorf("%w: the server has no JetStream: start it with nats-server -js, or connect to one that has", errRefused)
	}
	return err
}

// persist repeats f while the server or its cluster is starting.
func (b *Bus) persist(ctx context.Context, f func(context.Context) error) error {
	bo := newBackoff(100*time.Millisecond, time.Second)
	for {
		tctx, cancel := context.WithTimeout(ctx, readTry)
		err := mapError(f(tctx))
		cancel()
		if err == nil || !mayRepeat(err) {
			return err
		}
		if werr := wait(ctx, bo); werr != nil {
			return fmt.Errorf("%w (last: %w)", werr, err)
		}
	}
}

// provisionAll makes all of them what they should be, and says how many were not
// there.
func (b *Bus) provisionAll(ctx context.Context, p Provisioning, all []asset) (made int, err error) {
	var errs []error
	for _, a := range all {
		created, failed := b.provision(ctx, p, a.complete(p))
		errs = append(errs, failed)
		if created {
			made++
		}
	}
	return made, errors.Join(errs...)
}

// provision makes one asset what it should be.
func (b *Bus) provision(ctx context.Context, p Provisioning, want asset) (created bool, err error) {
	name := want.stream.Name
	have, err := b.streamConfig(ctx, p.Mode, name)
	if errors.Is(err, ErrNotFound) {
		if p.Mode == ProvisionVerify {
			return false, fmt.Errorf("stream %s is missing: create it, or start with provisioning %q", name, ProvisionCreate)
		}
		want.stream.Replicas = max(want.stream.Replicas, 1)
		have, err = b.createStream(ctx, want.stream)
		created = err == nil
	}
	if err != nil {
		return false, fmt.Errorf("stream %s: %w", name, err)
	}
	if !want.keepSize && p.Mode == ProvisionCreate {
		if want.keepSize, err = b.holdsTooMuch(ctx, have, want.stream); err != nil {
			return created, fmt.Errorf("stream %s: %w", name, err)
		}
	}
	if want.keepSize {
		want.stream.MaxBytes = have.MaxBytes
	}
	next, diffs := merge(have, want.stream)
	if err := refuse(name, p.Mode, diffs); err != nil {
		return created, err
	}
	if len(diffs) > 0 && p.Mode == ProvisionCreate {
		for _, d := range diffs {
			b.log.Info("stream setting changes", slog.String("stream", name), slog.String("field", d.field),
				slog.String("from", d.have), slog.String("to", d.want))
		}
		err = b.persist(ctx, func(ctx context.Context) (err error) {
			_, err = b.js.UpdateStream(ctx, next)
			return err
		})
		if err != nil {
			return created, fmt.Errorf("update stream %s: %w", name, err)
		}
	}
	for _, c := range want.consumers {
		if err := b.provisionConsumer(ctx, p, name, c); err != nil {
			return created, err
		}
	}
	return created, nil
}

// streamConfig is the configuration of a stream. One that is to be there may be
// late.
func (b *Bus) streamConfig(ctx context.Context, mode, name string) (cfg jetstream.StreamConfig, err error) {
	late := b.lateStream()
	err = b.persist(ctx, func(ctx context.Context) error {
		for {
			s, lookErr := b.js.Stream(ctx, name)
			if lookErr == nil {
				cfg = s.CachedInfo().Config
			}
			if mode != ProvisionVerify || !late(ctx, mapError(lookErr)) {
				return lookErr
			}
		}
	})
	return cfg, err
}

// createStream returns the configuration in force: another process may have
// been faster.
func (b *Bus) createStream(ctx context.Context, c jetstream.StreamConfig) (jetstream.StreamConfig, error) {
	inForce := c
	err := b.persist(ctx, func(ctx context.Context) error {
		_, err := b.js.CreateStream(ctx, c)
		if err == nil || errors.Is(err, jetstream.ErrStreamNameAlreadyInUse) {
			s, lookErr := b.js.Stream(ctx, c.Name)
			if lookErr == nil {
				inForce = s.CachedInfo().Config
			}
			return notYet(lookErr)
		}
		switch api, _ := errors.AsType[*jetstream.APIError](err); {
		case api == nil:
		case api.ErrorCode == errNoPeers: // a cluster that is forming says the same as one that is too small
			return fmt.Errorf("%w: %d replicas of %s each cannot be placed: %s", ErrNoResponders, c.Replicas, mebibytes(c.MaxBytes), api.Description)
		case api.ErrorCode == errNoStore && c.Replicas > 1: // one server could not make its copy now; its log says why
			return fmt.Errorf("%w: %s", ErrNoResponders, api.Error())
		}
		return err
	})
	switch {
	case errors.Is(err, ErrFull):
		return c, fmt.Errorf("%w: the server has not the %s left that this stream is to have: free disk space, raise max_file_store, or lower the limit",
			err, mebibytes(c.MaxBytes))
	case err != nil && c.Replicas > 1:
		return c, fmt.Errorf("create with %d replicas: %w", c.Replicas, err)
	case err != nil:
		return c, fmt.Errorf("create: %w", err)
	}
	return inForce, nil
}

const (
	errNoPeers jetstream.ErrorCode = 10005
	errNoStore jetstream.ErrorCode = 10049
)

// difference is one field that is not as wanted.
type difference struct {
	field, have, want string
	migrates          bool // needs a migration
	sizing            bool // a matter of taste: verify only notes it
	remedy            string
}

// merge returns have with everything that the catalogue manages set as in
// want, and the differences. What it does not manage (placement, compression,
// foreign metadata) stays. Replicas 0 keeps.
func merge(have, want jetstream.StreamConfig) (jetstream.StreamConfig, []difference) {
	next := have
	var diffs []difference
	note := func(d difference) { diffs = append(diffs, d) }

	const recreate = "stop all workers, back the stream up (nats stream backup), delete it, restore it (nats stream restore --config, with this changed), and start them again"
	if have.Storage != want.Storage {
		note(difference{
			"storage", have.Storage.String(), want.Storage.String(), true, false,
			"no stream in memory can be backed up: have the work end that is in it, stop all workers, delete it, and start them again",
		})
	}
	if was := have.Name == subjects.StreamInbox && have.Retention == jetstream.WorkQueuePolicy; have.Retention != want.Retention && !was { // it was made so once, and works
		note(difference{"retention", have.Retention.String(), want.Retention.String(), true, false, recreate})
	}
	if have.PersistMode != want.PersistMode {
		note(difference{"persist_mode", have.PersistMode.String(), want.PersistMode.String(), true, false, recreate})
	}
	switch {
	case want.Replicas == 0 || want.Replicas == have.Replicas:
	case want.Replicas < have.Replicas:
		note(difference{
			"num_replicas", strconv.Itoa(have.Replicas), strconv.Itoa(want.Replicas), true, true,
			"set the replicas to " + strconv.Itoa(have.Replicas) + ", or lower them yourself with nats stream edit --replicas",
		})
	default:
		note(difference{"num_replicas", strconv.Itoa(have.Replicas), strconv.Itoa(want.Replicas), false, true, ""})
		next.Replicas = want.Replicas
	}
	for _, s := range have.Subjects {
		if !slices.Contains(want.Subjects, s) {
			note(difference{
				"subjects", strings.Join(have.Subjects, " "), strings.Join(want.Subjects, " "), true, false,
				"move the messages of " + s + " elsewhere and remove that subject with nats stream edit",
			})
		}
	}
	lower := func(have, want int64) bool { return want > 0 && (have <= 0 || want < have) }
	if have.MaxMsgsPerSubject != want.MaxMsgsPerSubject {
		note(difference{
			"max_msgs_per_subject", strconv.FormatInt(have.MaxMsgsPerSubject, 10), strconv.FormatInt(want.MaxMsgsPerSubject, 10),
			lower(have.MaxMsgsPerSubject, want.MaxMsgsPerSubject), false,
			"it would delete messages; check them and set it with nats stream edit",
		})
		next.MaxMsgsPerSubject = want.MaxMsgsPerSubject
	}
	if have.MaxAge != want.MaxAge {
		note(difference{
			"max_age", have.MaxAge.String(), want.MaxAge.String(),
			lower(int64(have.MaxAge), int64(want.MaxAge)) && have.Discard == jetstream.DiscardNew, true,
			"it would delete messages; check them and set it with nats stream edit",
		})
		next.MaxAge = want.MaxAge
	}
	for _, f := range safeFields {
		h, w := f.of(&next), f.of(&want)
		if !reflect.DeepEqual(h.Elem().Interface(), w.Elem().Interface()) {
			note(difference{field: f.name, have: show(h), want: show(w), sizing: f.sizing})
			h.Elem().Set(w.Elem())
		}
	}
	next.Metadata = maps.Clone(have.Metadata)
	for k, v := range want.Metadata {
		if next.Metadata[k] != v {
			note(difference{field: "metadata." + k, have: next.Metadata[k], want: v, sizing: true})
			if next.Metadata == nil {
				next.Metadata = map[string]string{}
			}
			next.Metadata[k] = v
		}
	}
	return next, diffs
}

// safeFields are adopted as the catalogue has them.
var safeFields = []struct {
	name   string
	sizing bool
	of     func(*jetstream.StreamConfig) reflect.Value
}{
	{"description", true, func(c *jetstream.StreamConfig) reflect.Value { return reflect.ValueOf(&c.Description) }},
	{"subjects", false, func(c *jetstream.StreamConfig) reflect.Value { return reflect.ValueOf(&c.Subjects) }},
	{"max_bytes", true, func(c *jetstream.StreamConfig) reflect.Value { return reflect.ValueOf(&c.MaxBytes) }},
	{"max_msgs", true, func(c *jetstream.StreamConfig) reflect.Value { return reflect.ValueOf(&c.MaxMsgs) }},
	{"max_consumers", true, func(c *jetstream.StreamConfig) reflect.Value { return reflect.ValueOf(&c.MaxConsumers) }},
	{"discard", false, func(c *jetstream.StreamConfig) reflect.Value { return reflect.ValueOf(&c.Discard) }},
	{"duplicate_window", true, func(c *jetstream.StreamConfig) reflect.Value { return reflect.ValueOf(&c.Duplicates) }},
	{"allow_rollup_hdrs", false, func(c *jetstream.StreamConfig) reflect.Value { return reflect.ValueOf(&c.AllowRollup) }},
	{"allow_direct", false, func(c *jetstream.StreamConfig) reflect.Value { return reflect.ValueOf(&c.AllowDirect) }},
	{"allow_msg_ttl", false, func(c *jetstream.StreamConfig) reflect.Value { return reflect.ValueOf(&c.AllowMsgTTL) }},
	{"subject_delete_marker_ttl", false, func(c *jetstream.StreamConfig) reflect.Value { return reflect.ValueOf(&c.SubjectDeleteMarkerTTL) }},
	{"allow_atomic", false, func(c *jetstream.StreamConfig) reflect.Value { return reflect.ValueOf(&c.AllowAtomicPublish) }},
	{"republish", false, func(c *jetstream.StreamConfig) reflect.Value { return reflect.ValueOf(&c.RePublish) }},
}

func show(v reflect.Value) string {
	v = v.Elem()
	if v.Kind() == reflect.Pointer {
		if v.IsNil() {
			return "none"
		}
		v = v.Elem()
	}
	return fmt.Sprintf("%+v", v.Interface())
}

// refuse turns the differences that this mode may not repair into an error.
func refuse(stream, mode string, diffs []difference) error {
	var errs []error
	for _, d := range diffs {
		switch {
		case mode == ProvisionVerify && !d.sizing:
			remedy := cmp.Or(d.remedy, "change it (nats stream edit, or whatever owns the stream), or start with provisioning "+ProvisionCreate)
			errs = append(errs, fmt.Errorf("stream %s: %s is %s, %s is wanted: %s", stream, d.field, d.have, d.want, remedy))
		case mode == ProvisionCreate && d.migrates:
			errs = append(errs, fmt.Errorf("stream %s: %s is %s, %s is wanted, which needs a migration: %s",
				stream, d.field, d.have, d.want, d.remedy))
		}
	}
	return errors.Join(errs...)
}

func (b *Bus) provisionConsumer(ctx context.Context, p Provisioning, stream string, want jetstream.ConsumerConfig) error {
	want.Metadata = map[string]string{"app": "parley"}
	return b.persist(ctx, func(ctx context.Context) error {
		have, err := b.js.Consumer(ctx, stream, want.Durable)
		switch {
		case errors.Is(err, jetstream.ErrConsumerNotFound) && p.Mode == ProvisionVerify:
			return fmt.Errorf("consumer %s of stream %s is missing: create it, or start with provisioning %q",
				want.Durable, stream, ProvisionCreate)
		case errors.Is(err, jetstream.ErrConsumerNotFound):
			if _, err = b.js.CreateConsumer(ctx, stream, want); errors.Is(err, jetstream.ErrConsumerExists) {
				return nil
			}
		case err == nil:
			c := have.CachedInfo().Config
			if c.AckPolicy != want.AckPolicy || c.DeliverPolicy != want.DeliverPolicy {
				return fmt.Errorf("consumer %s of stream %s: it acknowledges %s and delivers %s, %s and %s are wanted: delete it (nats consumer rm) and start again",
					want.Durable, stream, c.AckPolicy, c.DeliverPolicy, want.AckPolicy, want.DeliverPolicy)
			}
			same := c.AckWait == want.AckWait && c.MaxDeliver == want.MaxDeliver &&
				c.MaxAckPending == want.MaxAckPending && c.Description == want.Description
			if p.Mode == ProvisionVerify && (c.MaxAckPending < want.MaxAckPending || c.MaxDeliver != want.MaxDeliver) {
				return fmt.Errorf("consumer %s of stream %s: MaxAckPending is %d and MaxDeliver %d, %d and %d are wanted: start with provisioning %q",
					want.Durable, stream, c.MaxAckPending, c.MaxDeliver, want.MaxAckPending, want.MaxDeliver, ProvisionCreate)
			}
			if same || p.Mode == ProvisionVerify {
				return nil
			}
			c.AckWait, c.MaxDeliver, c.MaxAckPending, c.Description = want.AckWait, want.MaxDeliver, want.MaxAckPending, want.Description
			_, err = b.js.UpdateConsumer(ctx, stream, c)
		}
		if err != nil {
			return fmt.Errorf("consumer %s of stream %s: %w", want.Durable, stream, notYet(err))
		}
		return nil
	})
}

// versionAtLeast compares MAJOR.MINOR.PATCH; a pre-release counts as its
// release.
func versionAtLeast(have, least string) bool {
	parse := func(s string) (v [3]int, ok bool) {
		s, _, _ = strings.Cut(s, "-")
		for i, part := range strings.SplitN(s, ".", 3) {
			n, err := strconv.Atoi(part)
			if err != nil {
				return v, false
			}
			v[i] = n
		}
		return v, true
	}
	h, hok := parse(have)
	l, lok := parse(least)
	return hok && lok && slices.Compare(h[:], l[:]) >= 0
}
