package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	idalloc "example.com/idalloc/client/go"
)

const (
	rangeSize  = 100
	tooManyIDs = 1 << 31 // more than any server allows in a call
)

// program shows the ways to get ids. Each of them reports its ids in out.
type program struct {
	client   *idalloc.Client
	sequence string
	total    int64
	out      func(way string, count int64, first, last any)
}

func (p *program) run(ctx context.Context) error {
	for _, way := range []func(context.Context) error{p.pool, p.unary, p.allocateStream, p.requestID, p.stream, p.docIDs} {
		if err := way(ctx); err != nil {
			return err
		}
	}
	return nil
}

// pool takes ids one by one.
func (p *program) pool(ctx context.Context) error {
	ids := p.client.Pool(p.sequence)
	defer ids.Close()
	var first, last, count int64
	for id, err := range ids.All(ctx) {
		if err != nil {
			return err
		}
		if count == 0 {
			first = id
		}
		last = id
		if count++; count == p.total {
			break
		}
	}
	p.out("pool", count, first, last)
	return nil
}

// unary takes one range for immediate use.
func (p *program) unary(ctx context.Context) error {
	ids, err := repeat(ctx, func() (idalloc.Range, error) { return p.client.AllocateRange(ctx, p.sequence, rangeSize) })
	if err != nil {
		return err
	}
	p.out("unary", ids.Count, ids.First, ids.Last)
	return nil
}

// allocateStream makes several calls over one stream. One fails, and the others
// get their ids.
func (p *program) allocateStream(ctx context.Context) error {
	stream := p.client.AllocateStream()
	defer stream.Close()
	var orders, lines idalloc.Range
	var docIDs []string
	var errs [3]error
	var calls sync.WaitGroup
	allocate := func(sequence string, count int64) (idalloc.Range, error) {
		return repeat(ctx, func() (idalloc.Range, error) { return stream.AllocateRange(ctx, sequence, count) })
	}
	calls.Go(func() { orders, errs[0] = allocate(p.sequence, 2) })
	calls.Go(func() { lines, errs[1] = allocate(p.sequence+"-lines", 5) })
	calls.Go(func() {
		if _, err := allocate(p.sequence, tooManyIDs); err != nil {
			fmt.Printf("allocate-stream: one request failed: %v\n", err)
		}
	})
	calls.Go(func() {
		docIDs, errs[2] = repeat(ctx, func() ([]string, error) { return stream.DocIDs(ctx, 3) })
	})
	calls.Wait()
	if err := errors.Join(errs[:]...); err != nil {
		return err
	}
	p.out("allocate-stream", orders.Count+lines.Count+int64(len(docIDs)), orders.First, docIDs[len(docIDs)-1])
	return nil
}

// requestID sends one request twice, as after a lost reply. With a request id
// the second reply has the same ids.
func (p *program) requestID(ctx context.Context) error {
	requestID := idalloc.WithRequestID(idalloc.NewRequestID())
	allocate := func() (idalloc.Range, error) {
		return p.client.AllocateRange(ctx, p.sequence, rangeSize, requestID)
	}
	ids, err := repeat(ctx, allocate)
	if err != nil {
		return err
	}
	again, err := repeat(ctx, allocate)
	if err != nil {
		return err
	}
	if ids.First != again.First || ids.Last != again.Last || ids.Generation != again.Generation {
		return fmt.Errorf("one request id got the ids %v, then %v", ids, again)
	}
	p.out("request-id", ids.Count, ids.First, ids.Last)
	return nil
}

// repeat calls until it succeeds, over a restart of the only server: gRPC's own
// retries end after 1.5 s. Without a request id a retry may leave a gap.
func repeat[T any](ctx context.Context, call func() (T, error)) (T, error) {
	for patience := time.Now().Add(time.Minute); ; {
		result, err := call()
		var failed *idalloc.Error
		if !errors.As(err, &failed) || !failed.Retryable() || time.Now().After(patience) {
			return result, err
		}
		select {
		case <-time.After(max(failed.RetryDelay, 500*time.Millisecond)):
		case <-ctx.Done():
			return result, err
		}
	}
}

// stream takes many ids in ranges.
func (p *program) stream(ctx context.Context) error {
	var first, last, count int64
	for ids, err := range p.client.StreamRanges(ctx, p.sequence, p.total, 0) {
		if err != nil {
			return err
		}
		if count == 0 {
			first = ids.First
		}
		last = ids.Last
		count += ids.Count
	}
	p.out("stream", count, first, last)
	return nil
}

// docIDs takes many document ids.
func (p *program) docIDs(ctx context.Context) error {
	var first, last string
	var count int64
	for run, err := range p.client.StreamDocIDs(ctx, p.total) {
		if err != nil {
			return err
		}
		for id := range run.All() {
			if count == 0 {
				first = id
			}
			last = id
			count++
		}
	}
	p.out("doc-ids", count, first, last)
	return nil
}
