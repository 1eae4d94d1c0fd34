package io.idalloc.client;

import io.grpc.ChannelCredentials;
import io.grpc.TlsChannelCredentials;
import java.io.ByteArrayInputStream;
import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.NoSuchFileException;
import java.nio.file.Path;
import java.security.GeneralSecurityException;
import java.security.KeyFactory;
import java.security.PrivateKey;
import java.security.PublicKey;
import java.security.Signature;
import java.security.cert.CertificateException;
import java.security.cert.CertificateFactory;
import java.security.spec.PKCS8EncodedKeySpec;
import java.util.Arrays;
import java.util.Base64;
import java.util.HexFormat;
import java.util.List;
import java.util.Objects;
import java.util.Optional;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import java.util.stream.Stream;

/** The files of TLS as credentials. One thread at a time reads them. */
final class Tls {
  private static final Pattern KEY =
      Pattern.compile("-----BEGIN (RSA )?PRIVATE KEY-----([^-]+)-----END ");

  private final Path ca; // null for the CAs of the JVM
  private final Path certificate; // null without
  private final Path key;
  private List<String> texts;
  private ChannelCredentials credentials;

  Tls(Path ca, Path certificate, Path key) {
    this.ca = ca;
    this.certificate = certificate;
    this.key = key;
  }

  /** Returns the credentials: the same while the files are the same. */
  ChannelCredentials read() {
    List<String> found =
        Stream.of(ca, certificate, key)
            .filter(Objects::nonNull)
            .map(file -> text("tls", file))
            .toList();
    if (found.equals(texts)) {
      return credentials;
    }
    TlsChannelCredentials.Builder builder = TlsChannelCredentials.newBuilder();
    try {
      if (ca != null) {
        publicKey(ca, found.get(0));
        builder.trustManager(stream(found.get(0)));
      }
      if (certificate != null) {
        String chain = found.get(found.size() - 2);
        PrivateKey read = privateKey(found.get(found.size() - 1), publicKey(certificate, chain));
        String pem = Base64.getMimeEncoder().encodeToString(read.getEncoded());
        pem = "-----BEGIN PRIVATE KEY-----\n" + pem + "\n-----END PRIVATE KEY-----\n";
        builder.keyManager(stream(chain), stream(pem));
      }
    } catch (IOException e) {
      throw new AssertionError(e); // the streams are in memory
    }
    credentials = builder.build();
    texts = found;
    return credentials;
  }

  private static ByteArrayInputStream stream(String text) {
    return new ByteArrayInputStream(text.getBytes(StandardCharsets.ISO_8859_1));
  }

  /** Returns the content of a file of the configuration. */
  static String text(String setting, Path file) {
    try {
      return Files.readString(file, StandardCharsets.ISO_8859_1);
    } catch (IOException e) {
      String why = e instanceof NoSuchFileException ? "does not exist" : "cannot be read";
      throw IdallocException.invalidConfig(setting, file + " " + why + "; check the path and its permissions");
    }
  }

  /** Returns the key of the first certificate. */
  private static PublicKey publicKey(Path file, String text) {
    String why = "has no certificate in PEM; expected -----BEGIN CERTIFICATE-----";
    try {
      if (text.contains("-----BEGIN CERTIFICATE-----")) {
        var all = CertificateFactory.getInstance("X.509").generateCertificates(stream(text));
        return all.iterator().next().getPublicKey();
      }
    } catch (CertificateException e) {
      why = "has a damaged certificate; copy the file again";
    }
    throw IdallocException.invalidConfig("tls", file + " " + why);
  }

  private PrivateKey privateKey(String text, PublicKey expected) {
    String why = "is not the key of the certificate in " + certificate + "; give the files of one pair";
    Matcher matcher = KEY.matcher(text);
    if (text.contains("ENCRYPTED")) { // in the label of PKCS #8, in a header of PKCS #1
      why = "is encrypted; decrypt it: openssl pkey -in ENCRYPTED -out DECRYPTED";
    } else if (!matcher.find()) {
      why = "has no private key in PEM; expected PKCS #8 (openssl pkcs8 -topk8 -nocrypt) or PKCS #1";
    } else {
      try {
        byte[] der = Base64.getMimeDecoder().decode(matcher.group(2));
        byte[] pkcs8 = matcher.group(1) == null ? der : pkcs8(der);
        String algorithm = expected.getAlgorithm();
        PrivateKey found = KeyFactory.getInstance(algorithm).generatePrivate(new PKCS8EncodedKeySpec(pkcs8));
        String scheme = algorithm.replaceFirst("^RSA$", "SHA256withRSA").replaceFirst("^EC$", "SHA256withECDSA");
        Signature signature = Signature.getInstance(scheme);
        signature.initSign(found);
        byte[] signed = signature.sign();
        signature.initVerify(expected);
        if (signature.verify(signed)) {
          return found;
        }
      } catch (GeneralSecurityException | IllegalArgumentException e) {
        // It has another algorithm, or is damaged.
      }
    }
    throw IdallocException.invalidConfig("tls", key + " " + why);
  }

  /**
   * Returns an RSA key of PKCS #1 as PKCS #8: a sequence of the version 0, the algorithm
   * rsaEncryption, and the key as a string of bytes, with lengths of two bytes.
   */
  private static byte[] pkcs8(byte[] key) {
    String header =
        "3082%04x020100300d06092a864886f70d01010105000482%04x"
            .formatted(key.length + 22, key.length);
    byte[] found = HexFormat.of().parseHex(header);
    return ByteBuffer.allocate(found.length + key.length).put(found).put(key).array();
  }

  /** The causes of TLS failures, as the messages of exceptions name them. */
  enum Failure {
    EXPIRED("NotAfter", "the server's certificate has expired"),
    UNTRUSTED("PKIX path", "the server's certificate is signed by an untrusted CA"),
    NAME("No (subject alternative|name)", "the server's certificate is not valid for the expected name"),
    PLAINTEXT("not an SSL/TLS record", "the server does not use TLS"),
    CLOSED(
        "Network closed|Connection reset|Broken pipe|(?i)alert",
        "the server closed the connection before it answered, as one that requires TLS or a client certificate does");

    private final Pattern pattern;
    final String description;

    Failure(String pattern, String description) {
      this.pattern = Pattern.compile(pattern);
      this.description = description;
    }

    /** Returns the cause that an exception or one behind it names. */
    static Optional<Failure> find(Throwable error) {
      var chain = Stream.iterate(error, Objects::nonNull, Throwable::getCause);
      String messages = chain.map(Throwable::getMessage).toList().toString();
      return Arrays.stream(values()).filter(each -> each.pattern.matcher(messages).find()).findFirst();
    }
  }
}
