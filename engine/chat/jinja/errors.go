package jinja

import (
	"errors"
	"fmt"
)

// A pos is a place in a template, both counted from 1; columns are counted in characters.
type pos struct{ line, col int32 }

// An Error is a template that does not compile or does not render, and where.
type Error struct {
	Template  string // its name
	Line, Col int    // counted from 1, columns in characters
	Err       error
}

func (e *Error) Error() string {
	return fmt.Sprintf("%s:%d:%d: %v", e.Template, e.Line, e.Col, e.Err)
}

func (e *Error) Unwrap() error { return e.Err }

// A RaisedError is what a template says with raise_exception: a refusal of what it was given, meant for
// whoever sent that.
type RaisedError struct{ Message string }

func (e *RaisedError) Error() string { return e.Message }

// A LimitError is a budget that is used up.
type LimitError struct {
	What  string // such as "steps" or "bytes of output"
	Limit int
}

func (e *LimitError) Error() string {
	return fmt.Sprintf("more than %d %s", e.Limit, e.What)
}

// located gives an error the place of the innermost node that met it.
func located(name string, at pos, err error) error {
	var e *Error
	if errors.As(err, &e) {
		return err
	}
	return &Error{name, int(at.line), int(at.col), err}
}
