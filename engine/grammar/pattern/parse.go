package pattern

import (
	"errors"
	"fmt"
	"regexp"
	"regexp/syntax"
)

// Limits on one pattern. They are far above what people write, and keep the time and memory for hostile ones small.
const (
	maxSource = 64 << 10 // bytes
	maxInsts  = 50_000   // instructions with repetitions written out
	maxStates = 4096     // of the automaton
	maxWork   = 20_000_000
)

// An Error says why a pattern cannot be used.
type Error struct {
	Pattern string
	Err     error
}

func (e *Error) Error() string {
	p := e.Pattern
	if len(p) > 40 {
		p = p[:40] + "…"
	}
	return fmt.Sprintf("pattern %q: %v", p, e.Err)
}

func (e *Error) Unwrap() error { return e.Err }

// parse compiles a regular expression to a program of the standard library. With whole set the expression must match
// the whole text.
func parse(source string, whole bool) (*syntax.Prog, error) {
	if len(source) > maxSource {
		return nil, fmt.Errorf("it is longer than the limit of %d bytes", maxSource)
	}
	re, err := syntax.Parse(source, syntax.Perl)
	if err != nil {
		return nil, describe(err)
	}
	size, err := check(re)
	if err != nil {
		return nil, err
	}
	if size > maxInsts {
		return nil, fmt.Errorf("it is larger than the limit of %d instructions", maxInsts)
	}
	if whole {
		begin, end := &syntax.Regexp{Op: syntax.OpBeginText}, &syntax.Regexp{Op: syntax.OpEndText}
		re = &syntax.Regexp{Op: syntax.OpConcat, Sub: []*syntax.Regexp{begin, re, end}}
	}
	return syntax.Compile(re.Simplify())
}

// describe puts an error of the standard library in a form without its prefix.
func describe(err error) error {
	var e *syntax.Error
	if !errors.As(err, &e) {
		return err
	}
	switch e.Code {
	case syntax.ErrMissingRepeatArgument:
		return fmt.Errorf("the quantifier %q has nothing to repeat", e.Expr)
	case syntax.ErrInvalidRepeatSize:
		return fmt.Errorf("the repetition %q is out of the limit of 1000", e.Expr)
	case syntax.ErrNestingDepth, syntax.ErrLarge:
		return fmt.Errorf("it exceeds a limit: %v", e.Code)
	}
	if len(e.Expr) > 40 {
		return errors.New(e.Code.String())
	}
	return fmt.Errorf("%v: %q", e.Code, e.Expr)
}

// check refuses what the automaton cannot do and returns how many instructions the expression takes, about. The
// recursion is bounded by the parser's limit of 1000 levels.
func check(re *syntax.Regexp) (int, error) {
	size := 1 + len(re.Rune)
	for _, sub := range re.Sub {
		n, err := check(sub)
		if err != nil {
			return 0, err
		}
		size += n
	}
	switch re.Op {
	case syntax.OpWordBoundary, syntax.OpNoWordBoundary:
		return 0, errors.New(`word boundaries (\b and \B) are not supported`)
	case syntax.OpBeginLine, syntax.OpEndLine:
		return 0, errors.New("the flag (?m) is not supported")
	case syntax.OpStar, syntax.OpPlus, syntax.OpQuest, syntax.OpRepeat:
		switch re.Sub[0].Op {
		case syntax.OpBeginText, syntax.OpEndText, syntax.OpEmptyMatch:
			return 0, fmt.Errorf("the quantifier in %q has nothing to repeat", re)
		}
		if re.Op == syntax.OpRepeat {
			size *= max(re.Min, re.Max, 1)
		}
	}
	return min(size, 1<<40), nil
}

// Matches reports whether a text fulfils all patterns.
func Matches(patterns []Pattern, text string) (bool, error) {
	for _, p := range patterns {
		if _, err := parse(p.Source, p.Whole); err != nil {
			return false, &Error{p.Source, err}
		}
		source := p.Source
		if p.Whole {
			source = `\A(?:` + source + `)\z`
		}
		re, err := regexp.Compile(source)
		if err != nil {
			return false, &Error{p.Source, err}
		}
		if !re.MatchString(text) {
			return false, nil
		}
	}
	return true, nil
}
