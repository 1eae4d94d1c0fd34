package io.idalloc.client;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.grpc.Status;
import java.time.Duration;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Deque;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutionException;
import java.util.stream.LongStream;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.ValueSource;

@Timeout(60)
class IdPoolTest {
  private final FakeClock clock = new FakeClock();
  private final List<CallEvent> events = new ArrayList<>();
  private final Calls calls =
      new Calls(new Servers(null), "", null, Duration.ofSeconds(5), this::observe);
  private final List<Long> sizes = new ArrayList<>();
  private final Deque<CompletableFuture<AllocatedRange>> held = new ArrayDeque<>();
  private final Deque<IdallocException> failures = new ArrayDeque<>();
  private boolean holds;
  private long lastValue;
  private Duration ttl = Duration.ofSeconds(180);
  private final IdPool pool = new IdPool(calls, "orders", this::allocate, clock);

  private synchronized void observe(CallEvent event) {
    events.add(event);
  }

  private synchronized CompletableFuture<AllocatedRange> allocate(long count) {
    sizes.add(count);
    if (!failures.isEmpty()) {
      return CompletableFuture.failedFuture(failures.remove());
    }
    if (holds) {
      CompletableFuture<AllocatedRange> result = new CompletableFuture<>();
      held.add(result);
      return result;
    }
    return CompletableFuture.completedFuture(range(count, ""));
  }

  private AllocatedRange range(long count, String period) {
    lastValue += count;
    return new AllocatedRange(
        lastValue - count + 1,
        lastValue,
        1,
        count,
        List.of(),
        period,
        1,
        ttl,
        AllocatedRange.Ordering.RISING,
        1,
        false);
  }

  private static IdallocException error(
      Status.Code code, String reason, double retrySeconds, String... metadata) {
    return IdallocException.of(FakeServer.error(code, reason, retrySeconds, metadata));
  }

  private static IdallocException unavailable() {
    return error(Status.Code.UNAVAILABLE, Reason.STORE_UNAVAILABLE, 0);
  }

  private long dropped() {
    return events.stream().mapToLong(CallEvent::dropped).sum();
  }

  private static String reason(Runnable call) {
    return assertThrows(IdallocException.class, call::run).reason();
  }

  private static String reasonOf(CompletableFuture<Long> waiting) {
    ExecutionException thrown = assertThrows(ExecutionException.class, waiting::get);
    return ((IdallocException) thrown.getCause()).reason();
  }

  @Test
  void rangesGrowWhileTheyAreUsedUpQuickly() {
    for (long id = 1; id <= 1_000; id++) {
      assertEquals(id, pool.next());
    }
    assertEquals(List.of(1L, 2L, 4L, 8L, 16L, 32L, 64L, 128L, 256L, 512L), sizes.subList(0, 10));
  }

  @ParameterizedTest
  @ValueSource(longs = {1, 3, -1, -3})
  void anIdOfARecentRangeIsRefused(long step) throws Exception {
    holds = true;
    for (long place : new long[] {1, 100, 2, 50, 101, 3, 99, 4}) {
      assertEquals(place * step, answer(place, 1, step).get());
    }
    for (long[] refused : new long[][] {{1, 1}, {99, 2}, {90, 10}, {49, 3}, {4, 100}}) {
      assertEquals(Reason.INVALID_REPLY, reasonOf(answer(refused[0], refused[1], step)));
    }
    for (long place = 200; place < 208; place++) {
      assertEquals(place * step, answer(place, 1, step).get());
    }
    assertEquals(step, answer(1, 1, step).get()); // the pool remembers eight ranges
  }

  /** Answers the next request of the pool, and returns what a caller gets. */
  private CompletableFuture<Long> answer(long place, long count, long step) {
    CompletableFuture<Long> waiting = pool.nextAsync();
    long last = (place + count - 1) * step;
    var ordering = AllocatedRange.Ordering.RISING;
    held.remove()
        .complete(
            new AllocatedRange(
                place * step, last, step, count, List.of(), "", 1, ttl, ordering, 1, false));
    return waiting;
  }

  @Test
  void noRangeIsLargerThanTheLimit() {
    LongStream.range(0, 4_000_000).forEach(n -> pool.next());
    assertEquals(IdPool.MAX_RANGE_SIZE, sizes.stream().mapToLong(Long::longValue).max().orElse(0));
  }

  @Test
  void slowUseKeepsRangesSmall() {
    for (int i = 0; i < 20; i++) {
      pool.next();
      clock.advance(1);
    }
    assertTrue(sizes.stream().allMatch(size -> size <= 2), sizes::toString);
  }

  @Test
  void idsAreNotGivenOutAfterTheirTtl() {
    LongStream.rangeClosed(1, 7).forEach(n -> pool.next());
    clock.advance(179.99);
    assertEquals(8, pool.next());
    long before = lastValue;
    clock.advance(0.02);
    assertEquals(before + 1, pool.next());
    assertEquals(before - 8, dropped());
  }

  @Test
  void theTtlCountsFromBeforeTheRequest() {
    holds = true;
    CompletableFuture<Long> waiting = pool.nextAsync(Duration.ofMinutes(10));
    clock.advance(180);
    holds = false;
    held.remove().complete(range(1, ""));
    assertEquals(2L, waiting.join());
    assertEquals(List.of(1L, 1L), sizes.subList(0, 2));
  }

  @Test
  void threeRangesThatExpiredOnArrivalAreAnError() {
    ttl = Duration.ZERO;
    assertEquals(Reason.EXPIRED_ON_ARRIVAL, reason(pool::next));
    assertEquals(3, sizes.size());
    ttl = Duration.ofSeconds(180);
    assertEquals(4, pool.next());
  }

  @Test
  void aPrefetchIsRequestedAtTheSecondHalf() {
    LongStream.rangeClosed(1, 15).forEach(n -> pool.next()); // ranges of 1, 2, 4 and 8 ids
    holds = true;
    LongStream.rangeClosed(16, 23).forEach(n -> pool.next()); // half of 16
    assertEquals(0, held.size());
    assertEquals(24, pool.next());
    assertEquals(1, held.size());
    held.remove().complete(range(32, ""));
    LongStream.rangeClosed(25, 32).forEach(id -> assertEquals(id, pool.next()));
  }

  @Test
  void aFailedPrefetchIsRepeatedBeforeTheRangeEnds() {
    LongStream.rangeClosed(1, 23).forEach(n -> pool.next());
    failures.add(unavailable());
    int before = sizes.size();
    assertEquals(24, pool.next());
    assertEquals(before + 1, sizes.size());
    clock.advance(0.2);
    assertEquals(before + 2, sizes.size());
    LongStream.rangeClosed(25, 40).forEach(id -> assertEquals(id, pool.next()));
  }

  @Test
  void allWaitersShareOneRequestAndItsRetries() {
    pool.next();
    pool.next(); // the prefetched range of 2 ids is in use
    pool.next();
    for (int i = 0; i < 5; i++) {
      failures.add(unavailable());
    }
    LongStream.rangeClosed(1, 4).forEach(n -> pool.next()); // its prefetch fails
    int before = sizes.size();
    List<CompletableFuture<Long>> waiting = new ArrayList<>();
    for (int i = 0; i < 100; i++) {
      waiting.add(pool.nextAsync());
    }
    clock.advance(30);
    assertEquals(100, waiting.stream().map(CompletableFuture::join).distinct().count());
    assertTrue(sizes.size() - before < 20, sizes::toString);
  }

  @Test
  void aCallerWaitsForItsOwnTimeOnly() {
    for (int i = 0; i < 1_000; i++) {
      failures.add(unavailable());
    }
    CompletableFuture<Long> hasty = pool.nextAsync(Duration.ofSeconds(2));
    CompletableFuture<Long> waiting = pool.nextAsync();
    CompletableFuture<Long> patient = pool.nextAsync(Duration.ofMinutes(1));
    clock.advance(2);
    assertEquals(Reason.STORE_UNAVAILABLE, reasonOf(hasty));
    clock.advance(5);
    assertFalse(waiting.isDone());
    clock.advance(3.1);
    assertEquals(Reason.STORE_UNAVAILABLE, reasonOf(waiting));
    failures.clear();
    clock.advance(3);
    assertEquals(1L, patient.join());
    assertTrue(sizes.size() < 20, sizes::toString); // all share one refill
  }

  @Test
  void aDeadlineOfThePoolsOwnRequestIsRepeated() {
    pool.next();
    failures.add(IdallocException.timedOut("planted"));
    pool.next();
    pool.next();
    CompletableFuture<Long> waiting = pool.nextAsync();
    clock.advance(1);
    assertEquals(4L, waiting.join());
  }

  @Test
  void aQuotaIsWaitedForWithSmallerRanges() {
    LongStream.rangeClosed(1, 15).forEach(n -> pool.next());
    failures.add(error(Status.Code.RESOURCE_EXHAUSTED, Reason.QUOTA_EXCEEDED, 0.9));
    LongStream.rangeClosed(16, 31).forEach(n -> pool.next());
    CompletableFuture<Long> waiting = pool.nextAsync();
    assertFalse(waiting.isDone());
    clock.advance(2);
    assertEquals(32L, waiting.join());
    assertEquals(16L, sizes.get(5 + 1));
  }

  @Test
  void anUnexpectedErrorEndsItsRefillOnly() {
    Deque<CompletableFuture<AllocatedRange>> replies = new ArrayDeque<>();
    replies.add(CompletableFuture.completedFuture(null));
    replies.add(CompletableFuture.completedFuture(range(1, "")));
    replies.add(new CompletableFuture<>());
    try (IdPool broken = new IdPool(calls, "orders", count -> replies.remove(), clock)) {
      assertThrows(IdallocException.class, () -> broken.next(Duration.ofSeconds(10)));
      assertEquals(1, broken.next(Duration.ofSeconds(10)));
    }
  }

  @Test
  void theLastIdsOfASequenceAreGivenOut() {
    LongStream.rangeClosed(1, 15).forEach(n -> pool.next());
    String[] left = {"largest_range", "3"};
    failures.add(error(Status.Code.FAILED_PRECONDITION, Reason.SEQUENCE_EXHAUSTED, 0, left));
    LongStream.rangeClosed(16, 34).forEach(id -> assertEquals(id, pool.next()));
    assertTrue(sizes.contains(3L));
  }

  @Test
  void aSequenceWithAResetIsRefused() {
    holds = true;
    CompletableFuture<Long> waiting = pool.nextAsync();
    held.remove().complete(range(1, "2026"));
    assertEquals(Reason.INVALID_REQUEST, reasonOf(waiting));
  }

  @Test
  void closeEndsWaitsAndCancelsTheRequest() {
    holds = true;
    CompletableFuture<Long> waiting = pool.nextAsync();
    pool.close();
    assertEquals(Reason.CLOSED, reasonOf(waiting));
    assertTrue(held.remove().isCancelled());
    assertEquals(Reason.CLOSED, reason(pool::next));
  }

  @Test
  void closeReportsTheIdsThatItDrops() {
    LongStream.rangeClosed(1, 5).forEach(n -> pool.next());
    pool.close();
    assertEquals(lastValue - 5, dropped());
  }

  @Test
  void aClientClosesItsPools() {
    pool.next();
    calls.close();
    assertEquals(Reason.CLOSED, reason(pool::next));
  }

  @Test
  void aCallerWhoseTimeIsOverGetsTheLastError() {
    pool.next();
    failures.add(unavailable());
    failures.add(unavailable());
    pool.next();
    pool.next();
    Duration soon = Duration.ofMillis(200);
    assertEquals(Reason.STORE_UNAVAILABLE, reason(() -> pool.next(soon)));
    failures.clear();
    holds = true;
    IdPool other = new IdPool(calls, "orders", this::allocate, clock);
    assertEquals(Reason.DEADLINE_EXCEEDED, reason(() -> other.next(soon)));
  }

  @Test
  void anInterruptEndsAWaitAndStaysSet() {
    holds = true;
    Thread.currentThread().interrupt();
    assertEquals(Reason.CANCELLED, reason(pool::next));
    assertTrue(Thread.interrupted());
    holds = false;
    held.remove().complete(range(1, ""));
    assertEquals(1, pool.next());
  }

  @Test
  void aCancelledCallerLeavesTheIdToOthers() {
    holds = true;
    CompletableFuture<Long> first = pool.nextAsync();
    first.cancel(true);
    CompletableFuture<Long> second = pool.nextAsync();
    held.remove().complete(range(1, ""));
    assertEquals(1L, second.join());
  }

  @Test
  void threadsGetEachIdOnce() throws InterruptedException {
    long[][] got = new long[64][20_000];
    List<Thread> threads = new ArrayList<>();
    for (long[] each : got) {
      threads.add(new Thread(() -> Arrays.setAll(each, n -> pool.next())));
    }
    threads.forEach(Thread::start);
    for (Thread each : threads) {
      each.join();
    }
    assertEquals(64 * 20_000, Arrays.stream(got).flatMapToLong(Arrays::stream).distinct().count());
  }

  @Test
  void closeCancelsARequestThatIsBeingSent() {
    holds = true;
    CompletableFuture<AllocatedRange> request = new CompletableFuture<>();
    IdPool[] closing = new IdPool[1];
    closing[0] =
        new IdPool(
            calls,
            "orders",
            count -> {
              closing[0].close();
              return request;
            },
            clock);
    assertEquals(Reason.CLOSED, reason(closing[0]::next));
    assertTrue(request.isCancelled());
  }

  @Test
  void theIdsOfAThreadRiseWithinARange() throws InterruptedException {
    List<Thread> threads = new ArrayList<>();
    List<Long> falls = new ArrayList<>();
    for (int i = 0; i < 64; i++) {
      threads.add(
          new Thread(
              () -> {
                for (long n = 0, last = 0; n < 5_000; n++) {
                  long id = pool.next();
                  if (id <= last) {
                    synchronized (falls) {
                      falls.add(id);
                    }
                  }
                  last = id;
                }
              }));
    }
    threads.forEach(Thread::start);
    for (Thread each : threads) {
      each.join();
    }
    assertEquals(List.of(), falls);
  }

  @Test
  void aQuotaBeyondTheTimeoutIsAnErrorAtOnce() {
    pool.next();
    pool.next();
    failures.add(error(Status.Code.RESOURCE_EXHAUSTED, Reason.QUOTA_EXCEEDED, 0.9));
    pool.next();
    assertEquals(Reason.QUOTA_EXCEEDED, reason(() -> pool.next(Duration.ofMillis(500))));
  }
}
