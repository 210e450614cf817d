package router

import (
	"iter"

	"parley/subjects"
)

// classSet is a set of classes. Those whose tasks are for some agents alone are
// kept by agent: what one agent may do is found without a look at what is for
// others, of which there may be one class for each agent.
type classSet struct {
	open map[*class]struct{} // for whoever can
	only map[subjects.AgentID]map[*class]struct{}
}

func newClassSet() classSet {
	return classSet{open: make(map[*class]struct{}), only: make(map[subjects.AgentID]map[*class]struct{})}
}

func (s *classSet) add(cl *class) {
	if len(cl.need.Only) == 0 {
		s.open[cl] = struct{}{}
	}
	for _, id := range cl.need.Only {
		s.only[id] = put(s.only[id], cl, struct{}{})
	}
}

func (s *classSet) remove(cl *class) {
	delete(s.open, cl)
	for _, id := range cl.need.Only {
		if of := s.only[id]; len(of) > 0 {
			delete(of, cl)
			if len(of) == 0 {
				delete(s.only, id)
			}
		}
	}
}

func (s *classSet) has(cl *class) bool {
	of := s.open
	if len(cl.need.Only) > 0 {
		of = s.only[cl.need.Only[0]]
	}
	_, ok := of[cl]
	return ok
}

// all are all classes, each once.
func (s *classSet) all() iter.Seq[*class] {
	return func(yield func(*class) bool) {
		for cl := range s.open {
			if !yield(cl) {
				return
			}
		}
		for id, of := range s.only {
			for cl := range of {
				if cl.need.Only[0] == id && !yield(cl) {
					return
				}
			}
		}
	}
}
