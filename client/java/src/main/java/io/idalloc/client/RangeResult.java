package io.idalloc.client;

import java.util.Optional;

/**
 * The result of one request of a batch: a range or an error.
 *
 * @param range the range, if the request succeeded
 * @param error the error, if it failed
 */
public record RangeResult(Optional<AllocatedRange> range, Optional<IdallocException> error) {
  static RangeResult of(AllocatedRange range) {
    return new RangeResult(Optional.of(range), Optional.empty());
  }

  static RangeResult of(IdallocException error) {
    return new RangeResult(Optional.empty(), Optional.of(error));
  }

  /**
   * Returns the range.
   *
   * @return the range
   * @throws IdallocException the request failed
   */
  public AllocatedRange get() {
    return range.orElseThrow(() -> error.orElseThrow().copy());
  }
}
