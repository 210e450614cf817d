package bus

import (
	"cmp"
	"fmt"
	"log/slog"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"time"

	"parley/subjects"
)

// Skipped are the messages of one place that a process could not read and has
// passed over.
type Skipped struct {
	Place string    `json:"place"` // the stream, or the subject's first two tokens
	Count uint64    `json:"count"`
	Last  time.Time `json:"last"` // when the latest one was read
	// The first one, which the log names as well.
	Subject string `json:"subject"`
	Seq     uint64 `json:"seq,omitzero"` // in the stream, 0: it is not stored
	Reason  string `json:"reason"`
}

// Bounds of what is remembered of skipped messages.
const (
	maxSkippedPlaces = 128
	maxSkippedSeqs   = 4096 // per stream
	maxSkippedText   = 200  // bytes of a subject, and of a reason
)

// skipped counts the messages that a process has passed over.
type skipped struct {
	mu     sync.Mutex
	places map[string]*skippedPlace // guarded by mu
}

type skippedPlace struct {
	Skipped
	seqs map[uint64]struct{} // in the stream: several workers read a message, and some of them twice
}

// Skip counts m, which cannot be read because of err and which the caller passes
// over. The first message of each stream, or kind of subject, is logged; doctor
// and the metrics tell of all of them. A stored message counts once, however
// many workers of this process read it.
func (b *Bus) Skip(m Msg, err error) {
	first := b.skips.add(m, err, b.Now())
	if !first {
		b.log.Debug("message skipped", slog.String("subject", m.Subject), slog.Uint64("seq", m.Seq), slog.Any("error", err))
		return
	}
	b.log.Warn("message skipped: it cannot be read; further ones of this place are counted only", slog.String("stream", m.Stream),
		slog.String("subject", m.Subject), slog.Uint64("seq", m.Seq), slog.Any("error", err))
}

// handle calls fn with m. A message at which fn panics is skipped: stored, it
// would end the process again after every start.
func (b *Bus) handle(m Msg, fn func(Msg)) {
	defer func() {
		if p := recover(); p != nil {
			b.log.Error("handler panicked", slog.String("stream", m.Stream), slog.String("subject", m.Subject),
				slog.Uint64("seq", m.Seq), slog.Any("panic", p), slog.String("stack", string(debug.Stack())))
			b.Skip(m, fmt.Errorf("handler panicked: %v", p))
		}
	}()
	fn(m)
}

// Skip is Bus.Skip for an entry of the bucket.
func (k *KV) Skip(e Entry, err error) {
	k.b.Skip(Msg{Stream: k.stream, Subject: k.prefix + e.Key, Seq: e.Revision}, err)
}

// Skipped returns what this process has skipped, by place.
func (b *Bus) Skipped() []Skipped { return b.skips.list() }

// add counts m and reports whether it is the first of its place.
func (s *skipped) add(m Msg, err error, now time.Time) (first bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	name := placeOf(m)
	p := s.places[name]
	if p == nil && len(s.places) >= maxSkippedPlaces {
		name = "other"
		p = s.places[name]
	}
	if first = p == nil; first {
		if s.places == nil {
			s.places = make(map[string]*skippedPlace)
		}
		p = &skippedPlace{
			Skipped: Skipped{Place: name, Subject: brief(m.Subject), Seq: m.Seq, Reason: brief(err.Error())},
			seqs:    make(map[uint64]struct{}),
		}
		s.places[name] = p
	}
	if m.Stream != "" {
		if _, again := p.seqs[m.Seq]; again {
			return false
		}
		if len(p.seqs) >= maxSkippedSeqs {
			clear(p.seqs)
		}
		p.seqs[m.Seq] = struct{}{}
	}
	p.Count++
	p.Last = now.UTC()
	return first
}

func (s *skipped) list() []Skipped {
	s.mu.Lock()
	defer s.mu.Unlock()
	list := make([]Skipped, 0, len(s.places))
	for _, p := range s.places {
		list = append(list, p.Skipped)
	}
	slices.SortFunc(list, func(a, b Skipped) int { return cmp.Compare(a.Place, b.Place) })
	return list
}

// placeOf is the stream of m, or what the subject begins with: the tokens after
// it are the sender's.
func placeOf(m Msg) string {
	if m.Stream != "" {
		return m.Stream
	}
	first, rest, _ := strings.Cut(m.Subject, ".")
	second, _, _ := strings.Cut(rest, ".")
	return first + "." + second
}

// brief bounds a text that others have written.
func brief(s string) string {
	return strings.ToValidUTF8(s[:min(len(s), maxSkippedText)], "")
}

// unreadable reports whether a refusal says that the message itself is wrong.
func unreadable(err error) bool {
	switch subjects.CodeOf(err) {
	case subjects.CodeInvalidMessage, subjects.CodeInvalidID, subjects.CodePayloadTooLarge, subjects.CodeVersionMismatch:
		return true
	}
	return false
}
