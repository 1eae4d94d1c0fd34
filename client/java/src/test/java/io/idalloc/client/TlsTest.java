package io.idalloc.client;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.grpc.InsecureServerCredentials;
import io.grpc.ServerCredentials;
import io.grpc.TlsServerCredentials;
import io.grpc.TlsServerCredentials.ClientAuth;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardCopyOption;
import java.security.KeyStore;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Base64;
import java.util.List;
import java.util.Map;
import java.util.logging.Level;
import java.util.logging.Logger;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.api.function.Executable;
import org.junit.jupiter.api.io.TempDir;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;
import org.junit.jupiter.params.provider.ValueSource;

@Timeout(60)
class TlsTest {
  private static final String PASSWORD = "secret1";
  private static final Logger LOGGER = Logger.getLogger("io.grpc");
  @TempDir static Path folder;

  /** Makes certificates, and their keys: each a file in PEM. */
  @BeforeAll
  static void makeCertificates() throws Exception {
    LOGGER.setLevel(Level.OFF); // of the servers
    make("ca", "-keyalg", "EC", "-ext", "bc:c");
    make("unknown", "-keyalg", "EC", "-ext", "bc:c");
    make("good", "-keyalg", "EC", "-ext", "san=ip:127.0.0.1", "-signer", "ca");
    make("expired", "-keyalg", "EC", "-startdate", "-9d", "-validity", "1", "-signer", "ca");
    make("other", "-keyalg", "RSA", "-ext", "san=dns:other.example", "-signer", "ca");
    byte[] rsa = Base64.getMimeDecoder().decode(Files.readAllLines(file("other.key")).get(1));
    write("rsa.key", "RSA PRIVATE KEY", Arrays.copyOfRange(rsa, 26, rsa.length)); // PKCS #1
    write("damaged", "CERTIFICATE", new byte[9]);
    write("encrypted", "ENCRYPTED PRIVATE KEY", new byte[9]);
    Files.writeString(file("text"), "no PEM");
    Files.writeString(file("empty"), "\n");
  }

  private static void make(String name, String... options) throws Exception {
    String store = file("store.p12").toString();
    List<String> command = new ArrayList<>();
    command.add(System.getProperty("java.home") + "/bin/keytool");
    command.addAll(List.of("-genkeypair", "-alias", name, "-dname", "CN=" + name));
    command.addAll(List.of("-keystore", store, "-storepass", PASSWORD));
    command.addAll(List.of(options));
    Process made = new ProcessBuilder(command).redirectErrorStream(true).start();
    String printed = new String(made.getInputStream().readAllBytes(), StandardCharsets.UTF_8);
    assertEquals(0, made.waitFor(), printed);
    KeyStore loaded = KeyStore.getInstance(file("store.p12").toFile(), PASSWORD.toCharArray());
    write(name + ".pem", "CERTIFICATE", loaded.getCertificate(name).getEncoded());
    write(name + ".key", "PRIVATE KEY", loaded.getKey(name, PASSWORD.toCharArray()).getEncoded());
  }

  private static void write(String name, String label, byte[] der) throws IOException {
    String text = Base64.getEncoder().encodeToString(der);
    Files.writeString(file(name), "-----BEGIN " + label + "-----\n" + text + "\n-----END " + label + "-----\n");
  }

  private static Path file(String name) {
    return folder.resolve(name);
  }

  private static ServerCredentials credentials(String name, ClientAuth client) throws IOException {
    return TlsServerCredentials.newBuilder()
        .keyManager(file(name + ".pem").toFile(), file(name + ".key").toFile())
        .trustManager(file("ca.pem").toFile())
        .clientAuth(client)
        .build();
  }

  @ParameterizedTest
  @CsvSource({
    "good, NONE, unknown, untrusted", "expired, NONE, ca, expired", "other, NONE, ca, name",
    "plain, NONE, ca, plaintext", "good, NONE, plain, closed", "good, REQUIRE, ca, closed"
  })
  void aFailureOfTlsHasItsCause(String served, ClientAuth client, String trusted, String cause)
      throws IOException {
    ServerCredentials credentials =
        served.equals("plain") ? InsecureServerCredentials.create() : credentials(served, client);
    try (var server = new FakeServer(0, credentials)) {
      var builder = IdallocClient.builder(server.address()).timeout(Duration.ofSeconds(30));
      builder = trusted.equals("plain") ? builder : builder.tls(file(trusted + ".pem"));
      try (var connected = builder.build()) {
        var error = IdallocClientTest.failure(() -> connected.allocateRange("orders", 1));
        assertEquals(Reason.SERVER_UNREACHABLE, error.reason());
        assertEquals(Map.of("tls", cause), error.metadata(), error::getMessage);
        assertFalse(error.getMessage().matches(".*\\b(io|java|javax|sun)\\..*"), error::getMessage);
      }
    }
  }

  @ParameterizedTest
  @CsvSource({
    "missing, missing, good.pem, good.key", "text, text, good.pem, good.key",
    "damaged, damaged, good.pem, good.key", "text, ca.pem, text, good.key",
    "text, ca.pem, good.pem, text", "encrypted, ca.pem, good.pem, encrypted",
    "ca.key, ca.pem, good.pem, ca.key", "other.key, ca.pem, good.pem, other.key",
    "rsa.key, ca.pem, good.pem, rsa.key"
  })
  void aBadFileIsFoundByTheBuilder(String bad, String ca, String certificate, String key) {
    var builder = IdallocClient.builder("a:1").tls(file(ca));
    checkBad(bad, builder.clientCertificate(file(certificate), file(key))::build);
  }

  @ParameterizedTest
  @ValueSource(strings = {"missing", "empty", "good.pem"})
  void aBadTokenFileIsFoundByTheBuilder(String bad) {
    checkBad(bad, () -> IdallocClient.builder("a:1").tokenFile(file(bad)));
  }

  private static void checkBad(String bad, Executable task) {
    var error = assertThrows(IdallocException.class, task);
    assertEquals(Reason.INVALID_CONFIG, error.reason());
    assertFalse(error.isRetryable());
    assertTrue(error.getMessage().contains(file(bad) + " "), error::getMessage);
  }

  @ParameterizedTest
  @CsvSource({"good, good.key", "other, rsa.key"})
  void keysOfEachFormAreRead(String name, String key) {
    var builder = IdallocClient.builder("a:1");
    builder.clientCertificate(file(name + ".pem"), file(key)).build().close();
  }

  @Test
  void certificatesAreReadAgain() throws IOException {
    Path ca = Files.copy(file("ca.pem"), file("rotated.pem"));
    try (var server = new FakeServer(0, credentials("good", ClientAuth.NONE));
        var client = IdallocClient.builder(server.address()).tls(ca).timeout(Duration.ofSeconds(30)).build();
        var open = client.streamRanges("orders", 1_000_000, 1)) {
      open.next();
      Files.copy(file("unknown.pem"), ca, StandardCopyOption.REPLACE_EXISTING);
      var error =
          assertThrows(
              IdallocException.class,
              () -> {
                while (true) {
                  client.allocateRange("orders", 1);
                }
              });
      assertEquals(Map.of("tls", "untrusted"), error.metadata());
      open.next();
      Files.copy(file("ca.pem"), ca, StandardCopyOption.REPLACE_EXISTING);
      client.pool("orders").next(Duration.ofSeconds(30));
    }
  }
}
