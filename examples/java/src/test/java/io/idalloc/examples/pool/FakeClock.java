package io.idalloc.examples.pool;

import java.time.Duration;

/** Clocks that only the test moves. */
final class FakeClock implements PoolClock {
  private volatile long monotonic = Long.MAX_VALUE - 5_000_000_000L; // wraps during the test
  private volatile long wall = 1_800_000_000_000L;

  @Override
  public long monotonicNanos() {
    return monotonic;
  }

  @Override
  public long wallMillis() {
    return wall;
  }

  void advance(Duration time) {
    monotonic += time.toNanos();
    wall += time.toMillis();
  }

  void advanceMonotonic(Duration time) {
    monotonic += time.toNanos();
  }

  void advanceWall(Duration time) {
    wall += time.toMillis();
  }
}
