package io.idalloc.examples.pool;

import io.grpc.Channel;
import io.grpc.Context;
import io.grpc.stub.StreamObserver;
import io.idalloc.v1.AllocateRangeRequest;
import io.idalloc.v1.AllocateRangeResponse;
import io.idalloc.v1.IdAllocatorServiceGrpc;
import io.idalloc.v1.IdRange;
import java.time.Duration;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionStage;
import java.util.concurrent.TimeUnit;

/** Allocates ranges by AllocateRange. Threads may share it. */
public final class GrpcRangeSource implements RangeSource {
  private final IdAllocatorServiceGrpc.IdAllocatorServiceStub stub;
  private final Duration timeout;

  /**
   * @param timeout the deadline of each call, with its retries
   */
  public GrpcRangeSource(Channel channel, Duration timeout) {
    this.stub = IdAllocatorServiceGrpc.newStub(channel);
    this.timeout = timeout;
  }

  @Override
  public CompletionStage<AllocatedRange> allocate(String sequence, long idCount) {
    AllocateRangeRequest request =
        AllocateRangeRequest.newBuilder().setSequence(sequence).setIdCount(idCount).build();
    Reply reply = new Reply();
    // Not in the caller's context: a handler of a gRPC service would cancel the call when it ends,
    // and limit it to its own deadline. The range is for all callers of the pool.
    Context.ROOT.run(
        () ->
            stub.withDeadlineAfter(timeout.toNanos(), TimeUnit.NANOSECONDS)
                .allocateRange(request, reply));
    return reply.range;
  }

  private static final class Reply implements StreamObserver<AllocateRangeResponse> {
    final CompletableFuture<AllocatedRange> range = new CompletableFuture<>();

    @Override
    public void onNext(AllocateRangeResponse response) {
      IdRange ids = response.getRange();
      Duration ttl =
          Duration.ofSeconds(response.getTtl().getSeconds(), response.getTtl().getNanos());
      range.complete(
          new AllocatedRange(
              ids.getFirstId(),
              ids.getLastId(),
              ids.getStep(),
              ids.getIdCount(),
              ttl,
              response.getPeriod()));
    }

    @Override
    public void onError(Throwable error) {
      range.completeExceptionally(IdallocException.of(error));
    }

    @Override
    public void onCompleted() {
      // gRPC reports a unary call without a reply as an error, so the range has arrived.
    }
  }
}
