package idalloc

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/protoadapt"
	"google.golang.org/protobuf/types/known/durationpb"

	"example.com/idalloc/client/go/idallocv1"
)

// fakeServer allocates from a counter, and records the sizes of requests.
type fakeServer struct {
	mu      sync.Mutex
	next    int64
	step    int64
	ttl     time.Duration
	latency time.Duration
	sizes   []int64
	failing func(ctx context.Context, call int) error // calls are numbered from 1
	changed func(*idallocv1.AllocateRangeResponse)
}

func newFakeServer(failing func(context.Context, int) error) *fakeServer {
	return &fakeServer{failing: failing, next: 1, step: 1, ttl: 180 * time.Second}
}

func (s *fakeServer) allocate(ctx context.Context, count int64) (Range, error) {
	s.mu.Lock()
	s.sizes = append(s.sizes, count)
	call, latency := len(s.sizes), s.latency
	s.mu.Unlock()
	if latency > 0 {
		select {
		case <-time.After(latency):
		case <-ctx.Done():
			return Range{}, status.FromContextError(ctx.Err()).Err()
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.failing != nil {
		if err := s.failing(ctx, call); err != nil {
			return Range{}, err
		}
	}
	ids := &idallocv1.IdRange{FirstId: s.next, LastId: s.next + (count-1)*s.step, Step: s.step, IdCount: count}
	s.next += count * s.step
	reply := &idallocv1.AllocateRangeResponse{Range: ids, Generation: 1, Ttl: durationpb.New(s.ttl)}
	if s.changed != nil {
		s.changed(reply)
	}
	return newRange(reply, count, count, 0)
}

func (s *fakeServer) requested() []int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]int64(nil), s.sizes...)
}

// jumpingClock follows the time and can be moved ahead of it, as if the process
// had been stopped or the machine suspended.
type jumpingClock struct {
	start time.Time
	ahead atomic.Int64
}

func newJumpingClock() *jumpingClock { return &jumpingClock{start: time.Now()} }

func (c *jumpingClock) now() time.Duration {
	return time.Since(c.start) + time.Duration(c.ahead.Load())
}

func (c *jumpingClock) both() clock { return clock{c.now, c.now} }

func (c *jumpingClock) jump(by time.Duration) { c.ahead.Add(int64(by)) }

func failure(code codes.Code, reason string, metadata map[string]string, more ...protoadapt.MessageV1) error {
	info := &errdetails.ErrorInfo{Reason: reason, Domain: domain, Metadata: metadata}
	st, err := status.New(code, reason).WithDetails(append([]protoadapt.MessageV1{info}, more...)...)
	if err != nil {
		panic(err)
	}
	return st.Err()
}

// storeUnavailable is an error that a later call may not have.
var storeUnavailable = failure(codes.Unavailable, "STORE_UNAVAILABLE", nil)

func quotaExceeded(delay time.Duration) error {
	return failure(codes.ResourceExhausted, "QUOTA_EXCEEDED", nil, &errdetails.RetryInfo{RetryDelay: durationpb.New(delay)})
}

// draw takes ids and fails the test on an error.
func draw(t *testing.T, p *Pool, count int) []int64 {
	t.Helper()
	ids := make([]int64, 0, count)
	for range count {
		id, err := p.Next(t.Context())
		if err != nil {
			t.Fatalf("Next after %d ids: %v", len(ids), err)
		}
		ids = append(ids, id)
	}
	return ids
}
