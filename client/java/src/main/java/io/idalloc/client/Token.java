package io.idalloc.client;

import io.grpc.CallCredentials;
import io.grpc.Metadata;
import io.grpc.Status;
import java.nio.file.Path;
import java.time.Duration;
import java.util.concurrent.Executor;
import java.util.concurrent.locks.ReentrantLock;

/** The token that identifies the client. A file is read again after a second. Threads share it. */
final class Token {
  private static final Metadata.Key<String> HEADER =
      Metadata.Key.of("authorization", Metadata.ASCII_STRING_MARSHALLER);
  private static final long MAX_AGE = Duration.ofSeconds(1).toNanos();

  private final Path file; // null if the text never changes
  private final ReentrantLock lock = new ReentrantLock();
  private volatile String text;
  private volatile long readAt;

  private Token(Path file, String text) {
    this.file = file;
    this.text = text;
    this.readAt = System.nanoTime();
  }

  static Token ofText(String text) {
    return new Token(null, checked("token", "it", text));
  }

  static Token ofFile(Path file) {
    return new Token(file, read(file));
  }

  private static String read(Path file) {
    return checked("tokenFile", file.toString(), Tls.text("tokenFile", file));
  }

  private static String checked(String setting, String what, String text) {
    String token = text.strip();
    if (token.isEmpty()) {
      throw IdallocException.invalidConfig(setting, what + " is empty; put one token into it");
    }
    if (!token.chars().allMatch(c -> 0x20 < c && c < 0x7f)) {
      throw IdallocException.invalidConfig(
          setting, what + " must be one token of printable ASCII, without spaces and line breaks");
    }
    return token;
  }

  /** Returns the token. A file that cannot be read leaves the token from before. */
  private String current() {
    if (file != null && System.nanoTime() - readAt >= MAX_AGE) {
      read();
    }
    return text;
  }

  private void read() {
    lock.lock();
    try {
      text = read(file);
    } catch (IdallocException e) {
      // The file may be in the middle of its replacement.
    } finally {
      readAt = System.nanoTime();
      lock.unlock();
    }
  }

  /** The credentials of one call, which remember what it sent. */
  final class Bearer extends CallCredentials {
    private volatile String sent;

    @Override
    public void applyRequestMetadata(RequestInfo info, Executor executor, MetadataApplier applier) {
      executor.execute( // it may read the file
          () -> {
            try {
              String token = current();
              sent = token;
              Metadata headers = new Metadata();
              headers.put(HEADER, "Bearer " + token);
              applier.apply(headers);
            } catch (RuntimeException e) {
              applier.fail(Status.UNAUTHENTICATED.withCause(e));
            }
          });
    }

    /** Returns whether the file has another token than the one that the call sent. */
    boolean isReplaced() {
      if (file == null || sent == null) {
        return false;
      }
      if (sent.equals(text)) {
        read();
      }
      return !sent.equals(text);
    }
  }
}
