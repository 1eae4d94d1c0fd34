package io.idalloc.client;

import io.grpc.CallCredentials;
import io.grpc.Metadata;
import java.nio.file.Path;
import java.util.concurrent.Executor;

/** The token that identifies the client, as the credentials of one call. */
final class Token extends CallCredentials {
  private static final Metadata.Key<String> HEADER =
      Metadata.Key.of("authorization", Metadata.ASCII_STRING_MARSHALLER);

  private final Reloaded<String> text;
  private volatile String sent;

  Token(Reloaded<String> text) {
    this.text = text;
  }

  static Reloaded<String> ofText(String text) {
    return new Reloaded<>(() -> checked("token", "it", text));
  }

  static Reloaded<String> ofFile(Path file) {
    return new Reloaded<>(
        () -> checked("tokenFile", file.toString(), Tls.text("tokenFile", file)));
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

  @Override
  public void applyRequestMetadata(RequestInfo info, Executor executor, MetadataApplier applier) {
    executor.execute( // it may read the file
        () -> {
          sent = text.get();
          Metadata headers = new Metadata();
          headers.put(HEADER, "Bearer " + sent);
          applier.apply(headers);
        });
  }

  /** Returns whether the file has another token than the one that the call sent. */
  boolean isReplaced() {
    return sent != null && !sent.equals(text.reload());
  }
}
