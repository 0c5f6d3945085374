package main

import (
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// sizeUnits are the units of a size, all powers of 1024 as in what the program prints.
var sizeUnits = map[string]int{"": 0, "b": 0, "k": 10, "kib": 10, "m": 20, "mib": 20, "g": 30, "gib": 30, "t": 40, "tib": 40}

const (
	// maxSize bounds sizes, so that their sums do not overflow.
	maxSize = 1 << 50
	// leastSize is the least size but none: below it the unit is missing.
	leastSize = 1 << 20
)

// parseSize reads a number of bytes: 268435456, 256M, 256MiB or 1.5G. Nothing and 0 are 0. A size below a MiB is
// refused: other programs count in MiB where a unit is missing, and to take 8192 for bytes would be no help.
func parseSize(s string) (int64, error) {
	text := strings.TrimSpace(s)
	if text == "" {
		return 0, nil
	}
	i := strings.IndexFunc(text, func(r rune) bool { return (r < '0' || r > '9') && r != '.' })
	if i < 0 {
		i = len(text)
	}
	unit := strings.ToLower(strings.TrimSpace(text[i:]))
	shift, ok := sizeUnits[unit]
	if !ok && strings.HasSuffix(unit, "b") {
		return 0, fmt.Errorf("the unit of %q is not clear; write it as in 256M or 256MiB, 1.5G or 1.5GiB", s)
	}
	v, err := strconv.ParseFloat(text[:i], 64)
	if !ok || err != nil {
		return 0, fmt.Errorf("%q is no size; write it as in 268435456, 256M or 1.5GiB", s)
	}
	v = math.Floor(v * float64(int64(1)<<shift))
	switch {
	case v > maxSize:
		return 0, fmt.Errorf("%q is more than %s", s, size(maxSize))
	case v == 0 && strings.Trim(text[:i], "0.") != "", v > 0 && v < leastSize:
		return 0, fmt.Errorf("%q is less than 1 MiB; a number without a unit is bytes: write it as in 256M or 8G", s)
	}
	return int64(v), nil
}

// parseSizes reads sizes with commas between; nothing is none.
func parseSizes(s string) (sizes []int64, err error) {
	if strings.TrimSpace(s) == "" {
		return nil, nil
	}
	for _, x := range strings.Split(s, ",") {
		n, err := parseSize(x)
		if err != nil {
			return nil, err
		}
		sizes = append(sizes, n)
	}
	return sizes, nil
}

// parseFolderSize reads a folder and the bytes that may be kept there, DIR:SIZE. Nothing and 0 are no folder. A folder
// that begins with ~/ is in the user's home, also where no shell says so.
func parseFolderSize(s string) (dir string, bytes int64, err error) {
	if s == "" || s == "0" {
		return "", 0, nil
	}
	i := strings.LastIndexByte(s, ':')
	if i <= 0 || i == len(s)-1 {
		return "", 0, fmt.Errorf("%q lacks a folder or a size; write both as in /var/cache/caldera:10G", s)
	}
	if bytes, err = parseSize(s[i+1:]); err != nil {
		return "", 0, fmt.Errorf("the size after the last colon: %w", err)
	}
	if bytes == 0 {
		return "", 0, nil
	}
	dir = s[:i]
	if rest, ok := strings.CutPrefix(dir, "~/"); ok {
		home, err := os.UserHomeDir()
		if err != nil {
			return "", 0, err
		}
		dir = filepath.Join(home, rest)
	}
	return dir, bytes, nil
}

// parseLatency reads a duration, 0 or as in 200ms or 1.5s.
func parseLatency(s string) (time.Duration, error) {
	d, err := time.ParseDuration(strings.TrimSpace(s))
	switch {
	case err != nil:
		return 0, fmt.Errorf("%q is no duration; write it with its unit, as in 200ms or 1.5s", s)
	case d < 0:
		return 0, errors.New("it is below 0")
	}
	return d, nil
}

// parseBudget reads a time that a submission may take, as the engine takes it: auto is 0, and 0 none.
func parseBudget(s string) (time.Duration, error) {
	if strings.TrimSpace(s) == "auto" {
		return 0, nil
	}
	d, err := parseLatency(s)
	if err == nil && d == 0 {
		d = -1
	}
	return d, err
}

// Checks of settings that are text.

func checkSize(s string) error {
	_, err := parseSize(s)
	return err
}

func checkSizes(s string) error {
	_, err := parseSizes(s)
	return err
}

// checkSomeSize refuses a size of nothing.
func checkSomeSize(s string) error {
	n, err := parseSize(s)
	if err == nil && n == 0 {
		err = errors.New("0 is no size that anything fits in")
	}
	return err
}

// autoSize leaves a size to the command.
const autoSize = "auto"

func checkAutoSize(s string) error {
	if s == autoSize {
		return nil
	}
	return checkSize(s)
}

func checkFolderSize(s string) error {
	_, _, err := parseFolderSize(s)
	return err
}

func checkBudget(s string) error {
	_, err := parseBudget(s)
	return err
}

// checkHang refuses no time at all, in which nothing could be computed.
func checkHang(s string) error {
	d, err := parseBudget(s)
	if err == nil && d < 0 {
		return errors.New("it is 0; a submission takes some time")
	}
	return err
}

func checkLatency(s string) error {
	_, err := parseLatency(s)
	return err
}
