package example;

import io.idalloc.client.IdPool;
import io.idalloc.client.IdallocClient;
import io.idalloc.client.IdallocException;
import io.idalloc.client.Reason;
import java.io.FileOutputStream;
import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.channels.FileChannel;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;

/**
 * Takes ids of a pool until there are TOTAL of them and its input ends: Take SERVERS THREADS KIND TOTAL FILE, where KIND
 * is `platform` or `virtual`. Writes the ids as int64, and prints the reason of each error.
 */
public final class Take {
  private static final int WRITTEN = 200; // ids at once

  private Take() {}

  /** Runs the program. */
  public static void main(String[] arguments) throws Exception {
    int threads = Integer.parseInt(arguments[1]);
    long total = Long.parseLong(arguments[3]);
    try (IdallocClient client = Settings.builder(arguments[0]).build();
        IdPool ids = client.pool("orders");
        FileOutputStream file = new FileOutputStream(arguments[4])) {
      Thread input = new Thread(Take::waitForEnd, "input");
      input.start();
      ExecutorService executor = executor(arguments[2], threads);
      List<Future<?>> takers = new ArrayList<>();
      for (int i = 0; i < threads; i++) {
        takers.add(executor.submit(() -> take(ids, file.getChannel(), total / threads, input)));
      }
      for (Future<?> each : takers) {
        each.get();
      }
      executor.shutdown();
    }
  }

  private static ExecutorService executor(String kind, int threads) throws ReflectiveOperationException {
    return kind.equals("platform")
        ? Executors.newFixedThreadPool(threads)
        : (ExecutorService) Executors.class.getMethod("newVirtualThreadPerTaskExecutor").invoke(null);
  }

  private static void waitForEnd() {
    try {
      while (System.in.read() >= 0) {}
    } catch (IOException e) {
      throw new IllegalStateException(e);
    }
  }

  private static Void take(IdPool ids, FileChannel file, long total, Thread input) throws Exception {
    ByteBuffer buffer = ByteBuffer.allocate(WRITTEN * Long.BYTES);
    for (long taken = 0; taken < total || input.isAlive(); ) {
      try {
        buffer.putLong(ids.next());
        taken++;
      } catch (IdallocException e) {
        if (e.reason().equals(Reason.CLOSED)) {
          throw e; // another taker failed
        }
        System.out.println(e.reason());
      }
      if (!buffer.hasRemaining()) {
        write(buffer, file);
        Thread.sleep(10); // ids last over the restarts
      }
    }
    write(buffer, file);
    return null;
  }

  /** Writes whole buffers: one write call of a channel is not mixed with others. */
  private static void write(ByteBuffer buffer, FileChannel file) throws IOException {
    file.write(buffer.flip());
    buffer.clear();
  }
}
