package main

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"parley/bus"
	"parley/subjects"
	"parley/subjects/handshake"
	"parley/workers"
)

func (a *app) dlqCommand() *cobra.Command {
	c := noun("dlq", "Look after dead letters: messages that nobody could handle", "deadletters")
	bind(c.PersistentFlags(), a.conf, append([]string{"as"}, connectionFlags...)...)
	c.AddCommand(a.dlqList(), a.dlqShow(),
		a.dlqEach("replay", nil, "Send dead letters to where they came from, and drop them", "sent again", (*bus.Bus).ReplayDeadLetter),
		a.dlqEach("drop", []string{"rm"}, "Drop dead letters for good", "dropped", drop))
	return c
}

// maxLetters is how many --all takes at a time.
const maxLetters = 100_000

// letter is a dead letter as JSON.
type letter struct {
	Seq        uint64     `json:"seq"`
	Time       string     `json:"time"`
	Subject    string     `json:"subject"`
	Stream     string     `json:"stream,omitempty"`
	OriginSeq  uint64     `json:"origin_seq,omitzero"`
	Reason     string     `json:"reason"`
	Deliveries uint64     `json:"deliveries,omitzero"`
	Header     bus.Header `json:"header,omitempty"`
	Text       string     `json:"text,omitempty"` // the payload, if it is text
	Data       []byte     `json:"data,omitempty"` // otherwise, in base64
}

func newLetter(d *bus.DeadLetter) letter {
	l := letter{
		Seq: d.Seq, Time: d.Time.UTC().Format("2006-01-02T15:04:05.000Z07:00"), Subject: d.Subject, Stream: d.Stream,
		OriginSeq: d.OriginSeq, Reason: d.Reason, Deliveries: d.Deliveries, Header: d.Header,
	}
	if utf8.Valid(d.Data) {
		l.Text = string(d.Data)
	} else {
		l.Data = d.Data
	}
	return l
}

func (a *app) dlqList() *cobra.Command {
	var limit int
	cmd := &cobra.Command{
		Use: "ls", Aliases: []string{"list"}, Short: "List dead letters", Args: cobra.NoArgs,
		RunE: a.ask(func(ctx context.Context, c *client, _ []string) error {
			list, err := c.bus.DeadLetters(ctx, limit)
			if err != nil {
				return err
			}
			if a.json() {
				return a.printLetters(list)
			}
			if len(list) == 0 {
				a.notice("no dead letters")
				return nil
			}
			g := a.grid("Dead letters", []string{"Seq", "Buried", "Subject", "Bytes", "Reason"}, "Reason")
			for i := range list {
				d := &list[i]
				g.add(d.Seq, a.when(d.Time), d.Subject, thousands(int64(len(d.Data))), oneLine(d.Reason))
			}
			g.print()
			return nil
		}),
	}
	cmd.Flags().IntVarP(&limit, "limit", "n", 100, "how many at most")
	return cmd
}

func (a *app) printLetters(list []bus.DeadLetter) error {
	letters := make([]letter, len(list))
	for i := range list {
		letters[i] = newLetter(&list[i])
	}
	if a.conf.Output != "jsonl" {
		return a.printValue(letters)
	}
	for _, l := range letters {
		if err := a.printValue(l); err != nil {
			return err
		}
	}
	return nil
}

func (a *app) dlqShow() *cobra.Command {
	return &cobra.Command{
		Use: "show SEQ", Aliases: []string{"get", "info"}, Short: "Show a dead letter whole", Args: one("sequence number"),
		RunE: a.ask(func(ctx context.Context, c *client, args []string) error {
			seq, err := sequence(args[0])
			if err != nil {
				return err
			}
			d, err := c.bus.DeadLetterBySeq(ctx, seq)
			if err != nil {
				return noLetter(err, seq)
			}
			l := newLetter(&d)
			if a.json() {
				return a.printValue(l)
			}
			g := a.card(fmt.Sprintf("Dead letter %d", seq))
			g.fact("Buried", a.moment(d.Time))
			g.fact("Reason", l.Reason)
			g.fact("Subject", l.Subject)
			if l.Stream != "" {
				g.fact("Origin", fmt.Sprintf("%s, sequence %d, deliveries: %d", l.Stream, l.OriginSeq, l.Deliveries))
			}
			var headers []string
			for name, values := range l.Header {
				headers = append(headers, name+": "+strings.Join(values, ", "))
			}
			slices.Sort(headers)
			g.fact("Headers", strings.Join(headers, "\n"))
			g.print()
			if l.Data != nil {
				a.notice("%d bytes that are no text; -o json has them", len(l.Data))
				return nil
			}
			a.print(printable(l.Text))
			return nil
		}),
	}
}

// dlqEach does the same to several dead letters.
func (a *app) dlqEach(verb string, aliases []string, short, done string, do func(*bus.Bus, context.Context, uint64) error) *cobra.Command {
	var all bool
	cmd := &cobra.Command{
		Use: verb + " SEQ…", Aliases: aliases, Short: short,
		Args: func(cmd *cobra.Command, args []string) error {
			if all == (len(args) > 0) {
				return usage("expected sequence numbers, or --all").next("parley dlq ls")
			}
			return nil
		},
		RunE: a.ask(func(ctx context.Context, c *client, args []string) error {
			seqs := make([]uint64, len(args))
			for i, arg := range args {
				var err error
				if seqs[i], err = sequence(arg); err != nil {
					return err
				}
			}
			if all {
				list, err := c.bus.DeadLetters(ctx, maxLetters)
				if err != nil {
					return err
				}
				if len(list) == 0 {
					a.notice("no dead letters")
				}
				for i := range list {
					seqs = append(seqs, list[i].Seq)
				}
			}
			notes := workers.NewNotes(c.bus, a.clientLog())
			for _, seq := range seqs {
				if err := do(c.bus, ctx, seq); err != nil {
					return noLetter(err, seq)
				}
				notes.Tell(ctx, "", c.from, handshake.EventDeadLetter, struct {
					Kind string `json:"kind"`
					Seq  uint64 `json:"seq"`
				}{verb, seq})
				a.notice("dead letter %d %s", seq, done)
			}
			return nil
		}),
	}
	cmd.Flags().BoolVar(&all, "all", false, "every dead letter there is")
	return cmd
}

// drop drops a dead letter that is there.
func drop(b *bus.Bus, ctx context.Context, seq uint64) error { //nolint:revive // as the methods of Bus, in a method expression
	if _, err := b.DeadLetterBySeq(ctx, seq); err != nil {
		return err
	}
	return b.DropDeadLetter(ctx, seq)
}

func sequence(s string) (uint64, error) {
	seq, err := strconv.ParseUint(s, 10, 64)
	if err != nil || seq == 0 {
		return 0, usage("%q is not a sequence number", s).next("parley dlq ls")
	}
	return seq, nil
}

// noLetter says what to do where there is no such dead letter.
func noLetter(err error, seq uint64) error {
	if !isNotFound(err) {
		return err
	}
	return &problem{
		what: fmt.Sprintf("there is no dead letter %d (%s)", seq, subjects.CodeNotFound),
		then: "parley dlq ls", exit: codeExit(subjects.CodeNotFound), err: err,
	}
}
