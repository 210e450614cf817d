package subjects

// Nearest returns the known name that a slip of the keyboard makes of name, or
// else the one that begins like it, or "".
func Nearest(name string, known []string) string {
	if len(name) > MaxIDLen {
		return "" // no slip, and costly to compare
	}
	best, least := "", max(1, min(3, len(name)/3))+1
	for _, k := range known {
		if d := editDistance(name, k); d < least {
			best, least = k, d
		}
	}
	if best != "" {
		return best
	}
	const enough = 5 // letters at the beginning
	longest := enough - 1
	for _, k := range known {
		if n := sharedPrefix(name, k); n > longest {
			best, longest = k, n
		}
	}
	return best
}

func sharedPrefix(a, b string) int {
	n := 0
	for n < len(a) && n < len(b) && a[n] == b[n] {
		n++
	}
	return n
}

// editDistance counts the letters to insert, delete, replace, or swap with their
// neighbour that make b of a.
func editDistance(a, b string) int {
	before, row := make([]int, len(b)+1), make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		next := make([]int, len(b)+1)
		next[0] = i + 1
		for j := range len(b) {
			cost := 1
			if a[i] == b[j] {
				cost = 0
			}
			next[j+1] = min(row[j+1]+1, next[j]+1, row[j]+cost)
			if i > 0 && j > 0 && a[i] == b[j-1] && a[i-1] == b[j] {
				next[j+1] = min(next[j+1], before[j-1]+1)
			}
		}
		before, row = row, next
	}
	return row[len(b)]
}
