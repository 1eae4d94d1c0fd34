package io.idalloc.examples.pool;

import java.util.concurrent.CompletionStage;

/** Allocates ranges for a pool. */
@FunctionalInterface
public interface RangeSource {
  /**
   * Sends the request for a range and returns at once.
   *
   * @return completes with the range or with the error. It must complete at some time: give the
   *     call a deadline.
   */
  CompletionStage<AllocatedRange> allocate(String sequence, long idCount);
}
