package io.idalloc.examples;

import static org.junit.jupiter.api.Assertions.assertSame;
import static org.junit.jupiter.api.Assertions.assertThrows;

import io.grpc.ManagedChannel;
import io.grpc.Status;
import io.idalloc.examples.pool.IdallocException;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.EnumSource;

class RetriesTest {
  private ManagedChannel channel;
  private Retries retries;

  @BeforeEach
  void setUp() throws Exception {
    channel = Channels.create("127.0.0.1:1", null); // connects with its first call, and there is none
    retries = new Retries(channel);
  }

  @AfterEach
  void tearDown() {
    channel.shutdownNow();
  }

  @ParameterizedTest
  @EnumSource(
      value = Status.Code.class,
      names = {"UNAVAILABLE", "CANCELLED", "DEADLINE_EXCEEDED"})
  void errorsOfAServerThatStopsAreRetried(Status.Code code) throws Exception {
    retries.await(new IdallocException(code, "the server stops")); // throws the error if not
  }

  @Test
  void otherErrorsAreFinal() {
    IdallocException error = new IdallocException(Status.Code.INTERNAL, "a bug");
    assertSame(error, assertThrows(IdallocException.class, () -> retries.await(error)));
  }
}
