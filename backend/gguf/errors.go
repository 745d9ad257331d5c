package gguf

import (
	"errors"
	"fmt"
	"strconv"
)

var (
	// ErrCorrupt marks a file whose bytes contradict each other: cut short, wrong
	// magic, lengths beyond its end, overlapping tensors.
	ErrCorrupt = errors.New("corrupt GGUF file")

	// ErrUnsupported marks a file or tensor that may be valid but that this package
	// does not read: an old or big-endian version, one part of a split model in
	// memory, an unknown tensor type.
	ErrUnsupported = errors.New("unsupported GGUF file")
)

// corruptf returns an error that matches ErrCorrupt and says where it was found
// and what to do.
func corruptf(offset int, format string, args ...any) error {
	return fmt.Errorf("%w: at byte %s: %s; download or convert it again", ErrCorrupt, comma(offset), fmt.Sprintf(format, args...))
}

// unsupportedf returns an error that matches ErrUnsupported.
func unsupportedf(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrUnsupported, fmt.Sprintf(format, args...))
}

// comma writes n with a comma after each group of three digits: 1,234,567.
func comma[T ~int | ~int64 | ~uint64](n T) string {
	s := strconv.FormatInt(int64(n), 10)
	sign := ""
	if n < 0 {
		sign, s = "-", s[1:]
	}
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return sign + s
}
