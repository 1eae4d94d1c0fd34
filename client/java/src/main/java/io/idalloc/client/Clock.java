package io.idalloc.client;

import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;

/** The time of a pool, and its timer. Threads share it. */
interface Clock {
  /** The clock of this machine. */
  Clock SYSTEM = new ElapsedTime(System::nanoTime, System::currentTimeMillis);

  /** Returns nanoseconds since an arbitrary moment; a suspend of the machine counts. */
  long nanos();

  /** Runs a task on another thread after a time, and returns what prevents that. */
  default Runnable after(long nanos, Runnable task) {
    CompletableFuture<Void> timer = new CompletableFuture<>();
    timer.completeOnTimeout(null, nanos, TimeUnit.NANOSECONDS).thenRunAsync(task);
    return () -> timer.cancel(false);
  }
}
