package idalloc

import (
	"cmp"
	"context"
	"errors"
	"io"
	"iter"
	"time"

	"google.golang.org/grpc"

	"example.com/idalloc/client/go/idallocv1"
)

// StreamRanges allocates total ids in ranges of chunk ids; 0 means 10,000. The
// server allocates each range just before it sends it. WithRequestID is an error:
// a stream has no request id.
//
// If the stream breaks, for example at a restart of the server, the client requests
// the missing ids from a usable server, for up to 60 s without a message and within
// ctx: so there may be more and shorter ranges. After an error the loop ends; the
// ranges before it stay valid. If you leave the loop early, ids on the way are a gap.
func (c *Client) StreamRanges(
	ctx context.Context, sequence string, total, chunk int64, options ...RangeOption,
) iter.Seq2[Range, error] {
	s := &idStream[idallocv1.StreamRangesResponse, Range]{
		client: c, event: Event{Method: "StreamRanges", Sequence: sequence}, chunk: chunk,
	}
	request, invalidRequest := rangeRequest(sequence, total, options)
	switch {
	case invalidRequest != nil:
		return failed[Range](invalidRequest)
	case request.RequestId != "":
		return failed[Range](invalid("request_id", "a stream has none: use AllocateRange"))
	case chunk < 0:
		return failed[Range](invalid("chunk_id_count", "must be at least 0, not %d", chunk))
	}
	s.open = func(ctx context.Context, missing int64) (grpc.ServerStreamingClient[idallocv1.StreamRangesResponse], error) {
		return c.stubs.IDAllocator.StreamRanges(ctx, &idallocv1.StreamRangesRequest{
			Sequence: sequence, TotalIdCount: missing, ChunkIdCount: chunk, View: request.GetView(),
		})
	}
	s.convert = func(reply *idallocv1.StreamRangesResponse, least, most int64, before Range) (Range, int64, error) {
		ids, err := newRange(reply, least, most, request.GetView())
		inOrder := cmp.Compare(ids.First, before.Last) == cmp.Compare(ids.Step, 0)
		if err == nil && before.Count > 0 && ids.Period == before.Period && !inOrder {
			err = invalidReply("range has first_id %d; expected an id after %d", ids.First, before.Last)
		}
		return ids, ids.Count, err
	}
	return s.all(ctx, total)
}

// StreamDocIDs generates total document ids as runs, which are a few bytes each
// on the wire. It continues over a broken stream as StreamRanges does.
func (c *Client) StreamDocIDs(ctx context.Context, total int64, _ ...DocIDOption) iter.Seq2[DocIDRun, error] {
	if total < 1 {
		return failed[DocIDRun](invalid("total_id_count", "must be at least 1, not %d", total))
	}
	s := &idStream[idallocv1.StreamDocIdsResponse, []DocIDRun]{client: c, event: Event{Method: "StreamDocIds"}}
	s.open = func(ctx context.Context, missing int64) (grpc.ServerStreamingClient[idallocv1.StreamDocIdsResponse], error) {
		return c.stubs.IDAllocator.StreamDocIds(ctx, &idallocv1.StreamDocIdsRequest{
			TotalIdCount: missing, View: idallocv1.DocIdView_DOC_ID_VIEW_COMPACT,
		})
	}
	s.convert = func(reply *idallocv1.StreamDocIdsResponse, least, most int64, before []DocIDRun) ([]DocIDRun, int64, error) {
		return newDocIDRuns(reply.GetRuns(), least, most, before)
	}
	return func(yield func(DocIDRun, error) bool) {
		for runs, err := range s.all(ctx, total) {
			if err != nil {
				yield(DocIDRun{}, err)
				return
			}
			for _, run := range runs {
				if !yield(run, nil) {
					return
				}
			}
		}
	}
}

func failed[Item any](e *Error) iter.Seq2[Item, error] {
	return func(yield func(Item, error) bool) {
		var none Item
		yield(none, e)
	}
}

// idStream is a call whose reply is a stream of ids. Another attempt requests what
// is missing.
type idStream[Reply, Item any] struct {
	client  *Client
	event   Event
	chunk   int64 // chunk_id_count; 0 for the default, 10,000
	open    func(ctx context.Context, missing int64) (grpc.ServerStreamingClient[Reply], error)
	convert func(reply *Reply, least, most int64, before Item) (item Item, ids int64, err error)
}

func (s *idStream[Reply, Item]) all(ctx context.Context, total int64) iter.Seq2[Item, error] {
	return func(yield func(Item, error) bool) {
		var none Item
		var broken outage
		ctx := context.WithValue(ctx, outageKey{}, &broken)
		for missing := total; ; {
			received, err := s.attempt(ctx, missing, func(item Item) bool {
				broken.over()
				return yield(item, nil)
			})
			if err == nil {
				return
			}
			missing -= received
			if e := broken.wait(ctx, errorOf(err)); e != nil {
				yield(none, e)
				return
			}
		}
	}
}

// attempt makes one call, and returns how many ids arrived before its error. There
// is none if use returns false, or if the connection broke after the last message.
func (s *idStream[Reply, Item]) attempt(ctx context.Context, missing int64, use func(Item) bool) (received int64, err error) {
	caller := ctx
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)                                               // ends the stream if it has not ended
	defer context.AfterFunc(s.client.ctx, func() { cancel(nil) })() // so does Close
	silence := time.AfterFunc(maxSilence, func() { cancel(errStalled) })
	defer silence.Stop()
	start := time.Now()
	defer func() { err = s.client.finish(caller, s.event, start, received, errorOf(err)) }()
	var before Item
	stream, err := s.open(ctx, missing)
	for err == nil && received < missing {
		var reply *Reply
		silence.Reset(maxSilence)
		if reply, err = stream.Recv(); err != nil {
			break
		}
		silence.Stop() // the time of the caller is none of the stream's
		most := min(cmp.Or(s.chunk, 10_000), missing-received)
		item, ids, invalid := s.convert(reply, min(max(1, s.chunk), most), most, before)
		if invalid != nil {
			return received, invalid
		}
		before = item
		received += ids
		if !use(item) {
			return received, nil
		}
	}
	switch {
	case received == missing:
		return received, nil
	case errors.Is(err, io.EOF):
		return received, invalidReply("the stream ended with %d ids missing", missing-received)
	}
	return received, failureOf(ctx, err)
}
