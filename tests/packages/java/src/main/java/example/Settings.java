package example;

import io.idalloc.client.IdallocClient;
import java.nio.file.Path;

/** The options of a client, from the environment: CA, CERT, KEY and TOKEN_FILE. */
final class Settings {
  private Settings() {}

  static IdallocClient.Builder builder(String target) {
    IdallocClient.Builder builder = IdallocClient.builder(target).tls(file("CA"));
    if (System.getenv("CERT") != null) {
      builder.clientCertificate(file("CERT"), file("KEY"));
    }
    if (System.getenv("TOKEN_FILE") != null) {
      builder.tokenFile(file("TOKEN_FILE"));
    }
    return builder;
  }

  private static Path file(String name) {
    return Path.of(System.getenv(name));
  }
}
