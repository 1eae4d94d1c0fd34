package io.idalloc.client;

import java.util.Objects;
import java.util.Optional;
import java.util.UUID;

/**
 * A request for a range.
 *
 * @param sequence the name of the sequence: 1 to 255 bytes of UTF-8 without control characters
 * @param count how many ids: 1 to the server's {@code max_ids_per_call} (default 1,000,000)
 * @param withTexts whether to return the ids also as texts in the sequence's format, such as {@code
 *     "INV-2026-000042"}; then {@code count} is at most 10,000
 * @param requestId makes the call repeatable: within the server's {@code request_id_window} (default
 *     1 h) the same request with the same id returns the same ids, also after a crash. It costs a
 *     write to the store.
 */
public record RangeRequest(
    String sequence, long count, boolean withTexts, Optional<UUID> requestId) {

  /**
   * Checks that nothing is null. The client checks the values when it sends the request.
   *
   * @param sequence the name of the sequence
   * @param count how many ids
   * @param withTexts whether to return texts
   * @param requestId the request id, or empty
   */
  public RangeRequest {
    Objects.requireNonNull(sequence, "sequence");
    Objects.requireNonNull(requestId, "requestId");
  }

  /**
   * Returns a request without texts and without a request id.
   *
   * @param sequence the name of the sequence
   * @param count how many ids
   * @return the request
   */
  public static RangeRequest of(String sequence, long count) {
    return new RangeRequest(sequence, count, false, Optional.empty());
  }

  /**
   * Returns the same request, for texts too.
   *
   * @return the request
   */
  public RangeRequest texts() {
    return new RangeRequest(sequence, count, true, requestId);
  }

  /**
   * Returns the same request with a request id.
   *
   * @param id a random UUID, such as {@link UUID#randomUUID()}; keep it with the work
   * @return the request
   */
  public RangeRequest requestId(UUID id) {
    return new RangeRequest(sequence, count, withTexts, Optional.of(id));
  }
}
