package io.idalloc.examples.pool;

import io.grpc.Status;
import java.time.Duration;
import java.util.ArrayDeque;
import java.util.Deque;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionException;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.ThreadLocalRandom;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import java.util.concurrent.atomic.AtomicLong;
import java.util.concurrent.locks.ReentrantLock;

/**
 * Hands out the ids of one sequence one by one, from ranges that it requests ahead of their use.
 *
 * <p>The faster ids are used, the larger the ranges. A range is used in two halves; when the second
 * one begins, the pool requests the next range in the background. Before each id it checks the
 * clocks, and it drops ids that are older than the server allows ({@code ttl}).
 *
 * <p>Platform and virtual threads may share a pool. Each id goes to one caller. An interrupt or a
 * timeout of one caller neither loses nor repeats ids of the others: its request goes on, and the
 * next caller gets the range.
 */
public final class IdPool implements AutoCloseable {
  /** The largest range of a request: the default of the server's setting max_ids_per_call. */
  static final long MAX_RANGE_SIZE = 1_000_000;

  /** If half a range lasts for less than this, the next range is twice as large. */
  static final Duration SHORT_USE = Duration.ofMillis(500);

  /** How many ranges in a row may have expired on arrival before that is an error. */
  static final int MAX_LATE_RANGES = 3;

  private static final Duration MIN_RETRY_DELAY = Duration.ofMillis(10);
  private static final Duration MAX_TTL = Duration.ofDays(366);

  /** Stands for no id. The smallest id of any sequence is -2^62. */
  private static final long NONE = Long.MIN_VALUE;

  private final String sequence;
  private final RangeSource source;
  private final PoolClock clock;
  private final Duration timeout;

  /**
   * The ids in use. Callers take from it without the lock. Only a holder of the lock replaces it.
   */
  private volatile Part current = Part.EMPTY;

  // The lock guards what follows. Nobody holds it while waiting for the server.
  private final ReentrantLock lock = new ReentrantLock();
  private final Deque<Part> parts = new ArrayDeque<>();
  private Request inFlight;
  private boolean started; // whether startedAt is set
  private long startedAt; // when the range in use became current
  private long size = 1;
  private long maxSize = MAX_RANGE_SIZE;
  private boolean inDemand = true; // whether ranges are used up before they expire
  private int lateRanges;

  private final CompletableFuture<Void> closed = new CompletableFuture<>();

  /**
   * @param timeout how long {@link #next()} waits for an id
   */
  public IdPool(String sequence, RangeSource source, Duration timeout) {
    this(sequence, source, timeout, PoolClock.SYSTEM);
  }

  /**
   * @param clock the clocks that decide when ids expire
   */
  public IdPool(String sequence, RangeSource source, Duration timeout, PoolClock clock) {
    this.sequence = sequence;
    this.source = source;
    this.timeout = timeout;
    this.clock = clock;
  }

  /** Returns an id, as {@link #next(Duration)} with the timeout of the pool. */
  public long next() throws InterruptedException {
    long id = current.take(clock);
    return id != NONE ? id : await(timeout);
  }

  /**
   * Returns an id that no other call returns.
   *
   * @param timeout how long to wait for the server, also if a quota is exceeded
   * @throws IdallocException the server refused a range, or the timeout has passed. The next call
   *     tries again.
   * @throws IllegalStateException the pool is closed
   * @throws InterruptedException the thread was interrupted while it waited
   */
  public long next(Duration timeout) throws InterruptedException {
    long id = current.take(clock);
    return id != NONE ? id : await(timeout);
  }

  /** Drops all ids and ends the waits of all callers. */
  @Override
  public void close() {
    Request abandoned;
    lock.lock();
    try {
      closed.complete(null);
      abandoned = inFlight;
      inFlight = null;
      parts.clear();
      current.drop();
      current = Part.EMPTY;
    } finally {
      lock.unlock();
    }
    if (abandoned != null) {
      abandoned.outcome.complete(Outcome.TRY_AGAIN);
    }
  }

  private long await(Duration timeout) throws InterruptedException {
    long deadline = System.nanoTime() + timeout.toNanos();
    while (true) {
      long id;
      Request toSend = null;
      Request toAwait = null;
      lock.lock();
      try {
        if (closed.isDone()) {
          throw new IllegalStateException("the pool of sequence '" + sequence + "' is closed");
        }
        id = takeOrAdvance();
        if (id != NONE) {
          if (shouldPrefetch()) {
            toSend = newRequest(true);
          }
        } else if (inFlight != null) {
          toAwait = inFlight;
        } else {
          toAwait = toSend = newRequest(false);
        }
      } finally {
        lock.unlock();
      }
      if (toSend != null) {
        send(toSend);
      }
      if (id != NONE) {
        return id;
      }
      await(toAwait, deadline);
    }
  }

  /** Waits until the request has ended and another attempt to take an id makes sense. */
  private void await(Request request, long deadline) throws InterruptedException {
    Outcome outcome;
    try {
      outcome = request.outcome.get(deadline - System.nanoTime(), TimeUnit.NANOSECONDS);
    } catch (TimeoutException e) {
      throw timedOut();
    } catch (ExecutionException e) {
      throw new AssertionError(e); // an outcome is a value, also of a failure
    }
    // The caller did not ask for a prefetched range, so it does not get that error: it tries
    // itself.
    if (outcome.error == null || outcome.retryNow || request.isPrefetch) {
      if (System.nanoTime() - deadline >= 0) {
        throw outcome.error == null ? timedOut() : outcome.error.copy();
      }
      return;
    }
    IdallocException error = outcome.error;
    if (!error.reason().equals("QUOTA_EXCEEDED") || error.retryDelay().isEmpty()) {
      throw error.copy();
    }
    // With jitter, so that clients that wait for the same quota do not come back together.
    double jitter = ThreadLocalRandom.current().nextDouble(1.0, 1.2);
    Duration wait = error.retryDelay().get();
    long delay = (long) (Math.max(wait.toNanos(), MIN_RETRY_DELAY.toNanos()) * jitter);
    if (delay >= deadline - System.nanoTime()) {
      throw error.copy();
    }
    try {
      closed.get(delay, TimeUnit.NANOSECONDS);
    } catch (TimeoutException e) {
      // The delay has passed.
    } catch (ExecutionException e) {
      throw new AssertionError(e);
    }
  }

  private IdallocException timedOut() {
    return new IdallocException(
        Status.Code.DEADLINE_EXCEEDED, "no id of sequence '" + sequence + "' within the timeout");
  }

  /** Takes an id from the ranges at hand. Returns NONE if they have none. */
  private long takeOrAdvance() {
    while (true) {
      long id = current.take(clock);
      if (id != NONE) {
        return id;
      }
      if (!advance()) {
        return NONE;
      }
    }
  }

  /** Makes the next part current. Returns false if none is left, or all have expired. */
  private boolean advance() {
    Part used = current;
    if (used.range.isExpired(clock)) {
      reduceDemand();
    } else if (started && (parts.isEmpty() || parts.peek().range != used.range)) {
      inDemand = true;
    }
    used.drop();
    current = Part.EMPTY;
    for (Part part = parts.poll(); part != null; part = parts.poll()) {
      boolean isNewRange = part.range != used.range;
      if (!part.range.isExpired(clock)) {
        if (isNewRange) {
          started = true;
          startedAt = clock.monotonicNanos();
          lateRanges = 0;
        }
        current = part;
        return true;
      }
      if (isNewRange) {
        started = false;
        dropLateRange();
      }
    }
    started = false;
    return false;
  }

  /** Stops requesting ahead and halves the size: a range expired before it was used up. */
  private void reduceDemand() {
    inDemand = false;
    size = Math.max(1, size / 2);
  }

  private void dropLateRange() {
    parts.clear();
    reduceDemand();
    lateRanges++;
    if (lateRanges >= MAX_LATE_RANGES) {
      lateRanges = 0;
      throw new IdallocException(
          Status.Code.DEADLINE_EXCEEDED,
          MAX_LATE_RANGES
              + " ranges of sequence '"
              + sequence
              + "' in a row had expired on arrival; check the latency to the server, or raise its"
              + " lease_ttl");
    }
  }

  private boolean shouldPrefetch() {
    // Once for each range: a prefetch that failed must not be repeated by each caller.
    return inDemand && inFlight == null && parts.isEmpty() && !current.range.isPrefetchSent;
  }

  private Request newRequest(boolean isPrefetch) {
    if (isPrefetch) {
      current.range.isPrefetchSent = true;
    }
    if (started && clock.monotonicNanos() - startedAt < SHORT_USE.toNanos()) {
      size *= 2;
    }
    size = Math.min(size, maxSize);
    inFlight = new Request(size, isPrefetch, clock);
    return inFlight;
  }

  private void send(Request request) {
    try {
      source
          .allocate(sequence, request.size)
          .whenComplete((range, error) -> receive(request, range, error));
    } catch (Throwable e) { // an Error too, or all callers would wait for this request
      receive(request, null, e);
    }
  }

  /** Keeps the range for the callers, or adapts the size of the next one to the error. */
  private void receive(Request request, AllocatedRange range, Throwable error) {
    Outcome outcome = Outcome.TRY_AGAIN;
    lock.lock();
    try {
      if (inFlight != request) {
        return; // the pool was closed
      }
      inFlight = null;
      if (error == null) {
        add(request, range);
      } else {
        Throwable cause = error instanceof CompletionException ? error.getCause() : error;
        IdallocException failure = IdallocException.of(cause);
        outcome = new Outcome(failure, adaptSize(failure, request.size));
      }
    } catch (IdallocException e) {
      outcome = new Outcome(e, false);
    } finally {
      lock.unlock();
      request.outcome.complete(outcome);
    }
  }

  private void add(Request request, AllocatedRange range) {
    check(request, range);
    Range added = new Range(request, range.ttl());
    long half = range.idCount() / 2;
    if (half > 0) {
      parts.add(new Part(added, range.firstId(), range.step(), half));
    }
    long second = range.firstId() + half * range.step();
    parts.add(new Part(added, second, range.step(), range.idCount() - half));
  }

  private void check(Request request, AllocatedRange range) {
    if (range == null) {
      throw invalidReply("there is no range");
    }
    if (!range.period().isEmpty()) {
      throw new IdallocException(
          Status.Code.FAILED_PRECONDITION,
          "sequence '"
              + sequence
              + "' restarts in each period, so its numbers repeat: request its ids as texts");
    }
    if (range.idCount() != request.size) {
      throw invalidReply("id_count is " + range.idCount() + ", requested were " + request.size);
    }
    if (range.step() == 0) {
      throw invalidReply("step is 0");
    }
    if (!isLast(range)) {
      throw invalidReply("last_id " + range.lastId() + " does not fit the other fields");
    }
    if (range.ttl().isNegative() || range.ttl().compareTo(MAX_TTL) > 0) {
      throw invalidReply("ttl is " + range.ttl());
    }
  }

  private static boolean isLast(AllocatedRange range) {
    try {
      long distance = Math.multiplyExact(range.idCount() - 1, range.step());
      return Math.addExact(range.firstId(), distance) == range.lastId();
    } catch (ArithmeticException e) {
      return false;
    }
  }

  private IdallocException invalidReply(String what) {
    return new IdallocException(
        Status.Code.INTERNAL, "invalid range of sequence '" + sequence + "': " + what);
  }

  /** Adapts the size of the next range. Returns whether a smaller one may succeed at once. */
  private boolean adaptSize(IdallocException error, long requested) {
    switch (error.reason()) {
      case "SEQUENCE_EXHAUSTED" -> {
        long largest = parseCount(error.metadata().get("largest_range"));
        if (0 < largest && largest < requested) {
          size = largest;
          return true;
        }
      }
      case "INVALID_REQUEST" -> {
        if (error.fields().contains("id_count") && requested > 1) {
          size = maxSize = requested / 2;
          return true;
        }
      }
      case "QUOTA_EXCEEDED" -> {
        // A call may overdraw a quota, which then rejects all calls until it is filled again:
        // smaller ranges make for shorter waits.
        if (error.retryDelay().orElse(Duration.ZERO).compareTo(SHORT_USE) > 0) {
          size = Math.max(1, size / 2);
        }
      }
      default -> {}
    }
    return false;
  }

  private static long parseCount(String text) {
    try {
      return text == null ? 0 : Long.parseLong(text);
    } catch (NumberFormatException e) {
      return 0;
    }
  }

  /** A request for a range. Its clocks are read before it is sent. */
  private static final class Request {
    final long size;
    final boolean isPrefetch;
    final long askedNanos;
    final long askedMillis;
    final CompletableFuture<Outcome> outcome = new CompletableFuture<>();

    Request(long size, boolean isPrefetch, PoolClock clock) {
      this.size = size;
      this.isPrefetch = isPrefetch;
      this.askedNanos = clock.monotonicNanos();
      this.askedMillis = clock.wallMillis();
    }
  }

  /** How a request ended: error is null if its range arrived, or the pool was closed. */
  private record Outcome(IdallocException error, boolean retryNow) {
    static final Outcome TRY_AGAIN = new Outcome(null, true);
  }

  /** When the ids of a range expire. */
  private static final class Range {
    static final Range NEVER_EXPIRES = new Range(0, Long.MAX_VALUE, 0, Long.MAX_VALUE);

    private final long askedNanos;
    private final long ttlNanos;
    private final long askedMillis;
    private final long ttlMillis;
    boolean isPrefetchSent; // guarded by the pool's lock

    Range(Request request, Duration ttl) {
      // The wall clock is read in whole milliseconds: what it shows may be almost 1 ms too little.
      this(request.askedNanos, ttl.toNanos(), request.askedMillis, ttl.toMillis() - 1);
    }

    private Range(long askedNanos, long ttlNanos, long askedMillis, long ttlMillis) {
      this.askedNanos = askedNanos;
      this.ttlNanos = ttlNanos;
      this.askedMillis = askedMillis;
      this.ttlMillis = ttlMillis;
    }

    /** Whether the clock that advanced further since the request is past the ttl. */
    boolean isExpired(PoolClock clock) {
      return clock.monotonicNanos() - askedNanos >= ttlNanos
          || clock.wallMillis() - askedMillis >= ttlMillis;
    }
  }

  /** A half of a range. Threads take ids from it without a lock. */
  private static final class Part {
    static final Part EMPTY = new Part(Range.NEVER_EXPIRES, 0, 1, 0);

    final Range range;
    private final long first;
    private final long step;
    private final long count;
    private final AtomicLong taken = new AtomicLong();

    Part(Range range, long first, long step, long count) {
      this.range = range;
      this.first = first;
      this.step = step;
      this.count = count;
    }

    /** Takes the next id, or returns NONE. The clocks are read after the id is taken. */
    long take(PoolClock clock) {
      long index = taken.getAndIncrement();
      if (index >= count) {
        return NONE;
      }
      if (range.isExpired(clock)) {
        drop();
        return NONE;
      }
      return first + index * step;
    }

    /** Drops the rest for good, even if the wall clock is set back afterwards. */
    void drop() {
      taken.set(count);
    }
  }
}
