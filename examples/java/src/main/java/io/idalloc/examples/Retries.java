package io.idalloc.examples;

import io.grpc.ManagedChannel;
import io.grpc.Status;
import io.idalloc.examples.pool.IdallocException;
import java.time.Duration;
import java.util.Set;

/**
 * Decides whether and when to continue after an error, for as long as a lone server needs to
 * restart: gRPC's own retries end after less than 2 s, and never resume a stream.
 */
final class Retries {
  private static final long INITIAL_NANOS = Duration.ofMillis(100).toNanos();
  private static final long MAX_NANOS = Duration.ofSeconds(2).toNanos();

  /** A server that stops cancels the calls that it has not begun. */
  private static final Set<Status.Code> RETRYABLE =
      Set.of(Status.Code.UNAVAILABLE, Status.Code.CANCELLED, Status.Code.DEADLINE_EXCEEDED);

  /** The longest time without progress. */
  static final Duration LIMIT = Duration.ofSeconds(60);

  /** The same before the first success, since there may be no server, or no trust in it. */
  private static final Duration FIRST_LIMIT = Duration.ofSeconds(5);

  private final ManagedChannel channel;
  private boolean hasSucceeded;
  private long backoff = INITIAL_NANOS;
  private long progressAt = System.nanoTime();
  private boolean hasFailed;

  Retries(ManagedChannel channel) {
    this.channel = channel;
  }

  /** Records that ids arrived. */
  void progress() {
    hasSucceeded = true;
    if (hasFailed) {
      hasFailed = false;
      backoff = INITIAL_NANOS;
    }
  }

  /**
   * Waits before the next attempt.
   *
   * @throws IdallocException the error itself, if another attempt cannot succeed or took too long
   */
  void await(IdallocException error) throws InterruptedException {
    if (!RETRYABLE.contains(error.code())) {
      throw error;
    }
    if (!hasFailed) {
      hasFailed = true;
      progressAt = System.nanoTime();
    }
    long delay = error.retryDelay().map(Duration::toNanos).orElse(backoff);
    Duration limit = hasSucceeded ? LIMIT : FIRST_LIMIT;
    if (System.nanoTime() - progressAt + delay > limit.toNanos()) {
      throw error;
    }
    backoff = Math.min(MAX_NANOS, 2 * backoff);
    Thread.sleep(Duration.ofNanos(delay).toMillis());
    // A channel's own backoff grows to two minutes: try to connect now.
    channel.resetConnectBackoff();
  }
}
