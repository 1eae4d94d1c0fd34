package idalloc

import (
	"context"
	"errors"
	"io"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	"example.com/idalloc/client/go/idallocv1"
)

// The most requests of a stream without an answer; the server's limit is 1,000.
const maxInFlight = 500

// Stream makes many calls over one stream (AllocateStream), which costs client
// and server less than unary calls. Goroutines share it: their requests are in
// flight together, and the answers come in the order of the requests. One that
// waits for the store delays the answers after it. At most 500 requests are on
// their way, and those after them wait in the process.
//
// The server limits the ids of a stream's requests without an answer to ten times
// its max_ids_per_call. A request beyond that is sent again, within its context
// and WithTimeout.
//
// The stream opens with the first request. If it breaks, if its server stops, or
// if no answer comes for 60 s, the requests without an answer are sent again over
// a new one: the ids of a lost answer are a gap, unless the request has a request
// id.
type Stream struct {
	client *Client
	ctx    context.Context // ends with Close
	cancel context.CancelFunc

	mu        sync.Mutex
	wake      sync.Cond   // a request may be sent
	sent      []*pending  // on the open stream, without an answer, in order
	waiting   []*pending  // to be sent
	number    int64       // of the last request that was sent
	silence   *time.Timer // ends an attempt without an answer to the oldest request
	broken    error       // why the last stream ended; nil since its next answer
	isRunning bool
	running   sync.WaitGroup
}

// pending is a request without an answer.
type pending struct {
	ctx     context.Context
	request *idallocv1.AllocateStreamRequest
	answer  chan answer // has room for the only one
}

type answer struct {
	response *idallocv1.AllocateStreamResponse
	err      error
}

// AllocateStream returns a stream for many calls. Create one, and share it. Close
// it: the client keeps it until then.
func (c *Client) AllocateStream(...StreamOption) *Stream {
	ctx, cancel := context.WithCancel(c.ctx)
	s := &Stream{client: c, ctx: ctx, cancel: cancel}
	s.wake.L = &s.mu
	c.members.Store(s, nil)
	return s
}

// AllocateRange is as Client.AllocateRange.
func (s *Stream) AllocateRange(ctx context.Context, sequence string, count int64, options ...RangeOption) (allocated Range, err error) {
	request, invalid := rangeRequest(sequence, count, options)
	if invalid != nil {
		return Range{}, invalid
	}
	message := &idallocv1.AllocateStreamRequest{
		Request: &idallocv1.AllocateStreamRequest_AllocateRange{AllocateRange: request},
	}
	event := Event{Method: "AllocateStream", Sequence: sequence}
	err = s.call(ctx, event, message, func(response *idallocv1.AllocateStreamResponse) (ids int64, err error) {
		allocated, err = newRange(response.GetAllocateRange(), count, count, request.GetView())
		return allocated.Count, err
	})
	return allocated, err
}

// DocIDs is as Client.DocIDs.
func (s *Stream) DocIDs(ctx context.Context, count int64, _ ...DocIDOption) (ids []string, err error) {
	request, invalid := docIDRequest(count)
	if invalid != nil {
		return nil, invalid
	}
	message := &idallocv1.AllocateStreamRequest{
		Request: &idallocv1.AllocateStreamRequest_GenerateDocId{GenerateDocId: request},
	}
	err = s.call(ctx, Event{Method: "AllocateStream"}, message, func(response *idallocv1.AllocateStreamResponse) (_ int64, err error) {
		ids, err = docIDs(response.GetGenerateDocId(), count)
		return int64(len(ids)), err
	})
	return ids, err
}

// Close ends the stream and waits for its end. Calls that wait for an answer
// end with ErrClosed.
func (s *Stream) Close() error {
	s.mu.Lock() // no call starts run after this
	s.cancel()
	s.mu.Unlock()
	s.running.Wait()
	s.client.members.Delete(s)
	return nil
}

// call sends a request until it has its answer, a lasting error, or no time left.
func (s *Stream) call(
	ctx context.Context, event Event, request *idallocv1.AllocateStreamRequest,
	convert func(*idallocv1.AllocateStreamResponse) (ids int64, err error),
) error {
	return s.client.call(ctx, event, func(ctx context.Context) (int64, error) {
		for retry := (outage{maxRounds: maxRounds}); ; {
			response, err := s.exchange(ctx, request)
			if err != nil {
				return 0, err
			}
			if response.GetError() == nil {
				return convert(response)
			}
			e := errorOf(status.ErrorProto(response.GetError()))
			if e == nil {
				return 0, invalidReply("an error has the code OK")
			}
			// The limit of a stream's ids is no failure: other callers use it up.
			if e.Code != codes.Unavailable && (e.Reason != ErrQuotaExceeded || e.Metadata["subject"] != "stream") {
				return 0, e
			}
			if e := retry.wait(ctx, e); e != nil {
				return 0, e
			}
		}
	})
}

// exchange sends a request, and waits for its answer.
func (s *Stream) exchange(ctx context.Context, request *idallocv1.AllocateStreamRequest) (*idallocv1.AllocateStreamResponse, error) {
	p := &pending{ctx: ctx, request: request, answer: make(chan answer, 1)}
	s.mu.Lock()
	if s.ctx.Err() != nil {
		s.mu.Unlock()
		return nil, closed("stream")
	}
	s.waiting = append(s.waiting, p)
	s.wake.Signal()
	if !s.isRunning {
		s.isRunning = true
		s.running.Go(s.run)
	}
	s.mu.Unlock()
	return s.await(p)
}

// await returns the answer to a request. If the caller leaves before, the answer
// comes to no one, and its ids are a gap; the error says why the stream broke, if
// there was no answer since.
func (s *Stream) await(p *pending) (*idallocv1.AllocateStreamResponse, error) {
	select {
	case got := <-p.answer:
		return got.response, got.err
	case <-p.ctx.Done():
	case <-s.ctx.Done():
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	select {
	case got := <-p.answer: // at the last moment
		return got.response, got.err
	default:
	}
	if s.ctx.Err() != nil {
		return nil, closed("stream")
	}
	s.waiting = slices.DeleteFunc(s.waiting, func(each *pending) bool { return each == p })
	e := errorOf(p.ctx.Err())
	if s.broken != nil && e.Reason == ErrDeadlineExceeded {
		e = endedBy(p.ctx, errorOf(s.broken))
	} else if s.broken != nil {
		e.Message += "; the last attempt: " + errorOf(s.broken).Error()
	}
	return nil, e
}

// run opens streams while requests wait. A lasting error is that of all of them.
func (s *Stream) run() {
	var broken outage
	ctx := context.WithValue(s.ctx, outageKey{}, &broken)
	for {
		err := s.attempt(ctx, &broken)
		s.mu.Lock()
		s.broken = err
		s.waiting, s.sent = append(s.sent, s.waiting...), nil
		// The requests whose callers have left are not sent again.
		s.waiting = slices.DeleteFunc(s.waiting, func(p *pending) bool { return p.ctx.Err() != nil })
		if len(s.waiting) == 0 || s.ctx.Err() != nil {
			s.isRunning = false
			s.mu.Unlock()
			return
		}
		s.mu.Unlock()
		if e := broken.wait(s.ctx, errorOf(err)); e != nil {
			s.mu.Lock()
			defer s.mu.Unlock()
			for _, p := range s.waiting {
				p.answer <- answer{err: e}
			}
			s.waiting, s.isRunning = nil, false
			return
		}
	}
}

// attempt opens a stream, sends the requests, and receives answers until it breaks.
func (s *Stream) attempt(ctx context.Context, broken *outage) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	s.silence = time.AfterFunc(maxSilence, func() { cancel(errStalled) })
	defer s.silence.Stop()
	stream, err := s.client.stubs.IDAllocator.AllocateStream(ctx)
	if err != nil {
		return failureOf(ctx, err)
	}
	s.silence.Stop()
	var sender sync.WaitGroup
	defer sender.Wait()
	defer cancel(nil)
	context.AfterFunc(ctx, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.wake.Broadcast()
	})
	sender.Go(func() {
		for request := s.nextToSend(ctx); request != nil; request = s.nextToSend(ctx) {
			if stream.Send(request) != nil {
				return // Recv has the error
			}
		}
	})
	for {
		response, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return newError(ErrServerUnreachable, codes.Unavailable, "the stream ended")
		}
		if err == nil {
			err = s.answered(response)
		}
		if err != nil {
			return failureOf(ctx, err)
		}
		broken.over()
	}
}

// nextToSend returns the next message when it may be sent; nil when ctx ends.
func (s *Stream) nextToSend(ctx context.Context) *idallocv1.AllocateStreamRequest {
	s.mu.Lock()
	defer s.mu.Unlock()
	for ctx.Err() == nil {
		if len(s.waiting) == 0 || len(s.sent) >= maxInFlight {
			s.wake.Wait()
			continue
		}
		p := s.waiting[0]
		s.waiting = s.waiting[1:]
		if p.ctx.Err() != nil { // its caller has left
			continue
		}
		if len(s.sent) == 0 {
			s.silence.Reset(maxSilence)
		}
		s.sent = append(s.sent, p)
		s.number++
		message := &idallocv1.AllocateStreamRequest{Number: s.number, Request: p.request.Request}
		if deadline, ok := p.ctx.Deadline(); ok {
			message.Timeout = durationpb.New(max(0, time.Until(deadline)))
		}
		return message
	}
	return nil
}

// answered gives an answer to the oldest request.
func (s *Stream) answered(response *idallocv1.AllocateStreamResponse) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.sent) == 0 {
		return invalidReply("an answer without a request")
	}
	if oldest := s.number - int64(len(s.sent)) + 1; response.GetNumber() != oldest {
		return invalidReply("an answer to request %d; expected %d", response.GetNumber(), oldest)
	}
	s.broken = nil
	s.sent[0].answer <- answer{response: response}
	if s.sent = s.sent[1:]; len(s.sent) > 0 {
		s.silence.Reset(maxSilence)
	} else {
		s.silence.Stop()
	}
	s.wake.Signal()
	return nil
}
