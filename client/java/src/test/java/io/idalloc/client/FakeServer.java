package io.idalloc.client;

import com.google.protobuf.Any;
import com.google.protobuf.Duration;
import com.google.rpc.ErrorInfo;
import com.google.rpc.RetryInfo;
import io.grpc.Grpc;
import io.grpc.InsecureServerCredentials;
import io.grpc.Metadata;
import io.grpc.Server;
import io.grpc.ServerBuilder;
import io.grpc.ServerCall;
import io.grpc.ServerCallHandler;
import io.grpc.ServerCredentials;
import io.grpc.ServerInterceptor;
import io.grpc.Status;
import io.grpc.protobuf.StatusProto;
import io.grpc.stub.StreamObserver;
import io.idalloc.v1.AllocateRangeRequest;
import io.idalloc.v1.AllocateRangeResponse;
import io.idalloc.v1.AllocateRangeResult;
import io.idalloc.v1.AllocateStreamRequest;
import io.idalloc.v1.AllocateStreamResponse;
import io.idalloc.v1.BatchAllocateRangesRequest;
import io.idalloc.v1.BatchAllocateRangesResponse;
import io.idalloc.v1.DocIdRun;
import io.idalloc.v1.GenerateDocIdRequest;
import io.idalloc.v1.GenerateDocIdResponse;
import io.idalloc.v1.IdAllocatorServiceGrpc;
import io.idalloc.v1.IdRange;
import io.idalloc.v1.StreamRangesRequest;
import io.idalloc.v1.StreamRangesResponse;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.util.List;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.ConcurrentLinkedQueue;
import java.util.concurrent.CopyOnWriteArrayList;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.atomic.AtomicLong;
import java.util.function.Consumer;

/** A server with one sequence, which fails as a test says. */
final class FakeServer implements AutoCloseable {
  private static final Metadata.Key<String> AUTHORIZATION =
      Metadata.Key.of("authorization", Metadata.ASCII_STRING_MARSHALLER);

  private final Server server;
  final int port;
  final AtomicLong lastValue = new AtomicLong();
  final List<AllocateRangeRequest> requests = new CopyOnWriteArrayList<>();
  final AtomicLong streams = new AtomicLong(); // opened by AllocateStream and StreamRanges
  /** The errors of the next calls. */
  final ConcurrentLinkedQueue<RuntimeException> failures = new ConcurrentLinkedQueue<>();
  /** Called instead of an answer to an AllocateRange, while it is not null. */
  volatile Consumer<StreamObserver<AllocateRangeResponse>> answer;
  /** How many answers a stream gives before it breaks; 0 for all. */
  volatile long answersOfAStream;
  /** Whether requests of AllocateStream wait in {@code held}. */
  volatile boolean holds;
  final BlockingQueue<AllocateStreamRequest> held = new LinkedBlockingQueue<>();
  /** The token that the server accepts; null for any. */
  volatile String accepted;
  volatile long ttlSeconds = 180;

  FakeServer() {
    this(0, InsecureServerCredentials.create());
  }

  FakeServer(int port, ServerCredentials credentials) {
    ServerBuilder<?> builder = Grpc.newServerBuilderForPort(port, credentials);
    try {
      server = builder.addService(new Service()).intercept(new Tokens()).build().start();
    } catch (IOException e) {
      throw new UncheckedIOException(e);
    }
    this.port = server.getPort();
  }

  String address() {
    return "127.0.0.1:" + port;
  }

  @Override
  public void close() {
    server.shutdownNow();
    try {
      server.awaitTermination();
    } catch (InterruptedException e) {
      throw new AssertionError(e);
    }
  }

  static RuntimeException error(Status.Code code, String reason, double retrySeconds, String... metadata) {
    return StatusProto.toStatusRuntimeException(status(code, reason, retrySeconds, metadata));
  }

  static com.google.rpc.Status status(Status.Code code, String reason, double retrySeconds, String... metadata) {
    ErrorInfo.Builder info = ErrorInfo.newBuilder().setDomain("idalloc").setReason(reason);
    for (int i = 0; i < metadata.length; i += 2) {
      info.putMetadata(metadata[i], metadata[i + 1]);
    }
    var status =
        com.google.rpc.Status.newBuilder()
            .setCode(code.value())
            .setMessage("planted")
            .addDetails(Any.pack(info.build()));
    if (retrySeconds > 0) {
      Duration delay = Duration.newBuilder().setNanos((int) (retrySeconds * 1e9)).build();
      status.addDetails(Any.pack(RetryInfo.newBuilder().setRetryDelay(delay).build()));
    }
    return status.build();
  }

  /** Answers each AllocateRange after a time. */
  void delay(double seconds) {
    answer =
        reply -> {
          reply.onNext(range(1));
          Clock.SYSTEM.after((long) (seconds * 1e9), reply::onCompleted);
        };
  }

  AllocateRangeResponse range(long count) {
    long last = lastValue.addAndGet(count);
    IdRange.Builder ids = IdRange.newBuilder().setFirstId(last - count + 1).setLastId(last);
    return AllocateRangeResponse.newBuilder()
        .setRange(ids.setStep(1).setIdCount(count))
        .setTtl(Duration.newBuilder().setSeconds(ttlSeconds))
        .build();
  }

  private final class Tokens implements ServerInterceptor {
    @Override
    public <Q, R> ServerCall.Listener<Q> interceptCall(
        ServerCall<Q, R> call, Metadata headers, ServerCallHandler<Q, R> next) {
      if (accepted != null && !("Bearer " + accepted).equals(headers.get(AUTHORIZATION))) {
        call.close(Status.UNAUTHENTICATED.withDescription("another token"), new Metadata());
        return new ServerCall.Listener<>() {};
      }
      return next.startCall(call, headers);
    }
  }

  private final class Service extends IdAllocatorServiceGrpc.IdAllocatorServiceImplBase {
    @Override
    public void allocateRange(
        AllocateRangeRequest request, StreamObserver<AllocateRangeResponse> reply) {
      requests.add(request);
      RuntimeException failure = failures.poll();
      if (failure != null) {
        reply.onError(failure);
      } else if (answer != null) {
        answer.accept(reply);
      } else {
        reply.onNext(range(request.getIdCount()));
        reply.onCompleted();
      }
    }

    @Override
    public void batchAllocateRanges(
        BatchAllocateRangesRequest request, StreamObserver<BatchAllocateRangesResponse> reply) {
      BatchAllocateRangesResponse.Builder results = BatchAllocateRangesResponse.newBuilder();
      for (AllocateRangeRequest each : request.getRequestsList()) {
        AllocateRangeResult.Builder result = AllocateRangeResult.newBuilder();
        if (each.getSequence().isEmpty()) {
          result.setError(status(Status.Code.INVALID_ARGUMENT, Reason.INVALID_REQUEST, 0));
        } else {
          result.setResponse(range(each.getIdCount()));
        }
        results.addResults(result);
      }
      reply.onNext(results.build());
      reply.onCompleted();
    }

    @Override
    public void streamRanges(
        StreamRangesRequest request, StreamObserver<StreamRangesResponse> reply) {
      streams.incrementAndGet();
      long sent = 0;
      for (long left = request.getTotalIdCount(); left > 0; ) {
        if (answersOfAStream > 0 && ++sent > answersOfAStream) {
          reply.onError(Status.UNAVAILABLE.withDescription("planted").asRuntimeException());
          return;
        }
        long chunk = request.getChunkIdCount() == 0 ? 7 : request.getChunkIdCount();
        long count = Math.min(left, chunk);
        AllocateRangeResponse range = range(count);
        reply.onNext(
            StreamRangesResponse.newBuilder()
                .setRange(range.getRange())
                .setTtl(range.getTtl())
                .build());
        left -= count;
      }
      reply.onCompleted();
    }

    @Override
    public void generateDocId(
        GenerateDocIdRequest request, StreamObserver<GenerateDocIdResponse> reply) {
      reply.onNext(docIds(request));
      reply.onCompleted();
    }

    private GenerateDocIdResponse docIds(GenerateDocIdRequest request) {
      DocIdRun.Builder run = DocIdRun.newBuilder().setFirstDocId("00006b09b6aa00000000000000ff");
      run.setStep(1).setIdCount(request.getIdCount());
      return GenerateDocIdResponse.newBuilder().addRuns(run).build();
    }

    @Override
    public StreamObserver<AllocateStreamRequest> allocateStream(
        StreamObserver<AllocateStreamResponse> reply) {
      streams.incrementAndGet();
      return new StreamObserver<>() {
        private long answers;

        @Override
        public void onNext(AllocateStreamRequest request) {
          if (holds) {
            held.add(request);
            return;
          }
          if (answersOfAStream > 0 && ++answers > answersOfAStream) {
            if (answers == answersOfAStream + 1) {
              reply.onError(Status.UNAVAILABLE.withDescription("planted").asRuntimeException());
            }
            return;
          }
          AllocateStreamResponse.Builder response =
              AllocateStreamResponse.newBuilder().setNumber(request.getNumber());
          RuntimeException failure = failures.poll();
          if (failure != null) {
            response.setError(StatusProto.fromThrowable(failure));
          } else if (request.hasGenerateDocId()) {
            response.setGenerateDocId(docIds(request.getGenerateDocId()));
          } else {
            requests.add(request.getAllocateRange());
            response.setAllocateRange(range(request.getAllocateRange().getIdCount()));
          }
          reply.onNext(response.build());
        }

        @Override
        public void onError(Throwable error) {}

        @Override
        public void onCompleted() {
          reply.onCompleted();
        }
      };
    }
  }
}
