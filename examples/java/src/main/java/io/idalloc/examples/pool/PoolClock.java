package io.idalloc.examples.pool;

/**
 * The two clocks of a pool. On Linux the JVM's monotonic clock does not count the time while the
 * machine is suspended; the wall clock does, but it can be set.
 */
public interface PoolClock {
  /** The clocks of this machine. */
  PoolClock SYSTEM =
      new PoolClock() {
        @Override
        public long monotonicNanos() {
          return System.nanoTime();
        }

        @Override
        public long wallMillis() {
          return System.currentTimeMillis();
        }
      };

  /** Nanoseconds since an arbitrary moment, on a clock that cannot be set. */
  long monotonicNanos();

  /** Milliseconds since 1970, on a clock that can be set. */
  long wallMillis();
}
