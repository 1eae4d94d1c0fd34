package io.idalloc.client;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertInstanceOf;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import com.google.gson.Gson;
import io.grpc.Grpc;
import io.grpc.InsecureChannelCredentials;
import io.grpc.InsecureServerCredentials;
import io.grpc.ManagedChannel;
import io.grpc.MethodDescriptor;
import io.grpc.Server;
import io.grpc.ServerServiceDefinition;
import com.google.protobuf.Any;
import com.google.rpc.RetryInfo;
import io.grpc.Status;
import io.grpc.stub.ServerCallStreamObserver;
import io.grpc.stub.ServerCalls;
import io.grpc.stub.StreamObserver;
import io.idalloc.v1.AllocateRangeRequest;
import io.idalloc.v1.AllocateRangeResponse;
import io.idalloc.v1.IdAllocatorServiceGrpc;
import java.io.ByteArrayInputStream;
import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.io.InputStream;
import java.io.ObjectInputStream;
import java.io.ObjectOutputStream;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Base64;
import java.util.List;
import java.util.Map;
import java.util.UUID;
import java.util.concurrent.CancellationException;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CopyOnWriteArrayList;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.atomic.AtomicLong;
import java.util.regex.Pattern;
import java.util.stream.LongStream;
import java.util.stream.Stream;
import org.junit.jupiter.api.AutoClose;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.api.io.TempDir;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.MethodSource;
import org.junit.jupiter.params.provider.ValueSource;

@Timeout(60)
class IdallocClientTest {
  private final LinkedBlockingQueue<CallEvent> events = new LinkedBlockingQueue<>();
  @AutoClose private FakeServer server = new FakeServer();

  @AutoClose
  private final IdallocClient client =
      IdallocClient.builder(server.address()).observer(events::add).build();

  static IdallocException failure(Runnable call) {
    return assertThrows(IdallocException.class, call::run);
  }

  private static RuntimeException quota(double retrySeconds, String subject) {
    String[] metadata = {"subject", subject};
    return FakeServer.error(
        Status.Code.RESOURCE_EXHAUSTED, Reason.QUOTA_EXCEEDED, retrySeconds, metadata);
  }

  static IdallocException failure(CompletableFuture<?> call) {
    ExecutionException thrown = assertThrows(ExecutionException.class, call::get);
    return assertInstanceOf(IdallocException.class, thrown.getCause());
  }

  @Test
  void aRangeHasItsIds() {
    AllocatedRange range = client.allocateRange("orders", 3);
    assertEquals(List.of(1L, 2L, 3L), range.ids().boxed().toList());
    assertEquals(Duration.ofSeconds(180), range.ttl());
  }

  @Test
  void aRequestIdIsSent() {
    UUID id = UUID.randomUUID();
    client.allocateRange(RangeRequest.of("orders", 2).requestId(id));
    assertEquals(id.toString(), server.requests.get(0).getRequestId());
  }

  @Test
  void aBatchHasARangeOrAnErrorForEachRequest() {
    List<RangeResult> results =
        client.batchAllocateRanges(List.of(RangeRequest.of("orders", 2), RangeRequest.of("", 1)));
    assertEquals(2, results.get(0).get().count());
    assertEquals(Reason.INVALID_REQUEST, failure(() -> results.get(1).get()).reason());
  }

  @Test
  void documentIdsAreExpanded() {
    assertEquals(
        List.of("00006b09b6aa00000000000000ff", "00006b09b6aa0000000000000100"),
        client.generateDocIds(2));
  }

  @Test
  void anErrorHasReasonDelayAndMetadata() {
    server.failures.add(quota(0.5, "billing"));
    IdallocException error = failure(() -> client.allocateRange("orders", 1));
    assertEquals(Reason.QUOTA_EXCEEDED, error.reason());
    assertEquals(Status.Code.RESOURCE_EXHAUSTED, error.code());
    assertEquals(Duration.ofMillis(500), error.retryDelay());
    assertEquals(Map.of("subject", "billing"), error.metadata());
    assertTrue(error.isRetryable());
  }

  @Test
  void aDelayIsAtMostAnHour() {
    var delay = com.google.protobuf.Duration.newBuilder().setSeconds(Long.MAX_VALUE).setNanos(-1);
    var sent =
        com.google.rpc.Status.newBuilder()
            .setCode(Status.Code.RESOURCE_EXHAUSTED.value())
            .addDetails(Any.pack(RetryInfo.newBuilder().setRetryDelay(delay).build()));
    assertEquals(Duration.ofHours(1), IdallocException.of(sent.build()).retryDelay());
  }

  @Test
  void anErrorIsSerializable() throws Exception {
    IdallocException error = failure(() -> client.allocateRange("orders", 0));
    ByteArrayOutputStream bytes = new ByteArrayOutputStream();
    try (ObjectOutputStream out = new ObjectOutputStream(bytes)) {
      out.writeObject(error);
    }
    try (var in = new ObjectInputStream(new ByteArrayInputStream(bytes.toByteArray()))) {
      assertEquals(List.of("id_count"), ((IdallocException) in.readObject()).fields());
    }
  }

  @ParameterizedTest
  @ValueSource(longs = {0, -1})
  void aWrongCountIsNotSent(long count) {
    assertEquals(Reason.INVALID_REQUEST, failure(() -> client.allocateRange("o", count)).reason());
    assertEquals(0, server.requests.size());
  }

  @Test
  void anUnreachableServerIsNamed() {
    server.close();
    IdallocException error = failure(() -> client.allocateRange("orders", 1));
    assertEquals(Reason.SERVER_UNREACHABLE, error.reason());
    assertTrue(error.getMessage().startsWith(server.address()), error::getMessage);
  }

  @Test
  void aServersCancelIsABrokenConnection() {
    for (int i = 0; i < 5; i++) { // gRPC's attempts
      server.failures.add(Status.CANCELLED.withDescription("stopping").asRuntimeException());
    }
    assertEquals(
        Reason.SERVER_UNREACHABLE, failure(() -> client.allocateRange("orders", 1)).reason());
    assertEquals(5, server.requests.size());
  }

  @Test
  void aCancelledFutureCancelsTheCall() throws InterruptedException {
    CountDownLatch cancelled = new CountDownLatch(1);
    CountDownLatch begun = new CountDownLatch(1);
    server.answer =
        reply -> {
          ((ServerCallStreamObserver<?>) reply).setOnCancelHandler(cancelled::countDown);
          begun.countDown();
        };
    CompletableFuture<AllocatedRange> call = client.allocateRangeAsync("orders", 1);
    begun.await();
    call.cancel(true);
    cancelled.await();
    assertThrows(CancellationException.class, call::join);
    assertEquals(Reason.CANCELLED, events.take().error().orElseThrow().reason());
  }

  @Test
  void closeEndsCallsInFlight() throws InterruptedException {
    CountDownLatch begun = new CountDownLatch(1);
    server.answer = reply -> begun.countDown();
    CompletableFuture<AllocatedRange> call = client.allocateRangeAsync("orders", 1);
    begun.await();
    client.close();
    assertEquals(Reason.CLOSED, failure(call).reason());
  }

  @Test
  void aTimeoutLimitsACall() {
    server.answer = reply -> {};
    try (var hasty =
        IdallocClient.builder(server.address()).timeout(Duration.ofMillis(50)).build()) {
      assertEquals(
          Reason.DEADLINE_EXCEEDED, failure(() -> hasty.allocateRange("orders", 1)).reason());
    }
  }

  @Test
  void theObserverGetsEachCall() throws InterruptedException {
    client.allocateRange("orders", 3);
    CallEvent event = events.take();
    assertEquals("AllocateRange orders 3", event.method() + " " + event.sequence() + " " + event.ids());
  }

  @Test
  void callsAlternateBetweenAddresses() {
    try (FakeServer other = new FakeServer();
        var both = IdallocClient.builder(server.address() + ", " + other.address()).build()) {
      while (server.requests.isEmpty() || other.requests.isEmpty()) {
        both.allocateRange("orders", 1);
      }
    }
  }

  @ParameterizedTest
  @ValueSource(strings = {"", "localhost", "localhost:0", "localhost:65536", "http://a:1", "a:1,b"})
  void aWrongTargetIsRefused(String target) {
    IdallocException error = failure(() -> IdallocClient.builder(target).build());
    assertEquals(List.of("target"), error.fields());
  }

  @Test
  void aTokenIsNotSentToOtherMachinesInPlaintext() {
    var builder = IdallocClient.builder("ids.example:50051").token("secret");
    IdallocException error = failure(builder::build);
    assertTrue(error.getMessage().contains("only over TLS"), error::getMessage);
    builder.tls().build().close();
  }

  @Test
  void callsInFlightOutliveARotatedToken(@TempDir Path folder) throws Exception {
    Path file = Files.writeString(folder.resolve("token"), "old\n");
    try (var rotating = IdallocClient.builder(server.address()).tokenFile(file).build()) {
      server.accepted = "old";
      rotating.allocateRange("orders", 1);
      Files.writeString(file, "new\n");
      server.accepted = "new";
      var calls =
          Stream.generate(() -> rotating.allocateRangeAsync("orders", 1)).limit(20).toList();
      calls.forEach(each -> assertEquals(1, each.join().count()));
      server.accepted = "another";
      assertEquals(
          Reason.UNAUTHENTICATED, failure(() -> rotating.allocateRange("orders", 1)).reason());
    }
  }

  @Test
  void streamsOutliveARotatedToken(@TempDir Path folder) throws Exception {
    Path file = Files.writeString(folder.resolve("token"), "old");
    try (var rotating = IdallocClient.builder(server.address()).tokenFile(file).build();
        var stream = rotating.allocateStream()) {
      server.accepted = "old";
      stream.allocateRange("orders", 1);
      Files.writeString(file, "new");
      server.accepted = "new";
      try (var ranges = rotating.streamRanges("orders", 10, 5)) {
        assertEquals(5, ranges.next().count());
      }
    }
  }

  @Test
  void aStreamContinuesAfterABreak() {
    client.allocateRange("orders", 1);
    server.answersOfAStream = 2;
    assertEquals(45, ServersTest.stream(client).stream().distinct().count());
    assertEquals(3, server.streams.get());
  }

  @Test
  void aStreamHasTheServersChunksByDefault() {
    List<Long> counts = new ArrayList<>();
    try (var ranges = client.streamRanges("orders", 16, 0)) {
      ranges.forEachRemaining(range -> counts.add(range.count()));
    }
    assertEquals(List.of(7L, 7L, 2L), counts);
  }

  @Test
  void aClosedStreamHasNoFurtherPart() {
    var ranges = client.streamRanges("orders", 45, 10);
    ranges.next();
    ranges.close();
    assertEquals(Reason.CLOSED, failure(ranges::hasNext).reason());
  }

  /** Sends requests for two ids each. */
  private static List<CompletableFuture<AllocatedRange>> request(AllocateStream stream, int count) {
    RangeRequest request = RangeRequest.of("orders", 2);
    return Stream.generate(() -> stream.allocateRangeAsync(request)).limit(count).toList();
  }

  @Test
  void anAllocateStreamGivesEachCallerItsAnswer() {
    try (var stream = client.allocateStream()) {
      var all = request(stream, 2_000);
      CompletableFuture<List<String>> documents = stream.generateDocIdsAsync(2);
      assertEquals(4_000, all.stream().flatMapToLong(each -> each.join().ids()).distinct().count());
      assertEquals(2, documents.join().size());
      assertEquals(1, server.streams.get());
    }
  }

  @Test
  void anAllocateStreamSendsLostRequestsAgain() {
    server.answersOfAStream = 700;
    try (var stream = client.allocateStream()) {
      var all = request(stream, 2_000);
      assertEquals(4_000, all.stream().flatMapToLong(each -> each.join().ids()).distinct().count());
      assertTrue(server.streams.get() >= 3);
    }
  }

  @Test
  void anAllocateStreamHasAtMost500RequestsInFlight() throws InterruptedException {
    server.holds = true;
    List<CompletableFuture<AllocatedRange>> calls;
    try (var stream = client.allocateStream()) {
      calls = request(stream, AllocateStream.MAX_IN_FLIGHT + 100);
      for (int i = 0; i < AllocateStream.MAX_IN_FLIGHT; i++) {
        server.held.take();
      }
      assertTrue(server.held.isEmpty());
    }
    assertEquals(Reason.CLOSED, failure(calls.get(0)).reason());
    assertEquals(Reason.CLOSED, failure(calls.get(calls.size() - 1)).reason());
  }

  @Test
  void aRequestBeyondTheStreamsIdsIsSentAgain() {
    server.failures.add(quota(0.02, "stream"));
    try (var stream = client.allocateStream()) {
      assertEquals(3, stream.allocateRange("orders", 3).count());
    }
  }

  @Test
  void anotherQuotaOfAStreamIsAnError() {
    server.failures.add(quota(0.02, "billing"));
    try (var stream = client.allocateStream()) {
      assertEquals(
          Reason.QUOTA_EXCEEDED, failure(() -> stream.allocateRange("orders", 3)).reason());
    }
  }

  @Test
  void requestsOfCallersThatLeftAreNotSent() throws InterruptedException {
    server.holds = true;
    try (var stream = client.allocateStream()) {
      request(stream, AllocateStream.MAX_IN_FLIGHT);
      for (int i = 0; i < AllocateStream.MAX_IN_FLIGHT; i++) {
        server.held.take();
      }
      for (int i = 0; i < 20_000; i++) {
        stream.allocateRangeAsync(RangeRequest.of("orders", 1)).cancel(true);
      }
      assertTrue(stream.waiting.size() <= 1, () -> stream.waiting.size() + " are kept");
    }
  }

  private ManagedChannel channel() {
    return Grpc.newChannelBuilder(server.address(), InsecureChannelCredentials.create()).build();
  }

  @Test
  void aChannelOfOnesOwnStaysOpen() {
    ManagedChannel channel = channel();
    try (var borrowed = IdallocClient.fromChannel(channel)) {
      assertEquals(1, borrowed.allocateRange("orders", 1).count());
    }
    assertFalse(channel.isShutdown());
    channel.shutdownNow();
  }

  @Test
  void generatedStubsUseTheChannel() {
    var stub = IdAllocatorServiceGrpc.newBlockingStub(client.channel());
    var request = AllocateRangeRequest.newBuilder().setSequence("orders").setIdCount(2).build();
    assertEquals(2, stub.allocateRange(request).getRange().getIdCount());
  }

  @Test
  void aPoolOutlivesTheRestartOfItsServer() {
    try (IdPool pool = client.pool("orders")) {
      LongStream.range(0, 100).forEach(n -> pool.next());
      int port = server.port;
      server.close();
      server = new FakeServer(port, InsecureServerCredentials.create());
      server.lastValue.set(1_000_000);
      while (pool.next(Duration.ofSeconds(30)) <= 1_000_000) {}
    }
  }

  record Wrong(
      String name, String rpc, boolean texts, String error, long validIds, List<String> replies) {}

  static Stream<Wrong> table() throws IOException {
    Path file = Path.of("../../tests/support/wrong_replies.json");
    Wrong unparsable = new Wrong("no message", "AllocateRange", false, "", 0, List.of("////"));
    Wrong[] others = new Gson().fromJson(Files.readString(file), Wrong[].class);
    return Stream.concat(Stream.of(unparsable), Stream.of(others));
  }

  @ParameterizedTest
  @MethodSource("table")
  void eachWrongReplyIsAnError(Wrong wrong) throws IOException {
    Server broken = serve(wrong.replies());
    AtomicLong ids = new AtomicLong();
    try (var other = IdallocClient.builder("127.0.0.1:" + broken.getPort()).build()) {
      IdallocException thrown = failure(() -> call(other, wrong, ids));
      assertEquals(Reason.INVALID_REPLY, thrown.reason(), thrown.getMessage());
      assertFalse(thrown.isRetryable());
      assertTrue(Pattern.compile(wrong.error()).matcher(thrown.getMessage()).find(), thrown.getMessage());
      assertEquals(wrong.validIds(), ids.get());
    } finally {
      broken.shutdownNow();
    }
  }

  private static void call(IdallocClient other, Wrong wrong, AtomicLong ids) {
    RangeRequest request = RangeRequest.of("orders", 5);
    switch (wrong.rpc()) {
      case "AllocateRange" -> other.allocateRange(wrong.texts() ? request.texts() : request);
      case "BatchAllocateRanges" -> other.batchAllocateRanges(List.of(request, request));
      case "GenerateDocId" -> other.generateDocIds(5);
      case "StreamRanges" -> {
        try (var stream = other.streamRanges("orders", 10, 5)) {
          stream.forEachRemaining(range -> ids.addAndGet(range.count()));
        }
      }
      default -> {
        try (var stream = other.streamDocIds(10, 5)) {
          stream.forEachRemaining(runs -> runs.forEach(run -> ids.addAndGet(run.count())));
        }
      }
    }
  }

  /** Returns a server that sends the same replies to each call. */
  private static Server serve(List<String> replies) throws IOException {
    var service = ServerServiceDefinition.builder("idalloc.v1.IdAllocatorService");
    for (var each : IdAllocatorServiceGrpc.getServiceDescriptor().getMethods()) {
      service.addMethod(
          each.toBuilder(new Bytes(), new Bytes())
              .setType(MethodDescriptor.MethodType.SERVER_STREAMING)
              .build(),
          ServerCalls.asyncServerStreamingCall(
              (InputStream request, StreamObserver<InputStream> reply) -> {
                for (String base64 : replies) {
                  reply.onNext(new ByteArrayInputStream(Base64.getDecoder().decode(base64)));
                }
                reply.onCompleted();
              }));
    }
    var builder = Grpc.newServerBuilderForPort(0, InsecureServerCredentials.create());
    return builder.addService(service.build()).build().start();
  }

  private static final class Bytes implements MethodDescriptor.Marshaller<InputStream> {
    @Override
    public InputStream stream(InputStream bytes) {
      return bytes;
    }

    @Override
    public InputStream parse(InputStream bytes) {
      return bytes;
    }
  }

  @Test
  void anErrorAfterTheReplyIsTheResult() {
    server.answer =
        reply -> {
          reply.onNext(server.range(1));
          reply.onError(Status.DATA_LOSS.asRuntimeException());
        };
    assertEquals("DATA_LOSS", failure(() -> client.allocateRange("orders", 1)).reason());
  }

  @Test
  void aSuccessfulCallIsNotCancelled() throws InterruptedException {
    CountDownLatch completed = new CountDownLatch(1);
    CountDownLatch cancelled = new CountDownLatch(1);
    server.answer =
        reply -> {
          var call = (ServerCallStreamObserver<AllocateRangeResponse>) reply;
          call.setOnCancelHandler(cancelled::countDown);
          call.setOnCloseHandler(completed::countDown);
          reply.onNext(server.range(1));
          // The status comes later than the message.
          Clock.SYSTEM.after(200_000_000, reply::onCompleted);
        };
    client.allocateRange("orders", 1);
    completed.await();
    assertEquals(1, cancelled.getCount());
  }

  @Test
  void anObserverThatThrowsFailsNoCall() {
    List<Throwable> uncaught = new CopyOnWriteArrayList<>();
    var handler = Thread.getDefaultUncaughtExceptionHandler();
    Thread.setDefaultUncaughtExceptionHandler((thread, error) -> uncaught.add(error));
    try (var observed =
            IdallocClient.builder(server.address())
                .observer(
                    event -> {
                      throw new IllegalStateException("planted");
                    })
                .build()) {
      IdPool pool = observed.pool("orders");
      for (int i = 1; i < 10; i++) {
        assertEquals(i, pool.next());
      }
      pool.close(); // drops ids
      assertEquals(Reason.CLOSED, failure(pool::next).reason());
      assertTrue(uncaught.size() > 1, uncaught::toString);
    } finally {
      Thread.setDefaultUncaughtExceptionHandler(handler);
    }
  }

  @Test
  void closeEndsARequestThatWaitsForItsRetry() throws Exception {
    try (var patient =
            IdallocClient.builder(server.address()).timeout(Duration.ofMinutes(10)).build()) {
      AllocateStream stream = patient.allocateStream();
      stream.allocateRange("orders", 1);
      server.failures.add(quota(0.9, "stream"));
      var waiting = stream.allocateRangeAsync(RangeRequest.of("orders", 1));
      while (!server.failures.isEmpty() || stream.unanswered.size() != 1) {
        Thread.onSpinWait();
      }
      stream.close();
      assertEquals(Reason.CLOSED, failure(waiting).reason());
    }
  }

  @Test
  void aSilentAllocateStreamIsOpenedAgain() throws InterruptedException {
    FakeClock clock = new FakeClock();
    var calls = new Calls(new Servers(channel()), "", null, Duration.ofMinutes(10), event -> {});
    try (calls;
        var stream = new AllocateStream(calls, clock)) {
      stream.allocateRange("orders", 1);
      server.holds = true;
      var waiting = stream.allocateRangeAsync(RangeRequest.of("orders", 1));
      server.held.take();
      server.holds = false;
      clock.advance(59);
      assertEquals(1, server.streams.get());
      clock.advance(2);
      while (clock.timers.isEmpty()) { // until gRPC has reported the end of the stream
        Thread.onSpinWait();
      }
      clock.advance(1);
      assertEquals(1, waiting.join().count());
      assertEquals(2, server.streams.get());
    }
  }

  @Test
  void aCallAfterCloseIsClosed() {
    client.close();
    assertEquals(Reason.CLOSED, failure(() -> client.allocateRange("orders", 1)).reason());
    assertEquals(Reason.CLOSED, failure(client.pool("orders").nextAsync()).reason());
    var ranges = client.streamRanges("orders", 5, 5);
    assertEquals(Reason.CLOSED, failure(ranges::next).reason());
  }
}
