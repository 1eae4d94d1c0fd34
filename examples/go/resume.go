package main

import (
	"context"
	"math/rand/v2"
	"time"

	"google.golang.org/grpc/codes"

	"example.com/orders/pool"
)

const (
	minBackoff = 100 * time.Millisecond
	maxBackoff = 2 * time.Second
	// Without progress for so long, an error is final.
	maxOutage = 60 * time.Second
)

// outage decides whether to go on after a failed call. gRPC's own retry policy
// bridges 1.5 s and does not resume streams; a restart of a server takes longer.
type outage struct {
	backoff time.Duration
	since   time.Time // of the first error without progress since; zero if none
}

// over records progress.
func (o *outage) over() { *o = outage{} }

// wait returns nil when the call may be repeated, else the error itself. A
// program whose first call fails shows that error at once: connected is whether
// the server has ever answered.
func (o *outage) wait(ctx context.Context, err error, connected bool) error {
	details := pool.DetailsOf(err)
	switch details.Code {
	case codes.Unavailable:
	case codes.Canceled: // of a server that stops, to streams that it has not begun
	case codes.DeadlineExceeded: // of one call
	default:
		return err
	}
	if !connected || ctx.Err() != nil {
		return err
	}
	if o.since.IsZero() {
		o.since, o.backoff = time.Now(), minBackoff
	}
	delay := o.backoff
	if details.RetryDelay != nil {
		delay = max(minBackoff, *details.RetryDelay)
	}
	o.backoff = min(2*o.backoff, maxBackoff)
	delay += time.Duration(0.2 * rand.Float64() * float64(delay)) // jitter
	if time.Since(o.since)+delay > maxOutage {
		return err
	}
	select {
	case <-time.After(delay):
		return nil
	case <-ctx.Done():
		return err
	}
}
