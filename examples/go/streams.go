package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"google.golang.org/grpc"

	idallocv1 "example.com/idalloc/client/go/idallocv1"

	"example.com/orders/pool"
)

var errStalled = fmt.Errorf("no message of the stream arrived within %v", maxOutage)

// stream takes many ids in chunks.
func (p *program) stream(ctx context.Context) error {
	var first, last, received int64
	open := func(ctx context.Context, missing int64) (grpc.ServerStreamingClient[idallocv1.StreamRangesResponse], error) {
		return p.client.StreamRanges(ctx, &idallocv1.StreamRangesRequest{Sequence: p.sequence, TotalIdCount: missing})
	}
	err := resume(ctx, p, open, func(reply *idallocv1.StreamRangesResponse, missing, asked int64) (int64, error) {
		ids := reply.GetRange()
		if err := pool.CheckRange(ids, 1, missing); err != nil {
			return 0, err
		}
		if err := p.log.ids(p.sequence, "", reply, asked); err != nil {
			return 0, err
		}
		if received == 0 {
			first = ids.GetFirstId()
		}
		last = ids.GetLastId()
		received += ids.GetIdCount()
		return ids.GetIdCount(), nil
	})
	if err != nil {
		return err
	}
	p.out("stream", received, first, last)
	return nil
}

// docIDs takes many document ids as runs, a few bytes for any number of ids, and
// expands them here. The default view sends each id three times.
func (p *program) docIDs(ctx context.Context) error {
	var first, last string
	var received int64
	open := func(ctx context.Context, missing int64) (grpc.ServerStreamingClient[idallocv1.StreamDocIdsResponse], error) {
		return p.client.StreamDocIds(ctx, &idallocv1.StreamDocIdsRequest{
			TotalIdCount: missing, View: idallocv1.DocIdView_DOC_ID_VIEW_COMPACT,
		})
	}
	err := resume(ctx, p, open, func(reply *idallocv1.StreamDocIdsResponse, missing, asked int64) (int64, error) {
		var count int64
		for _, run := range reply.GetRuns() {
			if err := checkRun(run, missing-count); err != nil {
				return 0, err
			}
			count += run.GetIdCount()
		}
		if err := p.log.docIDs(reply.GetRuns(), asked); err != nil {
			return 0, err
		}
		for _, run := range reply.GetRuns() {
			for id := range expand(run) {
				if received == 0 {
					first = id
				}
				last = id
				received++
			}
		}
		return count, nil
	})
	if err != nil {
		return err
	}
	p.out("doc-ids", received, first, last)
	return nil
}

// resume receives a stream until the program's total has arrived. If the stream
// breaks, it requests what is missing: gRPC resumes no stream by itself. receive
// gets each message, and returns how many ids it has.
func resume[Reply any](
	ctx context.Context,
	p *program,
	open func(ctx context.Context, missing int64) (grpc.ServerStreamingClient[Reply], error),
	receive func(reply *Reply, missing, asked int64) (int64, error),
) error {
	var broken outage
	for missing := p.total; missing > 0; {
		err := func() error {
			ctx, cancel := context.WithCancelCause(ctx)
			defer cancel(nil) // ends the stream if it has not ended
			stalled := time.AfterFunc(maxOutage, func() { cancel(errStalled) })
			defer stalled.Stop()
			asked := p.log.now()
			stream, err := open(ctx, missing)
			for err == nil {
				var reply *Reply
				if reply, err = stream.Recv(); err != nil {
					break
				}
				stalled.Reset(maxOutage)
				count, err := receive(reply, missing, asked)
				if err != nil {
					return err
				}
				missing -= count
				p.connected = true
				broken.over()
			}
			if errors.Is(context.Cause(ctx), errStalled) {
				return errStalled
			}
			return err
		}()
		switch {
		case missing == 0: // also if the connection broke after the last message
			return nil
		case errors.Is(err, io.EOF):
			return fmt.Errorf("%w: the stream ended with %d ids missing", pool.ErrInvalidReply, missing)
		}
		if err := broken.wait(ctx, err, p.connected); err != nil {
			return err
		}
	}
	return nil
}
