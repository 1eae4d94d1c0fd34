package io.idalloc.examples.pool;

import com.google.protobuf.Any;
import com.google.protobuf.Message;
import com.google.rpc.BadRequest;
import com.google.rpc.ErrorInfo;
import com.google.rpc.RetryInfo;
import com.google.rpc.Status;
import io.grpc.StatusRuntimeException;
import io.grpc.protobuf.StatusProto;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionStage;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;

/** A sequence in memory. It answers at once, or when the test says so. */
final class FakeSource implements RangeSource {
  final BlockingQueue<Call> held = new LinkedBlockingQueue<>();
  final List<Long> sizes = new ArrayList<>();
  final List<RuntimeException> errors = new ArrayList<>();
  Duration ttl = Duration.ofSeconds(60);
  String period = "";
  long next = 1;
  long step = 1;
  boolean hold;

  /** A request without an answer yet. */
  record Call(CompletableFuture<AllocatedRange> future, AllocatedRange range) {
    void answer() {
      future.complete(range);
    }
  }

  @Override
  public synchronized CompletionStage<AllocatedRange> allocate(String sequence, long idCount) {
    sizes.add(idCount);
    CompletableFuture<AllocatedRange> future = new CompletableFuture<>();
    if (!errors.isEmpty()) {
      future.completeExceptionally(errors.remove(0));
      return future;
    }
    long last = next + (idCount - 1) * step;
    Call call = new Call(future, new AllocatedRange(next, last, step, idCount, ttl, period));
    next = last + step;
    if (hold) {
      held.add(call);
    } else {
      call.answer();
    }
    return future;
  }

  synchronized List<Long> sizes() {
    return List.copyOf(sizes);
  }

  /** Waits for the next request that is held. */
  Call held() throws InterruptedException {
    Call call = held.poll(10, TimeUnit.SECONDS);
    if (call == null) {
      throw new AssertionError("the pool sent no request");
    }
    return call;
  }

  static StatusRuntimeException error(io.grpc.Status.Code code, ErrorInfo info, Message... more) {
    Status.Builder status = Status.newBuilder().setCode(code.value()).setMessage("refused");
    status.addDetails(Any.pack(info.toBuilder().setDomain("idalloc").build()));
    for (Message each : more) {
      status.addDetails(Any.pack(each));
    }
    return StatusProto.toStatusRuntimeException(status.build());
  }

  static StatusRuntimeException quotaExceeded(Duration delay) {
    return error(
        io.grpc.Status.Code.RESOURCE_EXHAUSTED,
        ErrorInfo.newBuilder().setReason("QUOTA_EXCEEDED").build(),
        RetryInfo.newBuilder()
            .setRetryDelay(
                com.google.protobuf.Duration.newBuilder()
                    .setSeconds(delay.toSeconds())
                    .setNanos(delay.toNanosPart()))
            .build());
  }

  static StatusRuntimeException exhausted(long largest) {
    return error(
        io.grpc.Status.Code.OUT_OF_RANGE,
        ErrorInfo.newBuilder()
            .setReason("SEQUENCE_EXHAUSTED")
            .putMetadata("largest_range", Long.toString(largest))
            .build());
  }

  static StatusRuntimeException invalidCount() {
    return error(
        io.grpc.Status.Code.INVALID_ARGUMENT,
        ErrorInfo.newBuilder().setReason("INVALID_REQUEST").build(),
        BadRequest.newBuilder()
            .addFieldViolations(BadRequest.FieldViolation.newBuilder().setField("id_count"))
            .build());
  }

  static StatusRuntimeException unavailable() {
    return io.grpc.Status.UNAVAILABLE.withDescription("no server").asRuntimeException();
  }
}
