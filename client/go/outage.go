package idalloc

import (
	"cmp"
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
)

const (
	minPatience     = 500 * time.Millisecond
	probeLimit      = 250 * time.Millisecond
	resolveInterval = 2 * time.Second
	minBackoff      = 100 * time.Millisecond
	maxBackoff      = 2 * time.Second
	maxRounds       = 5                // of a unary call, and of a request of AllocateStream
	maxRetryWait    = 5 * time.Second  // the longest RetryInfo for which such a call waits
	outageLimit     = 10 * time.Second // of a pool whose caller has no deadline
	maxSilence      = 60 * time.Second // without a message of a stream
	maxRetryDelay   = time.Hour        // that a server can ask for
	minQuotaDelay   = 10 * time.Millisecond
)

// outage is the state of a call: whether it goes on after an error.
type outage struct {
	servers      *servers
	asked        []*server // in this round
	isOver       bool      // whether the round had a second attempt
	isRepeatable bool
	late         func(reply proto.Message) // gets the answer to the slower of two attempts of a refill
	maxRounds    int                       // 0: no limit but maxSilence
	rounds       int                       // that have failed
	backoff      time.Duration
	since        time.Time // of the first error without progress since; zero if none
	last         *Error    // the one before
	sent         string    // the token
	renewed      bool      // whether the token was replaced since the last progress
}

// outageKey is the key of a call's *outage in its context.
type outageKey struct{}

// over records progress.
func (o *outage) over() { *o = outage{servers: o.servers, sent: o.sent} }

// isRenewed returns whether e rejects the token that was sent, and the file now has
// another one.
func (o *outage) isRenewed(e *Error) bool {
	if o.servers == nil || o.renewed || e.Code != codes.Unauthenticated {
		return false
	}
	token, _ := o.servers.config.token.load(0)
	o.renewed = token != o.sent
	return o.renewed
}

// hasOther returns whether a usable server is left in this round.
func (o *outage) hasOther() bool {
	if o.servers == nil || o.isOver {
		return false
	}
	o.servers.mu.Lock()
	defer o.servers.mu.Unlock()
	usable, _ := o.servers.find(o.asked)
	return usable != nil
}

// wait returns nil when the call may be repeated, else the error: at the deadline,
// that of the attempt before. A quota is always waited for, and a new token is sent
// at once.
func (o *outage) wait(ctx context.Context, e *Error) *Error {
	if o.isRenewed(e) {
		o.asked, o.isOver = nil, false
		return nil
	}
	if ctx.Err() != nil {
		if errors.Is(ctx.Err(), context.DeadlineExceeded) && (e.Code == codes.DeadlineExceeded || e.Code == codes.Canceled) {
			e = cmp.Or(o.last, errorOf(ctx.Err()))
		}
		return endedBy(ctx, e)
	}
	if o.last = e; e.Code == codes.Unavailable && o.hasOther() {
		return nil
	}
	delay, ok := o.delay(e)
	if e.Reason != ErrQuotaExceeded {
		o.rounds++
		o.since = cmp.Or(o.since, time.Now())
		if o.maxRounds > 0 {
			ok = ok && o.rounds < o.maxRounds && e.RetryDelay <= maxRetryWait
		} else {
			ok = ok && time.Since(o.since)+delay <= maxSilence
		}
	}
	if deadline, limited := ctx.Deadline(); !ok || limited && time.Until(deadline) <= delay {
		return e
	}
	if pause(ctx, delay); ctx.Err() != nil {
		return endedBy(ctx, e)
	}
	o.asked, o.isOver = nil, false
	return nil
}

// delay returns how long after an error to repeat the call; false if it is final.
func (o *outage) delay(e *Error) (time.Duration, bool) {
	if e.Reason == ErrQuotaExceeded {
		return jittered(max(minQuotaDelay, e.RetryDelay)), e.RetryDelay > 0
	}
	if !e.Retryable() {
		return 0, false
	}
	o.backoff = min(max(2*o.backoff, minBackoff), maxBackoff)
	return jittered(max(o.backoff, e.RetryDelay)), true
}

// jittered returns a delay that is up to a fifth longer: clients that wait for
// the same server or quota must not return at the same moment.
func jittered(delay time.Duration) time.Duration {
	return delay + time.Duration(0.2*rand.Float64()*float64(delay))
}

// pause waits, at most until the context ends.
func pause(ctx context.Context, delay time.Duration) {
	timer := time.NewTimer(delay)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}
