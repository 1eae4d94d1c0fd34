package io.idalloc.client;

import io.grpc.Status;
import java.time.Duration;
import java.util.HashSet;
import java.util.OptionalLong;
import java.util.Set;
import java.util.concurrent.ThreadLocalRandom;

/** Which server gets the next attempt of a call, and when. One thread uses it at a time. */
final class Rounds {
  private final Servers servers;
  private final Clock clock;
  private final int most;
  private final long limit;
  private final Backoff backoff = new Backoff();
  private final Set<Servers.Server> asked = new HashSet<>(); // in this round
  private Servers.Server last;
  private int round = 1;
  private boolean hasNewToken; // whether the last error was that of a replaced token
  private Long since; // the first failure, or null

  /** Allows so many rounds, and so many nanoseconds without progress. */
  Rounds(Servers servers, Clock clock, int most, long limit) {
    this.servers = servers;
    this.clock = clock;
    this.most = most;
    this.limit = limit;
  }

  /** Records progress. */
  void over() {
    since = null;
    hasNewToken = false;
    round = 1;
    backoff.next = Backoff.MIN;
    asked.retainAll(Set.of(last));
  }

  /** Returns the server for the next attempt. */
  Servers.Server next() {
    return ask(servers.pick(asked));
  }

  /** Returns the server for an attempt beside one that has no answer. */
  Servers.Server other() {
    return ask(servers.other(asked));
  }

  private Servers.Server ask(Servers.Server server) {
    asked.add(server);
    last = server;
    return server;
  }

  /**
   * Returns the nanoseconds until the next attempt, or nothing if the error is final. That of a
   * replaced token is followed by an attempt with the new one.
   */
  OptionalLong delay(IdallocException error, boolean isReplaced) {
    if (isReplaced && !hasNewToken) {
      hasNewToken = true;
      asked.clear();
      return OptionalLong.of(0);
    }
    since = since == null ? clock.nanos() : since;
    if (error.code() == Status.Code.UNAVAILABLE && servers.hasUsable(asked)) {
      return OptionalLong.of(0);
    }
    asked.clear();
    OptionalLong delay = round++ < most ? backoff.delay(error) : OptionalLong.empty();
    boolean isOver = clock.nanos() - since + delay.orElse(0) > limit;
    return isOver && !error.reason().equals(Reason.QUOTA_EXCEEDED) ? OptionalLong.empty() : delay;
  }

  /** How long to wait before a call is sent again. */
  static final class Backoff {
    private static final long MIN = Duration.ofMillis(100).toNanos();
    private static final long MAX = Duration.ofSeconds(2).toNanos();
    private static final long MIN_QUOTA_DELAY = Duration.ofMillis(10).toNanos();
    private long next = MIN;

    /** Returns the nanoseconds, at least those that the error asks for; none if it is final. */
    OptionalLong delay(IdallocException error) {
      long asked = error.retryDelay().toNanos();
      boolean isQuota = error.reason().equals(Reason.QUOTA_EXCEEDED);
      if (!error.isRetryable() || isQuota && asked == 0) {
        return OptionalLong.empty();
      }
      long least = Math.max(isQuota ? MIN_QUOTA_DELAY : step(), asked);
      // Clients that wait for the same server or quota must not return at the same moment.
      return OptionalLong.of((long) (least * ThreadLocalRandom.current().nextDouble(1.0, 1.2)));
    }

    /** Returns the nanoseconds, at least. */
    long step() {
      long step = next;
      next = Math.min(2 * next, MAX);
      return step;
    }
  }
}
