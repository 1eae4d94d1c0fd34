package io.idalloc.client;

import java.util.concurrent.TimeUnit;
import java.util.function.LongSupplier;

/**
 * The time that has passed, with the time in which the machine was suspended. On Linux the JVM's
 * monotonic clock stops in a suspend. The wall clock does not, but it can be set: each jump forward
 * beside the monotonic clock counts as a suspend, which at worst ends ids early.
 *
 * <p>A reading may be behind by a suspend that began less than a millisecond ago, by jumps of less
 * than 20 ms, and by a suspend in which the wall clock was set back.
 */
final class ElapsedTime implements Clock {
  /** Larger than a tick of the wall clock. */
  private static final long MIN_JUMP = TimeUnit.MILLISECONDS.toNanos(20);

  private static final long MAX_AGE = TimeUnit.MILLISECONDS.toNanos(1);

  /** The clocks at a moment: when it was, and how much time the suspends before it took. */
  private record Sample(long monotonic, long suspended) {}

  private final LongSupplier monotonic;
  private final LongSupplier wall;
  private long least; // how far the wall clock is ahead of the monotonic one, at least
  private volatile Sample last;

  /** Both are read concurrently: one in nanoseconds, the other in milliseconds. */
  ElapsedTime(LongSupplier monotonic, LongSupplier wall) {
    this.monotonic = monotonic;
    this.wall = wall;
    long now = monotonic.getAsLong();
    this.least = ahead(now);
    this.last = new Sample(now, 0);
  }

  @Override
  public long nanos() {
    long now = monotonic.getAsLong();
    Sample sample = last;
    if (now - sample.monotonic >= MAX_AGE) {
      sample = sample(now);
    }
    return now + sample.suspended;
  }

  private synchronized Sample sample(long now) {
    // The monotonic clock was read before: a pause between the readings counts as a jump.
    long ahead = ahead(now);
    long suspended = last.suspended;
    if (ahead - least > MIN_JUMP) {
      suspended += ahead - least;
      least = ahead;
    }
    least = Math.min(least, ahead); // it was set back, or was at the end of a tick
    last = new Sample(now, suspended);
    return last;
  }

  private long ahead(long now) {
    return TimeUnit.MILLISECONDS.toNanos(wall.getAsLong()) - now;
  }
}
