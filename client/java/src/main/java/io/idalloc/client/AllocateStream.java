package io.idalloc.client;

import com.google.protobuf.Duration;
import io.grpc.CallOptions;
import io.grpc.ClientCall;
import io.grpc.Context;
import io.grpc.Metadata;
import io.grpc.Status;
import io.idalloc.v1.AllocateStreamRequest;
import io.idalloc.v1.AllocateStreamResponse;
import io.idalloc.v1.IdAllocatorServiceGrpc;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.Deque;
import java.util.List;
import java.util.OptionalLong;
import java.util.Set;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.locks.ReentrantLock;
import java.util.function.Function;

/**
 * Makes many calls over one stream ({@code AllocateStream}), which costs client and server less than
 * unary calls. Threads share it: their requests are in flight together, and the answers come in the
 * order of the requests. One that waits for the store delays the answers after it. At most 500
 * requests are on their way, and those after them wait in the process.
 *
 * <p>The server limits the ids of a stream's requests without an answer to ten times its {@code
 * max_ids_per_call}. A request beyond that is sent again, within the client's timeout.
 *
 * <p>The stream opens with the first request. If it breaks, its server stops or is silent for 60 s,
 * the requests without an answer are sent again over a new one: the ids of a lost answer are a gap,
 * unless the request has a request id. A request whose time is over gets the error of the break.
 *
 * <p>Functions of the futures run on threads of the package, never on that of the stream.
 */
public final class AllocateStream implements AutoCloseable {
  /** The most requests without an answer; the server's limit is 1,000. */
  static final int MAX_IN_FLIGHT = 500;

  /** How often a request is sent because the server or its store is unavailable, as a unary call. */
  static final int MAX_ATTEMPTS = 5;

  /** The longest wait before a request is sent again. */
  private static final long MAX_DELAY = TimeUnit.SECONDS.toNanos(5);

  private static final long SECOND = TimeUnit.SECONDS.toNanos(1);

  private final Calls calls;
  private final Clock clock;

  // All requests without a result, also those that wait for their retry.
  final Set<CompletableFuture<?>> unanswered = ConcurrentHashMap.newKeySet();

  private final ReentrantLock lock = new ReentrantLock();
  // The lock guards what follows.
  private final Deque<Pending<?>> sent = new ArrayDeque<>(); // on the open stream, unanswered
  final Deque<Pending<?>> waiting = new ArrayDeque<>(); // to be sent
  private final Rounds rounds;
  private long number; // of the last request that was sent
  private Attempt open; // or null
  private int abandoned; // requests whose callers left since the last look
  private boolean isWaiting; // for the next attempt
  private volatile IdallocException broken; // why the last stream ended; null since its next answer
  private boolean isClosed;

  AllocateStream(Calls calls, Clock clock) {
    this.calls = calls;
    this.clock = clock;
    this.rounds = calls.rounds(clock);
    calls.join(this, this::close);
  }

  /**
   * Allocates a range, as {@link IdallocClient#allocateRange(RangeRequest)}.
   *
   * @param request the request
   * @return the range; its cancellation leaves the ids as a gap
   */
  public CompletableFuture<AllocatedRange> allocateRangeAsync(RangeRequest request) {
    // A request that the server cannot decode would end the stream for all.
    return send(
        new Calls.Unary<>(
            IdAllocatorServiceGrpc.getAllocateStreamMethod(),
            request.sequence(),
            () ->
                AllocateStreamRequest.newBuilder()
                    .setAllocateRange(Replies.message(request))
                    .build(),
            answer -> Replies.range(answer.getAllocateRange(), request),
            AllocatedRange::count));
  }

  /**
   * Allocates a range, as {@link IdallocClient#allocateRange(String, long)}.
   *
   * @param sequence the name of the sequence
   * @param count how many ids
   * @return the range
   * @throws IdallocException the call failed
   */
  public AllocatedRange allocateRange(String sequence, long count) {
    return Calls.await(allocateRangeAsync(RangeRequest.of(sequence, count)));
  }

  /**
   * Generates document ids, as {@link IdallocClient#generateDocIds}.
   *
   * @param count how many
   * @return the ids; its cancellation leaves them as a gap
   */
  public CompletableFuture<List<String>> generateDocIdsAsync(long count) {
    return send(
        new Calls.Unary<>(
            IdAllocatorServiceGrpc.getAllocateStreamMethod(),
            "",
            () ->
                AllocateStreamRequest.newBuilder()
                    .setGenerateDocId(Replies.docIdRequest(count))
                    .build(),
            answer -> Replies.docIds(answer.getGenerateDocId(), count),
            List::size));
  }

  private <T> CompletableFuture<T> send(
      Calls.Unary<AllocateStreamRequest, AllocateStreamResponse, T> unary) {
    Pending<T> pending;
    try {
      pending = new Pending<>(unary, clock.nanos() + calls.timeout.toNanos());
    } catch (IdallocException e) {
      return CompletableFuture.failedFuture(e);
    }
    CompletableFuture<T> result = pending.result;
    unanswered.add(result);
    calls.observe(unary, result);
    result.whenComplete(
        (value, error) -> {
          unanswered.remove(result);
          if (error != null) {
            abandoned();
          }
        });
    Calls.limit(result, calls.timeout, () -> broken, "no answer in time");
    enqueue(pending);
    return Calls.handOver(result);
  }

  private void enqueue(Pending<?> pending) {
    lock.lock();
    try {
      if (isClosed) {
        pending.result.completeExceptionally(IdallocException.closed("stream"));
        return;
      }
      waiting.add(pending);
      sendWaiting();
    } finally {
      lock.unlock();
    }
  }

  /** Forgets the requests of callers that left, once they are as many as the others. */
  private void abandoned() {
    lock.lock();
    try {
      if (2 * ++abandoned > waiting.size()) {
        waiting.removeIf(each -> each.result.isDone());
        abandoned = 0;
      }
    } finally {
      lock.unlock();
    }
  }

  /** Sends what may be sent now, over a stream that it opens. The caller holds the lock. */
  private void sendWaiting() {
    if (open == null && !isWaiting && !waiting.isEmpty()) {
      // Not in a caller's context, whose end would cancel the stream of all.
      Context.ROOT.run(() -> open = new Attempt());
    }
    while (open != null && sent.size() < MAX_IN_FLIGHT && !waiting.isEmpty()) {
      Pending<?> pending = waiting.remove();
      long left = pending.deadline - clock.nanos();
      if (pending.result.isDone() || left <= 0) {
        continue; // its caller has left
      }
      sent.add(pending);
      pending.sentAt = clock.nanos();
      Duration.Builder timeout = pending.message.setNumber(++number).getTimeoutBuilder();
      timeout.setSeconds(left / SECOND).setNanos((int) (left % SECOND));
      open.streaming.call.sendMessage(pending.message.build());
      open.watch();
    }
  }

  /** Gives an answer to the oldest request. */
  private void answered(Attempt attempt, AllocateStreamResponse answer) {
    Pending<?> pending;
    lock.lock();
    try {
      if (attempt != open) {
        return;
      }
      if (sent.isEmpty() || answer.getNumber() != number - sent.size() + 1) {
        attempt.streaming.call.cancel("an answer without a request", null);
        return;
      }
      pending = sent.remove();
      rounds.over();
      broken = null;
      sendWaiting();
    } finally {
      lock.unlock();
    }
    if (answer.hasError()) {
      failed(pending, IdallocException.of(answer.getError()));
    } else {
      pending.answered(answer);
    }
  }

  /** Sends a request again, or gives its error to its caller. */
  private void failed(Pending<?> pending, IdallocException error) {
    // The limit of a stream's ids is no failure: other callers use it up.
    boolean isFull =
        error.reason().equals(Reason.QUOTA_EXCEEDED)
            && "stream".equals(error.metadata().get("subject"));
    boolean isFinal =
        !isFull && (error.code() != Status.Code.UNAVAILABLE || ++pending.failures >= MAX_ATTEMPTS);
    OptionalLong delay = isFinal ? OptionalLong.empty() : pending.backoff.delay(error);
    long wait = Math.min(delay.orElse(Long.MAX_VALUE), MAX_DELAY);
    if (delay.isEmpty() || pending.deadline - clock.nanos() <= wait) {
      pending.result.completeExceptionally(error);
    } else {
      clock.after(wait, () -> enqueue(pending));
    }
  }

  /** Opens another stream for the requests without an answer, or gives them its error. */
  private void ended(Attempt attempt, IdallocException error) {
    List<Pending<?>> failed = new ArrayList<>();
    boolean isReplaced = attempt.streaming.isReplaced(error); // it may read the file
    lock.lock();
    try {
      if (attempt != open) {
        return;
      }
      open = null;
      broken = error;
      while (!sent.isEmpty()) {
        waiting.addFirst(sent.removeLast());
      }
      waiting.removeIf(each -> each.result.isDone());
      if (waiting.isEmpty()) {
        return;
      }
      OptionalLong delay = rounds.delay(error, isReplaced);
      if (delay.isPresent()) {
        isWaiting = true;
        clock.after(delay.getAsLong(), this::reopen);
      } else {
        failed.addAll(waiting);
        waiting.clear();
      }
    } finally {
      lock.unlock();
    }
    failed.forEach(each -> each.result.completeExceptionally(error));
  }

  private void reopen() {
    lock.lock();
    try {
      isWaiting = false;
      waiting.removeIf(each -> each.result.isDone());
      sendWaiting();
    } finally {
      lock.unlock();
    }
  }

  /** Ends the stream. Calls that wait for an answer end with {@link Reason#CLOSED}. */
  @Override
  public void close() {
    Attempt attempt;
    lock.lock();
    try {
      isClosed = true;
      sent.clear();
      waiting.clear();
      attempt = open;
      open = null;
    } finally {
      lock.unlock();
    }
    calls.leave(this);
    if (attempt != null) {
      attempt.streaming.call.cancel("the program closed the stream", null);
    }
    unanswered.forEach(each -> each.completeExceptionally(IdallocException.closed("stream")));
  }

  /** A request without an answer. */
  private static final class Pending<T> {
    final CompletableFuture<T> result = new CompletableFuture<>();
    final AllocateStreamRequest.Builder message;
    final long deadline;
    int failures;
    long sentAt;
    final Rounds.Backoff backoff = new Rounds.Backoff();
    private final Function<AllocateStreamResponse, T> convert;

    Pending(Calls.Unary<AllocateStreamRequest, AllocateStreamResponse, T> unary, long deadline) {
      this.message = unary.request().get().toBuilder();
      this.deadline = deadline;
      this.convert = unary.convert();
    }

    void answered(AllocateStreamResponse answer) {
      try {
        result.complete(convert.apply(answer));
      } catch (RuntimeException e) {
        result.completeExceptionally(e);
      }
    }
  }

  /** One stream. */
  private final class Attempt extends ClientCall.Listener<AllocateStreamResponse> {
    final Calls.Attempt<AllocateStreamRequest, AllocateStreamResponse> streaming;
    private boolean isWatched; // whether a look at the oldest request is due

    Attempt() {
      streaming =
          calls.new Attempt<>(
              rounds.next(), IdAllocatorServiceGrpc.getAllocateStreamMethod(), CallOptions.DEFAULT);
      streaming.call.start(this, new Metadata());
      streaming.call.request(MAX_IN_FLIGHT);
    }

    /** Ends the stream if its oldest request has no answer for 60 s. The caller holds the lock. */
    void watch() {
      if (isWatched || sent.isEmpty()) {
        return;
      }
      isWatched = true;
      long due = sent.peek().sentAt + calls.longestOutage - clock.nanos();
      clock.after(Math.max(0, due), this::look);
    }

    private void look() {
      lock.lock();
      try {
        isWatched = false;
        Pending<?> oldest = this == open ? sent.peek() : null;
        if (oldest != null && clock.nanos() - oldest.sentAt >= calls.longestOutage) {
          streaming.call.cancel("the server was silent for 60 s", null);
        } else if (oldest != null) {
          watch();
        }
      } finally {
        lock.unlock();
      }
    }

    @Override
    public void onMessage(AllocateStreamResponse message) {
      answered(this, message);
      streaming.call.request(1);
    }

    @Override
    public void onClose(Status status, Metadata trailers) {
      Status ended = status.isOk() ? Status.UNAVAILABLE.withDescription("the stream ended") : status;
      ended(this, streaming.failure(ended.asRuntimeException(trailers)));
    }
  }
}
