package io.idalloc.examples;

import com.google.gson.Gson;
import com.google.gson.JsonObject;
import io.grpc.CallOptions;
import io.grpc.Channel;
import io.grpc.ClientCall;
import io.grpc.ClientInterceptor;
import io.grpc.ForwardingClientCall.SimpleForwardingClientCall;
import io.grpc.ForwardingClientCallListener.SimpleForwardingClientCallListener;
import io.grpc.Metadata;
import io.grpc.MethodDescriptor;
import io.idalloc.v1.AllocateRangeRequest;
import io.idalloc.v1.AllocateRangeResponse;
import io.idalloc.v1.AllocateStreamRequest;
import io.idalloc.v1.AllocateStreamResponse;
import io.idalloc.v1.DocIdRun;
import io.idalloc.v1.GenerateDocIdResponse;
import io.idalloc.v1.IdRange;
import io.idalloc.v1.Ordering;
import io.idalloc.v1.StreamDocIdsResponse;
import io.idalloc.v1.StreamRangesRequest;
import io.idalloc.v1.StreamRangesResponse;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.ByteBuffer;
import java.nio.channels.FileChannel;
import java.nio.charset.StandardCharsets;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.locks.ReentrantLock;

/**
 * Writes the log that {@code idalloc verify} reads: one record for each range that arrives, before
 * the caller of gRPC gets it. If it cannot be written, the call fails and its ids are not used.
 */
final class IssuedLog implements ClientInterceptor, AutoCloseable {
  private static final Gson GSON = new Gson();

  private final FileChannel file;
  private final ReentrantLock lock = new ReentrantLock();
  private final Set<String> requestIds = ConcurrentHashMap.newKeySet();
  private final long startedWall = TimeUnit.MILLISECONDS.toNanos(System.currentTimeMillis());
  private final long startedNanos = System.nanoTime();

  /**
   * @param path a file that does not exist
   */
  IssuedLog(Path path) throws IOException {
    file = FileChannel.open(path, StandardOpenOption.CREATE_NEW, StandardOpenOption.WRITE);
    JsonObject header = new JsonObject();
    header.addProperty("idalloc_log", 2);
    // Java does not read the clock since boot, so the times of two logs cannot be compared.
    header.addProperty("boot_id", "");
    header.addProperty("boot_time_ns", startedWall);
    header.addProperty("client", "java " + ProcessHandle.current().pid());
    write(List.of(header));
  }

  @Override
  public <Q, R> ClientCall<Q, R> interceptCall(
      MethodDescriptor<Q, R> method, CallOptions options, Channel next) {
    return new LoggedCall<>(next.newCall(method, options));
  }

  @Override
  public void close() throws IOException {
    file.close();
  }

  /** Nanoseconds since 1970, on a clock that cannot be set while the log is open. */
  private long now() {
    return startedWall + (System.nanoTime() - startedNanos);
  }

  private void write(List<JsonObject> records) throws IOException {
    StringBuilder lines = new StringBuilder();
    for (JsonObject each : records) {
      lines.append(GSON.toJson(each)).append('\n');
    }
    ByteBuffer bytes = ByteBuffer.wrap(lines.toString().getBytes(StandardCharsets.UTF_8));
    lock.lock();
    try {
      while (bytes.hasRemaining()) {
        file.write(bytes);
      }
    } finally {
      lock.unlock();
    }
  }

  private List<JsonObject> records(Object request, Object reply) {
    if (request instanceof AllocateRangeRequest asked
        && reply instanceof AllocateRangeResponse got) {
      JsonObject record =
          range(
              asked.getSequence(),
              got.getRange(),
              got.getGeneration(),
              got.getPeriod(),
              got.getNodeId(),
              got.getOrdering());
      if (!asked.getRequestId().isEmpty()) {
        if (!requestIds.add(asked.getRequestId())) {
          return List.of(); // a repeated request got the ids that are in the log already
        }
        record.addProperty("request_id", asked.getRequestId());
      }
      return List.of(record);
    }
    if (request instanceof StreamRangesRequest asked && reply instanceof StreamRangesResponse got) {
      return List.of(
          range(
              asked.getSequence(),
              got.getRange(),
              got.getGeneration(),
              got.getPeriod(),
              got.getNodeId(),
              got.getOrdering()));
    }
    if (request instanceof AllocateStreamRequest asked
        && reply instanceof AllocateStreamResponse got) {
      return got.hasAllocateRange()
          ? records(asked.getAllocateRange(), got.getAllocateRange())
          : records(asked, got.getGenerateDocId()); // no runs, if it is an error
    }
    if (reply instanceof GenerateDocIdResponse got) {
      return got.getRunsList().stream().map(IssuedLog::run).toList();
    }
    if (reply instanceof StreamDocIdsResponse got) {
      return got.getRunsList().stream().map(IssuedLog::run).toList();
    }
    return List.of();
  }

  private static JsonObject range(
      String sequence, IdRange ids, long generation, String period, long node, Ordering ordering) {
    JsonObject record = new JsonObject();
    record.addProperty("sequence", sequence);
    if (!period.isEmpty()) {
      record.addProperty("period", period);
    }
    record.addProperty("generation", generation);
    record.addProperty("first", ids.getFirstId());
    record.addProperty("step", ids.getStep());
    record.addProperty("count", ids.getIdCount());
    if (node != 0) {
      record.addProperty("node", node);
    }
    if (ordering == Ordering.ORDERING_RISING) {
      record.addProperty("rising", true);
    }
    return record;
  }

  private static JsonObject run(DocIdRun run) {
    JsonObject record = new JsonObject();
    record.addProperty("doc_id", run.getFirstDocId());
    record.addProperty("step", run.getStep());
    record.addProperty("count", run.getIdCount());
    return record;
  }

  private final class LoggedCall<Q, R> extends SimpleForwardingClientCall<Q, R> {
    private final Map<Long, Q> requests = new ConcurrentHashMap<>(); // by number; 0 without one
    private volatile long asked; // before the first request

    LoggedCall(ClientCall<Q, R> call) {
      super(call);
    }

    @Override
    public void sendMessage(Q message) {
      if (requests.isEmpty()) {
        asked = now();
      }
      requests.put(message instanceof AllocateStreamRequest each ? each.getNumber() : 0L, message);
      super.sendMessage(message);
    }

    @Override
    public void start(Listener<R> listener, Metadata headers) {
      super.start(
          new SimpleForwardingClientCallListener<>(listener) {
            @Override
            public void onMessage(R reply) {
              long number = reply instanceof AllocateStreamResponse each ? each.getNumber() : 0;
              Q answered = number == 0 ? requests.get(0L) : requests.remove(number);
              List<JsonObject> records = records(answered, reply);
              long now = now();
              for (JsonObject each : records) {
                each.addProperty("asked", asked);
                each.addProperty("answered", now);
              }
              try {
                write(records);
              } catch (IOException e) {
                throw new UncheckedIOException(e); // gRPC cancels the call
              }
              super.onMessage(reply);
            }
          },
          headers);
    }
  }
}
