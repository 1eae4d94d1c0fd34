//go:build !linux

package idalloc

// bootClock counts suspended time: whichever of the monotonic clock and the wall
// clock advances further. It misses a suspend during which the wall clock is set
// back.
func bootClock() clock { return portableClock() }
