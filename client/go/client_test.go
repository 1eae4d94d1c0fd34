package idalloc

import (
	"context"
	"encoding/json"
	"errors"
	"math"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/emptypb"

	"example.com/idalloc/client/go/idallocv1"
)

// failing fails the calls with these numbers.
func failing(err error, calls ...int) func(context.Context, int) error {
	return func(_ context.Context, call int) error {
		if slices.Contains(calls, call) {
			return err
		}
		return nil
	}
}

// failingFrom fails the calls from this number on.
func failingFrom(err error, first int) func(context.Context, int) error {
	return func(_ context.Context, call int) error {
		if call >= first {
			return err
		}
		return nil
	}
}

// is fails the test unless err is an *Error that matches the target.
func is(t *testing.T, err, target error) *Error {
	t.Helper()
	e := &Error{}
	if !errors.Is(err, target) || !errors.As(err, &e) {
		t.Errorf("got %v, want %v", err, target)
	}
	return e
}

// errOf returns the error of a call.
func errOf[Reply any](_ Reply, err error) error { return err }

// allocator is a Client or a Stream.
type allocator interface {
	AllocateRange(ctx context.Context, sequence string, count int64, options ...RangeOption) (Range, error)
}

// allocate takes an id, and fails the test on an error.
func allocate(t *testing.T, from allocator) int64 {
	t.Helper()
	ids, err := from.AllocateRange(t.Context(), "orders", 1)
	if err != nil {
		t.Error(err)
	}
	return ids.First
}

func TestARangeHasAllFieldsOfTheReply(t *testing.T) {
	client := newService(nil).start(t)
	ids, err := client.AllocateRange(t.Context(), "orders", 3, WithTexts())
	if err != nil {
		t.Fatal(err)
	}
	equal(t, "ids", slices.Collect(ids.All()), []int64{1, 2, 3})
	if ids.First != 1 || ids.Last != 3 || ids.Step != 1 || ids.Count != 3 || ids.Generation != 7 || ids.NodeID != 9 ||
		ids.TTL != 3*time.Minute || ids.Ordering != Rising || !ids.Created || !slices.Equal(ids.Texts, []string{"INV-1", "INV-2", "INV-3"}) {
		t.Errorf("got %+v", ids)
	}
}

func TestARequestIDReturnsTheSameIds(t *testing.T) {
	client := newService(nil).start(t)
	id := NewRequestID()
	if !regexp.MustCompile("^[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$").MatchString(id) {
		t.Errorf("%s is no UUID of version 4", id)
	}
	first, _ := client.AllocateRange(t.Context(), "orders", 3, WithRequestID(id))
	again, _ := client.AllocateRange(t.Context(), "orders", 3, WithRequestID(id))
	other, err := client.AllocateRange(t.Context(), "orders", 3, WithRequestID(NewRequestID()))
	if err != nil || first.First != 1 || again.First != 1 || other.First != 4 {
		t.Errorf("got %v, %v, %v, %v", first, again, other, err)
	}
}

func TestWrongArgumentsReachNoServer(t *testing.T) {
	service := newService(nil)
	client := service.start(t)
	stream := client.AllocateStream()
	ranges := client.StreamRanges(t.Context(), "orders", 1, 0, WithRequestID(NewRequestID()))
	var fields []string
	for _, err := range []error{
		errOf(client.AllocateRange(t.Context(), "orders", 0)),
		errOf(client.BatchAllocateRanges(t.Context(), []RangeRequest{{"orders", -1}})),
		errOf(client.DocIDs(t.Context(), 0)),
		errOf(client.AllocateRange(t.Context(), strings.Repeat("x", 256), 1)),
		errOf(stream.AllocateRange(t.Context(), "\xff", 1)),
		errOf(stream.AllocateRange(t.Context(), "orders", 1, WithRequestID(strings.Repeat("x", 1<<20)))),
		errOf(drain(ranges)),
		errOf(drain(client.StreamDocIDs(t.Context(), 0))),
	} {
		fields = append(fields, is(t, err, ErrInvalidRequest).Metadata["field"])
	}
	if fields[6] != "request_id" || service.count() != 0 {
		t.Errorf("the fields are %v, %d calls", fields, service.count())
	}
}

func TestADelayIsAtMostAnHour(t *testing.T) {
	service := newService(nil)
	delay := &durationpb.Duration{Seconds: math.MaxInt64, Nanos: math.MaxInt32}
	service.fail = failing(failure(codes.ResourceExhausted, "QUOTA_EXCEEDED", nil,
		&errdetails.RetryInfo{RetryDelay: delay}), 1)
	client := service.start(t)
	e := is(t, errOf(client.AllocateRange(t.Context(), "orders", 1)), ErrQuotaExceeded)
	if wait := jittered(e.RetryDelay); e.RetryDelay != time.Hour || wait < time.Hour {
		t.Errorf("the delay is %v, and waits %v", e.RetryDelay, wait)
	}
}

func TestAnErrorHasReasonDelayAndDetails(t *testing.T) {
	service := newService(failing(failure(codes.ResourceExhausted, "QUOTA_EXCEEDED", map[string]string{"limit": "5"},
		&errdetails.RetryInfo{RetryDelay: durationpb.New(time.Hour)},
		&errdetails.QuotaFailure{Violations: []*errdetails.QuotaFailure_Violation{{Subject: "identity:billing"}}}), 1))
	client := service.start(t)
	e := is(t, errOf(client.AllocateRange(t.Context(), "orders", 1)), ErrQuotaExceeded)
	if e.Code != codes.ResourceExhausted || e.RetryDelay != time.Hour || e.Metadata["limit"] != "5" || !e.Retryable() {
		t.Errorf("got %+v", e)
	}
	quota, _ := e.Details[2].(*errdetails.QuotaFailure)
	if quota.GetViolations()[0].GetSubject() != "identity:billing" {
		t.Errorf("got %v", e.Details)
	}
	if st, ok := status.FromError(e); !ok || st.Code() != codes.ResourceExhausted {
		t.Errorf("the status is %v", st)
	}
	if errors.Is(e, ErrSequenceExhausted) {
		t.Error("it also has another reason")
	}
}

func TestEachReasonOfTheProtosHasAConstant(t *testing.T) {
	source, err := os.ReadFile("errors.go")
	if err != nil {
		t.Fatal(err)
	}
	constants := map[string]bool{}
	for _, found := range regexp.MustCompile(`Reason = "(\w+)"`).FindAllSubmatch(source, -1) {
		constants[string(found[1])] = true
	}
	for number, name := range idallocv1.ErrorReason_name {
		if number > 0 && !constants[name[len("ERROR_REASON_"):]] {
			t.Errorf("%s has no constant", name)
		}
	}
}

func TestAnErrorOfStubsIsConverted(t *testing.T) {
	client := newService(nil).start(t)
	_, err := client.Stubs().Node.GetNode(t.Context(), &idallocv1.GetNodeRequest{})
	if e := is(t, ErrorOf(err), Reason("UNIMPLEMENTED")); e.Retryable() {
		t.Errorf("got %v", e)
	}
	var none error = ErrorOf(nil)
	if none != nil {
		t.Error("nil is an error")
	}
}

func TestUnaryCallsAreRetried(t *testing.T) {
	service := newService(failing(unavailable, 1, 2))
	client := service.start(t)
	if ids, err := client.AllocateRange(t.Context(), "orders", 1); err != nil || ids.First != 1 || service.count() != 3 {
		t.Errorf("got %v, %v after %d calls", ids, err, service.count())
	}
	for seconds, expected := range map[int64]int{0: 5, 6: 1} {
		delay := &errdetails.RetryInfo{RetryDelay: &durationpb.Duration{Seconds: seconds}}
		service.fail = func(context.Context, int) error { return failure(codes.Unavailable, "STORE_UNAVAILABLE", nil, delay) }
		before := service.count()
		is(t, errOf(client.AllocateRange(t.Context(), "orders", 1)), ErrStoreUnavailable)
		if calls := service.count() - before; calls != expected {
			t.Errorf("%d calls, expected %d", calls, expected)
		}
	}
}

func TestADeadlineEndsACall(t *testing.T) {
	service := newService(func(ctx context.Context, _ int) error { <-ctx.Done(); return ctx.Err() })
	client := service.start(t, WithTimeout(50*time.Millisecond))
	e := is(t, errOf(client.AllocateRange(t.Context(), "orders", 1)), ErrDeadlineExceeded)
	is(t, e, context.DeadlineExceeded)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	e = is(t, errOf(client.AllocateRange(ctx, "orders", 1)), ErrCancelled)
	is(t, e, context.Canceled)
}

func TestEachWrongReplyIsAnError(t *testing.T) {
	var table []struct {
		Name, RPC, Error string
		Texts            bool
		ValidIDs         int64
		Replies          [][]byte
	}
	data, err := os.ReadFile("../../tests/support/wrong_replies.json")
	if err = errors.Join(err, json.Unmarshal(data, &table)); err != nil {
		t.Fatal(err)
	}
	for _, wrong := range table {
		t.Run(wrong.Name, func(t *testing.T) {
			server := grpc.NewServer(grpc.UnknownServiceHandler(func(_ any, stream grpc.ServerStream) error {
				err := stream.RecvMsg(&emptypb.Empty{})
				for _, reply := range wrong.Replies {
					message := &emptypb.Empty{} // it keeps fields that it does not know
					err = errors.Join(err, proto.Unmarshal(reply, message), stream.SendMsg(message))
				}
				return err
			}))
			listener, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			go server.Serve(listener)
			defer server.Stop()
			ids, err := callOf(open(t, listener.Addr().String()), wrong.RPC, wrong.Texts)
			if e := is(t, err, ErrInvalidReply); !regexp.MustCompile(wrong.Error).MatchString(e.Message) || ids != wrong.ValidIDs {
				t.Errorf("got %d ids and %q; want %d and %q", ids, e.Message, wrong.ValidIDs, wrong.Error)
			}
		})
	}
}

// callOf makes a call of the table of wrong replies, and counts its ids.
func callOf(client *Client, rpc string, texts bool) (ids int64, err error) {
	ctx, requests := context.Background(), []RangeRequest{{"orders", 5}, {"orders", 5}}
	switch rpc {
	case "AllocateRange":
		var options []RangeOption
		if texts {
			options = append(options, WithTexts())
		}
		_, err = client.AllocateRange(ctx, "orders", 5, options...)
	case "BatchAllocateRanges":
		_, err = client.BatchAllocateRanges(ctx, requests)
	case "GenerateDocId":
		_, err = client.DocIDs(ctx, 5)
	case "StreamRanges":
		for allocated, failed := range client.StreamRanges(ctx, "orders", 10, 5) {
			ids, err = ids+allocated.Count, failed
		}
	case "StreamDocIds":
		for run, failed := range client.StreamDocIDs(ctx, 10) {
			ids, err = ids+run.Count, failed
		}
	}
	return ids, err
}

func TestABatchWithAnIDTwiceIsAnError(t *testing.T) {
	service := newService(nil)
	service.repeats = true
	client := service.start(t)
	requests := []RangeRequest{{"orders", 3}, {"lines", 3}, {"orders", 5}}
	results, err := client.BatchAllocateRanges(t.Context(), requests)
	is(t, err, ErrInvalidReply)
	if results != nil {
		t.Errorf("got %v", results)
	}
	if results, err = client.BatchAllocateRanges(t.Context(), requests[:2]); err != nil || len(results) != 2 {
		t.Errorf("got %v, %v", results, err)
	}
}

func TestAnErrorIsPrintable(t *testing.T) {
	service := newService(failing(status.Error(codes.NotFound, "no\x1b[2J\n\u202ename é"), 1))
	_, err := service.start(t).AllocateRange(t.Context(), "orders", 1)
	if got := err.Error(); !strings.HasSuffix(got, `no\u001b[2J \u202ename é`) {
		t.Errorf("got %q", got)
	}
}

func TestABatchHasAResultForEachRequest(t *testing.T) {
	service := newService(failing(failure(codes.NotFound, "SEQUENCE_NOT_FOUND", nil), 2))
	client := service.start(t)
	results, err := client.BatchAllocateRanges(t.Context(), []RangeRequest{{"orders", 2}, {"nowhere", 1}, {"orders", 1}})
	if err != nil || len(results) != 3 {
		t.Fatal(results, err)
	}
	is(t, results[1].Err, ErrSequenceNotFound)
	if results[0].Range.Last != 2 || results[2].Range.First != 3 || results[2].Err != nil {
		t.Errorf("got %v", results)
	}
}

func TestABrokenStreamIsResumed(t *testing.T) {
	service := newService(failing(unavailable, 3, 4, 7))
	var events []Event
	client := service.start(t, WithObserver(func(event Event) { events = append(events, event) }))
	ids, err := drain(client.StreamRanges(t.Context(), "orders", 25, 4))
	if err != nil || len(ids) != 25 || ids[24] != 25 {
		t.Errorf("got %v, %v", ids, err)
	}
	var sum int64
	for _, event := range events {
		sum += event.IDs
	}
	if sum != 25 || len(events) < 3 || events[0].Err == nil || events[len(events)-1].Err != nil {
		t.Errorf("got %v", events)
	}
}

func TestALoopThatIsLeftEndsItsStream(t *testing.T) {
	service := newService(nil)
	ended := make(chan struct{})
	service.fail = func(ctx context.Context, call int) error {
		// After its first message, the server waits for the end.
		if call == 2 {
			<-ctx.Done()
			close(ended)
		}
		return ctx.Err()
	}
	client := service.start(t)
	for range client.StreamRanges(t.Context(), "orders", 100, 1) {
		break
	}
	<-ended
}

func TestDocIDs(t *testing.T) {
	service := newService(failing(unavailable, 3))
	client := service.start(t)
	ids, err := client.DocIDs(t.Context(), 3)
	if err != nil {
		t.Fatal(err)
	}
	streamed, err := drain(client.StreamDocIDs(t.Context(), 25))
	if err != nil {
		t.Fatal(err)
	}
	unique(t, append(ids, streamed...), 28)
}

func TestGoroutinesShareAStream(t *testing.T) {
	service := newService(func(_ context.Context, call int) error {
		switch {
		case call%301 == 0:
			return unavailable // the stream breaks
		case call%97 == 0:
			return storeUnavailable
		}
		return nil
	})
	client := service.start(t, WithTimeout(time.Minute))
	stream := client.AllocateStream()
	const callers, each = 64, 30
	got := make([][]int64, callers)
	var group sync.WaitGroup
	for caller := range callers {
		group.Go(func() {
			for range each {
				ids, err := stream.AllocateRange(t.Context(), "orders", 2)
				docIDs, failed := stream.DocIDs(t.Context(), 1)
				if err != nil || failed != nil || len(docIDs) != 1 {
					t.Error(err, failed, docIDs)
					return
				}
				got[caller] = slices.AppendSeq(got[caller], ids.All())
			}
		})
	}
	group.Wait()
	stream.Close()
	unique(t, slices.Concat(got...), callers*each*2)
	is(t, errOf(stream.AllocateRange(t.Context(), "orders", 1)), ErrClosed)
}

func TestALastingErrorOfAStreamIsThatOfItsRequests(t *testing.T) {
	service := newService(failingFrom(status.Error(codes.Unauthenticated, "no"), 1))
	client := service.start(t)
	stream := client.AllocateStream()
	for range 3 {
		is(t, errOf(stream.AllocateRange(t.Context(), "orders", 1)), ErrUnauthenticated)
	}
}

func TestACallerWhoLeavesAStreamCostsNoOtherItsAnswer(t *testing.T) {
	service := newService(nil)
	release := make(chan struct{})
	service.fail = func(_ context.Context, call int) error {
		if call == 1 {
			<-release
		}
		return nil
	}
	client := service.start(t)
	stream := client.AllocateStream()
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	is(t, errOf(stream.AllocateRange(ctx, "orders", 1)), ErrDeadlineExceeded)
	close(release)
	if ids, err := stream.AllocateRange(t.Context(), "orders", 1); err != nil || ids.First != 2 {
		t.Errorf("got %v, %v", ids, err)
	}
}

func TestACallThatIsLeftSaysWhyItsStreamBroke(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	service := newService(func(_ context.Context, call int) error {
		switch call {
		case 1:
			return nil
		case 3: // the stream has been opened again
			cancel()
		}
		return unavailable
	})
	stream := service.start(t).AllocateStream()
	allocate(t, stream)
	e := is(t, errOf(stream.AllocateRange(ctx, "orders", 1)), ErrCancelled)
	if !strings.HasSuffix(e.Message, "; the last attempt: SERVER_UNREACHABLE: the connection broke") {
		t.Error(e)
	}
}

func TestTheLimitOfAStreamsIdsIsWaitedForWithinTheContext(t *testing.T) {
	limit := func(delay time.Duration) error {
		return failure(codes.ResourceExhausted, "QUOTA_EXCEEDED", map[string]string{"subject": "stream"},
			&errdetails.RetryInfo{RetryDelay: durationpb.New(delay)})
	}
	service := newService(failing(limit(20*time.Millisecond), 1, 2, 3, 4, 5, 6, 7))
	stream := service.start(t).AllocateStream()
	before := time.Now()
	ids, err := stream.AllocateRange(t.Context(), "orders", 1)
	if waited := time.Since(before); err != nil || ids.First != 1 || waited < 140*time.Millisecond {
		t.Errorf("got %v, %v after %v", ids, err, waited)
	}
	service.fail = failing(limit(time.Hour), 9)
	is(t, errOf(stream.AllocateRange(t.Context(), "orders", 1)), ErrQuotaExceeded)
	service.fail = failing(quotaExceeded(time.Millisecond), 10) // of the caller: as a unary call
	is(t, errOf(stream.AllocateRange(t.Context(), "orders", 1)), ErrQuotaExceeded)
}

// Requests count as in flight until their answer, also if their callers left:
// the server ends a stream with 1,001 of them.
func TestAStreamHasAtMost500RequestsInFlight(t *testing.T) {
	service := newService(nil)
	release := make(chan struct{})
	service.fail = func(context.Context, int) error { <-release; return nil }
	stream := service.start(t, WithTimeout(0)).AllocateStream()
	allocate := func(ctx context.Context, callers int) (wait func()) {
		var group sync.WaitGroup
		for range callers {
			group.Go(func() {
				if _, err := stream.AllocateRange(ctx, "orders", 1); err != nil && ctx.Err() == nil {
					t.Error(err)
				}
			})
		}
		return group.Wait
	}
	inFlight := func(sent, waiting int) {
		t.Helper()
		eventually(t, func() bool {
			stream.mu.Lock()
			defer stream.mu.Unlock()
			return len(stream.sent) == sent && len(stream.waiting) == waiting
		})
	}
	ctx, cancel := context.WithCancel(t.Context())
	leave := allocate(ctx, 600)
	inFlight(500, 100)
	cancel()
	leave()
	inFlight(500, 0) // the others are forgotten
	wait := allocate(t.Context(), 10)
	inFlight(500, 10)
	close(release)
	wait()
	if calls := service.count(); calls != 510 {
		t.Errorf("%d requests were sent, expected 500 and 10", calls)
	}
}

func TestCloseEndsPoolsStreamsAndCalls(t *testing.T) {
	service := newService(func(ctx context.Context, call int) error {
		if call > 2 { // of the pool and its prefetch
			<-ctx.Done()
		}
		return ctx.Err()
	})
	client := service.start(t)
	pool, stream := client.Pool("orders"), client.AllocateStream()
	draw(t, pool, 1)
	awaitCall(t, service, 2)
	var group sync.WaitGroup
	group.Go(func() {
		is(t, errOf(stream.AllocateRange(t.Context(), "orders", 1)), ErrClosed)
	})
	awaitCall(t, service, 3)
	client.Close()
	group.Wait()
	is(t, errOf(pool.Next(t.Context())), ErrClosed)
	is(t, errOf(client.AllocateRange(t.Context(), "orders", 1)), ErrClosed)
	if err := client.Close(); err != nil {
		t.Error(err)
	}
}

func TestAPoolOutlastsAnOutage(t *testing.T) {
	service := newService(func(_ context.Context, call int) error {
		if 3 < call && call < 14 { // longer than gRPC's retries
			return unavailable
		}
		return nil
	})
	client := service.start(t)
	pool := client.Pool("orders")
	if ids := draw(t, pool, 100); ids[99] != 100 {
		t.Errorf("got %v", ids)
	}
}

func TestAPoolReportsDroppedIds(t *testing.T) {
	service := newService(nil)
	var mu sync.Mutex
	var received, dropped int64
	client := service.start(t, WithObserver(func(event Event) {
		mu.Lock()
		defer mu.Unlock()
		received, dropped = received+event.IDs, dropped+event.Dropped
	}))
	pool := client.Pool("orders")
	draw(t, pool, 100)
	pool.Close()
	if received-dropped != 100 || dropped == 0 {
		t.Errorf("%d ids received, %d dropped", received, dropped)
	}
}

func TestATokenFileIsReadAgain(t *testing.T) {
	service := newService(nil)
	token := newRotation(t)
	client := service.start(t, WithTokenFile(token.path))
	allocate(t, client)
	token.write("second")
	eventually(t, func() bool {
		allocate(t, client)
		return service.tokens[len(service.tokens)-1] == "Bearer second"
	})
	os.Remove(token.path) // the former token stays
	time.Sleep(1100 * time.Millisecond)
	allocate(t, client)
	if tokens := slices.Compact(service.tokens); !slices.Equal(tokens, []string{"Bearer first", "Bearer second"}) {
		t.Errorf("got %v", tokens)
	}
}

func TestATokenNeedsTLSToOtherMachines(t *testing.T) {
	for target, local := range map[string]bool{
		"127.0.0.1:50051": true, "[::1]:50051": true, "localhost:50051": true, "unix:///run/idalloc.sock": true,
		"127.0.0.1:1,127.0.0.1:2": true, "dns:///localhost:50051": true, "idalloc.example:50051": false,
		"127.0.0.1:1,10.0.0.1:2": false, "dns:///10.0.0.1:50051": false, "ipv4:10.0.0.1:50051": false,
	} {
		if _, err := New(target, WithToken("secret")); (err == nil) != local {
			t.Errorf("%s: got %v", target, err)
		}
		for _, option := range []Option{WithTLS(TLS{}), WithPlaintextToken()} {
			open(t, target, WithToken("secret"), option)
		}
	}
}

func TestWrongOptionsAreErrorsOfNew(t *testing.T) {
	for _, target := range []string{"", "localhost", "http://localhost:1", "localhost:1,localhost", "localhost:1,"} {
		is(t, errOf(New(target)), ErrInvalidRequest)
	}
}

func TestTheErrorOfAnUnreachableServerHasItsTarget(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	listener.Close()
	for target, text := range map[string]string{
		listener.Addr().String(): "connection refused",
		"nowhere.invalid:50051":  "no such host",
	} {
		e := is(t, errOf(open(t, target).AllocateRange(t.Context(), "orders", 1)), ErrServerUnreachable)
		if !strings.HasPrefix(e.Message, target+": ") || !strings.Contains(e.Message, text) {
			t.Error(e)
		}
	}
}

func TestAnExistingConnectionStaysOpen(t *testing.T) {
	service := newService(nil)
	conn := service.start(t).servers.all[0].ClientConnInterface.(*grpc.ClientConn)
	client := NewFromConn(conn, WithTimeout(time.Minute))
	if ids, err := client.AllocateRange(t.Context(), "orders", 1); err != nil || ids.First != 1 {
		t.Fatal(ids, err)
	}
	service.fail = func(ctx context.Context, _ int) error { <-ctx.Done(); return ctx.Err() }
	var group sync.WaitGroup
	group.Go(func() {
		is(t, errOf(client.AllocateRange(t.Context(), "orders", 1)), ErrClosed)
	})
	group.Go(func() {
		is(t, errOf(drain(client.StreamRanges(t.Context(), "orders", 1, 1))), ErrClosed)
	})
	awaitCall(t, service, 3)
	client.Close()
	group.Wait()
	if state := conn.GetState(); state.String() == "SHUTDOWN" {
		t.Error("the connection is closed")
	}
}

// A suspend shows in the exact clock only, and within the sampling interval in
// the fast one.
func TestTheFastClockFollowsTheExactOne(t *testing.T) {
	var exact, monotonic time.Duration
	reads := 0
	c := sampled(func() time.Duration { reads++; return exact }, func() time.Duration { return monotonic }, time.Millisecond)
	pass := func(by, suspended time.Duration) { monotonic += by; exact += by + suspended }
	pass(999*time.Microsecond, 0)
	if c.fast() != exact || reads != 1 {
		t.Errorf("%v, %d reads", c.fast(), reads)
	}
	pass(time.Microsecond, time.Hour)
	for range 2 {
		if c.fast() != exact || reads != 2 {
			t.Errorf("%v, %d reads", c.fast(), reads)
		}
	}
}

func TestASlowReadingOfTheClockReplacesNoLaterOne(t *testing.T) {
	var c clock
	var exact, monotonic time.Duration
	pause := func() {}
	c = sampled(func() time.Duration { defer pause(); return exact }, func() time.Duration { return monotonic }, time.Millisecond)
	monotonic, exact = time.Millisecond, time.Millisecond
	pause = func() { // another goroutine reads both clocks after a suspend
		pause = func() {}
		monotonic, exact = 1900*time.Microsecond, time.Hour
		c.fast()
	}
	c.fast()
	if got := c.fast(); got != exact {
		t.Errorf("got %v, expected %v", got, exact)
	}
}

// chunks is a stream of ranges of one id each. It ends with its context.
type chunks struct {
	grpc.ServerStreamingClient[idallocv1.StreamRangesResponse]
	ctx  context.Context
	next int64
}

func (c *chunks) Recv() (*idallocv1.StreamRangesResponse, error) {
	if err := c.ctx.Err(); err != nil {
		return nil, err
	}
	c.next++
	ids := &idallocv1.IdRange{FirstId: c.next, LastId: c.next, Step: 1, IdCount: 1}
	return &idallocv1.StreamRangesResponse{Range: ids, Ttl: durationpb.New(time.Minute)}, nil
}

func TestAStreamWaitsForItsCaller(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := NewFromConn(nil)
		defer client.Close()
		opened := 0
		s := &idStream[idallocv1.StreamRangesResponse, Range]{
			client: client,
			open: func(ctx context.Context, _ int64) (grpc.ServerStreamingClient[idallocv1.StreamRangesResponse], error) {
				opened++
				return &chunks{ctx: ctx}, nil
			},
			convert: func(reply *idallocv1.StreamRangesResponse, least, most int64, _ Range) (Range, int64, error) {
				ids, err := newRange(reply, least, most, 0)
				return ids, ids.Count, err
			},
		}
		for ids, err := range s.all(t.Context(), 3) {
			if err != nil || opened != 1 {
				t.Fatal(ids, err, opened)
			}
			time.Sleep(2 * maxSilence)
		}
	})
}

// silent lets the calls with these numbers wait for their end.
func silent(calls ...int) func(context.Context, int) error {
	return func(ctx context.Context, call int) error {
		if slices.Contains(calls, call) {
			<-ctx.Done()
		}
		return ctx.Err()
	}
}

func TestASilentStreamIsOpenedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		service := newService(silent(2, 4, 5))
		stream := service.start(t, WithTimeout(10*time.Minute)).AllocateStream()
		took := func(seconds time.Duration, call func()) {
			before := time.Now()
			call()
			if passed := time.Since(before).Truncate(time.Second); passed != seconds*time.Second {
				t.Errorf("%v passed, expected %d s", passed, seconds)
			}
		}
		took(0, func() { allocate(t, stream) })
		took(60, func() { allocate(t, stream) })
		time.Sleep(time.Hour) // idle is not silent
		took(120, func() {
			e := is(t, errOf(stream.AllocateRange(t.Context(), "orders", 1)), ErrDeadlineExceeded)
			is(t, e, context.DeadlineExceeded)
		})
	})
}

func TestASilentStreamIsLeftAlsoByCallersThatWaitForLess(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		service := newService(silent(2))
		stream := service.start(t).AllocateStream() // 5 s each
		allocate(t, stream)
		for range 12 {
			is(t, errOf(stream.AllocateRange(t.Context(), "orders", 1)), ErrDeadlineExceeded)
		}
		allocate(t, stream)
	})
}

func TestASlowStreamIsNotOpenedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		service := newService(func(context.Context, int) error { time.Sleep(40 * time.Second); return nil })
		stream := service.start(t, WithTimeout(10*time.Minute)).AllocateStream()
		var group sync.WaitGroup
		for range 5 {
			group.Go(func() {
				allocate(t, stream)
			})
		}
		group.Wait()
		if calls := service.count(); calls != 5 {
			t.Errorf("%d requests", calls)
		}
	})
}

// rotation is a token file, and the token that the server of a test accepts.
type rotation struct {
	path     string
	accepted atomic.Value
}

func newRotation(t *testing.T) *rotation {
	r := &rotation{path: filepath.Join(t.TempDir(), "token")}
	r.write("first")
	r.accepted.Store("first")
	return r
}

func (r *rotation) write(token string) { os.WriteFile(r.path, []byte(token+"\n"), 0o600) }

// rotate replaces the token in the file, and of the server.
func (r *rotation) rotate(token string) {
	r.write(token)
	r.accepted.Store(token)
}

func (r *rotation) check(ctx context.Context) error {
	if sent := metadata.ValueFromIncomingContext(ctx, "authorization"); sent[0] != "Bearer "+r.accepted.Load().(string) {
		return status.Error(codes.Unauthenticated, "unknown token")
	}
	return nil
}

func TestCallsInFlightSurviveARotation(t *testing.T) {
	const callers = 64
	token, release := newRotation(t), make(chan struct{})
	service := newService(func(ctx context.Context, _ int) error { <-release; return token.check(ctx) })
	client := service.start(t, WithTokenFile(token.path), WithTimeout(time.Minute))
	stream := client.AllocateStream()
	var group sync.WaitGroup
	for range callers {
		group.Go(func() {
			allocate(t, stream)
		})
		group.Go(func() {
			allocate(t, client)
		})
		group.Go(func() {
			if _, err := drain(client.StreamRanges(t.Context(), "orders", 2, 1)); err != nil {
				t.Error(err)
			}
		})
	}
	awaitCall(t, service, 2*callers+1) // the stream's requests wait for the first of them
	token.rotate("second")
	close(release)
	group.Wait()
}

func TestAnOpenStreamSurvivesRotations(t *testing.T) {
	token := newRotation(t)
	service := newService(func(ctx context.Context, _ int) error { return token.check(ctx) })
	client := service.start(t, WithTokenFile(token.path))
	stream := client.AllocateStream()
	for _, next := range []string{"second", "third", "fourth"} {
		allocate(t, stream)
		for _, err := range client.StreamRanges(t.Context(), "events", 2, 1) {
			if err != nil {
				t.Error(err)
			}
			token.rotate(next)
		}
	}
}

func TestARejectedTokenIsSentOnce(t *testing.T) {
	token := newRotation(t)
	token.accepted.Store("other")
	service := newService(func(ctx context.Context, _ int) error { return token.check(ctx) })
	for name, option := range map[string]Option{"file": WithTokenFile(token.path), "value": WithToken("first")} {
		before := service.count()
		is(t, errOf(service.start(t, option).AllocateRange(t.Context(), "orders", 1)), ErrUnauthenticated)
		is(t, errOf(service.start(t, option).AllocateStream().AllocateRange(t.Context(), "orders", 1)), ErrUnauthenticated)
		if calls := service.count() - before; calls != 2 {
			t.Errorf("%s: %d calls", name, calls)
		}
	}
}

func TestAnUnreadableTokenFileIsReadOnceASecond(t *testing.T) {
	file := newRotation(t)
	synctest.Test(t, func(t *testing.T) {
		read := newConfig([]Option{WithTokenFile(file.path)}).token
		expect := func(text string) {
			t.Helper()
			if got, err := read.load(maxFileAge); got != text || err != nil {
				t.Errorf("got %q, %v; expected %q", got, err, text)
			}
		}
		expect("first")
		os.Remove(file.path)
		time.Sleep(time.Second)
		expect("first")
		file.write("second")
		expect("first")
		time.Sleep(time.Second)
		expect("second")
	})
}

func TestACallThatAStoppingServerCancelsMayBeRepeated(t *testing.T) {
	service := newService(failingFrom(status.Error(codes.Canceled, "the server stops"), 1))
	client := service.start(t)
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	for _, err := range []error{
		errOf(drain(client.StreamRanges(ctx, "orders", 1, 1))),
		errOf(client.AllocateRange(t.Context(), "orders", 1)),
		errOf(client.AllocateStream().AllocateRange(t.Context(), "orders", 1)),
	} {
		if e := is(t, err, ErrServerUnreachable); !e.Retryable() || errors.Is(err, ErrCancelled) {
			t.Errorf("got %v", err)
		}
	}
}

func TestAPoolsRequestIsLimitedWithoutATimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		service := newService(silent(1, 3))
		pool := service.start(t, WithTimeout(0)).Pool("orders")
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
		defer cancel()
		before := time.Now()
		for range 2 {
			if err := errOf(pool.Next(ctx)); err != nil {
				t.Error(err)
			}
		}
		if passed := time.Since(before); passed > 22*time.Second {
			t.Errorf("two silent requests took %v", passed)
		}
	})
}

func TestAnAnswerIsPreferredToTheEndOfTheContext(t *testing.T) {
	client := NewFromConn(nil)
	defer client.Close()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for range 20 {
		p := &pending{ctx: ctx, answer: make(chan answer, 1)}
		p.answer <- answer{response: &idallocv1.AllocateStreamResponse{}}
		if got, err := client.AllocateStream().await(p); got == nil || err != nil {
			t.Fatalf("got %v, %v", got, err)
		}
	}
}

func TestAHostThatIsGoneIsNoticed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		service := newService(nil)
		client := service.start(t, WithTimeout(10*time.Minute))
		allocate(t, client)
		service.conns[0].isGone.Store(true)
		before := time.Now()
		_, err := client.AllocateRange(t.Context(), "orders", 1)
		if passed := time.Since(before); err != nil || passed > 45*time.Second {
			t.Errorf("%v after %v", err, passed)
		}
		// A long call does not ping more often than the server allows.
		service.fail = func(context.Context, int) error { time.Sleep(5 * time.Minute); return nil }
		if _, err := client.AllocateRange(t.Context(), "orders", 1); err != nil || len(service.conns) != 3 {
			t.Errorf("%v, %d connections", err, len(service.conns))
		}
	})
}

func TestNoProxyOfTheEnvironmentIsUsed(t *testing.T) {
	var used atomic.Bool
	proxy := front(t, func(int, *net.TCPConn) string { used.Store(true); return "" })
	for _, name := range []string{"http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY", "grpc_proxy", "all_proxy"} {
		t.Setenv(name, "http://"+proxy)
	}
	client := open(t, "192.0.2.1:50051", WithTimeout(300*time.Millisecond)) // an address for documentation
	if _, err := client.AllocateRange(t.Context(), "orders", 1); err == nil || used.Load() {
		t.Errorf("got %v, the proxy was used: %v", err, used.Load())
	}
}
