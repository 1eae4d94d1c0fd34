package io.idalloc.client;

import com.google.protobuf.Any;
import com.google.protobuf.InvalidProtocolBufferException;
import com.google.rpc.BadRequest;
import com.google.rpc.ErrorInfo;
import com.google.rpc.RetryInfo;
import io.grpc.Status;
import io.grpc.protobuf.StatusProto;
import java.io.Serializable;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Optional;

/** A failed call: the only exception that clients, pools and streams throw. */
public final class IdallocException extends RuntimeException {
  private static final long serialVersionUID = 1L;
  private static final String DOMAIN = "idalloc";
  private static final Duration MAX_RETRY_DELAY = Duration.ofHours(1);

  /** What the status says. */
  private record Details(
      Status.Code code,
      String reason,
      Map<String, String> metadata,
      List<String> fields,
      Duration retryDelay)
      implements Serializable {}

  /** Code, reason and the details that the server sent. */
  private final Details details;

  private IdallocException(Details details, String message, Throwable cause) {
    super(message.strip().replaceAll("\\s+", " "), cause);
    this.details = details;
  }

  static IdallocException of(String reason, Status.Code code, String message) {
    return new IdallocException(
        new Details(code, reason, Map.of(), List.of(), Duration.ZERO), message, null);
  }

  /** Returns the error of an argument that the server would reject. */
  static IdallocException invalid(String field, String problem) {
    return ofField(Status.Code.INVALID_ARGUMENT, Reason.INVALID_REQUEST, field, problem);
  }

  /** Returns the error of a file of the configuration. */
  static IdallocException invalidConfig(String field, String problem) {
    return ofField(Status.Code.FAILED_PRECONDITION, Reason.INVALID_CONFIG, field, problem);
  }

  private static IdallocException ofField(
      Status.Code code, String reason, String field, String problem) {
    Details details =
        new Details(code, reason, Map.of("field", field), List.of(field), Duration.ZERO);
    return new IdallocException(details, field + ": " + problem, null);
  }

  static IdallocException invalidReply(String problem) {
    return of(Reason.INVALID_REPLY, Status.Code.INTERNAL, problem);
  }

  static IdallocException closed(String what) {
    return of(Reason.CLOSED, Status.Code.CANCELLED, "the " + what + " is closed");
  }

  static IdallocException timedOut(String message) {
    return of(Reason.DEADLINE_EXCEEDED, Status.Code.DEADLINE_EXCEEDED, message);
  }

  /**
   * Converts the error of a call of a stub. An {@code IdallocException} stays as it is.
   *
   * @param error the error, such as a {@link io.grpc.StatusRuntimeException}
   * @return the same with its reason and details
   */
  public static IdallocException of(Throwable error) {
    for (Throwable each = error; each != null; each = each.getCause()) {
      if (each instanceof IdallocException known) {
        return known;
      }
    }
    Status status = Status.fromThrowable(error);
    String message = Optional.ofNullable(status.getDescription()).orElse("");
    com.google.rpc.Status sent = StatusProto.fromThrowable(error);
    return of(status.getCode(), message, sent == null ? List.of() : sent.getDetailsList(), error);
  }

  /** Returns the error in a reply, such as that of a request of a batch. */
  static IdallocException of(com.google.rpc.Status sent) {
    Status.Code code = Status.fromCodeValue(sent.getCode()).getCode();
    if (code == Status.Code.OK) {
      return invalidReply("an error has the code OK");
    }
    return of(code, sent.getMessage(), sent.getDetailsList(), null);
  }

  private static IdallocException of(
      Status.Code code, String message, List<Any> sent, Throwable cause) {
    String reason = "";
    Map<String, String> metadata = Map.of();
    List<String> fields = new ArrayList<>();
    Duration retryDelay = Duration.ZERO;
    for (Any each : sent) {
      try {
        if (each.is(ErrorInfo.class)) {
          ErrorInfo info = each.unpack(ErrorInfo.class);
          if (info.getDomain().equals(DOMAIN)) {
            reason = info.getReason();
            metadata = Map.copyOf(info.getMetadataMap());
          }
        } else if (each.is(BadRequest.class)) {
          BadRequest request = each.unpack(BadRequest.class);
          request.getFieldViolationsList().forEach(violation -> fields.add(violation.getField()));
        } else if (each.is(RetryInfo.class)) {
          com.google.protobuf.Duration delay = each.unpack(RetryInfo.class).getRetryDelay();
          long seconds = Math.max(0, Math.min(delay.getSeconds(), MAX_RETRY_DELAY.toSeconds()));
          retryDelay = Duration.ofSeconds(seconds, Math.max(0, delay.getNanos()));
          retryDelay = retryDelay.compareTo(MAX_RETRY_DELAY) < 0 ? retryDelay : MAX_RETRY_DELAY;
        }
      } catch (InvalidProtocolBufferException e) {
        // A damaged detail must not hide the error itself.
      }
    }
    if (reason.isEmpty()) {
      reason = code == Status.Code.UNAVAILABLE ? Reason.SERVER_UNREACHABLE : code.name();
      message = withRoot(message, cause);
    }
    Details details = new Details(code, reason, metadata, List.copyOf(fields), retryDelay);
    return new IdallocException(details, message, cause);
  }

  /** Adds what is behind gRPC's "io exception", such as a failed TLS handshake. */
  private static String withRoot(String message, Throwable cause) {
    Throwable root = cause;
    while (root != null && root.getCause() != null && root.getCause() != root) {
      root = root.getCause();
    }
    String text = message.replaceAll("\\s*Channel Pipeline: \\[.*\\]", "");
    String behind = root == null || root == cause ? null : root.getMessage();
    text = behind == null || text.contains(behind) ? text : text + ": " + behind;
    return text.replaceAll("\\b(io|javax?|sun)(\\.\\w+)+[.$][A-Z][\\w$]*(: )?", ""); // classes
  }

  /** Returns the same error with the stack of this thread, for one that several threads get. */
  IdallocException copy() {
    return new IdallocException(details, getMessage(), this);
  }

  /** Returns the error of a connection that broke, to which gRPC may have given another code. */
  IdallocException asUnreachable(String message, Map<String, String> metadata) {
    Status.Code code = Status.Code.UNAVAILABLE;
    String reason = Reason.SERVER_UNREACHABLE;
    Details changed = new Details(code, reason, metadata, details.fields, details.retryDelay);
    return new IdallocException(changed, message, this);
  }

  /**
   * Returns why the call failed.
   *
   * @return a constant of {@link Reason}, or the name of a status code
   */
  public String reason() {
    return details.reason;
  }

  /**
   * Returns the gRPC status code.
   *
   * @return the code
   */
  public Status.Code code() {
    return details.code;
  }

  /**
   * Returns the values of the message, such as {@code largest_range}.
   *
   * @return the metadata of {@code google.rpc.ErrorInfo}
   */
  public Map<String, String> metadata() {
    return details.metadata;
  }

  /**
   * Returns the invalid fields of the request.
   *
   * @return the names of the fields, as in the protos
   */
  public List<String> fields() {
    return details.fields;
  }

  /**
   * Returns how long to wait before a retry.
   *
   * @return the delay, at most an hour; zero if the server asked for no wait
   */
  public Duration retryDelay() {
    return details.retryDelay;
  }

  /**
   * Returns whether the same call may succeed later: the server or its store is unavailable, no
   * answer came in time, or a quota is exceeded.
   *
   * @return whether to retry
   */
  public boolean isRetryable() {
    return code() == Status.Code.UNAVAILABLE
        || code() == Status.Code.DEADLINE_EXCEEDED
        || reason().equals(Reason.QUOTA_EXCEEDED);
  }

  /** Returns the reason and the message, in one line. */
  @Override
  public String toString() {
    return reason() + ": " + getMessage();
  }
}
