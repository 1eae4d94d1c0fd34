package io.idalloc.examples;

import io.grpc.Channel;
import io.grpc.ClientInterceptors;
import io.grpc.ManagedChannel;
import io.grpc.Status;
import io.grpc.StatusException;
import io.grpc.StatusRuntimeException;
import io.grpc.protobuf.StatusProto;
import io.grpc.stub.BlockingClientCall;
import io.idalloc.examples.pool.GrpcRangeSource;
import io.idalloc.examples.pool.IdPool;
import io.idalloc.examples.pool.IdallocException;
import io.idalloc.v1.AllocateRangeRequest;
import io.idalloc.v1.AllocateRangeResponse;
import io.idalloc.v1.AllocateStreamRequest;
import io.idalloc.v1.AllocateStreamResponse;
import io.idalloc.v1.DocIdRun;
import io.idalloc.v1.DocIdView;
import io.idalloc.v1.GenerateDocIdRequest;
import io.idalloc.v1.IdAllocatorServiceGrpc;
import io.idalloc.v1.IdAllocatorServiceGrpc.IdAllocatorServiceBlockingStub;
import io.idalloc.v1.IdAllocatorServiceGrpc.IdAllocatorServiceBlockingV2Stub;
import io.idalloc.v1.IdRange;
import io.idalloc.v1.StreamDocIdsRequest;
import io.idalloc.v1.StreamDocIdsResponse;
import io.idalloc.v1.StreamRangesRequest;
import io.idalloc.v1.StreamRangesResponse;
import java.io.IOException;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.UUID;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import java.util.function.Consumer;
import java.util.function.Supplier;

/** Gets ids from an idalloc server in six ways. */
public final class Main {
  private static final long RANGE_SIZE = 100;
  private static final Duration CALL_TIMEOUT = Duration.ofSeconds(5);
  private static final Duration CONNECT_TIMEOUT = Duration.ofSeconds(20);

  private final Retries retries;
  private final Options options;
  private final Channel calls;
  private final IdAllocatorServiceBlockingStub unary;
  private final IdAllocatorServiceBlockingV2Stub streams;

  private Main(ManagedChannel channel, Channel calls, Options options) {
    this.retries = new Retries(channel);
    this.calls = calls;
    this.options = options;
    this.unary = IdAllocatorServiceGrpc.newBlockingStub(calls);
    this.streams = IdAllocatorServiceGrpc.newBlockingV2Stub(calls);
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
    try {
      connect(options);
      return 0;
    } catch (IdallocException e) {
      System.err.println(e.toLine());
    } catch (IOException | IllegalArgumentException e) { // a file of the options, or the target
      System.err.println(e.toString().replaceAll("\\s+", " "));
    } catch (InterruptedException e) {
      System.err.println("interrupted");
    }
    return 1;
  }

  private static void connect(Options options) throws IOException, InterruptedException {
    ManagedChannel channel = Channels.create(options.server(), options.ca());
    try (IssuedLog log = options.log() == null ? null : new IssuedLog(options.log())) {
      Channel calls = channel;
      if (options.tokenFile() != null) {
        calls = Channels.withToken(calls, options.tokenFile());
      }
      if (log != null) {
        calls = ClientInterceptors.intercept(calls, log);
      }
      Channels.warmUp(channel, CONNECT_TIMEOUT);
      Main main = new Main(channel, calls, options);
      main.pool();
      main.unary();
      main.allocateStream();
      main.requestId();
      main.stream();
      main.docIds();
    } finally {
      channel.shutdownNow().awaitTermination(5, TimeUnit.SECONDS);
    }
  }

  /** Takes ids one by one from the pool. */
  private void pool() throws InterruptedException {
    Tally tally = new Tally("pool");
    GrpcRangeSource source = new GrpcRangeSource(calls, CALL_TIMEOUT);
    try (IdPool pool = new IdPool(options.sequence(), source, CALL_TIMEOUT)) {
      while (tally.count < options.total()) {
        try {
          tally.add(pool.next());
          retries.progress();
        } catch (IdallocException e) {
          retries.await(e);
        }
      }
    }
    tally.print();
  }

  /** Allocates a range directly: its ids have no ttl. */
  private void unary() throws InterruptedException {
    AllocateRangeRequest request = rangeRequest().build();
    IdRange range = retried(() -> withDeadline().allocateRange(request)).getRange();
    Tally tally = new Tally("unary");
    tally.add(check(range, RANGE_SIZE));
    tally.print();
  }

  /** Sends several requests over one stream. One fails, and the others get their ids. */
  private void allocateStream() throws InterruptedException {
    List<AllocateStreamResponse> answers =
        exchange(
            List.of(
                rangeOf(1, options.sequence(), 2),
                rangeOf(2, options.sequence() + "-lines", 5),
                rangeOf(3, options.sequence(), 1L << 31), // fails: more than any server allows
                AllocateStreamRequest.newBuilder()
                    .setNumber(4)
                    .setGenerateDocId(
                        GenerateDocIdRequest.newBuilder()
                            .setIdCount(3)
                            .setView(DocIdView.DOC_ID_VIEW_COMPACT))
                    .build()));
    Tally tally = new Tally("allocate-stream");
    for (AllocateStreamResponse answer : answers) {
      switch (answer.getResponseCase()) {
        case ALLOCATE_RANGE -> {
          IdRange range = answer.getAllocateRange().getRange();
          tally.add(check(range, range.getIdCount()));
        }
        case GENERATE_DOC_ID -> {
          for (DocIdRun run : answer.getGenerateDocId().getRunsList()) {
            DocIds.expand(run, tally::add);
          }
        }
        default ->
            System.out.println(
                "allocate-stream: request "
                    + answer.getNumber()
                    + " failed: "
                    + errorOf(answer).toLine());
      }
    }
    tally.print();
  }

  /**
   * Returns the answers to requests, in their order. If the stream breaks, it sends all of them
   * again: the ids of the broken one are a gap. More than 1,000 requests need a thread that reads.
   */
  private List<AllocateStreamResponse> exchange(List<AllocateStreamRequest> requests)
      throws InterruptedException {
    while (true) {
      BlockingClientCall<AllocateStreamRequest, AllocateStreamResponse> call =
          streams
              .withDeadlineAfter(CALL_TIMEOUT.toMillis(), TimeUnit.MILLISECONDS)
              .allocateStream();
      try {
        for (AllocateStreamRequest request : requests) {
          call.write(request);
        }
        call.halfClose(); // the server ends the stream after the last answer
        List<AllocateStreamResponse> answers = new ArrayList<>();
        for (AllocateStreamRequest request : requests) {
          AllocateStreamResponse answer = read(call);
          if (answer == null || answer.getNumber() != request.getNumber()) {
            throw new IdallocException(
                Status.Code.INTERNAL, "request " + request.getNumber() + " has no answer");
          }
          if (errorOf(answer).code() == Status.Code.UNAVAILABLE) {
            throw errorOf(answer);
          }
          answers.add(answer);
        }
        retries.progress();
        return answers;
      } catch (IdallocException | StatusException | StatusRuntimeException e) {
        retries.await(IdallocException.of(e));
      } finally {
        call.cancel("done", null); // does nothing to a call that has ended
      }
    }
  }

  private static AllocateStreamRequest rangeOf(long number, String sequence, long count) {
    return AllocateStreamRequest.newBuilder()
        .setNumber(number) // the answer repeats it
        .setAllocateRange(
            AllocateRangeRequest.newBuilder().setSequence(sequence).setIdCount(count))
        .build();
  }

  /** The error of one request, with the code OK if there is none. */
  private static IdallocException errorOf(AllocateStreamResponse answer) {
    return IdallocException.of(StatusProto.toStatusRuntimeException(answer.getError()));
  }

  /** Repeats a request: with the same request_id it gets the same ids. */
  private void requestId() throws InterruptedException {
    String id = UUID.randomUUID().toString(); // of version 4
    AllocateRangeRequest request = rangeRequest().setRequestId(id).build();
    AllocateRangeResponse first = retried(() -> withDeadline().allocateRange(request));
    AllocateRangeResponse second =
        retried(
            () -> withDeadline().withOption(IssuedLog.IS_REPEATED, true).allocateRange(request));
    if (!first.getRange().equals(second.getRange())
        || first.getGeneration() != second.getGeneration()) {
      throw new IdallocException(
          Status.Code.INTERNAL, "a repeated request_id returned other ids; it was " + id);
    }
    Tally tally = new Tally("request-id");
    tally.add(check(first.getRange(), RANGE_SIZE));
    tally.print();
  }

  /** Receives ranges until the total is reached, over as many streams as that takes. */
  private void stream() throws InterruptedException {
    Tally tally = new Tally("stream");
    resume(
        tally,
        missing -> {
          StreamRangesRequest request =
              StreamRangesRequest.newBuilder()
                  .setSequence(options.sequence())
                  .setTotalIdCount(missing)
                  .build();
          return streams.streamRanges(request);
        },
        (StreamRangesResponse reply) ->
            tally.add(check(reply.getRange(), reply.getRange().getIdCount())));
    tally.print();
  }

  /** Receives document ids as runs, and expands them here. */
  private void docIds() throws InterruptedException {
    Tally tally = new Tally("doc-ids");
    resume(
        tally,
        missing -> {
          StreamDocIdsRequest request =
              StreamDocIdsRequest.newBuilder()
                  .setTotalIdCount(missing)
                  .setView(DocIdView.DOC_ID_VIEW_COMPACT) // the default view is the slowest
                  .build();
          return streams.streamDocIds(request);
        },
        (StreamDocIdsResponse reply) -> {
          for (DocIdRun run : reply.getRunsList()) {
            DocIds.expand(run, tally::add);
          }
        });
    tally.print();
  }

  private <Q, R> void resume(Tally tally, StreamStart<Q, R> start, Consumer<R> receiver)
      throws InterruptedException {
    while (tally.count < options.total()) {
      BlockingClientCall<Q, R> call = start.of(options.total() - tally.count);
      try {
        for (R reply = read(call); reply != null; reply = read(call)) {
          receiver.accept(reply);
          retries.progress();
        }
        if (tally.count != options.total()) {
          throw new IdallocException(
              Status.Code.INTERNAL,
              "the stream ended at " + tally.count + " of " + options.total() + " ids");
        }
      } catch (StatusException | StatusRuntimeException e) {
        if (tally.count < options.total()) {
          retries.await(IdallocException.of(e));
        }
      } finally {
        call.cancel("done", null); // does nothing to a call that has ended
      }
    }
  }

  private static <R> R read(BlockingClientCall<?, R> call)
      throws InterruptedException, StatusException {
    try {
      return call.read(Retries.LIMIT.toNanos(), TimeUnit.NANOSECONDS);
    } catch (TimeoutException e) {
      throw new IdallocException(
          Status.Code.ABORTED,
          "no message of the stream within " + Retries.LIMIT.toSeconds() + " s");
    }
  }

  /** Repeats a call that may be repeated until it succeeds, for longer than gRPC itself does. */
  private <R> R retried(Supplier<R> call) throws InterruptedException {
    while (true) {
      try {
        R reply = call.get();
        retries.progress();
        return reply;
      } catch (StatusRuntimeException e) {
        retries.await(IdallocException.of(e));
      }
    }
  }

  private AllocateRangeRequest.Builder rangeRequest() {
    return AllocateRangeRequest.newBuilder().setSequence(options.sequence()).setIdCount(RANGE_SIZE);
  }

  /** A deadline is a moment, not a duration: each call needs a new one. */
  private IdAllocatorServiceBlockingStub withDeadline() {
    return unary.withDeadlineAfter(CALL_TIMEOUT.toMillis(), TimeUnit.MILLISECONDS);
  }

  private static IdRange check(IdRange range, long count) {
    if (count < 1
        || range.getIdCount() != count
        || range.getStep() == 0
        || range.getFirstId() + (count - 1) * range.getStep() != range.getLastId()) {
      throw new IdallocException(
          Status.Code.INTERNAL, "invalid range: " + range.toString().replaceAll("\\s+", " "));
    }
    return range;
  }

  @FunctionalInterface
  private interface StreamStart<Q, R> {
    BlockingClientCall<Q, R> of(long missing);
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

    void add(IdRange range) {
      if (count == 0) {
        first = range.getFirstId();
      }
      last = range.getLastId();
      count += range.getIdCount();
    }

    void print() {
      System.out.println(way + ": " + count + " ids, " + first + ".." + last);
    }
  }
}
