package io.idalloc.examples;

import io.idalloc.client.AllocateStream;
import io.idalloc.client.AllocatedRange;
import io.idalloc.client.DocIdRun;
import io.idalloc.client.IdPool;
import io.idalloc.client.IdStream;
import io.idalloc.client.IdallocClient;
import io.idalloc.client.IdallocException;
import io.idalloc.client.RangeRequest;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.time.Duration;
import java.util.List;
import java.util.UUID;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionException;
import java.util.function.Supplier;

/** Gets ids from an idalloc server in six ways. */
public final class Main {
  private static final long RANGE_SIZE = 100;

  /** Time for the first TLS handshake of a JVM, which may take seconds on a busy machine. */
  private static final Duration TIMEOUT = Duration.ofSeconds(20);

  /** Without progress for so long, the program gives up. */
  private static final Duration GIVE_UP = Duration.ofSeconds(60);

  private final IdallocClient client;
  private final String sequence;
  private final long total;
  private boolean hasAnswered;

  private Main(IdallocClient client, Options options) {
    this.client = client;
    this.sequence = options.sequence();
    this.total = options.total();
  }

  /** Exits with 0, with 1 after an error of a call, or with 2 for wrong arguments. */
  public static void main(String[] args) {
    System.exit(run(args));
  }

  static int run(String[] args) {
    Options options;
    try {
      options = Options.parse(args);
    } catch (IllegalArgumentException e) {
      System.err.println(e.getMessage() + "; " + Options.USAGE);
      return 2;
    }
    try (IssuedLog log = options.log() == null ? null : new IssuedLog(options.log());
        IdallocClient client = connect(options, log)) {
      Main main = new Main(client, options);
      main.pool();
      main.unary();
      main.allocateStream();
      main.requestId();
      main.stream();
      main.docIds();
      return 0;
    } catch (IdallocException e) {
      System.err.println(e);
    } catch (IOException | UncheckedIOException e) { // of the log
      System.err.println(e.toString().replaceAll("\\s+", " "));
    } catch (InterruptedException e) {
      System.err.println("interrupted");
    }
    return 1;
  }

  private static IdallocClient connect(Options options, IssuedLog log) {
    IdallocClient.Builder builder = IdallocClient.builder(options.server()).timeout(TIMEOUT);
    if (options.ca() != null) {
      builder.tls(options.ca());
    }
    if (options.tokenFile() != null) {
      builder.tokenFile(options.tokenFile());
    }
    if (log != null) {
      builder.intercept(log);
    }
    return builder.build();
  }

  /** Takes ids one by one from the pool, which continues over a restart of the server. */
  private void pool() throws InterruptedException {
    Tally tally = new Tally("pool");
    try (IdPool pool = client.pool(sequence)) {
      while (tally.count < total) {
        tally.add(retried(pool::next));
      }
    }
    tally.print();
  }

  /** Allocates a range directly: its ids have no ttl. */
  private void unary() throws InterruptedException {
    Tally tally = new Tally("unary");
    tally.addRange(retried(() -> client.allocateRange(sequence, RANGE_SIZE)));
    tally.print();
  }

  /** Makes several calls over one stream. One fails, and the others get their ids. */
  private void allocateStream() {
    Tally tally = new Tally("allocate-stream");
    try (AllocateStream stream = client.allocateStream()) {
      var orders = stream.allocateRangeAsync(RangeRequest.of(sequence, 2));
      var lines = stream.allocateRangeAsync(RangeRequest.of(sequence + "-lines", 5));
      var tooMany = stream.allocateRangeAsync(RangeRequest.of(sequence, 1L << 31));
      CompletableFuture<List<String>> documents = stream.generateDocIdsAsync(3);
      tally.addRange(orders.join());
      tally.addRange(lines.join());
      try {
        tooMany.join();
      } catch (CompletionException e) {
        System.out.println("allocate-stream: request 3 failed: " + e.getCause());
      }
      documents.join().forEach(tally::add);
    } catch (CompletionException e) {
      throw IdallocException.of(e);
    }
    tally.print();
  }

  /** Repeats a request: with the same request id it gets the same ids. */
  private void requestId() throws InterruptedException {
    RangeRequest request =
        RangeRequest.of(sequence, RANGE_SIZE).requestId(UUID.randomUUID());
    AllocatedRange first = retried(() -> client.allocateRange(request));
    AllocatedRange second = retried(() -> client.allocateRange(request));
    if (first.first() != second.first() || first.generation() != second.generation()) {
      throw new IllegalStateException("a repeated request id returned other ids");
    }
    Tally tally = new Tally("request-id");
    tally.addRange(first);
    tally.print();
  }

  /** Reads ranges until the total is reached, over as many streams as that takes. */
  private void stream() {
    Tally tally = new Tally("stream");
    try (IdStream<AllocatedRange> ranges = client.streamRanges(sequence, total, 0)) {
      ranges.forEachRemaining(tally::addRange);
    }
    tally.print();
  }

  /** Reads document ids as runs, and expands them. */
  private void docIds() {
    Tally tally = new Tally("doc-ids");
    try (IdStream<List<DocIdRun>> runs = client.streamDocIds(total, 0)) {
      runs.forEachRemaining(each -> each.forEach(run -> run.ids().forEach(tally::add)));
    }
    tally.print();
  }

  /** Repeats a call over the restart of a lone server, which takes longer than gRPC retries. */
  private <T> T retried(Supplier<T> call) throws InterruptedException {
    long begun = System.nanoTime();
    while (true) {
      try {
        T result = call.get();
        hasAnswered = true;
        return result;
      } catch (IdallocException e) {
        boolean isLate = System.nanoTime() - begun > GIVE_UP.toNanos();
        if (!hasAnswered || !e.isRetryable() || isLate) {
          throw e;
        }
        Thread.sleep(Math.max(100, e.retryDelay().toMillis()));
      }
    }
  }

  /** Counts the ids of one way. */
  private static final class Tally {
    private final String way;
    private long count;
    private Object first;
    private Object last;

    Tally(String way) {
      this.way = way;
    }

    void add(Object id) {
      if (count++ == 0) {
        first = id;
      }
      last = id;
    }

    void addRange(AllocatedRange range) {
      if (count == 0) {
        first = range.first();
      }
      last = range.last();
      count += range.count();
    }

    void print() {
      System.out.println(way + ": " + count + " ids, " + first + ".." + last);
    }
  }
}
