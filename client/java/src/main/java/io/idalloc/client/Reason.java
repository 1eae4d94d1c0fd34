package io.idalloc.client;

/**
 * Why a call failed. A newer server may send further reasons, and an error of a proxy has the name
 * of its status code, such as {@code "UNIMPLEMENTED"}.
 */
public final class Reason {
  /** The request is not valid; see {@link IdallocException#fields()}. */
  public static final String INVALID_REQUEST = "INVALID_REQUEST";

  /** The sequence does not exist. */
  public static final String SEQUENCE_NOT_FOUND = "SEQUENCE_NOT_FOUND";

  /** The sequence has too few ids left: {@code largest_range} of the metadata says how many. */
  public static final String SEQUENCE_EXHAUSTED = "SEQUENCE_EXHAUSTED";

  /** The stored row of the sequence is corrupt. */
  public static final String SEQUENCE_INVALID = "SEQUENCE_INVALID";

  /** The sequence exists. */
  public static final String SEQUENCE_EXISTS = "SEQUENCE_EXISTS";

  /** The sequence was changed by another caller. */
  public static final String SEQUENCE_CHANGED = "SEQUENCE_CHANGED";

  /** The timestamps of the sequence are too far ahead of the clock. */
  public static final String SEQUENCE_AHEAD_OF_CLOCK = "SEQUENCE_AHEAD_OF_CLOCK";

  /** The server serves as many sequences as it may. */
  public static final String TOO_MANY_SEQUENCES = "TOO_MANY_SEQUENCES";

  /** The store is away; a retry may succeed. */
  public static final String STORE_UNAVAILABLE = "STORE_UNAVAILABLE";

  /** The store refuses until an operator acts. */
  public static final String STORE_REFUSED = "STORE_REFUSED";

  /** The store is behind what the server saw before. */
  public static final String STORE_WENT_BACKWARDS = "STORE_WENT_BACKWARDS";

  /** The server shuts down; another one may answer. */
  public static final String SERVER_DRAINING = "SERVER_DRAINING";

  /** The clock of the server cannot be used for document ids. */
  public static final String DOC_ID_TIMESTAMP_REFUSED = "DOC_ID_TIMESTAMP_REFUSED";

  /** Another live server has the prefix. */
  public static final String PREFIX_IN_USE = "PREFIX_IN_USE";

  /** The request id was used for another request. */
  public static final String REQUEST_ID_REUSED = "REQUEST_ID_REUSED";

  /** The recorded ids may no longer be issued. */
  public static final String REQUEST_ID_BURNED = "REQUEST_ID_BURNED";

  /** The token or certificate is missing or wrong. */
  public static final String UNAUTHENTICATED = "UNAUTHENTICATED";

  /** The identity lacks a role. */
  public static final String PERMISSION_DENIED = "PERMISSION_DENIED";

  /** A quota is used up; a retry after the delay may succeed. */
  public static final String QUOTA_EXCEEDED = "QUOTA_EXCEEDED";

  /** A fault of the server. */
  public static final String INTERNAL = "INTERNAL";

  /**
   * Of this package: a file of TLS or of a token cannot be used. The message names it, and what to
   * do.
   */
  public static final String INVALID_CONFIG = "INVALID_CONFIG";

  /**
   * Of this package: no server answered, or the connection broke. If TLS failed, {@code tls} of the
   * metadata is {@code untrusted}, {@code expired}, {@code name}, {@code plaintext} or {@code
   * closed}.
   */
  public static final String SERVER_UNREACHABLE = "SERVER_UNREACHABLE";

  /** Of this package: no answer in time. */
  public static final String DEADLINE_EXCEEDED = "DEADLINE_EXCEEDED";

  /** Of this package: the caller cancelled the call, or its thread was interrupted. */
  public static final String CANCELLED = "CANCELLED";

  /** Of this package: the client, pool or stream is closed. */
  public static final String CLOSED = "CLOSED";

  /** Of this package: a reply contradicts the protos. None of its ids is used. */
  public static final String INVALID_REPLY = "INVALID_REPLY";

  /** Of this package: three ranges in a row came too late for a pool. */
  public static final String EXPIRED_ON_ARRIVAL = "EXPIRED_ON_ARRIVAL";

  private Reason() {}
}
