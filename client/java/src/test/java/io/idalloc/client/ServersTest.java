package io.idalloc.client;

import static java.util.stream.Collectors.joining;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import com.google.gson.Gson;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.net.InetAddress;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.UUID;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.function.Consumer;
import java.util.function.Function;
import java.util.function.LongSupplier;
import java.util.stream.Stream;
import org.junit.jupiter.api.AutoClose;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.MethodSource;
import org.junit.jupiter.params.provider.ValueSource;

@Timeout(60)
class ServersTest {
  private final Set<Long> ids = ConcurrentHashMap.newKeySet();
  private final LinkedBlockingQueue<CallEvent> events = new LinkedBlockingQueue<>();
  @AutoClose private final FakeServer server = new FakeServer();

  static List<BrokenServer.Fault> table() throws IOException {
    Path file = Path.of("../../tests/support/broken_transports.json");
    return List.of(new Gson().fromJson(Files.readString(file), BrokenServer.Fault[].class));
  }

  private BrokenServer broken(BrokenServer.Fault fault, int connections) throws IOException {
    return new BrokenServer(fault, connections, server.port, "127.0.0.1", 0);
  }

  private IdallocClient client(String target, InetAddress... addresses) {
    Duration timeout = Duration.ofSeconds(30);
    return IdallocClient.builder(target).timeout(timeout).observer(events::add).build(name -> addresses);
  }

  static <T> void together(Stream<T> all, Consumer<T> task) {
    all.map(each -> CompletableFuture.runAsync(() -> task.accept(each), run -> new Thread(run).start()))
        .toList()
        .forEach(CompletableFuture::join);
  }

  static List<Long> stream(IdallocClient client) {
    List<Long> ids = new ArrayList<>();
    try (var ranges = client.streamRanges("orders", 45, 10)) {
      ranges.forEachRemaining(range -> range.ids().forEach(ids::add));
    }
    return ids;
  }

  private static List<Function<IdallocClient, List<Long>>> calls(Duration timeout) {
    return List.of(
        client -> List.of(client.allocateRange("orders", 1).first()),
        client -> List.of(client.allocateStream().allocateRange("orders", 1).first()),
        client -> List.of(client.pool("orders").next(timeout)),
        ServersTest::stream);
  }

  @ParameterizedTest
  @MethodSource("table")
  void aBrokenTransportIsAnUnreachableServer(BrokenServer.Fault fault) throws IOException {
    String unreachable = "UNAVAILABLE SERVER_UNREACHABLE";
    String late = "DEADLINE_EXCEEDED DEADLINE_EXCEEDED";
    Set<String> reasons = reasons(fault, Duration.ofMillis(400));
    // On a busy machine the first time may be over before a connection breaks.
    assertTrue(Set.of(unreachable, late).containsAll(reasons), reasons::toString);
    if (reasons.contains(late)) {
      reasons = reasons(fault, Duration.ofSeconds(30));
    }
    assertEquals(Set.of(unreachable), reasons);
  }

  /** Returns the codes and reasons of all kinds of calls over connections that break. */
  private Set<String> reasons(BrokenServer.Fault fault, Duration timeout) throws IOException {
    Set<String> reasons = ConcurrentHashMap.newKeySet();
    try (var broken = broken(fault, Integer.MAX_VALUE);
        var client = IdallocClient.builder(broken.address()).timeout(timeout).build()) {
      client.calls.longestOutage = timeout.toNanos();
      together(
          calls(timeout).stream(),
          call -> {
            var error = assertThrows(IdallocException.class, () -> call.apply(client));
            reasons.add(error.code() + " " + error.reason());
          });
      assertTrue(broken.connections.get() < 100, () -> broken.connections + " connections");
    }
    return reasons;
  }

  @ParameterizedTest
  @MethodSource("table")
  void callsOutliveTwoBrokenConnections(BrokenServer.Fault fault) {
    together(
        calls(Duration.ofSeconds(30)).stream(),
        call -> {
          try (var broken = broken(fault, 2);
              var client = client(broken.address())) {
            ids.addAll(call.apply(client));
          } catch (IOException e) {
            throw new UncheckedIOException(e);
          }
        });
    assertEquals(1 + 1 + 1 + 45, ids.size());
  }

  /** Takes ids for some seconds, and returns the longest time without one, in seconds. */
  private double longestGap(LongSupplier take, double seconds) {
    double longest = 0;
    long end = System.nanoTime() + (long) (seconds * 1e9);
    for (long last = System.nanoTime(); last < end; ) {
      assertTrue(ids.add(take.getAsLong()), "an id came twice");
      long now = System.nanoTime();
      longest = Math.max(longest, (now - last) / 1e9);
      last = now;
    }
    return longest;
  }

  private static long once(IdallocClient client) {
    return client.allocateRange(RangeRequest.of("orders", 1).requestId(UUID.randomUUID())).first();
  }

  /** Hangs some connections of a server for less than the timeout of a call. */
  private void checkHang(IdallocClient client, BrokenServer hung, int connections) throws Exception {
    server.ttlSeconds = 1; // or a range lasts over the hang
    try (client) {
      IdPool pool = client.pool("orders");
      longestGap(() -> once(client), 0.2);
      longestGap(pool::next, 0.5);
      hung.hung = connections;
      double gap = longestGap(pool::next, 3.5);
      assertTrue(gap < 10, () -> "no id of the pool for " + gap + " s");
      longestGap(() -> once(client), 0.5);
      hung.hung = 0;
      longestGap(pool::next, 0.5);
      Thread.sleep(1000); // then no refill is under way
      pool.close();
      while (server.lastValue.get() != ids.size() + events.stream().mapToLong(CallEvent::dropped).sum()) {
        Thread.sleep(10); // until the late answers have come
      }
    }
  }

  @ParameterizedTest
  @ValueSource(ints = {1, 2, 3})
  void aHungServerDelaysIdsOnce(int count) throws Exception {
    try (var first = broken(null, 0);
        var second = broken(null, 0);
        var third = broken(null, 0)) {
      var all = Stream.of(first, second, third).limit(count).map(BrokenServer::address);
      // Another connection to the only server is another server.
      checkHang(client(all.collect(joining(","))), first, count == 1 ? 1 : Integer.MAX_VALUE);
    }
  }

  @Test
  void aHungAddressOfANameDelaysIdsOnce() throws Exception {
    try (var first = broken(null, 0);
        var second = new BrokenServer(null, 0, server.port, "127.0.0.2", first.listened())) {
      InetAddress[] addresses = {InetAddress.getByName("127.0.0.1"), InetAddress.getByName("127.0.0.2")};
      checkHang(client("localhost:" + second.listened(), addresses), first, Integer.MAX_VALUE);
    }
  }

  @Test
  void aCallOnceGoesToAnotherServerThanAHungOne() throws IOException {
    try (var first = broken(null, 0);
        var second = broken(null, 0);
        var client = client(first.address() + "," + second.address())) {
      longestGap(() -> once(client), 0.2);
      first.hung = Integer.MAX_VALUE;
      double gap = longestGap(() -> once(client), 4);
      assertTrue(gap < 10, () -> gap + " s");
    }
  }

  @Test
  void slowServersGetNoMoreCalls() {
    try (var other = new FakeServer();
        var client = client(server.address() + "," + other.address())) {
      server.delay(1.2);
      other.delay(1.2);
      for (int i = 0; i < 4; i++) {
        once(client);
      }
      assertEquals(4, server.requests.size() + other.requests.size());
    }
  }

  @Test
  void aCallThatIsNotRepeatableMakesAHungServerSuspect() throws Exception {
    try (var hung = broken(null, 0);
        var client = client(hung.address() + "," + server.address())) {
      hung.hung = Integer.MAX_VALUE;
      var first = client.allocateRangeAsync("orders", 1);
      var second = client.allocateRangeAsync("orders", 1); // one of the two waits
      CompletableFuture.anyOf(first, second).join();
      Thread.sleep(3000); // for a probe
      for (int i = 0; i < 10; i++) {
        assertTrue(ids.add(client.allocateRange("orders", 1).first()));
      }
      assertFalse(first.isDone() && second.isDone());
      hung.hung = 0;
      assertTrue(ids.add(first.join().first()) && ids.add(second.join().first()));
    }
  }

  @Test
  void functionsOfACallerMayCall() {
    try (var client = client(server.address());
        var requests = client.allocateStream()) {
      RangeRequest request = RangeRequest.of("orders", 1);
      Stream.generate(() -> requests.allocateRangeAsync(request))
          .limit(100)
          .map(first -> first.thenApply(range -> requests.allocateRange("orders", 1)))
          .toList()
          .forEach(each -> assertTrue(ids.add(each.join().first())));
      client.pool("p").nextAsync().thenApply(id -> client.pool("p").next()).join();
    }
  }

  @Test
  void proxiesOfTheJvmAreNotUsed() throws IOException {
    Map<String, String> settings = Map.of("https.proxyHost", "127.0.0.1", "https.proxyPort", "1", "http.nonProxyHosts", "");
    settings.forEach(System::setProperty);
    try (var client = client(server.address())) {
      assertEquals(1, client.allocateRange("orders", 1).count());
    } finally {
      settings.keySet().forEach(System::clearProperty);
    }
  }
}
