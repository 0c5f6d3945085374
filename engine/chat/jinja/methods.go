package jinja

import (
	"errors"
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"

	"golang.org/x/text/cases"
	"golang.org/x/text/language"
)

// A method is one of a string's or a dictionary's. Its parameters are names with spaces between them, see bind.
type method[T Value] struct {
	params string
	call   func(r *run, of T, a []Value) (Value, error)
}

// bind puts arguments in the order of parameters; those not given are nil. A parameter that ends in ! must be given.
func (a *args) bind(of, params string) ([]Value, error) {
	names := strings.Fields(params)
	if len(a.list) > len(names) {
		return nil, fmt.Errorf("%s takes %d arguments, not %d", of, len(names), len(a.list))
	}
	values := make([]Value, len(names))
	copy(values, a.list)
next:
	for _, n := range a.named {
		for i, name := range names {
			if strings.TrimSuffix(name, "!") == n.name && values[i] == nil {
				values[i] = n.value
				continue next
			}
		}
		return nil, fmt.Errorf("%s does not take the argument '%.40s', or not twice", of, n.name)
	}
	for i, name := range names {
		if values[i] == nil && strings.HasSuffix(name, "!") {
			return nil, fmt.Errorf("%s needs the argument '%s'", of, strings.TrimSuffix(name, "!"))
		}
	}
	return values, nil
}

// The arguments of filters and methods as Go values, with a default for those not given.

func textArg(v Value, otherwise Text) (Text, error) {
	switch v := v.(type) {
	case nil:
		return otherwise, nil
	case Text:
		return v, nil
	}
	return Text{}, fmt.Errorf("a string is wanted, not a %s", v.typeName())
}

func intArg(v Value, otherwise int) (int, error) {
	if v == nil {
		return otherwise, nil
	}
	if n, ok := whole(v); ok {
		return int(n), nil
	}
	return 0, fmt.Errorf("a whole number is wanted, not a %s", v.typeName())
}

func boolArg(v Value, otherwise bool) bool {
	if v == nil {
		return otherwise
	}
	return truth(v)
}

// setArg is the set of characters that strip takes off: nil for white space.
func setArg(v Value) (*string, error) {
	if _, ok := v.(None); ok || v == nil {
		return nil, nil
	}
	t, err := textArg(v, Text{})
	return &t.s, err
}

// stringMethods are the methods of strings.
var stringMethods = map[string]method[Text]{
	"capitalize": {"", func(r *run, t Text, _ []Value) (Value, error) { return r.capitalize(t) }},
	"count": {"sub!", func(_ *run, t Text, a []Value) (Value, error) {
		sub, err := textArg(a[0], Text{})
		return Int(strings.Count(t.s, sub.s)), err
	}},
	"endswith":  {"suffix!", affix(strings.HasSuffix)},
	"find":      {"sub!", find(strings.Index)},
	"isalnum":   {"", every(func(c rune) bool { return unicode.IsLetter(c) || unicode.IsNumber(c) })},
	"isalpha":   {"", every(unicode.IsLetter)},
	"isdecimal": {"", every(unicode.IsDigit)},
	"isdigit":   {"", every(unicode.IsDigit)},
	"islower":   {"", cased(isLower)},
	"isnumeric": {"", every(unicode.IsNumber)},
	"isspace":   {"", every(isSpace)},
	"isupper":   {"", cased(isUpper)},
	"join":      {"items!", func(r *run, t Text, a []Value) (Value, error) { return r.joinStrings(t, a[0]) }},
	"lower":     {"", func(r *run, t Text, _ []Value) (Value, error) { return r.lower(t) }},
	"lstrip":    {"chars", strip(true, false)},
	"removeprefix": {"prefix!", func(_ *run, t Text, a []Value) (Value, error) {
		prefix, err := textArg(a[0], Text{})
		if strings.HasPrefix(t.s, prefix.s) {
			t = t.slice(len(prefix.s), len(t.s))
		}
		return t, err
	}},
	"removesuffix": {"suffix!", func(_ *run, t Text, a []Value) (Value, error) {
		suffix, err := textArg(a[0], Text{})
		if strings.HasSuffix(t.s, suffix.s) {
			t = t.slice(0, len(t.s)-len(suffix.s))
		}
		return t, err
	}},
	"replace":    {"old! new! count", replaceMethod},
	"rfind":      {"sub!", find(strings.LastIndex)},
	"rsplit":     {"sep maxsplit", split((*run).rsplit)},
	"rstrip":     {"chars", strip(false, true)},
	"split":      {"sep maxsplit", split((*run).split)},
	"splitlines": {"keepends", func(r *run, t Text, a []Value) (Value, error) { return r.lines(t, boolArg(a[0], false)) }},
	"startswith": {"prefix!", affix(strings.HasPrefix)},
	"strip":      {"chars", strip(true, true)},
	"title":      {"", func(r *run, t Text, _ []Value) (Value, error) { return r.titleCase(t, isCased) }},
	"upper":      {"", func(r *run, t Text, _ []Value) (Value, error) { return r.upper(t) }},
}

// mapMethods are the methods of dictionaries.
var mapMethods = map[string]method[*Map]{
	"get": {"key! default", func(_ *run, m *Map, a []Value) (Value, error) {
		if k, ok := keyOf(a[0]); ok {
			if v, ok := m.get(k); ok {
				return v, nil
			}
		}
		if a[1] == nil {
			return None{}, nil
		}
		return a[1], nil
	}},
	"items": {"", func(r *run, m *Map, _ []Value) (Value, error) { return r.pairs(m.entries) }},
	"keys": {"", func(r *run, m *Map, _ []Value) (Value, error) {
		keys, err := r.items(m)
		return &List{items: keys}, err
	}},
	"values": {"", func(r *run, m *Map, _ []Value) (Value, error) {
		values := collector{r: r}
		for _, e := range m.entries {
			if err := values.add(e.value); err != nil {
				return nil, err
			}
		}
		return values.list()
	}},
}

// listMethods are the methods of lists and tuples.
var listMethods = map[string]method[*List]{
	"count": {"value!", func(r *run, l *List, a []Value) (Value, error) {
		n := 0
		for _, item := range l.items {
			same, err := r.equal(item, a[0], 0)
			if err != nil {
				return nil, err
			}
			if same {
				n++
			}
		}
		return Int(n), nil
	}},
	"index": {"value!", func(r *run, l *List, a []Value) (Value, error) {
		for i, item := range l.items {
			if same, err := r.equal(item, a[0], 0); same || err != nil {
				return Int(i), err
			}
		}
		return nil, errors.New("the value is not in the list")
	}},
}

// changing are the methods of lists and dictionaries that would change them. The sandbox that templates are written for
// hides them, so they are undefined, even where a dictionary has such a key (which d["key"] gets).
var changing = map[string]bool{
	"append": true, "clear": true, "extend": true, "insert": true, "pop": true, "popitem": true, "remove": true, "reverse": true,
	"setdefault": true, "sort": true, "update": true,
}

// bound returns the method of that name as a function.
func bound[T Value](methods map[string]method[T], of T, name string) (Value, bool) {
	m, ok := methods[name]
	if !ok {
		return nil, false
	}
	return &function{name, func(r *run, a args) (Value, error) {
		if t, ok := any(of).(Text); ok {
			if err := r.looked(len(t.s)); err != nil {
				return nil, err
			}
		}
		values, err := a.bind(name, m.params)
		if err != nil {
			return nil, err
		}
		return m.call(r, of, values)
	}}, true
}

// attr returns v.name, which is a method or an item of a dictionary.
func (r *run) attr(v Value, name string) (Value, error) {
	if err := isUndefined(v); err != nil {
		return nil, err
	}
	if found := r.attribute(v, name); found != nil {
		if _, missing := found.(undefined); !missing {
			return found, nil
		}
	}
	if m, ok := v.(*Map); ok && !changing[name] {
		if item, ok := m.Get(name); ok {
			return item, nil
		}
	}
	return undefined{fmt.Sprintf("the %s has no '%.40s'", v.typeName(), name)}, nil
}

// attribute returns what a value has by that name beside its items, or undefined.
func (r *run) attribute(v Value, name string) Value {
	var found Value
	ok := false
	switch v := v.(type) {
	case Text:
		if name == "format" {
			return &function{name, func(r *run, a args) (Value, error) { return r.braces(v, a) }}
		}
		found, ok = bound(stringMethods, v, name)
	case *Map:
		found, ok = bound(mapMethods, v, name)
	case *List:
		for i, f := range v.fields {
			if f == name {
				return v.items[i]
			}
		}
		found, ok = bound(listMethods, v, name)
	case *namespace:
		found, ok = v.attrs.Get(name)
	case *loop:
		found, ok = v.attr(name)
	case *macro:
		if name == "name" {
			return Trusted(v.name)
		}
	case *object:
		if call := v.methods[name]; call != nil {
			return &function{name, call}
		}
		if v.attr != nil {
			found, ok = v.attr(name)
		}
	}
	if !ok {
		return undefined{fmt.Sprintf("the %s has no '%.40s'", v.typeName(), name)}
	}
	return found
}

// pairs returns entries as a list of tuples.
func (r *run) pairs(entries []entry) (*List, error) {
	out := collector{r: r}
	for _, e := range entries {
		if err := r.alloc(2 * valueCost); err != nil {
			return nil, err
		}
		if err := out.add(&List{items: []Value{e.key, e.value}, tuple: true}); err != nil {
			return nil, err
		}
	}
	return out.list()
}

// affix makes startswith and endswith, which take one string or a tuple of them.
func affix(has func(s, affix string) bool) func(*run, Text, []Value) (Value, error) {
	return func(r *run, t Text, a []Value) (Value, error) {
		options := []Value{a[0]}
		if l, ok := a[0].(*List); ok && l.tuple {
			options = l.items
		}
		for _, o := range options {
			s, err := textArg(o, Text{})
			if err != nil {
				return nil, err
			}
			if has(t.s, s.s) {
				return Bool(true), nil
			}
		}
		return Bool(false), nil
	}
}

// find makes find and rfind, which count in characters.
func find(index func(s, sub string) int) func(*run, Text, []Value) (Value, error) {
	return func(_ *run, t Text, a []Value) (Value, error) {
		sub, err := textArg(a[0], Text{})
		if err != nil {
			return nil, err
		}
		i := index(t.s, sub.s)
		if i < 0 {
			return Int(-1), nil
		}
		return Int(utf8.RuneCountInString(t.s[:i])), nil
	}
}

// every makes the methods that ask something of all characters of a string that has some.
func every(is func(rune) bool) func(*run, Text, []Value) (Value, error) {
	return func(r *run, t Text, _ []Value) (Value, error) {
		if err := r.looked(slowly * len(t.s)); err != nil {
			return nil, err
		}
		return Bool(t.s != "" && strings.IndexFunc(t.s, func(c rune) bool { return !is(c) }) < 0), nil
	}
}

// cased makes the methods that ask for the case of a string.
func cased(is func(s string) bool) func(*run, Text, []Value) (Value, error) {
	return func(r *run, t Text, _ []Value) (Value, error) {
		return Bool(is(t.s)), r.looked(slowly * len(t.s))
	}
}

func strip(left, right bool) func(*run, Text, []Value) (Value, error) {
	return func(r *run, t Text, a []Value) (Value, error) {
		set, err := setArg(a[0])
		if err != nil {
			return nil, err
		}
		if set != nil { // each character is looked for in the set
			if err := r.looked(len(*set) * min(len(t.s), 1<<20)); err != nil {
				return nil, err
			}
		}
		return t.strip(set, left, right), nil
	}
}

// split makes split and rsplit.
func split(cut func(r *run, t Text, sep string, limit int) (*List, error)) func(*run, Text, []Value) (Value, error) {
	return func(r *run, t Text, a []Value) (Value, error) {
		limit, err := intArg(a[1], -1)
		if err != nil {
			return nil, err
		}
		if _, none := a[0].(None); none || a[0] == nil {
			return r.fields(t, limit)
		}
		sep, err := textArg(a[0], Text{})
		if err == nil && sep.s == "" {
			err = errors.New("the separator is empty")
		}
		if err != nil {
			return nil, err
		}
		return cut(r, t, sep.s, limit)
	}
}

func replaceMethod(r *run, t Text, a []Value) (Value, error) {
	old, err := textArg(a[0], Text{})
	if err != nil {
		return nil, err
	}
	with, err := textArg(a[1], Text{})
	if err != nil {
		return nil, err
	}
	limit := -1
	if _, none := a[2].(None); !none {
		if limit, err = intArg(a[2], -1); err != nil {
			return nil, err
		}
	}
	return r.replace(t, old.s, with, limit)
}

// joinStrings is the method "join", whose items must be strings.
func (r *run) joinStrings(sep Text, v Value) (Value, error) {
	items, err := r.items(v)
	if err != nil {
		return nil, err
	}
	b := builder{r: r}
	for i, item := range items {
		t, err := textArg(item, Text{})
		if err == nil && i > 0 {
			err = b.text(sep)
		}
		if err == nil {
			err = b.text(t)
		}
		if err != nil {
			return nil, err
		}
	}
	return b.done(), nil
}

func (r *run) upper(t Text) (Text, error) {
	return r.mapStretches(t, cases.Upper(language.Und).String)
}

func (r *run) lower(t Text) (Text, error) {
	return r.mapStretches(t, cases.Lower(language.Und).String)
}

// titleCase writes characters after one that belongs to a word in lower case, others as the start of a word.
func (r *run) titleCase(t Text, inWord func(c rune) bool) (Text, error) {
	inside := false
	lower, title := cases.Lower(language.Und), cases.Title(language.Und)
	return r.mapRunes(t, func(c rune) string {
		was := inside
		inside = inWord(c)
		if was {
			return lower.String(string(c))
		}
		return title.String(string(c))
	})
}

func (r *run) capitalize(t Text) (Text, error) {
	return r.titleCase(t, func(rune) bool { return true })
}

func isCased(c rune) bool { return unicode.IsUpper(c) || unicode.IsLower(c) || unicode.IsTitle(c) }

// isLower reports whether there are letters with a case and all are small.
func isLower(s string) bool {
	return strings.IndexFunc(s, unicode.IsLower) >= 0 && strings.IndexFunc(s, func(c rune) bool { return unicode.IsUpper(c) || unicode.IsTitle(c) }) < 0
}

// isUpper reports whether there are letters with a case and all are capital.
func isUpper(s string) bool {
	return strings.IndexFunc(s, unicode.IsUpper) >= 0 && strings.IndexFunc(s, func(c rune) bool { return unicode.IsLower(c) || unicode.IsTitle(c) }) < 0
}
