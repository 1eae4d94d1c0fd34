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

// A decrease of the wall clock by less than this may be a coarse tick of it.
const coarsestTick = 100 * time.Millisecond

// furtherOf returns a clock for systems without CLOCK_BOOTTIME: the monotonic
// clock, which may stop in a suspend, and what the wall clock gains on it. The
// wall clock can be set: back has no effect, ahead counts as a suspend. Of a
// suspend it may miss a tick.
func furtherOf(monotonic, wall func() time.Duration) clock {
	var mu sync.Mutex
	var gained time.Duration
	ahead := wall() - monotonic() // the most since the wall clock was set back
	read := func() time.Duration {
		mu.Lock()
		defer mu.Unlock()
		m := monotonic()
		now := wall() - m
		gained += max(now-ahead, 0)
		if now > ahead || now < ahead-coarsestTick {
			ahead = now
		}
		return m + gained
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
	type sample struct{ readAt, ahead time.Duration }
	var last atomic.Pointer[sample]
	read := func(old *sample, now time.Duration) time.Duration {
		// The monotonic clock was read before: a pause between the readings
		// makes ahead too large, which only ends ids early.
		ahead := exact() - now
		last.CompareAndSwap(old, &sample{now, ahead}) // else another one is newer
		return now + ahead
	}
	read(nil, monotonic())
	return clock{exact: exact, fast: func() time.Duration {
		now, latest := monotonic(), last.Load()
		if now-latest.readAt >= maxAge {
			return read(latest, now)
		}
		return now + latest.ahead
	}}
}
