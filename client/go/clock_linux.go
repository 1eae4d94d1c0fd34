package idalloc

import (
	"time"

	"golang.org/x/sys/unix"
)

// bootClock reads CLOCK_BOOTTIME, which cannot be set and counts suspended time.
// Go's own monotonic clock (time.Since) stops while a machine sleeps.
func bootClock() clock {
	var ts unix.Timespec
	if unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts) != nil {
		return portableClock() // a sandbox without this clock
	}
	start := time.Now()
	return sampled(func() time.Duration {
		var ts unix.Timespec
		if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts); err != nil {
			panic("CLOCK_BOOTTIME is gone: " + err.Error()) // no id can be given without a clock
		}
		return time.Duration(ts.Nano())
	}, func() time.Duration { return time.Since(start) }, time.Millisecond)
}
