package idalloc

import (
	"iter"
	"math"
	"regexp"
	"slices"
	"time"
	"unicode/utf8"

	"google.golang.org/protobuf/types/known/durationpb"

	"example.com/idalloc/client/go/idallocv1"
)

// Range is a contiguous range of ids of a sequence: First, First+Step, … Last.
// The ids belong to the caller for ever; unused ids are a gap.
type Range struct {
	First int64
	Last  int64 // inclusive
	Step  int64 // negative in a sequence that counts down; never 0
	Count int64 // at least 1

	// Texts are the ids in the sequence's format, with WithTexts.
	Texts []string
	// Period is the period of a sequence with a reset, such as "2026-11"; else
	// empty. The next period issues the same numbers again.
	Period string
	// Generation increases when the sequence is changed, advanced or created again.
	Generation int64
	// TTL is how long a pool may keep the ids, from before the request; of a
	// range of StreamRanges, from when the server sent it. A pool of this package
	// does so; ids used directly have no such limit.
	TTL time.Duration
	// Ordering is the order of the sequence's ranges.
	Ordering Ordering
	// NodeID is the server process that allocated the range; 0 if unknown.
	NodeID int64
	// Created is whether this call created the sequence. Check it where a name
	// may be mistyped.
	Created bool
}

// All yields the ids.
func (r Range) All() iter.Seq[int64] {
	return func(yield func(int64) bool) {
		id := r.First
		for range r.Count {
			if !yield(id) {
				return
			}
			id += r.Step // after the last id it may overflow, and is not used
		}
	}
}

// Ordering is the order in which the ids of a sequence are issued.
type Ordering int

const (
	// RisingPerNode: a later range of the same node has larger ids.
	RisingPerNode Ordering = Ordering(idallocv1.Ordering_ORDERING_RISING_PER_NODE)
	// Rising: a call that starts after another has returned gets larger ids, on any node.
	Rising Ordering = Ordering(idallocv1.Ordering_ORDERING_RISING)
)

// RangeRequest is one request of BatchAllocateRanges.
type RangeRequest struct {
	Sequence string
	Count    int64
}

// RangeResult is the result of one request of a batch. Err is nil or an *Error.
type RangeResult struct {
	Range Range
	Err   error
}

// RangeOption is an option of AllocateRange and StreamRanges.
type RangeOption func(*rangeOptions)

type rangeOptions struct {
	request *idallocv1.AllocateRangeRequest
}

// WithRequestID makes a call repeatable: within the server's request_id_window
// (default 1 h) the same call with the same id returns the same ids, also after
// a crash. Use NewRequestID, and keep the id with the work. It costs a write to
// the store. Streams do not have it.
func WithRequestID(id string) RangeOption {
	return func(o *rangeOptions) { o.request.RequestId = id }
}

// WithTexts also returns the ids as texts in the sequence's format, such as
// "INV-2026-000042". A message has at most 10,000 texts.
func WithTexts() RangeOption {
	return func(o *rangeOptions) { o.request.View = idallocv1.RangeView_RANGE_VIEW_TEXTS }
}

// The server's limit of a sequence's name. A request id is shorter.
const maxNameBytes = 255

func rangeRequest(sequence string, count int64, options []RangeOption) (*idallocv1.AllocateRangeRequest, *Error) {
	if count < 1 {
		return nil, invalid("id_count", "must be at least 1, not %d", count)
	}
	// A longer name, or one that cannot be encoded, would end a stream that others share.
	if len(sequence) > maxNameBytes || !utf8.ValidString(sequence) {
		return nil, invalid("sequence", "must be at most %d bytes of UTF-8, not %d bytes: %.20q", maxNameBytes, len(sequence), sequence)
	}
	request := &idallocv1.AllocateRangeRequest{Sequence: sequence, IdCount: count}
	for _, option := range options {
		option(&rangeOptions{request})
	}
	if id := request.GetRequestId(); len(id) > maxNameBytes || !utf8.ValidString(id) {
		return nil, invalid("request_id", "must be a UUID, not %.20q", id)
	}
	return request, nil
}

// rangeReply is what AllocateRange and StreamRanges return alike.
type rangeReply interface {
	GetRange() *idallocv1.IdRange
	GetTexts() []string
	GetPeriod() string
	GetGeneration() int64
	GetTtl() *durationpb.Duration
	GetOrdering() idallocv1.Ordering
	GetNodeId() int64
	GetCreated() bool
}

// maxTTL keeps the arithmetic of deadlines far from overflow. A server's
// lease_ttl is a day at most.
const maxTTL = 366 * 24 * time.Hour

var periodFormat = regexp.MustCompile("^([0-9]{4}(-[0-9]{2}(-[0-9]{2})?)?)?$")

// newRange converts a reply with minCount to maxCount ids whose fields agree.
func newRange(reply rangeReply, minCount, maxCount int64, view idallocv1.RangeView) (Range, error) {
	ids, ttl, texts := reply.GetRange(), reply.GetTtl().AsDuration(), reply.GetTexts()
	if err := checkRange(ids, minCount, maxCount); err != nil {
		return Range{}, err
	}
	nanos := reply.GetTtl().GetNanos()
	if ttl < 0 || ttl > maxTTL || nanos < 0 || nanos >= 1e9 || !periodFormat.MatchString(reply.GetPeriod()) {
		return Range{}, invalidReply("ttl is %v of %d ns, period is %.60q; expected 0 to %v, and a year, a month or a day",
			ttl, nanos, reply.GetPeriod(), maxTTL)
	}
	hasTexts := view == idallocv1.RangeView_RANGE_VIEW_TEXTS
	different := slices.Compact(slices.Sorted(slices.Values(texts)))
	if (hasTexts && int64(len(texts)) != ids.GetIdCount()) || hasTexts != (len(different) > 0) ||
		len(different) < len(texts) || slices.Contains(texts, "") {
		return Range{}, invalidReply("texts has %d items for %d ids; expected different ones", len(texts), ids.GetIdCount())
	}
	return Range{
		First: ids.GetFirstId(), Last: ids.GetLastId(), Step: ids.GetStep(), Count: ids.GetIdCount(),
		Texts: texts, Period: reply.GetPeriod(), Generation: reply.GetGeneration(), TTL: ttl,
		Ordering: Ordering(reply.GetOrdering()), NodeID: reply.GetNodeId(), Created: reply.GetCreated(),
	}, nil
}

func checkRange(ids *idallocv1.IdRange, minCount, maxCount int64) error {
	first, last, step, count := ids.GetFirstId(), ids.GetLastId(), ids.GetStep(), ids.GetIdCount()
	distance := (count - 1) * step
	fits := step != 0 && distance/step == count-1 && (first+distance < first) == (distance < 0)
	if count < max(1, minCount) || count > maxCount || !fits || first+distance != last || max(first, last) == math.MaxInt64 {
		return invalidReply("range has first_id %d, last_id %d, step %d and id_count %d; expected %d to %d ids, at most 2^63-2",
			first, last, step, count, minCount, maxCount)
	}
	return nil
}
