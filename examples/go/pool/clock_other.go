//go:build !linux

package pool

// BootClock returns a clock that counts suspended time: whichever of the
// monotonic clock and the wall clock advances further. It misses a suspend
// during which the wall clock is set back.
func BootClock() Clock { return portableClock() }
