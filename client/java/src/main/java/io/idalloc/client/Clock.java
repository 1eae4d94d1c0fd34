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
        public Runnable after(long nanos, Runnable task) {
          CompletableFuture<Void> timer = new CompletableFuture<>();
          timer.completeOnTimeout(null, nanos, TimeUnit.NANOSECONDS).thenRunAsync(task);
          return () -> timer.cancel(false);
        }
      };

  /** Returns nanoseconds since an arbitrary moment; a suspend of the machine counts. */
  long nanos();

  /** Runs a task on another thread after a time, and returns what prevents that. */
  Runnable after(long nanos, Runnable task);
}
