package main

import (
	"fmt"
	"iter"
	"math/bits"
	"strconv"

	idallocv1 "example.com/idalloc/client/go/idallocv1"

	"example.com/orders/pool"
)

const (
	docIDLength  = 28
	sharedLength = 12 // the rest is the serial, in hexadecimal
)

// checkRun returns an error unless a run has 1 to maxCount ids that fit the
// format.
func checkRun(run *idallocv1.DocIdRun, maxCount int64) error {
	first, step, count := run.GetFirstDocId(), run.GetStep(), run.GetIdCount()
	if count < 1 || count > maxCount {
		return fmt.Errorf("%w: a run has %d ids; expected 1 to %d", pool.ErrInvalidReply, count, maxCount)
	}
	if len(first) != docIDLength || step < 1 {
		return fmt.Errorf("%w: a run from %q by %d", pool.ErrInvalidReply, first, step)
	}
	serial, err := strconv.ParseUint(first[sharedLength:], 16, 64)
	if err != nil {
		return fmt.Errorf("%w: first_doc_id: %w", pool.ErrInvalidReply, err)
	}
	high, distance := bits.Mul64(uint64(count-1), uint64(step))
	if _, carry := bits.Add64(serial, distance, 0); high != 0 || carry != 0 {
		return fmt.Errorf("%w: the serials of a run from %q overflow", pool.ErrInvalidReply, first)
	}
	return nil
}

// expand yields the document ids of a checked run: they share their first 12
// characters, and their serials rise by the run's step. Steps need not be even
// within a message: with an increment above 1, the first id comes in a run of
// its own where it does not fit the offset.
func expand(run *idallocv1.DocIdRun) iter.Seq[string] {
	return func(yield func(string) bool) {
		text := []byte(run.GetFirstDocId())
		serial, _ := strconv.ParseUint(string(text[sharedLength:]), 16, 64)
		for range run.GetIdCount() {
			for i, rest := docIDLength-1, serial; i >= sharedLength; i-- { // faster than encoding/hex
				text[i] = "0123456789abcdef"[rest&0xf]
				rest >>= 4
			}
			if !yield(string(text)) {
				return
			}
			serial += uint64(run.GetStep())
		}
	}
}
