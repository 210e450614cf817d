package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"parley/subjects"
	"parley/subjects/audit"
	"parley/subjects/handshake"
)

func (a *app) auditCommand() *cobra.Command {
	c := noun("audit", "Read what has happened, and prove that nothing of it was changed")
	bind(c.PersistentFlags(), a.conf, append([]string{"as"}, connectionFlags...)...)
	c.AddCommand(a.auditExport(), a.auditVerify())
	return c
}

// export are the flags of audit export.
type export struct {
	session, agent, since, dir string
	follow                     bool
}

func (a *app) auditExport() *cobra.Command {
	var x export
	cmd := &cobra.Command{
		Use: "export", Short: "Write the lines of the audit, to standard output or to files", Args: cobra.NoArgs,
		Long: `Write the lines of the audit: one JSON object each, with timestamp, session_id,
agent_id, event_type and data. With --dir they go to files there: SESSION.log,
SESSION-AGENT.log and, for escalations, escalations.log; what belongs to no
session goes to none.log and none-AGENT.log. Files are written anew.`,
		Example: `  parley audit export --since 1h
  parley audit export --session $ID --dir logs --follow`,
		RunE: a.ask(func(ctx context.Context, c *client, _ []string) error { return a.export(ctx, c, &x) }),
	}
	f := cmd.Flags()
	f.StringVar(&x.session, "session", "", "only this session's lines")
	f.StringVar(&x.agent, "agent", "", "only this agent's lines")
	f.StringVar(&x.since, "since", "", "only lines since then: 1h ago, or 2026-05-31T21:00:00Z")
	f.StringVar(&x.dir, "dir", "", "write files in this directory")
	f.BoolVar(&x.follow, "follow", false, "go on, and write what is added")
	a.completeFlag(cmd, "agent", a.completeAgents)
	return cmd
}

// since reads a time, or how long ago it was.
func since(s string, now time.Time) (time.Time, error) {
	if s == "" {
		return time.Time{}, nil
	}
	if d, err := time.ParseDuration(s); err == nil {
		return now.Add(-d), nil
	}
	at, err := time.Parse(time.RFC3339, s)
	if err != nil {
		return at, usage("--since %q: expected how long ago, such as 1h, or a time such as 2026-05-31T21:00:00Z", s)
	}
	return at, nil
}

func (a *app) export(ctx context.Context, c *client, x *export) (err error) {
	from, err := since(x.since, a.now())
	if err != nil {
		return err
	}
	out := &logFiles{app: a, open: map[string]*os.File{}}
	if x.dir != "" {
		if err := os.MkdirAll(x.dir, 0o700); err != nil {
			return failed("make the directory: %w", err)
		}
		if out.root, err = os.OpenRoot(x.dir); err != nil {
			return failed("open the directory: %w", err)
		}
	}
	defer func() { err = errors.Join(err, out.close()) }()
	warned := false
	skip := func() {
		if !warned {
			a.notice("the audit's stream has entries that are not of the audit, and are left out: parley audit verify  names them")
		}
		warned = true
	}
	return a.readAudit(ctx, c, from, x.follow, new(audit.Chain), func(b *audit.Block, is audit.Verdict) error {
		if is == audit.IsForeign {
			skip()
			return nil
		}
		for _, text := range b.Lines {
			l, err := handshake.DecodeLogLine([]byte(text))
			if err != nil {
				skip()
				continue
			}
			if l.Timestamp.Before(from) || x.session != "" && string(l.SessionID) != x.session || x.agent != "" && string(l.AgentID) != x.agent {
				continue
			}
			if err := out.write(l, text); err != nil {
				return err
			}
		}
		return nil
	})
}

// logFiles is where lines go: standard output without a root.
type logFiles struct {
	app  *app
	root *os.Root
	open map[string]*os.File // nil: it was begun, and is closed now
	n    int                 // how many are open
}

func (o *logFiles) write(l *handshake.LogLine, line string) error {
	if o.root == nil {
		o.app.print(line)
		return nil
	}
	session := string(l.SessionID)
	if session == "" {
		session = "none"
	}
	names := []string{session + ".log", session + "-" + string(l.AgentID) + ".log"}
	if l.EventType == handshake.EventEscalation {
		names = append(names, "escalations.log")
	}
	for _, name := range names {
		if err := o.add(name, line); err != nil {
			return failed("write %s: %w", name, err)
		}
	}
	return nil
}

// maxOpen is how many files stay open.
const maxOpen = 200

func (o *logFiles) add(name, line string) error {
	f, begun := o.open[name]
	if f == nil {
		if o.n >= maxOpen {
			if err := o.closeSome(); err != nil {
				return err
			}
		}
		how := os.O_CREATE | os.O_WRONLY | os.O_APPEND
		if !begun {
			how |= os.O_TRUNC
		}
		var err error
		if f, err = o.root.OpenFile(name, how, 0o600); err != nil {
			return err
		}
		o.open[name] = f
		o.n++
	}
	_, err := f.WriteString(line + "\n")
	return err
}

// closeSome closes all files; that they were begun is remembered.
func (o *logFiles) closeSome() (err error) {
	for name, f := range o.open {
		if f != nil {
			err = errors.Join(err, f.Close())
		}
		o.open[name] = nil
	}
	o.n = 0
	return err
}

func (o *logFiles) close() error {
	err := o.closeSome()
	if o.root != nil {
		err = errors.Join(err, o.root.Close())
	}
	return err
}

// readAudit gives every entry of the audit's stream to f, in order, with what
// chain makes of it; with follow until ctx ends. One that is no block is nil.
func (a *app) readAudit(ctx context.Context, c *client, from time.Time, follow bool, chain *audit.Chain, f func(*audit.Block, audit.Verdict) error) error {
	req := audit.Read{Since: from}
	patient := *c
	patient.timeout += waitFor
	for {
		r, err := call[audit.ReadReply](ctx, &patient, "audit", "read", req)
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case err != nil && follow && away(err):
			select {
			case <-ctx.Done():
			case <-time.After(patience):
			}
			continue
		case err != nil:
			return err
		}
		for _, entry := range r.value.Foreign {
			chain.AddForeign(entry)
			if err := f(nil, audit.IsForeign); err != nil {
				return err
			}
		}
		for i, raw := range r.value.Blocks {
			b, err := audit.Decode(raw)
			if err != nil || i >= len(r.value.Places) {
				return failed("the answer has a block that is none, after number %d: %w", req.AfterSeq, cmp.Or(err, errors.New("it is nowhere")))
			}
			at := audit.Foreign{Seq: r.value.Places[i].Seq, Time: r.value.Places[i].Time, Bytes: len(raw)}
			if err := f(b, chain.Add(b, at)); err != nil {
				return err
			}
		}
		req.AfterSeq = r.value.Seq
		if !r.value.More && !follow {
			return nil
		}
		req.WaitSeconds = 0
		if !r.value.More {
			req.WaitSeconds = waitFor.Seconds()
		}
	}
}

// verified is what audit verify found.
type verified struct {
	Lines  uint64 `json:"lines"`
	First  uint64 `json:"first"`
	Last   uint64 `json:"last"`
	Since  string `json:"since,omitempty"`
	Hash   string `json:"hash"` // of the last block
	Broken string `json:"broken,omitempty"`
	// Foreign are entries of the stream that are not of the audit, the first of
	// them by name.
	Foreign      []audit.Foreign `json:"foreign,omitempty"`
	ForeignCount int             `json:"foreign_count,omitzero"`
}

func (a *app) auditVerify() *cobra.Command {
	var expect string
	cmd := &cobra.Command{
		Use: "verify", Short: "Prove that nothing of the audit was changed or taken out", Args: cobra.NoArgs,
		Long: `Read the whole audit, and check that each block follows the one before it and is
as it was sealed; if not, say where. Entries that somebody else has put into its
stream are named; they hide nothing. The audit begins where its limits have left
it. Whoever can write to the store could write all of it anew: note the hash
elsewhere, and check with --expect that it is still part of the audit.`,
		RunE: a.ask(func(ctx context.Context, c *client, _ []string) error {
			v, err := a.verifyAudit(ctx, c, expect)
			if err != nil {
				return err
			}
			if a.json() {
				if err := a.printValue(v); err != nil {
					return err
				}
			} else if v.Broken == "" {
				a.print(fmt.Sprintf("%s lines, %d to %d, since %s: nothing was changed", thousands(int64(v.Lines)), v.First, v.Last, v.Since))
				a.print("hash " + v.Hash)
			}
			if !a.json() {
				a.printForeign(v)
			}
			if v.Broken != "" {
				return failed("the audit is not as it was written: %s", v.Broken).next("compare it with an earlier export or backup")
			}
			return nil
		}),
	}
	cmd.Flags().StringVar(&expect, "expect", "", "a hash that was noted earlier and must be there")
	return cmd
}

// printForeign names what is in the stream and not of the audit.
func (a *app) printForeign(v *verified) {
	if v.ForeignCount == 0 {
		return
	}
	a.print(fmt.Sprintf("%d entries of the stream are not of the audit, and hide nothing of it:", v.ForeignCount))
	slices.SortFunc(v.Foreign, func(a, b audit.Foreign) int { return cmp.Compare(a.Seq, b.Seq) })
	for _, f := range v.Foreign {
		a.print(fmt.Sprintf("  number %d, %d bytes, of %s: %s", f.Seq, f.Bytes, f.Time.UTC().Format(time.RFC3339), oneLine(f.Reason)))
	}
	if n := v.ForeignCount - len(v.Foreign); n > 0 {
		a.print(fmt.Sprintf("  and %d more", n))
	}
}

// verifyAudit walks the chain.
func (a *app) verifyAudit(ctx context.Context, c *client, expect string) (*verified, error) {
	v := &verified{}
	chain := new(audit.Chain)
	seen, some := expect == "", false
	err := a.readAudit(ctx, c, time.Time{}, false, chain, func(b *audit.Block, is audit.Verdict) error {
		some = true
		if is != audit.Follows {
			return nil
		}
		if v.Lines == 0 {
			v.First, v.Since = b.First, b.Day
			seen = seen || b.Prev == expect
		}
		seen = seen || b.Hash == expect
		v.Lines += uint64(len(b.Lines))
		v.Last, v.Hash = b.Next()-1, b.Hash
		return nil
	})
	v.Foreign, v.ForeignCount = chain.Foreign, len(chain.Foreign)+chain.More
	broken := chain.Broken()
	switch {
	case err != nil:
		return nil, err
	case broken != nil:
		v.Broken = broken.Error()
	case !some:
		return nil, subjects.Errorf(subjects.CodeNotFound, "the audit is empty")
	case !seen:
		v.Broken = "the hash " + expect + " is not part of it"
	}
	return v, nil
}
