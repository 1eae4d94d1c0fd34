package idalloc

import (
	"fmt"
	"iter"
	"math/bits"
	"slices"
	"strconv"
	"strings"

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

func (r DocIDRun) last() string {
	serial, _ := strconv.ParseUint(r.First[sharedLength:], 16, 64)
	return fmt.Sprintf("%s%016x", r.First[:sharedLength], serial+uint64(r.Count-1)*uint64(r.Step))
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
	runs, _, err := newDocIDRuns(reply.GetRuns(), count, count, nil)
	if err != nil {
		return nil, err
	}
	ids := make([]string, 0, count)
	for _, run := range runs {
		ids = slices.AppendSeq(ids, run.All())
	}
	return ids, nil
}

// newDocIDRuns converts runs that have minCount to maxCount ids in total. They
// come after those of the message before if they share its last 12 characters.
func newDocIDRuns(runs []*idallocv1.DocIdRun, minCount, maxCount int64, before []DocIDRun) ([]DocIDRun, int64, error) {
	count, last := int64(0), ""
	if len(before) > 0 {
		last = before[len(before)-1].last()
	}
	converted := make([]DocIDRun, len(runs))
	for i, each := range runs {
		run := DocIDRun{First: each.GetFirstDocId(), Step: each.GetStep(), Count: each.GetIdCount()}
		if !run.isValid(maxCount-count) || run.First <= last && (i > 0 || run.First[:sharedLength] == last[:sharedLength]) {
			return nil, 0, invalidReply("runs[%d] has first_doc_id %.60q, step %d and id_count %d; expected 1 to %d ids after %q",
				i, run.First, run.Step, run.Count, maxCount-count, last)
		}
		converted[i] = run
		last = run.last()
		count += run.Count
	}
	if count < minCount {
		return nil, 0, invalidReply("runs has %d ids; expected at least %d", count, minCount)
	}
	return converted, count, nil
}

// isValid returns whether a run has 1 to maxCount ids that fit the format.
func (r DocIDRun) isValid(maxCount int64) bool {
	isHex := len(r.First) == docIDLength && strings.Trim(r.First, "0123456789abcdef") == ""
	if !isHex || r.Step < 1 || r.Count < 1 || r.Count > maxCount {
		return false
	}
	serial, _ := strconv.ParseUint(r.First[sharedLength:], 16, 64)
	high, distance := bits.Mul64(uint64(r.Count-1), uint64(r.Step))
	_, carry := bits.Add64(serial, distance, 0)
	return high == 0 && carry == 0
}
