package jinja

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"unicode"
)

// A filter is what stands after a |. Its parameters are names with spaces between them, see bind.
type filter struct {
	params string
	call   func(r *run, v Value, a []Value) (Value, error)
	// rest is set instead for the filters that take any arguments.
	rest func(r *run, v Value, a args) (Value, error)
}

// filter applies a filter by its name.
func (r *run) filter(name string, v Value, a args) (Value, error) {
	f, ok := r.template.lang.filters[name]
	if !ok {
		return nil, fmt.Errorf("there is no filter '%.40s'", name)
	}
	if t, ok := v.(Text); ok {
		if err := r.looked(len(t.s)); err != nil {
			return nil, err
		}
	}
	if f.rest != nil {
		return f.rest(r, v, a)
	}
	values, err := a.bind(name, f.params)
	if err != nil {
		return nil, err
	}
	return f.call(r, v, values)
}

// filters are all that there are. The ones for lists are in lists.go.
var filters = map[string]filter{
	"abs": {call: func(_ *run, v Value, _ []Value) (Value, error) {
		if f, ok := float(v); ok && f < 0 {
			return sign("-", v)
		}
		return sign("+", v)
	}},
	"attr": {params: "name!", call: func(r *run, v Value, a []Value) (Value, error) {
		name, err := textArg(a[0], Text{})
		if err != nil {
			return nil, err
		}
		if strings.HasPrefix(name.s, "_") {
			return nil, fmt.Errorf("the attribute '%.40s' begins with an underscore", name.s)
		}
		return r.attribute(v, name.s), nil
	}},
	"batch":      {params: "linecount! fill_with", call: batch},
	"capitalize": onText((*run).capitalize),
	"count":      {call: lengthFilter},
	"d":          {params: "default_value boolean", call: defaultFilter},
	"default":    {params: "default_value boolean", call: defaultFilter},
	"dictsort":   {params: "case_sensitive by reverse", call: dictSort},
	"e":          onText((*run).escape),
	"escape":     onText((*run).escape),
	"first": {call: func(r *run, v Value, _ []Value) (Value, error) {
		items, err := r.items(v)
		if err == nil && len(items) == 0 {
			return undefined{"there is no first item"}, nil
		}
		if err != nil {
			return nil, err
		}
		return items[0], nil
	}},
	"float": {params: "default", call: floatFilter},
	"format": {rest: func(r *run, v Value, a args) (Value, error) {
		t, err := r.text(v)
		if err != nil || len(a.named) > 0 {
			return nil, errors.Join(err, errors.New("format takes values without names"))
		}
		return r.percent(t, &List{items: a.list, tuple: true})
	}},
	"groupby": {params: "attribute! default case_sensitive", call: groupBy},
	"indent":  {params: "width first blank", call: indent},
	"int":     {params: "default base", call: intFilter},
	"items": {call: func(r *run, v Value, _ []Value) (Value, error) {
		switch v := v.(type) {
		case undefined:
			return &List{}, nil
		case *Map:
			return r.pairs(v.entries)
		}
		return nil, fmt.Errorf("items wants a dict, not a %s", v.typeName())
	}},
	"join": {params: "d attribute", call: join},
	"last": {call: func(r *run, v Value, _ []Value) (Value, error) {
		items, err := r.items(v)
		if err == nil && len(items) == 0 {
			return undefined{"there is no last item"}, nil
		}
		if err != nil {
			return nil, err
		}
		return items[len(items)-1], nil
	}},
	"length": {call: lengthFilter},
	"list": {call: func(r *run, v Value, _ []Value) (Value, error) {
		items, err := r.items(v)
		return &List{items: items}, err
	}},
	"lower":      onText((*run).lower),
	"map":        {rest: mapFilter},
	"max":        {params: "case_sensitive attribute", call: extreme(1)},
	"min":        {params: "case_sensitive attribute", call: extreme(-1)},
	"reject":     {rest: selectItems(false, false)},
	"rejectattr": {rest: selectItems(false, true)},
	"replace": {params: "old! new! count", call: func(r *run, v Value, a []Value) (Value, error) {
		t, err := r.text(v)
		if err != nil {
			return nil, err
		}
		for i := range 2 {
			if a[i], err = r.text(a[i]); err != nil {
				return nil, err
			}
		}
		return replaceMethod(r, t, a)
	}},
	"reverse": {call: func(r *run, v Value, _ []Value) (Value, error) {
		if t, ok := v.(Text); ok {
			back := -1
			return r.slice(t, [3]*int{2: &back})
		}
		items, err := r.copied(v)
		slices.Reverse(items)
		return &List{items: items}, err
	}},
	"round":      {params: "precision method", call: round},
	"safe":       {call: func(r *run, v Value, _ []Value) (Value, error) { return r.text(v) }},
	"select":     {rest: selectItems(true, false)},
	"selectattr": {rest: selectItems(true, true)},
	"slice":      {params: "slices! fill_with", call: sliceFilter},
	"sort":       {params: "reverse case_sensitive attribute", call: sortFilter},
	"string":     {call: func(r *run, v Value, _ []Value) (Value, error) { return r.text(v) }},
	"sum":        {params: "attribute start", call: sum},
	"title": onText(func(r *run, t Text) (Text, error) {
		return r.titleCase(t, func(c rune) bool { return !isSpace(c) && !strings.ContainsRune("-({[<", c) })
	}),
	"tojson": {params: "ensure_ascii indent separators sort_keys", call: toJSONFilter},
	"trim": {params: "chars", call: func(r *run, v Value, a []Value) (Value, error) {
		t, err := r.text(v)
		if err != nil {
			return nil, err
		}
		return strip(true, true)(r, t, a)
	}},
	"unique": {params: "case_sensitive attribute", call: unique},
	"upper":  onText((*run).upper),
	"wordcount": {call: func(r *run, v Value, _ []Value) (Value, error) {
		t, err := r.text(v)
		if err != nil {
			return nil, err
		}
		if err := r.looked(slowly * len(t.s)); err != nil {
			return nil, err
		}
		isWord := func(c rune) bool { return c == '_' || unicode.IsLetter(c) || unicode.IsNumber(c) }
		n, inside := 0, false
		for _, c := range t.s {
			if isWord(c) != inside {
				if inside = !inside; inside {
					n++
				}
			}
		}
		return Int(n), nil
	}},
}

// onText makes a filter of what is done to a string; other values become strings first.
func onText(f func(r *run, t Text) (Text, error)) filter {
	return filter{call: func(r *run, v Value, _ []Value) (Value, error) {
		t, err := r.text(v)
		if err != nil {
			return nil, err
		}
		return f(r, t)
	}}
}

func lengthFilter(r *run, v Value, _ []Value) (Value, error) {
	n, err := r.length(v)
	return Int(n), err
}

func defaultFilter(_ *run, v Value, a []Value) (Value, error) {
	_, missing := v.(undefined)
	if !missing && !(boolArg(a[1], false) && !truth(v)) {
		return v, nil
	}
	if a[0] == nil {
		return Text{}, nil
	}
	return a[0], nil
}

func (r *run) escape(t Text) (Text, error) {
	return r.mapRunes(t, func(c rune) string {
		switch c {
		case '&':
			return "&amp;"
		case '<':
			return "&lt;"
		case '>':
			return "&gt;"
		case '"':
			return "&#34;"
		case '\'':
			return "&#39;"
		}
		return string(c)
	})
}

// number reads a number from a string as Python does: white space around it, underscores inside.
func number(t Text) string {
	s := t.strip(nil, true, true).s
	if strings.HasPrefix(s, "_") || strings.HasSuffix(s, "_") || strings.Contains(s, "__") || len(s) > maxDigits {
		return ""
	}
	return strings.ReplaceAll(s, "_", "")
}

func parseFloat(t Text) (float64, bool) {
	s := number(t)
	if strings.ContainsAny(s, "xXpP") {
		return 0, false // Go's hexadecimal numbers
	}
	f, err := strconv.ParseFloat(s, 64)
	return f, err == nil || errors.Is(err, strconv.ErrRange)
}

func floatFilter(_ *run, v Value, a []Value) (Value, error) {
	if t, ok := v.(Text); ok {
		if f, ok := parseFloat(t); ok {
			return Float(f), nil
		}
	} else if f, ok := float(v); ok {
		return Float(f), nil
	}
	if err := isUndefined(v); err != nil {
		return nil, err
	}
	if a[0] == nil {
		return Float(0), nil
	}
	return a[0], nil
}

func intFilter(_ *run, v Value, a []Value) (Value, error) {
	if err := isUndefined(v); err != nil {
		return nil, err
	}
	base, err := intArg(a[1], 10)
	if err != nil {
		return nil, err
	}
	if i, ok := whole(v); ok {
		return Int(i), nil
	}
	if b, ok := v.(Big); ok {
		return b, nil
	}
	f, isFloat := math.NaN(), false
	switch v := v.(type) {
	case Text:
		if base < 2 || base > 36 {
			return nil, errors.New("the base must be 2 to 36")
		}
		s := number(v)
		if prefix := map[int]string{16: "0x", 8: "0o", 2: "0b"}[base]; prefix != "" {
			s = strings.TrimPrefix(strings.ToLower(s), prefix)
		}
		if i, ok := parseInt(s, base); ok {
			return i, nil
		}
		f, isFloat = parseFloat(v)
	case Float:
		f, isFloat = float64(v), true
	}
	if isFloat && math.Abs(f) < 1<<63 {
		return Int(f), nil
	}
	if a[0] == nil {
		return Int(0), nil
	}
	return a[0], nil
}

func round(_ *run, v Value, a []Value) (Value, error) {
	precision, err := intArg(a[0], 0)
	if err != nil {
		return nil, err
	}
	method, err := textArg(a[1], Trusted("common"))
	if err != nil {
		return nil, err
	}
	if precision < -300 || precision > 300 {
		return nil, errors.New("the precision must be -300 to 300")
	}
	if i, ok := whole(v); ok && precision >= 0 && method.s == "common" {
		return Int(i), nil
	}
	f, ok := float(v)
	if !ok {
		return nil, fmt.Errorf("round wants a number, not a %s", v.typeName())
	}
	scale := math.Pow(10, float64(precision))
	switch method.s {
	case "ceil":
		return Float(math.Ceil(f*scale) / scale), nil
	case "floor":
		return Float(math.Floor(f*scale) / scale), nil
	case "common":
		if precision < 0 || math.IsInf(f, 0) || math.IsNaN(f) {
			return Float(math.RoundToEven(f*scale) / scale), nil
		}
		rounded, err := strconv.ParseFloat(strconv.FormatFloat(f, 'f', precision, 64), 64)
		return Float(rounded), err
	}
	return nil, errors.New("the method must be common, ceil or floor")
}

// indent puts blanks in front of the lines but the first.
func indent(r *run, v Value, a []Value) (Value, error) {
	t, err := r.text(v)
	if err != nil {
		return nil, err
	}
	by, ok := a[0].(Text)
	if !ok {
		n, err := intArg(a[0], 4)
		if err != nil {
			return nil, err
		}
		if n > maxWidth {
			return nil, &LimitError{"blanks to indent by", maxWidth}
		}
		by = Trusted(strings.Repeat(" ", max(n, 0)))
	}
	first, blank := boolArg(a[1], false), boolArg(a[2], false)
	if t, err = r.concat(t, Trusted("\n")); err != nil { // as jinja2: the last line is one even if it is empty
		return nil, err
	}
	lines, err := r.lines(t, false)
	if err != nil {
		return nil, err
	}
	b := builder{r: r}
	for i, line := range lines.items {
		line := line.(Text)
		if i > 0 {
			if err := b.own("\n"); err != nil {
				return nil, err
			}
		}
		if i == 0 && first || i > 0 && (blank || line.s != "") {
			if err := b.text(by); err != nil {
				return nil, err
			}
		}
		if err := b.text(line); err != nil {
			return nil, err
		}
	}
	return b.done(), nil
}

func toJSONFilter(r *run, v Value, a []Value) (Value, error) {
	style := jsonStyle{ascii: boolArg(a[0], false), item: Trusted(", "), pair: Trusted(": "), sortKeys: boolArg(a[3], false)}
	switch by := a[1].(type) {
	case nil, None:
	case Text:
		style.indent, style.item = &by.s, Trusted(",")
	default:
		n, err := intArg(by, 0)
		if err != nil {
			return nil, err
		}
		if n > maxWidth {
			return nil, &LimitError{"blanks to indent by", maxWidth}
		}
		blanks := strings.Repeat(" ", max(n, 0))
		style.indent, style.item = &blanks, Trusted(",")
	}
	switch sep := a[2].(type) {
	case nil, None:
	case *List:
		if len(sep.items) != 2 {
			return nil, errors.New("separators are two strings")
		}
		var err error
		if style.item, err = textArg(sep.items[0], Text{}); err != nil {
			return nil, err
		}
		if style.pair, err = textArg(sep.items[1], Text{}); err != nil {
			return nil, err
		}
	default:
		return nil, fmt.Errorf("separators are two strings, not a %s", sep.typeName())
	}
	b := builder{r: r}
	err := r.toJSON(&b, v, &style, 0)
	return b.done(), err
}
