package io.idalloc.examples.pool;

import com.google.protobuf.Any;
import com.google.protobuf.InvalidProtocolBufferException;
import com.google.rpc.BadRequest;
import com.google.rpc.ErrorInfo;
import com.google.rpc.QuotaFailure;
import com.google.rpc.RetryInfo;
import io.grpc.Status;
import io.grpc.protobuf.StatusProto;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Optional;

/**
 * A failed call, with the details that the server sent: ErrorInfo, BadRequest, RetryInfo and
 * QuotaFailure.
 */
public final class IdallocException extends RuntimeException {
  private static final long serialVersionUID = 1L;
  private static final String DOMAIN = "idalloc";

  private final Status.Code code;
  private final transient Details details;

  /** An error that this client found, without details of the server. */
  public IdallocException(Status.Code code, String message) {
    this(code, message, new Details(), null);
  }

  private IdallocException(Status.Code code, String message, Details details, Throwable cause) {
    super(message, cause);
    this.code = code;
    this.details = details;
  }

  /** Returns the error of a call as an IdallocException; an IdallocException stays as it is. */
  public static IdallocException of(Throwable error) {
    if (error instanceof IdallocException known) {
      return known;
    }
    Details details = new Details();
    com.google.rpc.Status sent = StatusProto.fromThrowable(error);
    if (sent != null) {
      sent.getDetailsList().forEach(details::add);
    }
    Status status = Status.fromThrowable(error);
    String message = status.getDescription() == null ? "" : status.getDescription();
    if (details.reason.isEmpty()) {
      message = message.replaceAll("\\s*Channel Pipeline: \\[.*\\]", "");
      // Such as the failed TLS handshake behind gRPC's "io exception".
      Throwable root = rootCause(error);
      if ((root != error || message.isEmpty())
          && root.getMessage() != null
          && !message.contains(root.getMessage())) {
        message += (message.isEmpty() ? "" : ": ") + root.getMessage();
      }
    }
    return new IdallocException(status.getCode(), message, details, error);
  }

  /** Returns a copy with the stack of this thread, for an error that several threads wait for. */
  IdallocException copy() {
    return new IdallocException(code, getMessage(), details, this);
  }

  /** The status code. */
  public Status.Code code() {
    return code;
  }

  /** A name of ErrorReason without its prefix, such as SEQUENCE_EXHAUSTED; empty if unknown. */
  public String reason() {
    return details.reason;
  }

  /** The metadata of ErrorInfo. */
  public Map<String, String> metadata() {
    return details.metadata;
  }

  /** The invalid fields of the request. */
  public List<String> fields() {
    return details.fields;
  }

  /** How long to wait before the call is repeated, if the server says so. */
  public Optional<Duration> retryDelay() {
    return Optional.ofNullable(details.retryDelay);
  }

  /** Whose quotas are exceeded, such as {@code identity:billing}. */
  public List<String> quotaSubjects() {
    return details.quotaSubjects;
  }

  /** Returns the error for a person, in one line. */
  public String toLine() {
    List<String> notes = new ArrayList<>();
    fields().forEach(field -> notes.add("field " + field));
    quotaSubjects().forEach(subject -> notes.add("quota of " + subject));
    retryDelay().ifPresent(delay -> notes.add("retry after " + delay.toMillis() / 1000.0 + " s"));
    String name = reason().isEmpty() ? code.name() : reason();
    String line = name + ": " + getMessage();
    if (!notes.isEmpty()) {
      line += " (" + String.join("; ", notes) + ")";
    }
    return line.replaceAll("\\s+", " ");
  }

  private static Throwable rootCause(Throwable error) {
    Throwable root = error;
    while (root.getCause() != null && root.getCause() != root) {
      root = root.getCause();
    }
    return root;
  }

  private static final class Details {
    String reason = "";
    Map<String, String> metadata = Map.of();
    Duration retryDelay;
    final List<String> fields = new ArrayList<>();
    final List<String> quotaSubjects = new ArrayList<>();

    void add(Any detail) {
      try {
        if (detail.is(ErrorInfo.class)) {
          ErrorInfo info = detail.unpack(ErrorInfo.class);
          if (info.getDomain().equals(DOMAIN)) {
            reason = info.getReason();
            metadata = info.getMetadataMap();
          }
        } else if (detail.is(BadRequest.class)) {
          detail
              .unpack(BadRequest.class)
              .getFieldViolationsList()
              .forEach(violation -> fields.add(violation.getField()));
        } else if (detail.is(RetryInfo.class)) {
          com.google.protobuf.Duration delay = detail.unpack(RetryInfo.class).getRetryDelay();
          retryDelay = Duration.ofSeconds(delay.getSeconds(), delay.getNanos());
        } else if (detail.is(QuotaFailure.class)) {
          detail
              .unpack(QuotaFailure.class)
              .getViolationsList()
              .forEach(violation -> quotaSubjects.add(violation.getSubject()));
        }
      } catch (InvalidProtocolBufferException e) {
        // A damaged detail must not hide the error itself.
      }
    }
  }
}
