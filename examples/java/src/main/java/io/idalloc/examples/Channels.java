package io.idalloc.examples;

import com.google.gson.Gson;
import com.google.gson.reflect.TypeToken;
import io.grpc.Channel;
import io.grpc.ClientInterceptors;
import io.grpc.ConnectivityState;
import io.grpc.ManagedChannel;
import io.grpc.Metadata;
import io.grpc.netty.shaded.io.grpc.netty.GrpcSslContexts;
import io.grpc.netty.shaded.io.grpc.netty.NettyChannelBuilder;
import io.grpc.stub.MetadataUtils;
import java.io.IOException;
import java.io.InputStream;
import java.io.InputStreamReader;
import java.io.Reader;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.Map;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;

/** Channels to a server. */
final class Channels {
  private static final String SERVICE_CONFIG = "/idalloc/v1/service_config.json";

  private Channels() {}

  /**
   * Creates a channel with the retry policy of service_config.json.
   *
   * @param ca the CA certificates in PEM that sign the server's certificate; null for no TLS
   */
  static ManagedChannel create(String server, Path ca) throws IOException {
    NettyChannelBuilder builder = NettyChannelBuilder.forTarget(server);
    if (ca == null) {
      builder.usePlaintext();
    } else {
      builder.sslContext(GrpcSslContexts.forClient().trustManager(ca.toFile()).build());
    }
    return builder.defaultServiceConfig(serviceConfig()).enableRetry().build();
  }

  /** gRPC expects all numbers of a service config as Double, which is what Gson returns. */
  static Map<String, ?> serviceConfig() throws IOException {
    try (InputStream file = Channels.class.getResourceAsStream(SERVICE_CONFIG);
        Reader reader = new InputStreamReader(file, StandardCharsets.UTF_8)) {
      return new Gson().fromJson(reader, new TypeToken<Map<String, Object>>() {}.getType());
    }
  }

  /**
   * Connects before the first call, since the first TLS handshake of a JVM may take longer than a
   * call's deadline. Returns when the channel is ready, has failed to connect, or the timeout has
   * passed; the next call reports the error.
   */
  static void warmUp(ManagedChannel channel, Duration timeout) throws InterruptedException {
    long deadline = System.nanoTime() + timeout.toNanos();
    ConnectivityState state = channel.getState(true);
    while (state == ConnectivityState.IDLE || state == ConnectivityState.CONNECTING) {
      CountDownLatch changed = new CountDownLatch(1);
      channel.notifyWhenStateChanged(state, changed::countDown);
      if (!changed.await(deadline - System.nanoTime(), TimeUnit.NANOSECONDS)) {
        return;
      }
      state = channel.getState(true);
    }
  }

  /** Sends the token of a file with each call. Without TLS the network can read it. */
  static Channel withToken(Channel channel, Path file) throws IOException {
    Metadata headers = new Metadata();
    headers.put(
        Metadata.Key.of("authorization", Metadata.ASCII_STRING_MARSHALLER),
        "Bearer " + Files.readString(file).strip());
    return ClientInterceptors.intercept(
        channel, MetadataUtils.newAttachHeadersInterceptor(headers));
  }
}
