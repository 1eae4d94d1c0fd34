package io.idalloc.client;

import io.grpc.CallOptions;
import io.grpc.Channel;
import io.grpc.ClientCall;
import io.grpc.ClientInterceptor;
import io.grpc.ClientInterceptors;
import io.grpc.Deadline;
import io.grpc.ManagedChannel;
import io.grpc.MethodDescriptor;
import io.grpc.Status;
import io.grpc.stub.ClientCalls;
import io.grpc.stub.StreamObserver;
import java.time.Duration;
import java.util.Optional;
import java.util.Set;
import java.util.concurrent.CancellationException;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionException;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import java.util.function.Consumer;
import java.util.function.Function;
import java.util.function.ToLongFunction;

/** Calls over a channel: deadlines, the token, errors, events, and their end with the client. */
final class Calls implements AutoCloseable {
  private final Channel channel;
  private final ManagedChannel owned; // null if the channel belongs to the caller
  private final String target; // for errors; empty if unknown
  private final Token token; // null without
  private final Duration timeout;
  private final Consumer<CallEvent> observer;
  private final Set<AutoCloseable> open = ConcurrentHashMap.newKeySet(); // ended by close
  private volatile boolean isClosed;
  private volatile boolean hasAnswered;

  Calls(
      Channel channel,
      ManagedChannel owned,
      String target,
      Token token,
      Duration timeout,
      Consumer<CallEvent> observer) {
    this.channel = channel;
    this.owned = owned;
    this.target = target;
    this.token = token;
    this.timeout = timeout;
    this.observer = observer;
  }

  /** Returns the channel, whose calls send the token. */
  Channel channel() {
    if (token == null) {
      return channel;
    }
    return ClientInterceptors.intercept(
        channel,
        new ClientInterceptor() {
          @Override
          public <Q, R> ClientCall<Q, R> interceptCall(
              MethodDescriptor<Q, R> method, CallOptions options, Channel next) {
            return next.newCall(method, options.withCallCredentials(token.new Bearer()));
          }
        });
  }

  Duration timeout() {
    return timeout;
  }

  boolean isClosed() {
    return isClosed;
  }

  boolean hasAnswered() {
    return hasAnswered;
  }

  /** Records that a server has answered. */
  void answered() {
    hasAnswered = true;
  }

  /** Makes gRPC connect again now: its own backoff grows to two minutes. */
  void reconnect() {
    if (owned != null) {
      owned.resetConnectBackoff();
    }
  }

  /** Ends a part of the client with it, until {@code leave}. */
  void join(AutoCloseable part) {
    open.add(part);
    if (isClosed) { // the client was closed meanwhile
      close(part);
    }
  }

  void leave(AutoCloseable part) {
    open.remove(part);
  }

  private static void close(AutoCloseable part) {
    try {
      part.close();
    } catch (Exception e) {
      throw new AssertionError(e); // none of them throws
    }
  }

  @Override
  public void close() {
    isClosed = true;
    open.forEach(Calls::close);
    if (owned != null) {
      owned.shutdownNow();
    }
  }

  /** The credentials and the call of one attempt. */
  private record Attempt<Q, R>(ClientCall<Q, R> call, Optional<Token.Bearer> bearer) {}

  private <Q, R> Attempt<Q, R> attempt(MethodDescriptor<Q, R> method, Deadline deadline) {
    CallOptions options = CallOptions.DEFAULT;
    if (deadline != null) {
      options = options.withDeadline(deadline);
    }
    if (token == null) {
      return new Attempt<>(channel.newCall(method, options), Optional.empty());
    }
    Token.Bearer bearer = token.new Bearer();
    options = options.withCallCredentials(bearer);
    return new Attempt<>(channel.newCall(method, options), Optional.of(bearer));
  }

  /**
   * Makes a unary call. The future gets the converted reply, or an IdallocException; its
   * cancellation cancels the call.
   */
  <Q, R, T> CompletableFuture<T> unary(
      MethodDescriptor<Q, R> method,
      Q request,
      String sequence,
      Function<R, T> convert,
      ToLongFunction<T> countIds) {
    long begun = System.nanoTime();
    CompletableFuture<T> result = new CompletableFuture<>();
    if (isClosed) {
      result.completeExceptionally(IdallocException.closed("client"));
      return result;
    }
    AutoCloseable part =
        () -> result.completeExceptionally(IdallocException.closed("client"));
    join(part);
    result.whenComplete(
        (value, error) -> {
          leave(part);
          Optional<IdallocException> failure =
              error == null ? Optional.empty() : Optional.of(failure(error));
          observe(method, sequence, value == null ? 0 : countIds.applyAsLong(value), begun, failure);
        });
    send(method, request, Deadline.after(timeout.toNanos(), TimeUnit.NANOSECONDS), result, convert);
    return result;
  }

  private <Q, R, T> void send(
      MethodDescriptor<Q, R> method,
      Q request,
      Deadline deadline,
      CompletableFuture<T> result,
      Function<R, T> convert) {
    if (result.isDone()) { // cancelled or closed meanwhile
      return;
    }
    Attempt<Q, R> attempt = attempt(method, deadline);
    ClientCalls.asyncUnaryCall(
        attempt.call,
        request,
        new StreamObserver<R>() {
          private R reply;

          @Override
          public void onNext(R message) {
            reply = message;
          }

          @Override
          public void onError(Throwable error) {
            IdallocException failure = failure(error);
            if (failure.reason().equals(Reason.SERVER_UNREACHABLE)) {
              reconnect(); // or the next calls fail until gRPC connects again
            }
            if (isReplaced(attempt, failure) && !result.isDone()) {
              send(method, request, deadline, result, convert);
            } else {
              result.completeExceptionally(failure);
            }
          }

          @Override
          public void onCompleted() { // gRPC has checked that there is a reply
            answered();
            try {
              result.complete(convert.apply(reply));
            } catch (RuntimeException e) {
              result.completeExceptionally(e);
            }
          }
        });
    // Only once the call has started: gRPC starts no call that was cancelled before.
    result.whenComplete(
        (value, error) -> {
          if (error != null) {
            attempt.call.cancel("the caller left", error);
          }
        });
  }

  private static boolean isReplaced(Attempt<?, ?> attempt, IdallocException failure) {
    return failure.code() == Status.Code.UNAUTHENTICATED
        && attempt.bearer.isPresent()
        && attempt.bearer.get().isReplaced();
  }

  /** A call that streams, and whether its error may be one of a replaced token. */
  final class Streaming<Q, R> {
    private final Attempt<Q, R> attempt;

    Streaming(MethodDescriptor<Q, R> method) {
      attempt = attempt(method, null);
    }

    ClientCall<Q, R> call() {
      return attempt.call;
    }

    /** Whether another attempt would send another token. */
    boolean isReplaced(IdallocException failure) {
      return Calls.isReplaced(attempt, failure);
    }
  }

  /** Converts the error of a call that its caller did not end. */
  IdallocException failure(Throwable error) {
    Throwable cause =
        error instanceof CompletionException || error instanceof ExecutionException
            ? error.getCause()
            : error;
    if (cause instanceof CancellationException) {
      return IdallocException.of(
          Reason.CANCELLED, Status.Code.CANCELLED, "the caller cancelled the call");
    }
    if (cause instanceof TimeoutException) {
      return IdallocException.timedOut("no answer in time");
    }
    IdallocException failure = IdallocException.of(cause);
    if (failure.reason().equals(Reason.CLOSED)) {
      return failure;
    }
    if (isClosed) {
      return IdallocException.closed("client");
    }
    if (failure.reason().equals(Reason.CANCELLED)
        && failure.getMessage().contains("Failed to read message")) {
      return IdallocException.invalidReply(failure.getMessage());
    }
    // A server that stops cancels calls that it has not begun, a proxy resets streams that were
    // silent for long, a killed server closes the connection, and another port speaks no HTTP/2.
    boolean isBroken =
        failure.reason().equals(Reason.CANCELLED)
            || failure.reason().equals("UNKNOWN") && failure.getMessage().contains("channel closed")
            || failure.reason().equals(Reason.INTERNAL)
                && failure.metadata().isEmpty()
                && failure.getMessage().matches(".*(RST_STREAM|GOAWAY|http2 exception).*");
    if (isBroken && cause instanceof io.grpc.StatusRuntimeException) {
      failure = failure.asUnreachable();
    }
    if (failure.reason().equals(Reason.SERVER_UNREACHABLE)
        && !target.isEmpty()
        && !failure.getMessage().startsWith(target)) {
      return failure.withMessage(target + ": " + failure.getMessage());
    }
    return failure;
  }

  /** Reports a finished call. */
  void observe(
      MethodDescriptor<?, ?> method,
      String sequence,
      long ids,
      long begun,
      Optional<IdallocException> error) {
    Duration duration = Duration.ofNanos(System.nanoTime() - begun);
    report(new CallEvent(method.getBareMethodName(), sequence, ids, 0, duration, error));
  }

  /** Reports ids that a pool dropped. */
  void dropped(String sequence, long ids) {
    report(new CallEvent("Pool", sequence, 0, ids, Duration.ZERO, Optional.empty()));
  }

  /** Calls the observer. What it throws fails no call, as the ids of the call would be lost. */
  private void report(CallEvent event) {
    try {
      observer.accept(event);
    } catch (RuntimeException e) {
      Thread thread = Thread.currentThread();
      Thread.UncaughtExceptionHandler handler = Thread.getDefaultUncaughtExceptionHandler();
      (handler == null ? thread.getThreadGroup() : handler).uncaughtException(thread, e);
    }
  }

  /** Waits for a result. An interrupt cancels it, and stays set. */
  static <T> T await(CompletableFuture<T> result) {
    try {
      return result.get();
    } catch (InterruptedException e) {
      result.cancel(true);
      throw interrupted();
    } catch (ExecutionException e) {
      throw IdallocException.of(e.getCause()).copy();
    }
  }

  static IdallocException interrupted() {
    Thread.currentThread().interrupt();
    return IdallocException.of(
        Reason.CANCELLED, Status.Code.CANCELLED, "the thread was interrupted");
  }
}
