package idalloc

import (
	"sync"
	"sync/atomic"
	"time"
)

// clock reads a time that never steps back and that also counts the time in
// which the machine was suspended. Only differences of readings have a meaning.
// Goroutines read it concurrently.
type clock struct {
	exact func() time.Duration
	// fast is for each id. It may be a little ahead of exact, and behind it only
	// by a suspend that began less than a millisecond ago.
	fast func() time.Duration
}

// furtherOf returns a clock for systems without CLOCK_BOOTTIME. From one
// reading to the next it advances as far as the clock that advanced further:
// Go's monotonic clock may stop in a suspend, and the wall clock can be set.
func furtherOf(monotonic, wall func() time.Duration) clock {
	var mu sync.Mutex
	var sum time.Duration
	lastMonotonic, lastWall := monotonic(), wall()
	read := func() time.Duration {
		mu.Lock()
		defer mu.Unlock()
		m, w := monotonic(), wall()
		sum += max(m-lastMonotonic, w-lastWall, 0)
		lastMonotonic, lastWall = m, w
		return sum
	}
	return clock{read, read}
}

func portableClock() clock {
	start := time.Now()
	return furtherOf(
		func() time.Duration { return time.Since(start) },
		// Round(0) strips the monotonic reading, so that wall times are compared.
		func() time.Duration { return time.Now().Round(0).Sub(start.Round(0)) },
	)
}

// sampled returns a clock for which the exact one, a system call, is read once
// in each maxAge of the monotonic clock, which costs a fifth. A suspend
// of a machine takes longer: it stops programs first, then devices, then clocks.
func sampled(exact, monotonic func() time.Duration, maxAge time.Duration) clock {
	var offset, readAt atomic.Int64
	read := func(now time.Duration) time.Duration {
		// The monotonic clock was read before: a pause between the readings
		// makes the offset too large, which only ends ids early.
		ahead := exact() - now
		offset.Store(int64(ahead))
		readAt.Store(int64(now)) // after the offset
		return now + ahead
	}
	read(monotonic())
	return clock{exact: exact, fast: func() time.Duration {
		now := monotonic()
		if now-time.Duration(readAt.Load()) >= maxAge {
			return read(now)
		}
		return now + time.Duration(offset.Load())
	}}
}
