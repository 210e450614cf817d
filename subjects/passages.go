package subjects

import (
	"slices"
	"strings"
)

// A Passage is a subject that passes between the account of the workers, where
// all streams are, and that of everybody else: from who writes it to who reads
// it.
type Passage struct {
	Subject  string // with stars for names
	Out      bool   // from the workers to the clients
	Request  bool   // it is answered, or must reach one reader by his own account
	Repeated bool   // several answer
}

// ServedByWorkers reports whether the workers' account is the one that exports
// it: requests are exported by who reads them, anything else by who writes it.
func (p Passage) ServedByWorkers() bool { return !p.Out || !p.Request }

// Passages are what the Catalogue has clients write to workers, and workers to
// clients. Nothing else passes, so that no client can name a subject of the
// workers' side, as where a request is to be answered.
func Passages() []Passage {
	var list []Passage
	for _, e := range Catalogue() {
		clientWrites, workerReads := anyClient(e.Writer), anyWorker(e.Readers)
		p := Passage{Subject: own(e.Pattern, RoleOperator, "")}
		switch {
		case clientWrites && workerReads:
			p.Request = true // what is no request passes in the same way
		case !clientWrites && anyClient(e.Readers):
			p.Out, p.Request = true, strings.Contains(e.Message, "→")
		default:
			continue
		}
		list = append(list, p)
	}
	return append(list, Passage{Subject: "$SRV.>", Request: true, Repeated: true}) // nats service ls
}

func anyClient(words string) bool {
	return slices.ContainsFunc(strings.Split(words, ", "), isClient)
}

func anyWorker(words string) bool {
	return slices.ContainsFunc(strings.Split(words, ", "), func(w string) bool { return !isClient(w) })
}

// isClient reports whether a role is of the clients' account.
func isClient(word string) bool {
	return slices.Contains([]string{RoleAgent, RoleLeaf, RoleOrchestrator, RoleOperator}, word)
}
