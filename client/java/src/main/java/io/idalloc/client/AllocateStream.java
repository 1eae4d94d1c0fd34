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
import java.util.Optional;
import java.util.OptionalLong;
import java.util.Set;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import java.util.concurrent.locks.ReentrantLock;
import java.util.function.Function;
import java.util.function.ToLongFunction;

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

  private final Calls calls;
  private final Clock clock;

  // All requests without a result, also those that wait for their retry.
  private final Set<CompletableFuture<?>> unanswered = ConcurrentHashMap.newKeySet();

  private final ReentrantLock lock = new ReentrantLock();
  // The lock guards what follows.
  private final Deque<Pending> sent = new ArrayDeque<>(); // on the open stream, without an answer
  private final Deque<Pending> waiting = new ArrayDeque<>(); // to be sent
  private final Rounds rounds;
  private long number; // of the last request that was sent
  private Attempt open; // or null
  private int abandoned; // requests whose callers left since the last look
  private boolean isWaiting; // for the next attempt
  private IdallocException broken; // why the last stream ended; null since its next answer
  private boolean isClosed;

  AllocateStream(Calls calls, Clock clock) {
    this.calls = calls;
    this.clock = clock;
    this.rounds = calls.rounds(clock);
    calls.join(this);
  }

  /**
   * Allocates a range, as {@link IdallocClient#allocateRange(RangeRequest)}.
   *
   * @param request the request
   * @return the range; its cancellation leaves the ids as a gap
   */
  public CompletableFuture<AllocatedRange> allocateRangeAsync(RangeRequest request) {
    AllocateStreamRequest.Builder message = AllocateStreamRequest.newBuilder();
    try {
      // A request that the server cannot decode would end the stream for all.
      message.setAllocateRange(Replies.message(request));
    } catch (IdallocException e) {
      return CompletableFuture.failedFuture(e);
    }
    return send(
        message,
        request.sequence(),
        answer ->
            Replies.range(
                answer.getAllocateRange(), request.count(), request.count(), request.withTexts()),
        AllocatedRange::count);
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
    AllocateStreamRequest.Builder message = AllocateStreamRequest.newBuilder();
    try {
      message.setGenerateDocId(Replies.docIdRequest(count));
    } catch (IdallocException e) {
      return CompletableFuture.failedFuture(e);
    }
    return send(
        message,
        "",
        answer ->
            IdallocClient.docIds(
                Replies.runs(answer.getGenerateDocId().getRunsList(), count, count, null)),
        List::size);
  }

  private <T> CompletableFuture<T> send(
      AllocateStreamRequest.Builder message,
      String sequence,
      Function<AllocateStreamResponse, T> convert,
      ToLongFunction<T> countIds) {
    CompletableFuture<T> result = new CompletableFuture<>();
    long begun = clock.nanos();
    long deadline = begun + calls.timeout().toNanos();
    Pending pending =
        new Pending(message, deadline, result, answer -> result.complete(convert.apply(answer)));
    unanswered.add(result);
    result.orTimeout(calls.timeout().toNanos(), TimeUnit.NANOSECONDS);
    CompletableFuture<T> returned = new CompletableFuture<>();
    result.whenComplete(
        (value, error) -> {
          unanswered.remove(result);
          Optional<IdallocException> failure = Optional.ofNullable(error).map(this::late);
          calls.observe(
              IdAllocatorServiceGrpc.getAllocateStreamMethod(),
              sequence,
              value == null ? 0 : countIds.applyAsLong(value),
              begun,
              failure);
          if (failure.isPresent()) {
            abandoned();
            returned.completeExceptionally(failure.get());
          } else {
            returned.complete(value);
          }
        });
    returned.whenComplete((value, error) -> result.cancel(true)); // its caller left
    enqueue(pending);
    return Calls.handOver(returned);
  }

  /** Converts an error; a caller whose time is over gets the last one since an answer. */
  private IdallocException late(Throwable error) {
    if (!(error instanceof TimeoutException)) {
      return calls.failure(error);
    }
    lock.lock();
    try {
      return broken != null ? broken.copy() : IdallocException.timedOut("no answer in time");
    } finally {
      lock.unlock();
    }
  }

  private void enqueue(Pending pending) {
    lock.lock();
    try {
      if (isClosed) {
        pending.result.completeExceptionally(IdallocException.closed("stream"));
        return;
      }
      waiting.add(pending);
      if (open == null && !isWaiting) {
        open = new Attempt();
      }
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

  /** Returns how many requests have no result, for tests. */
  int requests() {
    return unanswered.size();
  }

  /** Returns how many requests wait to be sent, for tests. */
  int waitingRequests() {
    lock.lock();
    try {
      return waiting.size();
    } finally {
      lock.unlock();
    }
  }

  /** Sends what may be sent now. The caller holds the lock. */
  private void sendWaiting() {
    while (open != null && sent.size() < MAX_IN_FLIGHT && !waiting.isEmpty()) {
      Pending pending = waiting.remove();
      long left = pending.deadline - clock.nanos();
      if (pending.result.isDone() || left <= 0) {
        continue; // its caller has left
      }
      sent.add(pending);
      pending.sentAt = clock.nanos();
      pending.message.setNumber(++number).setTimeout(toMessage(left));
      open.streaming.call.sendMessage(pending.message.build());
      open.watch();
    }
  }

  private static Duration toMessage(long nanos) {
    long second = TimeUnit.SECONDS.toNanos(1);
    return Duration.newBuilder()
        .setSeconds(nanos / second)
        .setNanos((int) (nanos % second))
        .build();
  }

  /** Gives an answer to the oldest request. */
  private void answered(Attempt attempt, AllocateStreamResponse answer) {
    Pending pending;
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
      return;
    }
    try {
      pending.answer.apply(answer);
    } catch (RuntimeException e) {
      pending.result.completeExceptionally(e);
    }
  }

  /** Sends a request again, or gives its error to its caller. */
  private void failed(Pending pending, IdallocException error) {
    // The limit of a stream's ids is no failure: other callers use it up.
    boolean isFull =
        error.reason().equals(Reason.QUOTA_EXCEEDED)
            && "stream".equals(error.metadata().get("subject"));
    if (!isFull
        && (error.code() != Status.Code.UNAVAILABLE || ++pending.failures >= MAX_ATTEMPTS)) {
      pending.result.completeExceptionally(error);
      return;
    }
    OptionalLong delay = pending.backoff.delay(error);
    long wait = Math.min(delay.orElse(Long.MAX_VALUE), MAX_DELAY);
    if (delay.isEmpty() || pending.deadline - clock.nanos() <= wait) {
      pending.result.completeExceptionally(error);
    } else {
      clock.after(wait, () -> enqueue(pending));
    }
  }

  /** Opens another stream for the requests without an answer, or gives them its error. */
  private void ended(Attempt attempt, IdallocException error) {
    List<Pending> failed = new ArrayList<>();
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
      if (!isClosed && open == null && !waiting.isEmpty()) {
        open = new Attempt();
        sendWaiting();
      }
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
  private static final class Pending {
    final AllocateStreamRequest.Builder message;
    final long deadline;
    final CompletableFuture<?> result;
    final Function<AllocateStreamResponse, Boolean> answer;
    int failures;
    long sentAt;
    final Rounds.Backoff backoff = new Rounds.Backoff();

    Pending(
        AllocateStreamRequest.Builder message,
        long deadline,
        CompletableFuture<?> result,
        Function<AllocateStreamResponse, Boolean> answer) {
      this.message = message;
      this.deadline = deadline;
      this.result = result;
      this.answer = answer;
    }
  }

  /** One stream. */
  private final class Attempt extends ClientCall.Listener<AllocateStreamResponse> {
    final Calls.Attempt<AllocateStreamRequest, AllocateStreamResponse> streaming;
    private boolean isWatched; // whether a look at the oldest request is due

    Attempt() {
      // Not in a caller's context, whose end would cancel the stream of all.
      Context outer = Context.ROOT.attach();
      try {
        streaming =
            calls.new Attempt<>(
                rounds.next(), IdAllocatorServiceGrpc.getAllocateStreamMethod(), CallOptions.DEFAULT);
        streaming.call.start(this, new Metadata());
      } finally {
        Context.ROOT.detach(outer);
      }
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
        if (this != open || sent.isEmpty()) {
          return;
        }
        if (clock.nanos() - sent.peek().sentAt >= calls.longestOutage) {
          streaming.call.cancel("the server was silent for 60 s", null);
        } else {
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
