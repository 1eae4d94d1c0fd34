package io.idalloc.client;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.grpc.Status;
import java.time.Duration;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.Deque;
import java.util.List;
import java.util.Queue;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentLinkedQueue;
import java.util.stream.LongStream;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.ValueSource;

@Timeout(60)
class IdPoolTest {
  private final FakeClock clock = new FakeClock();
  private final Queue<CallEvent> events = new ConcurrentLinkedQueue<>();
  private final Calls calls =
      new Calls(new Servers(null), "", null, Duration.ofSeconds(5), events::add);
  private final List<Long> sizes = new ArrayList<>();
  private final Deque<CompletableFuture<AllocatedRange>> held = new ArrayDeque<>();
  private final Deque<IdallocException> failures = new ArrayDeque<>();
  private boolean holds;
  private Runnable sending = () -> {};
  private long lastValue;
  private Duration ttl = Duration.ofSeconds(180);
  private final IdPool pool = new IdPool(calls, "orders", this::allocate, clock);

  private synchronized CompletableFuture<AllocatedRange> allocate(long count) {
    sizes.add(count);
    sending.run();
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
    return range(lastValue - count + 1, lastValue, 1, period);
  }

  private AllocatedRange range(long first, long last, long step, String period) {
    long count = (last - first) / step + 1;
    var ordering = AllocatedRange.Ordering.RISING;
    return new AllocatedRange(
        first, last, step, count, List.of(), period, 1, ttl, ordering, 1, false);
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
    return IdallocClientTest.failure(call).reason();
  }

  private static String reasonOf(CompletableFuture<Long> waiting) {
    return IdallocClientTest.failure(waiting).reason();
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
    held.remove().complete(range(place * step, last, step, ""));
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
    failures.addAll(Collections.nCopies(5, unavailable()));
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
    failures.addAll(Collections.nCopies(1_000, unavailable()));
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
    holds = true;
    CompletableFuture<Long> waiting = pool.nextAsync();
    held.remove().complete(null);
    assertEquals("UNKNOWN", reasonOf(waiting));
    holds = false;
    assertEquals(1, pool.next());
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

  /** Takes ids in 64 threads, and returns those of each. */
  private long[][] inThreads(int count) {
    long[][] got = new long[64][count];
    ServersTest.together(Arrays.stream(got), each -> Arrays.setAll(each, n -> pool.next()));
    return got;
  }

  @Test
  void threadsGetEachIdOnce() {
    long[][] got = inThreads(20_000);
    assertEquals(64 * 20_000, Arrays.stream(got).flatMapToLong(Arrays::stream).distinct().count());
  }

  @Test
  void theIdsOfAThreadRiseWithinARange() {
    for (long[] each : inThreads(5_000)) {
      assertArrayEquals(Arrays.stream(each).sorted().distinct().toArray(), each);
    }
  }

  @Test
  void closeCancelsARequestThatIsBeingSent() {
    holds = true;
    sending = pool::close;
    assertEquals(Reason.CLOSED, reason(pool::next));
    assertTrue(held.remove().isCancelled());
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
