package io.idalloc.client;

import io.grpc.CallOptions;
import io.grpc.ClientCall;
import io.grpc.Metadata;
import io.grpc.MethodDescriptor;
import io.grpc.Status;
import java.util.Iterator;
import java.util.NoSuchElementException;
import java.util.Optional;
import java.util.OptionalLong;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;
import java.util.function.LongFunction;
import java.util.function.ToLongFunction;

/**
 * Ids that arrive in parts, such as ranges, until a total is reached. The next part is allocated
 * when it is read. If the stream breaks, it is opened again at a usable server for the missing ids;
 * it fails after 60 s without progress. The time that the program spends between two parts does not
 * count.
 *
 * <p>One thread reads it. Another one may close it.
 *
 * @param <T> a part
 */
public final class IdStream<T> implements Iterator<T>, AutoCloseable {
  /** What differs between the streams: the call, its request for the missing ids, and its parts. */
  record Source<Q, R, T>(
      MethodDescriptor<Q, R> method,
      String sequence,
      LongFunction<Q> request,
      Converter<R, T> convert,
      ToLongFunction<T> countIds) {}

  /** Converts a message with {@code least} to {@code most} ids after the part before, or null. */
  interface Converter<R, T> {
    T part(R reply, long least, long most, T before);
  }

  private final Calls calls;
  private final Attempts<?, ?> attempts;
  private final Clock clock = Clock.SYSTEM;
  private final CountDownLatch closed = new CountDownLatch(1);
  private T read; // the next part, or null

  IdStream(Calls calls, Source<?, ?, T> source, long total, long chunk) {
    this.calls = calls;
    this.attempts = new Attempts<>(source, total, chunk);
    calls.join(this, this::close);
  }

  /**
   * Returns whether there is another part, which it waits for.
   *
   * @return false once the total has arrived
   * @throws IdallocException the stream failed for good, or is closed, or the thread was interrupted
   */
  @Override
  public boolean hasNext() {
    if (read == null && attempts.missing > 0) {
      read = attempts.next();
    }
    return read != null;
  }

  /**
   * Returns the next part.
   *
   * @return the part
   * @throws IdallocException as {@link #hasNext}
   */
  @Override
  public T next() {
    if (!hasNext()) {
      throw new NoSuchElementException();
    }
    T part = read;
    read = null;
    return part;
  }

  /** Ends the stream. At most one part that was allocated is a gap. */
  @Override
  public void close() {
    closed.countDown();
    calls.leave(this);
    attempts.end();
  }

  private boolean isClosed() {
    return closed.getCount() == 0;
  }

  /** What arrives: a reply, or the end. */
  private record Arrived<R>(Optional<R> reply, Status status, Metadata trailers) {}

  private final class Attempts<Q, R> {
    private final Source<Q, R, T> source;
    private final long chunk;
    private final Rounds rounds = calls.rounds(clock);
    private long missing;
    private volatile Attempt<Q, R> open; // or null

    Attempts(Source<Q, R, T> source, long total, long chunk) {
      this.source = source;
      this.missing = total;
      this.chunk = chunk;
    }

    T next() {
      long begun = clock.nanos();
      while (true) {
        if (isClosed()) {
          throw IdallocException.closed(calls.isClosed ? "client" : "stream");
        }
        Attempt<Q, R> attempt = open;
        if (attempt == null) {
          attempt = new Attempt<>(
                  calls.new Attempt<>(rounds.next(), source.method, CallOptions.DEFAULT),
                  source.request.apply(missing));
          open = attempt;
          if (isClosed()) { // close may have missed the attempt
            end();
            continue;
          }
        }
        try {
          long most = Math.min(chunk == 0 ? 10_000 : chunk, missing); // the default of chunk_id_count
          T part = source.convert.part(attempt.receive(), chunk == 0 ? 1 : most, most, attempt.last);
          attempt.last = part;
          long count = source.countIds.applyAsLong(part);
          missing -= count;
          rounds.over();
          calls.observe(source.method, source.sequence, count, begun, Optional.empty());
          if (missing == 0) {
            end(); // the status of the call does not matter any more
          }
          return part;
        } catch (IdallocException e) {
          end();
          await(attempt, e, begun);
        }
      }
    }

    private void await(Attempt<Q, R> attempt, IdallocException error, long begun) {
      OptionalLong delay = rounds.delay(error, attempt.sent.isReplaced(error));
      if (delay.isEmpty() && !isClosed()) {
        calls.observe(source.method, source.sequence, 0, begun, Optional.of(error));
        throw error;
      }
      try {
        closed.await(delay.orElse(0), TimeUnit.NANOSECONDS);
      } catch (InterruptedException e) {
        throw Calls.interrupted();
      }
    }

    void end() {
      Attempt<Q, R> attempt = open;
      open = null;
      if (attempt != null) {
        attempt.cancel();
      }
    }
  }

  private final class Attempt<Q, R> extends ClientCall.Listener<R> {
    private final Calls.Attempt<Q, R> sent;
    private final BlockingQueue<Arrived<R>> arrived = new LinkedBlockingQueue<>();
    private T last; // the latest part, or null

    Attempt(Calls.Attempt<Q, R> sent, Q request) {
      this.sent = sent;
      sent.call.start(this, new Metadata());
      sent.call.sendMessage(request);
      sent.call.halfClose();
    }

    /** Waits for the next message, and for no longer than an outage. */
    R receive() {
      sent.call.request(1);
      Arrived<R> got;
      try {
        got = arrived.poll(calls.longestOutage, TimeUnit.NANOSECONDS);
      } catch (InterruptedException e) {
        cancel();
        throw Calls.interrupted();
      }
      if (got == null) {
        throw IdallocException.of(
            Reason.SERVER_UNREACHABLE, Status.Code.UNAVAILABLE, "the server was silent for 60 s");
      }
      if (got.reply.isPresent()) {
        return got.reply.get();
      }
      if (got.status.isOk()) {
        throw IdallocException.invalidReply("the stream ended with ids missing");
      }
      throw sent.failure(got.status.asRuntimeException(got.trailers));
    }

    void cancel() {
      sent.call.cancel("the program closed the stream", null);
    }

    @Override
    public void onMessage(R message) {
      arrived.add(new Arrived<>(Optional.of(message), Status.OK, new Metadata()));
    }

    @Override
    public void onClose(Status status, Metadata trailers) {
      arrived.add(new Arrived<>(Optional.empty(), status, trailers));
    }
  }
}
