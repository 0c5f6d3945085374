package chat

import (
	"bytes"
	"encoding/json"
	"slices"
	"strings"

	"github.com/calderaml/caldera/engine/chat/jinja"
)

// A schema is the JSON schema of a tool's arguments. A nil schema, or one without root, knows no types.
type schema struct{ root *jinja.Map }

// Bounds of looking for the types of an argument. A schema can refer to itself.
const (
	maxSchemaDepth = 8   // of anyOf and $ref
	maxSchemaParts = 256 // schemas looked at
)

// object makes a JSON object of arguments as the model wrote them.
func (s *schema) object(args []argument) string {
	unique := make([]argument, 0, len(args))
	index := make(map[string]int, len(args))
	for _, a := range args {
		if i, ok := index[a.key]; ok { // the last one counts
			unique[i] = a
			continue
		}
		index[a.key] = len(unique)
		unique = append(unique, a)
	}
	var b strings.Builder
	b.WriteByte('{')
	for i, a := range unique {
		if i > 0 {
			b.WriteByte(',')
		}
		b.WriteString(quote(a.key))
		b.WriteByte(':')
		b.WriteString(s.value(a.key, a.value))
	}
	b.WriteByte('}')
	return b.String()
}

// value returns the JSON of an argument. One newline at each end is not part of it. A string stays as it is; other types are read as
// JSON, and stay a string if that fails.
func (s *schema) value(key, raw string) string {
	raw = strings.TrimSuffix(strings.TrimPrefix(raw, "\n"), "\n")
	types := s.types(key)
	text := strings.TrimSpace(raw)
	has := func(name string) bool { return slices.Contains(types, name) }
	switch {
	case text == "null":
		if has("null") {
			return text
		}
		return quote(raw)
	case len(types) == 0 || has("string"):
		return quote(raw)
	case has("boolean") && (text == "True" || text == "False"):
		return strings.ToLower(text)
	}
	var compact bytes.Buffer
	if json.Compact(&compact, []byte(text)) != nil {
		return quote(raw)
	}
	return compact.String()
}

// quote returns a string as JSON.
func quote(s string) string {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if e.Encode(s) != nil { // does not happen to a string
		return `""`
	}
	return strings.TrimSuffix(b.String(), "\n")
}

// types returns the types that an argument may have, none if the schema does not say.
func (s *schema) types(key string) []string {
	if s == nil || s.root == nil {
		return nil
	}
	properties, _ := s.root.Get("properties")
	if m, ok := properties.(*jinja.Map); ok {
		if v, ok := m.Get(key); ok {
			c := typeCollector{schema: s}
			c.add(v, 0)
			return c.types
		}
	}
	return nil
}

// A typeCollector finds the types of a schema.
type typeCollector struct {
	*schema
	types []string
	parts int
}

// add adds the types of a schema: its type, those of its alternatives and of what it refers to, and without any those of its enum.
func (c *typeCollector) add(v jinja.Value, depth int) {
	m, ok := v.(*jinja.Map)
	c.parts++
	if !ok || depth > maxSchemaDepth || c.parts > maxSchemaParts {
		return
	}
	before := len(c.types)
	t, _ := m.Get("type")
	c.addNames(t)
	for _, name := range []string{"anyOf", "oneOf", "allOf"} {
		v, _ := m.Get(name)
		if l, ok := v.(*jinja.List); ok {
			for _, one := range l.All() {
				c.add(one, depth+1)
			}
		}
	}
	ref, _ := m.Get("$ref")
	if t, ok := ref.(jinja.Text); ok {
		c.add(c.resolve(t.String()), depth+1)
	}
	if len(c.types) > before {
		return
	}
	enum, _ := m.Get("enum")
	if l, ok := enum.(*jinja.List); ok {
		for _, one := range l.All() {
			c.types = append(c.types, typeOf(one))
		}
	}
}

// addNames adds a type, or a list of them.
func (c *typeCollector) addNames(v jinja.Value) {
	switch v := v.(type) {
	case jinja.Text:
		c.types = append(c.types, v.String())
	case *jinja.List:
		for _, one := range v.All() {
			if name, ok := one.(jinja.Text); ok {
				c.types = append(c.types, name.String())
			}
		}
	}
}

// typeOf returns the type of a value as a schema names it.
func typeOf(v jinja.Value) string {
	switch v.(type) {
	case jinja.Text:
		return "string"
	case jinja.None:
		return "null"
	case jinja.Bool:
		return "boolean"
	case *jinja.List:
		return "array"
	case *jinja.Map:
		return "object"
	}
	return "number"
}

// resolve returns what a reference such as #/$defs/Unit is to.
func (s *schema) resolve(ref string) jinja.Value {
	path, ok := strings.CutPrefix(ref, "#/")
	if !ok {
		return nil
	}
	var v jinja.Value = s.root
	for name := range strings.SplitSeq(path, "/") {
		m, ok := v.(*jinja.Map)
		if !ok {
			return nil
		}
		v, _ = m.Get(name)
	}
	return v
}
