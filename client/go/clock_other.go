//go:build !linux

package idalloc

// bootClock counts suspended time, as far as furtherOf does.
func bootClock() clock { return portableClock() }
