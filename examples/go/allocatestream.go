package main

import (
	"context"
	"errors"
	"fmt"
	"io"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	idallocv1 "example.com/idalloc/client/go/idallocv1"

	"example.com/orders/pool"
)

// allocateStream sends several requests over one stream: ranges of two
// sequences, one that fails, and document ids. gRPC does not resume a stream:
// if it breaks, all requests are sent again, and the ids of the broken one are
// a gap.
func (p *program) allocateStream(ctx context.Context) error {
	var broken outage
	for {
		err := p.exchange(ctx, []*idallocv1.AllocateStreamRequest{
			rangeOf(p.sequence, 2),
			rangeOf(p.sequence+"-lines", 5),
			rangeOf(p.sequence, 1<<31), // more than any server allows: it fails, and the stream goes on
			{Request: &idallocv1.AllocateStreamRequest_GenerateDocId{GenerateDocId: &idallocv1.GenerateDocIdRequest{
				IdCount: 3, View: idallocv1.DocIdView_DOC_ID_VIEW_COMPACT,
			}}},
		})
		if err == nil {
			return nil
		}
		if err := broken.wait(ctx, err, p.connected); err != nil {
			return err
		}
	}
}

func rangeOf(sequence string, count int64) *idallocv1.AllocateStreamRequest {
	return &idallocv1.AllocateStreamRequest{Request: &idallocv1.AllocateStreamRequest_AllocateRange{
		AllocateRange: &idallocv1.AllocateRangeRequest{Sequence: sequence, IdCount: count},
	}}
}

// exchange sends requests over one stream, and reads the answer to each. It
// sends all of them first: a program with more than 1,000 must read meanwhile,
// in another goroutine.
func (p *program) exchange(ctx context.Context, requests []*idallocv1.AllocateStreamRequest) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	asked := p.log.now()
	stream, err := p.client.AllocateStream(ctx)
	if err != nil {
		return err
	}
	for i, request := range requests {
		request.Number = int64(i) + 1                                           // the answer repeats it
		if err := stream.Send(request); err != nil && !errors.Is(err, io.EOF) { // after io.EOF, Recv has the error
			return err
		}
	}
	if err := stream.CloseSend(); err != nil { // the server ends the stream after the last answer
		return err
	}
	var count int64
	var first, last any
	for _, request := range requests {
		answer, err := stream.Recv()
		if err != nil {
			return err
		}
		if answer.GetNumber() != request.GetNumber() {
			return fmt.Errorf("%w: number is %d; expected %d", pool.ErrInvalidReply, answer.GetNumber(), request.GetNumber())
		}
		if failed := status.FromProto(answer.GetError()); failed.Code() == codes.Unavailable {
			return failed.Err()
		} else if failed.Code() != codes.OK {
			fmt.Printf("allocate-stream: request %d failed: %s\n", answer.GetNumber(), describe(failed.Err()))
			continue
		}
		from, to, received, err := p.receive(request, answer, asked)
		if err != nil {
			return err
		}
		if count == 0 {
			first = from
		}
		last = to
		count += received
	}
	_, _ = stream.Recv() // io.EOF: the stream is closed. Any other error comes too late to matter.
	p.connected = true
	p.out("allocate-stream", count, first, last)
	return nil
}

// receive checks and records an answer with ids, and returns the first one, the
// last one and their number.
func (p *program) receive(
	request *idallocv1.AllocateStreamRequest, answer *idallocv1.AllocateStreamResponse, asked int64,
) (first, last any, count int64, err error) {
	if wanted := request.GetAllocateRange(); wanted != nil {
		reply := answer.GetAllocateRange() // nil, if the answer has something else
		ids := reply.GetRange()
		if err := pool.CheckRange(ids, wanted.GetIdCount(), wanted.GetIdCount()); err != nil {
			return nil, nil, 0, err
		}
		return ids.GetFirstId(), ids.GetLastId(), ids.GetIdCount(), p.log.ids(wanted.GetSequence(), "", reply, asked)
	}
	runs := answer.GetGenerateDocId().GetRuns()
	wanted := request.GetGenerateDocId().GetIdCount()
	for _, run := range runs {
		if err := checkRun(run, wanted-count); err != nil {
			return nil, nil, 0, err
		}
		for id := range expand(run) {
			if count == 0 {
				first = id
			}
			last = id
			count++
		}
	}
	if count != wanted {
		return nil, nil, 0, fmt.Errorf("%w: %d document ids; expected %d", pool.ErrInvalidReply, count, wanted)
	}
	return first, last, count, p.log.docIDs(runs, asked)
}
