package io.idalloc.client;

import java.time.Duration;
import java.util.function.Supplier;

/** What is read from files, and again after a second. Threads share it. */
final class Reloaded<T> implements Supplier<T> {
  private static final long MAX_AGE = Duration.ofSeconds(1).toNanos();

  private final Supplier<T> read;
  private T value;
  private long readAt;

  /** Reads the files, which must be usable now. */
  Reloaded(Supplier<T> read) {
    this.read = read;
    this.value = read.get();
    this.readAt = System.nanoTime();
  }

  @Override
  public synchronized T get() {
    return System.nanoTime() - readAt < MAX_AGE ? value : reload();
  }

  /** Reads the files. Those that cannot be used leave the value from before. */
  synchronized T reload() {
    readAt = System.nanoTime();
    try {
      value = read.get();
    } catch (RuntimeException e) {
      // A file may be in the middle of its replacement.
    }
    return value;
  }
}
