// Package idalloc gets ids from an idalloc server: one by one from memory, in
// ranges, and in streams.
//
//	client, err := idalloc.New("127.0.0.1:50051")
//	…
//	defer client.Close()
//	ids := client.Pool("orders")
//	id, err := ids.Next(ctx)
//
// A Client, a Pool and a Stream may be shared by goroutines. Each error is an
// *Error. A retry, by the package or by you, never returns an id twice: at worst
// it leaves a gap. The package does not log; see WithObserver for metrics.
package idalloc

import (
	"cmp"
	"context"
	"crypto/rand"
	"fmt"
	"io"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/status"

	"example.com/idalloc/client/go/idallocv1"
)

// Client is a connection to the servers of one store. Create one, and share it:
// goroutines may call all methods concurrently.
//
// A call that ended with UNAVAILABLE is sent to the other servers, in five rounds
// within about 1.5 s, and within its timeout. If a server hangs, calls go to another
// one after 0.75 s. Pools continue over an outage of 10 s, or of the time that ctx
// allows, and streams over one of 60 s.
type Client struct {
	*config
	stubs   Stubs
	servers *servers
	target  string          // of New, for errors
	ctx     context.Context // ends with Close
	cancel  context.CancelFunc

	members sync.Map // open pools and streams
}

// Stubs are the generated clients of all services, for calls that Client lacks:
// the administration of sequences, the node's settings and UUIDs. Unary calls have
// the retries of Client, but not its timeout. See ErrorOf for their errors.
type Stubs struct {
	IDAllocator idallocv1.IdAllocatorServiceClient
	Sequences   idallocv1.SequenceServiceClient
	Node        idallocv1.NodeServiceClient
}

// New returns a client of the servers at target. It does not connect: the first
// call does.
//
// A target is "host:50051", several of them with commas, or one of gRPC's, such
// as "unix:///run/idalloc.sock". Each address is a server, and calls use them in
// turn. A name with several addresses is several servers; it is looked up again
// when one of them fails. New fails if an option names a file that cannot be used.
func New(target string, options ...Option) (*Client, error) {
	client := newClient(newConfig(options))
	client.target = target
	if err := client.servers.open(target); err != nil {
		client.cancel()
		return nil, err
	}
	return client, nil
}

// NewFromConn returns a client that uses an existing connection, which Close
// leaves open. Of the options, only WithTimeout and WithObserver have an effect.
// The client repeats calls itself, so the connection should not, and it sends no
// call to another server.
func NewFromConn(conn grpc.ClientConnInterface, options ...Option) *Client {
	c := newConfig(options)
	c.tls, c.token = nil, nil
	client := newClient(c)
	client.servers.all = []*server{{ClientConnInterface: conn, ctx: client.ctx}}
	return client
}

func newClient(c *config) *Client {
	ctx, cancel := context.WithCancel(context.Background())
	servers := &servers{ctx: ctx, config: c}
	return &Client{
		stubs: Stubs{
			IDAllocator: idallocv1.NewIdAllocatorServiceClient(servers),
			Sequences:   idallocv1.NewSequenceServiceClient(servers),
			Node:        idallocv1.NewNodeServiceClient(servers),
		},
		config: c, servers: servers, ctx: ctx, cancel: cancel,
	}
}

// Stubs returns the generated clients.
func (c *Client) Stubs() Stubs { return c.stubs }

// Close closes the client's pools and streams, and the connections of New. Calls
// in flight, and later ones, end with ErrClosed.
func (c *Client) Close() error {
	c.cancel()
	c.members.Range(func(member, _ any) bool { return member.(io.Closer).Close() == nil })
	return nil
}

// AllocateRange allocates a range of count ids. A retry takes new ids, unless
// the call has WithRequestID.
func (c *Client) AllocateRange(ctx context.Context, sequence string, count int64, options ...RangeOption) (allocated Range, err error) {
	request, invalid := rangeRequest(sequence, count, options)
	if invalid != nil {
		return Range{}, invalid
	}
	err = c.call(ctx, Event{Method: "AllocateRange", Sequence: sequence}, func(ctx context.Context) (int64, error) {
		reply, err := c.stubs.IDAllocator.AllocateRange(ctx, request)
		if err == nil {
			allocated, err = newRange(reply, count, count, request.GetView())
		}
		return allocated.Count, err
	})
	return allocated, err
}

// BatchAllocateRanges allocates ranges of several sequences in one call: up to
// 1,000 requests. The results are in their order; each is a range or an error.
func (c *Client) BatchAllocateRanges(ctx context.Context, requests []RangeRequest, _ ...BatchOption) (results []RangeResult, err error) {
	batch := &idallocv1.BatchAllocateRangesRequest{}
	for _, each := range requests {
		request, invalid := rangeRequest(each.Sequence, each.Count, nil)
		if invalid != nil {
			return nil, invalid
		}
		batch.Requests = append(batch.Requests, request)
	}
	err = c.call(ctx, Event{Method: "BatchAllocateRanges"}, func(ctx context.Context) (ids int64, err error) {
		reply, err := c.stubs.IDAllocator.BatchAllocateRanges(ctx, batch)
		if err == nil {
			results, ids, err = newResults(reply, requests)
		}
		return ids, err
	})
	return results, err
}

func newResults(reply *idallocv1.BatchAllocateRangesResponse, requests []RangeRequest) (results []RangeResult, ids int64, err error) {
	if len(reply.GetResults()) != len(requests) {
		return nil, 0, invalidReply("results has %d items; expected %d", len(reply.GetResults()), len(requests))
	}
	taken := map[[2]string][]Range{} // by sequence and period
	for i, result := range reply.GetResults() {
		if failed := result.GetError(); failed.GetCode() != 0 {
			results = append(results, RangeResult{Err: ErrorOf(status.ErrorProto(failed))})
			continue
		}
		count := requests[i].Count
		allocated, err := newRange(result.GetResponse(), count, count, 0)
		if err != nil {
			return nil, 0, err
		}
		results = append(results, RangeResult{Range: allocated})
		ids += count
		key := [2]string{requests[i].Sequence, allocated.Period}
		taken[key] = append(taken[key], allocated)
	}
	for _, ranges := range taken {
		if err := checkDisjoint(ranges); err != nil {
			return nil, ids, err
		}
	}
	return results, ids, nil
}

// checkDisjoint returns an error if two ranges share an id.
func checkDisjoint(ranges []Range) error {
	lowest := func(r Range) int64 { return min(r.First, r.Last) }
	sorted := slices.SortedFunc(slices.Values(ranges), func(a, b Range) int { return cmp.Compare(lowest(a), lowest(b)) })
	for i, each := range sorted[1:] {
		if lowest(each) <= max(sorted[i].First, sorted[i].Last) {
			return invalidReply("range has %d twice; expected each id once", lowest(each))
		}
	}
	return nil
}

// DocIDs generates count document ids in MySQL's format, at most the server's
// max_ids_per_call (default 1,000,000).
func (c *Client) DocIDs(ctx context.Context, count int64, _ ...DocIDOption) (ids []string, err error) {
	request, invalid := docIDRequest(count)
	if invalid != nil {
		return nil, invalid
	}
	err = c.call(ctx, Event{Method: "GenerateDocId"}, func(ctx context.Context) (int64, error) {
		reply, err := c.stubs.IDAllocator.GenerateDocId(ctx, request)
		if err == nil {
			ids, err = docIDs(reply, count)
		}
		return int64(len(ids)), err
	})
	return ids, err
}

// call makes a unary call within the client's timeout.
func (c *Client) call(ctx context.Context, event Event, do func(context.Context) (ids int64, err error)) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if c.timeout > 0 {
		var stop context.CancelFunc
		ctx, stop = context.WithTimeout(ctx, c.timeout)
		defer stop()
	}
	defer context.AfterFunc(c.ctx, cancel)() // Close ends the call
	start := time.Now()
	ids, err := do(ctx)
	return c.finish(ctx, event, start, ids, failureOf(ctx, err))
}

// finish reports a finished call, and returns its error or nil. The error of an
// unreachable server has the target.
func (c *Client) finish(ctx context.Context, event Event, start time.Time, ids int64, e *Error) error {
	event.IDs, event.Duration = ids, time.Since(start)
	switch {
	case e == nil:
	case c.ctx.Err() != nil:
		event.Err = closed("client")
	case e.Reason == ErrServerUnreachable && c.target != "":
		named := *e
		named.Message = c.target + ": " + e.Message
		event.Err = endedBy(ctx, &named)
	default:
		event.Err = endedBy(ctx, e)
	}
	c.observe(event)
	return event.Err
}

// NewRequestID returns a random UUID, for WithRequestID.
func NewRequestID() string {
	var u [16]byte
	rand.Read(u[:]) // never fails
	u[6], u[8] = u[6]&0x0f|0x40, u[8]&0x3f|0x80
	return fmt.Sprintf("%x-%x-%x-%x-%x", u[:4], u[4:6], u[6:8], u[8:10], u[10:])
}
