package example;

import io.idalloc.client.AllocateStream;
import io.idalloc.client.AllocatedRange;
import io.idalloc.client.IdPool;
import io.idalloc.client.IdStream;
import io.idalloc.client.IdallocClient;
import io.idalloc.client.IdallocException;
import io.idalloc.client.RangeRequest;
import io.idalloc.client.RangeResult;
import io.idalloc.client.Reason;
import io.idalloc.v1.CreateSequenceRequest;
import io.idalloc.v1.Sequence;
import io.idalloc.v1.SequenceServiceGrpc;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.UUID;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionException;
import java.util.concurrent.TimeUnit;

/** Makes every call against a server with TLS: EveryCall SERVER. Prints what each one returned, a line each. */
public final class EveryCall {
  private static final Duration PATIENCE = Duration.ofSeconds(30);

  private EveryCall() {}

  /** Runs the program. */
  public static void main(String[] arguments) throws Exception {
    Map<String, Long> received = new TreeMap<>();
    try (IdallocClient client =
        Settings.builder(arguments[0])
            .timeout(PATIENCE)
            .observer(
                event -> {
                  synchronized (received) {
                    received.merge(event.method(), event.ids(), Long::sum);
                  }
                })
            .build()) {
      ranges(client);
      documents(client);
      streams(client);
      pool(client);
      errors(client);
    }
    received.remove("Pool"); // what it dropped, if anything
    // The pool may have requested more.
    print("received", received.remove("AllocateRange") >= 302 + 3, received);
  }

  private static void print(String name, Object... values) {
    System.out.println(name + ": " + String.join(" ", Arrays.stream(values).map(String::valueOf).toList()));
  }

  private static void ranges(IdallocClient client) throws Exception {
    AllocatedRange range = client.allocateRange("orders", 100);
    print("range", range.count(), range.last() - range.first(), range.step());
    RangeRequest once = RangeRequest.of("orders", 100).requestId(UUID.randomUUID());
    AllocatedRange first = client.allocateRange(once);
    AllocatedRange again = client.allocateRangeAsync(once).get(15, TimeUnit.SECONDS);
    print("request id", first.first() > range.last(), first.first() == again.first(), first.last() == again.last());
    List<RangeResult> batch =
        client.batchAllocateRanges(
            List.of(RangeRequest.of("orders", 10), RangeRequest.of("nowhere\0", 1), RangeRequest.of("lines", 5)));
    print("batch", batch.get(0).get().count(), batch.get(1).error().orElseThrow().reason(), batch.get(2).get().last());
  }

  private static void documents(IdallocClient client) throws Exception {
    SequenceServiceGrpc.newBlockingStub(client.channel())
        .createSequence(
            CreateSequenceRequest.newBuilder()
                .setSequence(Sequence.newBuilder().setName("invoices").setFormat("INV-{value:04d}"))
                .build());
    print("texts", client.allocateRange(RangeRequest.of("invoices", 2).texts()).texts());
    List<String> ids = new ArrayList<>(client.generateDocIds(3));
    ids.addAll(client.generateDocIdsAsync(2).get(15, TimeUnit.SECONDS));
    print("document ids", ids.stream().distinct().count(), ids.stream().mapToInt(String::length).distinct().sum());
  }

  private static void streams(IdallocClient client) {
    long ids = 0;
    try (IdStream<AllocatedRange> chunks = client.streamRanges("events", 50_000, 7_000)) {
      while (chunks.hasNext()) {
        ids += chunks.next().ids().count();
      }
    }
    long documents = 0;
    try (var runs = client.streamDocIds(50_000, 7_000)) {
      while (runs.hasNext()) {
        documents += runs.next().stream().flatMap(run -> run.ids()).distinct().count();
      }
    }
    print("streams", ids, documents);
    try (AllocateStream stream = client.allocateStream()) {
      List<CompletableFuture<AllocatedRange>> calls = new ArrayList<>();
      List<CompletableFuture<List<String>>> others = new ArrayList<>();
      for (int i = 0; i < 320; i++) {
        calls.add(stream.allocateRangeAsync(RangeRequest.of("tasks", 2)));
        others.add(stream.generateDocIdsAsync(1));
      }
      print(
          "allocate stream",
          calls.stream().flatMapToLong(each -> each.join().ids()).distinct().count(),
          others.stream().flatMap(each -> each.join().stream()).distinct().count());
    } catch (CompletionException e) {
      String reason = IdallocException.of(e).reason();
      if (!reason.equals("UNIMPLEMENTED")) { // an older server does not have the call
        throw e;
      }
      print("allocate stream", reason);
    }
  }

  private static void pool(IdallocClient client) {
    try (IdPool ids = client.pool("parcels")) {
      print("pool", ids.next(), ids.next(PATIENCE), ids.nextAsync().join());
    }
  }

  private static void errors(IdallocClient client) {
    try {
      client.allocateRange("orders", 1L << 40);
    } catch (IdallocException e) {
      print("error", e.reason().equals(Reason.INVALID_REQUEST), e.code(), e.fields(), e.isRetryable());
    }
  }
}
