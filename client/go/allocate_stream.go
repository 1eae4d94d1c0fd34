package idalloc

import (
	"context"
	"errors"
	"io"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/durationpb"

	"example.com/idalloc/client/go/idallocv1"
)

const (
	// The most requests of a stream without an answer; the server's limit is 1,000.
	maxInFlight = 500
	// How often a request is sent because its answer is an error that may end by
	// itself, as gRPC's retry policy sends a unary call.
	maxAttempts = 5
)

// Stream makes many calls over one stream (AllocateStream), which costs client
// and server less than unary calls. Goroutines share it: their requests are in
// flight together, and the answers come in the order of the requests. One that
// waits for the store delays the answers after it.
//
// The stream opens with the first request. If it breaks or its server stops, the
// requests without an answer are sent again over a new one: the ids of a lost
// answer are a gap, unless the request has a request id.
type Stream struct {
	client *Client
	ctx    context.Context // ends with Close
	cancel context.CancelFunc
	slots  chan struct{} // one for each request without an answer
	wake   chan struct{} // a request is in the queue

	mu        sync.Mutex
	queue     []*pending // the requests without an answer, in order
	sent      int        // how many of them were sent on the open stream
	number    int64      // of the last request that was sent
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

// AllocateStream returns a stream for many calls. Close it.
func (c *Client) AllocateStream() *Stream {
	ctx, cancel := context.WithCancel(c.ctx)
	s := &Stream{
		client: c, ctx: ctx, cancel: cancel, slots: make(chan struct{}, maxInFlight), wake: make(chan struct{}, 1),
	}
	c.join(s)
	return s
}

// AllocateRange is as Client.AllocateRange.
func (s *Stream) AllocateRange(ctx context.Context, sequence string, count int64, options ...RangeOption) (Range, error) {
	request, invalid := rangeRequest(sequence, count, options)
	if invalid != nil {
		return Range{}, invalid
	}
	var allocated Range
	message := &idallocv1.AllocateStreamRequest{
		Request: &idallocv1.AllocateStreamRequest_AllocateRange{AllocateRange: request},
	}
	event := Event{Method: "AllocateStream", Sequence: sequence}
	err := s.call(ctx, event, message, func(response *idallocv1.AllocateStreamResponse) (ids int64, err error) {
		allocated, err = newRange(response.GetAllocateRange(), count, count, request.GetView())
		return allocated.Count, err
	})
	return allocated, err
}

// DocIDs is as Client.DocIDs.
func (s *Stream) DocIDs(ctx context.Context, count int64) ([]string, error) {
	request, invalid := docIDRequest(count)
	if invalid != nil {
		return nil, invalid
	}
	var ids []string
	message := &idallocv1.AllocateStreamRequest{
		Request: &idallocv1.AllocateStreamRequest_GenerateDocId{GenerateDocId: request},
	}
	err := s.call(ctx, Event{Method: "AllocateStream"}, message, func(response *idallocv1.AllocateStreamResponse) (_ int64, err error) {
		ids, err = docIDs(response.GetGenerateDocId(), count)
		return int64(len(ids)), err
	})
	return ids, err
}

// Close ends the stream and waits for its end. Calls that wait for an answer
// end with ErrClosed.
func (s *Stream) Close() error {
	s.cancel()
	s.running.Wait()
	s.client.leave(s)
	return nil
}

// call sends a request until it has its answer, a lasting error, or no time
// left.
func (s *Stream) call(
	ctx context.Context, event Event, request *idallocv1.AllocateStreamRequest,
	convert func(*idallocv1.AllocateStreamResponse) (ids int64, err error),
) error {
	return s.client.call(ctx, event, func(ctx context.Context) (int64, error) {
		select {
		case s.slots <- struct{}{}:
			defer func() { <-s.slots }()
		case <-ctx.Done():
			return 0, ctx.Err()
		}
		for attempt := 1; ; attempt++ {
			response, err := s.exchange(ctx, request)
			if err != nil {
				return 0, err
			}
			if response.GetError() == nil {
				return convert(response)
			}
			e := errorOfProto(response.GetError())
			if attempt == maxAttempts || e.Code != codes.Unavailable {
				return 0, e
			}
			var retry outage
			if e := retry.wait(ctx, e, true); e != nil {
				return 0, e
			}
		}
	})
}

// exchange puts a request into the queue, and waits for its answer.
func (s *Stream) exchange(ctx context.Context, request *idallocv1.AllocateStreamRequest) (*idallocv1.AllocateStreamResponse, error) {
	p := &pending{ctx: ctx, request: request, answer: make(chan answer, 1)}
	s.mu.Lock()
	if s.ctx.Err() != nil {
		s.mu.Unlock()
		return nil, closed("stream")
	}
	s.queue = append(s.queue, p)
	if !s.isRunning {
		s.isRunning = true
		s.running.Go(s.run)
	}
	s.mu.Unlock()
	s.notify()
	select {
	case got := <-p.answer:
		return got.response, got.err
	case <-ctx.Done(): // the answer comes to no one; its ids are a gap
		return nil, ctx.Err()
	case <-s.ctx.Done():
		return nil, closed("stream")
	}
}

func (s *Stream) notify() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// run opens streams while requests wait. A lasting error is that of all of them.
func (s *Stream) run() {
	var broken outage
	for {
		err := s.attempt(&broken)
		s.mu.Lock()
		// The requests whose callers have left are not sent again.
		s.queue = slices.DeleteFunc(s.queue, func(p *pending) bool { return p.ctx.Err() != nil })
		s.sent = 0
		if len(s.queue) == 0 || s.ctx.Err() != nil {
			s.isRunning = false
			s.mu.Unlock()
			return
		}
		s.mu.Unlock()
		if e := broken.wait(s.ctx, ErrorOf(err), s.client.isAnswered.Load()); e != nil {
			s.fail(e)
			return
		}
	}
}

// fail gives an error to all requests without an answer.
func (s *Stream) fail(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, p := range s.queue {
		p.answer <- answer{err: err}
	}
	s.queue, s.isRunning = nil, false
}

// attempt opens a stream, sends the queue, and receives answers until it breaks.
func (s *Stream) attempt(broken *outage) error {
	ctx, cancel := context.WithCancel(s.ctx)
	defer cancel()
	stream, err := s.client.stubs.IDAllocator.AllocateStream(ctx)
	if err != nil {
		return err
	}
	var sender sync.WaitGroup
	defer sender.Wait()
	defer cancel()
	sender.Go(func() {
		for {
			request := s.nextToSend()
			if request == nil {
				select {
				case <-s.wake:
					continue
				case <-ctx.Done():
					return
				}
			}
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
			return err
		}
		broken.over()
		s.client.isAnswered.Store(true)
	}
}

// nextToSend returns the next message, or nil if all of the queue was sent.
func (s *Stream) nextToSend() *idallocv1.AllocateStreamRequest {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.sent == len(s.queue) {
		return nil
	}
	p := s.queue[s.sent]
	s.sent++
	s.number++
	message := &idallocv1.AllocateStreamRequest{Number: s.number, Request: p.request.Request}
	if deadline, ok := p.ctx.Deadline(); ok {
		message.Timeout = durationpb.New(max(0, time.Until(deadline)))
	}
	return message
}

// answered gives an answer to the oldest request.
func (s *Stream) answered(response *idallocv1.AllocateStreamResponse) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.sent == 0 {
		return invalidReply("an answer without a request")
	}
	if oldest := s.number - int64(s.sent) + 1; response.GetNumber() != oldest {
		return invalidReply("an answer to request %d; expected %d", response.GetNumber(), oldest)
	}
	s.queue[0].answer <- answer{response: response}
	s.queue, s.sent = s.queue[1:], s.sent-1
	return nil
}
