package pool

import (
	"sync"
	"time"
)

// Clock returns a reading that never steps back and that also counts the time
// in which the machine was suspended. Only differences of readings have a
// meaning. Goroutines call it concurrently.
type Clock func() time.Duration

// furtherOf returns a clock for systems without CLOCK_BOOTTIME. From one
// reading to the next it advances as far as the clock that advanced further:
// Go's monotonic clock may stop in a suspend, and the wall clock can be set.
func furtherOf(monotonic, wall Clock) Clock {
	var mu sync.Mutex
	var sum time.Duration
	lastMonotonic, lastWall := monotonic(), wall()
	return func() time.Duration {
		mu.Lock()
		defer mu.Unlock()
		m, w := monotonic(), wall()
		sum += max(m-lastMonotonic, w-lastWall, 0)
		lastMonotonic, lastWall = m, w
		return sum
	}
}

func portableClock() Clock {
	start := time.Now()
	return furtherOf(
		func() time.Duration { return time.Since(start) },
		// Round(0) strips the monotonic reading, so that wall times are compared.
		func() time.Duration { return time.Now().Round(0).Sub(start.Round(0)) },
	)
}
