package idalloc

import (
	"context"
	"fmt"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"
	"google.golang.org/protobuf/types/known/durationpb"

	"example.com/idalloc/client/go/idallocv1"
)

// service is an idalloc server in this process. Its calls fail as fail says.
type service struct {
	idallocv1.UnimplementedIdAllocatorServiceServer

	mu      sync.Mutex
	next    map[string]int64
	byID    map[string]*idallocv1.AllocateRangeResponse
	calls   int
	tokens  []string
	ttl     time.Duration
	conns   []*conn
	hosts   []*host
	repeats bool // whether it returns the same ids again and again
	// fail returns the error of a call, numbered from 1, or of a message of a
	// stream.
	fail func(ctx context.Context, call int) error
}

func newService(fail func(context.Context, int) error) *service {
	return &service{fail: fail, ttl: 3 * time.Minute, next: map[string]int64{}, byID: map[string]*idallocv1.AllocateRangeResponse{}}
}

// start serves in memory, and returns a client.
func (s *service) start(t *testing.T, options ...Option) *Client {
	t.Helper()
	listener := bufconn.Listen(1 << 20)
	// As idalloc's servers do; else gRPC allows a ping each five minutes.
	pings := grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: 20 * time.Second})
	server := grpc.NewServer(pings)
	idallocv1.RegisterIdAllocatorServiceServer(server, s)
	go server.Serve(listener)
	t.Cleanup(server.Stop)
	dial := WithDialOptions(grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
		inner, err := listener.DialContext(ctx)
		s.mu.Lock()
		defer s.mu.Unlock()
		s.conns = append(s.conns, &conn{Conn: inner})
		return s.conns[len(s.conns)-1], err
	}))
	return open(t, "passthrough:///localhost:1", append([]Option{dial}, options...)...)
}

// open returns a client that the test closes.
func open(t *testing.T, target string, options ...Option) *Client {
	t.Helper()
	client, err := New(target, options...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close() })
	return client
}

// conn is a client's connection. If its host is gone, what is sent is lost.
type conn struct {
	net.Conn
	isGone atomic.Bool
}

func (c *conn) Write(data []byte) (int, error) {
	if c.isGone.Load() {
		return len(data), nil
	}
	return c.Conn.Write(data)
}

func (s *service) begin(ctx context.Context) error {
	s.mu.Lock()
	s.calls++
	call, fail := s.calls, s.fail
	if values := metadata.ValueFromIncomingContext(ctx, "authorization"); len(values) > 0 {
		s.tokens = append(s.tokens, values[0])
	}
	s.mu.Unlock()
	if fail != nil {
		return fail(ctx, call)
	}
	return nil
}

func (s *service) count() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.calls
}

func (s *service) take(request *idallocv1.AllocateRangeRequest) *idallocv1.AllocateRangeResponse {
	s.mu.Lock()
	defer s.mu.Unlock()
	if known := s.byID[request.GetRequestId()]; known != nil {
		return known
	}
	first, count := s.next[request.GetSequence()]+1, max(1, request.GetIdCount())
	if !s.repeats {
		s.next[request.GetSequence()] += count
	}
	reply := &idallocv1.AllocateRangeResponse{
		Range:      &idallocv1.IdRange{FirstId: first, LastId: first + count - 1, Step: 1, IdCount: count},
		Generation: 7, Ttl: durationpb.New(s.ttl), NodeId: 9, Created: first == 1,
		Ordering: idallocv1.Ordering_ORDERING_RISING,
	}
	if request.GetView() == idallocv1.RangeView_RANGE_VIEW_TEXTS {
		for i := range count {
			reply.Texts = append(reply.Texts, fmt.Sprint("INV-", first+i))
		}
	}
	if id := request.GetRequestId(); id != "" {
		s.byID[id] = reply
	}
	return reply
}

func (s *service) takeDocIDs(count int64) []*idallocv1.DocIdRun {
	serial := s.take(&idallocv1.AllocateRangeRequest{Sequence: "doc ids", IdCount: count}).GetRange().GetFirstId()
	return []*idallocv1.DocIdRun{{FirstDocId: strings.Repeat("0", 26) + string("0123456789abcdef"[serial>>4&15]) +
		string("0123456789abcdef"[serial&15]), Step: 1, IdCount: count}}
}

func (s *service) AllocateRange(ctx context.Context, request *idallocv1.AllocateRangeRequest) (*idallocv1.AllocateRangeResponse, error) {
	if err := s.begin(ctx); err != nil {
		return nil, err
	}
	return s.take(request), nil
}

func (s *service) BatchAllocateRanges(ctx context.Context, batch *idallocv1.BatchAllocateRangesRequest) (*idallocv1.BatchAllocateRangesResponse, error) {
	reply := &idallocv1.BatchAllocateRangesResponse{}
	for _, request := range batch.GetRequests() {
		result := &idallocv1.AllocateRangeResult{}
		if err := s.begin(ctx); err != nil {
			result.Result = &idallocv1.AllocateRangeResult_Error{Error: status.Convert(err).Proto()}
		} else {
			result.Result = &idallocv1.AllocateRangeResult_Response{Response: s.take(request)}
		}
		reply.Results = append(reply.Results, result)
	}
	return reply, nil
}

func (s *service) StreamRanges(request *idallocv1.StreamRangesRequest, stream grpc.ServerStreamingServer[idallocv1.StreamRangesResponse]) error {
	for missing := request.GetTotalIdCount(); missing > 0; {
		if err := s.begin(stream.Context()); err != nil {
			return err
		}
		count := min(missing, request.GetChunkIdCount())
		taken := s.take(&idallocv1.AllocateRangeRequest{Sequence: request.GetSequence(), IdCount: count, View: request.GetView()})
		reply := &idallocv1.StreamRangesResponse{Range: taken.GetRange(), Ttl: taken.GetTtl(), Texts: taken.GetTexts()}
		if err := stream.Send(reply); err != nil {
			return err
		}
		missing -= count
	}
	return nil
}

func (s *service) StreamDocIds(request *idallocv1.StreamDocIdsRequest, stream grpc.ServerStreamingServer[idallocv1.StreamDocIdsResponse]) error {
	for missing := request.GetTotalIdCount(); missing > 0; {
		if err := s.begin(stream.Context()); err != nil {
			return err
		}
		count := min(missing, 10)
		if err := stream.Send(&idallocv1.StreamDocIdsResponse{Runs: s.takeDocIDs(count)}); err != nil {
			return err
		}
		missing -= count
	}
	return nil
}

func (s *service) GenerateDocId(ctx context.Context, request *idallocv1.GenerateDocIdRequest) (*idallocv1.GenerateDocIdResponse, error) {
	if err := s.begin(ctx); err != nil {
		return nil, err
	}
	return &idallocv1.GenerateDocIdResponse{Runs: s.takeDocIDs(request.GetIdCount())}, nil
}

// AllocateStream breaks when fail returns an error of gRPC without details, and
// answers one with details.
func (s *service) AllocateStream(stream grpc.BidiStreamingServer[idallocv1.AllocateStreamRequest, idallocv1.AllocateStreamResponse]) error {
	for {
		request, err := stream.Recv()
		if err != nil {
			return err
		}
		answer := &idallocv1.AllocateStreamResponse{Number: request.GetNumber()}
		if err := s.begin(stream.Context()); err != nil {
			failed := status.Convert(err)
			if len(failed.Details()) == 0 {
				return err
			}
			answer.Response = &idallocv1.AllocateStreamResponse_Error{Error: failed.Proto()}
		} else if docIDs := request.GetGenerateDocId(); docIDs != nil {
			answer.Response = &idallocv1.AllocateStreamResponse_GenerateDocId{
				GenerateDocId: &idallocv1.GenerateDocIdResponse{Runs: s.takeDocIDs(docIDs.GetIdCount())},
			}
		} else {
			answer.Response = &idallocv1.AllocateStreamResponse_AllocateRange{AllocateRange: s.take(request.GetAllocateRange())}
		}
		if err := stream.Send(answer); err != nil {
			return err
		}
	}
}

// unavailable is the error of a connection that broke.
var unavailable = status.Error(codes.Unavailable, "the connection broke")
