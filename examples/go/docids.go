package main

import (
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"iter"
	"math/bits"
	"strconv"

	idallocv1 "example.com/idalloc/go/idalloc/v1"

	"example.com/orders/pool"
)

const (
	docIDLength  = 28
	sharedLength = 12 // the rest is the serial, in hexadecimal
	idsPerBlock  = 100
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
		shared := run.GetFirstDocId()[:sharedLength]
		serial, _ := strconv.ParseUint(run.GetFirstDocId()[sharedLength:], 16, 64)
		for left := run.GetIdCount(); left > 0; {
			// One allocation for many ids, which are slices of it.
			size := min(left, idsPerBlock)
			left -= size
			block := make([]byte, 0, docIDLength*size)
			for range size {
				var octets [8]byte
				binary.BigEndian.PutUint64(octets[:], serial)
				block = hex.AppendEncode(append(block, shared...), octets[:])
				serial += uint64(run.GetStep())
			}
			for text := string(block); text != ""; text = text[docIDLength:] {
				if !yield(text[:docIDLength]) {
					return
				}
			}
		}
	}
}
