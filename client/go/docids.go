package idalloc

import (
	"iter"
	"math/bits"
	"slices"
	"strconv"

	"example.com/idalloc/client/go/idallocv1"
)

const (
	docIDLength  = 28
	sharedLength = 12 // the rest is the serial, in hexadecimal
)

// DocIDRun is a run of document ids in MySQL's format. They share their first 12
// characters, and their serials, the other 16, rise by Step.
type DocIDRun struct {
	First string // 28 hexadecimal characters
	Step  int64  // at least 1
	Count int64  // at least 1
}

// All yields the document ids; none of the zero DocIDRun.
func (r DocIDRun) All() iter.Seq[string] {
	return func(yield func(string) bool) {
		if len(r.First) != docIDLength {
			return
		}
		text := []byte(r.First)
		serial, _ := strconv.ParseUint(string(text[sharedLength:]), 16, 64)
		for range r.Count {
			for i, rest := docIDLength-1, serial; i >= sharedLength; i-- { // faster than encoding/hex
				text[i] = "0123456789abcdef"[rest&0xf]
				rest >>= 4
			}
			if !yield(string(text)) {
				return
			}
			serial += uint64(r.Step)
		}
	}
}

// docIDRequest asks for runs: a few bytes for any number of ids.
func docIDRequest(count int64) (*idallocv1.GenerateDocIdRequest, *Error) {
	if count < 1 {
		return nil, invalid("id_count", "must be at least 1, not %d", count)
	}
	return &idallocv1.GenerateDocIdRequest{IdCount: count, View: idallocv1.DocIdView_DOC_ID_VIEW_COMPACT}, nil
}

// docIDs returns the ids of a reply to docIDRequest.
func docIDs(reply *idallocv1.GenerateDocIdResponse, count int64) ([]string, error) {
	runs, _, err := newDocIDRuns(reply.GetRuns(), count, count)
	if err != nil {
		return nil, err
	}
	ids := make([]string, 0, count)
	for _, run := range runs {
		ids = slices.AppendSeq(ids, run.All())
	}
	return ids, nil
}

// newDocIDRuns converts runs that have minCount to maxCount ids in total.
func newDocIDRuns(runs []*idallocv1.DocIdRun, minCount, maxCount int64) ([]DocIDRun, int64, error) {
	var count int64
	converted := make([]DocIDRun, len(runs))
	for i, run := range runs {
		if err := checkRun(run, maxCount-count); err != nil {
			return nil, 0, err
		}
		count += run.GetIdCount()
		converted[i] = DocIDRun{First: run.GetFirstDocId(), Step: run.GetStep(), Count: run.GetIdCount()}
	}
	if count < minCount {
		return nil, 0, invalidReply("%d document ids; expected at least %d", count, minCount)
	}
	return converted, count, nil
}

// checkRun returns an error unless a run has 1 to maxCount ids that fit the
// format.
func checkRun(run *idallocv1.DocIdRun, maxCount int64) error {
	first, step, count := run.GetFirstDocId(), run.GetStep(), run.GetIdCount()
	if count < 1 || count > maxCount {
		return invalidReply("a run has %d ids; expected 1 to %d", count, maxCount)
	}
	if len(first) != docIDLength || step < 1 {
		return invalidReply("a run from %q by %d", first, step)
	}
	serial, err := strconv.ParseUint(first[sharedLength:], 16, 64)
	if err != nil {
		return invalidReply("first_doc_id: %v", err)
	}
	high, distance := bits.Mul64(uint64(count-1), uint64(step))
	if _, carry := bits.Add64(serial, distance, 0); high != 0 || carry != 0 {
		return invalidReply("the serials of a run from %q overflow", first)
	}
	return nil
}
