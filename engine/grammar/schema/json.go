package schema

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"math/big"
	"net/url"
	"strconv"
	"strings"
)

const (
	maxSource = 256 << 10 // bytes
	maxDepth  = 256       // levels of objects and arrays in the schema's own text
)

// A value is a JSON value that knows where it stands and keeps the order of its fields.
type value struct {
	id     int
	kind   byte   // one of { [ " 0 t f n
	text   string // of a string or a number
	fields []field
	items  []*value

	parent *value
	token  string // the step of the pointer that leads here from the parent
}

type field struct {
	name string
	v    *value
}

func (v *value) get(name string) *value {
	for _, f := range v.fields {
		if f.name == name {
			return f.v
		}
	}
	return nil
}

var escapePointer = strings.NewReplacer("~", "~0", "/", "~1")

// pointer returns the value's JSON pointer (RFC 6901).
func (v *value) pointer() string {
	if v.parent == nil {
		return ""
	}
	return v.parent.pointer() + "/" + escapePointer.Replace(v.token)
}

// what names the kind of a value for errors.
func (v *value) what() string {
	switch v.kind {
	case '{':
		return "an object"
	case '[':
		return "an array"
	case '"':
		return "a string"
	case '0':
		return "a number"
	case 'n':
		return "null"
	}
	return "a boolean"
}

type reader struct {
	dec   *json.Decoder
	count int
}

// parse reads a JSON text.
func parse(src []byte) (*value, error) {
	if len(src) > maxSource {
		return nil, &Error{Msg: fmt.Sprintf("the schema is longer than the limit of %d bytes", maxSource)}
	}
	r := &reader{dec: json.NewDecoder(bytes.NewReader(src))}
	r.dec.UseNumber()
	v, err := r.value(nil, "", 0)
	if err == nil {
		if _, end := r.dec.Token(); end != io.EOF {
			err = &Error{Msg: fmt.Sprintf("there is more after the schema, at byte %d", r.dec.InputOffset())}
		}
	}
	return v, err
}

func (r *reader) value(parent *value, token string, depth int) (*value, error) {
	v := &value{id: r.count, parent: parent, token: token}
	r.count++
	tok, err := r.dec.Token()
	if err != nil {
		if err == io.EOF {
			err = io.ErrUnexpectedEOF
		}
		return nil, &Error{Msg: fmt.Sprintf("the schema is not JSON, at byte %d: %v", r.dec.InputOffset(), err)}
	}
	if depth > maxDepth {
		return nil, &Error{Msg: fmt.Sprintf("the schema is nested deeper than the limit of %d levels", maxDepth)}
	}
	switch tok := tok.(type) {
	case nil:
		v.kind = 'n'
	case bool:
		v.kind = 'f'
		if tok {
			v.kind = 't'
		}
	case string:
		v.kind, v.text = '"', tok
	case json.Number:
		v.kind, v.text = '0', tok.String()
	case json.Delim:
		v.kind = byte(tok)
		seen := map[string]bool{}
		for r.dec.More() {
			name := strconv.Itoa(len(v.items))
			if tok == '{' {
				key, err := r.dec.Token()
				if err != nil {
					return nil, &Error{Msg: fmt.Sprintf("the schema is not JSON, at byte %d: %v", r.dec.InputOffset(), err)}
				}
				name = key.(string) // the decoder takes no other keys
				if seen[name] {
					return nil, &Error{Pointer: v.pointer(), Keyword: name, Msg: "the key occurs twice"}
				}
				seen[name] = true
			}
			kid, err := r.value(v, name, depth+1)
			if err != nil {
				return nil, err
			}
			if tok == '{' {
				v.fields = append(v.fields, field{name, kid})
			} else {
				v.items = append(v.items, kid)
			}
		}
		if _, err := r.dec.Token(); err != nil {
			return nil, &Error{Msg: fmt.Sprintf("the schema is not JSON, at byte %d: %v", r.dec.InputOffset(), err)}
		}
	}
	return v, nil
}

// resolve returns what a local reference refers to.
func resolve(root *value, ref string) (*value, bool) {
	rest, ok := strings.CutPrefix(ref, "#")
	if !ok {
		return nil, false
	}
	rest, err := url.PathUnescape(rest)
	if err != nil || rest != "" && rest[0] != '/' {
		return nil, false
	}
	v := root
	for rest != "" {
		var token string
		token, rest, _ = strings.Cut(rest[1:], "/")
		if strings.Contains(token, "~") {
			token = strings.ReplaceAll(strings.ReplaceAll(token, "~1", "/"), "~0", "~")
		}
		if v.kind == '[' {
			i, err := strconv.Atoi(token)
			if err != nil || i < 0 || i >= len(v.items) {
				return nil, false
			}
			v = v.items[i]
		} else if v = v.get(token); v == nil {
			return nil, false
		}
		if rest != "" || strings.HasSuffix(ref, "/") {
			rest = "/" + rest
		}
	}
	return v, true
}

// maxExponent bounds numbers that are computed with.
const maxExponent = 400

// rat returns the value of a JSON number. It fails for numbers too large to compute with.
func rat(text string) (*big.Rat, bool) {
	mantissa, exp, ok := strings.Cut(strings.ToLower(text), "e")
	if ok {
		if n, err := strconv.Atoi(exp); err != nil || n > maxExponent || n < -maxExponent {
			return nil, false
		}
	}
	if len(mantissa) > maxExponent {
		return nil, false
	}
	return new(big.Rat).SetString(text)
}

// equal reports whether two JSON values are equal, as JSON Schema sees it.
func equal(a, b *value) bool {
	if a.kind != b.kind || len(a.items) != len(b.items) || len(a.fields) != len(b.fields) {
		return false
	}
	for i := range a.items {
		if !equal(a.items[i], b.items[i]) {
			return false
		}
	}
	for _, f := range a.fields {
		if o := b.get(f.name); o == nil || !equal(f.v, o) {
			return false
		}
	}
	if a.kind == '0' && a.text != b.text {
		x, ok1 := rat(a.text)
		y, ok2 := rat(b.text)
		return ok1 && ok2 && x.Cmp(y) == 0
	}
	return a.text == b.text
}

// quote returns a string as JSON, with no more escapes than needed.
func quote(s string) string {
	var buf bytes.Buffer
	enc := json.NewEncoder(&buf)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(s); err != nil {
		return `""` // a string always encodes
	}
	return strings.NewReplacer("\\u2028", "\u2028", "\\u2029", "\u2029").Replace(strings.TrimSuffix(buf.String(), "\n"))
}
