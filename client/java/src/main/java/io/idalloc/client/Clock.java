package io.idalloc.client;

import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;

/**
 * The clocks of a pool, and its timer. On Linux the JVM's monotonic clock does not count the time
 * while the machine is suspended; the wall clock does, but it can be set.
 */
interface Clock {
  /** The clocks of this machine. */
  Clock SYSTEM =
      new Clock() {
        @Override
        public long nanos() {
          return System.nanoTime();
        }

        @Override
        public long millis() {
          return System.currentTimeMillis();
        }

        @Override
        public void after(long nanos, Runnable task) {
          CompletableFuture.delayedExecutor(nanos, TimeUnit.NANOSECONDS).execute(task);
        }
      };

  /** Returns nanoseconds since an arbitrary moment, on a clock that cannot be set. */
  long nanos();

  /** Returns milliseconds since 1970, on a clock that can be set. */
  long millis();

  /** Runs a task on another thread after a time. */
  void after(long nanos, Runnable task);
}
