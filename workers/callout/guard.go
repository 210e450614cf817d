package callout

import (
	"cmp"
	"context"
	"crypto/rand"
	"log/slog"
	"strconv"
	"time"

	"parley/bus"
	"parley/subjects"
	"parley/subjects/fleet"
	"parley/subjects/handshake"
	"parley/subjects/identity"
	"parley/workers"
)

// Signer signs what only is the author of, with key, at the time now; "" is
// everybody's, which is for workers alone.
func Signer(only subjects.AgentID, key identity.Key, now func() time.Time) bus.Signer {
	return func(subject string, data []byte, h bus.Header) bus.Header {
		author, ok := subjects.Author(subject)
		if !ok || only != "" && author != only {
			return nil
		}
		p := identity.Proof{
			AgentID: author, SessionID: subjects.SessionID(h.Get(subjects.HeaderSession)),
			Timestamp: identity.Timestamp(now()), Nonce: rand.Text(),
		}
		p.Sign(key, subject, data)
		return bus.Header{
			subjects.HeaderAgent: {string(p.AgentID)}, subjects.HeaderTimestamp: {p.Timestamp},
			subjects.HeaderNonce: {p.Nonce}, subjects.HeaderSignature: {p.Signature},
		}
	}
}

// guard judges what comes into this process.
func (i *Identities) guard() bus.Guard {
	g := bus.Guard{Stored: i.stored}
	if i.terms.Signed {
		g.Message = func(ctx context.Context, m bus.Msg, reader uint64) error {
			author, ok := subjects.Author(m.Subject)
			switch {
			case !ok && (m.Stream != "" || subjects.Republished(m.Subject)):
				return nil
			case !ok:
				return i.tell(ctx, "", m.Subject, subjects.Errorf(subjects.CodeForbidden, "nobody can sign messages of this subject"))
			case m.Unheard() && confirms(m.Subject):
				return nil
			}
			return i.tell(ctx, author, m.Subject, i.message(ctx, author, m, reader))
		}
	}
	return g
}

// confirms reports whether a subject is one at which callers of A2A confirm what
// they have read. There the server says, unsigned, that a caller is gone.
func confirms(subject string) bool {
	_, ok := subjects.Tokens(subjects.A2AConfirmPattern, subject)
	return ok
}

// stored judges what agents have stored themselves: messages of a subject that
// has an author.
func (i *Identities) stored(m bus.Msg) error {
	author, ok := subjects.Author(m.Subject)
	if !ok {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), storeTry)
	defer cancel()
	var err error
	if !subjects.ValidToken(string(author)) { // the store could not be asked about it, ever
		err = subjects.Errorf(subjects.CodeInvalidID, "the subject is of no agent")
	}
	if err == nil && i.terms.Signed {
		err = i.message(ctx, author, m, ofStream)
	}
	if err == nil && m.Stream == subjects.StreamAnnounce {
		err = i.announce(ctx, author, m)
	}
	return i.tell(ctx, author, m.Subject, err)
}

// orUnknown is who as the audit can name it.
func orUnknown(who subjects.AgentID) subjects.AgentID {
	if _, err := subjects.ParseAgentID(string(who)); err != nil {
		return "unknown"
	}
	return who
}

// ofStream is the reader of what a stream gives: there, a place tells one
// message from another.
const ofStream = ^bus.Shared

// storeTry bounds what is asked of the store for one message.
const storeTry = 5 * time.Second

// announce judges what an agent says that it can do. Nobody repeats what a stream
// has, so the store has the last word.
func (i *Identities) announce(ctx context.Context, author subjects.AgentID, m bus.Msg) error {
	a, bad := fleet.DecodeAnnounce(m.Data) // whoever reads it says what is wrong with it
	judge := func(k known, ok bool) error {
		switch {
		case !ok && i.terms.Strict:
			return subjects.Errorf(subjects.CodeForbidden, "the agent %s has no identity, and only who has one may announce", author).
				At("/worker/agent_id").WithRemedy("have an operator add it: parley identity add " + string(author))
		case !ok || bad != nil:
			return nil
		}
		return k.record.Allows(a)
	}
	k, _, ok := i.of(author)
	err := judge(k, ok)
	if err == nil {
		return nil
	}
	if look, none := i.looks.allow(author); !look {
		return cmp.Or(none, err)
	}
	if k, ok, err = i.now(ctx, author); err != nil {
		return err
	}
	return judge(k, ok)
}

// tell tells log and audit of a refusal, and passes it on.
func (i *Identities) tell(ctx context.Context, who subjects.AgentID, subject string, err error) error {
	if err == nil {
		return nil
	}
	code, level := subjects.CodeOf(err), slog.LevelWarn
	if code != subjects.CodeUnavailable && code != subjects.CodeInternal {
		r := workers.Refusal{Code: code, Message: subjects.AsError(err).Message, Action: "publish", Subject: subject}
		if !i.notes.Refuse(ctx, "", orUnknown(who), handshake.EventAuthRefused, r) {
			level = slog.LevelDebug // there are too many of these
		}
	}
	i.log.Log(ctx, level, "message refused", slog.String("agent_id", string(who)), slog.String("subject", subject), slog.String("code", string(code)), slog.Any("error", err))
	return err
}

// message judges the signature of a message.
func (i *Identities) message(ctx context.Context, author subjects.AgentID, m bus.Msg, reader uint64) error {
	p := identity.Proof{
		AgentID: subjects.AgentID(m.Header.Get(subjects.HeaderAgent)), SessionID: subjects.SessionID(m.Header.Get(subjects.HeaderSession)),
		Timestamp: m.Header.Get(subjects.HeaderTimestamp), Nonce: m.Header.Get(subjects.HeaderNonce), Signature: m.Header.Get(subjects.HeaderSignature),
	}
	switch {
	case p.Signature == "":
		return subjects.Errorf(subjects.CodeAuthFailed, "the message is not signed, and this fleet takes signed ones only").
			WithRemedy("give your identity: --identity FILE (PARLEY_IDENTITY)")
	case p.AgentID != author:
		return subjects.Errorf(subjects.CodeForbidden, "it is signed for another agent than its subject is of").
			WithRemedy("act under your own id")
	}
	at := i.bus.Now()
	if m.Stream != "" {
		at = m.Time
	}
	byWorker := p.KeyID() == identity.WorkersKey
	verify := func(t identity.Terms) error { return identity.Verify(t, &p, m.Subject, m.Data) }
	if byWorker {
		if err := verify(identity.Terms{Keys: []identity.Key{i.seal.workers}, At: at}); err != nil {
			return err
		}
	} else if err := i.verifyAgent(ctx, &p, m.Stream != "", at, verify); err != nil {
		return err
	}
	if err := i.first(ctx, &p, m, at, reader); err != nil {
		return err
	}
	if p.Form() == identity.V1 && !byWorker {
		return i.sawV1(ctx, author)
	}
	return nil
}

// verifyAgent judges a proof by what is known of its agent. Nobody repeats what
// a stream has, so there the store has the last word. Whether the agent has used v1
// it is asked for who has proved to be that agent alone: anybody can send what
// looks like v0.
func (i *Identities) verifyAgent(ctx context.Context, p *identity.Proof, ofStream bool, at time.Time, verify func(identity.Terms) error) error {
	k, seen, _ := i.of(p.AgentID)
	err := verify(k.judged(at, seen))
	if err != nil && ofStream {
		if look, none := i.looks.allow(p.AgentID); !look {
			return cmp.Or(none, err)
		}
		if k, _, err = i.now(ctx, p.AgentID); err != nil {
			return err
		}
		err = verify(k.judged(at, seen))
	}
	if err != nil || seen || p.Form() != identity.V0 {
		return err
	}
	if seen, err = i.hasSeenV1(ctx, p.AgentID); err != nil {
		return err
	}
	return verify(k.judged(at, seen))
}

// first refuses a message that came before. What a stream gives again is the
// same message; so is what comes twice in the form v0, which does not tell two
// messages of one second apart, as long as it says the same.
func (i *Identities) first(ctx context.Context, p *identity.Proof, m bus.Msg, at time.Time, reader uint64) error {
	once, what, repeats := p.Once(), "message", false
	switch {
	case p.Form() == identity.V0:
		what, repeats = identity.Fingerprint(m.Subject, m.Data), true
	case m.Stream != "":
		what, repeats = m.Stream+" "+strconv.FormatUint(m.Seq, 10), true
	}
	place := m.Stream
	if m.Stream == "" {
		place = strconv.FormatUint(reader, 10)
	}
	before, again := i.once.note(place, once, what, at)
	if !again && reader == bus.Shared {
		var err error
		if before, again, err = i.useOnce(ctx, once, what); err != nil {
			i.once.correct(place, once, "")
			return err
		}
		if again {
			i.once.correct(place, once, before)
		}
	}
	if again && (!repeats || before != what) {
		return replayed()
	}
	return nil
}
