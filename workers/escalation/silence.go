package escalation

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strconv"
	"strings"
	"time"

	"parley/bus"
	"parley/bus/crash"
	"parley/subjects"
	"parley/subjects/fleet"
	"parley/subjects/handshake"
	"parley/workers"
)

// apiSilence sets, changes or removes a silence.
func (w *Worker) apiSilence(ctx context.Context, from subjects.AgentID, data []byte) (any, error) {
	ctx, cancel := context.WithTimeout(ctx, bus.StoreTime)
	defer cancel()
	s, err := fleet.DecodeRequest[fleet.Silence](data)
	if err != nil {
		return nil, err
	}
	now := w.now()
	if s.Until.Sub(now) > 30*24*time.Hour {
		return nil, subjects.Errorf(subjects.CodeInvalidMessage, "a silence lasts at most 30 days").At("/until")
	}
	if s.SilenceID == "" {
		s, err = w.newSilence(ctx, from, s, now)
	} else {
		s, err = w.changeSilence(ctx, from, s, now)
	}
	if err != nil {
		return nil, err
	}
	w.event(ctx, fleet.AlertEvent{Event: "silence", By: string(from), Message: s.SilenceID + " until " + s.Until.Format(time.RFC3339) + ": " + s.Reason})
	return s, nil
}

func (w *Worker) newSilence(ctx context.Context, from subjects.AgentID, s fleet.Silence, now time.Time) (fleet.Silence, error) {
	for name := range s.Match {
		if !slices.Contains(w.labels(), name) {
			return s, subjects.Errorf(subjects.CodeInvalidMessage, "alerts have no %q", name).At("/match").
				WithRemedy("match some of what alerts are grouped by: " + strings.Join(w.labels(), ", "))
		}
	}
	s.By, s.SilenceID = from, strconv.FormatInt(now.UnixNano(), 36)
	if !s.Until.After(now) {
		return s, nil // it is over
	}
	_, err := w.kv.Telling(toldSilence(&s, from, "set")).Create(ctx, silenceKey+s.SilenceID, fleet.MustEncode(s), 0)
	if err == nil {
		crash.Point("after_silence")
		w.takeSilence(s)
	}
	return s, err
}

// changeSilence gives a silence another end; one that has passed removes it.
func (w *Worker) changeSilence(ctx context.Context, from subjects.AgentID, s fleet.Silence, now time.Time) (fleet.Silence, error) {
	key := silenceKey + s.SilenceID
	for {
		e, err := w.kv.Get(ctx, key)
		if errors.Is(err, bus.ErrNotFound) {
			return s, subjects.Errorf(subjects.CodeNotFound, "there is no silence %q", s.SilenceID).At("/silence_id")
		}
		if err != nil {
			return s, err
		}
		var is fleet.Silence
		if err := json.Unmarshal(e.Value, &is); err != nil {
			return s, err
		}
		is.Until, is.By = s.Until, from
		if is.Until.After(now) {
			_, err = w.kv.Telling(toldSilence(&is, from, "change")).Update(ctx, key, fleet.MustEncode(is), e.Revision)
		} else {
			err = w.kv.Telling(toldSilence(&is, from, "remove")).DeleteRevision(ctx, key, e.Revision)
		}
		if err == nil {
			crash.Point("after_silence")
			w.takeSilence(is)
			return is, nil
		}
		if !errors.Is(err, bus.ErrConflict) {
			return s, err
		}
	}
}

// takeSilence takes in what was just stored, or removed.
func (w *Worker) takeSilence(s fleet.Silence) {
	w.with(func(v *view) {
		if v.silences[s.SilenceID] = s; !s.Until.After(w.now()) {
			delete(v.silences, s.SilenceID)
		}
		v.stirAll()
	})
	w.stir()
}

// endSilences removes the silences whose time is over.
func (w *Worker) endSilences(ctx context.Context, now time.Time) {
	var over []string
	w.with(func(v *view) {
		for id := range v.silences {
			if !v.silences[id].Until.After(now) {
				over = append(over, id)
			}
		}
	})
	for _, id := range over {
		e, err := w.kv.Get(ctx, silenceKey+id)
		var s fleet.Silence
		if err == nil {
			err = json.Unmarshal(e.Value, &s)
		}
		if err == nil && !s.Until.After(now) {
			err = w.kv.Telling(toldSilence(&s, Self, "expire")).DeleteRevision(ctx, silenceKey+id, e.Revision)
			crash.Point("after_silence_end")
		}
		switch {
		case err == nil, errors.Is(err, bus.ErrNotFound):
			s.SilenceID = id // nothing is known of it where it was not found
			w.takeSilence(s)
		case errors.Is(err, bus.ErrConflict): // it was changed: the watch tells how
		case ctx.Err() == nil:
			w.log.Warn("remove a silence", attrErr(err))
		}
	}
}

// toldSilence is what the audit is told of a silence.
func toldSilence(s *fleet.Silence, who subjects.AgentID, kind string) []byte {
	return workers.Line("", who, handshake.EventSilence, struct {
		SilenceID string            `json:"silence_id"`
		Kind      string            `json:"kind"` // set, change, remove, expire
		Match     map[string]string `json:"match"`
		Until     time.Time         `json:"until"`
		Message   string            `json:"message,omitempty"`
	}{s.SilenceID, kind, s.Match, s.Until, workers.Clip(s.Reason)})
}
