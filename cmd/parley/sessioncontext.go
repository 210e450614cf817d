package main

import (
	"bufio"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"io"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"parley/subjects"
	"parley/subjects/fleet"
	"parley/subjects/handshake"
)

// putOutput stores a large output part by part.
func (a *app) putOutput(ctx context.Context, c *client, id subjects.SessionID, data []byte) (*handshake.Stored, error) {
	sum := sha256.Sum256(data)
	s := &handshake.Stored{Digest: "sha256:" + hex.EncodeToString(sum[:]), Size: int64(len(data))}
	for i := 0; i*handshake.PartSize < len(data); i++ {
		part := data[i*handshake.PartSize : min((i+1)*handshake.PartSize, len(data))]
		req := handshake.Put{SessionID: id, Token: a.conf.Session, Digest: s.Digest, Index: i, Data: part}
		if _, err := call[handshake.PutReply](ctx, c, "session", "put", req); err != nil {
			return nil, err
		}
	}
	return s, nil
}

func (a *app) sessionFetch() *cobra.Command {
	var out string
	cmd := &cobra.Command{
		Use: "fetch SESSION DIGEST", Short: "Read a large output of a session",
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) != 2 {
				return usage("expected a session id and a digest, got %d arguments", len(args)).next(cmd.CommandPath() + " --help")
			}
			return oneSession(cmd, args[:1])
		},
		RunE: a.ask(func(ctx context.Context, c *client, args []string) error {
			w := a.stdout
			if out != "" {
				f, err := os.Create(out)
				if err != nil {
					return failed("write the output: %w", err)
				}
				defer f.Close() //nolint:errcheck // flushed below
				w = f
			}
			b := bufio.NewWriter(w)
			if err := a.fetchOutput(ctx, c, subjects.SessionID(args[0]), args[1], b); err != nil {
				return err
			}
			if err := b.Flush(); err != nil {
				return failed("write the output: %w", err)
			}
			return nil
		}),
	}
	cmd.Flags().StringVar(&out, "out", "", "write it to this file")
	return cmd
}

// fetchOutput reads all parts and checks the digest.
func (a *app) fetchOutput(ctx context.Context, c *client, id subjects.SessionID, digest string, w io.Writer) error {
	sum := sha256.New()
	for i := 0; ; i++ {
		req := handshake.Fetch{SessionID: id, Token: a.conf.Session, Digest: digest, Index: i}
		r, err := call[handshake.FetchReply](ctx, c, "session", "fetch", req)
		if isNotFound(err) && i > 0 { // the last part was a whole one
			break
		}
		if err != nil {
			return err
		}
		if _, err := io.MultiWriter(w, sum).Write(r.value.Data); err != nil {
			return failed("write the output: %w", err)
		}
		if len(r.value.Data) < handshake.PartSize {
			break
		}
	}
	if got := "sha256:" + hex.EncodeToString(sum.Sum(nil)); got != digest {
		return failed("the output is not whole: its digest is %s", got).next("fetch it again")
	}
	return nil
}

func (a *app) sessionContext() *cobra.Command {
	var after uint64
	var watch bool
	cmd := &cobra.Command{
		Use: "context SESSION", Short: "Show what agents have added to a session", Args: oneSession,
		Long: `Show what agents have added to a session, from a version on. With -o json it is
the context as the session protocol has it; with -o jsonl, one version per line.
With --watch the command goes on and shows each version as it comes.`,
		RunE: a.ask(func(ctx context.Context, c *client, args []string) error {
			id := subjects.SessionID(args[0])
			if watch {
				return a.watchContext(ctx, c, id, after)
			}
			records, err := a.readContext(ctx, c, id, after)
			if err != nil {
				return err
			}
			return a.printContext(id, records)
		}),
	}
	cmd.Flags().Uint64Var(&after, "after", 0, "only later versions than this")
	cmd.Flags().BoolVar(&watch, "watch", false, "go on, and show what is added")
	return cmd
}

// readContext reads all pages.
func (a *app) readContext(ctx context.Context, c *client, id subjects.SessionID, after uint64) ([]handshake.Record, error) {
	var all []handshake.Record
	for {
		r, err := a.contextPage(ctx, c, id, after, 0)
		if err != nil {
			return nil, err
		}
		all = append(all, r.Records...)
		if !r.More {
			return all, nil
		}
		after = r.Records[len(r.Records)-1].Version
	}
}

func (a *app) contextPage(ctx context.Context, c *client, id subjects.SessionID, after uint64, wait time.Duration) (*handshake.ReadReply, error) {
	req := handshake.Read{SessionID: id, Token: a.conf.Session, AfterVersion: after, Limit: handshake.MaxLimit, WaitSeconds: wait.Seconds()}
	r, err := call[handshake.ReadReply](ctx, c, "session", "context", req)
	return &r.value, err
}

// watchContext shows versions as they come, until ctx ends.
func (a *app) watchContext(ctx context.Context, c *client, id subjects.SessionID, after uint64) error {
	patient := *c
	patient.timeout += waitFor
	for {
		r, err := a.contextPage(ctx, &patient, id, after, waitFor)
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case err != nil && !away(err) && subjects.CodeOf(err) != subjects.CodeRateLimited:
			return err
		case err != nil:
			select {
			case <-ctx.Done():
			case <-time.After(patience):
			}
			continue
		}
		for i := range r.Records {
			after = r.Records[i].Version
			if a.json() {
				if err := a.printValue(&r.Records[i]); err != nil {
					return err
				}
				continue
			}
			a.print(contextLine(&r.Records[i]))
		}
	}
}

// contextLine tells a version in one line.
func contextLine(r *handshake.Record) string {
	e := &r.Entry
	return printable(strings.Join([]string{
		r.Time.UTC().Format(time.RFC3339), string(e.AgentID), e.Status, oneLine(entryText(e)),
	}, "  "))
}

// entryText is what an entry has to say.
func entryText(e *handshake.Entry) string {
	var parts []string
	if e.OutputFile != "" {
		parts = append(parts, e.OutputFile)
	}
	if len(e.Output) > 0 {
		parts = append(parts, output(&fleet.Result{Output: e.Output}))
	}
	if e.Stored != nil {
		parts = append(parts, e.Stored.Digest+" ("+thousands(e.Stored.Size)+" bytes)")
	}
	if len(e.Findings) > 0 {
		parts = append(parts, string(e.Findings))
	}
	return strings.Join(parts, "  ")
}

func (a *app) printContext(id subjects.SessionID, records []handshake.Record) error {
	if a.conf.Output == "jsonl" {
		for i := range records {
			if err := a.printValue(&records[i]); err != nil {
				return err
			}
		}
		return nil
	}
	view := handshake.Fold(id, records)
	if a.json() {
		return a.printValue(view)
	}
	if len(records) == 0 {
		a.notice("nothing has been added")
		return nil
	}
	g := a.grid("Context of "+string(id), []string{"#", "When", "Agent", "Status", "What"}, "What")
	for i := range records {
		r := &records[i]
		g.add(r.Version, a.when(r.Time), string(r.Entry.AgentID), r.Entry.Status, oneLine(entryText(&r.Entry)))
	}
	g.print()
	if c := &view.Context; len(c.SharedData) > 0 || c.Constraints != nil {
		shared := a.card("Shared")
		for _, name := range sortedNames(c.SharedData) {
			shared.add(name, oneLine(string(c.SharedData[name])))
		}
		shared.print()
	}
	return nil
}
