package main

import (
	"context"
	"crypto/rand"
	"fmt"
	"time"

	"google.golang.org/protobuf/proto"

	idallocv1 "example.com/idalloc/client/go/idallocv1"

	"example.com/orders/pool"
)

const callTimeout = 5 * time.Second

// program shows the ways to get ids. Each of them reports its ids in out.
type program struct {
	client    idallocv1.IdAllocatorServiceClient
	sequence  string
	total     int64
	log       *issuedLog
	connected bool // whether the server has answered
	out       func(way string, count int64, first, last any)
}

func (p *program) run(ctx context.Context) error {
	for _, way := range []func(context.Context) error{p.pool, p.unary, p.allocateStream, p.requestID, p.stream, p.docIDs} {
		if err := way(ctx); err != nil {
			return err
		}
	}
	return nil
}

// allocate calls AllocateRange, and records its ids unless the request was
// recorded before.
func (p *program) allocate(
	ctx context.Context, request *idallocv1.AllocateRangeRequest, isRecorded bool,
) (*idallocv1.AllocateRangeResponse, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	asked := p.log.now()
	reply, err := p.client.AllocateRange(ctx, request)
	if err != nil || isRecorded {
		return reply, err
	}
	return reply, p.log.ids(request.GetSequence(), request.GetRequestId(), reply, asked)
}

// pool takes ids one by one.
func (p *program) pool(ctx context.Context) error {
	ids := pool.New(func(ctx context.Context, count int64) (*idallocv1.AllocateRangeResponse, error) {
		return p.allocate(ctx, &idallocv1.AllocateRangeRequest{Sequence: p.sequence, IdCount: count}, false)
	}, pool.BootClock())
	defer ids.Close()
	var broken outage
	var first, last int64
	for count := int64(0); count < p.total; {
		id, err := ids.Next(ctx)
		if err != nil {
			if err := broken.wait(ctx, err, p.connected); err != nil {
				return err
			}
			continue
		}
		if count == 0 {
			first = id
			p.connected = true
		}
		last = id
		count++
		broken.over()
	}
	p.out("pool", p.total, first, last)
	return nil
}

// unary takes one range for immediate use, with a deadline. The retry policy
// may repeat the call within it: a repeated call takes new ids.
func (p *program) unary(ctx context.Context) error {
	reply, err := p.repeat(ctx, &idallocv1.AllocateRangeRequest{Sequence: p.sequence, IdCount: 100}, false)
	if err != nil {
		return err
	}
	ids := reply.GetRange()
	p.out("unary", ids.GetIdCount(), ids.GetFirstId(), ids.GetLastId())
	return nil
}

// requestID sends one request twice, as after a lost reply. With a request_id
// the second reply has the same ids.
func (p *program) requestID(ctx context.Context) error {
	request := &idallocv1.AllocateRangeRequest{Sequence: p.sequence, IdCount: 100, RequestId: newUUID()}
	reply, err := p.repeat(ctx, request, false)
	if err != nil {
		return err
	}
	again, err := p.repeat(ctx, request, true)
	if err != nil {
		return err
	}
	ids := reply.GetRange()
	if !proto.Equal(ids, again.GetRange()) || reply.GetGeneration() != again.GetGeneration() {
		return fmt.Errorf("request_id %s got the ids %v, then %v", request.GetRequestId(), ids, again.GetRange())
	}
	p.out("request-id", ids.GetIdCount(), ids.GetFirstId(), ids.GetLastId())
	return nil
}

// repeat calls AllocateRange until it succeeds, over a restart of the server.
func (p *program) repeat(
	ctx context.Context, request *idallocv1.AllocateRangeRequest, isRecorded bool,
) (*idallocv1.AllocateRangeResponse, error) {
	var broken outage
	for {
		reply, err := p.allocate(ctx, request, isRecorded)
		if err == nil {
			p.connected = true
			return reply, pool.CheckRange(reply.GetRange(), request.GetIdCount(), request.GetIdCount())
		}
		if err := broken.wait(ctx, err, p.connected); err != nil {
			return nil, err
		}
	}
}

// newUUID returns a UUID of version 4.
func newUUID() string {
	var u [16]byte
	rand.Read(u[:]) // never fails
	u[6], u[8] = u[6]&0x0f|0x40, u[8]&0x3f|0x80
	return fmt.Sprintf("%x-%x-%x-%x-%x", u[:4], u[4:6], u[6:8], u[8:10], u[10:])
}
