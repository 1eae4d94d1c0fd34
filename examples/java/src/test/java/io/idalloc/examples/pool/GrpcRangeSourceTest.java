package io.idalloc.examples.pool;

import static org.junit.jupiter.api.Assertions.assertEquals;

import io.grpc.CallOptions;
import io.grpc.Channel;
import io.grpc.ClientCall;
import io.grpc.Context;
import io.grpc.Metadata;
import io.grpc.MethodDescriptor;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import org.junit.jupiter.api.Test;

class GrpcRangeSourceTest {
  /** Records the context in which a call is sent; the call never ends. */
  private static final class RecordingChannel extends Channel {
    final List<Context> contexts = new ArrayList<>();

    @Override
    public <Q, R> ClientCall<Q, R> newCall(MethodDescriptor<Q, R> method, CallOptions options) {
      contexts.add(Context.current());
      return new ClientCall<>() {
        @Override
        public void start(Listener<R> listener, Metadata headers) {}

        @Override
        public void request(int messages) {}

        @Override
        public void cancel(String message, Throwable cause) {}

        @Override
        public void halfClose() {}

        @Override
        public void sendMessage(Q message) {}
      };
    }

    @Override
    public String authority() {
      return "test";
    }
  }

  @Test
  void contextOfTheCallerDoesNotEndTheCall() throws Exception {
    RecordingChannel channel = new RecordingChannel();
    GrpcRangeSource source = new GrpcRangeSource(channel, Duration.ofSeconds(5));
    try (Context.CancellableContext caller = Context.ROOT.withCancellation()) {
      caller.call(() -> source.allocate("orders", 1));
    }
    assertEquals(List.of(Context.ROOT), channel.contexts);
  }
}
