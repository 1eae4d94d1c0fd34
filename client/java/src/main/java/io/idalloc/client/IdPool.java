package io.idalloc.client;

import io.grpc.Status;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.OptionalLong;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.atomic.AtomicLong;
import java.util.concurrent.locks.ReentrantLock;
import java.util.function.LongFunction;

/**
 * Hands out the ids of one sequence from memory. Platform and virtual threads may share it; create
 * one for each sequence, and keep it.
 *
 * <p>It gives out each id once, in the order in which ranges arrive, and none after the time that
 * the server allows ({@code ttl}): use an id soon after {@code next}. The faster ids are used, the
 * larger ranges are, up to 1,000,000 ids. When the second half of a range begins, the next one is
 * requested. The ids that a pool holds when it is closed, or when the process ends, are a gap.
 *
 * <p>A suspend of the machine counts for {@code ttl}, unless the wall clock was set back in it. No
 * clock counts the time in which a virtual machine was paused without its knowledge, or a process
 * was restored from a snapshot: the ids of such a pool may repeat.
 */
public final class IdPool implements AutoCloseable {
  /** A range that is used up in less time is followed by one twice as large. */
  static final Duration SHORT_USE = Duration.ofMillis(500);

  /** The default of the server's setting max_ids_per_call. */
  static final long MAX_RANGE_SIZE = 1_000_000;

  /** How long a caller waits that gives no time. */
  static final Duration OUTAGE_LIMIT = Duration.ofSeconds(10);

  /** So many ranges in a row that had expired on arrival are an error. */
  static final int MAX_LATE_RANGES = 3;

  /** Stands for no id. The smallest id of any sequence is -2^62. */
  private static final long NONE = Long.MIN_VALUE;

  private final Calls calls;
  private final String sequence;
  private final LongFunction<CompletableFuture<AllocatedRange>> source; // of ranges of a size
  private final Clock clock;

  /** The ids in use: callers take from it without the lock. Only a holder replaces it. */
  private volatile Lease current = Lease.EMPTY;

  private final AtomicLong expired = new AtomicLong(); // ids that were taken too late
  private final AtomicLong waiting = new AtomicLong(); // callers without an id

  // The lock guards what follows. Nobody holds it while waiting.
  private final ReentrantLock lock = new ReentrantLock();
  private Lease next; // the prefetched range, or null
  private List<AllocatedRange> known = List.of(); // the last 8 ranges
  private volatile Refill refill; // at most one, or null
  private volatile CompletableFuture<AllocatedRange> inFlight; // its request, or null
  private long startedAt; // when the range in use became current
  private long size = 1;
  private long maxSize = MAX_RANGE_SIZE;
  private boolean inDemand = true; // whether ranges are used up before they expire
  private int lateRanges;
  private volatile boolean isClosed;

  IdPool(
      Calls calls,
      String sequence,
      LongFunction<CompletableFuture<AllocatedRange>> source,
      Clock clock) {
    this.calls = calls;
    this.sequence = sequence;
    this.source = source;
    this.clock = clock;
    calls.join(this, this::close);
  }

  /**
   * Returns the next id. It waits no longer than 10 s.
   *
   * @return the id
   * @throws IdallocException as {@link #next(Duration)}
   */
  public long next() {
    return next(OUTAGE_LIMIT);
  }

  /**
   * Returns the next id. If none is at hand, it waits: for a range, for a quota, and while no
   * server is available. What was requested for a caller that gave up stays for others. After an
   * error, the next call tries again.
   *
   * @param timeout how long to wait
   * @return an id that no other call returns
   * @throws IdallocException the server refused a range, the time has passed (with the error of the
   *     last attempt), the pool is closed, or the thread was interrupted
   */
  public long next(Duration timeout) {
    long id = take(current);
    return id != NONE ? id : Calls.await(waitForId(timeout));
  }

  /**
   * As {@link #next()}. Cancelling the future leaves the id to others, or as a gap if it has been
   * taken. Functions of the future run on threads of the package.
   *
   * @return the id
   */
  public CompletableFuture<Long> nextAsync() {
    return nextAsync(OUTAGE_LIMIT);
  }

  /**
   * As {@link #nextAsync()}, for a caller with another limit.
   *
   * @param timeout how long to wait
   * @return the id
   */
  public CompletableFuture<Long> nextAsync(Duration timeout) {
    long id = take(current);
    return id != NONE ? CompletableFuture.completedFuture(id) : Calls.handOver(waitForId(timeout));
  }

  private CompletableFuture<Long> waitForId(Duration timeout) {
    CompletableFuture<Long> result = new CompletableFuture<>();
    waiting.incrementAndGet();
    result.whenComplete((taken, error) -> waiting.decrementAndGet());
    take(new Waiter(result, clock.nanos() + timeout.toNanos()));
    Calls.limit(result, timeout, this::lastFailure, "no id of sequence '" + sequence + "' in time");
    return result;
  }

  /** Returns the error of the last attempt, or null. */
  private IdallocException lastFailure() {
    Refill awaited = refill;
    return awaited == null ? null : awaited.failure;
  }

  /** Gives a caller an id as soon as there is one. */
  private void take(Waiter waiter) {
    while (!waiter.result.isDone()) {
      long id = take(current);
      if (id != NONE) {
        if (!waiter.result.complete(id)) { // the caller has left meanwhile
          calls.dropped(sequence, 1);
        }
        return;
      }
      Refill awaited = advance();
      if (awaited != null && awaited.add(waiter)) {
        return;
      }
    }
  }

  /** Takes an id of a range without a lock, or returns NONE. */
  private long take(Lease lease) {
    long index = lease.taken.getAndIncrement();
    if (index >= lease.count) {
      return NONE;
    }
    if (index == lease.prefetchAt) {
      prefetch(lease);
    }
    // Checked last: a process that was stopped at any point above must not return an id that
    // expired meanwhile.
    if (lease.isExpired(clock)) {
      expired.incrementAndGet();
      return NONE;
    }
    return lease.first + index * lease.step;
  }

  /** Requests the range after a lease, if ranges are used up in time. */
  private void prefetch(Lease lease) {
    Refill begun = null;
    lock.lock();
    try {
      if (current == lease && inDemand && next == null && refill == null && !isClosed) {
        begun = refill = new Refill();
      }
    } finally {
      lock.unlock();
    }
    if (begun != null) {
      send(begun);
    }
  }

  /** Makes the next range current. If there is none, returns the refill to wait for. */
  private Refill advance() {
    Refill begun = null;
    Refill awaited;
    lock.lock();
    try {
      if (isClosed) {
        return refill; // whose error is that of a closed pool
      }
      Lease used = current;
      if (used.isExpired(clock)) {
        reduceDemand();
      } else if (used.taken.get() < used.count) { // another caller was here before
        return null;
      } else if (used.count > 0) {
        inDemand = true;
      }
      Lease following = next;
      next = null;
      if (following != null && !following.isExpired(clock)) {
        startedAt = clock.nanos();
        replace(following);
        return null;
      }
      if (following != null) {
        reduceDemand();
        calls.dropped(sequence, following.count);
      }
      if (used.count > 0) {
        replace(Lease.EMPTY);
      }
      if (refill == null) {
        begun = refill = new Refill();
      }
      awaited = refill;
    } finally {
      lock.unlock();
    }
    if (begun != null) {
      send(begun);
    }
    return awaited;
  }

  /** Makes another range current, and reports the ids left in this one. */
  private void replace(Lease lease) {
    Lease used = current;
    current = lease;
    long left = used.count - Math.min(used.count, used.taken.getAndSet(used.count));
    long dropped = left + expired.getAndSet(0);
    if (dropped > 0) {
      calls.dropped(sequence, dropped);
    }
  }

  /** Stops prefetching and halves the size: a range expired before it was used up. */
  private void reduceDemand() {
    inDemand = false;
    size = Math.max(1, size / 2);
  }

  /** Sends a request of a refill. */
  private void send(Refill sent) {
    long count;
    lock.lock();
    try {
      if (isClosed || refill != sent) {
        return;
      }
      if (current.count > 0 && clock.nanos() - startedAt < SHORT_USE.toNanos() && !sent.hasGrown) {
        size *= 2;
      }
      sent.hasGrown = true;
      count = size = Math.min(size, maxSize);
    } finally {
      lock.unlock();
    }
    // The time counts from before the request is sent, as the server may take the ids at any
    // moment since.
    long nanos = clock.nanos();
    CompletableFuture<AllocatedRange> request = source.apply(count);
    inFlight = request;
    if (isClosed) { // close may have missed the request
      request.cancel(true);
    }
    request.whenComplete((range, error) -> receive(sent, range, error, nanos));
  }

  /** Keeps a range for the callers, or decides when to request it again. */
  private void receive(Refill sent, AllocatedRange range, Throwable error, long nanos) {
    OptionalLong delay = OptionalLong.empty();
    IdallocException failure = null;
    lock.lock();
    try {
      inFlight = null;
      if (isClosed || refill != sent) {
        if (range != null) {
          calls.dropped(sequence, range.count());
        }
        return;
      }
      try {
        failure = error == null ? add(range, nanos) : Calls.failure(error);
      } catch (RuntimeException | Error e) { // or all callers would wait for this refill
        failure = IdallocException.of(e);
      }
      if (failure != null && adaptSize(failure)) {
        delay = OptionalLong.of(0);
      } else if (failure != null && sent.isWanted()) {
        delay = sent.backoff.delay(failure);
      }
      sent.failure = failure;
      if (delay.isEmpty()) {
        refill = null;
      }
    } finally {
      lock.unlock();
    }
    if (delay.isEmpty()) {
      sent.end(failure);
    } else if (delay.getAsLong() == 0) {
      send(sent);
    } else {
      clock.after(delay.getAsLong(), () -> send(sent));
      sent.delay(clock.nanos() + delay.getAsLong(), failure);
    }
  }

  /** Makes a range the next one; returns an error if that cannot be. */
  private IdallocException add(AllocatedRange range, long nanos) {
    if (!range.period().isEmpty()) {
      return IdallocException.invalid(
          "sequence",
          "'" + sequence + "' has a reset, so its numbers repeat: request its ids as texts");
    }
    List<AllocatedRange> ranges = new ArrayList<>(known);
    ranges.add(range);
    Replies.checkDisjoint(ranges); // its error ends the refill
    known = List.copyOf(ranges.subList(Math.max(0, ranges.size() - 8), ranges.size()));
    Lease added = new Lease(range, nanos);
    if (!added.isExpired(clock)) {
      lateRanges = 0;
      next = added;
      return null;
    }
    calls.dropped(sequence, range.count());
    reduceDemand();
    if (++lateRanges < MAX_LATE_RANGES) {
      return null; // who waits sends another request
    }
    lateRanges = 0;
    return IdallocException.of(
        Reason.EXPIRED_ON_ARRIVAL,
        Status.Code.FAILED_PRECONDITION,
        "three ranges in a row had expired on arrival; check the latency to the server, or raise"
            + " its lease_ttl");
  }

  /** Adapts the size of the next range. Returns whether a smaller one may succeed at once. */
  private boolean adaptSize(IdallocException error) {
    switch (error.reason()) {
      case Reason.SEQUENCE_EXHAUSTED -> {
        String text = error.metadata().getOrDefault("largest_range", "");
        long largest = text.matches("\\d{1,18}") ? Long.parseLong(text) : 0;
        if (0 < largest && largest < size) {
          size = largest;
          return true;
        }
      }
      case Reason.INVALID_REQUEST -> {
        if (error.fields().contains("id_count") && size > 1) {
          size = maxSize = size / 2;
          return true;
        }
      }
      case Reason.QUOTA_EXCEEDED -> {
        // A call may overdraw a quota, which then rejects all calls until it is filled again:
        // smaller ranges make for shorter waits.
        if (error.retryDelay().compareTo(SHORT_USE) > 0) {
          size = Math.max(1, size / 2);
        }
      }
      default -> {}
    }
    return false;
  }

  /**
   * Drops the ids at hand, cancels the request in flight, and ends the waits of all callers with
   * {@link Reason#CLOSED}.
   */
  @Override
  public void close() {
    Refill abandoned;
    CompletableFuture<AllocatedRange> cancelled;
    lock.lock();
    try {
      isClosed = true;
      abandoned = refill == null ? new Refill() : refill;
      refill = abandoned;
      cancelled = inFlight;
      if (next != null) {
        calls.dropped(sequence, next.count);
        next = null;
      }
      replace(Lease.EMPTY);
    } finally {
      lock.unlock();
    }
    calls.leave(this);
    if (cancelled != null) {
      cancelled.cancel(true);
    }
    abandoned.end(IdallocException.closed("pool"));
  }

  /** The way to the next range: one request at a time, until it succeeds or its error is final. */
  private final class Refill {
    final Rounds.Backoff backoff = new Rounds.Backoff();
    volatile IdallocException failure; // of the last request
    boolean hasGrown; // whether its size was chosen; guarded by the lock
    private final List<Waiter> waiters = new ArrayList<>(); // guarded by the lock
    private boolean hasEnded; // guarded by the lock
    private boolean isWanted = true; // at its last failure; guarded by the lock
    private long retryAt; // when its next request is sent; guarded by the lock

    /**
     * Whether to request the range once more. After a failure for which nobody waited it does so
     * once: the next caller waits for that request, and sends none of its own.
     */
    boolean isWanted() {
      boolean wasWanted = isWanted;
      isWanted = waiting.get() > 0 || current.isAlive(clock);
      return isWanted || wasWanted;
    }

    /** Adds a caller to those who wait; returns false if a range is at hand. */
    boolean add(Waiter waiter) {
      lock.lock();
      try {
        if (!hasEnded && retryAt <= waiter.deadline) {
          waiters.add(waiter);
          return true;
        }
        if (failure == null) {
          return false;
        }
      } finally {
        lock.unlock();
      }
      waiter.result.completeExceptionally(failure);
      return true;
    }

    /** Records when the next request is sent; who cannot wait so long gets the failure. */
    void delay(long retryAt, IdallocException failure) {
      List<Waiter> hasty;
      lock.lock();
      try {
        this.retryAt = retryAt;
        waiters.removeIf(each -> each.result.isDone());
        hasty = waiters.stream().filter(each -> each.deadline < retryAt).toList();
      } finally {
        lock.unlock();
      }
      hasty.forEach(each -> each.result.completeExceptionally(failure));
    }

    /** Ends the waits: with a range, or with an error that is not null. */
    void end(IdallocException error) {
      List<Waiter> all;
      lock.lock();
      try {
        hasEnded = true;
        failure = error;
        all = List.copyOf(waiters);
        waiters.clear();
      } finally {
        lock.unlock();
      }
      for (Waiter each : all) {
        if (error == null) {
          take(each);
        } else {
          each.result.completeExceptionally(error);
        }
      }
    }
  }

  /** A caller without an id, and when it gives up, on the pool's clock. */
  private record Waiter(CompletableFuture<Long> result, long deadline) {}

  /** A range in the pool. Its ids are taken without a lock. */
  private static final class Lease {
    static final Lease EMPTY = new Lease();

    final long first;
    final long step;
    final long count;
    final long prefetchAt; // the index at which to request the next range
    final AtomicLong taken = new AtomicLong(); // the index of the next id
    private final long sentAt;
    private final long ttl;

    Lease(AllocatedRange range, long sentAt) {
      first = range.first();
      step = range.step();
      count = range.count();
      prefetchAt = range.count() / 2;
      this.sentAt = sentAt;
      ttl = range.ttl().toNanos();
    }

    private Lease() {
      first = step = count = prefetchAt = sentAt = 0;
      ttl = Long.MAX_VALUE;
    }

    boolean isExpired(Clock clock) {
      return clock.nanos() - sentAt >= ttl;
    }

    /** Whether it has ids for callers. */
    boolean isAlive(Clock clock) {
      return taken.get() < count && !isExpired(clock);
    }
  }
}
