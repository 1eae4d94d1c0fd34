package io.idalloc.client;

import io.grpc.Status;
import java.time.Duration;
import java.util.OptionalLong;
import java.util.concurrent.ThreadLocalRandom;

/**
 * Decides whether to go on after a failed call. gRPC's own retry policy bridges 1.5 s and does not
 * resume streams; a restart of a server takes longer. One thread uses it at a time.
 */
final class Outage {
  /** Without progress for so long, an error is final. */
  static final Duration LONGEST = Duration.ofSeconds(60);

  private static final long MIN_BACKOFF = Duration.ofMillis(100).toNanos();
  private static final long MAX_BACKOFF = Duration.ofSeconds(2).toNanos();
  private static final long MIN_QUOTA_DELAY = Duration.ofMillis(10).toNanos();

  private final Clock clock;
  private boolean hasBegun;
  private long since;
  private long backoff;

  Outage(Clock clock) {
    this.clock = clock;
  }

  /** Records progress. */
  void over() {
    hasBegun = false;
  }

  /**
   * Returns the nanoseconds to wait before the call may be repeated, or nothing if the error is
   * final. Before the server has ever answered, an error is final, as an address or a certificate
   * may be wrong. A quota is always waited for.
   */
  OptionalLong delay(IdallocException error, boolean hasAnswered) {
    long asked = error.retryDelay().toNanos();
    if (error.reason().equals(Reason.QUOTA_EXCEEDED)) {
      return asked > 0
          ? OptionalLong.of(jittered(Math.max(MIN_QUOTA_DELAY, asked)))
          : OptionalLong.empty();
    }
    boolean isFinal = !error.isRetryable() && error.code() != Status.Code.CANCELLED;
    if (!hasAnswered || isFinal || error.reason().equals(Reason.CLOSED)) {
      return OptionalLong.empty();
    }
    if (!hasBegun) {
      hasBegun = true;
      since = clock.nanos();
      backoff = MIN_BACKOFF;
    }
    long delay = jittered(Math.max(backoff, asked));
    backoff = Math.min(2 * backoff, MAX_BACKOFF);
    boolean isTooLong = clock.nanos() - since + delay > LONGEST.toNanos();
    return isTooLong ? OptionalLong.empty() : OptionalLong.of(delay);
  }

  /**
   * Returns a delay that is up to a fifth longer: clients that wait for the same server or quota
   * must not return at the same moment.
   */
  private static long jittered(long delay) {
    return (long) (delay * ThreadLocalRandom.current().nextDouble(1.0, 1.2));
  }
}
