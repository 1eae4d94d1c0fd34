package io.idalloc.client;

import io.grpc.CallOptions;
import io.grpc.Channel;
import io.grpc.ClientCall;
import io.grpc.Context;
import io.grpc.Deadline;
import io.grpc.Grpc;
import io.grpc.MethodDescriptor;
import io.grpc.Status;
import io.grpc.stub.ClientCalls;
import io.grpc.stub.StreamObserver;
import java.time.Duration;
import java.util.HashSet;
import java.util.Locale;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.concurrent.CancellationException;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.ForkJoinPool;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import java.util.function.Consumer;
import java.util.function.Function;
import java.util.function.Supplier;
import java.util.function.ToLongFunction;
import java.util.regex.Pattern;

/** Calls of servers: attempts, deadlines, the token, errors, events, and their end. */
final class Calls implements AutoCloseable {
  private static final long MIN_PATIENCE = Duration.ofMillis(500).toNanos();
  private static final long PROBE_LIMIT = Duration.ofMillis(250).toNanos();
  private static final long MAX_RETRY_DELAY = Duration.ofSeconds(5).toNanos();
  private static final int MAX_ROUNDS = 5;
  private static final Pattern BROKEN =
      Pattern.compile("HTTP/2 error code|RST_STREAM|GOAWAY|http2 exception|channel closed");
  // gRPC's threads must not run the functions of callers, which may wait for other calls.
  private static final ForkJoinPool CALLBACKS =
      new ForkJoinPool(4, ForkJoinPool.defaultForkJoinWorkerThreadFactory, null, true);

  /** What a second attempt of a call does while the first one may still be served. */
  enum Repeat {
    /** It takes ids that nobody uses. */
    NEVER,
    /** It gets the same ids, as that of a call with a request id. */
    SAME_IDS,
    /** The ids of the later answer are dropped. The call, of a pool, has one round. */
    REFILL
  }

  /** A call of one request, which may be refused, and how its reply becomes a result with ids. */
  record Unary<Q, R, T>(
      MethodDescriptor<Q, R> method,
      String sequence,
      Supplier<Q> request,
      Function<R, T> convert,
      ToLongFunction<T> countIds) {}

  private final Servers servers;
  private final String target; // for errors; empty if unknown
  private final Reloaded<String> token; // null without
  private final Consumer<CallEvent> observer;
  private final Map<Object, Runnable> open = new ConcurrentHashMap<>(); // how close ends each
  final Duration timeout;
  volatile boolean isClosed;
  /** Without progress for so long, an error of a stream is final. Tests make it shorter. */
  volatile long longestOutage = Duration.ofSeconds(60).toNanos();
  // The smoothed latency, in nanoseconds. The first call of a JVM is slower than others.
  private volatile long latency = Duration.ofMillis(250).toNanos();

  Calls(
      Servers servers,
      String target,
      Reloaded<String> token,
      Duration timeout,
      Consumer<CallEvent> observer) {
    this.servers = servers;
    this.target = target;
    this.token = token;
    this.timeout = timeout;
    this.observer = observer;
  }

  /** Returns a channel to the servers in turn, whose calls send the token. */
  Channel channel() {
    return new Channel() {
      @Override
      public <Q, R> ClientCall<Q, R> newCall(MethodDescriptor<Q, R> method, CallOptions options) {
        return new Attempt<>(servers.pick(Set.of()), method, options).call;
      }

      @Override
      public String authority() {
        return servers.pick(Set.of()).channel().authority();
      }
    };
  }

  /** Returns the attempts of a stream. */
  Rounds rounds(Clock clock) {
    return new Rounds(servers, clock, Integer.MAX_VALUE, longestOutage);
  }

  /** Ends a part of the client with it, until {@code leave}. */
  void join(Object part, Runnable close) {
    open.put(part, close);
    if (isClosed) { // the client was closed meanwhile
      close.run();
    }
  }

  void leave(Object part) {
    open.remove(part);
  }

  @Override
  public void close() {
    isClosed = true;
    open.values().forEach(Runnable::run);
    servers.close();
  }

  /** One attempt of a call. */
  final class Attempt<Q, R> {
    final Servers.Server server;
    final Channel channel;
    final ClientCall<Q, R> call;
    private final Token credentials; // null without a token

    Attempt(Servers.Server server, MethodDescriptor<Q, R> method, CallOptions options) {
      this.server = server;
      channel = server.channel();
      credentials = token == null ? null : new Token(token);
      CallOptions own = token == null ? options : options.withCallCredentials(credentials);
      call = channel.newCall(method, own);
    }

    /** Converts its error, which may make the server suspect. */
    IdallocException failure(Throwable error) {
      if (isClosed) {
        return IdallocException.closed("client");
      }
      IdallocException failure = unreachable(IdallocException.of(error));
      if (failure.reason().equals(Reason.SERVER_UNREACHABLE)
          || failure.reason().equals(Reason.SERVER_DRAINING)) {
        server.suspect();
      }
      return failure;
    }

    /** Converts the error of a connection that failed or broke; others stay as they are. */
    private IdallocException unreachable(IdallocException failure) {
      String message = failure.getMessage();
      boolean isCancelled = failure.reason().equals(Reason.CANCELLED);
      if (isCancelled && message.contains("Failed to read message")) {
        return IdallocException.invalidReply(message);
      }
      // A server that stops cancels calls that it has not begun, a proxy resets streams that were
      // silent for long, a killed server closes the connection, and another port speaks no HTTP/2.
      // gRPC gives each of these the code of its HTTP/2 error, and no details.
      boolean hasDetails = !failure.reason().equals(failure.code().name());
      if (isCancelled || !hasDetails && BROKEN.matcher(message).find()) {
        message = "the call broke: " + message;
      } else if (!failure.reason().equals(Reason.SERVER_UNREACHABLE)) {
        return failure;
      }
      // Without this attribute the connection was not ready.
      boolean isConnecting = call.getAttributes().get(Grpc.TRANSPORT_ATTR_REMOTE_ADDR) == null;
      Optional<Tls.Failure> tls = isConnecting ? Tls.Failure.find(failure) : Optional.empty();
      if (tls.isPresent()) {
        message = tls.get().description + " (" + message + ")";
      }
      Map<String, String> metadata =
          tls.map(each -> Map.of("tls", each.name().toLowerCase(Locale.ROOT)))
              .orElse(failure.metadata());
      return failure.asUnreachable(target.isEmpty() ? message : target + ": " + message, metadata);
    }

    /** Whether the server refused a token that the file does not have any more. */
    boolean isReplaced(IdallocException failure) {
      return failure.code() == Status.Code.UNAUTHENTICATED
          && credentials != null
          && credentials.isReplaced();
    }
  }

  /**
   * Makes a unary call. The future gets the converted reply, or an IdallocException; its
   * cancellation cancels the call.
   */
  <Q, R, T> CompletableFuture<T> unary(Unary<Q, R, T> unary, Repeat repeat) {
    if (isClosed) {
      return CompletableFuture.failedFuture(IdallocException.closed("client"));
    }
    CompletableFuture<T> result = new CompletableFuture<>();
    try {
      UnaryAttempts<Q, R, T> attempts = new UnaryAttempts<>(unary, repeat, result);
      join(result, () -> result.completeExceptionally(IdallocException.closed("client")));
      result.whenComplete((value, error) -> leave(result));
      observe(unary, result);
      attempts.context.run(() -> attempts.send(attempts.rounds.next()));
    } catch (RuntimeException | Error e) {
      result.completeExceptionally(e);
    }
    return result;
  }

  /** The states of a unary call, in the words of docs/explanation/client-calls.md. */
  private final class UnaryAttempts<Q, R, T> {
    private final Unary<Q, R, T> unary;
    private final Repeat repeat;
    private final CompletableFuture<T> result;
    private final Q request;
    private final Rounds rounds;
    private final Deadline deadline = Deadline.after(timeout.toNanos(), TimeUnit.NANOSECONDS);
    private final Context context;
    private final Set<Attempt<Q, R>> pending = new HashSet<>(); // guarded by the monitor
    private boolean hasSecond; // whether the second attempt was made; guarded by the monitor
    private volatile IdallocException last; // the error of the last round

    UnaryAttempts(Unary<Q, R, T> unary, Repeat repeat, CompletableFuture<T> result) {
      this.unary = unary;
      this.repeat = repeat;
      this.result = result;
      request = unary.request.get();
      // The end of a caller's context must not cancel the refill of all callers.
      context = repeat == Repeat.REFILL ? Context.ROOT : Context.current();
      int most = repeat == Repeat.REFILL ? 1 : MAX_ROUNDS;
      rounds = new Rounds(servers, Clock.SYSTEM, most, timeout.toNanos());
    }

    private void send(Servers.Server server) {
      if (!result.isDone()) { // cancelled or closed meanwhile
        start(add(server));
      }
    }

    private synchronized Attempt<Q, R> add(Servers.Server server) {
      CallOptions options = CallOptions.DEFAULT.withDeadline(deadline);
      Attempt<Q, R> attempt = new Attempt<>(server, unary.method, options);
      pending.add(attempt);
      return attempt;
    }

    private synchronized boolean isPending(Attempt<Q, R> attempt) {
      return pending.contains(attempt) && !result.isDone();
    }

    private void start(Attempt<Q, R> attempt) {
      long sentAt = System.nanoTime();
      long patience = Math.max(MIN_PATIENCE, 4 * latency);
      Runnable ended = Clock.SYSTEM.after(patience, () -> probe(attempt, sentAt));
      context.run(
          () ->
              Calls.send(attempt.call, request)
                  .thenApply(unary.convert)
                  .whenComplete(
                      (value, error) -> {
                        ended.run();
                        if (error == null) {
                          answered(value, System.nanoTime() - sentAt);
                        } else {
                          failed(attempt, error.getCause()); // of a CompletionException
                        }
                      }));
      // Only once the call has started: gRPC starts no call that was cancelled before.
      result.whenComplete(
          (value, error) -> {
            if (error != null) {
              attempt.call.cancel("the caller left", error);
            }
          });
    }

    private void answered(T value, long duration) {
      if (result.complete(value)) {
        latency += (duration - latency) / 5;
      } else if (repeat == Repeat.REFILL) {
        dropped(unary.sequence, unary.countIds.applyAsLong(value));
      }
    }

    private void failed(Attempt<Q, R> attempt, Throwable error) {
      if (result.isDone()) {
        return;
      }
      IdallocException failure = attempt.failure(error);
      boolean isOther; // whether the other attempt may be answered
      synchronized (this) {
        pending.remove(attempt);
        isOther = !pending.isEmpty();
      }
      boolean isReplaced = attempt.isReplaced(failure);
      if (failure.code() != Status.Code.UNAVAILABLE && !isReplaced) {
        boolean isLate = failure.code() == Status.Code.DEADLINE_EXCEEDED && last != null;
        result.completeExceptionally(isLate ? last : failure);
      } else if (!isOther) {
        last = failure;
        long delay = rounds.delay(failure, isReplaced).orElse(Long.MAX_VALUE);
        boolean isLong = delay > 0 && failure.retryDelay().toNanos() > MAX_RETRY_DELAY;
        if (isLong || delay > deadline.timeRemaining(TimeUnit.NANOSECONDS)) {
          result.completeExceptionally(failure);
        } else {
          Clock.SYSTEM.after(delay, () -> send(rounds.next()));
        }
      }
    }

    /** Asks a silent server whether it is alive; if it is not, another one gets the call, too. */
    private void probe(Attempt<Q, R> silent, long sentAt) {
      if (isPending(silent)) {
        silent
            .server
            .probe(silent.channel)
            .copy()
            .completeOnTimeout(false, PROBE_LIMIT, TimeUnit.NANOSECONDS)
            .thenAcceptAsync(isAlive -> probed(silent, sentAt, isAlive));
      }
    }

    private void probed(Attempt<Q, R> silent, long sentAt, boolean isAlive) {
      if (!isPending(silent)) {
        return;
      }
      if (isAlive) {
        latency = Math.max(latency, System.nanoTime() - sentAt);
        return;
      }
      silent.server.suspect();
      Attempt<Q, R> second;
      synchronized (this) {
        if (repeat == Repeat.NEVER || hasSecond || !isPending(silent)) {
          return;
        }
        hasSecond = true;
        second = add(rounds.other());
      }
      start(second);
    }
  }

  /** Sends the request of a unary call. gRPC checks that a reply and a status come. */
  static <Q, R> CompletableFuture<R> send(ClientCall<Q, R> call, Q request) {
    CompletableFuture<R> answer = new CompletableFuture<>();
    StreamObserver<R> observer =
        new StreamObserver<>() {
          private R reply;

          @Override
          public void onNext(R message) {
            reply = message;
          }

          @Override
          public void onError(Throwable error) {
            answer.completeExceptionally(error);
          }

          @Override
          public void onCompleted() {
            answer.complete(reply);
          }
        };
    ClientCalls.asyncUnaryCall(call, request, observer);
    return answer;
  }

  /** Ends a result that is late with the last error, or with a message if there is none. */
  static void limit(
      CompletableFuture<?> result,
      Duration limit,
      Supplier<IdallocException> last,
      String message) {
    result
        .copy()
        .orTimeout(limit.toNanos(), TimeUnit.NANOSECONDS)
        .whenComplete(
            (value, error) -> {
              if (error instanceof TimeoutException) {
                IdallocException known = last.get();
                result.completeExceptionally(
                    known == null ? IdallocException.timedOut(message) : known.copy());
              }
            });
  }

  /** Returns a future for a caller, whose functions run on threads of their own. */
  static <T> CompletableFuture<T> handOver(CompletableFuture<T> result) {
    CompletableFuture<T> returned = new CompletableFuture<>();
    result.whenCompleteAsync(
        (value, error) -> {
          if (error == null) {
            returned.complete(value);
          } else {
            returned.completeExceptionally(IdallocException.of(error));
          }
        },
        CALLBACKS);
    returned.whenComplete((value, error) -> result.cancel(true)); // if its caller left
    return returned;
  }

  /** Converts the error of a result. */
  static IdallocException failure(Throwable error) {
    return error instanceof CancellationException
        ? IdallocException.of(
            Reason.CANCELLED, Status.Code.CANCELLED, "the caller cancelled the call")
        : IdallocException.of(error);
  }

  /** Reports a call once it has a result. */
  <T> void observe(Unary<?, ?, T> unary, CompletableFuture<T> result) {
    long begun = System.nanoTime();
    result.whenComplete(
        (value, error) -> {
          long ids = value == null ? 0 : unary.countIds.applyAsLong(value);
          Optional<IdallocException> failure = Optional.ofNullable(error).map(Calls::failure);
          observe(unary.method, unary.sequence, ids, begun, failure);
        });
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
      thread.getUncaughtExceptionHandler().uncaughtException(thread, e);
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
