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
import java.util.function.Supplier;
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
  private final Source<?, ?, T> source;
  private final long chunk;
  private final Rounds rounds;
  private final CountDownLatch closed = new CountDownLatch(1);
  private long missing;
  private T read; // the next part, or null
  private volatile Attempt<?, ?> open; // or null

  IdStream(Calls calls, Source<?, ?, T> source, long total, long chunk) {
    this.calls = calls;
    this.source = source;
    this.missing = total;
    this.chunk = chunk;
    this.rounds = calls.rounds(Clock.SYSTEM);
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
    if (read == null && missing > 0) {
      read = receive();
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
    end();
  }

  private boolean isClosed() {
    return closed.getCount() == 0;
  }

  private T receive() {
    long begun = System.nanoTime();
    while (true) {
      if (isClosed()) {
        throw IdallocException.closed(calls.isClosed ? "client" : "stream");
      }
      Attempt<?, ?> attempt = open;
      if (attempt == null) {
        attempt = new Attempt<>(source);
        open = attempt;
        if (isClosed()) { // close may have missed the attempt
          end();
          continue;
        }
      }
      try {
        T part = attempt.receive();
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

  /** Waits for the next attempt, or throws the error that ended this one. */
  private void await(Attempt<?, ?> attempt, IdallocException error, long begun) {
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

  private void end() {
    Attempt<?, ?> attempt = open;
    open = null;
    if (attempt != null) {
      attempt.sent.call.cancel("the program closed the stream", null);
    }
  }

  private final class Attempt<Q, R> extends ClientCall.Listener<R> {
    private final Calls.Attempt<Q, R> sent;
    private final Converter<R, T> convert;
    private final BlockingQueue<Supplier<R>> arrived = new LinkedBlockingQueue<>();
    private T last; // the latest part, or null

    Attempt(Source<Q, R, T> source) {
      sent = calls.new Attempt<>(rounds.next(), source.method, CallOptions.DEFAULT);
      convert = source.convert;
      sent.call.start(this, new Metadata());
      sent.call.sendMessage(source.request.apply(missing));
      sent.call.halfClose();
    }

    /** Waits for the next part, and for no longer than an outage. */
    T receive() {
      sent.call.request(1);
      Supplier<R> reply;
      try {
        reply = arrived.poll(calls.longestOutage, TimeUnit.NANOSECONDS);
      } catch (InterruptedException e) {
        throw Calls.interrupted();
      }
      if (reply == null) {
        throw IdallocException.of(
            Reason.SERVER_UNREACHABLE, Status.Code.UNAVAILABLE, "the server was silent for 60 s");
      }
      long most = Math.min(chunk == 0 ? 10_000 : chunk, missing); // the default of chunk_id_count
      last = convert.part(reply.get(), chunk == 0 ? 1 : most, most, last);
      return last;
    }

    @Override
    public void onMessage(R message) {
      arrived.add(() -> message);
    }

    @Override
    public void onClose(Status status, Metadata trailers) {
      arrived.add(
          () -> {
            throw status.isOk()
                ? IdallocException.invalidReply("the stream ended with ids missing")
                : sent.failure(status.asRuntimeException(trailers));
          });
    }
  }
}
