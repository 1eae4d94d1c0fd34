package io.idalloc.client;

import java.time.Duration;
import java.util.List;
import java.util.stream.LongStream;

/**
 * A contiguous range of ids of a sequence: {@code first}, {@code first + step}, ... {@code last}.
 * They belong to the caller for ever; unused ids are a gap.
 *
 * @param first the first id
 * @param last the last id
 * @param step the distance of two ids; negative in a sequence that counts down, never 0
 * @param count how many ids; at least 1
 * @param texts the ids in the sequence's format, where the request asked for them
 * @param period the period of a sequence with a reset, such as {@code "2026-11"}, or an empty text;
 *     the next period issues the same numbers again
 * @param generation increases when the sequence is changed, advanced or created again
 * @param ttl how long a pool may keep the ids, from before the request; ids that the caller uses
 *     directly have no such limit
 * @param ordering the order of the sequence's ranges
 * @param nodeId the server process that allocated the range; 0 if unknown
 * @param created whether this call created the sequence; check it where a name may be mistyped
 */
public record AllocatedRange(
    long first,
    long last,
    long step,
    long count,
    List<String> texts,
    String period,
    long generation,
    Duration ttl,
    Ordering ordering,
    long nodeId,
    boolean created) {

  /** The order in which the ids of a sequence are issued. */
  public enum Ordering {
    /** The server did not say it. */
    UNKNOWN,
    /** A later range of the same node has larger ids. */
    RISING_PER_NODE,
    /** A call that starts after another one has returned gets larger ids, on any node. */
    RISING
  }

  /**
   * Returns the ids in their order.
   *
   * @return a new stream
   */
  public LongStream ids() {
    // The value after the last id may overflow, and is not used.
    return LongStream.iterate(first, id -> id + step).limit(count);
  }
}
