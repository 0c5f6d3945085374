package grammar

// An item is an expression divided into the literal that it begins with and the rest.
type item struct {
	head string
	rest Expr
}

func split(e Expr) item {
	switch n := e.node(); n.kind {
	case kindLit:
		return item{n.lit, Expr{}}
	case kindSeq:
		if n.kids[0].kind == kindLit {
			rest := make([]Expr, 0, len(n.kids)-1)
			for _, k := range n.kids[1:] {
				rest = append(rest, Expr{k})
			}
			return item{n.kids[0].lit, Seq(rest...)}
		}
	}
	return item{"", e}
}

// factor returns alternatives that are together what exprs are and of which no two begin with the same literal byte.
func factor(exprs []Expr) []Expr {
	var seen [256]bool
	shared := false
	for _, e := range exprs {
		if it := split(e); it.head != "" {
			shared = shared || seen[it.head[0]]
			seen[it.head[0]] = true
		}
	}
	if !shared {
		return exprs
	}
	items := make([]item, len(exprs))
	for i, e := range exprs {
		items[i] = split(e)
	}
	return factorItems(items)
}

func factorItems(items []item) []Expr {
	var out []Expr
	var order []byte
	by := map[byte][]item{}
	empty := false
	for _, it := range items {
		switch {
		case it.head != "":
			b := it.head[0]
			if by[b] == nil {
				order = append(order, b)
			}
			by[b] = append(by[b], it)
		case it.rest.IsEmpty():
			empty = true // once is enough
		default:
			out = append(out, it.rest)
		}
	}
	for _, b := range order {
		same := by[b]
		head := same[0].head
		for _, it := range same[1:] {
			head = head[:common(head, it.head)]
		}
		for i := range same {
			same[i].head = same[i].head[len(head):]
		}
		if len(same) == 1 {
			out = append(out, Seq(Lit(head), same[0].rest))
			continue
		}
		out = append(out, Seq(Lit(head), group(kindAlt, factorItems(same))))
	}
	if empty {
		out = append(out, Expr{})
	}
	return out
}

// common returns the length of the common prefix of two strings.
func common[T string | []byte](a, b T) int {
	n := 0
	for n < len(a) && n < len(b) && a[n] == b[n] {
		n++
	}
	return n
}
