package server

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"mime"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"
)

// maxFieldName is how much of a field's name errors show.
const maxFieldName = 80

// bodyTimeout is the time that sending a request may take.
const bodyTimeout = 60 * time.Second

// A body is the JSON object of a request. Its readers return what a field holds and whether it is there (null is not);
// the first field that is wrong makes all further ones absent and is the error that Err returns.
type body struct {
	path   string // of the object in the request, with a dot at its end, or empty
	fields map[string]json.RawMessage
	read   map[string]bool
	err    error
}

// readBody reads the object that a request carries.
func readBody(r *http.Request) (*body, error) {
	if t := r.Header.Get("Content-Type"); t != "" {
		// A page elsewhere can send other types without asking the browser.
		kind, _, err := mime.ParseMediaType(t)
		if err != nil || kind != "application/json" && !strings.HasSuffix(kind, "+json") {
			e := invalid("", "the request's Content-Type is %.80q; send application/json", t)
			e.Status = http.StatusUnsupportedMediaType
			return nil, e
		}
	}
	// A client that sends nothing shall not hold a connection for ever. Without a deadline afterwards, as answers take long.
	// Servers in tests have no deadlines, and can do without.
	i := infoOf(r)
	conn := i.conn
	if conn != nil {
		_ = conn.SetReadDeadline(time.Now().Add(bodyTimeout))
	}
	if t := r.Header.Get("Content-Encoding"); t != "" && t != "identity" {
		e := invalid("", "the request's Content-Encoding is %.40q; send it as it is", t)
		e.Status = http.StatusUnsupportedMediaType
		return nil, e
	}
	data, err := io.ReadAll(r.Body)
	var size *http.MaxBytesError
	switch {
	case errors.As(err, &size):
		return nil, err
	case errors.Is(err, os.ErrDeadlineExceeded):
		e := invalid("", "the request's body did not come within %s", bodyTimeout)
		e.Status = http.StatusRequestTimeout
		return nil, e
	case err != nil:
		return nil, invalid("", "the request's body is cut off or malformed")
	}
	if conn != nil {
		_ = conn.SetReadDeadline(time.Time{})
	}
	i.unread = false
	if i.header != nil {
		i.header.Del("Connection")
	}
	return parseBody("", data)
}

// parseBody reads an object. The path is where it is in the request, empty for the request itself.
func parseBody(path string, data []byte) (*body, error) {
	b := &body{read: map[string]bool{}}
	if path != "" {
		b.path = path + "."
	}
	if err := json.Unmarshal(data, &b.fields); err != nil {
		var syntax *json.SyntaxError
		switch {
		case len(bytes.TrimSpace(data)) == 0:
			return nil, invalid(path, "the body is empty; send a JSON object")
		case errors.As(err, &syntax):
			return nil, invalid(path, "the body is no JSON, at byte %d: %s", syntax.Offset, strings.TrimPrefix(syntax.Error(), "json: "))
		}
		return nil, invalid(path, "must be a JSON object")
	}
	if b.fields == nil {
		return nil, invalid(path, "must be a JSON object, and is null")
	}
	return b, nil
}

// Err returns the first error.
func (b *body) Err() error { return b.err }

// fail notes an error about a field.
func (b *body) fail(name, format string, args ...any) {
	if len(name) > maxFieldName {
		name = strings.ToValidUTF8(name[:maxFieldName], "") + "…"
	}
	if b.err == nil {
		b.err = invalid(b.path+name, format, args...)
	}
}

// raw returns a field, nil if it is null or absent.
func (b *body) raw(name string) json.RawMessage {
	b.read[name] = true
	v := b.fields[name]
	if b.err != nil || len(v) == 0 || string(v) == "null" {
		return nil
	}
	return v
}

// has reports whether a field is there and not null.
func (b *body) has(name string) bool { return b.raw(name) != nil }

// text returns a string.
func (b *body) text(name string) (s string, ok bool) {
	v := b.raw(name)
	if v == nil {
		return "", false
	}
	if json.Unmarshal(v, &s) != nil {
		b.fail(name, "must be a string")
		return "", false
	}
	return s, true
}

// truth returns a boolean, and def where there is none.
func (b *body) truth(name string, def bool) bool {
	switch v := string(b.raw(name)); v {
	case "true":
		return true
	case "false":
		return false
	case "":
	default:
		b.fail(name, "must be true or false")
	}
	return def
}

// number returns a number from lo to hi.
func (b *body) number(name string, lo, hi float64) (x float64, ok bool) {
	v := b.raw(name)
	if v == nil {
		return 0, false
	}
	if !isNumber(v) {
		b.fail(name, "must be a number")
		return 0, false
	}
	// A number too large for a float is out of range like others.
	x, err := strconv.ParseFloat(string(v), 64)
	if (err != nil && !errors.Is(err, strconv.ErrRange)) || math.IsNaN(x) || x < lo || x > hi {
		b.fail(name, "%.40s is not possible; use %v to %v", v, lo, hi)
		return 0, false
	}
	return x, true
}

// isNumber reports whether a JSON value is a number.
func isNumber(v json.RawMessage) bool {
	return len(v) > 0 && (v[0] == '-' || v[0] >= '0' && v[0] <= '9')
}

// whole returns a whole number from lo to hi.
func (b *body) whole(name string, lo, hi int64) (n int64, ok bool) {
	v := b.raw(name)
	if v == nil {
		return 0, false
	}
	if !isNumber(v) {
		b.fail(name, "must be a whole number")
		return 0, false
	}
	n, err := strconv.ParseInt(string(v), 10, 64)
	if err != nil {
		// 5.0 and 1e3 are whole too.
		x, ferr := strconv.ParseFloat(string(v), 64)
		if ferr == nil && x != math.Trunc(x) {
			b.fail(name, "%.40s is not possible; use a whole number", v)
			return 0, false
		}
		if ferr != nil || math.Abs(x) >= 1<<63 {
			b.fail(name, "%.40s is not possible; use %d to %d", v, lo, hi)
			return 0, false
		}
		n = int64(x)
	}
	if n < lo || n > hi {
		if hi >= math.MaxInt32 && n < lo { // a bound that nobody meets is no help
			b.fail(name, "%d is not possible; use %d or more", n, lo)
		} else {
			b.fail(name, "%d is not possible; use %d to %d", n, lo, hi)
		}
		return 0, false
	}
	return n, true
}

// object returns an object.
func (b *body) object(name string) (*body, bool) {
	v := b.raw(name)
	if v == nil {
		return nil, false
	}
	o, err := parseBody(b.path+name, v)
	if err != nil {
		b.err = err
		return nil, false
	}
	return o, true
}

// list returns the items of a list of at most n.
func (b *body) list(name string, n int) (items []json.RawMessage, ok bool) {
	v := b.raw(name)
	if v == nil {
		return nil, false
	}
	if json.Unmarshal(v, &items) != nil || items == nil {
		b.fail(name, "must be a list")
		return nil, false
	}
	if len(items) > n {
		b.fail(name, "has %d items; at most %d are possible", len(items), n)
		return nil, false
	}
	return items, true
}

// items returns the objects of a list of at most n.
func (b *body) items(name string, n int) (items []*body, ok bool) {
	list, ok := b.list(name, n)
	for i, v := range list {
		o, err := parseBody(fmt.Sprintf("%s%s[%d]", b.path, name, i), v)
		if err != nil {
			b.err = err
			return nil, false
		}
		items = append(items, o)
	}
	return items, ok
}

// texts returns a string or a list of at most n strings.
func (b *body) texts(name string, n int) (list []string, ok bool) {
	v := b.raw(name)
	if v == nil {
		return nil, false
	}
	if v[0] == '"' {
		s, ok := b.text(name)
		return []string{s}, ok
	}
	items, ok := b.list(name, n)
	if !ok {
		return nil, false
	}
	for _, x := range items {
		var s *string
		if json.Unmarshal(x, &s) != nil || s == nil {
			b.fail(name, "must be a string or a list of strings")
			return nil, false
		}
		list = append(list, *s)
	}
	return list, true
}

// join takes over what went wrong in an object of this one.
func (b *body) join(o *body) {
	if b.err == nil {
		b.err = o.err
	}
}

// unknown returns the fields that nobody asked for, in order.
func (b *body) unknown() []string {
	var names []string
	for name := range b.fields {
		if !b.read[name] {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}
