package idalloc

import (
	"context"
	"iter"
	"math"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	"example.com/idalloc/client/go/idallocv1"
)

const (
	growBelow     = 500 * time.Millisecond // a range used up in less time: the next is twice as large
	maxRangeSize  = 1_000_000              // the default of the server's setting max_ids_per_call
	maxLateRanges = 3                      // in a row that had expired on arrival; as many are an error
)

// Pool hands out the ids of one sequence from memory. Goroutines may share it;
// create one for each sequence, and keep it.
//
// It gives out each id once, in the order in which ranges arrive, and none after
// the time that the server allows (ttl): use an id soon after Next. The faster
// ids are used, the larger ranges are, up to 1,000,000 ids. When the second half
// of a range begins, the next one is requested. The ids that a pool holds when
// it is closed, or when the process ends, are a gap.
type Pool struct {
	sequence string
	allocate func(ctx context.Context, count int64) (Range, error)
	clock    clock
	observe  func(Event)
	ctx      context.Context // of requests; ends with Close
	cancel   context.CancelFunc
	running  sync.WaitGroup // the request in flight

	current atomic.Pointer[lease] // changes only with the lock
	expired atomic.Int64          // ids that were taken too late

	mu       sync.Mutex
	next     *lease        // the prefetched range, or nil
	known    []Range       // the last 8 that arrived
	inFlight *request      // at most one, or nil
	started  time.Duration // when the first id of the current range was taken
	size     int64         // of the next range
	maxSize  int64
	broken   outage    // the waits between requests, which all callers share
	failed   *Error    // of the last request, if another one repeats it
	resendAt time.Time // when to send that one
	inDemand bool      // whether ranges are used up before they expire
	late     int       // ranges in a row that had expired on arrival
}

// lease is a range in the pool. Its ids are taken without a lock.
type lease struct {
	first, step, count int64
	prefetchAt         atomic.Int64 // the index from which on to request the next range
	taken              atomic.Int64 // the index of the next id; beyond count when there is none
	deadline           time.Duration
}

// request is a call for a range.
type request struct {
	repeats *Error    // of the failed request that it repeats, or nil
	sendAt  time.Time // if it repeats one
	done    chan struct{}
	err     *Error // when it is done, if no other request may succeed
}

// Pool returns a pool of a sequence. It requests nothing before the first call
// of Next. The client keeps the pool, with its ids, until one of both is closed:
// so create one for each sequence, not one for each request.
func (c *Client) Pool(sequence string, _ ...PoolOption) *Pool {
	late := func(reply proto.Message) {
		ids := reply.(*idallocv1.AllocateRangeResponse).GetRange().GetIdCount()
		c.observe(Event{Method: "Pool", Sequence: sequence, IDs: ids, Dropped: ids})
	}
	p := newPool(sequence, func(ctx context.Context, count int64) (Range, error) {
		ctx, cancel := context.WithTimeout(ctx, outageLimit) // also without WithTimeout
		defer cancel()
		ctx = context.WithValue(ctx, outageKey{}, &outage{maxRounds: 1, late: late})
		return c.AllocateRange(ctx, sequence, count)
	}, bootClock())
	p.observe = c.observe
	c.members.Store(p, nil)
	context.AfterFunc(p.ctx, func() { c.members.Delete(p) })
	return p
}

func newPool(sequence string, allocate func(context.Context, int64) (Range, error), clock clock) *Pool {
	ctx, cancel := context.WithCancel(context.Background())
	p := &Pool{
		sequence: sequence, allocate: allocate, clock: clock, ctx: ctx, cancel: cancel,
		observe: func(Event) {}, size: 1, maxSize: maxRangeSize, inDemand: true,
	}
	p.current.Store(&lease{deadline: math.MaxInt64})
	return p
}

// Next returns the next id. If none is at hand, it waits for a range, for a quota
// and for an unavailable server: until the deadline of ctx, or for 10 s if ctx has
// none. If an id is at hand, Next returns it even if ctx is done. What was requested
// for a caller that gave up stays for others.
//
// All callers wait for the same request. After a failure the pool sends the next
// one when the quota or the server may be available again. If that is after the
// caller's time, Next returns the last error at once, so it may return before ctx
// ends.
func (p *Pool) Next(ctx context.Context) (int64, error) {
	if id, ok := p.take(); ok {
		return id, nil
	}
	return p.wait(ctx)
}

// All yields ids until the loop ends. It ends by itself after an error.
func (p *Pool) All(ctx context.Context) iter.Seq2[int64, error] {
	return func(yield func(int64, error) bool) {
		for {
			id, err := p.Next(ctx)
			if !yield(id, err) || err != nil {
				return
			}
		}
	}
}

// wait returns the next id when it arrives.
func (p *Pool) wait(ctx context.Context) (int64, error) {
	if _, limited := ctx.Deadline(); !limited {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, outageLimit)
		defer cancel()
	}
	for {
		if id, ok := p.take(); ok {
			return id, nil
		}
		req, err := p.refill()
		if err != nil {
			return 0, err
		}
		if req == nil { // a range is at hand
			continue
		}
		deadline, _ := ctx.Deadline()
		if last := req.repeats; last != nil && (ctx.Err() != nil || !deadline.After(req.sendAt)) {
			return 0, endedBy(ctx, last)
		} else if ctx.Err() != nil {
			return 0, errorOf(ctx.Err())
		}
		select {
		case <-req.done:
		case <-ctx.Done():
			continue // a range may have arrived at the same moment
		}
		if req.err != nil && p.ctx.Err() == nil {
			return 0, req.err
		}
	}
}

// Close drops the ids at hand, cancels the request in flight and waits for its
// end. Callers that wait in Next get ErrClosed.
func (p *Pool) Close() error {
	p.mu.Lock()
	p.cancel()
	p.replace(&lease{deadline: math.MaxInt64})
	if p.next != nil {
		p.drop(p.next.count)
		p.next = nil
	}
	p.mu.Unlock()
	p.running.Wait()
	return nil
}

// take takes an id of the current range; false if there is none, or if it has expired.
func (p *Pool) take() (int64, bool) {
	l := p.current.Load()
	index := l.taken.Add(1) - 1
	if index >= l.count {
		return 0, false
	}
	if index >= l.prefetchAt.Load() {
		p.prefetch(l)
	}
	// Checked last: a process that was stopped at any point above must not
	// return an id that expired meanwhile.
	if p.clock.fast() < l.deadline || p.clock.exact() < l.deadline {
		return l.first + index*l.step, true
	}
	p.expired.Add(1)
	return 0, false
}

// prefetch requests the range after l, if ranges are used up in time.
func (p *Pool) prefetch(l *lease) {
	p.mu.Lock()
	defer p.mu.Unlock()
	l.prefetchAt.Store(math.MaxInt64) // until the request fails
	if p.current.Load() == l && p.inDemand && p.next == nil && p.inFlight == nil {
		p.send(p.clock.exact())
	}
}

// replace makes another range current, and reports the ids left in this one.
func (p *Pool) replace(l *lease) {
	old := p.current.Swap(l)
	left := old.count - min(old.count, old.taken.Swap(old.count))
	p.drop(left + p.expired.Swap(0))
}

func (p *Pool) drop(ids int64) {
	if ids > 0 {
		p.observe(Event{Method: "Pool", Sequence: p.sequence, Dropped: ids})
	}
}

// refill makes the next range current. If there is none, it returns the request
// to wait for.
func (p *Pool) refill() (*request, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.ctx.Err() != nil {
		return nil, closed("pool")
	}
	now, current := p.clock.exact(), p.current.Load()
	switch {
	case now >= current.deadline:
		p.reduceDemand()
	case current.taken.Load() < current.count: // another caller was here before
		return nil, nil
	case current.count > 0:
		p.inDemand = true
	}
	if next := p.next; next != nil {
		p.next = nil
		if now < next.deadline {
			p.replace(next)
			p.started = now
			return nil, nil
		}
		p.reduceDemand()
		p.drop(next.count)
	}
	if current.count > 0 {
		p.replace(&lease{deadline: math.MaxInt64})
	}
	if p.inFlight != nil {
		return p.inFlight, nil
	}
	return p.send(now), nil
}

// send requests the next range in the background. A request that repeats a failed
// one waits first.
func (p *Pool) send(now time.Duration) *request {
	req := &request{repeats: p.failed, sendAt: p.resendAt, done: make(chan struct{})}
	if p.current.Load().count > 0 && now-p.started < growBelow && req.repeats == nil {
		p.size *= 2
	}
	p.inFlight = req
	p.running.Go(func() {
		if req.repeats != nil {
			pause(p.ctx, time.Until(req.sendAt))
		}
		p.mu.Lock()
		p.size = min(p.size, p.maxSize)
		count, sent := p.size, p.clock.exact() // the ids live from this time on
		p.mu.Unlock()
		ids, err := p.allocate(p.ctx, count)
		p.mu.Lock()
		defer p.mu.Unlock()
		p.failed = nil
		if err == nil {
			p.broken.over()
			err = p.add(ids, sent)
		} else if delay, ok := p.backOff(errorOf(err)); ok {
			p.failed, p.resendAt = errorOf(err), time.Now().Add(delay)
			p.current.Load().prefetchAt.Store(0)
			err = nil
		}
		req.err = errorOf(err)
		p.inFlight = nil
		close(req.done)
	})
	return req
}

// add makes a range the next one. The time counts from before the request was
// sent, as the server may have taken the ids at any moment since.
func (p *Pool) add(ids Range, sent time.Duration) error {
	if ids.Period != "" {
		return invalid("sequence", "%q has a reset, so its numbers repeat: use AllocateRange with WithTexts", p.sequence)
	}
	if p.ctx.Err() != nil {
		p.drop(ids.Count)
		return closed("pool")
	}
	known := append(slices.Clone(p.known), ids)
	if err := checkDisjoint(known); err != nil {
		return err
	}
	p.known = known[max(0, len(known)-8):]
	deadline := sent + ids.TTL
	if p.clock.exact() >= deadline {
		p.drop(ids.Count)
		p.reduceDemand()
		if p.late++; p.late >= maxLateRanges {
			p.late = 0
			return newError(ErrExpiredOnArrival, codes.FailedPrecondition,
				"three ranges in a row had expired on arrival; check the latency to the server, or raise its lease_ttl")
		}
		return nil
	}
	p.late = 0
	p.next = &lease{first: ids.First, step: ids.Step, count: ids.Count, deadline: deadline}
	p.next.prefetchAt.Store(ids.Count / 2)
	return nil
}

// reduceDemand stops prefetching and halves the size, because a range expired
// before it was used up.
func (p *Pool) reduceDemand() {
	p.inDemand = false
	p.size = max(1, p.size/2)
}

// backOff adapts the size of the next range to an error, and returns how long after
// it to request that range; false if the error is final.
func (p *Pool) backOff(e *Error) (time.Duration, bool) {
	switch e.Reason {
	case ErrSequenceExhausted:
		largest, err := strconv.ParseInt(e.Metadata["largest_range"], 10, 64)
		if err == nil && 0 < largest && largest < p.size {
			p.size = largest
			return 0, true
		}
	case ErrInvalidRequest:
		if e.Metadata["field"] == "id_count" && p.size > 1 {
			p.size /= 2
			p.maxSize = p.size
			return 0, true
		}
	case ErrQuotaExceeded:
		// A call may overdraw the quota, and the server rejects all calls
		// until it is refilled: smaller ranges make for shorter waits.
		if e.RetryDelay > growBelow {
			p.size = max(1, p.size/2)
		}
	}
	return p.broken.delay(e)
}
