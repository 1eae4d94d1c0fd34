package idalloc

import (
	"context"
	"math/rand/v2"
	"time"
)

const (
	minBackoff = 100 * time.Millisecond
	maxBackoff = 2 * time.Second
	// Without progress for so long, an error is final.
	maxOutage = 60 * time.Second
	// The longest delay that a server can ask for.
	maxRetryDelay = time.Hour
	// The shortest wait after a quota is exceeded.
	minQuotaDelay = 10 * time.Millisecond
)

// outage decides whether to go on after a failed call. gRPC's own retry policy
// bridges 1.5 s and does not resume streams; a restart of a server takes longer.
type outage struct {
	backoff time.Duration
	since   time.Time // of the first error without progress since; zero if none
	renewed bool      // whether a token was replaced since the last progress
}

// over records progress.
func (o *outage) over() { *o = outage{} }

// isRenewed returns whether the call may be repeated at once, with another token
// than the one that err rejects.
func (o *outage) isRenewed(t *token, err error, sent *sentToken) bool {
	if o.renewed || !t.isReplaced(err, sent) {
		return false
	}
	o.renewed = true
	return true
}

// wait returns nil when the call may be repeated, else the error. connected is
// whether the server has ever answered: before that, an error is final, as an
// address or a certificate may be wrong. A quota is always waited for.
func (o *outage) wait(ctx context.Context, e *Error, connected bool) *Error {
	delay, ok := o.delay(e, connected)
	if !ok {
		return endedBy(ctx, e)
	}
	if e := o.tooLong(ctx, e, delay); e != nil {
		return e
	}
	timer := time.NewTimer(delay)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return endedBy(ctx, e)
	}
}

// delay returns how long after an error to repeat the call; false if it is final.
func (o *outage) delay(e *Error, connected bool) (time.Duration, bool) {
	if e.Reason == ErrQuotaExceeded {
		return jittered(max(minQuotaDelay, e.RetryDelay)), e.RetryDelay > 0
	}
	if !connected || !e.Retryable() {
		return 0, false
	}
	o.backoff = min(max(2*o.backoff, minBackoff), maxBackoff)
	return jittered(max(o.backoff, e.RetryDelay)), true
}

// tooLong returns nil if a caller may wait for a call that is repeated after delay,
// else the error.
func (o *outage) tooLong(ctx context.Context, e *Error, delay time.Duration) *Error {
	if ctx.Err() != nil {
		return endedBy(ctx, e)
	}
	if deadline, limited := ctx.Deadline(); limited && time.Until(deadline) <= delay {
		return e
	}
	if e.Reason == ErrQuotaExceeded {
		return nil
	}
	if o.since.IsZero() {
		o.since = time.Now()
	}
	if time.Since(o.since)+delay > maxOutage {
		return e
	}
	return nil
}

// jittered returns a delay that is up to a fifth longer: clients that wait for
// the same server or quota must not return at the same moment.
func jittered(delay time.Duration) time.Duration {
	return delay + time.Duration(0.2*rand.Float64()*float64(delay))
}
