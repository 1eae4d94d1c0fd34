// Package pool hands out the ids of one idalloc sequence one by one, from
// ranges that it requests before they are needed.
package pool

import (
	"context"
	"errors"
	"math"
	"math/rand/v2"
	"strconv"
	"sync"
	"time"

	idallocv1 "example.com/idalloc/client/go/idallocv1"
)

const (
	// A range that is used up in less time is followed by one twice as large.
	growBelow = 500 * time.Millisecond
	// The default of the server's setting max_ids_per_call.
	maxRangeSize = 1_000_000
	// So many ranges in a row that had expired on arrival are an error.
	maxLateRanges = 3
	// The shortest wait after a quota is exceeded.
	minQuotaDelay = 10 * time.Millisecond
)

var (
	// ErrClosed is the error of Next after Close.
	ErrClosed = errors.New("the pool is closed")
	// ErrExpiredOnArrival is the error of Next if ranges keep arriving too late.
	ErrExpiredOnArrival = errors.New("three ranges in a row had expired on arrival; " +
		"check the latency to the server, or raise its lease_ttl")
)

// AllocateFunc requests one range of count ids: a call of AllocateRange with the
// pool's sequence. It limits the call's time itself. The context ends when the
// pool is closed, not when a caller of Next gives up.
type AllocateFunc func(ctx context.Context, count int64) (*idallocv1.AllocateRangeResponse, error)

// Pool hands out the ids of one sequence. Goroutines may share it.
//
// It gives out each id once, in the order in which ranges arrive, and none after
// the time that the server allows (ttl). The larger ranges are, the faster ids
// are used. When the second half of a range begins, the next one is requested.
type Pool struct {
	allocate AllocateFunc
	clock    Clock
	ctx      context.Context // of requests; ends with Close
	cancel   context.CancelFunc
	running  sync.WaitGroup // the request in flight

	mu       sync.Mutex
	closed   bool
	current  *lease
	next     *lease        // the prefetched range, or nil
	inFlight *request      // at most one, or nil
	started  time.Duration // when the first id of the current range was taken
	size     int64         // of the next range
	maxSize  int64
	inDemand bool // whether ranges are used up before they expire
	late     int  // ranges in a row that had expired on arrival
}

// lease is a range in the pool.
type lease struct {
	next, step int64
	left       int64
	secondHalf int64 // prefetch when this many ids are left
	deadline   time.Duration
}

// request is a call for a range. After done is closed, the other fields are set.
type request struct {
	done         chan struct{}
	err          error
	retrySmaller bool // whether a smaller range may succeed at once
}

// The state without a range.
var noLease = &lease{deadline: math.MaxInt64}

// New returns a pool. It requests nothing before the first call of Next. Use
// BootClock except in tests.
func New(allocate AllocateFunc, clock Clock) *Pool {
	ctx, cancel := context.WithCancel(context.Background())
	return &Pool{
		allocate: allocate,
		clock:    clock,
		ctx:      ctx,
		cancel:   cancel,
		current:  noLease,
		size:     1,
		maxSize:  maxRangeSize,
		inDemand: true,
	}
}

// Next returns the next id. It waits, as long as ctx allows, for a range or for
// a quota; without a deadline, a quota can take hours. If ids are at hand it
// returns one even if ctx is done. What was requested for a caller that gave up
// stays for others.
//
// An error of a call is returned as it is; the next call of Next tries again.
func (p *Pool) Next(ctx context.Context) (int64, error) {
	for joined := false; ; {
		if id, ok := p.take(); ok {
			return id, nil
		}
		if err := ctx.Err(); err != nil {
			return 0, err
		}
		req, isNew, err := p.refill()
		if err != nil {
			return 0, err
		}
		if req == nil { // a range is at hand
			continue
		}
		select {
		case <-req.done:
		case <-ctx.Done():
			return 0, ctx.Err()
		case <-p.ctx.Done():
		}
		if p.ctx.Err() != nil {
			return 0, ErrClosed
		}
		if req.err == nil || req.retrySmaller {
			continue
		}
		if !isNew && !joined {
			// The failed request was a prefetch, or older than this call.
			joined = true
			continue
		}
		if err := p.waitForQuota(ctx, req.err); err != nil {
			return 0, err
		}
	}
}

// Close drops the ids at hand, cancels the request in flight and waits for its
// end. Callers that wait in Next get ErrClosed.
func (p *Pool) Close() {
	p.mu.Lock()
	p.closed = true
	p.current, p.next = noLease, nil
	p.cancel()
	p.mu.Unlock()
	p.running.Wait()
}

// take takes an id of the current range. It returns false if there is none, or
// if it has expired.
func (p *Pool) take() (int64, bool) {
	p.mu.Lock()
	l := p.current
	if l.left == 0 {
		p.mu.Unlock()
		return 0, false
	}
	id := l.next
	if l.left == l.secondHalf && p.inDemand && p.next == nil && p.inFlight == nil {
		p.send(p.clock())
	}
	l.next += l.step // after the last id it may overflow, and is not used
	l.left--
	p.mu.Unlock()
	// Checked last: a process that was stopped at any point above must not
	// return an id that expired meanwhile.
	return id, p.clock() < l.deadline
}

// refill makes the next range current. If there is none, it returns the request
// to wait for, and whether this call sent it.
func (p *Pool) refill() (req *request, isNew bool, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return nil, false, ErrClosed
	}
	now := p.clock()
	switch {
	case now >= p.current.deadline:
		p.reduceDemand()
	case p.current.left > 0: // another caller was here before
		return nil, false, nil
	case p.current != noLease:
		p.inDemand = true
	}
	p.current = noLease
	if next := p.next; next != nil {
		p.next = nil
		if now < next.deadline {
			p.current, p.started = next, now
			return nil, false, nil
		}
		p.reduceDemand()
	}
	if p.inFlight != nil {
		return p.inFlight, false, nil
	}
	return p.send(now), true, nil
}

// send requests the next range in the background. Its ids live from now on.
func (p *Pool) send(now time.Duration) *request {
	if p.current != noLease && now-p.started < growBelow {
		p.size *= 2
	}
	p.size = min(p.size, p.maxSize)
	count, req := p.size, &request{done: make(chan struct{})}
	p.inFlight = req
	p.running.Go(func() {
		reply, err := p.allocate(p.ctx, count)
		p.mu.Lock()
		defer p.mu.Unlock()
		if err == nil {
			err = p.add(reply, count, now)
		} else {
			req.retrySmaller = p.adaptSize(err)
		}
		req.err = err
		p.inFlight = nil
		close(req.done)
	})
	return req
}

// add makes a reply the next range. The time counts from before the request was
// sent, as the server may have taken the ids at any moment since.
func (p *Pool) add(reply *idallocv1.AllocateRangeResponse, count int64, sent time.Duration) error {
	ttl, err := checkReply(reply, count)
	if err != nil {
		return err
	}
	if p.closed {
		return ErrClosed
	}
	deadline := sent + ttl
	if p.clock() >= deadline {
		p.reduceDemand()
		if p.late++; p.late >= maxLateRanges {
			p.late = 0
			return ErrExpiredOnArrival
		}
		return nil
	}
	p.late = 0
	ids := reply.GetRange()
	p.next = &lease{
		next: ids.GetFirstId(), step: ids.GetStep(), left: count, secondHalf: count - count/2, deadline: deadline,
	}
	return nil
}

// reduceDemand stops prefetching and halves the size, because a range expired
// before it was used up.
func (p *Pool) reduceDemand() {
	p.inDemand = false
	p.size = max(1, p.size/2)
}

// adaptSize adapts the size of the next range to an error, and returns whether
// a smaller range may succeed at once.
func (p *Pool) adaptSize(err error) bool {
	details := DetailsOf(err)
	switch details.Reason {
	case "SEQUENCE_EXHAUSTED":
		largest, err := strconv.ParseInt(details.Metadata["largest_range"], 10, 64)
		if err == nil && 0 < largest && largest < p.size {
			p.size = largest
			return true
		}
	case "INVALID_REQUEST":
		if details.Metadata["field"] == "id_count" && p.size > 1 {
			p.size /= 2
			p.maxSize = p.size
			return true
		}
	case "QUOTA_EXCEEDED":
		// A call may overdraw the quota, and the server rejects all calls
		// until it is refilled: smaller ranges make for shorter waits.
		if details.RetryDelay != nil && *details.RetryDelay > growBelow {
			p.size = max(1, p.size/2)
		}
	}
	return false
}

// waitForQuota waits as long as the server asks for if a quota was exceeded. It
// returns any other error, and also this one if ctx would end before.
func (p *Pool) waitForQuota(ctx context.Context, err error) error {
	details := DetailsOf(err)
	if details.Reason != "QUOTA_EXCEEDED" || details.RetryDelay == nil {
		return err
	}
	// Jitter, so that clients that wait for one quota do not return at once.
	delay := time.Duration(float64(max(minQuotaDelay, *details.RetryDelay)) * (1 + 0.2*rand.Float64()))
	if deadline, ok := ctx.Deadline(); ok && time.Until(deadline) <= delay {
		return err
	}
	timer := time.NewTimer(delay)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	case <-p.ctx.Done():
		return ErrClosed
	}
}
