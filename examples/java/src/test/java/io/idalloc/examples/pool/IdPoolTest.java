package io.idalloc.examples.pool;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.grpc.Status;
import java.time.Duration;
import java.util.ArrayList;
import java.util.HashSet;
import java.util.List;
import java.util.Set;
import java.util.concurrent.Callable;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.ThreadLocalRandom;
import java.util.concurrent.TimeUnit;
import java.util.stream.LongStream;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;

@Timeout(60)
class IdPoolTest {
  private static final Duration LONG = Duration.ofSeconds(30);
  private static final Duration SHORT = Duration.ofMillis(20);

  private final FakeSource source = new FakeSource();
  private final FakeClock clock = new FakeClock();
  private final IdPool pool = new IdPool("orders", source, LONG, clock);
  private final ExecutorService threads = Executors.newCachedThreadPool();

  @AfterEach
  void stop() {
    pool.close();
    threads.shutdownNow();
  }

  private List<Long> take(int count) throws InterruptedException {
    List<Long> ids = new ArrayList<>();
    for (int i = 0; i < count; i++) {
      ids.add(pool.next());
    }
    return ids;
  }

  private static List<Long> range(long first, long last) {
    return LongStream.rangeClosed(first, last).boxed().toList();
  }

  @Test
  void rangesGrowWhileIdsAreUsedFast() throws Exception {
    assertEquals(range(1, 100), take(100));
    assertEquals(List.of(1L, 2L, 4L, 8L, 16L, 32L), source.sizes().subList(0, 6));
  }

  @Test
  void rangesDoNotGrowBeyondTheLimit() throws Exception {
    take(3_000_000);
    assertEquals(IdPool.MAX_RANGE_SIZE, source.sizes().stream().mapToLong(i -> i).max().orElse(0));
  }

  @Test
  void rangesStaySmallWhileIdsAreUsedSlowly() throws Exception {
    for (int i = 0; i < 20; i++) {
      pool.next();
      clock.advance(Duration.ofSeconds(1));
    }
    assertTrue(source.sizes().stream().allMatch(size -> size <= 2), source.sizes().toString());
  }

  @Test
  void secondHalfRequestsTheNextRange() throws Exception {
    take(3); // of the ranges 1, 2 to 3, 4 to 7
    assertEquals(List.of(1L, 2L, 4L), source.sizes());
    take(2); // the first half of 4 to 7
    assertEquals(List.of(1L, 2L, 4L), source.sizes());
    take(1);
    assertEquals(List.of(1L, 2L, 4L, 8L), source.sizes());
  }

  @Test
  void oneRequestIsInFlightAtATime() throws Exception {
    source.hold = true;
    List<Future<Long>> callers = new ArrayList<>();
    for (int i = 0; i < 8; i++) {
      callers.add(threads.submit((Callable<Long>) pool::next));
    }
    Set<Long> ids = new HashSet<>();
    while (ids.size() < callers.size()) {
      FakeSource.Call call = source.held.poll(10, TimeUnit.MILLISECONDS);
      assertTrue(source.held.isEmpty(), "a second request before the answer to the first");
      if (call != null) {
        call.answer();
      }
      ids.clear();
      for (Future<Long> caller : callers) {
        if (caller.isDone()) {
          ids.add(caller.get());
        }
      }
    }
    assertEquals(8, ids.size());
  }

  @Test
  void expiredIdsAreDroppedInTheMiddleOfARange() throws Exception {
    take(10); // of 8 to 15
    clock.advance(Duration.ofSeconds(60));
    long next = pool.next();
    assertTrue(next > 15, "an expired id: " + next);
  }

  @Test
  void idsLiveUntilTheTtlHasPassed() throws Exception {
    take(10);
    clock.advance(Duration.ofMillis(59_998));
    assertEquals(11, pool.next());
    clock.advanceMonotonic(Duration.ofMillis(2));
    assertTrue(pool.next() > 15);
  }

  @Test
  void wallClockThatJumpsForwardExpiresIds() throws Exception {
    take(10);
    clock.advanceWall(Duration.ofMillis(59_998)); // as after a suspend
    assertEquals(11, pool.next());
    clock.advanceWall(Duration.ofMillis(2));
    assertTrue(pool.next() > 15);
  }

  @Test
  void wallClockThatIsSetBackLeavesTheMonotonicOne() throws Exception {
    take(10);
    clock.advanceWall(Duration.ofSeconds(-3600));
    assertEquals(11, pool.next());
    clock.advanceMonotonic(Duration.ofSeconds(60));
    assertTrue(pool.next() > 15);
  }

  @Test
  void droppedIdsStayDroppedWhenTheClockIsSetBack() throws Exception {
    take(10);
    clock.advanceWall(Duration.ofSeconds(60));
    long next = pool.next();
    clock.advanceWall(Duration.ofSeconds(-60));
    assertTrue(pool.next() > next && next > 15);
  }

  @Test
  void ttlCountsFromBeforeTheRequest() throws Exception {
    source.hold = true;
    Future<Long> caller = threads.submit((Callable<Long>) pool::next);
    FakeSource.Call slow = source.held();
    clock.advance(Duration.ofSeconds(60));
    slow.answer();
    FakeSource.Call second = source.held();
    second.answer();
    assertEquals(2, caller.get());
  }

  @Test
  void threeRangesExpiredOnArrivalAreAnError() throws Exception {
    source.ttl = Duration.ZERO;
    IdallocException error = assertThrows(IdallocException.class, pool::next);
    assertEquals(Status.Code.DEADLINE_EXCEEDED, error.code());
    assertEquals(3, source.sizes().size());
    source.ttl = Duration.ofSeconds(60);
    assertEquals(4, pool.next());
  }

  @Test
  void rangeThatExpiredUnusedHalvesTheSizeAndStopsPrefetching() throws Exception {
    take(20); // of 16 to 31, in its first half
    clock.advance(Duration.ofSeconds(60));
    int before = source.sizes().size();
    pool.next();
    assertEquals(List.of(8L), source.sizes().subList(before, source.sizes().size()));
    take(7);
    assertEquals(before + 1, source.sizes().size());
  }

  @Test
  void concurrentCallersGetDistinctIds() throws Exception {
    IdPool shared = new IdPool("orders", source, LONG); // with the clocks of this machine
    List<Future<long[]>> callers = new ArrayList<>();
    for (int i = 0; i < 16; i++) {
      callers.add(
          threads.submit(
              () -> {
                long[] ids = new long[20_000];
                for (int at = 0; at < ids.length; at++) {
                  ids[at] = shared.next();
                }
                return ids;
              }));
    }
    Set<Long> all = new HashSet<>();
    for (Future<long[]> caller : callers) {
      long last = 0;
      for (long id : caller.get()) {
        assertTrue(id > last, "ids of one caller rise");
        assertTrue(all.add(id), "id " + id + " twice");
        last = id;
      }
    }
    assertEquals(16 * 20_000, all.size());
    shared.close();
  }

  @Test
  void concurrentCallersGetDistinctIdsWhileRangesExpireAndFail() throws Exception {
    RangeSource unreliable =
        (sequence, count) -> {
          int luck = ThreadLocalRandom.current().nextInt(10);
          source.ttl = luck == 0 ? Duration.ZERO : Duration.ofSeconds(60);
          if (luck == 1) {
            throw FakeSource.unavailable();
          }
          return source.allocate(sequence, count);
        };
    IdPool shared = new IdPool("orders", unreliable, LONG, clock);
    Set<Long> all = ConcurrentHashMap.newKeySet();
    List<Future<Void>> callers = new ArrayList<>();
    for (int i = 0; i < 8; i++) {
      callers.add(
          threads.submit(
              () -> {
                for (int at = 0; at < 20_000; at++) {
                  if (at % 1000 == 0) {
                    clock.advanceWall(Duration.ofSeconds(at % 3000 == 0 ? 61 : -30));
                  }
                  try {
                    long id = shared.next();
                    assertTrue(all.add(id), "id " + id + " twice");
                  } catch (IdallocException e) {
                    // The next call tries again.
                  }
                }
                return null;
              }));
    }
    for (Future<Void> caller : callers) {
      caller.get();
    }
    shared.close();
  }

  @Test
  void errorGoesToTheCallerAndTheNextCallTriesAgain() throws Exception {
    source.errors.add(FakeSource.unavailable());
    IdallocException error = assertThrows(IdallocException.class, pool::next);
    assertEquals("UNAVAILABLE: no server", error.toLine());
    assertEquals(1, pool.next());
  }

  @Test
  void sourceThatThrowsIsAnErrorOfTheCaller() throws Exception {
    IdPool broken =
        new IdPool(
            "orders",
            (sequence, count) -> {
              throw new IllegalArgumentException("no stub");
            },
            LONG);
    IdallocException error = assertThrows(IdallocException.class, broken::next);
    assertEquals("UNKNOWN: no stub", error.toLine());
  }

  @Test
  void sourceThatThrowsAnErrorDoesNotBlockThePool() throws Exception {
    List<Error> errors = new ArrayList<>(List.of(new NoClassDefFoundError("no stub")));
    RangeSource broken =
        (sequence, count) -> {
          if (!errors.isEmpty()) {
            throw errors.remove(0);
          }
          return source.allocate(sequence, count);
        };
    IdPool repaired = new IdPool("orders", broken, LONG);
    assertThrows(IdallocException.class, repaired::next);
    assertEquals(1, repaired.next());
  }

  @Test
  void failedPrefetchIsNoErrorOfTheCaller() throws Exception {
    take(2); // the range 2 to 3; its second half is next
    source.errors.add(FakeSource.unavailable());
    assertEquals(range(3, 10), take(8));
  }

  @Test
  void exhaustedSequenceGivesItsLastIds() throws Exception {
    take(6); // the prefetch asked for 8: from 8 to 15
    source.errors.add(FakeSource.exhausted(3));
    assertEquals(range(7, 16), take(10));
    assertTrue(source.sizes().contains(3L), source.sizes().toString());
    source.errors.add(FakeSource.exhausted(0));
    source.errors.add(FakeSource.exhausted(0));
    IdallocException error =
        assertThrows(
            IdallocException.class,
            () -> {
              while (true) {
                pool.next();
              }
            });
    assertEquals("SEQUENCE_EXHAUSTED", error.reason());
  }

  @Test
  void limitOfTheServerHalvesTheLargestRange() throws Exception {
    RangeSource limited =
        (sequence, count) -> {
          if (count > 10) {
            throw FakeSource.invalidCount();
          }
          return source.allocate(sequence, count);
        };
    IdPool small = new IdPool("orders", limited, LONG, clock);
    for (long id = 1; id <= 200; id++) {
      assertEquals(id, small.next());
    }
    assertEquals(8, source.sizes().stream().mapToLong(i -> i).max().orElse(0));
  }

  @Test
  void quotaWaitsAsLongAsTheServerSays() throws Exception {
    source.errors.add(FakeSource.quotaExceeded(Duration.ofMillis(100)));
    long before = System.nanoTime();
    assertEquals(1, pool.next());
    assertTrue(System.nanoTime() - before >= 100_000_000);
  }

  @Test
  void quotaBeyondTheTimeoutIsAnErrorAtOnce() throws Exception {
    source.errors.add(FakeSource.quotaExceeded(Duration.ofHours(1)));
    IdallocException error = assertThrows(IdallocException.class, pool::next);
    assertEquals("QUOTA_EXCEEDED: refused (retry after 3600.0 s)", error.toLine());
    assertEquals(1, pool.next());
  }

  @Test
  void timeoutOfOneCallerLeavesTheRangeForTheNext() throws Exception {
    source.hold = true;
    IdallocException error = assertThrows(IdallocException.class, () -> pool.next(SHORT));
    assertEquals(Status.Code.DEADLINE_EXCEEDED, error.code());
    source.held().answer();
    assertEquals(1, pool.next());
  }

  @Test
  void interruptOfOneCallerLeavesTheRangeForTheOthers() throws Exception {
    source.hold = true;
    Future<Long> interrupted = threads.submit((Callable<Long>) pool::next);
    FakeSource.Call call = source.held();
    Future<Long> other = threads.submit((Callable<Long>) pool::next);
    interrupted.cancel(true);
    call.answer();
    assertEquals(1, other.get());
    assertEquals(1, source.sizes().indexOf(2L)); // the prefetch after it
  }

  @Test
  void closeDropsIdsAndEndsWaits() throws Exception {
    take(10);
    source.hold = true;
    take(5); // until 15; a request for the next range is held
    Future<Long> caller = threads.submit((Callable<Long>) () -> pool.next(LONG));
    while (!caller.isDone()) {
      FakeSource.Call late = source.held.poll();
      pool.close();
      if (late != null) {
        late.answer(); // a range that arrives after the close is dropped
      }
      Thread.onSpinWait();
    }
    try {
      caller.get(); // it was faster than close()
    } catch (ExecutionException e) {
      assertEquals(IllegalStateException.class, e.getCause().getClass());
    }
    assertThrows(IllegalStateException.class, pool::next);
  }

  @Test
  void idsBeyondTwoToThe53AreExact() throws Exception {
    source.next = 9_007_199_254_740_993L;
    assertEquals(range(9_007_199_254_740_993L, 9_007_199_254_741_092L), take(100));
  }

  @Test
  void negativeStepCountsDown() throws Exception {
    source.next = 5;
    source.step = -3;
    assertEquals(List.of(5L, 2L, -1L, -4L, -7L), take(5));
  }

  @Test
  void sequenceThatRestartsIsAnError() {
    source.period = "2026-11";
    IdallocException error = assertThrows(IdallocException.class, pool::next);
    assertTrue(error.getMessage().contains("restarts in each period"), error.getMessage());
  }

  @Test
  void invalidRepliesAreErrors() {
    Duration ttl = Duration.ofSeconds(60);
    List<AllocatedRange> invalid =
        List.of(
            new AllocatedRange(1, 2, 1, 2, ttl, ""), // more than requested
            new AllocatedRange(1, 0, 1, 0, ttl, ""),
            new AllocatedRange(1, 1, 0, 1, ttl, ""),
            new AllocatedRange(1, 2, 1, 1, ttl, ""),
            new AllocatedRange(1, 1, 1, 1, ttl.negated(), ""));
    for (AllocatedRange each : invalid) {
      IdPool deceived =
          new IdPool("orders", (sequence, count) -> CompletableFuture.completedStage(each), LONG);
      IdallocException error = assertThrows(IdallocException.class, deceived::next);
      assertEquals(Status.Code.INTERNAL, error.code(), each.toString());
    }
  }
}
