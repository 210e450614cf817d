package router

import (
	"iter"
	"math/bits"
	"slices"
)

// A placeSet turns from a list into a bitset above denseAbove members and back
// below sparseBelow, so that a tool which everybody has costs one bit per
// instance and a label which one instance has costs a few bytes.
const (
	denseAbove  = 128
	sparseBelow = 32
)

// placeSet is a set of instance places. The zero value is empty.
type placeSet struct {
	n    int
	list []uint32 // sorted; used while words is nil
	bits bitmap
}

func (s *placeSet) has(p uint32) bool {
	if s.bits != nil {
		return s.bits.has(p)
	}
	_, ok := slices.BinarySearch(s.list, p)
	return ok
}

func (s *placeSet) add(p uint32) {
	if s.bits != nil {
		if s.bits.add(p) {
			s.n++
		}
		return
	}
	i, ok := slices.BinarySearch(s.list, p)
	if ok {
		return
	}
	s.list = slices.Insert(s.list, i, p)
	s.n++
	if s.n > denseAbove {
		for _, v := range s.list {
			s.bits.add(v)
		}
		s.list = nil
	}
}

func (s *placeSet) remove(p uint32) {
	if s.bits == nil {
		if i, ok := slices.BinarySearch(s.list, p); ok {
			s.list = slices.Delete(s.list, i, i+1)
			s.n--
		}
		return
	}
	if s.bits.remove(p) {
		s.n--
	}
	if s.n < sparseBelow {
		s.list = make([]uint32, 0, s.n)
		for v := range s.bits.all() {
			s.list = append(s.list, v)
		}
		s.bits = nil
	}
}

// and keeps in b what is in s.
func (s *placeSet) and(b bitmap) {
	if s.bits != nil {
		n := min(len(b), len(s.bits))
		for i, w := range s.bits[:n] {
			b[i] &= w
		}
		clear(b[n:])
		return
	}
	i := 0
	for wi := range b {
		var mask uint64
		for i < len(s.list) && int(s.list[i]>>6) == wi {
			mask |= 1 << (s.list[i] & 63)
			i++
		}
		b[wi] &= mask
	}
}

// andNot removes from b what is in s.
func (s *placeSet) andNot(b bitmap) {
	for i, w := range s.bits[:min(len(b), len(s.bits))] {
		b[i] &^= w
	}
	for _, v := range s.list {
		b.remove(v)
	}
}

// or adds to b, which is long enough for every p, what is in s.
func (s *placeSet) or(b bitmap) {
	for i, w := range s.bits[:min(len(b), len(s.bits))] {
		b[i] |= w
	}
	for _, v := range s.list {
		b.add(v)
	}
}

// all yields the places in rising order.
func (s *placeSet) all() iter.Seq[uint32] {
	if s.bits != nil {
		return s.bits.all()
	}
	return slices.Values(s.list)
}

// bitmap is a set of places, one bit each. It grows as places are added; those
// beyond its end are not in it.
type bitmap []uint64

func (b *bitmap) has(p uint32) bool {
	i := int(p >> 6)
	return i < len(*b) && (*b)[i]&(1<<(p&63)) != 0
}

// add reports whether p was missing.
func (b *bitmap) add(p uint32) bool {
	i, m := int(p>>6), uint64(1)<<(p&63)
	for i >= len(*b) {
		*b = append(*b, 0)
	}
	missing := (*b)[i]&m == 0
	(*b)[i] |= m
	return missing
}

// remove reports whether p was there.
func (b *bitmap) remove(p uint32) bool {
	i, m := int(p>>6), uint64(1)<<(p&63)
	if i >= len(*b) || (*b)[i]&m == 0 {
		return false
	}
	(*b)[i] &^= m
	return true
}

// set adds p to b, or removes it.
func (b *bitmap) set(p uint32, in bool) {
	if in {
		b.add(p)
	} else {
		b.remove(p)
	}
}

func (b *bitmap) empty() bool {
	for _, w := range *b {
		if w != 0 {
			return false
		}
	}
	return true
}

// and keeps in b what is in o.
func (b *bitmap) and(o bitmap) {
	n := min(len(*b), len(o))
	for i, w := range o[:n] {
		(*b)[i] &= w
	}
	clear((*b)[n:])
}

// all yields the places in rising order.
func (b *bitmap) all() iter.Seq[uint32] {
	return func(yield func(uint32) bool) {
		for i, w := range *b {
			for ; w != 0; w &= w - 1 {
				if !yield(uint32(i)<<6 | uint32(bits.TrailingZeros64(w))) {
					return
				}
			}
		}
	}
}
