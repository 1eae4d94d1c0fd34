package io.idalloc.client;

import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;

/** The time of a pool, and its timer. Threads share it. */
interface Clock {
  /** The clock of this machine. */
  Clock SYSTEM =
      new Clock() {
        private final ElapsedTime elapsed =
            new ElapsedTime(System::nanoTime, System::currentTimeMillis);

        @Override
        public long nanos() {
          return elapsed.nanos();
        }

        @Override
        public void after(long nanos, Runnable task) {
          CompletableFuture.delayedExecutor(nanos, TimeUnit.NANOSECONDS).execute(task);
        }
      };

  /** Returns nanoseconds since an arbitrary moment; a suspend of the machine counts. */
  long nanos();

  /** Runs a task on another thread after a time. */
  void after(long nanos, Runnable task);
}
